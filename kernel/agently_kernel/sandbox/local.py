"""What every sandbox has in common whose processes are this machine's: watched, explained when it dies, ended whole.

A mechanism adds how its processes are started, observed and ended, and what else there is to let go.
"""

from __future__ import annotations

import abc
import os

from agently_kernel.contract.errors import SandboxCleanupError
from agently_kernel.contract.isolation import LimitFact, ResourceLimits
from agently_kernel.contract.result import DeathCause
from agently_kernel.sandbox.cgroups import SandboxCgroup
from agently_kernel.sandbox.deaths import interpreter_death, memory_death, sandbox_death
from agently_kernel.sandbox.identity import UidLease
from agently_kernel.sandbox.watchdog import Watchdog

# Enters the control groups before the mechanism's own program starts anything, so that all of it is in them (and the
# group is the root of what is seen inside a control group namespace); and offers the sandbox first when the whole
# machine runs out of memory.
_ENTER = (
    'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; '
    'echo 500 > /proc/self/oom_score_adj; exec "$@"'
)


WATCHED_MEMORY = (
    "counted every tenth of a second: what is taken between two looks goes beyond it; files and sockets that are on "
    "their way between processes are not seen"
)
"""What a memory limit held by the watchdog does not cover: see docs/security.md."""

WATCHED_SPACE = (
    "counted every tenth of a second, near the limit more often: what is written between two looks goes beyond it"
)


class LocalSandbox(abc.ABC):
    """Base of sandboxes on this machine; with ``spawn``, ``observe``, ``limits`` and ``mechanism`` it is a ``Sandbox``.

    It owns its *lease* and releases it when it is closed.
    """

    provider_id: str

    def __init__(self, limits: ResourceLimits, lease: UidLease | None) -> None:
        self._limits = limits
        self._lease = lease
        self._cgroup: SandboxCgroup | None = None
        self._watchdog: Watchdog | None = None
        self._areas: dict[str, int] = {}
        self._closed = False
        self._gone = False

    # -- what a mechanism says

    @abc.abstractmethod
    def _lives(self) -> bool:
        """True while the guest's first program runs."""

    @abc.abstractmethod
    async def _end_processes(self) -> list[str]:
        """Kill all processes and wait for their end, bounded; return what is left as sentences. May be repeated."""

    async def _let_go(self) -> list[str]:
        """Let go of whatever else there is, when no process lives; return what is left. May be repeated."""
        return []

    def _explain_end(self, returncode: int | None) -> DeathCause:
        """Say why the sandbox ended where no limit is the reason."""
        return sandbox_death(returncode)

    # -- limits

    def _grouped(self, command: list[str]) -> list[str]:
        """Return *command*, entering the control groups first where there are any."""
        files = self._cgroup.procs_files() if self._cgroup is not None else []
        return ["/bin/sh", "-c", _ENTER, "sh", *files, "--", *command] if files else command

    @property
    def _held(self) -> frozenset[str]:
        """The limits that control groups hold, by controller."""
        return frozenset(self._cgroup.controllers) if self._cgroup is not None else frozenset()

    @property
    def _watching(self) -> bool:
        return self._watchdog is not None and self._watchdog.cause is None

    def _memory_fact(self, *, watched: bool = True) -> LimitFact:
        """Return the fact of a memory limit that no control group holds."""
        limit = self._limits.memory_bytes
        by_us = limit is not None and watched
        return LimitFact(
            name="memory", limit=limit, mechanism="watchdog" if by_us else "none",
            observed=self._watching if by_us else None, detail=WATCHED_MEMORY if by_us else "",
        )

    # -- life and end

    async def is_alive(self) -> bool:
        """True while the guest lives and no limit has ended it."""
        return self.alive_now()

    def alive_now(self) -> bool:
        """As :meth:`is_alive`: what is this machine's is seen without waiting."""
        return not self._closed and self._lives() and (self._watchdog is None or self._watchdog.cause is None)

    async def explain_death(self, returncode: int | None) -> DeathCause:
        """Say why the sandbox ended, or, while it lives, why a process in it was killed."""
        if self._watchdog is not None and self._watchdog.cause is not None:
            return self._watchdog.cause
        ended = not self._lives()
        seen = self._watchdog.recent_memory_kill() if self._watchdog is not None else ""
        if not seen and self._cgroup is not None and self._cgroup.new_oom_kill():
            seen = "the kernel ended a process there"
        if seen:
            files = self._watchdog.files_bytes() if self._watchdog is not None else 0
            return memory_death("sandbox" if ended else "interpreter", self._limits.memory_bytes, seen, files)
        if returncode is None:
            return DeathCause(
                what="sandbox" if ended else "interpreter", kind="unknown", message="No cause could be observed."
            )
        if not ended:
            return interpreter_death(returncode, None) if returncode >= 0 else interpreter_death(None, -returncode)
        return self._explain_end(returncode)

    async def close(self) -> None:
        """End everything and remove what was made. Idempotent; what could not be removed is tried again.

        Raises SandboxCleanupError naming what is left.
        """
        if self._gone:
            return
        self._closed = True
        left: list[str] = []
        try:
            if self._watchdog is not None:
                await self._watchdog.stop()
            left += await self._end_processes()
            if self._cgroup is not None:
                try:
                    await self._cgroup.remove()
                except SandboxCleanupError as error:
                    left.append(str(error))
        finally:
            for descriptor in self._areas.values():
                os.close(descriptor)
            self._areas.clear()
            left += await self._let_go()
            if self._lease is not None and not left:
                self._lease.release()  # while something of it lives, nobody else may become this user
        if left:
            raise SandboxCleanupError(
                f"A closed {self.provider_id} sandbox left something behind: " + "; ".join(left), details={"left": left}
            )
        self._gone = True

