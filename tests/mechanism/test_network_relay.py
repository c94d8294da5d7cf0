"""Only the granted hosts, in real sandboxes: what is reached, what is not, what is observed, and that it is told."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "network"))

from relay_checks import (
    ELSEWHERE,
    GET,
    HERE,
    HOSTILE,
    PROXIED,
    only_the_granted_is_reached,
    run,
    there_is_no_relay,
)
from synthetic_origin import Origin, origin

from agently_kernel.contract.bundle import CodeExecutionFile, CodeExecutionRequest
from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.execution import CodeExecution
from agently_kernel.providers.bubblewrap import BubblewrapExecutionResourceProvider
from agently_kernel.providers.bubblewrap_args import BubblewrapLayout


@contextlib.asynccontextmanager
async def executing(*hosts: str, provider: str = "bubblewrap") -> AsyncIterator[CodeExecution]:
    policy = ExecutionResourcePolicy(network_mode="hosts", network_hosts=hosts) if hosts else ExecutionResourcePolicy()
    async with CodeExecution.async_open(policy=policy, candidates=(provider,)) as execution:
        yield execution


@pytest.mark.parametrize("provider", ["bubblewrap", "runsc"])
async def test_a_granted_host_is_reached_and_nothing_else(provider: str) -> None:
    async with (
        origin(HERE) as granted, origin(ELSEWHERE) as other,
        executing(f"{HERE}:{granted.port}", provider=provider) as execution,
    ):
        await only_the_granted_is_reached(execution, granted, other)


OWN = """
import http.server, threading, urllib.request
class SyntheticAnswer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"own")
    def log_message(self, *a): pass
server = http.server.HTTPServer(("127.0.0.1", 0), SyntheticAnswer)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://localhost:{server.server_port}/").read().decode())
"""


async def test_a_granted_loopback_address_is_reached_by_programs_as_they_are() -> None:
    async with origin("127.0.0.1") as server:  # noqa: SIM117 - the second needs the first
        async with executing(f"127.0.0.1:{server.port}") as execution:
            url = f"http://127.0.0.1:{server.port}/"
            got = await run(execution, f"import urllib.request\nprint(urllib.request.urlopen('{url}').read().decode())")
            assert got.stdout.text == "pong\n", got
            got = await run(execution, f"curl -sS --max-time 20 {url}", "bash")
            assert got.stdout.text.strip() == "pong", got
            own = await run(execution, OWN)
            assert own.stdout.text == "own\n", "what was not granted means the sandbox's own loopback"


async def test_without_a_grant_there_is_no_relay() -> None:
    async with executing() as execution:
        await there_is_no_relay(execution)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for HERE and its key, made for this test."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-keyout", key, "-out", cert, "-subj", "/CN=synthetic", "-addext", f"subjectAltName=IP:{HERE}"],
        check=True, capture_output=True, timeout=30,
    )
    return key, cert


CLIENTS: dict[str, tuple[str, str]] = {
    "curl": ("bash", "NO_PROXY= no_proxy= curl -sS --max-time 20 --cacert cert.pem https://{0}/marker"),
    "urllib": ("python", PROXIED + "import ssl, urllib.request\nc = ssl.create_default_context(cafile='cert.pem')\n"
               "print(urllib.request.urlopen('https://{0}/marker', context=c).read().decode(), end='')"),
    "pip's requests": ("python", PROXIED + "from pip._vendor import requests\n"
                       "print(requests.get('https://{0}/marker', verify='cert.pem').text, end='')"),
    "git": ("bash", "export NO_PROXY= no_proxy= GIT_SSL_CAINFO=cert.pem\n"
            "timeout 5 git ls-remote https://{0}/marker\necho pong"),
    "node": ("node", "process.env.NO_PROXY = process.env.no_proxy = ''\n"
             "const [h, p] = '{0}'.split(':'), u = new URL(process.env.HTTPS_PROXY)\n"
             "require('http').request({{host: u.hostname, port: u.port, method: 'CONNECT', path: '{0}'}})"
             ".on('connect', (_, socket) => require('https').get({{socket, host: h, agent: false, path: '/marker',"
             " ca: require('fs').readFileSync('cert.pem'), checkServerIdentity: () => undefined}},"
             " r => r.on('data', d => process.stdout.write(d)).on('end', () => process.exit()))).end()"),
}


@pytest.mark.parametrize("client", sorted(CLIENTS))
async def test_usual_clients_find_the_relay_by_themselves(client: str, certificate: tuple[Path, Path]) -> None:
    import ssl  # not to be had everywhere that the other tests run

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    found = Origin()
    server = await asyncio.start_server(found.serve, HERE, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    language, code = CLIENTS[client]
    make = f"cat > cert.pem <<'END'\n{certificate[1].read_text()}END\n"
    if language == "node":
        make = f"require('fs').writeFileSync('cert.pem', {certificate[1].read_text()!r})\n"
    if language == "python":
        make = f"open('cert.pem', 'w').write({certificate[1].read_text()!r})\n"
    async with executing(f"{HERE}:{port}") as execution:
        result = await run(execution, make + code.format(f"{HERE}:{port}"), language)
    server.close()
    assert result.stdout.text.strip() == "pong", result
    assert any(b" /marker" in seen for seen in found.seen)


async def test_much_goes_through_in_both_directions() -> None:
    size = 30_000_000
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
    async with origin(HERE, answer) as down, origin(HERE) as up:
        code = PROXIED + (
            f"import urllib.request\nprint(len(urllib.request.urlopen('http://{HERE}:{down.port}/').read()))\n"
            f"r = urllib.request.Request('http://{HERE}:{up.port}/', data=b'y' * {size})\n"
            "print(urllib.request.urlopen(r).read())"
        )
        async with executing(f"{HERE}:{down.port}", f"{HERE}:{up.port}") as execution:
            result = await run(execution, code)
        assert result.stdout.text == f"{size}\nb'pong'\n", result
        assert bytes(up.seen[0]).partition(b"\r\n\r\n")[2] == b"y" * size


async def test_many_connections_at_once_are_all_served_and_output_goes_on() -> None:
    code = PROXIED + (
        "import urllib.request, threading\nok = []\n"
        "def one():\n    ok.append(urllib.request.urlopen('http://{0}/', timeout=50).read())\n"
        "for _ in range(10):\n    t = [threading.Thread(target=one) for _ in range(100)]\n"
        "    [x.start() for x in t]; [x.join() for x in t]; print(len(ok), flush=True)\n"
        "print(set(ok))"
    )
    async with origin(HERE) as server, executing(f"{HERE}:{server.port}") as execution:
        result = await run(execution, code.format(f"{HERE}:{server.port}"))
    assert result.stdout.text.splitlines()[-2:] == ["1000", "{b'pong'}"], result


async def test_names_are_told_as_events_with_their_status_and_nothing_else() -> None:
    events: list[ExecutionResourceEvent] = []
    async with origin(HERE) as server, executing(f"{HERE}:{server.port}") as execution:
        execution.manager.add_hook(events.append, ("execution_resource.progress",))
        await run(execution, GET.format(f"{HERE}:{server.port}/secret-path?key=value"))
        await run(execution, GET.format("other.example/secret-path"))
    told = [dict(event.details) for event in events if event.phase == "network"]
    assert told == [
        {"host": HERE, "port": server.port, "status": "connected"},
        {"host": "other.example", "port": 80, "status": "refused"},
    ]


async def test_what_only_a_step_may_reach_is_closed_when_it_has_ended() -> None:
    """A synthetic package index, which the step that installs may reach, and the program may not."""
    index = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
    async with origin(HERE, index) as server:
        policy = ExecutionResourcePolicy(auto_allow=True, package_hosts={"python": (f"{HERE}:{server.port}",)})
        async with CodeExecution.async_open(policy=policy, candidates=("bubblewrap",)) as execution:
            requirements = f"--index-url http://{HERE}:{server.port}/simple\n--trusted-host {HERE}\n"
            program = PROXIED + (
                "import urllib.request\nopen = urllib.request.build_opener("
                "urllib.request.ProxyHandler({'http': 'http://127.0.0.1:3128'})).open\n"
                f"try: open('http://{HERE}:{server.port}/'); print('REACHED')\nexcept OSError as e: print(e)"
            )

            def request(more: str) -> CodeExecutionRequest:
                return CodeExecutionRequest(
                    language="python", source_code=program,
                    files=(CodeExecutionFile(path="requirements.txt", content=(requirements + more).encode()),),
                )

            result = await execution.async_run(request(""), timeout=60)
            assert result.status is ExecutionStatus.SUCCESS, result
            assert "403" in result.stdout.text and "REACHED" not in result.stdout.text
            missing = await execution.async_run(request("no-such-package\n"), timeout=60)
            assert missing.status is ExecutionStatus.ERROR
    assert any(b"/simple/no-such-package/" in bytes(seen) for seen in server.seen)


async def test_a_session_gets_a_host_and_keeps_its_variables(tmp_path: Path) -> None:
    from bubblewrap_session import opened

    from agently_kernel.network.relay import NetworkRelay

    async with origin(HERE) as server, opened(tmp_path) as session:
        assert (await session.run("kept = 41; import os; print('HTTP_PROXY' in os.environ)")).stdout.text == "False\n"
        session.resource.use_network(NetworkRelay((f"{HERE}:{server.port}",)))
        result = await session.run("print(kept + 1)\n" + GET.format(f"{HERE}:{server.port}"))
        assert result.stdout.text == "42\npong\n", result
        assert session.resource.facts.network == "filtered"
        await session.resource.restart_interpreter()
        assert (await session.run(GET.format(f"{HERE}:{server.port}"))).stdout.text == "pong\n"
        assert session.resource.relay is not None
        session.resource.relay.hosts = ()
        assert (await session.run(GET.format(f"{HERE}:{server.port}"))).status is ExecutionStatus.ERROR


@pytest.fixture
def shared_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The provider with one option less: its sandboxes share the host's network."""
    real = BubblewrapExecutionResourceProvider._layout

    def weakened(*args: object, **options: object) -> BubblewrapLayout:
        layout: BubblewrapLayout = real(*args, **options)  # type: ignore[arg-type]
        return layout.model_copy(update={"private_network": False})

    monkeypatch.setattr(BubblewrapExecutionResourceProvider, "_layout", staticmethod(weakened))
    yield


async def test_a_sandbox_with_the_whole_network_is_never_taken_for_one_of_single_hosts(shared_network: None) -> None:
    async with executing("example.org") as execution:
        result = await run(execution, "print('ran')")
    assert result.status is ExecutionStatus.BLOCKED
    assert result.stdout.text == ""
    assert "network" in result.message


@pytest.mark.parametrize("attack", sorted(HOSTILE))
async def test_whatever_a_cell_does_to_the_relay_the_session_goes_on(attack: str, tmp_path: Path) -> None:
    from bubblewrap_session import opened

    from agently_kernel.network.relay import NetworkRelay

    async with origin(HERE) as server, opened(tmp_path) as session:
        session.resource.use_network(NetworkRelay((f"{HERE}:{server.port}",)))
        assert (await session.run(HOSTILE[attack](server.port), timeout=40)).status is ExecutionStatus.SUCCESS
        await session.run("held = s = None; import gc; gc.collect()")
        assert (await session.run("print('alive')", timeout=10)).stdout.text == "alive\n"
        assert (await session.run(GET.format(f"{HERE}:{server.port}"), timeout=40)).stdout.text == "pong\n"
