"""The proxy that sandboxes speak to: ``CONNECT`` and ``http://`` requests, one to a connection, to granted hosts only.

A connection serves one request and then closes, so there is nothing that a second, hidden request could follow. All
waits have deadlines, all buffers bounds. Whatever a guest sends ends that connection at worst.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from agently_kernel.network.dial import READ_BYTES, Dialer, Refused, Unreachable
from agently_kernel.network.http_head import MAX_HEAD, BadRequest, Request, parse_head

log = logging.getLogger(__name__)

SELF_TEST = "relay.agently.invalid"
"""The name under which the relay answers by itself; ``.invalid`` (RFC 6761) is nobody's."""
MAX_CHUNK_LINE = 4096


class GuestStream(Protocol):
    """One connection of the guest. ``asked_for`` is the host and port that it wants, once that is known."""

    asked_for: tuple[str, int] | None

    async def read(self) -> bytes:
        """Return what has come, at least a byte; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Send all of *data*, waiting while the guest is slow. Raises ConnectionError when it is gone."""

    async def write_eof(self) -> None:
        """Say that nothing more comes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Deadlines in seconds: for a whole head, for silence in both directions, for what is left to be written."""

    head: float = 15.0
    idle: float = 300.0


Status = Literal["connected", "refused", "unreachable", "malformed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of a request: the validated host ("" when it could not be read), its port, and a sentence."""

    host: str
    port: int
    status: Status
    reason: str = ""


class HttpProxy:
    """Serves connections of one sandbox. *on_attempt* is told every request; *secret* answers the self-test."""

    def __init__(
        self, dialer: Dialer, *, on_attempt: Callable[[Attempt], None], secret: str = "", timing: Timing = Timing()
    ) -> None:
        self.dialer = dialer
        self._on_attempt = on_attempt
        self._secret = secret
        self._timing = timing

    async def serve(self, guest: GuestStream) -> None:
        """Serve one connection to its end. Raises nothing but CancelledError; the caller closes *guest*."""
        request: Request | None = None
        try:
            reader = _Buffered(guest)
            head = await asyncio.wait_for(reader.until(b"\r\n\r\n", MAX_HEAD), self._timing.head)
            if head is None:
                return  # it went away before it had asked for anything
            request = parse_head(head)
            if request.host == SELF_TEST and self._secret:
                await _answer(guest, 200, "OK", self._secret)
                return
            guest.asked_for = (request.host, request.port)
            await self._pass_on(request, reader, guest)
        except asyncio.TimeoutError:
            await _answer(guest, 408, "Request Timeout", "the request did not arrive in time")
        except BadRequest as error:
            self._tell(request, "malformed", str(error))
            await _answer(guest, error.status, "Bad Request", f"the relay cannot read this request: {error}")
        except Refused as error:
            self._tell(request, "refused", str(error))
            await _answer(guest, error.status, f"Forbidden: {error}", str(error))
        except Unreachable as error:
            self._tell(request, "unreachable", str(error))
            await _answer(guest, error.status, f"Bad Gateway: {error}", str(error))
        except OSError:
            return  # one of the two ends went away
        except Exception:
            log.exception("a connection of a sandbox could not be served; it is closed")

    def _tell(self, request: Request | None, status: Status, reason: str = "") -> None:
        host, port = (request.host, request.port) if request is not None else ("", 0)
        try:
            self._on_attempt(Attempt(host, port, status, reason))
        except Exception:
            log.exception("what came of a connection could not be told")

    async def _pass_on(self, request: Request, reader: _Buffered, guest: GuestStream) -> None:
        up_reader, up_writer = await self.dialer.connect(request.host, request.port)
        try:
            self._tell(request, "connected")
            clock = _Clock()

            async def up(data: bytes) -> None:
                up_writer.write(data)
                await up_writer.drain()
                clock.touch()

            async def down(data: bytes) -> None:
                await guest.write(data)
                clock.touch()

            if request.body == "tunnel":
                await guest.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                await up(request.head)
            both = (
                asyncio.ensure_future(_send_body(request, reader, up, up_writer)),
                asyncio.ensure_future(_receive(up_reader, down, guest)),
            )
            await _until_done(both, clock, self._timing.idle, whole=request.body == "tunnel")
        finally:
            up_writer.close()


class _Clock:
    """When bytes last went through."""

    def __init__(self) -> None:
        self.touch()

    def touch(self) -> None:
        self.last = asyncio.get_running_loop().time()

    def silent(self) -> float:
        return asyncio.get_running_loop().time() - self.last


class _Buffered:
    """Reads lines and counted bytes from a guest's stream, never holding more than a bound and one read."""

    def __init__(self, guest: GuestStream) -> None:
        self._guest = guest
        self._held = bytearray()

    async def until(self, mark: bytes, most: int) -> bytes | None:
        """Return what stands before *mark*, and drop the mark; None at an early end. Raises BadRequest."""
        start = 0
        while (at := self._held.find(mark, start)) < 0:
            if len(self._held) > most + len(mark):
                raise BadRequest(f"more than {most} bytes without an end", 431)
            start = max(0, len(self._held) - len(mark))
            data = await self._guest.read()
            if not data:
                return None
            self._held += data
        if at > most:
            raise BadRequest(f"more than {most} bytes without an end", 431)
        found = bytes(self._held[:at])
        del self._held[: at + len(mark)]
        return found

    async def some(self, most: int) -> bytes:
        """Return up to *most* bytes; empty at the end."""
        data = bytes(self._held[:most])
        del self._held[: len(data)]
        if data:
            return data
        data = await self._guest.read()
        self._held += data[most:]
        return data[:most]


Write = Callable[[bytes], Awaitable[None]]


async def _send_body(request: Request, reader: _Buffered, up: Write, writer: asyncio.StreamWriter) -> None:
    """Pass the guest's bytes on: of a tunnel all, of a request exactly its body."""
    if request.body == "tunnel":
        while data := await reader.some(READ_BYTES):
            await up(data)
    elif request.body == "length":
        await _counted(reader, request.length, up)
    elif request.body == "chunked":
        try:
            await _chunks(reader, up)
        except BadRequest as error:  # too late for an answer of ours
            raise ConnectionError(str(error)) from error
    if request.body != "tunnel":
        while await reader.some(READ_BYTES):
            pass  # bytes after the request go nowhere; the end that comes after them is the guest's
    if writer.can_write_eof():
        writer.write_eof()


async def _chunks(reader: _Buffered, up: Write) -> None:
    while size := await _chunk_size(reader):
        await up(b"%x\r\n" % size)
        await _counted(reader, size, up)
        await up(b"\r\n")
        if await reader.until(b"\r\n", 0) is None:
            raise BadRequest("a chunk does not end where it should")
    await up(b"0\r\n\r\n")  # trailers are not passed on


async def _counted(reader: _Buffered, left: int, up: Write) -> None:
    while left:
        data = await reader.some(min(left, READ_BYTES))
        if not data:
            raise ConnectionError("the guest left before the body was complete")
        left -= len(data)
        await up(data)


async def _chunk_size(reader: _Buffered) -> int:
    line = await reader.until(b"\r\n", MAX_CHUNK_LINE)
    digits = (line or b"").partition(b";")[0]
    if not 0 < len(digits) <= 12 or any(code not in b"0123456789abcdefABCDEF" for code in digits):
        raise BadRequest("a chunk has no size")
    return int(digits, 16)


async def _receive(reader: asyncio.StreamReader, down: Write, guest: GuestStream) -> None:
    while data := await reader.read(READ_BYTES):
        await down(data)
    await guest.write_eof()


async def _until_done(
    both: tuple[asyncio.Future[None], asyncio.Future[None]], clock: _Clock, idle: float, *, whole: bool
) -> None:
    """Wait for both directions (of a request: for the answer's end), as long as something moves; raise what failed."""
    sending, receiving = both
    try:
        while not receiving.done() or (whole and not sending.done()):
            left = idle - clock.silent()
            if left <= 0:
                raise ConnectionError("nothing was sent for too long")
            pending = [task for task in both if not task.done()]
            await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                if task.done():
                    task.result()
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _answer(guest: GuestStream, status: int, phrase: str, text: str) -> None:
    """Answer by ourselves; that the guest is gone matters to nobody."""
    body = f"{text}\n".encode("ascii", "replace")
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
    with contextlib.suppress(OSError):
        await guest.write(head.encode("ascii", "replace") + b"connection: close\r\n\r\n" + body)
        await guest.write_eof()
