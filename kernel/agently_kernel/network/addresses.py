"""Addresses that a granted *name* never leads to: this machine, its networks, and the services of a cloud beneath it.

A name is granted because of whom a person takes it for. Who controls the name controls where it leads, so whatever is
reachable only from here must be granted as the address that it is.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# IANA's special-purpose registries, with what clouds use beside them. The documentation networks are not here: nothing
# is reachable there that belongs to anybody.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("this machine", ("0.0.0.0/8", "127.0.0.0/8", "::/128", "::1/128")),
    ("a link-local or metadata address", ("169.254.0.0/16", "fe80::/10", "168.63.129.16/32", "fd00:ec2::/32")),
    ("a private network", (
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "fc00::/7", "fec0::/10",
    )),
    ("no ordinary host", (
        "192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4", "240.0.0.0/4", "ff00::/8", "100::/64", "2001::/23",
        "64:ff9b:1::/48", "5f00::/16",
    )),
)
_NETWORKS = tuple((kind, ipaddress.ip_network(text)) for kind, texts in _KINDS for text in texts)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for (mapped, compatible, 6to4, Teredo, NAT64), else itself."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if inner is None and (address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1)):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address


def inside_kind(address: Address) -> str:
    """Return what *address* is when it is reachable only from here ("this machine", "a private network" …), else ""."""
    for form in dict.fromkeys((address, embedded(address))):
        for kind, network in _NETWORKS:
            if form.version == network.version and form in network:
                return kind
    return "this machine" if _is_own(address) else ""


def _is_own(address: Address) -> bool:
    """True when an interface of this machine has *address*: nothing else lets a socket be bound to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as attempt:
            attempt.bind((str(address), 0))
    except OSError:
        return False
    return True
