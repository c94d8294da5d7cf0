"""One container as a sandbox: created, attached, started, observed, and removed with whatever it held."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agently_kernel.contract.errors import SandboxCleanupError, SandboxError, SandboxLaunchError
from agently_kernel.contract.isolation import Evidence, LimitFact
from agently_kernel.contract.result import DeathCause
from agently_kernel.contract.workspace import SANDBOX_PATHS
from agently_kernel.providers.docker_engine import DockerEngine, EngineCallError, EngineFacts
from agently_kernel.providers.docker_host import HostView, find_host_view
from agently_kernel.providers.docker_images import ImageFacts
from agently_kernel.providers.docker_options import ContainerSpec, container_options, guest_argv, host_options
from agently_kernel.providers.docker_stream import AttachedStreams
from agently_kernel.sandbox.deaths import LOST_SANDBOX, memory_death, sandbox_death
from agently_kernel.sandbox.host_facts import observe_process
from agently_kernel.sandbox.identity import UidLease
from agently_kernel.sandbox.limits import read_rlimits, rlimit_facts

FOLDERS_UNSEEN = "execution_resource.docker_folders_unseen"
UNKNOWN_CODE, KILLED_CODE = 255, 137
EXIT_DEADLINE, COLLECT_DEADLINE = 2.0, 8.0
REMOVE_DEADLINE = 8.0
DRAIN_SECONDS = 0.5


class ContainerProcess:
    """The SandboxProcess: a container's first process over its attached streams."""

    def __init__(self, sandbox: DockerSandbox, streams: AttachedStreams, view: HostView | None) -> None:
        self.stdin, self.stdout, self.stderr = streams.stdin, streams.stdout, streams.stderr
        self.streams = streams
        self.view = view
        self.killed = False
        self.exit_code: int | None = None
        """As the engine told it; None when it could not be observed."""
        self.lost = ""
        """Why the engine could not be asked any more, when that is how it ended."""
        self._sandbox = sandbox
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._follower = loop.create_task(self._follow(), name="container-end")
        self._killer: asyncio.Task[None] | None = None

    @property
    def returncode(self) -> int | None:
        """Exit code, None while it lives; 255 when it ended and nobody could say how."""
        return self._ended.result() if self._ended.done() and not self._ended.cancelled() else None

    async def wait(self) -> int:
        """Return the exit code once the container has ended."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """End the container at once: directly where it is our own process to end, else through the engine."""
        if self._ended.done() or self.killed:
            return
        self.killed = True
        if self.view is not None and self.view.process.kill():
            return
        self._killer = asyncio.get_running_loop().create_task(self._kill_by_engine(), name="container-kill")

    async def _kill_by_engine(self) -> None:
        await asyncio.sleep(0)
        self.streams.close()  # before the kill: an engine may wait for its stream to be read
        with contextlib.suppress(SandboxError):
            await self._sandbox.kill_by_engine()

    async def _follow(self) -> None:
        gone = asyncio.ensure_future(self.view.wait_gone()) if self.view is not None else None
        try:
            waits: set[asyncio.Future[Any]] = {self.streams.ended, *([gone] if gone is not None else [])}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if gone is not None and gone.done():
                self._sandbox.look_for_kills()  # now: the engine is about to take the control group away
            if not self.streams.ended.done():
                await asyncio.wait({self.streams.ended}, timeout=DRAIN_SECONDS)
            if self._sandbox.out_of_memory:
                self.exit_code = KILLED_CODE
                return
            # An engine under load is slow to collect what has ended for certain.
            deadline = EXIT_DEADLINE if gone is None or not gone.done() else COLLECT_DEADLINE
            asking = asyncio.ensure_future(self._sandbox.exit_state())
            await asyncio.wait({asking}, timeout=deadline)
            if asking.done():
                self.exit_code, self.lost = asking.result()
            else:
                self.lost = f"the engine did not answer within {deadline:g} s"
                asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        finally:
            if gone is not None:
                gone.cancel()
            if not self._ended.done():
                code = KILLED_CODE if self.killed else UNKNOWN_CODE
                self._ended.set_result(code if self.exit_code is None else self.exit_code)

    async def close(self) -> None:
        """Close the streams and end the tasks."""
        self.streams.close()
        for task in (self._killer, self._follower):
            if task is not None:
                await asyncio.wait({task}, timeout=EXIT_DEADLINE)
                task.cancel()
        await asyncio.gather(self._follower, return_exceptions=True)


class DockerSandbox:
    """Implements ``Sandbox``. The engine connection, and the uid lease, belong to it from the start."""

    host_evidence = True
    """True when the first process of the container is one of the host's kernel, so that /proc tells of the guest."""

    def __init__(
        self, provider_id: str, engine: DockerEngine, image: ImageFacts, spec: ContainerSpec,
        pythons: Sequence[str], *, lease: UidLease | None = None,
    ) -> None:
        self.provider_id = provider_id
        self.engine = engine
        self.image = image
        self.spec = spec
        self.runtime = ""
        self._pythons = pythons
        self._lease = lease
        self._process: ContainerProcess | None = None
        self._created = False
        self._areas: dict[str, int] = {}
        self._oom_kills: int | None = None
        self.out_of_memory = False
        """True when the kernel was seen to end a process here for want of memory, which was not told yet."""
        self._closed = self._gone = False

    @classmethod
    def begins_as_superuser(cls, facts: EngineFacts, runtime: str | None) -> bool:
        """True where the first program may start as uid 0, because the kernel in the container is not the host's."""
        return False

    # -- start

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> ContainerProcess:
        """Create, attach to and start the container. Raises SandboxLaunchError with a remedy in ``details``."""
        if self._process is not None or self._closed:
            raise SandboxError("A container can be started once; open a new one.")
        for python in self._pythons:
            command = guest_argv(python, argv, self.spec.sources)
            try:
                return await self._start(command, env, cwd)
            except EngineCallError as error:
                if not _lacks_program(error.explanation, python):
                    raise self._launch_error(error) from error
                await self._remove()
        wanted = " or ".join(self._pythons)
        raise SandboxLaunchError(
            f"The image {self.image.name} has no {wanted}. What starts, confines and watches code in a container is "
            "written in Python, whatever language a cell is in; without it nothing was run.",
            details={"remedy": "use an image with Python 3.8 or newer (IPython for magics and rich display); or add "
                     f"it with a Dockerfile of three lines, `FROM {self.image.name}`, `USER root` and `RUN apt-get "
                     "update && apt-get install -y --no-install-recommends python3` (Alpine: `RUN apk add python3`), "
                     f"build it with `{self.engine.facts.product.lower()} build -t NAME .` and name it with `image`; "
                     "or say with `python` where in the image it lies"},
        )

    async def _start(self, command: Sequence[str], env: Mapping[str, str], cwd: str) -> ContainerProcess:
        options, host = container_options(self.spec, command, env, cwd), host_options(self.spec)
        self._created = True  # from here on there may be one, whatever happens to the answer
        await self.engine.call(
            "creating the container",
            lambda client: client.create_container(host_config=client.create_host_config(**host), **options),
        )
        name = self.spec.name
        raw = await self.engine.call(
            "attaching to the container",
            lambda client: client.attach_socket(name, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}),
        )
        streams = await AttachedStreams.open(raw)
        try:
            await self.engine.call("starting the container", lambda client: client.start(name))
            state = await self.engine.call("looking at the container", lambda client: client.inspect_container(name))
        except BaseException as error:
            streams.close()
            if isinstance(error, EngineCallError) and error.status == 404 and not _lacks_any(error.explanation):
                raise SandboxLaunchError(
                    "The container ended as soon as it was started.", details={"remedy": "try another image"}
                ) from error
            raise
        self.runtime = str((state.get("HostConfig") or {}).get("Runtime") or self.engine.facts.default_runtime)
        pid = int((state.get("State") or {}).get("Pid") or 0)
        view = find_host_view(pid, str(state.get("Id") or "")) if self.engine.facts.local else None
        self._process = ContainerProcess(self, streams, view)
        return self._process

    def _launch_error(self, error: EngineCallError) -> SandboxLaunchError:
        text = error.explanation
        remedy = str(error.details.get("remedy") or "")
        if "runtime" in text and "nknown" in text:
            return SandboxLaunchError(
                f"The engine has no runtime {self.spec.runtime!r}; nothing was started with another one.",
                code="execution_resource.gvisor_runtime_unavailable",
                details={"remedy": "register the runtime in the daemon's configuration and restart the daemon",
                         "diagnostics": text},
            )
        if "no space left on device" in text:
            remedy = "free some space on the engine's disk, for example with `docker system prune`"
        unseen = ("bind source path does not exist", "mounts denied", "statfs ")
        if any(words in text.lower() for words in unseen):
            return SandboxLaunchError(
                f"The engine does not see this machine's folders: {text[:600]}", code=FOLDERS_UNSEEN,
                details={"remedy": "set the provider's `sources` to protocol, or to auto", "diagnostics": text},
            )
        return SandboxLaunchError(
            f"The container could not be started: {text[:600]}",
            details={"remedy": remedy or "`agently-kernel doctor` shows what the engine is", "diagnostics": text},
        )

    # -- what is seen of it

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        """Return a new descriptor of an area, also after a kill; None where the host cannot reach into it."""
        descriptor = self._areas.get(area)
        return None if descriptor is None else os.dup(descriptor)

    def _pin_areas(self, view: HostView) -> None:
        if self._areas or not self.host_evidence:
            return
        for name in ("build", "output"):
            descriptor = view.open_folder(SANDBOX_PATHS[name])
            if descriptor is None:
                return
            self._areas[name] = descriptor

    async def observe(self) -> tuple[Evidence, ...]:
        """Return the host kernel's view of the container's first process, as far as this user may look."""
        process = self._process
        if process is None:
            raise SandboxError("The container has not been started.")
        view = process.view
        if view is None or sys.platform != "linux":
            return ()
        self._pin_areas(view)
        self._oom_kills = view.oom_kills()
        if not self.host_evidence:
            return ()
        found = observe_process(view.pid, expect_private_network=True)
        # What this user may not look at is no observation; inside attempts then stand alone, and the facts say so.
        return tuple(item for item in found if item.value is not None)

    async def limits(self) -> tuple[LimitFact, ...]:
        """Return each limit; those of the engine observed in the control groups where they can be read."""
        limits, spec = self.spec.limits, self.spec
        view = self._process.view if self._process is not None else None
        seen = view.group_limits() if view is not None else {}
        observed = read_rlimits(view.pid) if view is not None and self.host_evidence else {}

        def engine(name: Literal["memory", "processes", "cpu"], wanted: float | None, key: str) -> LimitFact:
            value = seen.get(key)
            if wanted is None or name not in spec.engine_limits:
                return LimitFact(name=name, limit=wanted, mechanism="none")
            return LimitFact(
                name=name, limit=wanted, mechanism="engine",
                observed=None if value is None else value <= wanted * 1.001,
            )

        processes = engine("processes", limits.processes, "pids")
        if spec.processes_by_rlimit and limits.processes is not None:
            processes = LimitFact(
                name="processes", limit=limits.processes, mechanism="rlimit",
                detail="counted over all containers of this user of the engine together",
            )
        return (
            engine("memory", limits.memory_bytes, "memory"),
            processes,
            engine("cpu", limits.cpus, "cpu"),
            *rlimit_facts(limits, observed),
            LimitFact(name="scratch_bytes", limit=limits.scratch_bytes, mechanism="tmpfs",
                      observed=self._size_holds("build", limits.scratch_bytes)),
            LimitFact(name="output_bytes", limit=limits.output_bytes, mechanism="tmpfs",
                      observed=self._size_holds("output", limits.output_bytes)),
            LimitFact(name="inodes", limit=limits.inodes, mechanism="tmpfs" if spec.count_inodes else "none",
                      observed=self._inodes_hold() if spec.count_inodes else None),
        )

    def _size_holds(self, area: str, wanted: int) -> bool | None:
        if area not in self._areas:
            return None
        status = os.fstatvfs(self._areas[area])
        return 0 < status.f_blocks * status.f_frsize <= wanted + status.f_frsize

    def _inodes_hold(self) -> bool | None:
        if not self._areas:
            return None
        return all(0 < os.fstatvfs(fd).f_files <= self.spec.limits.inodes for fd in self._areas.values())

    def mechanism(self) -> Mapping[str, Any]:
        """Return what this sandbox is made of, without host paths."""
        facts = self.engine.facts
        view = self._process.view if self._process is not None else None
        seen = "none" if view is None else "full" if view.readable else "partial"
        return {
            "mechanism": "container",
            "engine": facts.product,
            "version": facts.version,
            "rootless": facts.rootless,
            "runtime": self.runtime,
            "image": self.image.name,
            "image_id": self.image.image_id,
            "sources": self.spec.sources,
            "host_side_observation": seen,
            "network": self.spec.network,
        }

    # -- the end

    async def exit_state(self) -> tuple[int | None, str]:
        """Return (exit code, "") as soon as the engine tells it; (None, reason) when the engine is lost."""
        name = self.spec.name
        for _ in range(60):
            try:
                found = await self.engine.call(
                    "looking at the container", lambda client: client.inspect_container(name)
                )
            except EngineCallError as error:
                return None, "" if error.status == 404 else str(error)
            state = found.get("State") or {}
            if not state.get("Running"):
                self.out_of_memory = self.out_of_memory or bool(state.get("OOMKilled"))
                return int(state.get("ExitCode") or 0), ""
            await asyncio.sleep(0.03)
        return None, f"{self.engine.facts.product} closed the connection to the container, which still runs"

    async def kill_by_engine(self) -> None:
        """Kill the container through the engine. Raises EngineCallError."""
        await self.engine.call("killing the container", lambda client: client.kill(self.spec.name, "SIGKILL"))

    async def explain_death(self, returncode: int | None) -> DeathCause:
        """Say why the container ended, or, while it lives, why a process in it was killed."""
        process = self._process
        ended = process is None or process.returncode is not None
        self.look_for_kills()
        if self.out_of_memory:
            self.out_of_memory = ended  # a process that was ended is told once, the sandbox's end whenever asked
            return memory_death(
                "sandbox" if ended else "interpreter", self.spec.limits.memory_bytes, "the kernel ended a process there"
            )
        if process is not None and process.lost:
            return DeathCause(
                what="sandbox", kind="provider_lost",
                message=f"The sandbox was lost: {process.lost.rstrip('.')}. {LOST_SANDBOX}",
            )
        if not ended:
            return DeathCause(what="interpreter", kind="unknown", message="No cause could be observed.")
        code = process.exit_code if process is not None else returncode
        if code == KILLED_CODE:  # neither by us nor for want of memory
            return DeathCause(
                what="sandbox", kind="signal", signal="SIGKILL",
                message=f"The container was ended by {self.engine.facts.product}, which may be stopping itself, or by "
                f"another program on its machine (SIGKILL). {LOST_SANDBOX}",
            )
        return sandbox_death(code)

    def look_for_kills(self) -> None:
        """Note whether the host's kernel has ended a process of the container for want of memory since the last look.

        Only while the container has its control group.
        """
        view = self._process.view if self._process is not None else None
        kills = view.oom_kills() if view is not None else None
        if kills is not None:
            self.out_of_memory = self.out_of_memory or kills > (self._oom_kills or 0)
            self._oom_kills = kills

    async def is_alive(self) -> bool:
        """True while the container runs: by its first process where that is one of ours, else asked of the engine."""
        if self._process is None or self._closed or self._process.returncode is not None:
            return False
        if self._process.view is not None:  # what is asked before every cell should cost no call of the engine
            return not self._process.view.process.gone()
        name = self.spec.name
        try:
            found = await self.engine.call("looking at the container", lambda client: client.inspect_container(name))
        except SandboxError:
            return False
        return bool((found.get("State") or {}).get("Running"))

    async def close(self) -> None:
        """Remove the container and all it held. Idempotent; what could not be removed is tried again.

        Raises SandboxCleanupError naming what is left.
        """
        if self._gone:
            return
        self._closed = True
        process = self._process
        left = ""
        try:
            if process is not None:
                if process.view is not None and not process.killed:
                    process.killed = True
                    process.view.process.kill()
                process.streams.close()
            if self._created:
                left = await self._remove()
        finally:
            if process is not None:
                await process.close()
                if process.view is not None:
                    process.view.close()
            for descriptor in self._areas.values():
                os.close(descriptor)
            self._areas.clear()
            self.engine.close()
        if left:
            raise SandboxCleanupError(left, details={"left": [f"container {self.spec.name}"]})
        if self._lease is not None:
            self._lease.release()  # not before: while something of it lives, nobody else may become this user
        self._gone = True

    async def _remove(self) -> str:
        """Remove the container; return what is left as a sentence, or nothing."""
        name, product = self.spec.name, self.engine.facts.product
        deadline = asyncio.get_running_loop().time() + REMOVE_DEADLINE
        reason = ""
        while True:
            try:
                await self.engine.call(
                    "removing the container", lambda client: client.remove_container(name, v=True, force=True)
                )
                await self.engine.call("looking at the container", lambda client: client.inspect_container(name))
            except EngineCallError as error:
                if error.status == 404:
                    return ""
                reason = str(error)
                if error.status is None:
                    break
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)  # it is being removed already, because its first process has ended
        command = f"{product.lower()} rm -f {name}"
        return f"The container {name} could not be removed ({reason}); run `{command}` when the engine answers."


def _lacks_program(explanation: str, program: str) -> bool:
    return program in explanation and _lacks_any(explanation)


def _lacks_any(explanation: str) -> bool:
    return any(text in explanation for text in ("executable file not found", "no such file or directory", "stat "))
