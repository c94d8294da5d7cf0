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
from datetime import datetime, timezone
from typing import Any, TypeVar

import zmq
from ipykernel.kernelbase import Kernel
from jupyter_client.session import DELIM

from agently_kernel.introspection import busy_reply
from agently_kernel.subshells import RunningCell, Subshell, Subshells, UnknownSubshellError

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
GONE = (
    "The subshell that this cell was sent to is not there: it was deleted, or the kernel was started anew. The cell "
    "did not run; open the console anew."
)
TURNS = 10
"""Turns of the main loop that a request which has just been read needs at most until its cell is known here."""


class Dispatch(Kernel):  # type: ignore[misc]
    """The part of a kernel that takes requests. It is made on the main thread."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.subshells = Subshells(Subshell(None, self._main_asyncio_lock))
        self.main_loop: asyncio.AbstractEventLoop = asyncio.get_event_loop_policy().get_event_loop()
        self._main_thread = threading.current_thread()
        self._abort_tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> RunningCell | None:
        """A cell that runs, the main shell's before those of subshells."""
        return next(iter(self.subshells.running), None)

    @abc.abstractmethod
    async def stop_running(self, cells: Sequence[RunningCell]) -> None:
        """Stop running cells: the main shell's, or all those of subshells."""

    @abc.abstractmethod
    async def set_up_subshell(self, name: str, wanted: bool) -> None:
        """Make a subshell in the interpreter, or end it."""

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
        shell = self.subshells.main
        if self.session is None or not (shell.lock.locked() or _may_name_subshell(msg)):
            await super().shell_main(None, msg)
            return
        try:
            ident, frames = self.session.feed_identities(msg, copy=False)
            header = self.session.deserialize(frames, content=False, copy=False)["header"]
        except Exception:
            await super().shell_main(None, msg)  # the base reports what is wrong with it
            return
        kind = header["msg_type"]
        beside = header.get("subshell_id") is not None
        if kind in _COMMS and (beside or shell.running is not None):
            # ipykernel 7.4 does so too; before, a cell that awaits would never hear of it. The interpreter hears of all
            # in one place: also what is sent to a subshell that a restart of the front end has left behind.
            await self._comm_now(ident, frames, status=beside)
            return
        try:
            shell = self.subshells.of(header.get("subshell_id"))
        except UnknownSubshellError as error:
            self._refuse(ident, frames, error)
            return
        main = shell is self.subshells.main
        if main and kind == "execute_request" and shell.lock.locked() and shell.running is None:
            await self._before_cell(msg)
            return
        if shell.lock.locked() and (kind in _WHILE_BUSY or kind in _IMPATIENT):
            began = shell.running.started if shell.running is not None else 0.0
            patience = began + LONG_CELL - time.monotonic() if kind in _WHILE_BUSY else PATIENCE
            try:
                await asyncio.wait_for(shell.lock.acquire(), max(0.0, patience))
            except asyncio.TimeoutError:
                await self._answer_now(ident, frames, kind, shell)
                return
            shell.lock.release()
        if main:
            await super().shell_main(None, msg)
        else:
            # A task has a context of its own, and the base keeps there which request is being answered.
            await self.main_loop.create_task(self._serve(shell, ident, frames))

    async def _serve(self, shell: Subshell, ident: Any, frames: Any) -> None:
        """Answer one request of a subshell, after those before it."""
        async with shell.lock:
            if shell.deleted:
                self._refuse(ident, frames, UnknownSubshellError(shell.id))
                return
            parent = self._whole(frames)
            if parent is None:
                return
            self.set_parent(ident, parent, channel="shell")
            self._publish_status("busy", "shell", parent)
            try:
                kind = parent["header"]["msg_type"]
                handler = self.shell_handlers.get(kind)
                if handler is None:
                    self.log.warning("Unknown message type: %r", kind)
                elif kind == "execute_request" and shell.aborting:
                    self._send_abort_reply(self.shell_stream, parent, ident)
                else:
                    await handler(self.shell_stream, ident, parent)
            except Exception:
                self.log.exception("a request of a subshell could not be answered")
            finally:
                self._publish_status("idle", "shell", parent)

    def _whole(self, frames: Any) -> dict[str, Any] | None:
        """Return the message in *frames*; None, and a line in the log, when it is not valid."""
        try:
            message: dict[str, Any] = self.session.deserialize(frames, content=True, copy=False)
        except Exception:
            self.log.error("Invalid Message", exc_info=True)
            return None
        return message

    def _refuse(self, ident: Any, frames: Any, error: UnknownSubshellError) -> None:
        """Answer a request for a subshell that is not there; a client waits for the status messages too."""
        parent = self._whole(frames)
        if parent is None:
            return
        self._publish_status("busy", "shell", parent)
        content = {"status": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": []}
        kind = parent["header"]["msg_type"].replace("_request", "_reply")
        self.session.send(self.shell_stream, kind, content, parent, ident=ident)
        if kind == "execute_reply":  # of which front ends show nothing
            name = type(error).__name__
            shown = {"ename": name, "evalue": GONE, "traceback": [f"{name}: {GONE}"]}
            self.session.send(self.iopub_socket, "error", shown, parent, ident=self._topic("error"))
        self._publish_status("idle", "shell", parent)

    async def _comm_now(self, ident: Any, frames: Any, *, status: bool) -> None:
        """Take a comm message while something else is being answered; *status*: say busy and idle for it."""
        parent = self._whole(frames)
        if parent is None:
            return
        if status:
            self._publish_status("busy", "shell", parent)
        try:
            await self.shell_handlers[parent["header"]["msg_type"]](self.shell_stream, ident, parent)
        finally:
            if status:
                self._publish_status("idle", "shell", parent)

    async def _before_cell(self, msg: Any) -> None:
        """Take a cell that waits for a question: objects of the user may take for ever to answer that."""
        hurry = self.main_loop.create_task(self._hurry_questions())
        try:
            await super().shell_main(None, msg)
        finally:
            hurry.cancel()

    async def _hurry_questions(self) -> None:
        await asyncio.sleep(PATIENCE)
        if self.subshells.main.running is None:
            await self.drop_questions()

    async def _answer_now(self, ident: Any, frames: Any, kind: str, shell: Subshell) -> None:
        """Answer with an explicit parent, because the current one is the running cell's; then show busy again."""
        parent = self._whole(frames)
        if parent is None:
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
            if shell.running is not None:
                self._publish_status("busy", "shell", dict(shell.running.parent))

    async def subshell_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Make, delete or list subshells."""
        kind = parent["header"]["msg_type"].replace("_request", "_reply")
        content: dict[str, Any]
        try:
            told = await self.on_main(self._change_subshells(kind, parent["content"]))
            content = {"status": "ok", **told}
        except Exception as error:
            content = {"status": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": []}
        self.session.send(stream, kind, content, parent, ident=ident)

    async def _change_subshells(self, kind: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "list_subshell_reply":
            return {"subshell_id": self.subshells.ids}
        if kind == "create_subshell_reply":
            name = self.subshells.create()
            await self.set_up_subshell(name, True)
            return {"subshell_id": name}
        name = str(wanted.get("subshell_id"))
        self.subshells.delete(name)
        await self.set_up_subshell(name, False)
        return {}

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """Abort the execute requests that are queued now in a subshell, or in the main shell, and only those.

        Queued requests wait for the lock in order. The end of aborting is put behind the last of them; the base's way,
        a callback of the next loop turn, ends it after the first.
        """
        if threading.current_thread() is not self._main_thread:
            self.main_loop.call_soon_threadsafe(self._abort_queues, subshell_id)
            return
        try:
            shell = self.subshells.of(subshell_id)
        except UnknownSubshellError:
            return  # deleted meanwhile, and with it all that waited
        self._set_aborting(shell, True)
        if self.shell_stream is not None:
            self.shell_stream.flush()

        async def stop_aborting() -> None:
            if self.stop_on_error_timeout:
                await asyncio.sleep(self.stop_on_error_timeout)
            async with shell.lock:
                self._set_aborting(shell, False)

        task = asyncio.get_running_loop().create_task(stop_aborting())
        self._abort_tasks.add(task)  # the loop itself keeps no strong reference
        task.add_done_callback(self._abort_tasks.discard)

    def _set_aborting(self, shell: Subshell, aborting: bool) -> None:
        shell.aborting = aborting
        if shell is self.subshells.main:
            self._aborting = aborting  # the base looks here

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
        running = self.subshells.main.running or await self._just_sent()
        cells = self.subshells.running if running is None else (running,)
        begun = [cell for cell in cells if cell.task is not None]
        meant = [cell for cell in begun if not _was_sent_after(cell.parent["header"], stop)]
        if meant:
            await self.stop_running(meant)
        else:  # a cell that came after it may be waiting for what it is meant for
            await self.stop_questions()

    async def _just_sent(self) -> RunningCell | None:
        """Begin the cell that has come and was not read yet, if there is one, and return it.

        Stop and cells come on different channels, so a Stop may overtake its cell; while the kernel is loaded it does.
        """
        if self._main_asyncio_lock.locked() or self.shell_stream is None:
            return None
        self.shell_stream.flush(zmq.POLLIN)
        for _ in range(TURNS):
            if self.subshells.main.running is not None:
                return self.subshells.main.running
            await asyncio.sleep(0)
        return None


def _may_name_subshell(msg: Sequence[zmq.Frame]) -> bool:
    """True when the header of a message as it came may name a subshell; cheap, for every message is asked."""
    for at, frame in enumerate(msg):
        if frame.bytes == DELIM:
            return len(msg) > at + 2 and b"subshell_id" in msg[at + 2].bytes
    return False


def _was_sent_after(cell: Mapping[str, Any], stop: Mapping[str, Any]) -> bool:
    """True when the header of a cell says that it was sent after a Stop.

    Two clocks may have dated them. A date that lies in the future here is of a clock that is fast, and says nothing: a
    Stop that is lost is worse than one that comes too soon.
    """
    try:
        return bool(stop["date"] < cell["date"] <= datetime.now(timezone.utc))
    except (KeyError, TypeError):  # one has no date, or none with a time zone
        return False
