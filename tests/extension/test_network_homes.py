"""Hosts that a person allows, in both homes: in the session with its variables kept, and for a program of its own."""

from __future__ import annotations

import http.server
import threading
from typing import Any

from kernel_session import KernelSession, Run
from magic_homes import answering


def shown(run: Run) -> str:
    """Return the plain text of everything that was displayed."""
    return "\n".join(str(m["content"]["data"].get("text/plain", "")) for m in run.of("display_data", "execute_result"))


class SyntheticAnswer(http.server.BaseHTTPRequestHandler):
    """Answers everything with ``pong``."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"pong")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


GET = (
    "import os, urllib.request\nos.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n"
    "print(kept, urllib.request.urlopen('http://127.0.0.3:{}/').read())"
)


def test_a_session_is_given_a_host_when_a_person_allows_it(home: KernelSession) -> None:
    server = http.server.HTTPServer(("127.0.0.3", 0), SyntheticAnswer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port, magic = server.server_address[1], "%%agently_exec --session\n"
    try:
        assert home.run(f"{magic}kept = 'kept'").status == "ok"
        assert home.run(f"{magic}{GET.format(port)}").status == "error"
        line = f"%agently allow network 127.0.0.3:{port}"
        assert home.run(line).error[0] == "ApprovalDenied"
        allowed = home.run(line, allow_stdin=True, during=answering(home, "allow"))
        assert f"A cell asks for network access to: 127.0.0.3:{port}." in allowed.prompts[0][0]
        assert f"✓ hosts: 127.0.0.3:{port}" in shown(allowed)
        assert home.run(f"{magic}{GET.format(port)}").text() == "kept b'pong'\n"
        assert f"network (hosts: 127.0.0.3:{port}): all else blocked" in shown(home.run("%agently facts"))
        refused = home.run(magic + GET.replace("127.0.0.3", "other.example").format(80))
        assert "other.example:80 is not granted" in refused.text("stderr")
        assert "%agently allow network other.example" in refused.text("stderr")
        assert home.run("%agently restart").status == "ok"
        assert home.run(f"{magic}kept = 'anew'\n{GET.format(port)}").text() == "anew b'pong'\n"
        fresh = f"%%agently_exec --network 127.0.0.3:{port}\nkept = 'fresh'\n" + GET.format(port)
        assert home.run(fresh).text() == "fresh b'pong'\n"  # what the session may, a program may without a question
    finally:
        server.shutdown()


def test_the_session_reaches_a_loopback_address_that_is_allowed_after_another_host(home: KernelSession) -> None:
    """The variables of a running interpreter follow what is granted: past the relay, 127.0.0.1 is the sandbox's own."""
    server = http.server.HTTPServer(("127.0.0.1", 0), SyntheticAnswer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    magic = "%%agently_exec --session\n"
    host = f"127.0.0.1:{server.server_address[1]}"
    get = f"{magic}import urllib.request\nprint(kept, urllib.request.urlopen('http://{host}/').read())"
    try:
        assert home.run(f"{magic}kept = 'kept'").status == "ok"
        for allowed in ("127.0.0.3:9", host):
            home.run(f"%agently allow network {allowed}", allow_stdin=True, during=answering(home, "allow"))
            if allowed != host:
                assert home.run(get).status == "error"
        assert home.run(get).text() == "kept b'pong'\n"
    finally:
        server.shutdown()
