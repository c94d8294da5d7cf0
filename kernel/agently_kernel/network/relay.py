"""The host's end of a sandbox's relay: connections that the guest's first process accepted, over the one channel to it.

The sandbox keeps its empty network namespace. In there, init listens on loopback and passes what it accepts as frames,
with a window of bytes for each connection and direction. Nothing of the host's is reachable but what the proxy opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from agently_kernel.contract.errors import SandboxError
from agently_kernel.guest import wire
from agently_kernel.network.dial import Dialer, Grants, Lookup, system_lookup
from agently_kernel.network.proxy import SELF_TEST, Attempt, HttpProxy, Timing

Send: TypeAlias = Callable[[Mapping[str, Any], bytes], Awaitable[None]]
MAX_CONNECTIONS = 2 * wire.NET_CONNECTIONS
"""Twice what an honest guest has open: it may open the next one while the end of the last is still under way."""
WINDOW = wire.NET_WINDOW
CREDIT_FROM = WINDOW // 4
MAX_REMEMBERED = 256


class GuestConnection:
    """One connection of the guest. Implements ``GuestStream``; made and fed by :class:`NetworkRelay`."""

    def __init__(self, number: int, send: Send) -> None:
        self.number = number
        self._send = send
        self._held = bytearray()
        self._ended = False
        self.closed = False
        self.asked_for: tuple[str, int] | None = None
        self._arrived = asyncio.Event()
        self._owed = 0
        self._credit = WINDOW
        self._may_send = asyncio.Event()
        self._may_send.set()

    async def read(self) -> bytes:
        """Return what has come; empty at the end. Raises ConnectionError when the guest has closed it."""
        while not self._held:
            if self.closed:
                raise ConnectionError("the guest closed the connection")
            if self._ended:
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        data = bytes(self._held)
        self._held.clear()
        self._owed += len(data)
        if self._owed >= CREDIT_FROM and not self._ended:
            owed, self._owed = self._owed, 0
            await self._frame("net_credit", bytes=owed)
        return data

    async def write(self, data: bytes) -> None:
        """Send *data*, waiting for the guest's window."""
        at = 0
        while at < len(data):
            while not self._credit:
                if self.closed:
                    raise ConnectionError("the guest closed the connection")
                self._may_send.clear()
                await self._may_send.wait()
            piece = data[at : at + min(self._credit, wire.STREAM_CHUNK)]
            self._credit -= len(piece)
            at += len(piece)
            await self._frame("net_data", piece)

    async def write_eof(self) -> None:
        """Say that nothing more comes."""
        await self._frame("net_end")

    async def _frame(self, op: str, payload: bytes = b"", **fields: int) -> None:
        if self.closed:
            raise ConnectionError("the guest closed the connection")
        try:
            await self._send({"op": op, "conn": self.number, **fields}, payload)
        except SandboxError as error:
            raise ConnectionError("the sandbox has ended") from error

    # -- what the guest sent -------------------------------------------------------------------------------------------

    def feed(self, payload: bytes) -> None:
        """Take bytes. Raises WireError when they are more than the window allows."""
        if len(self._held) + self._owed + len(payload) > WINDOW or self._ended:
            raise wire.WireError("a connection's bytes do not keep to its window")
        self._held += payload
        self._arrived.set()

    def credit(self, count: int) -> None:
        """Take the guest's leave to send *count* bytes more. Raises WireError when it never had so many."""
        if not 0 < count <= WINDOW - self._credit:
            raise wire.WireError("a connection gives leave for more bytes than its window")
        self._credit += count
        self._may_send.set()

    def end(self, *, closed: bool) -> None:
        """Take the end of the guest's bytes, or of the whole connection."""
        self._ended = True
        self.closed = self.closed or closed
        self._arrived.set()
        self._may_send.set()


class NetworkRelay:
    """Serves one sandbox's connections to the granted hosts. Implements ``contract.protocols.GuestNetwork``.

    *on_attempt* is told every request that ends in a decision. Everything happens on the loop of the sandbox's session.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        *,
        on_attempt: Callable[[Attempt], None] = lambda attempt: None,
        lookup: Lookup = system_lookup,
        timing: Timing | None = None,
    ) -> None:
        self.secret = secrets.token_hex(16)
        self.self_test = SELF_TEST
        self.on_refused: Callable[[str], None] = lambda reason: None
        self._grants = Grants(hosts)
        self._told = on_attempt
        self._remembered: set[tuple[str, int, str]] = set()
        self._proxy = HttpProxy(
            Dialer(self._grants, lookup), on_attempt=self._attempt, secret=self.secret, timing=timing or Timing()
        )
        self._connections: dict[int, tuple[GuestConnection, asyncio.Task[None]]] = {}
        self._last = 0
        self._send: Send | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that are granted now."""
        return self._grants.hosts

    @hosts.setter
    def hosts(self, hosts: tuple[str, ...]) -> None:
        """Grant exactly these from now on; connections to a host that is none of them any more are ended.

        Raises ValueError.
        """
        self._grants.set(hosts)
        for connection, task in self._connections.values():
            asked = connection.asked_for
            if asked is not None and not self._grants.allow(*asked):
                task.cancel()

    def attach(self, send: Send) -> None:
        """Take the way to the guest."""
        self._send = send

    def _attempt(self, attempt: Attempt) -> None:
        key = (attempt.host, attempt.port, attempt.status)
        if attempt.status == "refused":
            self.on_refused(attempt.reason)
        if key in self._remembered or len(self._remembered) >= MAX_REMEMBERED or attempt.host.endswith(".invalid"):
            return
        self._remembered.add(key)
        self._told(attempt)

    def on_frame(self, op: str, header: Mapping[str, Any], payload: bytes) -> Awaitable[None] | None:
        """Take a frame of the guest. Raises WireError for what no honest guest sends."""
        number = header["conn"]
        if op == "net_open":
            return self._open(number)
        known = self._connections.get(number)
        if known is None:
            if not 0 < number <= self._last:
                raise wire.WireError(f"{op} names connection {number}, which was never opened")
            return None  # it was closed here a moment ago
        connection, task = known
        if op == "net_data":
            connection.feed(payload)
        elif op == "net_credit":
            connection.credit(header["bytes"])
        else:
            connection.end(closed=op == "net_close")
            if connection.closed:
                task.cancel()
        return None

    def _open(self, number: int) -> Awaitable[None] | None:
        if number <= self._last or self._send is None:
            raise wire.WireError(f"connection {number} was opened before, or out of order")
        self._last = number
        if len(self._connections) >= MAX_CONNECTIONS:
            return self._send({"op": "net_close", "conn": number}, b"")
        connection = GuestConnection(number, self._send)
        task = asyncio.get_running_loop().create_task(self._serve(connection), name=f"agently-network-{number}")
        self._connections[number] = connection, task
        return None

    async def _serve(self, connection: GuestConnection) -> None:
        try:
            await self._proxy.serve(connection)
        finally:
            self._connections.pop(connection.number, None)
            if not connection.closed and self._send is not None:
                with contextlib.suppress(SandboxError):  # it has ended, and all connections with it
                    await self._send({"op": "net_close", "conn": connection.number}, b"")

    async def drop(self) -> None:
        """End all connections that are open now."""
        tasks = [task for _, task in self._connections.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def aclose(self) -> None:
        """End all connections; nothing is served any more."""
        self._grants.set(())
        await self.drop()

