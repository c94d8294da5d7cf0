"""Room for the stacks of threads within an interpreter's limit on data.

RLIMIT_DATA makes an allocation beyond the memory limit fail with MemoryError, where the cell can handle it, instead of
the interpreter being killed with all variables. But it counts every private writable mapping, and so the whole
stack of each thread (8 MiB), of which hardly anything is ever used: a pool of 400 threads would take 3 GiB. So the
soft limit of an interpreter is the memory limit, and a stack more for every thread that lives; the hard limit has room
for as many as there may be processes. It protects a program from itself: what holds the sandbox is outside.
"""

from __future__ import annotations

import _thread
import functools
import threading
from os import listdir as _listdir  # bound here: cells replace what modules offer
from resource import RLIM_INFINITY, RLIMIT_DATA, RLIMIT_STACK, getrlimit, setrlimit
from typing import Any, Callable

_STARTERS = ("_start_joinable_thread", "_start_new_thread")  # of `threading`, by Python version
_USUAL_STACK = 8 * 1024 * 1024
_EXTRA = 1024 * 1024  # guard page, the thread's first allocations
_STARTING = 3  # the one that is to start, and others in the same moment that are not counted yet


def stack_bytes() -> int:
    """Return the size of the next thread's stack."""
    chosen = threading.stack_size()
    if chosen:
        return chosen
    soft = getrlimit(RLIMIT_STACK)[0]
    return _USUAL_STACK if soft == RLIM_INFINITY else soft


def _threads() -> int:
    """Return how many threads besides the first this process has, those of native libraries too."""
    try:
        return len(_listdir("/proc/self/task")) - 1
    except OSError:
        return int(_thread._count())


class ThreadRoom:
    """Keeps this process's soft limit on data at *data_bytes* and a stack for each thread. See the module."""

    def __init__(self, data_bytes: int) -> None:
        self._bytes = data_bytes

    def install(self) -> None:
        """Set the limit, and from now on raise it before Python starts a thread; do nothing where that cannot be."""
        found = [name for name in _STARTERS if hasattr(threading, name)]
        if not found:
            return
        for name in found:
            setattr(threading, name, self._wrapped(getattr(threading, name)))
        _thread.start_new_thread = self._wrapped(_thread.start_new_thread)
        self.make()

    def make(self) -> None:
        """Set the soft limit for the threads that live and the one that is to start."""
        hard = getrlimit(RLIMIT_DATA)[1]
        wanted = self._bytes + (_threads() + _STARTING) * (stack_bytes() + _EXTRA)
        if hard != RLIM_INFINITY:
            wanted = min(wanted, hard)
        try:
            setrlimit(RLIMIT_DATA, (wanted, hard))
        except (OSError, ValueError):
            pass  # a cell has changed the hard limit meanwhile: then that holds

    def _wrapped(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def started(*args: Any, **kwargs: Any) -> Any:
            self.make()
            return start(*args, **kwargs)

        return started
