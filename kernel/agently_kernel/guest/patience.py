"""An end to questions of the front end (completion, inspection) that the user's own objects never answer."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Iterator, Set

SECONDS = 10.0
"""Longer than the host waits for any answer, so nothing that somebody still wants is cut off."""
AGAIN_SECONDS = 1.0


class OutOfPatience(BaseException):
    """Raised in whatever the main thread does for a question that took too long, or that nobody waits for any more."""


class Patience:
    """Ends one question at a time, on the main thread; ``give_up`` may be called from any other thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._given_up: Set[int] = set()
        self._last = 0

    def give_up(self, request: int) -> None:
        """End the question *request* now, or as soon as it begins; harmless when it has been answered."""
        with self._lock:
            if request > self._last:
                self._given_up.add(request)
        self._wake.set()

    @contextlib.contextmanager
    def question(self, request: int, seconds: float = SECONDS) -> Iterator[None]:
        """Raise OutOfPatience in the block after *seconds* or ``give_up``, and each second until it ends.

        Requests are numbered upwards. A Stop that comes meanwhile, for a cell that awaits, goes where it went before
        and ends the question too: the cell cannot be ended before it.
        """
        before: Any = signal.getsignal(signal.SIGINT)
        main = threading.get_ident()
        over = late = False

        def handler(signum: int, frame: Any) -> None:
            if not late and callable(before):
                before(signum, frame)
            raise OutOfPatience()

        def watch() -> None:
            nonlocal late
            wait = seconds
            while True:
                given_up = self._wake.wait(wait)
                with self._lock:  # so that no signal is sent once the block has ended
                    if over:
                        return
                    self._wake.clear()
                    if given_up and not late and request not in self._given_up:
                        continue  # meant for another question
                    late = True
                    signal.pthread_kill(main, signal.SIGINT)
                wait = AGAIN_SECONDS

        watcher = threading.Thread(target=watch, name="patience", daemon=True)
        signal.signal(signal.SIGINT, handler)
        try:
            if request in self._given_up:
                raise OutOfPatience()
            with contextlib.suppress(RuntimeError):  # no more threads: then without an end
                watcher.start()
            yield
        finally:
            while True:
                try:
                    with self._lock:
                        over = True
                        self._last = max(self._last, request)
                        self._given_up.discard(request)
                    self._wake.set()
                    signal.signal(signal.SIGINT, before)
                    break
                except BaseException:  # the last one that was on its way
                    continue
