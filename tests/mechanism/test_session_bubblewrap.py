"""Sessions and plans in real bubblewrap sandboxes, opened by the real provider for a real workspace."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionFile, CodeExecutionStep, ExecutionForm
from agently_kernel.contract.errors import SandboxDied
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.outputs import OutputEvent, StreamOutput
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.providers.bubblewrap import BubblewrapExecutionResourceProvider
from agently_kernel.sandbox.resource import SandboxResource
from agently_kernel.workspace.task_workspace import TaskWorkspace


class Session:
    """A workspace and a resource of the real provider in it."""

    def __init__(self, limits: ResourceLimits) -> None:
        self.limits = limits
        self.workspace = TaskWorkspace.create(session_id="test", limits=limits, collection=CollectionLimits())
        self.resource: SandboxResource
        self.events: list[OutputEvent] = []
        self._count = 0

    async def open(self) -> None:
        grant = self.workspace.issue_grant(execution_id="open")
        self.resource = await BubblewrapExecutionResourceProvider().async_ensure(
            requirement=ExecutionResourceRequirement(task_workspace_access_grant=grant, scope="session"),
            policy=ExecutionResourcePolicy(limits=self.limits),
        )
        self.workspace.close_grant(grant)

    async def run(self, code: str, timeout: float | None = None, **fields: Any) -> CodeExecutionResult:
        self._count += 1
        fields.setdefault("form", ExecutionForm.SESSION)
        grant = self.workspace.issue_grant(execution_id=f"e{self._count}")
        bundle = CodeExecutionBundle.create(
            language="python", files=(CodeExecutionFile(path="cell.py", content=code.encode()),), entrypoint="cell.py",
            **fields,
        )
        try:
            manifest = self.workspace.materialize(bundle, grant)
            return await self.resource.async_execute_code(bundle, manifest, grant, timeout, sink=self.events.append)
        finally:
            self.workspace.close_grant(grant)

    @property
    def namespace(self) -> int:
        """Inode of the sandbox's pid namespace."""
        facts = self.resource.facts.isolation.evidence
        return next(int(e.detail.split()[-1]) for e in facts if e.check == "own pid namespace")


@pytest.fixture
def limits() -> ResourceLimits:
    return ResourceLimits()


@pytest.fixture
async def session(limits: ResourceLimits) -> AsyncIterator[Session]:
    session = Session(limits)
    try:
        await session.open()
        yield session
        await session.resource.aclose(grace=0.5)
        assert inhabitants(session.namespace) == []
    finally:
        session.workspace.close()


def inhabitants(namespace: int) -> list[int]:
    """Return the host pids of all processes in a pid namespace."""
    return [pid for pid, inode in pid_namespaces() if inode == namespace]


def pid_namespaces() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                yield int(name), os.stat(f"/proc/{name}/ns/pid").st_ino
            except OSError:
                continue


async def test_state_output_and_facts(session: Session) -> None:
    facts = session.resource.facts
    assert facts.isolation.as_mapping() == {
        "process_contained": True, "host_filesystem_restricted": True, "privilege_escalation_blocked": True,
        "syscalls_restricted": True,
    }
    assert facts.network == "none" and facts.provider_id == "bubblewrap"
    await session.run("x = 41")
    result = await session.run("import os\nprint(x + 1, os.getcwd(), sorted(os.listdir('/workspace')))")
    assert result.stdout.text == "42 /workspace/build ['build', 'input', 'output', 'src']\n"
    assert result.facts is facts


async def test_stop_reaches_children_too(session: Session) -> None:
    task = asyncio.ensure_future(session.run("import subprocess; subprocess.run(['sleep', '60'])"))
    while not any(b"sleep" in read(f"/proc/{pid}/cmdline") for pid in inhabitants(session.namespace)):
        await asyncio.sleep(0.02)
    started = time.monotonic()
    assert await session.resource.interrupt()
    result = await task
    assert time.monotonic() - started < 2 and result.status is ExecutionStatus.CANCELLED and result.death is None
    assert not any(b"sleep" in read(f"/proc/{pid}/cmdline") for pid in inhabitants(session.namespace))


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("limits", [ResourceLimits(memory_bytes=256 * 1024**2)])
async def test_the_memory_limit_is_named_and_the_next_cell_works(session: Session) -> None:
    await session.run("kept = open('kept.txt', 'w').write('k')")
    code = "import mmap\nm = mmap.mmap(-1, 600 << 20)\nfor i in range(600): m.write(b'x' * (1 << 20))"
    result = await session.run(code)
    assert result.status is ExecutionStatus.DIED and result.death is not None
    assert result.death.kind == "memory_limit" and "memory limit" in result.message
    if result.death.what == "interpreter":
        assert (await session.run("print(open('kept.txt').read())")).stdout.text == "k\n"
    else:  # without a control group the watchdog ends the sandbox as a whole
        assert not session.resource.healthy


async def test_garbage_on_the_interpreters_channel_costs_the_interpreter_only(session: Session) -> None:
    code = """
import os, socket, stat
for fd in range(3, 256):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, b"Segmentation fault (core dumped), says nobody")
    except OSError:
        pass
import time
time.sleep(60)
"""
    result = await asyncio.wait_for(session.run(code), 20)
    assert result.status is ExecutionStatus.DIED and result.death is not None
    assert (result.death.what, result.death.kind) == ("interpreter", "protocol")
    assert (await session.run("print('alive')")).stdout.text == "alive\n"


async def test_outputs_outlive_a_killed_sandbox(session: Session) -> None:
    await session.run("open('output/x.txt', 'w').write('precious')")
    session.resource._live.kill()
    with pytest.raises(SandboxDied):
        for _ in range(100):
            await session.run("1")
    assert await session.resource.health() == "unhealthy"
    folder = session.resource.output_source.open_directory("output")
    assert folder is not None
    try:
        with open(os.open("x.txt", os.O_RDONLY, dir_fd=folder)) as stream:
            assert stream.read() == "precious"
    finally:
        os.close(folder)


async def test_a_plan_and_files_over_the_protocol(session: Session) -> None:
    steps = (CodeExecutionStep(argv=("python3", "cell.py"), role="run", env={"TO": "workspace://output/y.txt"}),)
    code = "import os; open(os.environ['TO'], 'w').write('made'); print(os.getcwd()[:22])"
    result = await session.run(code, form=ExecutionForm.ONE_SHOT, run_step=steps[0])
    assert (result.status, result.stdout.text) == (ExecutionStatus.SUCCESS, "/workspace/src/bundle-\n")
    source = session.resource.output_source
    assert list(await source.list_files("output", 10)) == [("y.txt", 4)]
    assert b"".join([part async for part in source.fetch_file("output", "y.txt", 100)]) == b"made"


async def test_a_flood_leaves_memory_flat(session: Session) -> None:
    process = psutil.Process()
    session.events = []
    total = 0

    def sink(event: OutputEvent) -> None:
        nonlocal total
        assert isinstance(event, StreamOutput)
        total += len(event.text)

    session.events = _Sink(sink)
    before = process.memory_info().rss
    result = await session.run("import sys\nfor _ in range(400): sys.stdout.write('A' * 131071 + '\\n')")
    assert result.status is ExecutionStatus.SUCCESS and total == 400 * 131072 == result.stdout.total_bytes
    assert process.memory_info().rss - before < 30 * 1024**2


class _Sink(list[OutputEvent]):
    """A list whose ``append`` hands on and keeps nothing."""

    def __init__(self, take: Any) -> None:
        super().__init__()
        self._take = take

    def append(self, event: OutputEvent) -> None:
        self._take(event)


OWNER = """
import asyncio, sys
sys.path.insert(0, {folder!r})
from test_session_bubblewrap import ResourceLimits, Session

async def main():
    session = Session(ResourceLimits())
    await session.open()
    print(session.namespace, session.workspace.runtime_path, flush=True)
    await session.run("import subprocess, time; subprocess.Popen(['setsid', 'sleep', '60']); time.sleep(60)")

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [0.0, 0.3])
def test_nothing_lives_on_when_the_owner_is_killed(after: float) -> None:
    code = OWNER.format(folder=str(Path(__file__).parent))
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    namespace, runtime = owner.stdout.readline().split()
    time.sleep(after)
    assert inhabitants(int(namespace)) != []
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 3
    while inhabitants(int(namespace)) and time.monotonic() < end:
        time.sleep(0.02)
    assert inhabitants(int(namespace)) == []
    subprocess.run(["rm", "-rf", runtime], check=True)  # a later start cleans it; here it is only in the way


async def test_cancelling_at_any_moment_leaves_no_process() -> None:
    before = set(psutil.Process().children(recursive=True))
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4):
        session = Session(ResourceLimits())

        async def work(session: Session = session) -> None:
            await session.open()
            await session.run("import time; time.sleep(60)")

        task = asyncio.ensure_future(work())
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if hasattr(session, "resource"):
            await session.resource.aclose(grace=0)
        session.workspace.close()
        assert set(psutil.Process().children(recursive=True)) - before == set()
