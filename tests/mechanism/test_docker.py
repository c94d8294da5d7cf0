"""Real containers of a real engine: the contract, honesty, what is missing, what is left."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from images import EMPTY_IMAGE, PYTHON_IMAGE, VOLUME_IMAGE, Engine, dockerd
from provider_support import AXES, concluded, failed, probe, surroundings
from synthetic_registry import registry

from agently_kernel.contract.approval import ApprovalDecision, ApprovalOutcome
from agently_kernel.contract.errors import ApprovalDenied
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.resource import HandleStatus
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.handles import Handle
from agently_kernel.providers import docker_sandbox
from agently_kernel.providers.docker import DockerExecutionResourceProvider
from agently_kernel.providers.docker_options import host_options
from agently_kernel.providers.docker_orphans import PREFIX, owner_labels
from agently_kernel.providers.gvisor import GvisorExecutionResourceProvider
from agently_kernel.sandbox.deaths import LOST_SANDBOX
from agently_kernel.sandbox.launch import SeccompBoot
from agently_kernel.sandbox.resource import SandboxResource
from agently_kernel.testing.provider_contract import ProviderContract
from agently_kernel.testing.surroundings import inventory, settles
from agently_kernel.workspace.areas import runtime_base

pytestmark = pytest.mark.docker
Edit = Callable[[dict[str, Any]], dict[str, Any]]


class TestDockerContract(ProviderContract):
    """All of the contract, and no container left."""

    @pytest.fixture(autouse=True)
    def _engine(self, engine: Engine) -> None:
        self.engine = engine
        self.config = engine.config()

    def make_provider(self) -> ExecutionResourceProvider:
        return DockerExecutionResourceProvider()

    def inventory(self) -> frozenset[str]:
        return inventory() | self.engine.containers()


# -- honesty


async def test_all_axes_are_observed_from_both_sides(engine: Engine) -> None:
    found = await probe(DockerExecutionResourceProvider(), engine.config())
    assert found.capability is not None, found.reason
    facts = found.capability.isolation
    assert concluded(facts) == dict.fromkeys(AXES, True)
    for axis in (*AXES[:-1], "network"):
        assert {item.source for item in facts.evidence if item.subject == axis} == {"outside", "inside"}
    mechanism = found.capability.mechanism
    assert (mechanism["runtime"], mechanism["host_side_observation"]) == ("runc", "full")
    assert found.capability.toolchains["python"].available


def set_option(**values: Any) -> Edit:
    return lambda options: {**options, **values}


def borrow(options: dict[str, Any]) -> dict[str, Any]:
    mount = {"Type": "bind", "Source": "/var/tmp", "Target": "/borrowed", "ReadOnly": False}
    return {**options, "mounts": [*options["mounts"], mount]}


@pytest.mark.parametrize(
    ("edit", "axis"),
    [
        (set_option(pid_mode="host"), "process_contained"),
        (set_option(ipc_mode="host"), "process_contained"),
        (borrow, "host_filesystem_restricted"),
        (set_option(cap_drop=["NET_RAW"]), "privilege_escalation_blocked"),
        (set_option(network_mode="host"), "network_blocked"),
    ],
    ids=["shared pids", "shared ipc", "writable host folder", "kept capabilities", "shared network"],
)
async def test_a_weakened_twin_flips_exactly_its_axis(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, edit: Edit, axis: str
) -> None:
    monkeypatch.setattr(docker_sandbox, "host_options", lambda spec: edit(host_options(spec)))
    found = await probe(DockerExecutionResourceProvider(), engine.config())
    assert found.capability is not None, found.reason
    expected: dict[str, bool | None] = {**dict.fromkeys(AXES, True), axis: False}
    options = edit({"mounts": []})
    if "network_mode" in options:
        expected["process_contained"] = False  # abstract sockets belong to the network's namespace
    if "ipc_mode" in options:
        expected["host_filesystem_restricted"] = False  # with it the engine shows the host's own /dev/shm
    assert concluded(found.capability.isolation) == expected, failed(found.capability.isolation)


async def test_no_filter_of_ours_flips_system_calls(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agently_kernel.providers.docker.SeccompBoot", lambda **_: SeccompBoot(enabled=False))
    found = await probe(DockerExecutionResourceProvider(), engine.config())
    assert found.capability is not None, found.reason
    assert found.capability.isolation.syscalls_restricted is False


async def test_limits_are_read_back_from_the_control_groups(engine: Engine, tmp_path: Path) -> None:
    async with surroundings(DockerExecutionResourceProvider(), engine.config(), tmp_path) as place:
        result = await place.cell("pass")
        assert result.facts is not None
        limits = {limit.name: (limit.mechanism, limit.observed) for limit in result.facts.limits}
    assert limits == {
        "memory": ("engine", True), "processes": ("engine", True), "cpu": ("none", None), "file_size": ("rlimit", True),
        "open_files": ("rlimit", True), "scratch_bytes": ("tmpfs", True), "output_bytes": ("tmpfs", True),
        "inodes": ("tmpfs", True),
    }


# -- ways in


async def test_one_container_serves_a_session_and_outputs_are_the_hosts_after_a_kill(
    engine: Engine, tmp_path: Path
) -> None:
    async with surroundings(DockerExecutionResourceProvider(), engine.config(), tmp_path) as place:
        for number in range(3):
            assert (await place.cell(f"x = {number}")).status is ExecutionStatus.SUCCESS
        assert len(engine.containers()) == 1
        result = await place.cell("open('output/kept.txt', 'w').write('kept'); import os; os.getuid()")
        (view,) = place.manager.list()
        handle = place.manager.handle(view.handle_id)
        assert handle is not None and handle.resource is not None and result.status is ExecutionStatus.SUCCESS
        sandbox = handle.resource.sandbox  # type: ignore[attr-defined]
        sandbox._process.kill()
        await sandbox._process.wait()
        folder = sandbox.open_directory("output")
        file = os.open("kept.txt", os.O_RDONLY, dir_fd=folder)
        assert os.read(file, 10) == b"kept"
        os.close(file)
        os.close(folder)


async def test_files_are_sent_to_an_engine_that_does_not_see_our_folders(engine: Engine, tmp_path: Path) -> None:
    config = engine.config(sources="protocol")
    async with surroundings(DockerExecutionResourceProvider(), config, tmp_path) as place:
        first = await place.cell("value = 1\nprint(open(__file__).read() if '__file__' in dir() else value)")
        assert first.status is ExecutionStatus.SUCCESS, first.message
        program = "open('output/x.txt', 'w').write('sent back'); print('ran')"
        result = await place.script(program, expected_outputs=("output/x.txt",))
        assert (result.status, result.stdout.text) == (ExecutionStatus.SUCCESS, "ran\n"), result.message
        (output,) = result.outputs
        assert Path(output.stored_path).read_text() == "sent back"
        assert result.facts is not None and result.facts.mechanism["sources"] == "protocol"


async def test_a_volume_of_the_image_is_no_writable_folder_of_the_host(engine: Engine, tmp_path: Path) -> None:
    config = engine.config(image=VOLUME_IMAGE)
    before = engine.client.volumes()["Volumes"] or []
    async with surroundings(DockerExecutionResourceProvider(), config, tmp_path) as place:
        result = await place.cell("open('/data/x', 'w')")
        assert result.error is not None and result.error["ename"] in ("OSError", "PermissionError")
        assert result.facts is not None and result.facts.isolation.host_filesystem_restricted is True
        assert (engine.client.volumes()["Volumes"] or []) == before


# -- what is missing


@pytest.mark.parametrize(
    ("change", "reason", "remedy"),
    [
        ({"image": "agently-test/nothing:1"}, "is not on the Docker engine", "docker pull agently-test/nothing:1"),
        ({"image": EMPTY_IMAGE}, "has no python3 or python", f"`FROM {EMPTY_IMAGE}`, `USER root`"),
        ({"image": EMPTY_IMAGE}, "has no python3 or python", "`docker build -t NAME .` and name it with `image`"),
        ({"host": "unix:///nowhere/docker.sock"}, "No container engine answers", "start it"),
        ({"runtime": "nothing"}, "has no runtime 'nothing'", "register the runtime"),
    ],
)
async def test_what_is_missing_is_said_with_what_would_help(
    engine: Engine, change: dict[str, Any], reason: str, remedy: str
) -> None:
    found = await probe(DockerExecutionResourceProvider(), engine.config(**change))
    assert not found.available and reason in found.reason, found.reason
    assert remedy in found.remedy, found.remedy
    assert engine.containers() == frozenset()


class Host:
    """SYNTHETIC: answers gates and keeps what is reported."""

    def __init__(self, outcome: ApprovalOutcome) -> None:
        self.outcome = outcome
        self.asked: list[tuple[str, str]] = []
        self.phases: list[str] = []
        self.details: list[dict[str, Any]] = []

    async def approve(self, requirement: Any, gate: Any, subject: str, **_: Any) -> ApprovalDecision:
        self.asked.append((gate, subject))
        if not self.outcome.approved:
            raise ApprovalDenied("not allowed", details={"gate": gate, "outcome": self.outcome.value})
        return ApprovalDecision(request_id="1", outcome=self.outcome, decided_at=0.0)

    def progress(self, requirement: Any, phase: str, **details: Any) -> None:
        self.phases.append(phase)
        self.details.append(details)


async def test_a_pull_is_asked_for_and_its_failure_told(engine: Engine) -> None:
    name = "127.0.0.1:1/agently-test/nothing:1"
    provider = DockerExecutionResourceProvider()
    host = Host(ApprovalOutcome.APPROVED_ONCE)
    provider.bind_host(host)
    found = await probe(provider, engine.config(image=name, pull_policy="if_missing"))
    assert host.asked == [("image_pull", name)]
    assert host.phases[0] == "image_pull_started" and host.phases[-1] == "image_pull_failed"
    assert not found.available and "could not be pulled" in found.reason
    refusing = Host(ApprovalOutcome.DENIED)
    provider.bind_host(refusing)
    with pytest.raises(ApprovalDenied):
        await probe(provider, engine.config(image=name, pull_policy="if_missing"))
    assert refusing.phases == []


@pytest.fixture(scope="module")
def saved_image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the image with Python and a layer of 20 MB above it, which the engine does not have."""
    name = "agently-test/to-pull:1"
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        info = tarfile.TarInfo("bulk")
        info.size = 20 * 1024**2
        archive.addfile(info, io.BytesIO(os.urandom(info.size)))
    made = engine.client.create_container(PYTHON_IMAGE, ["true"])["Id"]
    engine.client.put_archive(made, "/", layer.getvalue())
    engine.client.commit(made, repository=name.partition(":")[0], tag="1")
    engine.client.remove_container(made)
    target = tmp_path_factory.mktemp("registry") / "image.tar"
    with target.open("wb") as stream:
        for part in engine.client.get_image(name):
            stream.write(part)
    engine.client.remove_image(name)
    return target


async def test_a_pull_that_was_allowed_shows_its_progress_and_the_image_is_used(
    engine: Engine, saved_image: Path
) -> None:
    with registry(saved_image) as source:
        name = f"{source.host}/agently/python:1"
        provider, host = DockerExecutionResourceProvider(), Host(ApprovalOutcome.APPROVED_ONCE)
        provider.bind_host(host)
        found = await probe(provider, engine.config(image=name, pull_policy="if_missing"))
        assert found.available, found.reason
        assert host.asked == [("image_pull", name)]
        assert host.phases[0] == "image_pull_started" and host.phases[-2:] == ["image_pull_completed", "image_ready"]
        assert "image_pull_progress" in host.phases
        assert max(int(details.get("total_bytes", 0)) for details in host.details) >= 20 * 1024**2
        asked = len(source.asked)
        # There it is: nobody is asked, nothing is fetched.
        assert (await probe(provider, engine.config(image=name, pull_policy="if_missing", seconds=11))).available
        assert (len(host.asked), len(source.asked)) == (1, asked)
        # Always: asked every time, and the registry too.
        assert (await probe(provider, engine.config(image=name, pull_policy="always"))).available
        assert len(host.asked) == 2 and len(source.asked) > asked
    engine.client.remove_image(name, force=True)


async def test_a_full_disk_of_the_engine_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    with dockerd(disk_mib=420) as own:
        space = os.statvfs(own.disk)
        blocker = own.disk / "blocker"
        with blocker.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, space.f_bavail * space.f_frsize - 4096)
        found = await probe(DockerExecutionResourceProvider(), own.config())
        assert not found.available and "no space left on device" in found.reason, found.reason
        assert "docker system prune" in found.remedy
        assert own.containers() == frozenset()
        blocker.unlink()
        found = await probe(DockerExecutionResourceProvider(), own.config())
        assert found.available, found.reason


@pytest.mark.parametrize(("tcp", "seen"), [(False, "full"), (True, "none")], ids=["socket in a container", "remote"])
async def test_an_engine_that_does_not_see_our_folders_gets_the_files(tmp_path: Path, tcp: bool, seen: str) -> None:
    with dockerd(hidden=runtime_base(), tcp=tcp) as own:
        async with surroundings(DockerExecutionResourceProvider(), own.config(), tmp_path) as place:
            for number in range(2):
                result = await place.cell(f"open('output/x.txt', 'w').write('{number}')\n'ok'")
                assert result.status is ExecutionStatus.SUCCESS, result.message
            assert len(own.containers()) == 1
            run = await place.script("open('output/y.txt', 'w').write('y')", expected_outputs=("output/y.txt",))
            assert [Path(output.stored_path).read_text() for output in run.outputs] == ["y"], run.message
            assert run.facts is not None
            mechanism = run.facts.mechanism
            assert (mechanism["sources"], mechanism["host_side_observation"]) == ("protocol", seen)
            assert concluded(run.facts.isolation) == dict.fromkeys(AXES, True)
        assert own.containers() == frozenset()


# -- what is left

OWNER = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {mechanism!r}]
from provider_support import surroundings
from agently_kernel.providers.docker import DockerExecutionResourceProvider

async def main():
    async with surroundings(DockerExecutionResourceProvider(), {config!r}, Path({folder!r})) as place:
        await place.cell("x = 1")
        print("ready", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def test_nothing_is_left_when_the_owner_is_killed(engine: Engine, tmp_path: Path) -> None:
    here = Path(__file__).parent
    code = OWNER.format(
        tests=str(here.parent), mechanism=str(here), config=engine.config(), folder=str(tmp_path)
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner, owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        assert len(engine.containers()) == 1
        owner.send_signal(signal.SIGKILL)
    assert settles(frozenset(), engine.containers, 10.0) == frozenset()


async def test_containers_of_dead_owners_are_removed_and_others_are_not(engine: Engine) -> None:
    dead = {**owner_labels("gone"), PREFIX + "owner-pid": str(2**22 - 1)}
    for name, labels in (("agently-orphan", dead), ("agently-mine", owner_labels("mine")), ("somebody-elses", {})):
        engine.client.create_container("agently-test/ipython:1", ["true"], name=name, labels=labels)
    try:
        found = await probe(DockerExecutionResourceProvider(), engine.config())
        assert found.available
        assert engine.containers() == {"/agently-mine", "/somebody-elses"}
    finally:
        for name in ("agently-mine", "somebody-elses"):
            engine.client.remove_container(name, force=True)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("kind", "number", "busy", "said"), [
    (DockerExecutionResourceProvider, signal.SIGKILL, True, "Docker went away"),
    (DockerExecutionResourceProvider, signal.SIGTERM, True, "Docker, which may be stopping itself"),
    (DockerExecutionResourceProvider, signal.SIGKILL, False, "Docker went away"),
    (GvisorExecutionResourceProvider, signal.SIGKILL, True, "Docker went away"),
    (GvisorExecutionResourceProvider, signal.SIGTERM, False, "Docker, which may be stopping itself"),
])
async def test_a_daemon_that_goes_away_and_comes_back(
    kind: type[DockerExecutionResourceProvider], number: signal.Signals, busy: bool, said: str, tmp_path: Path
) -> None:
    with dockerd() as own:
        async with surroundings(kind(), own.config(), tmp_path) as place:
            handles: list[Handle] = []
            assert (await place.cell("x = 1", on_handle=handles.append)).status is ExecutionStatus.SUCCESS
            resource = handles[0].resource
            assert isinstance(resource, SandboxResource)
            code = "import time; time.sleep(30)"
            running = asyncio.ensure_future(place.cell(code)) if busy else None
            await asyncio.sleep(0.5)
            started = time.monotonic()
            await asyncio.to_thread(own.end, number)
            if running is not None:
                result = await asyncio.wait_for(running, 20)
                assert (result.status, result.death) == (ExecutionStatus.DIED, await resource.ended_by_itself())
            while resource.healthy and time.monotonic() - started < 15:
                await asyncio.sleep(0.02)
            death = await resource.ended_by_itself()
            assert death is not None and said in death.message and LOST_SANDBOX in death.message, death
            assert time.monotonic() - started < 15

            refused = await place.cell("1")
            assert refused.status is ExecutionStatus.BLOCKED
            assert "No container engine answers" in refused.message and "To fix it: " in refused.message

            await asyncio.to_thread(own.begin_again)
            result = await place.cell("print('x' in globals())")
            assert (result.status, result.stdout.text) == (ExecutionStatus.SUCCESS, "False\n"), result.message
            assert len(own.containers()) == 1
            assert [view.status for view in place.manager.list()] == [HandleStatus.READY]
        assert own.containers() == frozenset()


class SyntheticLine:
    """A way to an engine on another machine, which can be cut and mended."""

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("tcp://").split(":")
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._target[0], int(self._target[1]))
        self._writers += [writer, far_writer]

        async def one_way(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
                if target.can_write_eof():
                    target.write_eof()

        await asyncio.gather(one_way(reader, far_writer), one_way(far_reader, writer))


async def test_a_container_that_could_not_be_removed_is_removed_when_its_engine_answers_again(tmp_path: Path) -> None:
    with dockerd(tcp=True) as own:
        line = SyntheticLine(own.host)
        await line.mend()
        config = {**own.config(), "host": f"tcp://127.0.0.1:{line.port}"}
        async with surroundings(DockerExecutionResourceProvider(), config, tmp_path) as place:
            result = await place.cell("x = 1")
            assert result.status is ExecutionStatus.SUCCESS, result.message
            first = own.containers()
            running = asyncio.ensure_future(place.cell("import time; time.sleep(60)"))
            await asyncio.sleep(0.5)
            line.cut()
            result = await asyncio.wait_for(running, 30)
            assert result.death is not None and result.death.kind == "provider_lost", result
            assert (await place.cell("1")).status is ExecutionStatus.BLOCKED
            assert [view.status for view in place.manager.list()] == [HandleStatus.QUARANTINED]
            assert own.containers() == first, "it goes on: nobody could tell the engine"

            await line.mend()
            result = await place.cell("print('x' in globals())")
            assert result.stdout.text == "False\n", result.message
            assert len(own.containers()) == 1 and not own.containers() & first
        line.cut()
        assert own.containers() == frozenset()
