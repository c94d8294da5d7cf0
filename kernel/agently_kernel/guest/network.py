"""Init's end of the network relay: accepts connections on loopback and passes their bytes to the host as frames.

The sandbox has no way out but this one; what may be reached is decided by the host, connection by connection.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from typing import Any, Deque, Dict

from . import wire
from .turns import Turns

BACKLOG = 128
LINGER_SECONDS = 2.0
CREDIT_FROM = wire.NET_WINDOW // 4


class _Connection:
    """One accepted connection. ``may_read``: bytes that the host takes; ``owed``: bytes to give leave for again."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.may_read = wire.NET_WINDOW
        self.outbox: Deque[memoryview] = deque()
        self.held = 0
        self.owed = 0
        self.read_ended = False
        self.write_ended = False
        self.closing = False
        self.shut = False


class Network:
    """Listens once, serves at most ``wire.NET_CONNECTIONS`` at a time; further ones wait in the kernel's backlog."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._connections: Dict[int, _Connection] = {}
        self._listener: Any = None
        self._last = 0
        turns.on_pause.append(self._watch_all)

    def listen(self, port: int) -> None:
        """Begin to accept on 127.0.0.1, or go on with it. Raises OSError when that is not possible, or done on another
        port."""
        if self._listener is not None:
            if self._listener.getsockname()[1] == port:
                return
            raise OSError("the relay listens on another port already")
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._watch_listener()

    def take(self, header: Dict[str, Any], payload: bytes) -> None:
        """Take a frame of the host; one for a connection that is closed here is late and means nothing."""
        connection = self._connections.get(header["conn"])
        if connection is None:
            return
        op = header["op"]
        if op == "net_data":
            connection.outbox.append(memoryview(payload))
            connection.held += len(payload)
        elif op == "net_credit":
            connection.may_read += header["bytes"]
        elif op == "net_end":
            connection.write_ended = True
        else:
            connection.closing = connection.write_ended = True
        self._write(connection)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _watch_listener(self) -> None:
        room = len(self._connections) < wire.NET_CONNECTIONS and not self._turns.paused
        self._turns.watch(self._listener, selectors.EVENT_READ if room else 0, self._accept)

    def _watch_all(self) -> None:
        if self._listener is not None:
            self._watch_listener()
        for connection in list(self._connections.values()):
            self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        wanted = connection.may_read > 0 or connection.closing
        reading = wanted and not connection.read_ended and not self._turns.paused
        events = (selectors.EVENT_READ if reading else 0) | (selectors.EVENT_WRITE if connection.outbox else 0)
        self._turns.watch(connection.sock, events, lambda: self._ready(connection))

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # it went away meanwhile, or there are no descriptors: others are still waiting
        sock.setblocking(False)
        self._last += 1
        connection = self._connections[self._last] = _Connection(self._last, sock)
        self._turns.writer.frame({"op": "net_open", "conn": connection.number})
        self._watch(connection)
        self._watch_listener()

    def _ready(self, connection: _Connection) -> None:
        self._read(connection)
        if connection.number in self._connections:  # the read may have found it gone
            self._write(connection)

    def _read(self, connection: _Connection) -> None:
        most = wire.STREAM_CHUNK if connection.closing else min(connection.may_read, wire.STREAM_CHUNK)
        if connection.read_ended or most <= 0 or self._turns.paused:
            return
        try:
            data = connection.sock.recv(most)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        header = {"op": "net_data", "conn": connection.number}
        if not data:
            connection.read_ended = True
        if connection.closing:
            return  # the host does not want it any more; unread, it would reset the connection under the answer
        if not data:
            header["op"] = "net_end"
        connection.may_read -= len(data)
        self._turns.writer.frame(header, data)

    def _write(self, connection: _Connection) -> None:
        try:
            while connection.outbox:
                view = connection.outbox[0]
                sent = connection.sock.send(view)
                connection.held -= sent
                connection.owed += sent
                if sent < len(view):
                    connection.outbox[0] = view[sent:]
                    break
                connection.outbox.popleft()
            if connection.write_ended and not connection.outbox and not connection.shut:
                connection.shut = True
                connection.sock.shutdown(socket.SHUT_WR)
                if connection.closing:
                    self._turns.later(LINGER_SECONDS, lambda: self._drop(connection))
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if not connection.closing and (
            connection.owed >= CREDIT_FROM or (connection.owed and not connection.outbox)
        ):
            self._turns.writer.frame({"op": "net_credit", "conn": connection.number, "bytes": connection.owed})
            connection.owed = 0
        if connection.read_ended and connection.write_ended and not connection.outbox:
            self._drop(connection)
        else:
            self._watch(connection)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._turns.watch(connection.sock, 0, lambda: None)
        connection.sock.close()
        if not connection.closing:
            self._turns.writer.frame({"op": "net_close", "conn": connection.number})
        self._watch_listener()
