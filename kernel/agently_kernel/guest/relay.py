"""Init's end of the channel to the host: frames out in order, bulk text moved from pipe to pipe inside the kernel."""

from __future__ import annotations

import array
import fcntl
import os
import termios
from collections import deque
from typing import Any, Callable, Deque, Dict

from . import wire

HIGH_WATER = 4 * 1024 * 1024
LOW_WATER = 1024 * 1024
MOST_FRAMES = 1024
"""Frames that wait at most, however small they are: each costs the host time, and a Stop stands behind all of them."""
SPLICE_FROM = 16 * 1024
"""Below this many bytes one read and one write are cheaper than a header, a splice and their bookkeeping."""


class HostGone(Exception):
    """The host does not read any more: nobody is left to serve."""


def waiting_bytes(fd: int) -> int:
    """Return how many bytes a pipe holds right now."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]


class HostWriter:
    """The only writer on the channel. Never blocks; what the host does not take yet is kept, and ``full`` tells to
    stop."""

    def __init__(self, fd: int, on_state: Callable[[], None]) -> None:
        """*on_state* is called when ``waiting`` may have changed, so that the owner watches the descriptor or not."""
        self.fd = fd
        self._queue: Deque[memoryview] = deque()
        self._on_state = on_state
        self.size = 0
        self._splice = getattr(os, "splice", None)  # Python 3.10
        os.set_blocking(fd, False)

    @property
    def waiting(self) -> bool:
        """True while bytes wait for the host."""
        return bool(self._queue)

    @property
    def full(self) -> bool:
        """True when nothing more should be produced until ``drained``."""
        return self.size > HIGH_WATER or len(self._queue) > MOST_FRAMES

    @property
    def drained(self) -> bool:
        """True when producing may go on."""
        return self.size < LOW_WATER and len(self._queue) <= MOST_FRAMES // 4

    def frame(self, header: Dict[str, Any], payload: bytes = b"") -> None:
        """Send one frame. Raises HostGone."""
        self._put(wire.encode(header, payload))

    def stream(self, header: Dict[str, Any], pipe: int, most: int) -> int:
        """Send up to *most* bytes that wait in *pipe* as payload of one frame and return their number. Raises
        HostGone."""
        count = min(most, waiting_bytes(pipe), wire.STREAM_CHUNK)
        if count <= 0:
            return 0
        if self._splice is None or self._queue or count < SPLICE_FROM:
            data = self._read(pipe, count)
            if data:
                self.frame(header, data)
            return len(data)
        head = wire.encode(header)
        self._put(head[:8] + count.to_bytes(4, "big") + head[12:])
        left = count
        try:
            while left and not self._queue:
                moved = self._splice(pipe, self.fd, left)
                if not moved:
                    break
                left -= moved
        except BlockingIOError:
            pass  # the host's pipe is full, or somebody else has emptied ours
        except OSError:
            self._splice = None  # this kind of descriptor cannot be spliced to
        if left:
            data = self._read(pipe, left)
            # A guest can open its own pipe and steal from it; the frame must be completed all the same.
            self._put(data + b" " * (left - len(data)))
        return count

    @staticmethod
    def _read(pipe: int, count: int) -> bytes:
        parts = []
        while count:
            try:
                data = os.read(pipe, count)
            except BlockingIOError:
                break
            if not data:
                break
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def _put(self, data: bytes) -> None:
        if self._queue:
            self._queue.append(memoryview(data))
            self.size += len(data)
            return
        sent = self._write(memoryview(data))
        if sent < len(data):
            self._queue.append(memoryview(data)[sent:])
            self.size += len(data) - sent
            self._on_state()

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise HostGone(str(error))

    def pump(self) -> None:
        """Write what waits, as far as the host takes it. Raises HostGone."""
        while self._queue:
            view = self._queue[0]
            sent = self._write(view)
            self.size -= sent
            if sent < len(view):
                self._queue[0] = view[sent:]
                return
            self._queue.popleft()
        self._on_state()
