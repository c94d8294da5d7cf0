"""A real bubblewrap sandbox at the level of ``Sandbox.spawn``: what it shows, what outlives it, what it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bubblewrap_support import (
    FILTERED,
    READY_AND_WAIT,
    ROOT,
    make_sandbox,
    output_of,
    processes_in_namespace,
    running,
)

from agently_kernel.contract.errors import SandboxError, SandboxLaunchError
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.providers.bubblewrap_args import hidden_files
from agently_kernel.providers.bubblewrap_sandbox import UidLease
from agently_kernel.sandbox.cgroups import find_places, process_start_time, remove_stale
from agently_kernel.sandbox.limits import cpu_choice
from agently_kernel.sandbox.orphans import owner_mark, remove_orphans

SEE = """
import json, os
def read(path):
    try:
        return open(path).read()
    except OSError as error:
        return error.strerror
print(json.dumps({
    "pid": os.getpid(), "uid": os.getuid(), "groups": os.getgroups(), "cwd": os.getcwd(), "host": os.uname().nodename,
    "root": sorted(os.listdir("/")), "workspace": sorted(os.listdir("/workspace")), "env": dict(os.environ),
    "environ1": read("/proc/1/environ"), "cmdline1": read("/proc/1/cmdline"), "machine_id": read("/etc/machine-id"),
    "passwd": read("/etc/passwd"), "resolv": read("/etc/resolv.conf"), "fds": sorted(os.listdir("/proc/self/fd")),
    "cgroup": read("/proc/self/cgroup"), "pids": sorted(p for p in os.listdir("/proc") if p.isdigit()),
    "link": os.readlink("/workspace/build/output"), "source": os.listdir("/workspace/src"),
}))
"""


async def test_what_a_guest_sees(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTLY_TEST_SECRET", "hunter2-of-the-host")
    (runtime / "source" / "cell.py").write_text("1")
    sandbox = make_sandbox(runtime)
    text = await output_of(sandbox, SEE)
    seen = json.loads(text)
    assert "hunter2" not in text and "AGENTLY_TEST_SECRET" not in text
    assert seen["pid"] == 1 and seen["uid"] != 0 and seen["uid"] == sandbox._layout.uid
    assert seen["groups"] in ([], [65534])  # a user namespace shows the host groups it cannot drop as nobody's
    assert (seen["cwd"], seen["host"]) == ("/workspace/build", "sandbox")
    assert seen["workspace"] == ["build", "input", "output", "src"]
    assert seen["source"] == ["cell.py"] and seen["link"] == "/workspace/output"
    assert {"home", "boot", "mnt", "srv", "media", "sys"}.isdisjoint(seen["root"])
    assert seen["env"]["HOME"] == "/tmp/home" and "PWD" in seen["env"]
    assert str(runtime) not in seen["environ1"] + seen["cmdline1"]
    assert seen["machine_id"] == "No such file or directory" and seen["resolv"] == ""
    assert len(seen["passwd"].splitlines()) == 3
    assert seen["fds"] == ["0", "1", "2", "3"]  # 3 is the listing itself
    assert seen["pids"] == ["1"]
    assert all(line.endswith(":/") for line in seen["cgroup"].split()) or not ROOT


async def test_no_host_path_on_the_command_line_of_bwrap(runtime: Path) -> None:
    sandbox = make_sandbox(runtime)
    async with running(sandbox, READY_AND_WAIT):
        assert sandbox._outer is not None
        outer = Path(f"/proc/{sandbox._outer.pid}")
        assert str(runtime) not in (outer / "cmdline").read_text()
        assert (outer / "environ").read_bytes().split(b"\0")[0].startswith(b"PATH=")


async def test_only_the_granted_places_are_writable(runtime: Path) -> None:
    code = """
import os
found = []
for top, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if os.path.join(top, f) not in ("/proc", "/usr")]
    try:
        open(top + "/probe", "w").close()
        os.unlink(top + "/probe")
        if not top.startswith("/tmp/"):  # folders that lead to an interpreter below /tmp
            found.append(top)
    except OSError:
        pass
for top in ("/usr", "/usr/lib", "/proc", "/proc/sys/kernel"):
    assert not os.access(top, os.W_OK), top
print(sorted(found))
"""
    assert await output_of(make_sandbox(runtime), code) == str(
        ["/dev/shm", "/tmp", "/workspace/build", "/workspace/output"]
    ) + "\n"


async def test_files_of_proc_that_tell_of_the_whole_machine_cannot_be_opened(runtime: Path) -> None:
    hidden = hidden_files()
    assert "/proc/keys" in hidden and "/proc/key-users" in hidden, "the kernel under test has key rings"
    code = f"""
for path in {hidden}:
    for mode in ("rb", "r+b"):
        try:
            print(path, open(path, mode).read())
        except PermissionError:
            pass
        except OSError as error:
            print(path, error)
print("tried")
"""
    assert await output_of(make_sandbox(runtime), code) == "tried\n"


async def test_areas_can_be_read_after_the_sandbox_was_killed(runtime: Path) -> None:
    code = 'open("output/result.txt", "w").write("kept")\nopen("notes.txt", "w").write("scratch")\n' + READY_AND_WAIT
    sandbox = make_sandbox(runtime)
    assert sandbox.open_directory("output") is None
    async with running(sandbox, code) as process:
        await sandbox.observe()
        process.kill()
        assert await process.wait() != 0
        assert not await sandbox.is_alive()
        for area, name, text in (("output", "result.txt", b"kept"), ("build", "notes.txt", b"scratch")):
            folder = sandbox.open_directory(area)  # type: ignore[arg-type]
            assert folder is not None
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
            assert os.read(file, 100) == text
            os.close(file)
            os.close(folder)
    assert sandbox.open_directory("output") is None


async def test_close_ends_daemons_that_ignore_everything_and_removes_the_groups(runtime: Path) -> None:
    code = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                pass
        while True:
            time.sleep(1)
    os._exit(0)
os.wait()
print("ready", flush=True)
while True:
    time.sleep(1)
"""
    sandbox = make_sandbox(runtime)
    async with running(sandbox, code) as process:
        inode = os.stat(f"/proc/{process.pid}/ns/pid").st_ino
        assert len(processes_in_namespace(inode)) == 2
        groups = list(sandbox._cgroup.procs_files()) if sandbox._cgroup else []
        assert bool(groups) == (ROOT and bool(find_places()))
        assert await sandbox.is_alive()
    assert processes_in_namespace(inode) == []
    assert [group for group in groups if os.path.exists(group)] == []
    await sandbox.close()  # a second close is harmless
    with pytest.raises(SandboxError, match="can be started once"):
        await sandbox.spawn(["/bin/true"], env={}, cwd="/")


async def test_the_first_process_cannot_be_killed_or_stopped_from_inside(runtime: Path) -> None:
    code = """
import os, signal, time
child = os.fork()
if child == 0:
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        os.kill(1, number)
    os._exit(0)
os.waitpid(child, 0)
print("alive")
"""
    assert await output_of(make_sandbox(runtime), code) == "alive\n"


async def test_a_failed_start_is_told_with_a_remedy(runtime: Path) -> None:
    sandbox = make_sandbox(runtime, cwd="/workspace/build")
    sandbox._binary = sandbox._binary.model_copy(update={"path": "/nonexistent/bwrap"})
    sandbox._cgroup = None
    with pytest.raises(SandboxLaunchError) as caught:
        await sandbox.spawn(["/bin/true"], env={}, cwd="/workspace/build")
    assert caught.value.details["remedy"]
    await sandbox.close()


async def test_cancelling_a_start_leaves_nothing(runtime: Path) -> None:
    for delay in (0.0, 0.001, 0.003, 0.006, 0.012):
        sandbox = make_sandbox(runtime)
        task = asyncio.ensure_future(sandbox.spawn(["/bin/sleep", "60"], env={}, cwd="/workspace/build"))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        groups = sandbox._cgroup.procs_files() if sandbox._cgroup else []
        outer = sandbox._outer
        await sandbox.close()
        assert [group for group in groups if os.path.exists(group)] == []
        if outer is not None:
            assert not os.path.exists(f"/proc/{outer.pid}")


OWNER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from bubblewrap_support import READY_AND_WAIT, make_sandbox, running
async def main():
    sandbox = make_sandbox(Path({folder!r}))
    async with running(sandbox, "import os, time; child = os.fork()\\n" + {wait!r}) as process:
        groups = sandbox._cgroup.procs_files() if sandbox._cgroup else []
        print(process.pid, *groups, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def test_kill_9_of_the_owner_leaves_no_process_and_groups_are_cleaned(runtime: Path) -> None:
    # As an ordinary user the parent-death signal ends the sandbox, as root the end of its standard input.
    end = "__import__('sys').stdin.read()" if ROOT else "while True: time.sleep(1)"
    wait = "if child: os.write(1, b'ready\\n')\n" + end
    code = OWNER.format(tests=str(Path(__file__).parent), folder=str(runtime), wait=wait)
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        pid, *groups = owner.stdout.readline().split()
        inode = os.stat(f"/proc/{pid}/ns/pid").st_ino
        assert processes_in_namespace(inode)
        remove_stale()
        assert all(os.path.exists(group) for group in groups)  # the owner lives
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate(timeout=10)
    deadline = time.monotonic() + 5
    # The owner is gone: its orphans are collected by this machine's first process, in its own time.
    while processes_in_namespace(inode, zombies=False) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_in_namespace(inode, zombies=False) == []
    assert set(remove_stale()) >= {os.path.dirname(group) for group in groups}
    assert [group for group in groups if os.path.exists(group)] == []


def test_marked_processes_of_dead_owners_are_orphans() -> None:
    (name, mark), = owner_mark().items()
    namespace, pid, start = mark.split("-")
    assert (int(pid), int(start)) == (os.getpid(), process_start_time(os.getpid()))
    marks = [mark, f"{namespace}-{pid}-{int(start) + 1}", f"{int(namespace) + 1}-{pid}-7", "nonsense"]
    children = [subprocess.Popen(["/bin/sleep", "60"], env={name: value}) for value in marks]
    try:
        assert [text for text in remove_orphans() if str(children[1].pid) in text]
        assert children[1].wait(5) == -signal.SIGKILL
        assert [child.poll() for child in (children[0], *children[2:])] == [None, None, None]
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_the_mark_is_not_inherited_by_the_guest(runtime: Path) -> None:
    sandbox = make_sandbox(runtime)
    async with running(sandbox, READY_AND_WAIT) as process:
        assert sandbox._outer is not None
        mark = next(iter(owner_mark())).encode()
        assert mark in Path(f"/proc/{sandbox._outer.pid}/environ").read_bytes()
        assert mark not in Path(f"/proc/{process.pid}/environ").read_bytes()


async def test_starts_that_are_killed_at_any_instant_leave_no_half_made_sandbox(runtime: Path) -> None:
    for step in range(24):
        sandbox = make_sandbox(runtime)
        task = asyncio.ensure_future(sandbox.spawn(["/bin/sleep", "60"], env={}, cwd="/workspace/build"))
        await asyncio.sleep(step * 0.0004)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await sandbox.close()
    mark = b"=".join(part.encode() for part in next(iter(owner_mark().items())))
    left = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{name}/environ").read_bytes():
                left.append(name)
    assert left == []


def test_leases_on_uids_exclude_each_other() -> None:
    pair = (59_901, 59_902)
    with_first, with_second = UidLease.take(pair), UidLease.take(pair)
    try:
        assert {with_first.uid, with_second.uid} == set(pair)
        with pytest.raises(SandboxLaunchError, match="in use"):
            UidLease.take(pair)
    finally:
        with_first.release()
        with_second.release()
    again = UidLease.take(pair)
    again.release()
    again.release()


async def test_limits_are_told_with_their_mechanism(runtime: Path) -> None:
    limits = ResourceLimits(cpus=1.5, scratch_bytes=4 * 1024**2, output_bytes=2 * 1024**2)
    sandbox = make_sandbox(runtime, limits=limits)
    async with running(sandbox, READY_AND_WAIT):
        await sandbox.observe()
        facts = {fact.name: (fact.mechanism, fact.observed) for fact in await sandbox.limits()}
    assert facts["scratch_bytes"] == facts["output_bytes"] == ("tmpfs", True)
    assert facts["inodes"] == ("watchdog", True)
    assert facts["open_files"] == facts["file_size"] == ("rlimit", False)  # set by the guest's program, absent here
    if ROOT and len(find_places()) == 3:
        version = f"cgroup{find_places()['memory'].version}"
        assert facts["memory"] == facts["processes"] == facts["cpu"] == (version, True)
    else:
        assert facts["memory"] == ("watchdog", True)
        assert facts["cpu"] == (("none", None) if cpu_choice(1.5) is None else ("watchdog", True))


async def test_scratch_and_output_end_at_their_sizes(runtime: Path) -> None:
    code = """
for place in ("/workspace/build", "/workspace/output"):
    size = 0
    try:
        with open(place + "/big", "wb", buffering=0) as stream:
            while True:
                size += stream.write(b"x" * 65536)
    except OSError as error:
        print(size, error.strerror)
"""
    limits = ResourceLimits(scratch_bytes=2 * 1024**2, output_bytes=1024**2)
    assert await output_of(make_sandbox(runtime, limits=limits), code) == (
        "2097152 No space left on device\n1048576 No space left on device\n"
    )


HOARD = """
import os, sys, time
print("ready", flush=True)
sys.stdin.read(1)
for _ in range(4):
    if os.fork() == 0:
        hoard = bytearray(48 << 20)
        hoard[::4096] = b"x" * len(hoard[::4096])
        time.sleep(60)
        os._exit(0)
while os.fork and True:
    os.wait()
"""


async def test_memory_of_many_processes_is_bounded_and_named(runtime: Path) -> None:
    sandbox = make_sandbox(runtime, limits=ResourceLimits(memory_bytes=96 * 1024**2))
    async with running(sandbox, HOARD) as process:
        await sandbox.observe()
        process.stdin.write(b"x")
        cause = None
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and (cause is None or cause.kind != "memory_limit"):
            await asyncio.sleep(0.05)
            cause = await sandbox.explain_death(process.returncode)
    assert cause is not None and (cause.kind, cause.limit) == ("memory_limit", "memory")
    assert "96 MiB" in cause.message


@pytest.mark.skipif(ROOT and bool(find_places()), reason="a control group does this")
async def test_the_watchdog_kills_the_largest_process_and_the_sandbox_lives_on(runtime: Path) -> None:
    code = """
import os, sys, time
print("ready", flush=True)
sys.stdin.read(1)
pid = os.fork()
if pid == 0:
    hoard = bytearray(100 << 20)
    hoard[::4096] = b"x" * len(hoard[::4096])
    time.sleep(60)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
sys.stdin.read()
"""
    sandbox = make_sandbox(runtime, limits=ResourceLimits(memory_bytes=80 * 1024**2))
    async with running(sandbox, code) as process:
        await sandbox.observe()
        process.stdin.write(b"x")
        assert await process.stdout.readline() == b"-9\n"
        assert await sandbox.is_alive()
        first = await sandbox.explain_death(-9)
        await asyncio.sleep(2.1)
        second = await sandbox.explain_death(-9)  # of another process, much later
    assert (first.what, first.kind, first.limit) == ("interpreter", "memory_limit", "memory")
    assert "the limit is 80 MiB" in first.message
    assert second.kind == "signal"


@pytest.mark.skipif(ROOT and bool(find_places()), reason="a control group does this")
async def test_memory_files_count_although_they_are_not_mapped(runtime: Path) -> None:
    code = """
import os, sys, time
print("ready", flush=True)
sys.stdin.read(1)
if os.fork() == 0:
    for number in range(8):
        os.write(os.memfd_create("hoard"), bytes(16 << 20))
    time.sleep(60)
os.wait()
print("ended", flush=True)
sys.stdin.read()
"""
    sandbox = make_sandbox(runtime, limits=ResourceLimits(memory_bytes=80 * 1024**2))
    async with running(sandbox, code) as process:
        await sandbox.observe()
        process.stdin.write(b"x")
        assert await asyncio.wait_for(process.stdout.readline(), 20) == b"ended\n"
        assert (await sandbox.explain_death(None)).kind == "memory_limit"


@pytest.mark.skipif(ROOT and "cpu" in find_places(), reason="a control group does this")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is only one processor to begin with")
async def test_processors_are_held_by_affinity(runtime: Path) -> None:
    code = """
import os, sys, time
wide = set(range(os.cpu_count()))
print("ready", flush=True)
print(len(os.sched_getaffinity(0)), flush=True) if sys.stdin.read(1) else None
os.sched_setaffinity(0, wide)
time.sleep(0.5)
print(len(os.sched_getaffinity(0)), flush=True)
sys.stdin.read(1)
while True:
    os.sched_setaffinity(0, wide)
"""
    sandbox = make_sandbox(runtime, limits=ResourceLimits(cpus=1))
    async with running(sandbox, code) as process:
        await sandbox.observe()
        process.stdin.write(b"x")
        assert [await process.stdout.readline() for _ in range(2)] == [b"1\n", b"1\n"]
        process.stdin.write(b"x")
        await asyncio.wait_for(process.wait(), 30)
        cause = await sandbox.explain_death(process.returncode)
    assert (cause.kind, cause.limit) == ("cpu_limit", "cpu")


async def test_memory_shared_after_a_fork_is_counted_once(runtime: Path) -> None:
    code = """
import os, sys, time
hoard = bytearray(40 << 20)
hoard[::4096] = b"x" * len(hoard[::4096])
pids = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
    pids.append(pid)
print("ready", flush=True)
sys.stdin.read(1)
print("alive" if all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in pids) else "dead", flush=True)
"""
    sandbox = make_sandbox(runtime, limits=ResourceLimits(memory_bytes=112 * 1024**2))
    async with running(sandbox, code) as process:
        await sandbox.observe()
        await asyncio.sleep(0.5)
        process.stdin.write(b"x")
        assert await process.stdout.readline() == b"alive\n"
        assert await sandbox.is_alive()


async def test_too_many_files_end_the_sandbox_with_the_reason(runtime: Path) -> None:
    code = READY_AND_WAIT.replace("sys.stdin.read()", "sys.stdin.read(1)") + """
import time
for number in range(150):
    open(f"/workspace/build/{number}", "w").close()
time.sleep(60)
"""
    sandbox = make_sandbox(runtime, limits=ResourceLimits(inodes=100))
    async with running(sandbox, code) as process:
        await sandbox.observe()
        assert await sandbox.is_alive()
        process.stdin.write(b"x")
        await asyncio.wait_for(process.wait(), 10)
        cause = await sandbox.explain_death(process.returncode)
    assert (cause.kind, cause.limit) == ("watchdog", "inodes")
    assert "more than 100 files" in cause.message


@pytest.mark.skipif(not ROOT or "pids" not in find_places(), reason="as an ordinary user the guest's rlimit does this")
async def test_the_number_of_processes_is_bounded_by_the_group(runtime: Path) -> None:
    code = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except OSError as error:
    print(count, error.strerror)
"""
    assert await output_of(make_sandbox(runtime, limits=ResourceLimits(processes=32)), code) == (
        "30 Resource temporarily unavailable\n"
    )


async def test_disk_scratch_is_a_host_folder_behind_the_watchdog(runtime: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    code = READY_AND_WAIT.replace("sys.stdin.read()", "sys.stdin.read(1)") + """
import time
with open("big", "wb") as stream:
    for _ in range(16):
        stream.write(b"x" * (1 << 20))
        stream.flush()
        time.sleep(0.02)
time.sleep(60)
"""
    sandbox = make_sandbox(runtime, limits=ResourceLimits(scratch_bytes=4 * 1024**2), build_dir=str(scratch))
    async with running(sandbox, FILTERED + code) as process:
        evidence = {item.check: item for item in await sandbox.observe()}
        assert evidence["no_writable_host_mount"].value is True
        assert "granted on the host's disk: /workspace/build" in evidence["no_writable_host_mount"].detail
        facts = {fact.name: (fact.mechanism, fact.observed) for fact in await sandbox.limits()}
        assert facts["scratch_bytes"] == ("watchdog", True)
        assert sandbox.mechanism()["scratch"] == "host disk"
        process.stdin.write(b"x")
        await asyncio.wait_for(process.wait(), 10)
        cause = await sandbox.explain_death(process.returncode)
    assert (cause.kind, cause.limit) == ("watchdog", "scratch_bytes")
