"""How a running execution is stopped: like the ordinary kernel does, then by force, and always to the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from agently_kernel.contract.errors import SandboxDied, SandboxError
from agently_kernel.sandbox.activity import Activity, CellRun
from agently_kernel.sandbox.deaths import LOST_VARIABLES, Stopper
from agently_kernel.sandbox.resident import Resident
from agently_kernel.sandbox.session import GuestSession
from agently_kernel.sandbox.steps import PlanRun

log = logging.getLogger(__name__)

KILL_DEADLINE = 2.0
AGAIN = 0.6
"""Part of the grace time after which the interrupt is sent once more: Python swallows one that breaks into a
finaliser or a callback, and that must not cost the variables."""
SILENCE = 0.2
"""Seconds without a byte from a guest that is listened to, after which nothing of it waits any more."""
GOES_ON = (
    "The cell goes on: it waits in a subshell, where a Stop does not reach it. Stop once more to end the interpreter, "
    "at the cost of all variables."
)
BACKLOG_DEADLINE = 5.0
"""Seconds until what a cell had shown before its Stop must have been taken; the grace time counts from there."""


class TaskKeeper:
    """Owns the small tasks of one resource; :meth:`end` cancels and awaits them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start *work*; an exception that it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task of a sandbox failed", exc_info=error)

    async def end(self) -> None:
        """Cancel all tasks and wait until they are over."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Stops:
    """The ladder: interrupt, grace time, kill of the interpreter (or step), kill of the sandbox."""

    def __init__(self, session: GuestSession, resident: Resident, tasks: TaskKeeper, grace: float) -> None:
        self._session = session
        self._resident = resident
        self._tasks = tasks
        self.grace = grace
        self.sandbox_stopper: Stopper | None = None
        """Why we ended the sandbox, when we did."""

    def begin(self, run: Activity, stopper: Stopper) -> None:
        """Begin to stop *run*; harmless when that has begun or it is over."""
        if run.stopper is None and not run.finished.done():
            run.stopper = stopper
            run.ladder = self._tasks.add(self._climb(run, stopper))

    async def begin_and_wait(self, run: Activity) -> None:
        """Stop an execution whose caller has been cancelled, and wait until it is over."""
        run.insisted = True
        self.begin(run, "stopped_by_user")
        if run.ladder is not None:
            await asyncio.wait({run.ladder}, timeout=BACKLOG_DEADLINE + self.grace + 3 * KILL_DEADLINE)

    def end_sandbox(self, stopper: Stopper) -> None:
        """End the sandbox at once, for this reason."""
        self.sandbox_stopper = stopper
        self._session.kill()

    @staticmethod
    def signal(run: CellRun) -> dict[str, Any]:
        """Return the message that interrupts *run*: no signal reaches the thread of a subshell."""
        return {"op": "stop", "cell": run.cell} if run.subshell else {"op": "interrupt"}

    async def send_quietly(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send what loses its meaning when the guest is gone."""
        with contextlib.suppress(SandboxError):
            await self._session.send(header, payload)

    async def _climb(self, run: Activity, stopper: Stopper) -> None:
        done = True
        with contextlib.suppress(SandboxDied):  # it has ended: that is what was wanted
            if isinstance(run, CellRun):
                done = await self._stop_cell(run, stopper)
            elif isinstance(run, PlanRun):
                self._hurry(run)
                done = await run.kill_step(KILL_DEADLINE)
        if not done:
            self.end_sandbox(stopper)

    def _hurry(self, run: Activity) -> None:
        """Take all that comes from here on, the end above all, and show of it what would still be seen."""
        run.begin_backlog()
        self._session.hurry(True)

    async def _catch_up(self, run: Activity) -> None:
        """Return when what the guest had sent before the Stop has been taken: it is not to blame for what waited."""
        pong = asyncio.ensure_future(self._session.request({"op": "ping"}, timeout=BACKLOG_DEADLINE))
        waits: set[asyncio.Future[Any]] = {pong, run.finished}
        try:
            while not (pong.done() or run.finished.done() or self._session.silent > SILENCE):
                await asyncio.wait(waits, timeout=SILENCE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pong.cancel()
            await asyncio.gather(pong, return_exceptions=True)

    async def _stop_cell(self, run: CellRun, stopper: Stopper) -> bool:
        run.drop_input()
        if not run.sent:
            run.finish()  # the cell has not begun; its interpreter goes on to start
            return True
        self._hurry(run)
        await self._session.send(self.signal(run))
        await self._catch_up(run)
        if await run.wait(AGAIN * self.grace):
            return True
        await self._session.send(self.signal(run))
        if await run.wait((1 - AGAIN) * self.grace):
            return True
        if run.subshell and stopper == "stopped_by_user" and not run.insisted:
            run.notice(GOES_ON)
            run.insisted, run.stopper = True, None  # the next Stop is not content with that
            run.end_backlog()
            self._session.hurry(False)
            return True
        why = "after you stopped it" if stopper == "stopped_by_user" else "after its time limit"
        run.notice(
            f"The cell did not end within {self.grace:g} s {why}; its interpreter is being ended. {LOST_VARIABLES}"
        )
        if await self._resident.kill(stopper, KILL_DEADLINE) and await run.wait(KILL_DEADLINE):
            return True
        run.notice("The interpreter could not be ended; the whole sandbox is being ended.")
        return False
