"""What all sandboxes of this machine share: an end that is tried again, and deaths that say what was lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from agently_kernel.contract.errors import SandboxCleanupError
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.sandbox.deaths import (
    LOST_SANDBOX,
    LOST_VARIABLES,
    interpreter_death,
    memory_death,
    sandbox_death,
)
from agently_kernel.sandbox.local import LocalSandbox
from agently_kernel.sandbox.watchdog import Watchdog, WatchLimits


class SyntheticSandbox(LocalSandbox):
    """SYNTHETIC: has no processes; says what is left as often as it is told to."""

    provider_id = "synthetic"

    def __init__(self, processes: list[list[str]], rest: list[list[str]], *, lives: bool = False) -> None:
        super().__init__(ResourceLimits(memory_bytes=64 * 2**20), None)
        self.processes, self.rest, self.lives = processes, rest, lives
        self.ended = 0

    def _lives(self) -> bool:
        return self.lives

    async def _end_processes(self) -> list[str]:
        self.ended += 1
        return self.processes.pop(0) if self.processes else []

    async def _let_go(self) -> list[str]:
        return self.rest.pop(0) if self.rest else []


async def test_what_could_not_be_removed_is_tried_again_until_it_is_gone() -> None:
    sandbox = SyntheticSandbox([["process 7"], []], [[], ["folder /x"]])
    for left in ("process 7", "folder /x"):
        with pytest.raises(SandboxCleanupError, match=f"synthetic sandbox left something behind: {left}"):
            await sandbox.close()
        assert not await sandbox.is_alive()
    await sandbox.close()
    await sandbox.close()
    assert sandbox.ended == 3


async def test_a_sandbox_past_a_limit_is_not_alive() -> None:
    sandbox = SyntheticSandbox([], [], lives=True)
    assert await sandbox.is_alive()
    assert (await sandbox.explain_death(None)).what == "interpreter"
    sandbox._watchdog = Watchdog(os.getpid(), WatchLimits(), lambda: None)
    sandbox._watchdog._end("inodes", "build holds more than 3 files and folders")
    assert not await sandbox.is_alive()
    cause = await sandbox.explain_death(137)
    assert (cause.what, cause.limit) == ("sandbox", "inodes")


@pytest.mark.parametrize("limit", ["memory", "cpu", "inodes", "scratch_bytes"])
def test_a_death_at_a_limit_says_what_was_lost(limit: str) -> None:
    dog = Watchdog(1, WatchLimits(), lambda: None)
    dog._end(limit, "it did")
    assert dog.cause is not None and dog.cause.message == f"The sandbox was ended because it did. {LOST_SANDBOX}"


def test_the_faster_a_limit_comes_near_the_sooner_is_the_next_look() -> None:
    dog = Watchdog(1, WatchLimits(disk_bytes=1), lambda: None, disk_folder="/nowhere")

    def pause(seconds: float, share: float) -> float:
        """Look *seconds* after the last look."""
        dog._share_at = time.monotonic() - seconds
        return dog._pause(share)

    assert pause(0.1, 0.0) == pytest.approx(0.1)
    assert pause(0.1, 0.4) == pytest.approx(0.5 * 0.15, rel=0.1)
    assert pause(0.1, 0.9) == pytest.approx(0.01, rel=0.1)
    assert pause(0.1, 0.9) == pytest.approx(0.05), "nothing grows any more"
    assert pause(0.1, 0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("number", [*map(int, signal.Signals), 50])
def test_a_death_by_any_signal_is_named_and_says_what_was_lost(number: int) -> None:
    name = signal.Signals(number).name if number != 50 else "signal 50"
    for code in (-number, 128 + number):
        cause = sandbox_death(code)
        assert (cause.kind, cause.signal, cause.exit_code) == ("signal", name, None)
        assert f"by {name}" in cause.message and cause.message.endswith(LOST_SANDBOX)
    inner = interpreter_death(None, number)
    assert name in (inner.signal or "") or number == signal.SIGXCPU
    assert inner.message.endswith(LOST_VARIABLES)


@pytest.mark.parametrize("code", [0, 1, 3, 127, 128, 200, 255])
def test_an_exit_code_is_no_signal(code: int) -> None:
    cause = sandbox_death(code)
    assert (cause.kind, cause.exit_code, cause.signal) == ("exit", code, None)
    assert cause.message == f"The sandbox ended with exit code {code}. {LOST_SANDBOX}"


@pytest.mark.parametrize(("what", "lost"), [("interpreter", LOST_VARIABLES), ("sandbox", LOST_SANDBOX)])
async def test_a_death_for_memory_says_what_was_lost(what: str, lost: str) -> None:
    cause = memory_death(what, 64 * 2**20, "seen")  # type: ignore[arg-type]
    assert cause.message == f"The {what} was ended at the memory limit of 64 MiB: seen. {lost}"
    assert memory_death(what, 64 * 2**20, "seen", 15 * 2**20) == cause  # type: ignore[arg-type]
    held = "Files that cells wrote hold 16 MiB of it: delete some, or restart the sandbox."
    full = memory_death(what, 64 * 2**20, "seen", 16 * 2**20)  # type: ignore[arg-type]
    assert (full.message, full.advice) == (cause.message, held if what == "interpreter" else "")
    sandbox = SyntheticSandbox([], [], lives=what == "interpreter")
    sandbox._watchdog = Watchdog(os.getpid(), WatchLimits(), lambda: None)
    sandbox._watchdog._memory_seen("seen")
    assert await sandbox.explain_death(-9) == cause
    await asyncio.sleep(0)
