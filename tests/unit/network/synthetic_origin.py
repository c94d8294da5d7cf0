"""A synthetic origin server, and a proxy on a TCP port, for tests of what sandboxes are let through to."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from agently_kernel.network.dial import Dialer, Grants, Lookup
from agently_kernel.network.proxy import Attempt, HttpProxy, Timing


@dataclass
class Origin:
    """Keeps every byte that each of its connections sent; answers ``pong`` to every request head.

    It closes a little after its answer when that was asked for, so that a body, or more, is seen too.
    """

    port: int = 0
    seen: list[bytearray] = field(default_factory=list)
    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npong"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = bytearray()
        self.seen.append(seen)
        answered = False
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            patience: float | None = None
            while data := await asyncio.wait_for(reader.read(65536), patience):
                seen += data
                head = bytes(seen[:8192])
                length = re.search(rb"\r\ncontent-length: (\d+)", head)
                whole = len(seen) - head.find(b"\r\n\r\n") - 4 >= int(length[1] if length else 0)
                patience = 0.1 if whole and b"\r\nconnection: close\r\n" in head else None
                if not answered and b"\r\n\r\n" in head:
                    answered = True
                    writer.write(self.answer)
                    await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def origin(host: str = "127.0.0.1", answer: bytes | None = None) -> AsyncIterator[Origin]:
    """Serve on *host* and a free port."""
    found = Origin() if answer is None else Origin(answer=answer)
    server = await asyncio.start_server(found.serve, host, 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


class TcpGuest:
    """A TCP connection in the place of a guest's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        return await self._reader.read(65536)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()


@dataclass
class Served:
    """A proxy on a port, and what it told."""

    port: int
    grants: Grants
    attempts: list[Attempt]

    async def ask(self, data: bytes, *, end: bool = False, seconds: float = 10.0) -> bytes:
        """Send *data* on a connection of its own and return all that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            if end:
                writer.write_eof()
            return await asyncio.wait_for(reader.read(-1), seconds)
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def proxy(
    hosts: Sequence[str], *, lookup: Lookup | None = None, timing: Timing = Timing(head=1.0, idle=1.0)  # noqa: B008
) -> AsyncIterator[Served]:
    """Serve a proxy that opens *hosts*. Its ``secret`` is ``proof``."""
    attempts: list[Attempt] = []
    grants = Grants(hosts)
    dialer = Dialer(grants) if lookup is None else Dialer(grants, lookup)
    served = HttpProxy(dialer, on_attempt=attempts.append, secret="proof", timing=timing)
    failures: list[BaseException] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await served.serve(TcpGuest(reader, writer))
        except Exception as error:  # serve promises to raise nothing
            failures.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0, backlog=1024)
    try:
        yield Served(server.sockets[0].getsockname()[1], grants, attempts)
    finally:
        server.close()
    assert failures == []
