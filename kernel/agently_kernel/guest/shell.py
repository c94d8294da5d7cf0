"""The interpreter process: reads requests, runs cells on the main thread, keeps an event loop turning between them.

A reader thread takes frames from init. Cells, completion and inspection run on the main thread, as callbacks of its
event loop, so that tasks of earlier cells go on while nothing else runs. SIGINT raises KeyboardInterrupt in code of the
user only: in a cell, or between cells in what a Stop finds there.
"""

from __future__ import annotations

import abc
import asyncio
import contextvars
import hashlib
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple, Union

from . import bundles
from .asyncrun import allow_nested_run, at_home, home
from .between import BetweenCells, disarm
from .c_output import flush_c_library
from .channel import Channel
from .loops import StopsHeld, exit_code, make_own, private_loop
from .needs import Needs
from .packages import make_installable
from .patience import Patience
from .reserve import Reserve
from .services import Outcome, Request, Services
from .streams import Router, text_of
from .subshells import Awaiting, Home, Subshells
from .threads import ThreadRoom
from .vital import VitalBuiltins

COMM_PATIENCE_SECONDS = 0.02
Frame = Tuple[Dict[str, Any], bytes]


class Engine(abc.ABC):
    """What a kind of interpreter offers to the shell. ``comm`` is called on any thread, ``execute`` and ``stopped`` on
    that of the cell's subshell, everything else on the main thread."""

    mode = "plain"
    info: Dict[str, Any] = {}

    @abc.abstractmethod
    def execute(self, source: str, request: Request) -> Union[Outcome, Awaiting]:
        """Run a cell; what makes the coroutine of one that awaits. Errors are shown through the services."""

    @abc.abstractmethod
    def stopped(self) -> None:
        """The task of an awaiting cell is going to be cancelled because the user pressed Stop."""

    @abc.abstractmethod
    def complete(self, code: str, cursor: int) -> Dict[str, Any]:
        """Return the content of a complete_reply."""

    @abc.abstractmethod
    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, Any]:
        """Return the content of an inspect_reply."""

    @abc.abstractmethod
    def is_complete(self, code: str) -> Dict[str, Any]:
        """Return the content of an is_complete_reply."""

    @abc.abstractmethod
    def history(self, query: Dict[str, Any]) -> Dict[str, Any]:
        """Return the content of a history_reply."""

    @abc.abstractmethod
    def comm(self, header: Dict[str, Any], payload: bytes) -> None:
        """Deliver a comm message of the front end."""


class Shell(Home):
    """Owns the event loop, the reader thread, the running cell and the subshells."""

    def __init__(
        self, channel: Channel, router: Router, services: Services, engine: Engine, needs: Needs,
        room: Optional[ThreadRoom] = None,
    ) -> None:
        self._needs = needs
        self._room = room
        self._channel = channel
        self._router = router
        self._services = services
        self._engine = engine
        self._vital = VitalBuiltins()
        self._patience = Patience()
        services.repair = self._put_back
        self._context = contextvars.copy_context()
        self._loop = private_loop()
        self._between = BetweenCells(__file__)
        self._reserve = Reserve()
        self._stops_held = StopsHeld()
        self._forking = threading.local()  # `task`: the one that forks, or None
        self._queue: Deque[Request] = deque()
        self._task: Optional["asyncio.Task[Outcome]"] = None
        self._running = False
        self._stops = 0
        self._exiting = False
        self._comms: Deque[Frame] = deque()
        self._comm_lock = threading.Lock()
        self._comm_arrived = threading.Event()
        self._subshells = Subshells(self)

    def serve(self) -> None:
        """Serve until init says exit or is gone."""
        at_home(self._loop)
        allow_nested_run()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._stops_held.end, after_in_child=self._in_child
        )
        disarm(self._between.handler)
        for name, target in (("channel reader", self._read), ("comm messages", self._deliver_comms)):
            threading.Thread(target=target, name=name, daemon=True).start()
        info = dict(self._engine.info, python="%d.%d.%d" % sys.version_info[:3])
        self._router.send({"op": "ready", "mode": self._engine.mode, "info": info})
        while not self._exiting:
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                self.end_if_forked(error)  # raised by a task or callback of the user: it ends that alone
                self._between.told()
            else:
                self.end_if_forked(None)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """The reader thread: answers to ``input`` are delivered at once, everything else goes to the main thread."""
        try:
            for header, payload in self._channel.frames():
                op = header["op"]
                if op == "input_reply":
                    self._services.answer(payload.decode("utf-8", "replace"))
                elif op == "input_refused":
                    self._services.answer(None, header["reason"])
                elif op == "need_reply":
                    self._needs.answer(header["path"], header["ok"])
                elif op == "stop_idle":
                    if not self._running:
                        self._between.stop()
                elif op == "give_up":
                    self._patience.give_up(header["request"])
                elif op == "execute" and header["options"].get("subshell"):
                    self._subshells.execute(Request.of(header))
                elif op == "stop":
                    self._subshells.stop(header["cell"])
                elif op == "subshell":
                    self._set_up(header["id"], header["open"])
                elif op == "comm":
                    self._comms.append((header, payload))
                    self._comm_arrived.set()
                    self._loop.call_soon_threadsafe(self._take_comms)
                else:
                    self._loop.call_soon_threadsafe(self._request, header, payload)
        finally:
            os._exit(1)  # init is gone, or has sent what it never sends

    def _request(self, header: Dict[str, Any], payload: bytes) -> None:
        if not self._channel.open:
            return  # it was waiting when a task forked this child, and is the parent's
        op = header["op"]
        if op == "execute":
            self._queue.append(Request.of(header))
            self._next()
        elif op == "exit":
            self._exiting = True
            self._loop.stop()
        elif op == "environ":
            _set_variables(header["set"])
        elif op == "history":
            self._answer(header, self._engine.history, header["query"])
        else:
            code = payload.decode("utf-8", "replace")
            if op == "complete":
                self._answer(header, self._engine.complete, code, header["cursor_pos"])
            elif op == "inspect":
                self._answer(header, self._engine.inspect, code, header["cursor_pos"], header["detail_level"])
            elif op == "is_complete":
                self._answer(header, self._engine.is_complete, code)

    def _answer(self, header: Dict[str, Any], function: Callable[..., Dict[str, Any]], *args: Any) -> None:
        """Reply to a request whatever the user's objects do meanwhile."""
        try:
            with self._patience.question(header["request"]):
                content = self._context.copy().run(function, *args)
        except BaseException as error:
            content = {"status": "error", "ename": type(error).__name__, "evalue": text_of(error, ""), "traceback": []}
        self._services.send({"op": "reply", "request": header["request"]}, bundles.dumps(content))

    def _take_comms(self) -> None:
        """Deliver waiting comm messages in order: on the main thread, or on the other one while a cell keeps that
        busy."""
        with self._comm_lock:
            while self._comms and self._channel.open:
                header, payload = self._comms.popleft()
                try:
                    with self._between.delivering():
                        self._engine.comm(header, payload)
                except BaseException:
                    traceback.print_exc()

    def _deliver_comms(self) -> None:
        while True:
            self._comm_arrived.wait()
            self._comm_arrived.clear()
            time.sleep(COMM_PATIENCE_SECONDS)
            self._take_comms()

    # -- forked children -----------------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        self._stops_held.begin()
        loop = home()
        running = loop is not None and asyncio._get_running_loop() is loop
        self._forking.task = asyncio.current_task(loop) if running else None

    def _in_child(self) -> None:
        """Let a forked child end with the code that forked it: never must a second interpreter serve this loop.

        A cell that does not await ends it in ``_finish``, as it ends an awaiting cell that forked; all else here.
        """
        try:
            self._leave_parents_loop()
        finally:
            self._stops_held.end()

    def _leave_parents_loop(self) -> None:
        self._comm_lock = threading.Lock()
        loop = home()
        if loop is None:
            return  # forked by a thread of the user, with which the child ends
        try:
            make_own(loop)
        except OSError:
            pass  # no descriptors are left: it cannot await, and needs to only if its code does
        task, beside = self._forking.task, self._subshells.here()
        if beside.runs(task) if beside is not None else self._running and self._task in (None, task):
            return
        if task is None:
            loop.stop()
        else:
            task.add_done_callback(self._end_with_task)

    def _end_with_task(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            traceback.print_exception(type(error), error, error.__traceback__)
        self.end_if_forked(error)

    def end_if_forked(self, error: Optional[BaseException]) -> None:
        if self._channel.open:
            return
        code = 1
        try:
            disarm()
            code = exit_code(error)
            flush_c_library()
            self._router.flush()
        finally:
            os._exit(code)

    # -- cells ---------------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Run the next cell that waits, unless one runs."""
        while self._queue and not self._running:
            self._running = True
            self._context.run(self._begin, self._queue.popleft())

    def _begin(self, request: Request) -> None:
        outcome: Optional[Outcome] = None
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._router.begin(request.cell)
            self._services.allow_stdin = request.allow_stdin
            self._router.send({"op": "busy", "cell": request.cell})
            if self._room is not None:
                self._room.make()  # threads of earlier cells have ended
            result = self._execute(request)
            if isinstance(result, Outcome):
                outcome = result
            else:
                self._start_task(result, request)
        except BaseException as error:
            self._put_back()
            disarm(self._between.handler)
            outcome = self._failed(error)
        if outcome is not None:
            self._finish(request, outcome)

    def _execute(self, request: Request) -> Union[Outcome, Awaiting]:
        source = _verified(request, self._reserve)
        self._services.sources.add(request.path, source)
        return self._engine.execute(source, request)

    def _start_task(self, awaiting: Awaiting, request: Request) -> None:
        self._stops = 0
        signal.signal(signal.SIGINT, self._stop_task)
        extra: Dict[str, Any] = {"context": self._context} if sys.version_info >= (3, 11) else {}
        self._task = task = self._loop.create_task(awaiting(), **extra)
        if self._stops:  # it came before there was anything to cancel
            self._engine.stopped()
            task.cancel()

        def ended(_: Any) -> None:
            disarm(self._between.handler)
            self._put_back()
            self._task = None
            error = None if task.cancelled() else task.exception()
            if task.cancelled() or error is not None:
                outcome = self._failed(error or KeyboardInterrupt())
            else:
                outcome = task.result()
            self._context.run(self._finish, request, outcome)
            self._next()

        task.add_done_callback(ended)

    def _stop_task(self, signum: int, frame: Optional[types.FrameType]) -> None:
        """SIGINT while a cell awaits: raise in its own code, cancel it where it waits."""
        task = self._task
        self._stops += 1
        if task is None:
            return
        self._engine.stopped()
        current = asyncio.current_task(self._loop) if asyncio._get_running_loop() is self._loop else None
        if current is task or (current is not None and self._stops > 1):
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(task.cancel)

    def _put_back(self) -> None:
        """Undo what a cell did to built-in names that the interpreter itself needs, and say so."""
        replaced = self._vital.restore()
        if replaced:
            self._router.flush()
            text = "[agently] built-in names that the interpreter itself needs were replaced, and put back: %s\n"
            os.write(2, (text % ", ".join(replaced[:8])).encode("utf-8", "replace"))

    def _failed(self, error: BaseException) -> Outcome:
        """Show an exception that the engine did not show."""
        lines = traceback.format_exception_only(type(error), error)
        self._services.error(type(error).__name__, text_of(error, ""), [line.rstrip("\n") for line in lines])
        return Outcome(False, {}, error)

    def _finish(self, request: Request, outcome: Outcome) -> None:
        disarm(self._between.handler)
        self._tell_end(request, outcome)
        self._router.end()
        self._running = False

    def _tell_end(self, request: Request, outcome: Outcome) -> None:
        self.end_if_forked(outcome.error)
        self._put_back()
        flush_c_library()
        self._router.flush()
        header = {"op": "done", "cell": request.cell, "status": "ok" if outcome.ok else "error"}
        if not self._services.send(header, bundles.dumps(outcome.reply)):
            self._services.send(header, b"{}")

    # -- cells of subshells (Home) -------------------------------------------------------------------------------------

    def _set_up(self, subshell: str, wanted: bool) -> None:
        try:
            self._subshells.open(subshell) if wanted else self._subshells.close(subshell)
        except Exception:
            pass  # such as no more threads: the first cell for it says so

    def run(self, request: Request) -> Union[Outcome, Awaiting]:
        self._services.beside[request.cell] = request.subshell
        self._router.belong_to(request.cell)
        return self._execute(request)

    def stopped(self) -> None:
        self._engine.stopped()

    def failed(self, error: BaseException) -> Outcome:
        self._put_back()
        return self._failed(error)

    def finished(self, request: Request, outcome: Outcome) -> None:
        self._tell_end(request, outcome)
        self._services.beside.pop(request.cell, None)

    def refused(self, request: Request, reason: str) -> None:
        error = {"ename": "RuntimeError", "evalue": reason, "traceback": ["RuntimeError: " + reason]}
        self._services.send({"op": "error", "cell": request.cell}, bundles.dumps(error))
        self._tell_end(request, Outcome(False, {}))


def _set_variables(variables: Dict[str, Any]) -> None:
    """Set variables of the environment, and let urllib look at them again: it keeps the first opener that it made."""
    os.environ.update({name: value for name, value in variables.items() if isinstance(value, str)})
    urllib_request = sys.modules.get("urllib.request")
    if urllib_request is not None:
        urllib_request.__dict__["_opener"] = None
    make_installable()


def _verified(request: Request, reserve: Reserve) -> str:
    """Return the source of a cell after comparing its digest. Raises RuntimeError when it is not what the host
    named."""
    data = reserve.read(request.path)
    found = hashlib.sha256(data).hexdigest()
    if found != request.digest.rpartition(":")[2]:
        raise RuntimeError(
            "The source of this cell is not the one that was submitted: its digest is sha256:%s, expected %s."
            % (found, request.digest)
        )
    return data.decode("utf-8")
