# ruff: noqa: E501, UP031 - programs of children stand on one line and hold braces
"""The inside observations: what they say without isolation, and that each restriction flips exactly its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agently_kernel.guest import probe

_PROGRAM = """
import importlib, json, os, sys, types
package = types.ModuleType("guest_alone"); package.__path__ = [%r]; sys.modules["guest_alone"] = package
seccomp = importlib.import_module("guest_alone.seccomp")
for word in sys.argv[2:]:
    if word == "filter": seccomp.install(seccomp.build(os.uname().machine))
    if word == "no-inet": seccomp.install(seccomp.build(os.uname().machine, allow_inet=False))
print(json.dumps(importlib.import_module("guest_alone.probe").observe(json.loads(sys.argv[1]))))
"""


def observe(challenge: dict[str, Any], *words: str) -> dict[tuple[str, str], Any]:
    """Observations of a process of its own, as {(subject, check): value}."""
    folder = str(Path(probe.__file__).parent)
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM % folder, json.dumps(challenge), *words]
    ended = subprocess.run(argv, stdout=subprocess.PIPE, timeout=60, check=True)
    found = json.loads(ended.stdout)
    assert all(set(item) == {"subject", "check", "value", "detail"} for item in found)
    assert len({(item["subject"], item["check"]) for item in found}) == len(found)
    return {(item["subject"], item["check"]): item["value"] for item in found}


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What a host plants, reachable from here."""
    (tmp_path / "canary").write_text("canary")
    (tmp_path / "writable").mkdir(mode=0o777)
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        tcp.bind(("127.0.0.1", 0))
        abstract.bind("\0guest-probe-test-%d" % os.getpid())
        named.bind(str(tmp_path / "s"))
        for listener in (tcp, abstract, named):
            listener.listen(8)
        yield {
            "nonce": "n", "write_roots": [str(tmp_path)], "host_pid": os.getpid(),
            "namespaces": {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "net", "ipc", "mnt", "user")},
            "canary_file": str(tmp_path / "canary"), "canary_dir": str(tmp_path / "writable"),
            "tcp_port": tcp.getsockname()[1], "abstract_name": "guest-probe-test-%d" % os.getpid(),
            "unix_sockets": [str(tmp_path / "s")],
        }


def test_without_isolation_everything_is_told_to_be_open(planted: dict[str, Any]) -> None:
    found = observe(planted)
    for subject, check in [
        ("process_contained", "own pid namespace"), ("process_contained", "own ipc namespace"),
        ("process_contained", "a process of the host cannot be signalled"),
        ("process_contained", "an abstract socket of the host cannot be reached"),
        ("host_filesystem_restricted", "own mnt namespace"),
        ("host_filesystem_restricted", "a file of the host cannot be read"),
        ("host_filesystem_restricted", "a folder of the host cannot be written"),
        ("host_filesystem_restricted", "a socket file of the host cannot be reached"),
        ("privilege_escalation_blocked", "no new privileges by exec"),
        ("syscalls_restricted", "a filter is in force"), ("syscalls_restricted", "ptrace is refused"),
        ("syscalls_restricted", "ioctl TIOCSTI is refused"), ("syscalls_restricted", "keyctl is refused"),
        ("network", "the host's loopback cannot be reached"),
    ]:
        assert found[subject, check] is False, (subject, check)
    assert os.listdir(planted["canary_dir"]) == ["written-from-inside"]


def test_the_filter_closes_the_axis_of_system_calls_and_no_other(planted: dict[str, Any]) -> None:
    found = observe(planted, "filter")
    assert {value for (subject, _), value in found.items() if subject == "syscalls_restricted"} == {True}
    assert found["privilege_escalation_blocked", "no new privileges by exec"] is True
    assert found["network", "the host's loopback cannot be reached"] is False
    assert found["host_filesystem_restricted", "a file of the host cannot be read"] is False


def test_without_internet_sockets_the_network_is_closed(planted: dict[str, Any]) -> None:
    found = observe(planted, "no-inet")
    assert {value for (subject, _), value in found.items() if subject == "network"} == {True}


def test_what_was_not_planted_is_not_tried() -> None:
    found = observe({"nonce": "n", "write_roots": []}, "filter")
    assert ("network", "the host's loopback cannot be reached") not in found
    assert ("process_contained", "a process of the host cannot be signalled") not in found
    assert ("host_filesystem_restricted", "a file of the host cannot be read") not in found


def test_a_dangerous_attempt_does_not_change_the_process_that_goes_on() -> None:
    code = (
        "import importlib, os, sys, types\n"
        "package = types.ModuleType('guest_alone'); package.__path__ = [%r]; sys.modules['guest_alone'] = package\n"
        "before = os.stat('/proc/self/ns/user').st_ino, os.getresuid()\n"
        "importlib.import_module('guest_alone.probe').observe({'nonce': 'n'})\n"
        "print((os.stat('/proc/self/ns/user').st_ino, os.getresuid()) == before)"
    )
    ended = subprocess.run([sys.executable, "-c", code % str(Path(probe.__file__).parent)], stdout=subprocess.PIPE, timeout=60)
    assert ended.stdout == b"True\n"


def test_it_is_quick(planted: dict[str, Any]) -> None:
    code = (
        "import importlib, json, os, sys, time, types\n"
        "package = types.ModuleType('guest_alone'); package.__path__ = [%r]; sys.modules['guest_alone'] = package\n"
        "seccomp = importlib.import_module('guest_alone.seccomp'); seccomp.install(seccomp.build(os.uname().machine))\n"
        "probe = importlib.import_module('guest_alone.probe'); c = json.loads(sys.argv[1])\n"
        "times = []\nfor _ in range(5):\n    t = time.perf_counter(); probe.observe(c); times.append(time.perf_counter() - t)\n"
        "print(min(times))"
    )
    argv = [sys.executable, "-c", code % str(Path(probe.__file__).parent), json.dumps(planted)]
    ended = subprocess.run(argv, stdout=subprocess.PIPE, timeout=60, check=True)
    assert float(ended.stdout) < 0.015
