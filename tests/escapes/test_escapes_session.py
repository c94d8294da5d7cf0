"""Hostile cells in a resident session: the channel to the host, and what is left for the host to collect."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bubblewrap_session import opened
from planted import Planted

from agently_kernel.contract.errors import SandboxDied
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.contract.workspace import CollectionLimits

CHANNEL = """
import os, stat
def channels():
    found = []
    for number in range(1024):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            found.append(number)
    return found
def inject(data):
    for number in channels():
        try:
            os.set_blocking(number, False)
            os.write(number, data)
        except OSError:
            pass
"""
FRAME = b"\xa7K\x01\x00"

HOSTILE = {
    "a frame of 300 MiB is announced": CHANNEL + (
        f"inject({FRAME!r} + (40).to_bytes(4, 'big') + (300 << 20).to_bytes(4, 'big'))"
    ),
    "no frame at all": CHANNEL + "inject(b'x' * 5000)",
    "half a frame, then the end": CHANNEL + f"inject({FRAME!r} + b'\\0\\0\\0\\x20')\nos._exit(7)",
    "deeply nested JSON": CHANNEL + (
        f"inject({FRAME!r} + (200000).to_bytes(4, 'big') + bytes(4) + b'{{\"op\":' + b'[' * 199993)"
    ),
    "a forged end and a forged greeting": CHANNEL + (
        "import json\n"
        "for header in ({'op': 'done', 'cell': 'e1', 'status': 'ok'},\n"
        "               {'op': 'hello', 'nonce': '', 'protocol': 1, 'python': '', 'pid': 1, 'stage1': {}}):\n"
        "    head = json.dumps(header).encode()\n"
        f"    inject({FRAME!r} + len(head).to_bytes(4, 'big') + bytes(4) + head)\n"
    ),
    "every descriptor is closed": "import os\nos.closerange(0, 1024)",
    "a crash": "import ctypes\nctypes.string_at(1)",
    "SIGKILL to itself": "import os\nos.kill(os.getpid(), 9)",
    "SIGKILL to its parent and to everybody": "import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)",
    "an exit": "import os\nos._exit(7)",
}


@pytest.mark.parametrize("name", list(HOSTILE))
async def test_a_hostile_cell_ends_at_most_its_sandbox(tmp_path: Path, name: str) -> None:
    """The host answers at once; afterwards the session works, or says that the sandbox has ended and why."""
    async with opened(tmp_path) as session:
        facts = session.resource.facts
        first = await asyncio.wait_for(session.run(HOSTILE[name], timeout=3), 20)
        assert first.status in set(ExecutionStatus)
        if first.death is not None:
            assert first.death.message
        try:
            second = await asyncio.wait_for(session.run("print(6 * 7)", timeout=3), 20)
        except SandboxDied as died:
            assert str(died)
        else:
            if second.status is not ExecutionStatus.SUCCESS:
                assert second.death is not None, second
                second = await asyncio.wait_for(session.run("print(6 * 7)", timeout=3), 20)
            assert second.stdout.text.endswith("42\n")
        assert session.resource.facts is facts


LEAVINGS = {
    "an absolute link": ("os.symlink({canary!r}, 'output/out.txt')", "symlink"),
    "a link climbing out": ("os.symlink('../' * 20 + {canary!r}[1:], 'output/out.txt')", "symlink"),
    "a link to endless zeros": ("os.symlink('/dev/zero', 'output/out.txt')", "symlink"),
    "a pipe": ("os.mkfifo('output/out.txt')", "not_regular"),
    "a socket": ("import socket; socket.socket(socket.AF_UNIX).bind('output/out.txt')", "not_regular"),
    "a folder": ("os.mkdir('output/out.txt')", "not_regular"),
    "two names of one file": ("open('output/a', 'w').close(); os.link('output/a', 'output/out.txt')", "hard_link"),
    "a sparse giant": ("open('output/out.txt', 'wb').truncate(900 << 20)", "too_large"),
    "nothing": ("pass", "missing"),
}


async def test_what_is_left_for_collection_is_refused_by_name(tmp_path: Path, planted: Planted) -> None:
    collection = CollectionLimits(max_file_bytes=1024**2)
    async with opened(tmp_path, collection=collection) as session:
        for name, (code, reason) in LEAVINGS.items():
            clean = "import os, shutil\nfor n in os.listdir('output'):\n    p = 'output/' + n\n" + (
                "    shutil.rmtree(p) if os.path.isdir(p) and not os.path.islink(p) else os.unlink(p)\n"
            )
            await session.run(clean + code.format(canary=planted.facts["canary"]), outputs=("output/out.txt",))
            refused = {item.path: item.reason for item in session.report.refused}
            assert refused["output/out.txt"] == reason, name
    assert [path for path in tmp_path.rglob("files/**/*") if path.is_file()] == []


async def test_a_file_that_is_swapped_while_it_is_read_never_leaks(tmp_path: Path, planted: Planted) -> None:
    code = f"""
import os, threading
os.symlink({planted.facts['canary']!r}, 'output/b')
open('output/a', 'w').write('fine')
stop = False
def swap():
    while not stop:
        try:
            os.rename('output/a', 'output/out.txt')
            os.rename('output/out.txt', 'output/a')
            os.rename('output/b', 'output/out.txt')
            os.rename('output/out.txt', 'output/b')
        except OSError:
            pass
threading.Thread(target=swap, daemon=True).start()
"""
    async with opened(tmp_path) as session:
        await session.run(code)
        for _ in range(60):
            await session.run("pass", outputs=("output/out.txt",))
            for item in session.report.outputs:
                assert Path(item.stored_path).read_text() == "fine"
