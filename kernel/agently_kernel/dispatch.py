"""How requests are taken: one cell after the other, questions about the kernel meanwhile, and Stop at any moment.

ipykernel's base takes one request of the shell channel at a time. What is different here: a long cell is overtaken by
questions, a Stop comes as a message (on the control channel, which has a thread of its own) and finds what runs, what
is being asked, or the cell that was sent before it and is still on its way.
"""

from __future__ import annotations

import abc
import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar

import zmq
from ipykernel.kernelbase import Kernel

from agently_kernel.introspection import busy_reply

T = TypeVar("T")

MAIN_LOOP_SECONDS = 10.0
"""How long a request on the control channel waits for the main loop, which is never blocked for long."""
PATIENCE = 1.0
"""Seconds that a completion or inspection waits for the running cell before it is answered with nothing."""
LONG_CELL = 0.7
"""Age in seconds from which a running cell is overtaken by questions about the kernel; before, order is kept."""
_COMMS = ("comm_open", "comm_msg", "comm_close")
_WHILE_BUSY = ("kernel_info_request", "comm_info_request")
_IMPATIENT = {"complete_request": "complete", "inspect_request": "inspect", "is_complete_request": "is_complete"}
TURNS = 10
"""Turns of the main loop that a request which has just been read needs at most until its cell is known here."""


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


class Dispatch(Kernel):  # type: ignore[misc]
    """The part of a kernel that takes requests. It is made on the main thread."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.running: RunningCell | None = None
        self.main_loop: asyncio.AbstractEventLoop = asyncio.get_event_loop_policy().get_event_loop()
        self._main_thread = threading.current_thread()
        self._abort_task: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def stop_running(self, running: RunningCell) -> None:
        """Stop the running cell."""

    @abc.abstractmethod
    async def drop_questions(self) -> None:
        """Answer with nothing what the interpreter is being asked."""

    @abc.abstractmethod
    async def stop_questions(self) -> None:
        """End what the interpreter is being asked, whatever that costs it."""

    async def on_main(self, work: Coroutine[Any, Any, T], seconds: float = MAIN_LOOP_SECONDS) -> T:
        """Run *work* on the main loop, from whichever thread serves the request. Raises asyncio.TimeoutError."""
        if threading.current_thread() is self._main_thread:
            return await work
        future = asyncio.run_coroutine_threadsafe(work, self.main_loop)
        return await asyncio.wait_for(asyncio.wrap_future(future), seconds)

    # -- what ipykernel's base would do otherwise ----------------------------------------------------------------------

    def pre_handler_hook(self) -> None:
        """Nothing: the base installs a SIGINT handler here that kills a kernel which awaits."""

    def post_handler_hook(self) -> None:
        """Nothing; see :meth:`pre_handler_hook`."""

    async def shell_main(self, subshell_id: str | None, msg: Any) -> None:
        """Take one message of the shell channel; some kinds are answered although a cell is running."""
        lock = self._main_asyncio_lock
        if lock.locked() and self.session is not None:
            try:
                ident, frames = self.session.feed_identities(msg, copy=False)
                kind = self.session.deserialize(frames, content=False, copy=False)["header"]["msg_type"]
            except Exception:
                kind = ""  # the base reports what is wrong with it
            if kind in _COMMS and self.running is not None:
                # ipykernel 7.4 does so too; before, a cell that awaits would never hear of it
                await self._comm_now(ident, frames)
                return
            if kind == "execute_request" and self.running is None:
                await self._before_cell(subshell_id, msg)
                return
            if kind in _WHILE_BUSY or kind in _IMPATIENT:
                began = self.running.started if self.running is not None else 0.0
                patience = began + LONG_CELL - time.monotonic() if kind in _WHILE_BUSY else PATIENCE
                try:
                    await asyncio.wait_for(lock.acquire(), max(0.0, patience))
                except asyncio.TimeoutError:
                    await self._answer_now(ident, frames, kind)
                    return
                lock.release()
        await super().shell_main(subshell_id, msg)

    async def _comm_now(self, ident: Any, frames: Any) -> None:
        """Take a comm message while something else is being answered."""
        try:
            parent = self.session.deserialize(frames, content=True, copy=False)
        except Exception:
            self.log.error("Invalid Message", exc_info=True)
            return
        await self.shell_handlers[parent["header"]["msg_type"]](self.shell_stream, ident, parent)

    async def _before_cell(self, subshell_id: str | None, msg: Any) -> None:
        """Take a cell that waits for a question: objects of the user may take for ever to answer that."""
        hurry = self.main_loop.create_task(self._hurry_questions())
        try:
            await super().shell_main(subshell_id, msg)
        finally:
            hurry.cancel()

    async def _hurry_questions(self) -> None:
        await asyncio.sleep(PATIENCE)
        if self.running is None:
            await self.drop_questions()

    async def _answer_now(self, ident: Any, frames: Any, kind: str) -> None:
        """Answer with an explicit parent, because the current one is the running cell's; then show busy again."""
        try:
            parent = self.session.deserialize(frames, content=True, copy=False)
        except Exception:
            self.log.error("Invalid Message", exc_info=True)
            return
        self._publish_status("busy", "shell", parent)
        try:
            if kind in _WHILE_BUSY:
                await self.shell_handlers[kind](self.shell_stream, ident, parent)
            else:
                content = busy_reply(_IMPATIENT[kind], parent["content"])
                self.session.send(self.shell_stream, kind.replace("_request", "_reply"), content, parent, ident)
        finally:
            self._publish_status("idle", "shell", parent)
            if self.running is not None:
                self._publish_status("busy", "shell", dict(self.running.parent))

    async def subshell_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Say that there are no subshells, which kernel_info does not offer either."""
        kind = parent["header"]["msg_type"].replace("_request", "_reply")
        reason = "This kernel has no subshells; questions about it are answered while a cell runs without one."
        content = {"status": "error", "ename": "NotSupported", "evalue": reason, "traceback": []}
        self.session.send(stream, kind, content, parent, ident=ident)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """Abort the execute requests that are queued now, and only those.

        Queued requests wait for the lock in order. The end of aborting is put behind the last of them; the base's way,
        a callback of the next loop turn, ends it after the first.
        """
        if threading.current_thread() is not self._main_thread:
            self.main_loop.call_soon_threadsafe(self._abort_queues)
            return
        self._aborting = True
        if self.shell_stream is not None:
            self.shell_stream.flush()

        async def stop_aborting() -> None:
            if self.stop_on_error_timeout:
                await asyncio.sleep(self.stop_on_error_timeout)
            async with self._main_asyncio_lock:
                self._aborting = False

        task = asyncio.get_running_loop().create_task(stop_aborting())
        self._abort_task = task  # the loop itself keeps no strong reference

    # -- Stop ----------------------------------------------------------------------------------------------------------

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Stop the running cell, or a question that the interpreter does not answer; harmless when there is nothing."""
        content: dict[str, Any] = {"status": "ok"}
        try:
            await self.on_main(self._interrupt(parent["header"]))
        except Exception as error:
            self.log.exception("Stop could not be passed on")
            content = {"status": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": []}
        self.session.send(stream, "interrupt_reply", content, parent, ident=ident)

    async def _interrupt(self, stop: Mapping[str, Any]) -> None:
        """Do what the Stop with this message header means."""
        running = self.running or await self._just_sent()
        if running is None or running.task is None:
            await self.stop_questions()
        elif not _was_sent_after(running.parent["header"], stop):
            await self.stop_running(running)

    async def _just_sent(self) -> RunningCell | None:
        """Begin the cell that has come and was not read yet, if there is one, and return it.

        Stop and cells come on different channels, so a Stop may overtake its cell; while the kernel is loaded it does.
        """
        if self._main_asyncio_lock.locked() or self.shell_stream is None:
            return None
        self.shell_stream.flush(zmq.POLLIN)
        for _ in range(TURNS):
            if self.running is not None:
                return self.running
            await asyncio.sleep(0)
        return None


def _was_sent_after(cell: Mapping[str, Any], stop: Mapping[str, Any]) -> bool:
    """True when the header of a cell says that it was sent after a Stop.

    Two clocks may have dated them. A date that lies in the future here is of a clock that is fast, and says nothing: a
    Stop that is lost is worse than one that comes too soon.
    """
    try:
        return bool(stop["date"] < cell["date"] <= datetime.now(timezone.utc))
    except (KeyError, TypeError):  # one has no date, or none with a time zone
        return False
