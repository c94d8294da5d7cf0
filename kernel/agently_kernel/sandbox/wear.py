"""Notices a sandbox in which no interpreter gets anywhere any more.

What outlives an interpreter (files in memory, segments of shared memory, processes that ran away) can fill a sandbox so
far that every fresh interpreter ends at a limit too. Nothing inside can mend that: the sandbox is replaced.
"""

from __future__ import annotations

from agently_kernel.contract.result import DeathCause

MOST_IN_A_ROW = 2
_LIMITS = frozenset(("memory_limit", "process_limit", "watchdog"))
WORN = (
    "Two fresh interpreters in a row ended for the same reason before they had finished one cell, so something in this "
    "sandbox may stand in their way: it is replaced. Files in it that have not been collected are lost; the next cell "
    "runs in a fresh sandbox."
)


class Wear:
    """Counts the fresh interpreters that ended at the same limit, or did not even start, one after the other.

    An interpreter is fresh until it has finished a cell. Other ends of a fresh one (a crash, an exit, your Stop) are
    the cell's own doing and say nothing of the sandbox.
    """

    def __init__(self) -> None:
        self._fresh = True
        self._cause = ""
        self._count = 0

    @property
    def worn(self) -> bool:
        """True when the sandbox should be replaced."""
        return self._count >= MOST_IN_A_ROW

    def finished_cell(self) -> None:
        """The interpreter has finished a cell: it works."""
        self._fresh = False
        self._count = 0

    def ended(self, death: DeathCause, was_ready: bool) -> None:
        """The interpreter has ended; *was_ready*: it had come so far that it could run cells."""
        fresh, self._fresh = self._fresh, True
        cause = death.limit or death.kind if death.kind in _LIMITS else "" if was_ready else "start"
        if not fresh or not cause or death.kind == "stopped_by_user":
            self._count = 0
            return
        self._count = self._count + 1 if cause == self._cause else 1
        self._cause = cause
