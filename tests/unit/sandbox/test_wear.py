"""When a sandbox is given up because no interpreter gets anywhere in it."""

from __future__ import annotations

import pytest

from agently_kernel.contract.result import DeathCause
from agently_kernel.sandbox.deaths import interpreter_death, memory_death
from agently_kernel.sandbox.wear import Wear

MEMORY = memory_death("interpreter", 2**30, "seen")
PROCESSES = DeathCause(what="interpreter", kind="process_limit", limit="processes", message="")
CRASH, EXIT = interpreter_death(None, 11), interpreter_death(3, None)
STOP = interpreter_death(None, 9, stopper="stopped_by_user")
CELL = "a cell"


@pytest.mark.parametrize(
    ("story", "worn"),
    [
        ([], False),
        ([MEMORY], False),
        ([MEMORY, MEMORY], True),
        ([CELL, MEMORY, MEMORY], False),  # the first had finished a cell: it was no fresh one
        ([CELL, MEMORY, MEMORY, MEMORY], True),
        ([MEMORY, CELL, MEMORY], False),
        ([MEMORY, PROCESSES], False),
        ([MEMORY, PROCESSES, PROCESSES], True),
        ([PROCESSES, MEMORY, PROCESSES], False),
        ([MEMORY, STOP, MEMORY], False),
        ([CRASH, CRASH, CRASH], False),
        ([EXIT] * 5, False),
        ([MEMORY, CRASH, MEMORY], False),
        ([STOP] * 5, False),
        ([(CRASH, False)], False),
        ([(CRASH, False), (EXIT, False)], True),  # neither became ready
        ([(CRASH, False), CELL, (EXIT, False)], False),
        ([(STOP, False), (STOP, False)], False),
    ],
)
def test_two_fresh_interpreters_that_end_alike_wear_a_sandbox_out(story: list[object], worn: bool) -> None:
    wear = Wear()
    for item in story:
        if item == CELL:
            wear.finished_cell()
        elif isinstance(item, tuple):
            wear.ended(item[0], was_ready=item[1])
        else:
            assert isinstance(item, DeathCause)
            wear.ended(item, was_ready=True)
    assert wear.worn is worn
