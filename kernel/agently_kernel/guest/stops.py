"""Stop and the children of a cell: none is lost, and none outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import Callable, Iterator, List, Optional

from . import children

AGAIN_SECONDS = 0.3
"""When a child that a Stop has reached is stopped once more: the signal is lost on a program of a shell that was forked
and not yet executed, and the shell waits for it."""
PATIENCE_SECONDS = 0.7
"""How long it then has to end by itself."""
KILL_SECONDS = 2.0


@contextlib.contextmanager
def held_stops() -> Iterator[List[int]]:
    """Keep a Stop from breaking into the block; the yielded list holds those that came."""
    stops: List[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stops  # a Stop never breaks in there
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: stops.append(number))
    try:
        yield stops
    finally:
        signal.signal(signal.SIGINT, before)


def run_child(start: "Callable[[], subprocess.Popen[bytes]]") -> int:
    """Start a child, wait for it and return its exit code, a negative signal number when a Stop ended it.

    Raises KeyboardInterrupt when a Stop came and the child ended well all the same, or before there was one. A Stop is
    held back where it would lose sight of the child: while it is started, and while its exit code is taken.
    """
    child: "Optional[subprocess.Popen[bytes]]" = None
    stops: List[int] = []
    stopped = False
    try:
        with held_stops() as stops:
            child = start()
        if not stops:
            _await_end(child.pid)
    except KeyboardInterrupt:
        if child is None:
            raise
        stopped = True
    with held_stops():
        code = _end_of(child, 0.0 if stops else AGAIN_SECONDS) if stopped or stops else child.wait()
    if (stopped or stops) and code == 0:
        raise KeyboardInterrupt
    return code


def _await_end(pid: int) -> None:
    """Wait until the child *pid* has ended, and leave its exit code where it is."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _end_of(child: "subprocess.Popen[bytes]", again: float) -> int:
    """Return the exit code of a child that a Stop has reached, or may have missed; one that does not end of it, and
    not of a second one after *again* seconds, is ended with all that it started."""
    try:
        return child.wait(again)
    except subprocess.TimeoutExpired:
        os.killpg(0, signal.SIGINT)
    try:
        return child.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        children.kill_tree([child.pid])
    return child.wait(KILL_SECONDS)


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """End a child that leads a process group of its own as a Stop does: by SIGINT, else by force."""
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGINT)
    try:
        child.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        children.kill_tree([child.pid])
        child.wait(KILL_SECONDS)
