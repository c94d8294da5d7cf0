"""The interpreter's event loop: where its descriptors lie, what a forked child makes of the one that it inherits, and
what it ends with."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import os
import selectors
import signal
import sys
import threading
import time
from typing import Any, Iterator, List, Optional

AFTER_HOOKS_SECONDS = 0.01
LOWEST_PRIVATE_FD = 64


def private_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop whose own descriptors are not among the low numbers, where programs try things."""
    with _low_numbers_taken():
        return asyncio.new_event_loop()


def make_own(loop: Any) -> None:
    """In a forked child: give *loop* a selector and a wake-up pipe of the child's own.

    Those that it inherited are the parent's too. A child that waited on them took the bytes that were to wake the
    parent. (Python lets no child count a loop of its parent as running: what asks for that raises there.) What user
    code had registered with the loop stays the parent's. Raises OSError when there are too few descriptors.
    """
    for inherited in (loop._ssock, loop._csock, loop._selector):
        with contextlib.suppress(OSError):  # user code has closed its descriptor
            inherited.close()
    with _low_numbers_taken():
        loop._selector = selectors.DefaultSelector()
        loop._internal_fds = 0
        loop._make_self_pipe()
    with contextlib.suppress(ValueError, OSError):
        if signal.set_wakeup_fd(-1) != -1:  # user code has handlers of signals in the loop
            signal.set_wakeup_fd(loop._csock.fileno(), warn_on_full_buffer=False)


def exit_code(error: Optional[BaseException]) -> int:
    """Return what a process ends with that *error*, or nothing, ends: as Python does. A text of SystemExit is shown."""
    if error is None:
        return 0
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write("%s\n" % (error.code,))
    return 1


class StopsHeld:
    """Holds SIGINT back while a process forks: Python swallows what is raised in the hooks of a fork, a Stop too."""

    def __init__(self) -> None:
        self._masks = threading.local()

    def begin(self) -> None:
        """Hold it back from the calling thread, and from a child that it forks."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def end(self) -> None:
        """Let it through; one that came meanwhile comes again when this hook is over."""
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.__dict__.pop("before", ()))
        except KeyboardInterrupt:
            _thread.start_new_thread(_interrupt_soon, ())


def _interrupt_soon() -> None:
    time.sleep(AFTER_HOOKS_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def _low_numbers_taken() -> Iterator[None]:
    held: List[int] = []
    try:
        while not held or held[-1] < LOWEST_PRIVATE_FD:
            held.append(os.dup(0))
    except OSError:  # a very low limit of open files: any number will do
        _close(held)
    try:
        yield
    finally:
        _close(held)


def _close(held: List[int]) -> None:
    while held:
        os.close(held.pop())
