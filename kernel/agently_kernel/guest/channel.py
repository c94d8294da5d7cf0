"""The interpreter's end of the socket pair to init: frames out whole or not at all, frames in, and the fence.

An exception can break into any Python statement of the main thread: a Stop, or whatever a signal handler of the user
raises. ``write_whole`` lets no such moment leave half a frame behind: the system call runs inside ``extend(map(...))``,
which stores its result before any Python code can be interrupted, so that it is always known how much went out.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import threading
import time
from itertools import repeat
from mmap import mmap
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Tuple

from . import wire

FENCE_SECONDS = 30.0
READ_BYTES = 64 * 1024  # up to here no memory is mapped anew, and given back, for every read
_COUNTER = struct.Struct("=Q")
_write = os.write
_read = os.read


class ChannelClosed(Exception):
    """This is a forked child that must not speak for its parent."""


def write_whole(fd: int, data: bytes, sent: Optional[List[int]] = None) -> None:
    """Write all of *data* to *fd*; *sent*, when given, is filled with the sizes that went out.

    An exception that breaks in before the first byte went out is raised at once; a later one when all is written.
    Raises OSError as write(2) does.
    """
    sent = [] if sent is None else sent
    view = memoryview(data)
    late: Optional[BaseException] = None
    while True:
        try:
            while sum(sent) < len(view):
                sent.extend(map(_write, repeat(fd, 1), (view[sum(sent) :],)))
            break
        except BlockingIOError:  # a child has made the pipe that we share non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            try:
                poll.poll(1000)
            except BaseException as error:
                late = error
        except OSError:
            raise
        except BaseException as error:
            late = error
        if late is not None and not sent:
            break
    if late is not None:
        raise late


class Channel:
    """Sends from any thread, receives in one. ``lock`` also guards the streams, so that text and frames keep order."""

    def __init__(self, fd: int, counter: mmap) -> None:
        self.fd = fd
        self.lock = threading.RLock()
        self._counter = counter
        self._sent = 0
        self._held: List[bytes] = []
        self._unfenced = 0  # frames up to this number are not waited for any more
        self._pid = os.getpid()

    @property
    def open(self) -> bool:
        """True where frames may be sent: in the interpreter itself, not in children that it forked."""
        return self._pid == os.getpid()

    def send(self, header: Dict[str, Any], payload: bytes = b"", *, hold: bool = False) -> None:
        """Send one frame, or *hold* it until the next one or a fence: two that follow each other travel together.

        Raises ChannelClosed in a forked child, wire.WireError for a frame larger than the protocol allows. Ends the
        interpreter when its channel is broken: nobody would ever hear of its cell's end.
        """
        if not self.open:
            raise ChannelClosed("a forked child has no channel")
        with self.lock:
            frame = wire.encode(dict(header, n=self._sent + len(self._held) + 1), payload)
            if hold:
                self._held.append(frame)
            else:
                self._write(frame)

    def _write(self, *frames: bytes) -> None:
        """Write what is held and *frames*. Needs the lock."""
        progress: List[int] = []
        held = len(self._held)
        self._sent += held + len(frames)
        try:
            write_whole(self.fd, b"".join((*self._held, *frames)) if held else frames[0], progress)
        except BaseException as error:
            if not progress:
                self._sent -= held + len(frames)
            if isinstance(error, OSError) and error.errno is not None:  # not a TimeoutError of the user's alarm
                self._broken(error)
            raise
        finally:
            if progress:
                del self._held[:held]

    @staticmethod
    def _broken(error: OSError) -> NoReturn:
        text = "[agently] The interpreter's channel is closed (%s): a cell closed descriptors that are not its own.\n"
        with contextlib.suppress(OSError):
            _write(2, (text % error.strerror).encode("utf-8", "replace"))
        os._exit(1)

    def relayed(self) -> int:
        """Return how many frames init has taken and passed on, after the text that was written before them."""
        return int(_COUNTER.unpack_from(self._counter, 0)[0])

    def fence(self, seconds: float = FENCE_SECONDS) -> None:
        """Wait until init has passed on every frame sent so far, so that text written now cannot overtake them."""
        if not self.open:
            return
        if self._held:
            with self.lock, contextlib.suppress(ChannelClosed):
                if self._held:
                    self._write()
        sent = self._sent
        if sent <= self._unfenced or self.relayed() >= sent:
            return
        deadline = time.monotonic() + seconds
        turns = 0
        while self.relayed() < sent and time.monotonic() < deadline:
            time.sleep(0.0 if turns < 50 else 0.00005 if turns < 500 else 0.002)
            turns += 1
        if self.relayed() < sent:
            self._unfenced = sent  # never again wait for what did not come

    def frames(self) -> Iterator[Tuple[Dict[str, Any], bytes]]:
        """Yield the frames that init sends, until it is gone. Raises wire.WireError."""
        decoder = wire.Decoder(wire.TO_INTERPRETER)
        while True:
            try:
                data = _read(self.fd, READ_BYTES)
            except OSError:
                return
            if not data:
                return
            for frame in decoder.feed(data):
                yield frame
