"""What the relay does, found out by attempts from inside: ``python -I -S network_probe.py PORT NAME SECRET``.

Prints a JSON list of observations as those of ``probe``. Runs as a process of its own, after init has begun to listen.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any, Dict, List, Optional

SECONDS = 2.0
NOT_GRANTED = "not-granted.agently.invalid"
DOCUMENTATION = ("192.0.2.1", 9)
"""An address of nobody's (RFC 5737): where there is no route, the attempt fails at once."""


def ask(port: int, request: str) -> bytes:
    """Send *request* to the relay and return its whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(request.encode("ascii"))
        answer = b""
        while len(answer) < 65536:
            piece = connection.recv(4096)
            if not piece:
                break
            answer += piece
        return answer


def observe(port: int, name: str, secret: str) -> List[Dict[str, Any]]:
    """Return the observations."""
    found: List[Dict[str, Any]] = []

    def note(check: str, value: Optional[bool], detail: str) -> None:
        found.append({"subject": "network", "check": check, "value": value, "detail": detail[:200]})

    try:
        answer = ask(port, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n" % (name, name))
        note("a granted name answers through the relay", True if secret.encode("ascii") in answer else None, "")
    except OSError as error:
        note("a granted name answers through the relay", None, str(error))
    check = "the relay refuses a name that was not granted"
    try:
        answer = ask(port, "CONNECT %s:443 HTTP/1.1\r\n\r\n" % NOT_GRANTED)
        status = answer[:12].decode("ascii", "replace")
        note(check, {"HTTP/1.1 403": True, "HTTP/1.1 200": False}.get(status), status)
    except OSError as error:
        note(check, None, str(error))
    try:
        socket.create_connection(DOCUMENTATION, timeout=0.5).close()
        note("a connection past the relay fails", False, "connected")
    except socket.timeout:
        note("a connection past the relay fails", False, "the packets went somewhere")
    except OSError as error:
        note("a connection past the relay fails", True, str(error))
    return found


if __name__ == "__main__":
    print(json.dumps(observe(int(sys.argv[1]), sys.argv[2], sys.argv[3])))
