"""An end to questions of the front end (completion, inspection) that the user's own objects never answer."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Iterator

SECONDS = 20.0
"""Longer than the host waits for any answer, so nothing that somebody still wants is cut off."""
AGAIN_SECONDS = 1.0


class OutOfPatience(BaseException):
    """Raised in whatever the main thread does for a question that took too long."""


@contextlib.contextmanager
def patience(seconds: float = SECONDS) -> Iterator[None]:
    """Raise OutOfPatience in the block, on the main thread, after *seconds*, and each second until it ends.

    A Stop that comes meanwhile goes where it went before.
    """
    before: Any = signal.getsignal(signal.SIGINT)
    main = threading.get_ident()
    lock = threading.Lock()
    over = threading.Event()
    late = False

    def handler(signum: int, frame: Any) -> None:
        if late:
            raise OutOfPatience()
        if callable(before):
            before(signum, frame)

    def watch() -> None:
        nonlocal late
        wait = seconds
        while not over.wait(wait):
            with lock:  # so that no signal is sent once the block has ended
                if not over.is_set():
                    late = True
                    signal.pthread_kill(main, signal.SIGINT)
            wait = AGAIN_SECONDS

    watcher = threading.Thread(target=watch, name="patience", daemon=True)
    signal.signal(signal.SIGINT, handler)
    try:
        with contextlib.suppress(RuntimeError):  # no more threads: then without an end
            watcher.start()
        yield
    finally:
        while True:
            try:
                with lock:
                    over.set()
                signal.signal(signal.SIGINT, before)
                break
            except BaseException:  # the last one that was on its way
                continue
