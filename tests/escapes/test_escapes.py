"""Every attempt is stopped in a real bubblewrap sandbox, and demonstrably would not be outside one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import attempts
import pytest
from planted import Outcome, Planted

OPEN_OUTSIDE = [
    "file_read", "file_read_through_a_link", "file_overwrite", "file_see_host_tmp",
    "file_container_engine_sockets", "file_write_in_the_home_of_the_host", "process_signal_the_host",
    "process_descriptor_of_the_host", "process_host_shared_memory", "process_raise_limits", "network_loopback_tcp",
    "network_loopback_udp", "network_abstract_socket", "environment_host_name", "call_without_a_filter", "call_kcmp",
    "call_ptrace_traceme", "call_keyctl", "environment_core_dumps", "call_personality",
    "call_io_setup", "call_another_line_discipline", "call_sockets_of_odd_protocols", "resource_signals_of_the_user",
    "call_netlink_of_firewalls_and_devices",
]
"""Attempts that every process of this machine's user gets through with when nothing holds it back."""


@pytest.mark.parametrize("name", list(attempts.ATTEMPTS))
def test_blocked(outcome: Outcome, name: str) -> None:
    assert outcome.lines[name].split()[0] == "BLOCKED", outcome.lines[name]


def test_the_run_was_alive_to_its_end(outcome: Outcome) -> None:
    assert outcome.nonce_echoed
    assert set(outcome.lines) == {*attempts.ATTEMPTS, str(len(attempts.ATTEMPTS))}


def test_the_host_saw_nothing(outcome: Outcome, planted: Planted) -> None:
    assert planted.reached == []
    assert Path(planted.facts["canary"]).read_text() == planted.facts["secret"]
    assert list(Path(planted.facts["home"]).iterdir()) == []


def test_a_set_uid_file_is_collected_without_its_bits(outcome: Outcome) -> None:
    assert outcome.collected["output/set-uid"] & 0o6111 == 0


def test_the_same_attempts_reach_their_aim_outside(outcome: Outcome, planted: Planted, tmp_path: Path) -> None:
    """The control: without it, an attempt that is broken would read as one that was blocked."""
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({**planted.facts, "temporary": planted.facts["temporary"][:1]}))
    before = len(planted.reached)
    answer = subprocess.run(
        [sys.executable, str(Path(attempts.__file__)), str(facts), *OPEN_OUTSIDE], cwd=tmp_path, timeout=60,
        capture_output=True, text=True, check=True, preexec_fn=lower_core_limit,
    )
    lines = {line.split()[1]: line.split()[0] for line in answer.stdout.splitlines()}
    (Path(planted.facts["home"]) / ".probe").unlink()
    assert {name: lines[name] for name in OPEN_OUTSIDE} == dict.fromkeys(OPEN_OUTSIDE, "REACHED")
    assert sorted(planted.reached[before:]) == ["abstract", "signal", "socket file", "tcp", "udp"]


def lower_core_limit() -> None:
    """Let the control see a core limit that is not zero where the hard limit allows one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if soft == 0 and hard != 0:
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
