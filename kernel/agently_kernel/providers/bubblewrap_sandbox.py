"""One open bubblewrap sandbox: start, observation, limits, death, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from agently_kernel.contract.errors import SandboxError, SandboxLaunchError
from agently_kernel.contract.isolation import Evidence, LimitFact, ResourceLimits
from agently_kernel.contract.workspace import SANDBOX_PATHS
from agently_kernel.providers.bubblewrap_args import (
    BWRAP_ENVIRONMENT,
    SHM,
    TMP,
    BubblewrapLayout,
    bwrap_options,
    encode_options,
    privilege_drop,
)
from agently_kernel.providers.bubblewrap_binary import BwrapBinary, explain_failure
from agently_kernel.sandbox.cgroups import SandboxCgroup
from agently_kernel.sandbox.host_facts import observe_process, parse_mountinfo
from agently_kernel.sandbox.identity import UID_RANGE as UID_RANGE
from agently_kernel.sandbox.identity import HostProcess
from agently_kernel.sandbox.identity import UidLease as UidLease
from agently_kernel.sandbox.limits import cpu_choice, read_rlimits, rlimit_facts
from agently_kernel.sandbox.local import WATCHED_SPACE, LocalSandbox
from agently_kernel.sandbox.orphans import owner_mark
from agently_kernel.sandbox.process import PipedProcess, spawn_process
from agently_kernel.sandbox.watchdog import Watchdog, WatchLimits

START_DEADLINE = 15.0
CLOSE_DEADLINE = 2.0
_AREAS = {"build": SANDBOX_PATHS["build"], "output": SANDBOX_PATHS["output"], "tmp": TMP, "shm": SHM}


class BubblewrapProcess:
    """The SandboxProcess: bwrap's own process, whose pipes are the guest's, and the guest behind it."""

    def __init__(self, outer: PipedProcess, guest: HostProcess) -> None:
        self._outer = outer
        self.guest = guest
        self.stdin, self.stdout, self.stderr = outer.stdin, outer.stdout, outer.stderr

    @property
    def returncode(self) -> int | None:
        """Exit code (128 + signal number when the guest was killed), negative signal, or None while it lives."""
        return self._outer.returncode

    @property
    def pid(self) -> int:
        """The guest's first process, as the host numbers it."""
        return self.guest.pid

    async def wait(self) -> int:
        """Return the exit code once the process has ended."""
        return await self._outer.wait()

    def kill(self) -> None:
        """Kill the whole sandbox. Harmless when it is gone.

        Only the guest's first process is killed, and all others with it: bwrap's own process then collects it and
        ends. Killed itself, it would leave a zombie to whoever collects orphans here, in a container often nobody.
        """
        self.guest.kill()


class BubblewrapSandbox(LocalSandbox):
    """Implements ``contract.protocols.Sandbox``. ``layout`` says what is shown, ``limits`` what is enforced."""

    provider_id = "bubblewrap"

    def __init__(
        self, binary: BwrapBinary, layout: BubblewrapLayout, limits: ResourceLimits, *, lease: UidLease | None = None
    ) -> None:
        super().__init__(limits, lease)
        self._binary = binary
        self._layout = layout
        self._process: BubblewrapProcess | None = None
        self._outer: PipedProcess | None = None

    def options(self) -> list[str]:
        """Return bwrap's options for the layout."""
        return bwrap_options(self._layout)

    def privilege_drop(self) -> list[str]:
        """Return the command that drops privileges before the guest's first program, if one is needed."""
        return privilege_drop(self._layout)

    @property
    def pid(self) -> int | None:
        """The guest's first process as the host numbers it, or None before the start."""
        return None if self._process is None else self._process.pid

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> BubblewrapProcess:
        """Start the sandbox with *argv* as its first process. Raises SandboxLaunchError with a remedy in ``details``.

        *env* is the whole environment inside besides the layout's own entries, which it may replace.
        """
        if self._process is not None or self._closed:
            raise SandboxError("A bubblewrap sandbox can be started once; open a new one.")
        self._layout = self._layout.model_copy(update={"env": {**self._layout.env, **env}, "cwd": cwd})
        self._cgroup = SandboxCgroup.create(self._limits)
        with contextlib.ExitStack() as stack:
            information, writing = os.pipe()
            stack.callback(os.close, information)
            closing_writer = stack.enter_context(contextlib.ExitStack())
            closing_writer.callback(os.close, writing)
            arguments = stack.enter_context(_memory_file([*self.options(), "--info-fd", str(writing)]))
            command = [self._binary.path, "--args", str(arguments), "--", *self.privilege_drop(), *argv]
            env = {**BWRAP_ENVIRONMENT, **owner_mark()}
            outer = self._outer = await spawn_process(
                self._grouped(command), env=env, pass_fds=(arguments, writing)
            )
            closing_writer.close()
            pid = await self._read_guest_pid(information, outer)
        try:
            self._process = BubblewrapProcess(outer, HostProcess(pid, outer.pid))
        except ProcessLookupError:
            raise await self._launch_error(outer) from None
        return self._process

    async def _read_guest_pid(self, information: int, outer: PipedProcess) -> int:
        """Return the guest's host pid, which bwrap writes as JSON in several pieces once it has made the namespaces."""
        try:
            data = await asyncio.wait_for(_read_to_end(information), START_DEADLINE)
        except asyncio.TimeoutError:
            outer.kill()
            raise SandboxLaunchError(
                f"bubblewrap made no sandbox within {START_DEADLINE:.0f} seconds and was ended. The machine may be "
                "overloaded; try again.", details={"remedy": "try again"},
            ) from None
        pid = _child_pid(data)
        if pid is None:
            raise await self._launch_error(outer)
        return pid

    async def _launch_error(self, outer: PipedProcess) -> SandboxLaunchError:
        outer.kill()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(outer.wait(), CLOSE_DEADLINE)
        text = ""
        with contextlib.suppress(asyncio.TimeoutError):
            text = (await asyncio.wait_for(outer.stderr.read(8192), 0.5)).decode("utf-8", "replace")
        return explain_failure(text, mode=self._layout.mode)

    def _pin_areas(self) -> None:
        """Open the areas while the guest is known to be ours: before its first user code. They outlive the
        processes."""
        process = self._process
        if self._areas or process is None:
            return
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            host = {mount.device for mount in parse_mountinfo(stream.read())}
        for name, path in _AREAS.items():
            on_host = self._layout.build_dir if name == "build" else None
            place = f"/proc/{process.pid}/root{path}" if on_host is None else on_host
            descriptor = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            device = os.fstat(descriptor).st_dev
            if on_host is None and f"{os.major(device)}:{os.minor(device)}" in host:
                # Not a file system of the sandbox's own: too early, or something is very wrong.
                os.close(descriptor)
                raise SandboxError(f"The sandbox's {name} area is not a file system of its own; it is not used.")
            self._areas[name] = descriptor

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        """Return a new descriptor of an area (the caller closes it), also after a kill; None before the first
        observation and after :meth:`close`."""
        descriptor = self._areas.get(area)
        return None if descriptor is None else os.dup(descriptor)

    async def observe(self) -> tuple[Evidence, ...]:
        """Return the host kernel's view of the guest's first process; pins the areas and starts the watchdog."""
        if self._process is None:
            raise SandboxError("The sandbox has not been started.")
        pid = self._process.pid
        try:
            self._pin_areas()
        except OSError as error:
            raise SandboxError(f"The sandbox's areas could not be opened: {error}. It may have ended.") from error
        allowed = () if self._layout.build_dir is None else (SANDBOX_PATHS["build"],)
        evidence = observe_process(pid, allowed_writable=allowed)
        self._start_watchdog(pid)
        return evidence

    def _start_watchdog(self, pid: int) -> None:
        if self._watchdog is not None or self._process is None:
            return
        held = self._held
        on_disk = self._layout.build_dir is not None
        self._watchdog = Watchdog(
            pid=pid,
            limits=WatchLimits(
                memory_bytes=None if "memory" in held else self._limits.memory_bytes,
                inodes=self._limits.inodes,
                disk_bytes=self._limits.scratch_bytes if on_disk else None,
                cpus=None if "cpu" in held else cpu_choice(self._limits.cpus),
            ),
            kill=self._process.kill,
            areas={name: fd for name, fd in self._areas.items() if not (name == "build" and on_disk)},
            disk_folder=self._layout.build_dir,
            killed_by_group=self._cgroup.new_oom_kill if self._cgroup is not None and "memory" in held else None,
        )
        with contextlib.suppress(OSError):  # it has ended meanwhile: that is told by others
            self._watchdog.start()

    async def limits(self) -> tuple[LimitFact, ...]:
        """Return each limit with the mechanism in force; observed on the very process, groups and file systems."""
        pid = self.pid
        observed = read_rlimits(pid) if pid is not None else {}
        facts = self._cgroup.facts(pid) if self._cgroup is not None else []
        held = {fact.name for fact in facts}
        watching = self._watching
        limits = self._limits
        if "memory" not in held:
            facts.append(self._memory_fact())
        if "processes" not in held:
            hard = observed.get("nproc", (-1, -1))[1]
            holds = limits.processes is not None and 0 <= hard <= limits.processes
            facts.append(LimitFact(
                name="processes", limit=limits.processes, mechanism="rlimit" if holds else "none",
                observed=True if holds else None,
            ))
        if "cpu" not in held:
            chosen = cpu_choice(limits.cpus)
            facts.append(LimitFact(
                name="cpu", limit=None if chosen is None else len(chosen),
                mechanism="none" if chosen is None else "watchdog",
                observed=None if chosen is None or pid is None else watching and os.sched_getaffinity(pid) <= chosen,
            ))
        facts += rlimit_facts(limits, observed)
        disk = self._layout.build_dir is not None
        facts.append(LimitFact(
            name="scratch_bytes", limit=limits.scratch_bytes, mechanism="watchdog" if disk else "tmpfs",
            observed=watching if disk else self._size_holds("build", limits.scratch_bytes),
            detail=WATCHED_SPACE if disk else "",
        ))
        facts.append(LimitFact(
            name="output_bytes", limit=limits.output_bytes, mechanism="tmpfs",
            observed=self._size_holds("output", limits.output_bytes),
        ))
        facts.append(LimitFact(name="inodes", limit=limits.inodes, mechanism="watchdog", observed=watching))
        return tuple(facts)

    def _size_holds(self, area: str, wanted: int) -> bool | None:
        if area not in self._areas:
            return None
        status = os.fstatvfs(self._areas[area])
        return 0 < status.f_blocks * status.f_frsize <= wanted + status.f_frsize

    def mechanism(self) -> Mapping[str, Any]:
        """Return what this sandbox is made of, without host paths."""
        return {
            "mechanism": "bubblewrap",
            "version": self._binary.version,
            "binary": self._binary.source,
            "binary_sha256": self._binary.sha256,
            "identity": "user namespace" if self._layout.mode == "user" else f"uid {self._layout.uid} of the host",
            "kernel": platform.release(),
            "scratch": "tmpfs" if self._layout.build_dir is None else "host disk",
            "control_groups": sorted(self._cgroup.controllers) if self._cgroup is not None else [],
        }

    def _lives(self) -> bool:
        process = self._process
        return process is not None and process.returncode is None and not process.guest.gone()

    async def _let_go(self) -> list[str]:
        if self._process is not None and self._process.guest.gone():
            self._process.guest.close()
        return []

    async def _end_processes(self) -> list[str]:
        """Kill, and wait until the whole pid namespace is gone; return what is left as sentences."""
        outer, process = self._outer, self._process
        if outer is None:
            return []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_DEADLINE
        if process is not None:
            process.kill()
            await asyncio.wait({asyncio.ensure_future(outer.wait())}, timeout=CLOSE_DEADLINE / 2)
        outer.close()
        try:
            await asyncio.wait_for(outer.wait(), max(0.1, deadline - loop.time()))
        except asyncio.TimeoutError:
            return [f"process {outer.pid} (bwrap) does not end"]
        while process is not None and not process.guest.gone():
            if loop.time() > deadline:
                return [f"process {process.pid} (the sandbox's first) does not end; `kill -9 {process.pid}` and wait"]
            await asyncio.sleep(0.002)
        return []


def _child_pid(data: bytes) -> int | None:
    """Return the pid in what bwrap wrote, None for anything else: a program of that name may write what it likes."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return None
    pid = told.get("child-pid") if isinstance(told, dict) else None
    return pid if type(pid) is int and 0 < pid < 2**31 else None


async def _read_to_end(descriptor: int) -> bytes:
    """Read a pipe to its end without blocking the event loop."""
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    data = b""
    while len(data) < 65536:
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(descriptor, _set_done, ready)
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)
        with contextlib.suppress(BlockingIOError):
            piece = os.read(descriptor, 4096)
            data += piece
            if not piece or b"}" in piece:
                break
    return data


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@contextlib.contextmanager
def _memory_file(options: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor from which bwrap reads *options*; it exists only in memory."""
    descriptor = os.memfd_create("bwrap-options")
    try:
        data = encode_options(options)
        while data:
            data = data[os.write(descriptor, data):]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
