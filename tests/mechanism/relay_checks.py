"""What holds of the network of single hosts on every provider that has it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "network"))

from synthetic_origin import Origin

from agently_kernel.contract.bundle import CodeExecutionRequest
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.execution import CodeExecution

HERE = "127.0.0.3"
"""An address of this machine that is granted explicitly, as everything of a machine's own has to be."""
ELSEWHERE = "127.0.0.4"
"""Another one, which is not granted."""
# What is local goes past proxies by default; these tests mean a local server by a proxy.
PROXIED = "import os\nos.environ['NO_PROXY'] = os.environ['no_proxy'] = ''\n"
GET = PROXIED + "import urllib.request\nprint(urllib.request.urlopen('http://{}/').read().decode())"
HOSTILE: dict[str, Callable[[int], str]] = {
    "connections that say nothing": lambda port: (
        "import socket, time\nheld = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(150)]\ntime.sleep(1)"
    ),
    "bytes that are no request": lambda port: (
        "import os, socket\nfor _ in range(50):\n    s = socket.create_connection(('127.0.0.1', 3128))\n"
        "    s.sendall(os.urandom(20000) + b'\\r\\n\\r\\n'); s.close()"
    ),
    "a tunnel that is written to and never read": lambda port: (
        f"import socket\ns = socket.create_connection(('127.0.0.1', 3128)); s.settimeout(2)\n"
        f"s.sendall(b'CONNECT {HERE}:{port} HTTP/1.1\\r\\n\\r\\n')\n"
        "try:\n    for _ in range(300): s.sendall(b'x' * 100000)\nexcept OSError: pass"
    ),
    "ends in the middle": lambda port: (
        f"import socket, struct\nfor _ in range(100):\n    s = socket.create_connection(('127.0.0.1', 3128))\n"
        f"    s.sendall(b'GET http://{HERE}:{port}/ HTTP/1.1\\r\\n\\r\\n')\n"
        "    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()"
    ),
}


async def run(execution: CodeExecution, code: str, language: str = "python") -> CodeExecutionResult:
    return await execution.async_run(CodeExecutionRequest(language=language, source_code=code), timeout=60)


async def only_the_granted_is_reached(execution: CodeExecution, granted: Origin, other: Origin) -> None:
    """*execution* was granted *granted*, which serves HERE; *other* serves ELSEWHERE."""
    place = f"{HERE}:{granted.port}"
    result = await run(execution, GET.format(place))
    assert (result.status, result.stdout.text) == (ExecutionStatus.SUCCESS, "pong\n"), result
    assert result.facts is not None
    assert (result.facts.network, result.facts.network_shown) == ("filtered", f"hosts: {place}")
    assert result.facts.isolation.network_blocked is True
    checks = {e.check: e.value for e in result.facts.isolation.evidence if e.subject == "network"}
    assert checks["a granted name answers through the relay"] is True
    assert checks["the relay refuses a name that was not granted"] is True
    assert checks["a connection past the relay fails"] is True

    refused = await run(execution, GET.format(f"{ELSEWHERE}:{other.port}"))
    assert refused.status is ExecutionStatus.ERROR
    assert "is not granted to this sandbox" in refused.stderr.text

    addresses = [(HERE, granted.port), (ELSEWHERE, other.port), ("192.0.2.1", 80)]
    past = f"import socket\nfor a in {addresses}:\n" \
        "    try: socket.create_connection(a, 2); print('REACHED', a)\n    except OSError: print('no')"
    assert (await run(execution, past)).stdout.text == "no\nno\nno\n"
    assert other.seen == []


async def there_is_no_relay(execution: CodeExecution) -> None:
    """*execution* was granted nothing."""
    code = "import os, socket\nprint([n for n in os.environ if 'proxy' in n.lower()])\n" \
        "try: socket.create_connection(('127.0.0.1', 3128), 1)\nexcept OSError as e: print(type(e).__name__)"
    result = await run(execution, code)
    assert result.stdout.text == "[]\nConnectionRefusedError\n"
    assert result.facts is not None and (result.facts.network, result.facts.network_hosts) == ("none", ())
