"""SIGINT while no cell runs: it does nothing, but for a Stop that finds code of the user at work even then."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import types
from typing import Any, Callable, Iterator, List, Optional

Handler = Callable[[int, Optional[types.FrameType]], None]
_set_handler: Callable[..., Any] = sys.modules["_signal"].signal
"""The C function: the one of ``signal`` makes an enum of what it returns, by names that a cell may have replaced."""
_RUNS_A_CALLBACK = asyncio.Handle._run.__code__


def _current_tasks() -> "List[asyncio.Task[Any]]":
    """Return the task that runs, and those that wait for the loop that it runs in."""
    known = getattr(asyncio.tasks, "_current_tasks", None)
    if isinstance(known, dict):
        return list(known.values())
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return []
    return [task] if task is not None else []


def ignore(signum: int, frame: Optional[types.FrameType]) -> None:
    """SIGINT where there is nothing to stop."""


def disarm(handler: Handler = ignore) -> None:
    """Let SIGINT go to *handler* from here on, even if one arrives right now."""
    while True:
        try:
            _set_handler(signal.SIGINT, handler)
            return
        except KeyboardInterrupt:
            continue


class BetweenCells:
    """Lets a Stop end what the user's own code does on the main thread while no cell runs: a callback or task of the
    event loop, or a widget's. Made on the main thread. *own_file* is where the loop's callbacks that are not the user's
    are written: they are never broken into."""

    def __init__(self, own_file: str) -> None:
        self._own_file = own_file
        self._main = threading.get_ident()
        self._stops = 0
        self._delivering = False
        self._broken_into: "List[asyncio.Task[Any]]" = []

    def stop(self) -> None:
        """A Stop came, in whichever thread; it is forgotten when the main thread does nothing of the user's."""
        if self._at_work(sys._current_frames().get(self._main)):
            self._stops = 1
            signal.pthread_kill(self._main, signal.SIGINT)

    def handler(self, signum: int, frame: Optional[types.FrameType]) -> None:
        """Of SIGINT while no cell runs. One that is not of ``stop`` was of a cell that has ended meanwhile."""
        stops, self._stops = self._stops, 0
        if stops and self._at_work(frame):
            self._broken_into = _current_tasks()
            raise KeyboardInterrupt

    def told(self) -> None:
        """Let asyncio not complain that nobody looked at how the tasks ended that a Stop has broken into.

        It would do so whenever they are forgotten, in a cell that has nothing to do with them; and where that happens
        while Python compiles that cell, Python 3.11 loses count of its recursion and refuses to.
        """
        tasks, self._broken_into = self._broken_into, []
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()

    @contextlib.contextmanager
    def delivering(self) -> Iterator[None]:
        """What runs in the block is the user's, whoever called it."""
        mine = threading.get_ident() == self._main
        try:
            self._delivering = self._delivering or mine
            yield
        finally:
            self._delivering = self._delivering and not mine

    def _at_work(self, frame: Optional[types.FrameType]) -> bool:
        if self._delivering:
            return True
        called = None
        while frame is not None and frame.f_code is not _RUNS_A_CALLBACK:
            called, frame = frame, frame.f_back
        return frame is not None and called is not None and called.f_code.co_filename != self._own_file
