"""The head of a request to the proxy, read strictly: what two readers could understand differently is an attack.

Lines end in CR LF, names are tokens, values hold no control characters, nothing is folded, and the body's length is
told in exactly one way (RFC 9112, sections 2, 5, 6). Whatever is not like that is refused, never repaired.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from agently_kernel.contract.network import normalise_host_name, read_address, split_port

MAX_HEAD = 32 * 1024
MAX_HEADERS = 128
MAX_BODY = 2**53

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*\Z")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+\Z")
_ABSOLUTE = re.compile(r"http://([^/?#\s]+)([/?][^#\s]*)?\Z", re.I)
_HOP_BY_HOP = frozenset((
    b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"proxy-authorization",
    b"proxy-authenticate", b"transfer-encoding", b"content-length", b"host", b"http2-settings", b"alt-used",
))


class BadRequest(Exception):
    """Why a request cannot be read; ``status`` is the HTTP status of the answer."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it may be passed on. ``head`` is what the origin server gets (empty for ``CONNECT``)."""

    method: str
    host: str
    port: int
    head: bytes = b""
    body: Literal["none", "length", "chunked", "tunnel"] = "none"
    length: int = 0

    @property
    def target(self) -> str:
        """Host and port as a person writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_head(data: bytes) -> Request:
    """Read a whole head, without its empty line. Raises BadRequest."""
    if b"\r" in data.replace(b"\r\n", b"") or b"\n" in data.replace(b"\r\n", b"") or b"\0" in data:
        raise BadRequest("the head's lines do not end in CR LF")
    first, *lines = data.split(b"\r\n")
    if len(lines) > MAX_HEADERS:
        raise BadRequest(f"the request has more than {MAX_HEADERS} header fields", 431)
    parts = first.split(b" ")
    if len(parts) != 3 or not _TOKEN.match(parts[0]) or not _TARGET.match(parts[1]):
        raise BadRequest("the first line is no request")
    method, target, version = parts[0].decode("ascii"), parts[1].decode("latin-1"), parts[2]
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequest("the relay speaks HTTP/1.1", 505)
    headers = [_header(line) for line in lines]
    if method == "CONNECT":
        host, port = _authority(target, None)
        return Request(method, host, port, body="tunnel")
    found = _ABSOLUTE.match(target)
    if found is None:
        raise BadRequest("the relay is a proxy: it takes CONNECT and http:// addresses")
    host, port = _authority(found.group(1), 80)
    body, length = _framing(headers, version)
    return Request(method, host, port, _rewritten(method, found.group(2) or "/", found.group(1), headers, body, length),
                   body, length)


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.match(name) or not _VALUE.match(value):
        raise BadRequest("a header field is malformed")
    return name.lower(), value.strip(b" \t")


def _authority(text: str, default: int | None) -> tuple[str, int]:
    try:
        host, port = split_port(text)
        address = read_address(host)
        host = normalise_host_name(host) if address is None else address.compressed
    except ValueError:
        raise BadRequest("the address names no host that the relay understands") from None
    port = port or default
    if port is None:
        raise BadRequest("CONNECT needs a host and a port")
    return host, port


def _framing(
    headers: list[tuple[bytes, bytes]], version: bytes
) -> tuple[Literal["none", "length", "chunked"], int]:
    coded = [value for name, value in headers if name == b"transfer-encoding"]
    sized = [value for name, value in headers if name == b"content-length"]
    if coded:
        if sized or version == b"HTTP/1.0" or [value.lower() for value in coded] != [b"chunked"]:
            raise BadRequest("the length of the body is told in more than one way")
        return "chunked", 0
    if not sized:
        return "none", 0
    if len(sized) != 1 or not re.fullmatch(rb"[0-9]{1,16}", sized[0]) or int(sized[0]) > MAX_BODY:
        raise BadRequest("the length of the body cannot be read")
    return "length", int(sized[0])


def _rewritten(
    method: str, path: str, authority: str, headers: list[tuple[bytes, bytes]], body: str, length: int
) -> bytes:
    """Return the head for the origin server: its own name as Host, nothing hop by hop, the length told once."""
    if path.startswith("?"):
        path = "/" + path
    dropped = set(_HOP_BY_HOP)
    for name, value in headers:
        if name == b"connection":
            dropped |= {option.strip().lower() for option in value.split(b",")}
    lines = [f"{method} {path} HTTP/1.1".encode("latin-1"), b"host: " + authority.lower().encode("ascii")]
    lines += [name + b": " + value for name, value in headers if name not in dropped]
    if body == "chunked":
        lines.append(b"transfer-encoding: chunked")
    elif body == "length":
        lines.append(b"content-length: %d" % length)
    lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"
