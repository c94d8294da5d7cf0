"""Subshells: threads that run cells beside the main one, as `kernel subshells` of the Jupyter message protocol 5.5.

Each has an event loop of its own and takes its cells in order. What a cell of one shows is sent as text and displays
that name it, because descriptors 1 and 2 belong to the cell of the main thread. SIGINT reaches the main thread only, so
a Stop cancels what awaits, and raises KeyboardInterrupt in what runs, as soon as Python code of it runs again.
"""

from __future__ import annotations

import abc
import asyncio
import codecs
import contextlib
import contextvars
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any, Callable, Coroutine, Deque, Dict, List, Optional, Union

from .asyncrun import at_home, leave_home
from .loops import private_loop
from .services import Outcome, Request
from .stops import end_group

LOOK_SECONDS = 0.1
"""How often a thread that waits for a child looks up, so that a Stop can break in."""
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
    def end_if_forked(self, error: Optional[BaseException]) -> None:
        """End this process if it is a child that user code forked and that *error*, or nothing, has taken out of it."""

    @abc.abstractmethod
    def refused(self, request: Request, reason: str) -> None:
        """Tell the host that a cell did not run. Called on the thread that reads the host's messages."""


class _TakenBack(BaseException):
    """Raised, and caught at once, in place of a Stop that has come too late for the code that it meant."""


def _async_raise(thread: int, error: type) -> bool:
    """Have *error* raised in a thread when it next runs Python code, in place of one that was not raised yet; return
    whether that can be."""
    try:
        import ctypes

        found = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
        return bool(found)
    except (ImportError, AttributeError):
        return False  # no ctypes here: the cell goes on, and the host ends it by other means


def _take_back() -> None:
    """Let what is to be raised in the calling thread, and was not yet, not be raised.

    Something else is, instead of NULL as the C function has it: before Python 3.13 the interpreter then looks for an
    exception that is not there at every step of every thread, which is slow, and under a debugger it never goes on.
    """
    try:
        while _async_raise(threading.get_ident(), _TakenBack):
            continue
    except _TakenBack:
        pass


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
        self._raised = False  # an exception was to be raised in the thread, and may still be
        self._task: "Optional[asyncio.Task[Outcome]]" = None
        self._awaited: Optional[Request] = None  # the cell of that task
        self._lost: List[Any] = []  # tasks that no loop goes on with: code of theirs would run where they are dropped
        self._closing = self._over = False
        self._thread = threading.Thread(target=self._serve, name="subshell-%s" % name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while its thread lives."""
        return self._thread.is_alive()

    @property
    def here(self) -> bool:
        """True on its thread."""
        return self._thread.ident == threading.get_ident()

    def runs(self, task: "Optional[asyncio.Task[Any]]") -> bool:
        """True when *task*, or what runs in none, is the code of a cell that runs here."""
        return self._phase == _CODE if task is None else task is self._task

    def execute(self, request: Request) -> None:
        """Run a cell when those before it have ended."""
        self._queue.append(request)
        self._wake()

    def stop(self, cell: str) -> bool:
        """Stop *cell* if it runs here, and return whether it does."""
        with self._lock:
            if self._phase == _IDLE or cell != self._cell:
                return False
            self._stops += 1
            if self._phase == _AWAITING:
                self._loop.call_soon_threadsafe(self._cancel, cell)
            if self._phase == _CODE or (self._phase == _AWAITING and self._stops > 1):
                self._raised |= _async_raise(self._thread.ident or 0, KeyboardInterrupt)
        return True

    def close(self) -> None:
        """End the thread when the cells that it was given have ended."""
        self._closing = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # a cell has closed the loop: the next one looks by itself
            self._loop.call_soon_threadsafe(self._next)

    def _serve(self) -> None:
        at_home(self._loop)
        while not self._over:
            error: Optional[BaseException] = None
            try:
                self._loop.run_forever()
            except BaseException as raised:  # of a task or callback of the user, or a Stop that came late: ends that
                error = raised
            self._home.end_if_forked(error)
            if self._loop.is_closed():
                self._replace_loop()
        leave_home()
        self._loop.close()

    def _replace_loop(self) -> None:
        """Go on with another loop: user code has closed this one, and with it what waited there."""
        self._loop = private_loop()
        at_home(self._loop)
        self._loop.call_soon(self._next)
        task, request = self._task, self._awaited
        if task is None or request is None:
            return
        if task.done():
            self._ended(task, request)
            return
        self._enter(_BETWEEN, request.cell)
        self._lost.append(task)
        self._task = self._awaited = None
        self._finish(request, self._home.failed(RuntimeError("The event loop that this cell ran in was closed.")))

    def _next(self) -> None:
        while self._queue and self._phase == _IDLE:
            self._context.run(self._begin, self._queue.popleft())
        if self._closing and self._phase == _IDLE:
            self._over = True
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
        self._awaited = request
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
        self._task = self._awaited = None
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
                if self._raised and phase != _CODE:
                    _take_back()
                    self._raised = False
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
        if found is None or not found.alive:  # none yet, or code of the user has ended its thread
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
        except Exception as error:  # no more threads, or a cell has replaced what threads are made of
            self._home.refused(request, "A subshell could not be started: %s" % error)
        else:
            subshell.execute(request)

    def here(self) -> Optional[Subshell]:
        """Return the subshell whose thread calls, None elsewhere."""
        return next((each for each in (*self._known.values(), *self._ending) if each.here), None)

    def stop(self, cell: str) -> None:
        """Stop *cell*, in whichever subshell it runs."""
        for subshell in (*self._known.values(), *self._ending):
            if subshell.stop(cell):
                return


def run_beside(start: "Callable[..., subprocess.Popen[bytes]]") -> int:
    """Run a child for a cell of a subshell and return its exit code. What it prints goes through Python's streams.

    Descriptors 1 and 2 would show it in the cell of the main thread, and so would a Stop for that cell reach it: it
    leads a process group of its own. *start* takes the keywords of ``Popen``. A Stop of its own cell ends the child.
    """
    own_group: Dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
    child = start(stdout=subprocess.PIPE, stderr=subprocess.PIPE, **own_group)
    output = _Passing(child)
    ended = False
    try:
        while output.open and (output.turn(0.0 if ended else LOOK_SECONDS) or not ended):
            ended = child.poll() is not None
        while child.poll() is None:
            time.sleep(LOOK_SECONDS)
    finally:
        if child.poll() is None:
            end_group(child)
        if output.open:  # what it has left in the background prints on
            threading.Thread(target=output.rest, daemon=True).start()
    return child.returncode


class _Passing:
    """Passes on what a child prints. A Stop can break in between two turns."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self._waiting = select.poll()
        self._pipes: Dict[int, Any] = {}
        for pipe, stream in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
            if pipe is None:
                continue  # whoever started it let it print elsewhere
            self._pipes[pipe.fileno()] = pipe, stream, codecs.getincrementaldecoder("utf-8")("replace").decode
            self._waiting.register(pipe, select.POLLIN)

    @property
    def open(self) -> bool:
        """True while there is anybody who may print."""
        return bool(self._pipes)

    def turn(self, seconds: float) -> bool:
        """Pass on what has come, or comes within *seconds*; return whether anything has."""
        ready = self._waiting.poll(seconds * 1000)
        for number, _ in ready:
            pipe, stream, decode = self._pipes[number]
            data = os.read(number, 65536)
            if not data:
                self._waiting.unregister(number)
                del self._pipes[number]
                pipe.close()
            stream.write(decode(data, not data))
            stream.flush()
        return bool(ready)

    def rest(self) -> None:
        """Pass on what comes until nobody can print any more."""
        while self.open:
            self.turn(60.0)
