"""The kernel's sockets, bound in its first moments.

A client that finds nobody listening tries again only after a tenth of a second or two. So the sockets are there before
anything else is loaded; what arrives waits in them until the kernel reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

LINGER = 1000
"""Milliseconds that a closed socket has for what was sent."""
IOPUB_HIGH_WATER = 10_000
"""Messages a slow reader may be behind before the socket drops some: 500 s of a stream at its highest rate."""
KINDS: Mapping[str, int] = {"shell": zmq.ROUTER, "stdin": zmq.ROUTER, "control": zmq.ROUTER, "iopub": zmq.XPUB}


@dataclass(frozen=True, slots=True)
class Connection:
    """What decides where and how the sockets listen. The keys are those of CurveZMQ, if there are any."""

    transport: str
    ip: str
    ports: Mapping[str, int]
    public_key: bytes | None
    secret_key: bytes | None


def open_socket(context: zmq.Context[Any], name: str, connection: Connection) -> zmq.Socket[bytes]:
    """Return the socket called *name* (a key of ``KINDS``), ready to be bound."""
    kind = KINDS[name]
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.linger = LINGER
    if connection.secret_key is not None:
        socket.curve_secretkey, socket.curve_publickey = connection.secret_key, connection.public_key
        socket.curve_server = True
    if kind == zmq.ROUTER:
        socket.router_handover = 1  # a client that comes back under its name is not turned away
    else:
        socket.sndhwm = IOPUB_HIGH_WATER
    return socket


class EarlySockets:
    """Sockets that listen already. They are the application's as soon as :meth:`take` has given them out."""

    def __init__(self, connection: Connection) -> None:
        """Raises zmq.ZMQError when an address cannot be had; nothing is left open then."""
        self._connection = connection
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            for name in KINDS:
                socket = self._sockets[name] = open_socket(self._context, name, connection)
                socket.bind(f"tcp://{connection.ip}:{connection.ports[name]}")
        except BaseException:
            self.close()
            raise

    def take(self, wanted: Connection) -> tuple[zmq.Context[Any], dict[str, zmq.Socket[bytes]]] | None:
        """Return context and sockets when they listen as *wanted*; else close them and return None. Call once."""
        if wanted == self._connection:
            return self._context, self._sockets
        self.close()
        return None

    def close(self) -> None:
        """Close everything."""
        for socket in self._sockets.values():
            socket.close()
        self._context.term()


def bind_early(arguments: Sequence[str]) -> EarlySockets | None:
    """Bind the sockets named by the connection file in *arguments*, in the form in which a kernel is usually started.

    None when the file is not there, leaves a port open or uses another transport, or when other arguments may have a
    say in it: the application then does it all.
    """
    rest = [argument for argument in arguments if not argument.startswith("--AgentlyKernel.")]
    if len(rest) != 2 or rest[0] != "-f":
        return None
    try:
        info = json.loads(Path(rest[1]).read_text("utf-8"))
        ports = {name: int(info[f"{name}_port"]) for name in KINDS}
        if info["transport"] != "tcp" or 0 in ports.values():
            return None
        public, secret = info.get("curve_publickey"), info.get("curve_secretkey")
        both = public is not None and secret is not None
        return EarlySockets(Connection(
            "tcp", str(info["ip"]), ports, public.encode() if both else None, secret.encode() if both else None
        ))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zmq.ZMQError):
        return None  # the application meets it again and tells it
