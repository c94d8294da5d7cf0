"""Subshells: threads that run cells beside the main one, as `kernel subshells` of the Jupyter message protocol 5.5.

Each has an event loop of its own and takes its cells in order. What a cell of one shows is sent as text and displays
that name it, because descriptors 1 and 2 belong to the cell of the main thread. SIGINT reaches the main thread only, so
a Stop cancels what awaits, and raises KeyboardInterrupt in what runs, as soon as Python code of it runs again.
"""

from __future__ import annotations

import abc
import asyncio
import codecs
import contextvars
import select
import subprocess
import sys
import threading
from collections import deque
from typing import Any, Callable, Coroutine, Deque, Dict, List, Optional, Union

from .asyncrun import at_home, leave_home
from .loops import private_loop
from .services import Outcome, Request

LOOK_SECONDS = 0.1
"""How often a thread that waits for a child lets a Stop break in."""
Awaiting = Callable[[], Coroutine[Any, Any, Outcome]]


class Home(abc.ABC):
    """What a subshell needs of the interpreter that it is one of."""

    @abc.abstractmethod
    def run(self, request: Request) -> Union[Outcome, Awaiting]:
        """Run a cell on the calling thread; return its Outcome, or what makes the coroutine of one that awaits."""

    @abc.abstractmethod
    def stopped(self) -> None:
        """The task of the calling thread's cell is going to be cancelled because the user pressed Stop."""

    @abc.abstractmethod
    def failed(self, error: BaseException) -> Outcome:
        """Show an exception that was not shown, and return what the cell came to."""

    @abc.abstractmethod
    def finished(self, request: Request, outcome: Outcome) -> None:
        """Tell the host how a cell ended. In a child that the cell has forked this ends the child."""

    @abc.abstractmethod
    def refused(self, request: Request, reason: str) -> None:
        """Tell the host that a cell did not run. Called on the thread that reads the host's messages."""


def _async_raise(thread: int, error: Optional[type]) -> None:
    """Have *error* raised in a thread when it next runs Python code; None takes back what was not raised yet."""
    try:
        import ctypes

        kind = ctypes.py_object(error) if error is not None else None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)
    except (ImportError, AttributeError):
        pass  # no ctypes here: the cell goes on, and the host ends it by other means


_IDLE, _CODE, _BETWEEN, _AWAITING = "idle", "code", "between", "awaiting"
"""What a subshell does: nothing, run code of a cell, make a task of a cell that awaits, or run the loop for it."""


class Subshell:
    """One thread. ``execute``, ``stop`` and ``close`` are called from another one."""

    def __init__(self, name: str, home: Home) -> None:
        self._home = home
        self._loop = private_loop()
        self._queue: Deque[Request] = deque()
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._phase = _IDLE
        self._cell = ""
        self._stops = 0
        self._task: "Optional[asyncio.Task[Outcome]]" = None
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="subshell-%s" % name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while its thread lives."""
        return self._thread.is_alive()

    def execute(self, request: Request) -> None:
        """Run a cell when those before it have ended."""
        self._loop.call_soon_threadsafe(self._take, request)

    def stop(self, cell: str) -> bool:
        """Stop *cell* if it runs here, and return whether it does."""
        with self._lock:
            if self._phase == _IDLE or cell != self._cell:
                return False
            self._stops += 1
            if self._phase == _AWAITING:
                self._loop.call_soon_threadsafe(self._cancel, cell)
            if self._phase == _CODE or (self._phase == _AWAITING and self._stops > 1):
                _async_raise(self._thread.ident or 0, KeyboardInterrupt)
        return True

    def close(self) -> None:
        """End the thread when the cells that it was given have ended."""
        self._loop.call_soon_threadsafe(self._close)

    def _serve(self) -> None:
        at_home(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException:  # of a task or callback of the user, or a Stop that came late: it ends that alone
                continue
            leave_home()
            self._loop.close()
            return

    def _close(self) -> None:
        self._closing = True
        self._next()

    def _take(self, request: Request) -> None:
        self._queue.append(request)
        self._next()

    def _next(self) -> None:
        while self._queue and self._phase == _IDLE:
            self._context.run(self._begin, self._queue.popleft())
        if self._closing and self._phase == _IDLE:
            self._loop.stop()

    def _begin(self, request: Request) -> None:
        outcome: Optional[Outcome] = None
        self._enter(_CODE, request.cell)
        try:
            result = self._home.run(request)
        except BaseException as error:
            self._enter(_BETWEEN, request.cell)
            outcome = self._home.failed(error)
        else:
            self._enter(_BETWEEN, request.cell)
            if isinstance(result, Outcome):
                outcome = result
            else:
                self._start_task(result, request)
        if outcome is not None:
            self._finish(request, outcome)

    def _start_task(self, awaiting: Awaiting, request: Request) -> None:
        extra: Dict[str, Any] = {"context": self._context} if sys.version_info >= (3, 11) else {}
        task = self._task = self._loop.create_task(awaiting(), **extra)
        task.add_done_callback(lambda _: self._ended(task, request))
        with self._lock:
            self._phase = _AWAITING
            stops = self._stops
        if stops:  # it came before there was anything to cancel
            self._cancel(request.cell)

    def _cancel(self, cell: str) -> None:
        if self._task is not None and cell == self._cell:
            self._home.stopped()
            self._task.cancel()

    def _ended(self, task: "asyncio.Task[Outcome]", request: Request) -> None:
        self._enter(_BETWEEN, request.cell)
        self._task = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            outcome = self._context.run(self._home.failed, error or KeyboardInterrupt())
        else:
            outcome = task.result()
        self._context.run(self._finish, request, outcome)
        self._next()

    def _finish(self, request: Request, outcome: Outcome) -> None:
        self._home.finished(request, outcome)
        self._enter(_IDLE, "")

    def _enter(self, phase: str, cell: str) -> None:
        """Go on to *phase*; what a Stop is about to raise in this thread is raised in code of a cell or not at all."""
        while True:
            try:
                with self._lock:
                    if phase == _CODE:
                        self._stops = 0
                    self._phase, self._cell = phase, cell
                    if phase != _CODE:
                        _async_raise(threading.get_ident(), None)
                return
            except KeyboardInterrupt:
                continue


class Subshells:
    """The subshells of an interpreter by their ids. Used by the thread that reads the host's messages."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: Dict[str, Subshell] = {}
        self._ending: List[Subshell] = []

    def open(self, name: str) -> Subshell:
        """Return the subshell *name*, made now if there is none. Raises RuntimeError when no thread can be started."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = Subshell(name, self._home)
        return found

    def close(self, name: str) -> None:
        """End the subshell *name* when its cells have ended; harmless when there is none."""
        found = self._known.pop(name, None)
        if found is not None:
            self._ending = [subshell for subshell in self._ending if subshell.alive] + [found]
            found.close()

    def execute(self, request: Request) -> None:
        """Run a cell in its subshell."""
        try:
            subshell = self.open(request.subshell)
        except (RuntimeError, OSError) as error:
            self._home.refused(request, "A subshell could not be started: %s" % error)
        else:
            subshell.execute(request)

    def stop(self, cell: str) -> None:
        """Stop *cell*, in whichever subshell it runs."""
        for subshell in (*self._known.values(), *self._ending):
            if subshell.stop(cell):
                return


def run_beside(start: "Callable[..., subprocess.Popen[bytes]]") -> int:
    """Run a child for a cell of a subshell and return its exit code. What it prints goes through Python's streams.

    Descriptors 1 and 2 would show it in the cell of the main thread. *start* takes the keywords of ``Popen``. A Stop
    that comes meanwhile ends the child.
    """
    child = start(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    errors = threading.Thread(target=_copy, args=(child.stderr, sys.stderr), daemon=True)
    errors.start()
    try:
        _copy(child.stdout, sys.stdout)
        return child.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        errors.join(1.0)


def _copy(source: Any, target: Any) -> None:
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    waiting = select.poll()
    waiting.register(source, select.POLLIN)
    with source:
        while True:
            while not waiting.poll(LOOK_SECONDS * 1000):
                continue  # Python code has run: a Stop can break in
            data = source.read1(65536)
            target.write(decode(data, not data))
            target.flush()
            if not data:
                return
