"""The three streams of a container over one connection to the engine: attached before it starts, taken apart here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Any

from agently_kernel.sandbox.process import READER_LIMIT

_HEADER = struct.Struct(">BxxxI")
_CHUNK = 256 * 1024
MAX_CHUNK = 64 * 1024 * 1024


class Demultiplexer(asyncio.StreamReaderProtocol):
    """Cuts the engine's stream into standard output (1) and error (2); anything else ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(asyncio.StreamReader(loop=loop), loop=loop)
        self.stdout = asyncio.StreamReader(limit=READER_LIMIT, loop=loop)
        self.stderr = asyncio.StreamReader(limit=READER_LIMIT, loop=loop)
        self.ended: asyncio.Future[None] = loop.create_future()
        self._target: asyncio.StreamReader | None = None
        self._left = 0
        self._head = bytearray()
        self._transport_here: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; a reader whose buffer is full holds the connection back."""
        super().connection_made(transport)
        self._transport_here = transport
        for reader in (self.stdout, self.stderr):
            reader.set_transport(transport)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on to the stream that they belong to."""
        at = 0
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                if self._target is not None:
                    self._target.feed_data(part)
                continue
            part = data[at : at + _HEADER.size - len(self._head)]
            at += len(part)
            self._head += part
            if len(self._head) < _HEADER.size:
                return
            kind, size = _HEADER.unpack(self._head)
            self._head.clear()
            if kind not in (1, 2) or size > MAX_CHUNK:
                self._transport_here.abort()
                return
            self._target, self._left = (self.stdout if kind == 1 else self.stderr), size

    def eof_received(self) -> bool:
        """The container's end, or the engine's: close the connection."""
        self._finish()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone, in whichever way."""
        super().connection_lost(error)
        self._finish()

    def _finish(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            self.stdout.feed_eof()
            self.stderr.feed_eof()


class AttachedStreams:
    """stdin, stdout and stderr of one container. *raw* is what the SDK's ``attach_socket`` returned; kept alive."""

    def __init__(self, raw: Any, transport: asyncio.Transport, protocol: Demultiplexer, relay: _Relay | None) -> None:
        self._raw = raw
        self._transport = transport
        self._relay = relay
        self.stdout, self.stderr, self.ended = protocol.stdout, protocol.stderr, protocol.ended
        self.stdin = asyncio.StreamWriter(transport, protocol, None, asyncio.get_running_loop())

    @classmethod
    async def open(cls, raw: Any) -> AttachedStreams:
        """Take over an attached connection. Raises OSError; *raw* is closed then."""
        loop = asyncio.get_running_loop()
        relay: _Relay | None = None
        try:
            plain = raw if isinstance(raw, socket.socket) else getattr(raw, "_sock", None)
            if type(plain) is socket.socket:
                plain.settimeout(0)
                sock = plain.dup()
            else:  # TLS, ssh or a named pipe: their objects only block
                sock, theirs = socket.socketpair()
                relay = _Relay(raw, theirs)
            sock.setblocking(False)
            transport, protocol = await loop.create_connection(lambda: Demultiplexer(loop), sock=sock)
        except BaseException:
            with contextlib.suppress(Exception):
                raw.close()
            raise
        return cls(raw, transport, protocol, relay)

    def close(self) -> None:
        """Drop the connection at once: an engine that waits for somebody to read must not wait for us. Idempotent."""
        self._transport.abort()
        with contextlib.suppress(Exception):
            self._raw.close()
        response = getattr(self._raw, "_response", None)
        if response is not None:
            with contextlib.suppress(Exception):
                response.close()
        if self._relay is not None:
            self._relay.close()


class _Relay:
    """Two threads between an object that only blocks and a socket pair; they end when either side is closed."""

    def __init__(self, raw: Any, near: socket.socket) -> None:
        self._raw = getattr(raw, "_sock", raw)
        self._near = near
        for work in (self._inwards, self._outwards):
            threading.Thread(target=work, name="container-stream", daemon=True).start()

    def _inwards(self) -> None:
        with contextlib.suppress(Exception):
            while data := self._raw.recv(_CHUNK):
                self._near.sendall(data)
        self.close()

    def _outwards(self) -> None:
        with contextlib.suppress(Exception):
            while data := self._near.recv(_CHUNK):
                self._raw.sendall(data)
        self.close()

    def close(self) -> None:
        """Let both threads end."""
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)
