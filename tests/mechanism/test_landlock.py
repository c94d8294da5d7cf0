"""Landlock: the contract with the expectations of its class, its honest axes, and that nothing gets away."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import pytest
from provider_support import concluded, probe, surroundings

from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.providers import landlock
from agently_kernel.providers.landlock import LandlockExecutionResourceProvider, closed_folder
from agently_kernel.sandbox import supervisor
from agently_kernel.sandbox.local import WATCHED_SPACE
from agently_kernel.testing.provider_contract import ProviderContract

# As root the guest takes another uid, which the home of root is closed to: the system's interpreter is open to all.
CONFIG = {"python": "/usr/bin/python3"} if os.geteuid() == 0 else {}
POLICY = ExecutionResourcePolicy(isolation="preferred")
HONEST = {
    "process_contained": False, "host_filesystem_restricted": False, "privilege_escalation_blocked": True,
    "syscalls_restricted": True, "network_blocked": True,
}


class TestLandlockContract(ProviderContract):
    """All of the contract; only claimed axes are attacked."""

    config = CONFIG

    def make_provider(self) -> ExecutionResourceProvider:
        return LandlockExecutionResourceProvider()


async def test_exactly_what_it_can_witness_is_claimed() -> None:
    found = await probe(LandlockExecutionResourceProvider(), CONFIG)
    assert found.capability is not None, found.reason
    assert concluded(found.capability.isolation) == HONEST
    assert found.capability.safety_class.value == "constrained"
    assert found.capability.mechanism["metadata_visible"] is True


async def test_it_is_never_taken_where_all_axes_are_required(tmp_path: Path) -> None:
    async with surroundings(LandlockExecutionResourceProvider(), CONFIG, tmp_path) as place:
        result = await place.script("print(1)")
    assert result.status is ExecutionStatus.BLOCKED and "process_contained" in result.message


ATTEMPTS = """
import json, os, socket, sys
host = json.loads(sys.stdin.read())
seen = {}
def attempt(name, what):
    try:
        seen[name] = what() or "done"
    except OSError as error:
        seen[name] = error.__class__.__name__
attempt("read", lambda: open(host["file"]).read())
attempt("write", lambda: open(host["file"], "a").write("x"))
attempt("create", lambda: open(host["file"] + ".new", "w").close())
attempt("remove", lambda: os.remove(host["file"]))
attempt("list", lambda: os.listdir(os.path.dirname(host["file"])))
attempt("link", lambda: os.link(host["file"], "mine"))
attempt("signal", lambda: os.kill(host["pid"], 0))
attempt("environ", lambda: open("/proc/%d/environ" % host["pid"]).read())
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", 1), 1))
attempt("unix", lambda: socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"))
attempt("shm", lambda: open("/dev/shm/agently-landlock-test", "w").close())
attempt("stat", lambda: os.stat(host["file"]).st_size)
attempt("own", lambda: open("note.txt", "w").close())
print(json.dumps(seen))
"""


async def test_contents_signals_and_sockets_are_out_of_reach_and_metadata_is_not(tmp_path: Path) -> None:
    folder = tmp_path
    for part in (folder, *folder.parents):
        if part != Path("/tmp") and str(part).startswith("/tmp"):
            part.chmod(0o755)
    canary = tmp_path / "canary"
    canary.write_text("secret")
    canary.chmod(0o666)
    challenge = json.dumps({"file": str(canary), "pid": os.getpid()}).encode()
    async with surroundings(LandlockExecutionResourceProvider(), CONFIG, tmp_path / "store", POLICY) as place:
        result = await place.script(ATTEMPTS, stdin=challenge)
    assert result.status is ExecutionStatus.SUCCESS, (result.message, result.stderr.text)
    seen = json.loads(result.stdout.text)
    out_of_reach = ("read", "write", "create", "remove", "list", "signal", "environ", "tcp", "unix", "shm")
    assert seen == {
        **dict.fromkeys(out_of_reach, "PermissionError"),
        "link": "OSError",  # EXDEV, which Landlock answers so that programs copy instead
        "stat": 6, "own": "done",
    }
    assert canary.read_text() == "secret"


DAEMONS = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        open("/proc/self/comm", "w").write("agently-daemon")
        time.sleep(600)
time.sleep(600)
"""


def daemons() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text().strip() == "agently-daemon":
                    found.append(entry.name)
            except OSError:
                continue
    return found


async def test_space_is_watched_and_cannot_be_taken_faster_than_it_is_written(tmp_path: Path) -> None:
    policy = POLICY.model_copy(update={"limits": ResourceLimits(scratch_bytes=32 << 20, output_bytes=1 << 20)})
    async with surroundings(LandlockExecutionResourceProvider(), CONFIG, tmp_path, policy) as place:
        result = await place.cell(
            "import ctypes, errno, os\nfile = os.open('x', os.O_CREAT | os.O_RDWR)\n"
            "ctypes.CDLL(None, use_errno=True).fallocate(file, 0, ctypes.c_long(0), ctypes.c_long(1 << 30))\n"
            "print(ctypes.get_errno() == errno.EOPNOTSUPP)"
        )
        assert result.stdout.text == "True\n", result
        assert result.facts is not None
        details = {fact.name: fact.detail for fact in result.facts.limits}
        assert details["scratch_bytes"] == details["output_bytes"] == WATCHED_SPACE
        result = await place.cell("n = 0\nwhile True: open(f'{n}', 'wb').write(bytes(1 << 20)); n += 1", timeout=60)
        assert result.death is not None and "its scratch folder passed 33 MiB" in result.death.message, result


async def test_daemons_that_left_their_session_end_with_the_sandbox(tmp_path: Path) -> None:
    async with surroundings(LandlockExecutionResourceProvider(), CONFIG, tmp_path, POLICY) as place:
        result = await place.script(DAEMONS, timeout=1.5)
        assert result.status is ExecutionStatus.TIMED_OUT
    until = time.monotonic() + 3
    while daemons() and time.monotonic() < until:
        time.sleep(0.05)
    assert daemons() == []


async def test_without_rules_contents_are_seen_to_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weakened twin: the whole host readable and writable."""
    monkeypatch.setattr(landlock, "rules", lambda *_: {"read": ["/"], "write": ["/"], "devices": ["/dev"]})
    found = await probe(LandlockExecutionResourceProvider(), CONFIG)
    assert found.capability is not None, found.reason
    failed = {item.check for item in found.capability.isolation.evidence if item.value is False}
    assert {"a file of the host cannot be read", "a folder of the host cannot be written"} <= failed


async def test_a_kernel_without_it_is_said_with_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "landlock_version", lambda: 0)
    found = await probe(LandlockExecutionResourceProvider(), CONFIG)
    assert not found.available and found.reason == "This kernel has no Landlock, or it is switched off."
    assert "lsm=landlock" in found.remedy


@pytest.mark.parametrize(
    ("version", "size", "bits"),
    [(1, 8, 13), (2, 8, 14), (3, 8, 15), (4, 16, 15), (5, 16, 16), (6, 24, 16), (7, 24, 16)],
)
def test_each_version_takes_away_all_that_it_can(version: int, size: int, bits: int) -> None:
    data = supervisor.ruleset_attributes(version)
    assert len(data) == size
    assert struct.unpack_from("=Q", data)[0] == (1 << bits) - 1


def test_a_folder_that_others_may_not_enter_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    for part in (tmp_path, *tmp_path.parents):
        if str(part).startswith("/tmp/"):
            part.chmod(0o755)
    closed.chmod(0o700)
    inside = str(closed / "bin" / "python")
    assert closed_folder(inside) == (str(closed), inside)
    assert closed_folder("/usr/bin/python3") is None
    assert closed_folder("/usr/bin/python3", inside) == (str(closed), inside), "not the path that is open to all"
