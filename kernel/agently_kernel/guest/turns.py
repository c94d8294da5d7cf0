"""Init's event loop: descriptors, timers, the host's channel, and holding the inside back while the host does not
read."""

from __future__ import annotations

import os
import select
import selectors
import time
from typing import Any, Callable, Dict, List, Tuple

from .relay import HostWriter, waiting_bytes

Action = Callable[[], None]
IDLE_SECONDS = 3600.0


class Turns:
    """One selector. ``sources`` are descriptors that produce for the host: unwatched while the host's end is full."""

    def __init__(self, channel_out: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.writer = HostWriter(channel_out, self._watch_host)
        self.paused = False
        self.on_pause: List[Action] = []
        self._watching_host = False
        self._sources: Dict[int, Action] = {}
        self._timers: List[Tuple[float, Action]] = []

    def once(self, wait: float = IDLE_SECONDS) -> None:
        """Wait at most *wait* seconds for the next thing to do, and do it."""
        if self._timers:
            wait = min(wait, min(when for when, _ in self._timers) - time.monotonic())
        for key, _ in self.selector.select(max(0.0, wait)):
            if self.selector.get_map().get(key.fd) is key:  # an action before this one may have closed it
                key.data()
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        if due:
            self._timers = [timer for timer in self._timers if timer[0] > now]
            for _, action in due:
                action()
        self._balance()

    def later(self, seconds: float, action: Action) -> None:
        """Call *action* once, after so many seconds."""
        self._timers.append((time.monotonic() + seconds, action))

    def watch(self, fd: Any, events: int, action: Action) -> None:
        """Call *action* when *fd* is ready for *events*; 0 ends it. *fd* may be watched already."""
        known = self.selector.get_map().get(fd)
        if not events:
            if known is not None:
                self.selector.unregister(fd)
        elif known is None:
            self.selector.register(fd, events, action)
        elif known.events != events:
            self.selector.modify(fd, events, action)

    def add_source(self, fd: int, action: Action) -> None:
        """Watch a descriptor whose bytes go to the host."""
        self._sources[fd] = action
        if not self.paused:
            self.watch(fd, selectors.EVENT_READ, action)

    def drop_source(self, fd: int) -> None:
        """Forget and close such a descriptor."""
        action = self._sources.pop(fd)
        self.watch(fd, 0, action)
        os.close(fd)

    def drain(self, fd: int, header: Dict[str, Any], *, told: bool = True) -> int:
        """Pass on what a source holds at this moment, as frames with *header*.

        *told*: the selector says that there is something. Returns *fd*, or -1 when that was only that nobody can write
        to it any more, and it was dropped.
        """
        if fd < 0:
            return fd
        left = waiting_bytes(fd)
        if not left and told and _hung_up(fd):
            self.drop_source(fd)
            return -1
        while left > 0:
            sent = self.writer.stream(header, fd, left)
            if not sent:
                break
            left -= sent
        return fd

    def flush(self, seconds: float) -> None:
        """Give the host this long to read what waits. Raises HostGone."""
        deadline = time.monotonic() + seconds
        while self.writer.waiting and time.monotonic() < deadline:
            self.writer.pump()
            time.sleep(0.001)

    def _watch_host(self) -> None:
        if self.writer.waiting != self._watching_host:
            self._watching_host = self.writer.waiting
            self.watch(self.writer.fd, selectors.EVENT_WRITE if self._watching_host else 0, self.writer.pump)

    def _balance(self) -> None:
        wanted = self.writer.full or (self.paused and not self.writer.drained)
        if wanted == self.paused:
            return
        self.paused = wanted
        for fd, action in self._sources.items():
            self.watch(fd, 0 if wanted else selectors.EVENT_READ, action)
        for action in self.on_pause:
            action()


def _hung_up(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))


def how_it_ended(status: int) -> Dict[str, int]:
    """Return the header fields for a wait status: ``exit_code`` or ``signal``."""
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"exit_code": os.WEXITSTATUS(status)}
