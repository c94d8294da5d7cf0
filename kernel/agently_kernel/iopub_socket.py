"""The sockets that the kernel's own loop serves: the publishing one, and the one that cells come from.

ipykernel gives iopub a thread, because user code blocks the main one. Here no user code runs, so a hand-over between
two threads for every message would only cost time: the main thread sends at once, and other threads hand over to it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.eventloop.zmqstream import ZMQStream

_MORE = int(zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)

log = logging.getLogger("agently_kernel.iopub")


def _send_parts(socket: zmq.Socket[bytes], parts: Sequence[Any], *, copy: bool = True) -> None:
    """Send one message, as ``send_multipart`` does, which computes with flags for every part."""
    send = socket.send
    for part in parts[:-1]:
        send(part, _MORE, copy)
    send(parts[-1], 0, copy)


class ReplyStream(ZMQStream):
    """A stream of a ROUTER socket, which always takes a message at once: a reply goes out in the call that sends it.

    The base queues it, has its loop look at the socket, and sends when it is flushed.
    """

    def send_multipart(
        self, msg: Sequence[Any], flags: int = 0, copy: bool = True, track: bool = False,
        callback: Callable[[list[Any], zmq.MessageTracker | None], object] | None = None, **more: Any,
    ) -> None:
        """Send one message after those before it; on the loop's thread only."""
        if self.sending() or callback is not None or track or more:
            super().send_multipart(msg, flags, copy, track, callback, **more)
            return
        _send_parts(self.socket, msg, copy=copy)
        if int(self.socket.get(zmq.EVENTS)) & _READABLE:  # sending may have taken the news of what there is to read
            self.io_loop.add_callback(self._look_again)

    def _look_again(self) -> None:
        if not self.closed():
            self._handle_events(self.socket, 0)  # type: ignore[no-untyped-call]


class LoopSocket:
    """An XPUB socket as ``Session.send`` wants it. Make it on the main thread, whose loop need not run yet."""

    def __init__(self, socket: zmq.Socket[bytes], session: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = socket
        self._session = session
        self._loop = loop
        self._thread = threading.current_thread()
        self._stream = ZMQStream(socket)
        self._stream.on_recv(self._subscription)

    def send_multipart(self, parts: list[Any], *_: Any, **__: Any) -> None:
        """Send one message, in the order of each thread's calls; never blocks. Dropped when the socket is closed."""
        if threading.current_thread() is self._thread:
            self._send(parts)
        else:
            try:
                self._loop.call_soon_threadsafe(self._send, parts)
            except RuntimeError:
                log.debug("a message came after the end of the loop")

    def close(self) -> None:
        """Close the socket; what was sent goes on its way within the socket's linger time. Idempotent."""
        if not self._stream.closed():
            self._stream.close()

    def _send(self, parts: list[Any]) -> None:
        if self._socket.closed:
            return
        _send_parts(self._socket, parts)
        # The descriptor that the loop watches tells of a new subscription once only; sending may have taken the news.
        if int(self._socket.get(zmq.EVENTS)) & _READABLE:
            self._loop.call_soon(self._take_subscriptions)

    def _take_subscriptions(self) -> None:
        while not self._socket.closed:
            try:
                self._subscription(self._socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return

    def _subscription(self, frames: list[bytes]) -> None:
        """Greet a new subscriber, as the protocol wants it."""
        for frame in frames:
            if frame[:1] != b"\x01":
                continue
            topic = frame[1:]
            try:
                content = {"subscription": topic.decode("utf-8")}
            except UnicodeDecodeError:
                continue
            message = self._session.msg("iopub_welcome", content)
            self._socket.send_multipart([*([topic] if topic else []), *self._session.serialize(message)])
