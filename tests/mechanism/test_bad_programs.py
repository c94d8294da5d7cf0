"""A program of the right name that misbehaves: it is given up within bounds of time and memory, with a sentence."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
import sys
import time
from pathlib import Path

import pytest

from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.providers import bubblewrap_sandbox
from agently_kernel.providers.bubblewrap import BubblewrapExecutionResourceProvider
from agently_kernel.providers.runsc import RunscExecutionResourceProvider
from agently_kernel.sandbox import asking
from agently_kernel.sandbox.asking import ask_program, in_thread

MISDEEDS = {
    "prints for ever": "while True: os.write(1, b'x' * 65536)",
    "complains for ever": "while True: os.write(2, b'x' * 65536)",
    "prints a little for ever": "while True: os.write(1, b'x'); time.sleep(0.01)",
    "hangs": "time.sleep(600)",
    "hangs with its pipes closed": "[os.close(fd) for fd in (0, 1, 2)]; time.sleep(600)",
    "ends at once": "pass",
    "fails at once": "sys.exit(3)",
    "is killed": "os.kill(os.getpid(), 9)",
    "leaves a child with its pipes": "os.fork() or time.sleep(20)",
}
# Only bwrap is asked for the pid, over a descriptor whose number is in its options.
TELLING = (
    "options = os.read(int(sys.argv[2]), 1 << 20).split(bytes(1)); "
    "info = int(options[options.index(b'--info-fd') + 1]); "
)
LIES = {
    "tells rubbish for ever": "while True: os.write(info, b'[' * 65536)",
    "tells rubbish": "os.write(info, b'[' * 60000 + b'}')",
    "tells a list": "os.write(info, b'[{}]')",
    "tells no number": "os.write(info, b'{\"child-pid\": null}')",
    "tells a huge number": "os.write(info, b'{\"child-pid\": %d}' % 10**40)",
    "tells of another process": "os.write(info, b'{\"child-pid\": %d}' % os.getppid()); time.sleep(600)",
}


def synthetic_program(folder: Path, deed: str, *, version: str = "") -> str:
    """SYNTHETIC: a program that does *deed*; with *version* only when it is not asked for that."""
    program = folder / "program"
    answer = f"if '--version' in sys.argv: print({version!r}); sys.exit(0)\n" if version else ""
    program.write_text(f"#!{sys.executable} -IS\nimport os, sys, time\n{answer}{deed}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(program)


def running(program: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if program.encode() in words[:4]:
            found.append(int(name))
    return found


def gone(program: str) -> bool:
    """What was killed has ended as soon as the machine comes to it."""
    deadline = time.monotonic() + 3.0
    while running(program) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not running(program)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap_sandbox, "START_DEADLINE", 1.0)
    monkeypatch.setattr(asking.ask_program, "__kwdefaults__", {"seconds": 1.0, "most": 65536})


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("deed", MISDEEDS)
@pytest.mark.parametrize("provider", [BubblewrapExecutionResourceProvider, RunscExecutionResourceProvider])
async def test_a_program_that_does_not_say_its_version(tmp_path: Path, deed: str, provider: type) -> None:
    program, before, started = synthetic_program(tmp_path, MISDEEDS[deed]), memory(), time.monotonic()
    with pytest.raises(SandboxLaunchError) as raised:
        answer = ask_program([program, "--version"], env={})
        raise SandboxLaunchError(f"it answered {answer.returncode}")
    assert str(raised.value).endswith(("ended.", "0", "3", "-9"))
    probe = await provider().async_probe(
        requirement=ExecutionResourceRequirement(config={"binary": program}), policy=ExecutionResourcePolicy()
    )
    if provider is BubblewrapExecutionResourceProvider:  # any answer will do as a version of runsc
        assert not probe.available and program in probe.reason and "install" in probe.remedy, probe
    assert not probe.available
    assert time.monotonic() - started < 12
    assert memory() - before < 40 * 1024
    assert gone(program)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("deed", [*MISDEEDS, *LIES])
async def test_a_bwrap_that_does_not_open_a_sandbox(tmp_path: Path, deed: str) -> None:
    does = TELLING + "\n" + LIES[deed] if deed in LIES else MISDEEDS[deed]
    program = synthetic_program(tmp_path, does, version="bubblewrap 0.11.0")
    before, started = memory(), time.monotonic()
    probe = await BubblewrapExecutionResourceProvider().async_probe(
        requirement=ExecutionResourceRequirement(config={"binary": program}), policy=ExecutionResourcePolicy()
    )
    assert not probe.available and probe.reason.endswith((".", ")")) and probe.remedy, probe
    assert time.monotonic() - started < 12
    assert memory() - before < 40 * 1024
    if deed != "leaves a child with its pipes":
        assert gone(program)


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.02, 0.2])
async def test_a_cancellation_leaves_no_program_behind(tmp_path: Path, delay: float) -> None:
    program = synthetic_program(tmp_path, "time.sleep(600)")
    asking_it = asyncio.ensure_future(in_thread(lambda: ask_program([program], env={}, seconds=0.5)))
    await asyncio.sleep(delay)
    asking_it.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking_it
    assert gone(program)


def test_a_program_that_answers_is_heard(tmp_path: Path) -> None:
    program = synthetic_program(tmp_path, "print('one'); os.write(2, b'two'); sys.exit(4)")
    answer = ask_program([program], env={"A": "b"})
    assert (answer.stdout, answer.stderr, answer.returncode) == ("one\n", "two", 4)
    with pytest.raises(SandboxLaunchError, match="could not be started"):
        ask_program([str(tmp_path / "none")], env={})
