from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from agently_kernel.contract.isolation import IsolationFacts
from agently_kernel.guest.wire import WireError
from agently_kernel.sandbox.observe import Challenge

ALL_HELD = json.dumps(
    [
        {"subject": subject, "check": "x", "value": True, "detail": ""}
        for subject in (
            "process_contained",
            "host_filesystem_restricted",
            "privilege_escalation_blocked",
            "syscalls_restricted",
            "network",
        )
    ]
).encode()


def concluded(challenge: Challenge, payload: bytes = ALL_HELD) -> dict[str, bool | None]:
    facts = IsolationFacts.from_evidence(challenge.evaluate(payload, "n"))
    return {
        "process": facts.process_contained,
        "files": facts.host_filesystem_restricted,
        "privilege": facts.privilege_escalation_blocked,
        "syscalls": facts.syscalls_restricted,
        "network": facts.network_blocked,
    }


HELD = {"process": True, "files": True, "privilege": True, "syscalls": True, "network": True}


def test_nothing_reached_and_nothing_left_behind(tmp_path: Path) -> None:
    with Challenge("n", write_roots=["/w"], folder=tmp_path) as challenge:
        keys = challenge.keys
        assert concluded(challenge) == HELD
        assert keys["nonce"] == "n" and keys["write_roots"] == ["/w"] and keys["host_pid"] == os.getpid()
        assert keys["namespaces"]["pid"] == os.stat("/proc/self/ns/pid").st_ino
        assert len(Path(keys["canary_file"]).read_text()) == 16
        assert oct(Path(keys["canary_dir"]).stat().st_mode & 0o777) == "0o777"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionRefusedError), socket.socket() as probe:
        probe.connect(("127.0.0.1", keys["tcp_port"]))


def reach_tcp(keys: dict[str, object]) -> None:
    with socket.create_connection(("127.0.0.1", int(str(keys["tcp_port"])))) as probe:
        probe.sendall(str(keys["nonce"]).encode())


def reach_abstract(keys: dict[str, object]) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect("\0" + str(keys["abstract_name"]))


def reach_socket_file(keys: dict[str, object]) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(keys["unix_sockets"][0])  # type: ignore[index]


def write_canary(keys: dict[str, object]) -> None:
    (Path(str(keys["canary_dir"])) / "x").write_text("")


@pytest.mark.parametrize(
    ("reach", "axis"),
    [(reach_tcp, "network"), (reach_abstract, "process"), (reach_socket_file, "files"), (write_canary, "files")],
)
def test_what_the_host_saw_counts_against_the_guests_word(tmp_path: Path, reach: object, axis: str) -> None:
    with Challenge("n", write_roots=[], folder=tmp_path) as challenge:
        reach(challenge.keys)  # type: ignore[operator]
        assert concluded(challenge) == {**HELD, axis: False}


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.0\r\n\r\n", b"nn", b"\xff" * 300])
def test_some_program_of_the_host_at_the_port_is_not_the_sandbox(tmp_path: Path, said: bytes) -> None:
    with Challenge("n", write_roots=[], folder=tmp_path) as challenge:
        port = int(str(challenge.keys["tcp_port"]))
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(said)
            assert concluded(challenge) == HELD
        with socket.create_connection(("127.0.0.1", port)) as stranger:  # and it does not hide the attempt behind it
            stranger.sendall(said)
            reach_tcp(challenge.keys)
            assert concluded(challenge) == {**HELD, "network": False}


def test_missing_observations_are_not_true(tmp_path: Path) -> None:
    with Challenge("n", write_roots=[], folder=tmp_path) as challenge:
        assert concluded(challenge, b"[]") == dict.fromkeys(HELD)
        one = json.dumps([{"subject": "network", "check": "c", "value": False}]).encode()
        assert concluded(challenge, one) == {**dict.fromkeys(HELD), "network": False}


def test_a_remote_sandbox_gets_no_host_targets() -> None:
    with Challenge("n", write_roots=["/w"], local=False) as challenge:
        assert challenge.keys == {"nonce": "n", "write_roots": ["/w"]}
        assert concluded(challenge) == HELD


@pytest.mark.parametrize(
    ("payload", "nonce", "reason"),
    [
        (ALL_HELD, "other", "nonce"),
        (b"{}", "n", "not a list"),
        (b"[1]", "n", "not an object"),
        (b'[{"subject": "moon", "check": "c", "value": true}]', "n", "no such subject"),
        (b'[{"subject": "network", "check": "c", "value": 1}]', "n", "neither true"),
        (b'[{"subject": "network", "check": 4, "value": true}]', "n", "no such subject or check"),
        (b"[" + b",".join([b"{}"] * 300) + b"]", "n", "at most 256"),
        (b"nonsense", "n", "not JSON"),
    ],
)
def test_malformed_reports_are_refused(tmp_path: Path, payload: bytes, nonce: str, reason: str) -> None:
    with Challenge("n", write_roots=[], folder=tmp_path) as challenge, pytest.raises(WireError, match=reason):
        challenge.evaluate(payload, nonce)
