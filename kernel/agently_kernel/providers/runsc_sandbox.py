"""One gVisor sandbox run by this process itself: ``runsc run`` on a bundle of our own."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agently_kernel.contract.errors import SandboxError, SandboxLaunchError, os_reason
from agently_kernel.contract.isolation import Evidence, LimitFact, ResourceLimits
from agently_kernel.contract.result import DeathCause
from agently_kernel.providers.gvisor import sentry_evidence
from agently_kernel.providers.runsc_bundle import RunscLayout, write_bundle
from agently_kernel.sandbox.cgroups import SandboxCgroup
from agently_kernel.sandbox.deaths import LOST_SANDBOX, sandbox_death
from agently_kernel.sandbox.identity import HostProcess, UidLease
from agently_kernel.sandbox.limits import rlimit_facts
from agently_kernel.sandbox.local import LocalSandbox
from agently_kernel.sandbox.process import PipedProcess, spawn_process
from agently_kernel.sandbox.runtime import probe_folder
from agently_kernel.sandbox.watchdog import Watchdog, WatchLimits, descendants

CLOSE_DEADLINE = 4.0
OWN_THREADS, THREADS_PER_TASK = 400, 20
"""What the control group leaves to gVisor's kernel: threads for itself, and those behind each task of the guest, of
which the platform ptrace was seen to need 11. The guest's tasks are limited by gVisor's own group; this one, which ends
the sandbox when it is passed, protects the host where there is no such group."""

GO_FAILURE = 2
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


class RunscSandbox(LocalSandbox):
    """Implements ``Sandbox``. The uid lease belongs to it from the start."""

    provider_id = "runsc"

    def __init__(
        self, program: str, flags: Sequence[str], layout: RunscLayout, facts: Mapping[str, Any], *,
        lease: UidLease | None = None, launcher: Sequence[str] = (),
    ) -> None:
        """*flags* go before the command ``run``; *facts* are those of the mechanism; *launcher* starts runsc."""
        super().__init__(layout.limits, lease)
        self._launcher = launcher
        self._program = program
        self._flags = flags
        self._layout = layout
        self._facts = facts
        self._folder: Path | None = None
        self._process: PipedProcess | None = None
        self._family: list[HostProcess] = []

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> PipedProcess:
        """Write the bundle and run it. Raises SandboxLaunchError."""
        if self._process is not None or self._closed:
            raise SandboxError("A runsc sandbox can be started once; open a new one.")
        folder = self._folder = await asyncio.to_thread(probe_folder)
        try:
            layout = self._layout.model_copy(update={"environment": dict(env)})
            await asyncio.to_thread(write_bundle, folder, layout, argv, cwd)
            (folder / "state").mkdir()
        except OSError as error:
            raise SandboxLaunchError(
                f"The sandbox's bundle could not be written: {os_reason(error)}.", details={"remedy": os_reason(error)}
            ) from error
        self._cgroup = SandboxCgroup.create(_group_limits(self._layout.limits))
        command = [
            *self._launcher, self._program, "--root", str(folder / "state"), *self._flags,
            "run", "-bundle", str(folder), f"agently-{secrets.token_hex(6)}",
        ]
        self._process = await spawn_process(self._grouped(command), env={**ENVIRONMENT, "TMPDIR": str(folder)})
        return self._process

    def _sentry(self) -> int | None:
        """Return the pid of gVisor's kernel among the processes that were started."""
        if self._process is None:
            return None
        for pid in descendants(self._process.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"boot" in words and words[0].startswith(b"runsc-sandbox"):
                    return pid
        return None

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        """Return None: the areas exist only in gVisor's kernel."""
        return None

    async def observe(self) -> tuple[Evidence, ...]:
        """Return how the host's kernel holds gVisor's, and start the watchdog."""
        if self._process is None:
            raise SandboxError("The sandbox has not been started.")
        pid = self._sentry()
        if pid is None:
            raise SandboxError("gVisor's kernel is not among the processes that runsc started; it may have ended.")
        for each in descendants(self._process.pid):
            with contextlib.suppress(OSError):
                self._family.append(HostProcess(each))
        if self._watchdog is None:
            self._watchdog = Watchdog(
                pid=self._process.pid,
                limits=WatchLimits(memory_bytes=None if "memory" in self._held else self._limits.memory_bytes),
                kill=self._process.kill, whole=True,
            )
            self._watchdog.start()
        return sentry_evidence(pid)

    async def limits(self) -> tuple[LimitFact, ...]:
        """Return each limit with what holds it; what lies in gVisor's own kernel cannot be looked at from outside."""
        limits = self._layout.limits
        pid = self._sentry()
        groups = self._cgroup.facts(pid) if self._cgroup is not None and pid is not None else []
        # A process of the guest is none of the host's: the group bounds gVisor's threads, and the memory of all.
        facts = [fact for fact in groups if fact.name != "processes"]
        names = {fact.name for fact in facts}
        if "memory" not in names:
            facts.append(self._memory_fact())
        if "cpu" not in names:
            facts.append(LimitFact(name="cpu", limit=limits.cpus, mechanism="none"))
        facts.append(LimitFact(name="processes", limit=limits.processes, mechanism="none"))
        facts += rlimit_facts(limits, {})
        facts.append(LimitFact(name="scratch_bytes", limit=limits.scratch_bytes, mechanism="tmpfs"))
        facts.append(LimitFact(name="output_bytes", limit=limits.output_bytes, mechanism="tmpfs"))
        facts.append(LimitFact(name="inodes", limit=limits.inodes, mechanism="none"))
        return tuple(facts)

    def mechanism(self) -> Mapping[str, Any]:
        """Return what this sandbox is made of, without host paths."""
        groups = sorted(self._cgroup.controllers) if self._cgroup is not None else []
        return {**self._facts, "control_groups": groups}

    def _lives(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _explain_end(self, returncode: int | None) -> DeathCause:
        if returncode == GO_FAILURE:
            return DeathCause(
                what="sandbox", kind="exit", exit_code=returncode,
                message="gVisor's kernel gave up, as it does when the sandbox has used up its processes or memory. "
                + LOST_SANDBOX,
            )
        return sandbox_death(returncode)

    async def _let_go(self) -> list[str]:
        if self._folder is None:
            return []
        return await asyncio.to_thread(_remove, self._folder)

    async def _end_processes(self) -> list[str]:
        process = self._process
        if process is None:
            return []
        if process.returncode is None:
            for pid in descendants(process.pid):  # those of a start that never came to be observed
                with contextlib.suppress(OSError):
                    self._family.append(HostProcess(pid))
        process.close()
        for member in self._family:  # runsc's children are to die with it; where they do not, they are ended here
            member.kill()
        deadline = asyncio.get_running_loop().time() + CLOSE_DEADLINE
        while not all(member.gone() for member in self._family):
            if asyncio.get_running_loop().time() > deadline:
                return [f"process {member.pid} (runsc) does not end" for member in self._family if not member.gone()]
            await asyncio.sleep(0.005)
        await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=1.0)
        for member in self._family:
            member.close()
        self._family.clear()
        return []


def _group_limits(limits: ResourceLimits) -> ResourceLimits:
    processes = None if limits.processes is None else THREADS_PER_TASK * limits.processes + OWN_THREADS
    return limits.model_copy(update={"processes": processes})


def _remove(folder: Path) -> list[str]:
    shutil.rmtree(folder, ignore_errors=True)
    return [f"the folder {folder}"] if folder.exists() else []
