"""Sockets that listen before the kernel does: when they are bound, when they are left to the application."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import zmq

from agently_kernel.early_sockets import KINDS, Connection, bind_early

PORTS = ("shell", "stdin", "control", "iopub", "hb")


def free_ports() -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


@pytest.fixture
def connection(tmp_path: Path):
    """A connection file: return a function that writes it with changes and returns (path, contents)."""
    contents: dict[str, Any] = {
        "transport": "tcp", "ip": "127.0.0.1", "key": "k", "signature_scheme": "hmac-sha256",
        **{f"{name}_port": port for name, port in zip(PORTS, free_ports(), strict=True)},
    }

    def write(**changes: Any) -> tuple[str, dict[str, Any]]:
        path = tmp_path / "kernel.json"
        info = {**contents, **changes}
        path.write_text(json.dumps(info))
        return str(path), info

    return write


def wanted(info: dict[str, Any], **keys: bytes | None) -> Connection:
    return Connection(
        "tcp", info["ip"], {name: info[f"{name}_port"] for name in KINDS}, keys.get("public"), keys.get("secret")
    )


def test_a_request_that_comes_before_the_kernel_is_kept_for_it(connection) -> None:
    path, info = connection()
    early = bind_early(["-f", path])
    assert early is not None
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.connect(f"tcp://127.0.0.1:{info['shell_port']}")
        client.send(b"first")
        taken = early.take(wanted(info))
        assert taken is not None
        sockets = taken[1]
        assert set(sockets) == {"shell", "stdin", "control", "iopub"}
        assert sockets["shell"].poll(2000)
        identity, message = sockets["shell"].recv_multipart()
        sockets["shell"].send_multipart([identity, b"answer"])
        assert client.poll(2000)
        assert (message, client.recv()) == (b"first", b"answer")
    early.close()


def test_sockets_that_are_not_as_the_application_wants_them_are_closed(connection) -> None:
    path, info = connection()
    early = bind_early(["-f", path, "--AgentlyKernel.timeout=3"])
    assert early is not None
    assert early.take(wanted({**info, "shell_port": info["shell_port"] + 1})) is None
    for name in KINDS:
        socket.create_server(("127.0.0.1", info[f"{name}_port"]), reuse_port=False).close()


def test_encryption_of_the_connection_file_is_in_force(connection) -> None:
    public, secret = zmq.curve_keypair()
    path, info = connection(curve_publickey=public.decode(), curve_secretkey=secret.decode())
    early = bind_early(["-f", path])
    assert early is not None
    taken = early.take(wanted(info, public=public, secret=secret))
    assert taken is not None
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain, context.socket(zmq.DEALER) as client:
        client.curve_serverkey = client.curve_publickey = public
        client.curve_secretkey = secret
        for peer, text in ((plain, b"plain"), (client, b"encrypted")):
            peer.linger = 0
            peer.connect(f"tcp://127.0.0.1:{info['shell_port']}")
            peer.send(text)
        assert taken[1]["shell"].poll(2000)
        assert taken[1]["shell"].recv_multipart()[1] == b"encrypted"
        assert not taken[1]["shell"].poll(200)
    early.close()


@pytest.mark.parametrize(
    "changes",
    [{"transport": "ipc"}, {"shell_port": 0}, {"ip": "256.1.1.1"}, {"iopub_port": "none"}, {"control_port": None}],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_application(connection, changes: dict[str, Any]) -> None:
    path, _ = connection(**changes)
    assert bind_early(["-f", path]) is None


@pytest.mark.parametrize(
    "arguments", [[], ["-f"], ["-f", "/no/such/file.json"], ["-f", "{path}", "--ip=0.0.0.0"], ["--f={path}"]]
)
def test_other_arguments_are_left_to_the_application(connection, arguments: list[str]) -> None:
    path, _ = connection()
    assert bind_early([argument.format(path=path) for argument in arguments]) is None


def test_a_port_that_is_taken_leaves_nothing_open(connection) -> None:
    path, info = connection()
    with socket.create_server(("127.0.0.1", info["iopub_port"])):
        assert bind_early(["-f", path]) is None
    early = bind_early(["-f", path])
    assert early is not None
    early.close()
