"""A sandbox that shares the host's namespaces: a private folder, a supervisor that lets nothing get away, a watchdog.

For mechanisms that confine a process where it is (Landlock, Seatbelt) and for no mechanism at all. What is confined,
and what can be observed of it, the provider says in a :class:`HostLaunch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxError, SandboxLaunchError
from agently_kernel.contract.isolation import Evidence, LimitFact, ResourceLimits
from agently_kernel.sandbox import supervisor
from agently_kernel.sandbox.delivery import FolderDelivery
from agently_kernel.sandbox.identity import UidLease
from agently_kernel.sandbox.launch import install_guest
from agently_kernel.sandbox.limits import read_rlimits, rlimit_facts
from agently_kernel.sandbox.local import WATCHED_SPACE, LocalSandbox
from agently_kernel.sandbox.process import PipedProcess, spawn_process
from agently_kernel.sandbox.runtime import probe_folder
from agently_kernel.sandbox.watchdog import Watchdog, WatchLimits, descendants

CLOSE_DEADLINE = 4.0
_WRITABLE = ("build", "output", "tmp")
_READABLE = ("source", "input", "guest")


class HostArea:
    """The folder of one such sandbox: build, output and tmp for the guest, source, input and guest for it to read.

    Files that it must read are copied in: the workspace's own area is closed to other users. :meth:`remove` ends it.
    """

    def __init__(self, uid: int | None = None) -> None:
        """*uid*: whom the writable folders shall belong to. Raises OSError; nothing is left behind then."""
        self.path = probe_folder()
        try:
            self.path.chmod(0o711)
            for name in (*_WRITABLE, *_READABLE):
                (self.path / name).mkdir()
                (self.path / name).chmod(0o755)
                if uid is not None and name in _WRITABLE:
                    os.chown(self.path / name, uid, uid)
            install_guest(self.path / "guest")
        except BaseException:
            self.remove()
            raise
        self.paths = {name: str(self.path / name) for name in ("source", "input", "build", "output")}
        self.paths["scratch"] = self.paths["build"]
        self.delivery = FolderDelivery({"source": self.path / "source", "input": self.path / "input"})

    def folders(self, names: Sequence[str]) -> list[str]:
        """Return absolute paths of the named folders."""
        return [str(self.path / name) for name in names]

    @property
    def writable(self) -> list[str]:
        """The folders that the guest may write."""
        return self.folders(_WRITABLE)

    @property
    def readable(self) -> list[str]:
        """The folders that it only reads."""
        return self.folders(_READABLE)

    def remove(self) -> list[str]:
        """Remove the folder with all that is in it; return what is left as sentences. Idempotent."""
        for attempt in range(3):  # a guest may have taken rights from itself; as their owner we give them back
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                return []
            if attempt == 0:
                for top, folders, _ in os.walk(self.path):
                    for name in folders:
                        path = os.path.join(top, name)
                        if not os.path.islink(path):
                            with contextlib.suppress(OSError):
                                os.chmod(path, 0o700)
        return [f"the folder {self.path} could not be removed; remove it by hand"]


class HostLaunch(Frozen):
    """What a provider decides: the order's confinement, facts for people, and observations of a started process.

    ``prefix`` is put before the guest's command (a program that confines it). ``landlock`` is the supervisor's rules.
    ``evidence`` gets the host pid of the guest's first process (None where it cannot be told).
    """

    provider_id: str
    mechanism: Mapping[str, Any]
    evidence: Callable[[int | None], tuple[Evidence, ...]]
    landlock: Mapping[str, Sequence[str]] | None = None
    prefix: tuple[str, ...] = ()
    processes_by_rlimit: bool = False
    links: Mapping[str, str] = Field(default_factory=dict)


class SupervisedProcess:
    """The SandboxProcess: the supervisor, whose streams are the guest's. ``kill`` ends the guest and all it started."""

    def __init__(self, outer: PipedProcess, control: int) -> None:
        self._outer = outer
        self._control = control
        self.stdin, self.stdout, self.stderr = outer.stdin, outer.stdout, outer.stderr

    @property
    def pid(self) -> int:
        """The supervisor's pid on the host."""
        return self._outer.pid

    @property
    def returncode(self) -> int | None:
        """Exit code of the guest's first program, or None while anything of it lives."""
        return self._outer.returncode

    async def wait(self) -> int:
        """Return the exit code once the program and all its descendants have ended."""
        return await self._outer.wait()

    def kill(self) -> None:
        """Let the supervisor end everything; without one (not Linux) end the process group."""
        if self._control < 0:
            self._outer.kill()
            return
        with contextlib.suppress(OSError):
            os.close(self._control)
        self._control = -2

    async def close(self, seconds: float) -> list[str]:
        """End everything within *seconds*; return what is left as sentences."""
        if self._control != -2:
            self.kill()
        await asyncio.wait({asyncio.ensure_future(self._outer.wait())}, timeout=seconds)
        left = [] if self._outer.returncode is not None else [
            f"process {pid} does not end; `kill -9 {pid}`" for pid in descendants(self.pid)
        ]
        self._outer.close()
        return left


class HostSandbox(LocalSandbox):
    """One sandbox in a :class:`HostArea`. Implements the ``Sandbox`` protocol."""

    def __init__(
        self, launch: HostLaunch, area: HostArea, limits: ResourceLimits, *, lease: UidLease | None = None
    ) -> None:
        super().__init__(limits, lease)
        self.provider_id = launch.provider_id
        self.area = area
        self._launch = launch
        self._process: SupervisedProcess | None = None

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> SupervisedProcess:
        """Start the guest under a supervisor. Raises SandboxLaunchError."""
        if self._process is not None or self._closed:
            raise SandboxError(f"A {self.provider_id} sandbox can be started once; open a new one.")
        command = [*self._launch.prefix, *argv]
        if sys.platform != "linux":  # no subreaper: the process group is what can be ended
            self._process = SupervisedProcess(await spawn_process(command, env=env, cwd=cwd), -1)
            return self._process
        order = {
            "argv": command, "env": dict(env), "cwd": cwd, "uid": self._lease.uid if self._lease else None,
            "landlock": None if self._launch.landlock is None
            else {name: list(paths) for name, paths in self._launch.landlock.items()},
        }
        reading, writing = os.pipe()
        try:
            program = [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), str(reading)]
            outer = await spawn_process(program, env={"PATH": os.defpath}, pass_fds=(reading,))
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._process = SupervisedProcess(outer, writing)
        data = json.dumps(order).encode() + b"\n"
        try:
            while data:
                data = data[os.write(writing, data):]
        except BrokenPipeError:
            raise SandboxLaunchError(f"The supervisor of the {self.provider_id} sandbox ended at once.") from None
        return self._process

    @property
    def guest_pid(self) -> int | None:
        """The guest's first process as the host numbers it."""
        if self._process is None or self._process.returncode is not None or sys.platform != "linux":
            return None
        pid = self._process.pid
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()[0])
        return None

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        """Return a new descriptor of an area; None after :meth:`close` and where there are no such descriptors."""
        if self._closed or sys.platform == "win32":
            return None
        return os.open(self.area.path / area, getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    async def observe(self) -> tuple[Evidence, ...]:
        """Return what can be seen from outside, and start the watchdog."""
        if self._process is None:
            raise SandboxError("The sandbox has not been started.")
        evidence = self._launch.evidence(self.guest_pid)
        if self._watchdog is None:
            self._watchdog = Watchdog(
                pid=self._process.pid,
                limits=WatchLimits(
                    memory_bytes=self._limits.memory_bytes if sys.platform == "linux" else None,
                    inodes=self._limits.inodes,
                    disk_bytes=self._limits.scratch_bytes + self._limits.output_bytes,
                ),
                kill=self._process.kill,
                disk_folder=str(self.area.path),
            )
            self._watchdog.start()
        return evidence

    async def limits(self) -> tuple[LimitFact, ...]:
        """Return each limit with what holds it."""
        limits = self._limits
        pid = self.guest_pid
        observed = read_rlimits(pid) if pid is not None else {}
        watching = self._watching
        by_rlimit = self._launch.processes_by_rlimit and limits.processes is not None
        hard = observed.get("nproc", (-1, -1))[1]
        return (
            self._memory_fact(watched=sys.platform == "linux"),
            LimitFact(name="processes", limit=limits.processes, mechanism="rlimit" if by_rlimit else "none",
                      observed=0 <= hard <= (limits.processes or 0) if by_rlimit else None),
            LimitFact(name="cpu", limit=limits.cpus, mechanism="none"),
            *rlimit_facts(limits, observed),
            LimitFact(name="scratch_bytes", limit=limits.scratch_bytes, mechanism="watchdog", observed=watching,
                      detail=WATCHED_SPACE),
            LimitFact(name="output_bytes", limit=limits.output_bytes, mechanism="watchdog", observed=watching,
                      detail=WATCHED_SPACE),
            LimitFact(name="inodes", limit=limits.inodes, mechanism="watchdog", observed=watching),
        )

    def mechanism(self) -> Mapping[str, Any]:
        """Return the provider's facts of the mechanism."""
        return self._launch.mechanism

    def _lives(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _end_processes(self) -> list[str]:
        return [] if self._process is None else await self._process.close(CLOSE_DEADLINE)

    async def _let_go(self) -> list[str]:
        return await asyncio.to_thread(self.area.remove)


def host_environment(area: HostArea, env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* with home, temporary and configuration folders moved into the area."""
    temporary = str(area.path / "tmp")
    home = temporary + "/home"
    moved = {name: value.replace("/tmp/home", home) for name, value in env.items()}  # noqa: S108 - the guest's own
    return {**moved, "TMPDIR": temporary, "HOME": home}
