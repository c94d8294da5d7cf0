"""The resident interpreter of a sandbox: its generations, its state, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from agently_kernel.contract.errors import SandboxError
from agently_kernel.contract.isolation import LimitFact
from agently_kernel.contract.result import DeathCause
from agently_kernel.guest import wire
from agently_kernel.sandbox.deaths import LOST_VARIABLES, Stopper, interpreter_death, limit_reached
from agently_kernel.sandbox.session import GuestSession

InterpreterState = Literal["none", "starting", "ready", "exited"]


class Resident:
    """Starts interpreters in a guest, one at a time, each with a generation number of its own."""

    def __init__(
        self,
        session: GuestSession,
        explain: Callable[[int | None], Awaitable[DeathCause | None]],
        on_exit: Callable[[DeathCause, bool], None],
        *,
        limits: Callable[[], Sequence[LimitFact]] = tuple,
        start_deadline: float = 60.0,
    ) -> None:
        """*explain* asks the mechanism why a process was killed (None: it cannot say); *on_exit* hears of each
        end, and whether the interpreter had been ready; *limits* are those of the sandbox, once they are known."""
        self._session = session
        self._explain = explain
        self._on_exit = on_exit
        self._limits = limits
        self._start_deadline = start_deadline
        self._changed = asyncio.Event()
        self._stopper: Stopper | None = None
        self._violation: str | None = None
        self.state: InterpreterState = "none"
        self.generation = 0
        self.mode: str | None = None
        self.last_death: DeathCause | None = None
        self.start_failure = ""
        self._first_words = bytearray()

    async def start(self) -> None:
        """Ask for a new interpreter unless one lives; does not wait until it is ready. Raises SandboxDied."""
        if self.state in ("starting", "ready"):
            return
        self.generation += 1
        self._stopper = self._violation = None
        self.start_failure = ""
        self._first_words.clear()
        self._set("starting")
        await self._session.send({"op": "start", "generation": self.generation})

    async def ready(self, abandon: asyncio.Future[Any] | None = None) -> bool:
        """Start an interpreter if none lives and wait until it is ready; False when *abandon* is done before that.

        Raises SandboxDied when the sandbox ends, SandboxError when the interpreter does not start.
        """
        await self.start()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._start_deadline
        generation = self.generation
        while self.state == "starting" and self.generation == generation:
            changed = loop.create_task(self._changed.wait())
            waits: set[asyncio.Future[Any]] = {changed, *([abandon] if abandon is not None else [])}
            try:
                await asyncio.wait(waits, timeout=max(0.0, end - loop.time()), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if self._session.ended is not None:
                raise self._session.died()
            if abandon is not None and abandon.done():
                return False
            if self.state == "starting" and loop.time() >= end:
                await self.kill(None)
                raise SandboxError(
                    f"The interpreter did not become ready within {self._start_deadline:g} s and was ended. Run the "
                    "cell again; if this repeats, the machine is overloaded or the sandbox lacks memory.",
                    code="sandbox.interpreter_failed",
                )
        if self.state != "ready":
            raise SandboxError(
                f"The interpreter did not start: {self.start_failure or 'it ended at once.'} "
                f"{self._first_words.decode('utf-8', 'replace').strip()}".strip(),
                code="sandbox.interpreter_failed",
            )
        return True

    def note_output(self, data: bytes) -> None:
        """Take what is written before any cell runs: when the start fails, it says why."""
        if self.state == "starting":
            self._first_words += data
            del self._first_words[:-2000]

    async def finish(self, grace: float, timeout: float = 2.0) -> None:
        """End the interpreter the tidy way: exit handlers have *grace* seconds; init stays. Raises SandboxDied."""
        if self.state not in ("starting", "ready"):
            return
        self._stopper = "stopped_by_user"
        await self._session.send({"op": "shutdown", "grace": int(grace * 1000), "stay": True})
        await self._until_exited(grace + timeout)

    async def kill(self, stopper: Stopper | None, timeout: float = 2.0) -> bool:
        """SIGKILL the interpreter and all it started; return whether its end was reported within *timeout* seconds."""
        if self.state not in ("starting", "ready"):
            return True
        self._stopper = stopper
        await self._session.send({"op": "kill", "what": "interpreter"})
        return await self._until_exited(timeout)

    async def _until_exited(self, timeout: float) -> bool:
        generation = self.generation
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while self.state in ("starting", "ready") and self.generation == generation and self._session.ended is None:
            left = end - loop.time()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                return False
        return True

    def on_violation(self, reason: str) -> None:
        """Take a ``violation`` frame: init has ended the interpreter for what it sent."""
        self._violation = reason

    def on_interpreter(self, header: Mapping[str, Any]) -> Awaitable[None] | None:
        """Take an ``interpreter`` frame. Raises wire.WireError for a generation that was never asked for."""
        if header["generation"] != self.generation or self.state == "none":
            if 0 < header["generation"] < self.generation:
                return None  # the end of one that had been given up
            raise wire.WireError(f"no interpreter of generation {header['generation']} was asked for")
        if header["state"] == "ready" and self.state == "starting":
            self.mode = header.get("mode")
            self._set("ready")
        elif header["state"] == "exited" and self.state in ("starting", "ready"):
            return self._exited(header)
        return None

    def sandbox_ended(self, death: DeathCause) -> None:
        """Take note that the sandbox is gone and the interpreter with it."""
        if self.state in ("starting", "ready"):
            self.last_death = death
        self._set("exited")

    async def _exited(self, header: Mapping[str, Any]) -> None:
        code, number = header.get("exit_code"), header.get("signal")
        death = interpreter_death(code, number, stopper=self._stopper, violation=self._violation)
        ended = f"it was ended by {death.signal}" if death.signal else f"it ended with exit code {code}"
        if death.kind == "signal" and death.signal == "SIGKILL":
            # Nobody here killed it: ask the mechanism whether a limit did.
            explained = await self._explain(-number if number else None)
            reached = limit_reached(explained, self._limits()) if explained is not None else ""
            if explained is not None and reached:
                said = (f"The interpreter was ended because {reached}.", explained.advice, LOST_VARIABLES)
                text = " ".join(filter(None, said))
                death = explained.model_copy(update={"what": "interpreter", "message": text})
                ended = f"it was ended because {reached}"
        self.start_failure = str(header.get("reason") or f"{ended}.")[:1000]
        self.last_death = death
        was_ready = self.state == "ready"
        self._set("exited")
        self._on_exit(death, was_ready)

    def _set(self, state: InterpreterState) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()
