"""What is taken back in the panel is gone at once: in the open sandbox, in its facts, and for what comes later."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel_session import KernelSession
from magic_homes import environment
from panel_client import PanelClient

HOST = "127.0.0.4"
MAGIC = "%%agently_exec --session\n"


class SyntheticTrickle(http.server.BaseHTTPRequestHandler):
    """Answers with ``pong``; below ``/slow`` with bytes that never end, until the other side goes."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"pong")
        self.wfile.flush()
        try:
            while self.path == "/slow" and not threading.Event().wait(0.05):
                self.wfile.write(b".")
                self.wfile.flush()
        except OSError:
            return

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer((HOST, 0), SyntheticTrickle)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


def opening(host: str, path: str = "/") -> str:
    """Return code that opens *host* through the relay, and keeps the answer in ``answer``."""
    return (
        f"{MAGIC}import os, urllib.request\nos.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n"
        f"answer = urllib.request.urlopen('http://{host}{path}')\nprint(answer.read(4))"
    )


@pytest.mark.parametrize("outcome", ["approved_session", "approved_once"])
def test_a_host_ends_in_the_open_sandbox_with_its_connections(home: KernelSession, port: int, outcome: str) -> None:
    panel, host = PanelClient(home), f"{HOST}:{port}"
    home.run(f"{MAGIC}kept = 'kept'")
    assert panel.run(f"%agently allow network {host}", outcome).status == "ok"
    shown = panel.snapshot()
    assert (shown["sandbox"]["network"], shown["sandbox"]["network_hosts"]) == ("filtered", [host])
    [grant] = [item for item in shown["grants"] if item["gate"] == "network"]
    assert grant["subject"] == host
    assert home.run(opening(host, "/slow")).text() == "b'pong'\n"
    taken = panel.ask("revoke", grant_id=grant["grant_id"])
    assert taken["accepted"], taken
    assert f"{host} can no longer be reached" in taken["message"]
    shown = panel.snapshot()
    assert (shown["sandbox"]["network"], shown["sandbox"]["network_hosts"]) == ("none", [])
    assert [item for item in shown["grants"] if item["gate"] == "network"] == []
    rest = f"{MAGIC}try:\n    while answer.read(1):\n        pass\nexcept OSError:\n    pass\nprint(kept, 'ended')"
    ended = home.run(rest, within=20)
    assert ended.text() == "kept ended\n"
    refused = home.run(opening(host))
    assert refused.status == "error"
    assert f"{host} is not granted" in refused.text("stderr")
    asked_again = home.send(f"%agently allow network {host}")
    panel.decide(panel.question(), "denied")
    assert home.wait(asked_again).status == "error"
    home.run("%agently restart")
    assert home.run(opening(host)).status == "error"


def test_a_host_ends_with_every_grant_that_names_it_and_what_is_left_is_told(home: KernelSession, port: int) -> None:
    panel, host, other = PanelClient(home), f"{HOST}:{port}", f"localhost.example:{port}"
    panel.run(f"%agently allow network {host} {other}")
    panel.run("%agently allow network below.other.example")
    grants = {item["subject"]: item["grant_id"] for item in panel.snapshot()["grants"] if item["gate"] == "network"}
    assert set(grants) == {f"{host}, {other}", "below.other.example"}
    assert home.run(opening(host)).text() == "b'pong'\n"
    assert panel.ask("revoke", grant_id=grants[f"{host}, {other}"])["accepted"]
    shown = panel.snapshot()
    assert shown["sandbox"]["network_hosts"] == ["below.other.example"]
    assert {item["subject"] for item in shown["grants"] if item["gate"] == "network"} == {"below.other.example"}
    assert home.run(opening(host)).status == "error"
    assert panel.ask("revoke", grant_id=grants["below.other.example"])["accepted"]


def test_a_file_that_was_given_is_removed_and_asked_for_again(home: KernelSession, tmp_path: Path) -> None:
    panel, far = PanelClient(home), tmp_path / "far.txt"
    far.write_text("from far")
    read = f"{MAGIC}print(open('far.txt').read())"
    assert panel.run(f"%agently grant {far}").status == "ok"
    [given] = [item for item in panel.snapshot()["inputs"] if item["name"] == "far.txt"]
    assert home.run(read).text() == "from far\n"
    taken = panel.ask("revoke", grant_id=given["grant_id"])
    assert taken["accepted"], taken
    assert "far.txt was removed from the sandbox" in taken["message"]
    gone = home.run(read)
    assert (gone.status, gone.error[0]) == ("error", "FileNotFoundError")
    shown = panel.snapshot()
    assert [item for item in shown["inputs"] if item["name"] == "far.txt"] == []
    assert [item for item in shown["grants"] if item["subject"] == str(far)] == []
    assert panel.run(f"%agently grant {far}").status == "ok"  # asked again
    assert home.run(read).text() == "from far\n"


def test_a_mount_cannot_be_ended_in_the_open_sandbox_and_that_is_said(home: KernelSession, tmp_path: Path) -> None:
    panel, far = PanelClient(home), tmp_path / "mounted.txt"
    far.write_text("from far")
    read = f"{MAGIC}print(open('mounted.txt').read())"
    panel.run(f"%agently grant {far} --mode read_only")
    home.run("%agently restart")
    assert home.run(read).text() == "from far\n"
    [given] = [item for item in panel.snapshot()["inputs"] if item["name"] == "mounted.txt"]
    taken = panel.ask("revoke", grant_id=given["grant_id"])
    assert "the open one can still read mounted.txt: restart the sandbox" in taken["message"]
    assert home.run(f"{MAGIC}print(1)").text() == "1\n"
    assert panel.ask("restart_sandbox")["accepted"]
    assert home.run(read).status == "error"
    assert panel.run(f"%agently grant {far} --mode read_only").status == "ok"  # asked again


def test_a_program_in_a_sandbox_of_its_own_loses_the_host_while_it_runs(home: KernelSession, port: int) -> None:
    panel, host = PanelClient(home), f"{HOST}:{port}"
    code = opening(host, "/slow").removeprefix(MAGIC) + (
        "\ntry:\n    while answer.read(1):\n        pass\nexcept OSError:\n    pass\nprint('ended')"
    )
    run = home.send(f"%%agently_exec --network {host}\n{code}")
    panel.decide(panel.question(), "approved_session")
    home.settle(10, lambda: "pong" in run.text())
    assert "pong" in run.text()
    [grant] = [item for item in panel.snapshot()["grants"] if item["gate"] == "network"]
    assert panel.ask("revoke", grant_id=grant["grant_id"])["accepted"]
    assert home.wait(run, within=20).text() == "b'pong'\nended\n"


def test_a_file_that_code_opened_is_asked_for_again(tmp_path: Path, tmp_path_factory: Any) -> None:
    (tmp_path / "beside.txt").write_text("from beside")
    with KernelSession(tmp_path, env=environment(tmp_path_factory.getbasetemp())) as session:
        panel, read = PanelClient(session), "print(open('beside.txt').read())"
        assert panel.run(read).text() == "from beside\n"
        [given] = panel.snapshot()["inputs"]
        assert panel.ask("revoke", grant_id=given["grant_id"])["accepted"]
        assert panel.run(read, "denied").error[0] == "FileNotFoundError"
        assert panel.run(read, "approved_once").text() == "from beside\n"
        assert [item["name"] for item in panel.snapshot()["inputs"]] == ["beside.txt"]


def test_a_kind_of_output_ends_with_the_comms_that_it_opened(tmp_path: Path, tmp_path_factory: Any) -> None:
    opened = "import comm\nmine = comm.create_comm(target_name='synthetic.page', data={})"
    with KernelSession(tmp_path, env=environment(tmp_path_factory.getbasetemp())) as session:
        panel = PanelClient(session)
        assert panel.run("%agently allow comm:synthetic.page").status == "ok"
        first = session.run(opened, allow_stdin=True)
        [message] = first.of("comm_open")
        [grant] = panel.snapshot()["grants"]
        assert (grant["gate"], grant["subject"]) == ("active_output", "comm:synthetic.page")
        assert panel.ask("revoke", grant_id=grant["grant_id"])["accepted"]
        assert session.ask("comm_info_request", {}, channel="shell")["comms"] == {}
        assert session.run("mine.send({'still': 'there'})", allow_stdin=True).of("comm_msg") == []
        again = session.run(opened, allow_stdin=True)
        assert again.of("comm_open") == []
        assert message["content"]["target_name"] == "synthetic.page"


def test_what_an_earlier_session_collected_is_pointed_to(tmp_path: Path, tmp_path_factory: Any) -> None:
    env = environment(tmp_path_factory.getbasetemp())
    with KernelSession(tmp_path, env=env) as first:
        first.run("open('output/kept.txt', 'w').write('kept')")
    with KernelSession(tmp_path, env=env) as second:
        run = second.run("%agently outputs")
        text = "\n".join(str(message["content"]["data"].get("text/plain", "")) for message in run.of("display_data"))
        assert "0 collected files" in text
        assert "Kept from earlier sessions in this folder" in text
        [folder] = [word for word in text.split() if word.endswith("/files") and Path(word, "output/kept.txt").exists()]
        assert Path(folder, "output/kept.txt").read_text() == "kept"
