from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.sandbox import process as module
from agently_kernel.sandbox.process import spawn_process

ENV = {"PATH": os.environ["PATH"]}


async def test_three_pipes_exact_environment_and_exit_code(tmp_path: Path) -> None:
    code = (
        "import os, sys; data = sys.stdin.read(); print(data, sorted(os.environ), os.getcwd());"
        "print('e', file=sys.stderr); sys.exit(7)"
    )
    process = await spawn_process([sys.executable, "-c", code], env={"A": "1"}, cwd=str(tmp_path))
    process.stdin.write(b"hello")
    process.stdin.close()
    out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
    assert await process.wait() == 7 == process.returncode
    assert out.decode() == f"hello ['A', 'LC_CTYPE'] {tmp_path}\n" or out.decode() == f"hello ['A'] {tmp_path}\n"
    assert err == b"e\n"
    process.close()


@pytest.mark.parametrize("pidfd", [True, False])
async def test_the_end_is_known_though_a_grandchild_holds_the_pipes(
    pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    process = await spawn_process(["/bin/sh", "-c", "setsid sleep 5 & echo $!; exit 3"], env=ENV)
    grandchild = int(await process.stdout.readline())
    started = time.monotonic()
    assert await process.wait() == 3
    assert time.monotonic() - started < 1
    process.close()
    os.kill(grandchild, signal.SIGKILL)


async def test_kill_ends_the_whole_group_and_is_harmless_afterwards() -> None:
    process = await spawn_process(["/bin/sh", "-c", "sleep 60 & echo $!; sleep 60"], env=ENV)
    child = int(await process.stdout.readline())
    process.kill()
    assert await process.wait() == -9
    process.kill()
    for _ in range(100):
        state = Path(f"/proc/{child}/stat").read_text().split()[2] if Path(f"/proc/{child}").exists() else "gone"
        if state in ("gone", "Z"):
            break
        await asyncio.sleep(0.02)
    assert state in ("gone", "Z")
    process.close()
    process.close()


async def test_pipes_are_large() -> None:
    code = f"import fcntl; print(fcntl.fcntl(0, 1032), fcntl.fcntl(1, 1032), {module.PIPE_SIZE})"
    process = await spawn_process([sys.executable, "-c", code], env=ENV)
    sizes = [int(word) for word in (await process.stdout.read()).split()]
    assert sizes[0] == sizes[1] == sizes[2]
    await process.wait()
    process.close()


async def test_a_missing_program_is_told_and_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxLaunchError, match="/nonexistent/bwrap could not be started") as caught:
        await spawn_process(["/nonexistent/bwrap"], env=ENV)
    assert "install" in str(caught.value.details["remedy"])
    assert len(os.listdir("/proc/self/fd")) == before


async def test_close_gives_back_all_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    process = await spawn_process(["/bin/sleep", "60"], env=ENV)
    process.close()
    assert await process.wait() == -9
    await asyncio.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before
