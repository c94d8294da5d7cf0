"""Every death says what was lost, whoever explains it."""

from __future__ import annotations

import signal

import pytest
from sandbox_support import Harness

from agently_kernel.contract.isolation import LimitFact
from agently_kernel.contract.result import DeathCause
from agently_kernel.sandbox.deaths import (
    LOST_SANDBOX,
    LOST_VARIABLES,
    interpreter_death,
    limit_reached,
    memory_death,
    sandbox_death,
    with_loss,
)

SIGNALS = sorted({int(number) for number in signal.Signals} | {99})


@pytest.mark.parametrize("number", SIGNALS)
def test_any_signal_is_told_with_what_was_lost(number: int) -> None:
    assert LOST_VARIABLES in interpreter_death(None, number).message
    assert LOST_SANDBOX in sandbox_death(-number).message


LIMITS = (
    LimitFact(name="memory", limit=512 * 2.0**20, mechanism="cgroup2"),
    LimitFact(name="scratch_bytes", limit=2.0**20, mechanism="watchdog"),
    LimitFact(name="inodes", limit=100, mechanism="watchdog"),
)


def test_a_limit_that_was_reached_is_told_with_its_size() -> None:
    def reached(kind: str, limit: str | None, facts: tuple[LimitFact, ...] = LIMITS) -> str:
        death = DeathCause.model_validate({"what": "interpreter", "kind": kind, "limit": limit, "message": "m"})
        return limit_reached(death, facts)

    assert limit_reached(memory_death("interpreter", 2**29, "seen"), LIMITS) == (
        "the sandbox reached its memory limit of 512 MiB"
    )
    assert reached("watchdog", "scratch_bytes") == "the sandbox reached its limit on scratch of 1 MiB"
    assert reached("watchdog", "inodes") == "the sandbox reached its limit on inodes of 100"
    assert reached("memory_limit", "64 MiB", ()) == "the sandbox reached its memory limit (64 MiB)"
    assert reached("process_limit", None) == "the sandbox reached its process limit"
    assert reached("signal", None) == ""


@pytest.mark.parametrize("words", ["It ended.", "The sandbox's first process was ended by SIGTERM. ", LOST_SANDBOX])
def test_a_mechanisms_own_words_are_completed_once(words: str) -> None:
    death = with_loss(DeathCause(what="interpreter", kind="unknown", message=words))
    assert death.what == "sandbox"
    assert death.message.count(LOST_SANDBOX) == 1
    assert death.message.startswith(words.strip())


async def test_a_mechanism_that_names_only_the_cause_is_completed_for_the_cell(harness: Harness) -> None:
    await harness.open()
    words = DeathCause(what="sandbox", kind="signal", signal="SIGTERM", message="Ended by SIGTERM.")
    harness.sandbox.explanation = words
    result = await harness.run("import os; os.kill(os.getppid(), 15); import time; time.sleep(20)")
    assert result.message == f"Ended by SIGTERM. {LOST_SANDBOX}"
