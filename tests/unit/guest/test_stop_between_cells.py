# ruff: noqa: E501 - programs of cells stand on one line
"""A Stop while no cell runs ends what code of the user does then, and nothing else."""

from __future__ import annotations

import json
import time

import pytest
from guest_driver import Guest

HOGS = {
    "a task": "import asyncio\nasync def hog():\n    print('at it', flush=True)\n    while True: pass\ntask = asyncio.get_event_loop().create_task(hog())",
    "a task that sleeps": "import asyncio, time\nasync def hog():\n    print('at it', flush=True)\n    time.sleep(60)\ntask = asyncio.get_event_loop().create_task(hog())",
    "a callback": "import asyncio, time\ndef hog():\n    print('at it', flush=True)\n    time.sleep(60)\nasyncio.get_event_loop().call_later(0.05, hog)",
    "a task with a loop of its own": "import asyncio\nasync def inner():\n    print('at it', flush=True)\n    while True: pass\nasync def hog(): asyncio.run(inner())\ntask = asyncio.get_event_loop().create_task(hog())",
}


def at_it(guest: Guest) -> None:
    """Return when the code of the user that a test waits for is at work."""
    while guest.frame()[1] != b"at it\n":
        pass


@pytest.mark.parametrize("hog", HOGS)
def test_it_ends_what_keeps_the_next_cell_waiting(either: Guest, hog: str) -> None:
    either.run("kept = 'm1'")
    either.submit(HOGS[hog])
    at_it(either)
    started = time.monotonic()
    either.send({"op": "interrupt"})
    assert either.run("print(kept)", timeout=10).text().endswith("m1\n")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("hog", HOGS)
def test_a_cell_that_waits_behind_it_is_stopped_as_well(either: Guest, hog: str) -> None:
    either.submit(HOGS[hog])
    at_it(either)
    cell = either.submit("print('ran')\nimport time; time.sleep(60)")
    time.sleep(0.2)
    either.send({"op": "interrupt"})
    try:
        found = either.collect(cell, timeout=5)
    except AssertionError:  # Python swallows what breaks into a finaliser: the host sends it again, too
        either.send({"op": "interrupt"})
        found = either.collect(cell, timeout=10)
    assert found.error()["ename"] == "KeyboardInterrupt"
    assert either.run("print(1)").text().endswith("1\n")


@pytest.mark.parametrize("hog", [name for name in HOGS if "task" in name])
def test_nothing_complains_of_it_later(either: Guest, hog: str) -> None:
    either.submit(HOGS[hog])
    at_it(either)
    either.send({"op": "interrupt"})
    assert either.run("print(task.done())", timeout=10).text().endswith("True\n")
    assert either.run("import gc; del task; gc.collect(); gc.collect()").text("stderr") == ""


def test_it_ends_a_callback_of_a_widget(ipython: Guest) -> None:
    ipython.run(
        "import comm, time\ndef opened(channel, message):\n    print('at it', flush=True)\n    time.sleep(60)\n"
        "comm.get_comm_manager().register_target('slow', opened)\nkept = 'm2'"
    )
    content = json.dumps({"data": {}, "metadata": {}}).encode()
    ipython.send(
        {"op": "comm", "kind": "comm_open", "comm_id": "c1", "target_name": "slow", "buffers": [len(content)]}, content
    )
    at_it(ipython)
    ipython.send({"op": "interrupt"})
    cell = ipython.run("print(kept)", timeout=10)
    assert cell.text().endswith("m2\n")


def test_it_touches_no_cell_that_is_sent_after_it(either: Guest) -> None:
    either.run("import asyncio\nasync def tick():\n    while True: await asyncio.sleep(0.001)\ntask = asyncio.get_event_loop().create_task(tick())")
    for number in range(60):
        either.send({"op": "interrupt"})
        cell = either.run(f"print({number})")
        assert cell.text().endswith(f"{number}\n") and cell.done[0] == "ok"
        if number == 30:
            either.run("task.cancel()")


def test_the_hosts_word_for_it_reaches_no_cell_neither_one_that_waits_nor_one_that_awaits(either: Guest) -> None:
    """A cell that was sent after the Stop is not what was meant."""
    either.submit(HOGS["a task"])
    at_it(either)
    cell = either.submit("print('ran')")
    either.send({"op": "stop_idle"})
    assert either.collect(cell, timeout=10).text().endswith("ran\n")
    cell = either.submit("import asyncio\nprint('begun', flush=True)\nfor _ in range(20): await asyncio.sleep(0.02)\nprint('over')")
    either.until("stream")
    for _ in range(5):
        either.send({"op": "stop_idle"})
        time.sleep(0.03)
    collected = either.collect(cell)
    assert collected.done[0] == "ok" and collected.text().endswith("over\n")


def test_it_touches_no_question(ipython: Guest) -> None:
    ipython.run("import time\nclass Slow:\n    def __dir__(self):\n        time.sleep(0.7)\n        return ['late_answer']\nslow = Slow()")
    ipython.send({"op": "complete", "request": 777, "cursor_pos": 5}, b"slow.")
    time.sleep(0.2)
    ipython.send({"op": "interrupt"})
    assert b"late_answer" in ipython.until("reply", request=777)[1]
