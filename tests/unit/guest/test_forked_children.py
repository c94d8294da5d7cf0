# ruff: noqa: E501 - programs of cells stand on one line
"""A process that user code forks ends with that code, whatever takes it out of it and wherever it was forked."""

from __future__ import annotations

import re
import signal
import time

import pytest
from guest_driver import Guest

LEAVINGS = {
    "falls through": ("pass", 0, ""),
    "raises": ("1/0", 1, "ZeroDivisionError: division by zero"),
    "sys.exit()": ("sys.exit()", 0, ""),
    "sys.exit(3)": ("sys.exit(3)", 3, ""),
    "sys.exit with a text": ("sys.exit('last words')", 1, "last words"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", 128 + signal.SIGINT, ""),
    "os._exit": ("os._exit(7)", 7, ""),
}
PLACES = {
    "cell": "if os.fork() == 0: {leave}\nelse: print(os.waitstatus_to_exitcode(os.wait()[1]))",
    "function": "def f():\n    if os.fork() == 0: {leave}\n    else: print(os.waitstatus_to_exitcode(os.wait()[1]))\nf()",
    "awaiting cell": "await asyncio.sleep(0)\nif os.fork() == 0:\n    await asyncio.sleep(0); {leave}\nelse: print(os.waitstatus_to_exitcode(os.wait()[1]))",
    "awaiting child alone": "if os.fork() == 0:\n    await asyncio.sleep(0); {leave}\nelse:\n    await asyncio.sleep(0.1); print(os.waitstatus_to_exitcode(os.wait()[1]))",
    "task of an awaiting cell": "async def f():\n    if os.fork() == 0:\n        await asyncio.sleep(0); {leave}\n    else: print(os.waitstatus_to_exitcode(os.wait()[1]))\nawait asyncio.gather(f())",
}
SETUP = "import os, sys, asyncio, threading, time"


def children(guest: Guest) -> int:
    """How many processes the interpreter has, dead ones that nobody waits for not counted."""
    text = guest.run(
        "import subprocess as _s\nprint(len([l for l in _s.run(['ps', '-o', 'pid=,stat=,comm=', '--ppid', str(os.getpid())],"
        " capture_output=True, text=True).stdout.splitlines() if ' Z' not in l and not l.endswith(' ps')]))"
    ).text()
    return int(text)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("leaving", LEAVINGS)
def test_a_child_ends_with_the_code_that_forked_it(either: Guest, place: str, leaving: str) -> None:
    leave, code, shown = LEAVINGS[leaving]
    either.run(SETUP)
    cell = either.run(PLACES[place].format(leave=leave), timeout=10)
    assert cell.done[0] == "ok"
    assert cell.text().strip() == str(code)
    text = re.sub(r"\x1b\[[0-9;]*m", "", cell.text("stderr"))
    assert shown in text and bool(shown) == bool(text)
    assert children(either) == 0


@pytest.mark.parametrize("leave", ["pass", "1/0", "sys.exit(3)", "raise KeyboardInterrupt"])
@pytest.mark.parametrize(
    "forking",
    [
        "async def f():\n    if os.fork() == 0:\n        await asyncio.sleep(0); {leave}\ntask = asyncio.create_task(f())",
        "def f():\n    if os.fork() == 0: {leave}\nasyncio.get_running_loop().call_later(0.05, f)",
        "def f():\n    if os.fork() == 0: {leave}\nthreading.Timer(0.05, f).start()",
    ],
    ids=["task", "callback", "thread"],
)
def test_a_child_forked_between_cells_ends_too(either: Guest, forking: str, leave: str) -> None:
    either.run(SETUP)
    either.run(forking.format(leave=leave))
    time.sleep(0.3)
    for number in range(5):
        assert either.run(f"print({number})", timeout=5).text() == f"{number}\n"
    deadline = time.monotonic() + 5
    while children(either) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children(either) == 0


def test_a_child_that_awaits_does_not_take_the_parents_wake_ups(either: Guest) -> None:
    either.run(SETUP)
    cell = either.submit(
        "pids, never = [], asyncio.get_running_loop().create_future()\nawait asyncio.sleep(0)\n"
        "for i in range(8):\n    pids.append(os.fork())\n    if not pids[-1]: await never"
    )
    either.collect(cell, 5)
    for number in range(20):
        assert either.run(f"print({number})", timeout=5).text() == f"{number}\n"
    assert either.run("for pid in pids: os.kill(pid, 9); os.waitpid(pid, 0)\nprint(len(pids))").text() == "8\n"


def test_after_a_stop_no_child_lives_on_and_the_next_cells_run(either: Guest) -> None:
    either.run(SETUP)
    cell = either.submit(
        "group = os.getpgrp()\nfor i in range(40):\n    if os.fork() == 0:\n        time.sleep(20); os._exit(0)\nprint('forked', flush=True)\nwhile True: os.wait()"
    )
    either.until("stream")
    either.send({"op": "interrupt"})
    found = either.collect(cell, 10)
    assert found.error()["ename"] == "KeyboardInterrupt" and found.text("stderr") == ""
    for number in range(20):
        assert either.run(f"print({number})", timeout=5).text() == f"{number}\n"
    assert children(either) == 0


def test_a_handler_of_signals_works_in_the_child_for_its_own(either: Guest) -> None:
    either.run(SETUP)
    cell = either.run(
        "import signal\nloop = asyncio.get_running_loop()\nloop.add_signal_handler(signal.SIGUSR1, lambda: print('handled in', 'parent' if os.getpid() == here else 'child', flush=True))\n"
        "here = os.getpid(); child = os.fork()\nif child == 0:\n    os.kill(os.getpid(), signal.SIGUSR1)\n    for i in range(1000): await asyncio.sleep(0)\nelse:\n    await asyncio.sleep(0.4); print(os.waitpid(child, 0)[1])\n    loop.remove_signal_handler(signal.SIGUSR1)"
    )
    assert cell.text() == "handled in child\n0\n"
