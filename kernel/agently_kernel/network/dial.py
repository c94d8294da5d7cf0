"""Deciding on a host, finding its address once, and connecting to exactly that address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from agently_kernel.contract.network import HostPattern, read_address
from agently_kernel.network.addresses import inside_kind

LOOKUP_SECONDS = 10.0
CONNECT_SECONDS = 10.0
MAX_LOOKUPS = 8
MAX_ADDRESSES = 8
READ_BYTES = 64 * 1024

Lookup: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""``lookup(name, port)``: the addresses of a name as text, in the system's order. Raises OSError."""


class Refused(Exception):
    """The host may not be reached; the text says why, and what to grant."""

    status = 403


class Unreachable(Exception):
    """The host may be reached and could not be."""

    status = 502


def _resolve(name: str, port: int) -> list[str]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


async def system_lookup(name: str, port: int) -> list[str]:
    """Ask the system's resolver, in a thread of its own that nobody has to wait for."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str], error: OSError | None) -> None:
        if not answer.done():
            answer.set_exception(error) if error is not None else answer.set_result(found)

    def work() -> None:
        found: list[str] = []
        failure: OSError | None = None
        try:
            found = _resolve(name, port)
        except OSError as error:
            failure = error
        except UnicodeError:
            failure = OSError("the name cannot be looked up")
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody asks any more
            loop.call_soon_threadsafe(settle, found, failure)

    threading.Thread(target=work, name="agently-lookup", daemon=True).start()
    return await answer


class Grants:
    """The hosts that may be reached right now; :meth:`set` replaces them."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self.set(hosts)

    def set(self, hosts: Iterable[str]) -> None:
        """Grant exactly *hosts* from now on. Raises ValueError."""
        self._patterns = tuple(HostPattern.parse(host) for host in hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """What is granted, as a person writes it."""
        return tuple(map(str, self._patterns))

    def allow(self, host: str, port: int) -> bool:
        """Return whether *host* (a normalised name or a canonical address) may be reached on *port*."""
        return any(pattern.has_port(port) and pattern.names(host) for pattern in self._patterns)


class Dialer:
    """Connects to granted hosts. A name is looked up once, and the connection goes to an address of that answer."""

    def __init__(self, grants: Grants, lookup: Lookup = system_lookup) -> None:
        self.grants = grants
        self._lookup = lookup
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)

    def check(self, host: str, port: int) -> None:
        """Raise Refused unless *host* is granted on *port*."""
        if not self.grants.allow(host, port):
            raise Refused(f"{host}:{port} is not granted to this sandbox")

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams of a connection to a granted host. Raises Refused, Unreachable."""
        self.check(host, port)
        reason = "no address answered"
        for address in await self._addresses(host, port):
            try:
                return await asyncio.wait_for(
                    asyncio.open_connection(address, port, limit=READ_BYTES), CONNECT_SECONDS
                )
            except asyncio.TimeoutError:
                reason = f"it did not answer within {CONNECT_SECONDS:g} s"
            except OSError as error:
                reason = error.strerror or "the connection failed"
        raise Unreachable(f"{host}:{port} could not be reached: {reason}")

    async def _addresses(self, host: str, port: int) -> list[str]:
        if read_address(host) is not None:
            return [host]  # granted as exactly this address
        try:
            async with self._lookups:
                found = await asyncio.wait_for(self._lookup(host, port), LOOKUP_SECONDS)
        except (OSError, asyncio.TimeoutError):
            raise Unreachable(f"{host} could not be found by name") from None
        kept, kinds = [], []
        for text in found[:MAX_ADDRESSES]:
            address = read_address(text)
            if address is None:  # with a scope: link-local
                kinds.append("a link-local or metadata address")
                continue
            kind = inside_kind(address)
            if kind and not self.grants.allow(address.compressed, port):
                kinds.append(kind)
            else:
                kept.append(address.compressed)
        if kinds and not kept:
            raise Refused(f"{host}:{port} leads to {kinds[0]}, which has to be granted as an address of its own")
        return kept
