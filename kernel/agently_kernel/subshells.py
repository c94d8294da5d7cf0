"""The subshells of a kernel: each takes its requests in order, beside the main shell and each other.

``create_subshell_request``, ``delete_subshell_request`` and ``list_subshell_request`` come on the control channel; a
request of the shell channel names its subshell in its header (Jupyter message protocol 5.5, JEP 91). They are no
threads here: all requests are served on one event loop, and the cells run in threads of the sandbox's interpreter.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_SUBSHELLS = 64
"""Subshells that one kernel has at the same time; each is a thread of the sandbox."""


class UnknownSubshellError(Exception):
    """A request names a subshell that is not there. Programs know it by the name and text that ipykernel gives it."""

    def __init__(self, subshell: object) -> None:
        super().__init__(f"Unknown subshell_id {str(subshell)[:64]!r}")


@dataclass(slots=True)
class RunningCell:
    """The execute_request that is being answered; captured once, because context variables do not reach later tasks."""

    cell: str
    parent: Mapping[str, Any]
    ident: Sequence[bytes]
    allow_stdin: bool
    told: Mapping[str, Any] = field(default_factory=dict)
    task: asyncio.Task[dict[str, Any]] | None = None
    interrupted: bool = False
    fresh_sandbox: bool = False
    started: float = field(default_factory=time.monotonic)


class Subshell:
    """A line of requests that are answered one after the other. ``id`` is None for the main shell."""

    def __init__(self, id: str | None, lock: asyncio.Lock | None = None) -> None:
        self.id = id
        self.lock = lock or asyncio.Lock()
        self.running: RunningCell | None = None
        self.aborting = False
        self.deleted = False


class Subshells:
    """The main shell and the subshells by id. Used on the main loop only."""

    def __init__(self, main: Subshell) -> None:
        self.main = main
        self._known: dict[str, Subshell] = {}

    @property
    def ids(self) -> list[str]:
        """The ids of the subshells, oldest first; the main shell has none."""
        return list(self._known)

    @property
    def running(self) -> tuple[RunningCell, ...]:
        """The cells that run, the main shell's first."""
        shells = (self.main, *self._known.values())
        return tuple(shell.running for shell in shells if shell.running is not None)

    def create(self) -> str:
        """Make a subshell and return its id. Raises RuntimeError when there are too many."""
        if len(self._known) >= MOST_SUBSHELLS:
            raise RuntimeError(f"This kernel has {MOST_SUBSHELLS} subshells, and takes no more; delete some first.")
        name = str(uuid.uuid4())
        self._known[name] = Subshell(name)
        return name

    def delete(self, name: object) -> None:
        """Forget a subshell: its running cell goes on to its end, what waits behind is answered with an error.

        Raises UnknownSubshellError.
        """
        self.of(name).deleted = True
        del self._known[str(name)]

    def of(self, name: object) -> Subshell:
        """Return the subshell *name*, the main shell for None. Raises UnknownSubshellError."""
        if name is None:
            return self.main
        found = self._known.get(name) if isinstance(name, str) else None
        if found is None:
            raise UnknownSubshellError(name)
        return found
