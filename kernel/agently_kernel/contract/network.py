"""Which hosts a sandbox may reach: how they are written, and the one place that reads them.

A host is written as ``example.org`` (exactly that name), ``*.example.org`` (names below it, not itself), an IPv4
address, ``[IPv6]``, or ``*`` (every public host), each with an optional ``:port``. Without a port 80 and 443 are meant.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

MAX_HOSTS = 64
MAX_NAME = 253
DEFAULT_PORTS = frozenset((80, 443))
EVERY_PUBLIC_HOST = "*"
NetworkMode: TypeAlias = Literal["disabled", "hosts", "enabled"]
"""``disabled``: none. ``hosts``: only named hosts, through the relay. ``enabled``: whatever the provider can open."""

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\Z")
_NUMERIC = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\Z")
_FORM = "write a name such as example.org, *.example.org or example.org:8443, an address, or [IPv6 address]"


def normalise_host_name(text: str) -> str:
    """Return a DNS name in lower case without its final dot. Raises ValueError for anything else, addresses too.

    A name whose last label is a number is refused: resolvers read it as an address in disguise (``127.1``, ``0x7f.1``).
    """
    name = text.lower().removesuffix(".")
    if len(name) > MAX_NAME or not _NAME.match(name) or _NUMERIC.match(name.rpartition(".")[2]):
        raise ValueError(f"{text[:80]!r} is no host name in ASCII (names in other scripts are written as xn--…)")
    return name


def read_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that *text* is in its one canonical spelling, None when it is none."""
    try:
        return ipaddress.ip_address(text) if "%" not in text else None
    except ValueError:
        return None


def split_port(text: str) -> tuple[str, int | None]:
    """Split ``host[:port]`` or ``[address][:port]``; the host comes without brackets. Raises ValueError."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:]+))(?::([0-9]{1,5}))?", text)
    if not found:
        raise ValueError(f"{text[:80]!r} is no host; {_FORM}")
    port = int(found.group(3)) if found.group(3) else None
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"{text[:80]!r} has no port between 1 and 65535")
    if found.group(1) and not isinstance(read_address(found.group(1)), ipaddress.IPv6Address):
        raise ValueError(f"{text[:80]!r} is no IPv6 address in brackets")
    return found.group(1) or found.group(2), port


@dataclass(frozen=True, slots=True)
class HostPattern:
    """One granted host. ``port`` None stands for the default ports."""

    kind: Literal["name", "below", "address", "any"]
    value: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Read one host. Raises ValueError saying what is allowed."""
        host, port = split_port(text.strip())
        if host == EVERY_PUBLIC_HOST:
            return cls("any", EVERY_PUBLIC_HOST, port)
        address = read_address(host)
        if address is not None:
            return cls("address", address.compressed, port)
        below = host.startswith("*.")
        try:
            name = normalise_host_name(host[2:] if below else host)
        except ValueError as error:
            raise ValueError(f"{error}; {_FORM}") from None
        if below and "." not in name:
            raise ValueError(f"{text[:80]!r} would open a whole top-level domain; name a domain in it")
        return cls("below" if below else "name", name, port)

    def __str__(self) -> str:
        host = f"[{self.value}]" if ":" in self.value else f"*.{self.value}" if self.kind == "below" else self.value
        return host if self.port is None else f"{host}:{self.port}"

    def has_port(self, port: int) -> bool:
        """Return whether this grant is for *port*."""
        return port in DEFAULT_PORTS if self.port is None else port == self.port

    def names(self, host: str) -> bool:
        """Return whether *host* (a normalised name, or an address in canonical form) is meant by this grant."""
        if self.kind == "any":
            return read_address(host) is None
        return host.endswith("." + self.value) if self.kind == "below" else host == self.value

    def covers(self, other: HostPattern) -> bool:
        """Return whether something that *other* opens is open by this grant alone, as far as both name it."""
        ports = DEFAULT_PORTS if other.port is None else (other.port,)
        return any(map(self.has_port, ports)) and (self.value == other.value or self.names(other.value))


def normalise_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return *hosts* in their accepted spelling, without repetitions. Raises ValueError."""
    found = tuple(dict.fromkeys(str(HostPattern.parse(host)) for host in hosts))
    if len(found) > MAX_HOSTS:
        raise ValueError(f"{len(found)} hosts; at most {MAX_HOSTS} can be granted")
    return found
