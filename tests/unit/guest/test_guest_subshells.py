"""Subshells of an interpreter, with and without IPython: threads with cells, output and Stop of their own."""

from __future__ import annotations

import time

import pytest
from guest_driver import Cell, Guest

BESIDE = "beside-1"


def both(guest: Guest, *cells: str) -> list[Cell]:
    """Return what several cells bring that run at the same time."""
    found = {cell: Cell(cell) for cell in cells}
    left = set(cells)
    while left:
        header, payload = guest.frame(20)
        for cell in found.values():
            cell.frames.append((header, payload))
        if header["op"] == "done":
            left.discard(header["cell"])
    return list(found.values())


def test_cells_of_one_run_in_order_and_beside_those_of_others(either: Guest) -> None:
    either.run("import threading, time; first, second = threading.Event(), threading.Event(); told = []")
    main = either.submit("first.wait(10); print('main'); told.append('main'); second.set()")
    one = either.submit("told.append('one'); print('one')", subshell=BESIDE)
    two = either.submit("told.append('two'); print('two'); first.set(); second.wait(10)", subshell=BESIDE)
    cells = both(either, main, one, two)
    assert [cell.text() for cell in cells] == ["main\n", "one\n", "two\n"]
    assert either.run("told").result()["text/plain"] == "['one', 'two', 'main']"


def test_results_and_errors_name_their_cell(either: Guest) -> None:
    for code in ("6 * 7", "await __import__('asyncio').sleep(0, 42)"):
        cell = either.run(code, subshell=BESIDE)
        assert [header["cell"] for header, _ in cell.frames if header["op"] == "display"] == [cell.cell]
        assert cell.result()["text/plain"] == "42"
    failed = either.run("1/0", subshell=BESIDE)
    assert failed.error()["ename"] == "ZeroDivisionError" and failed.done[0] == "error"
    assert [header["cell"] for header, _ in failed.frames if header["op"] == "error"] == [failed.cell]


def test_a_digest_that_does_not_fit_fails_the_cell(either: Guest) -> None:
    refused = either.run("print('never')", subshell=BESIDE, digest="sha256:" + "0" * 64)
    assert refused.done[0] == "error" and "digest" in refused.error()["evalue"] and refused.text() == ""


@pytest.mark.parametrize("code", ["while True: pass", "await __import__('asyncio').sleep(60)"])
def test_a_stop_names_the_cell_that_it_ends(either: Guest, code: str) -> None:
    main = either.submit("import time\nfor _ in range(20): time.sleep(0.1)\nprint('to its end')")
    cell = either.submit(code, subshell=BESIDE)
    time.sleep(0.5)
    either.send({"op": "stop", "cell": "cell-1"})  # of another cell, long over
    either.send({"op": "stop", "cell": cell})
    stopped = either.collect(cell, 10)
    assert stopped.error()["ename"] == "KeyboardInterrupt"
    assert either.collect(main).text() == "to its end\n"


def test_a_stop_for_a_cell_that_is_over_hits_no_other(either: Guest) -> None:
    for _ in range(20):
        over = either.run("1", subshell=BESIDE)
        either.send({"op": "stop", "cell": over.cell})
        assert either.run("print('whole')", subshell=BESIDE).text() == "whole\n"


def test_the_thread_is_there_from_open_to_close(either: Guest) -> None:
    names = "import threading; print(*(t.name for t in threading.enumerate()))"
    either.send({"op": "subshell", "id": "opened", "open": True})
    assert "subshell-opened" in either.run(names).text()
    either.send({"op": "subshell", "id": "opened", "open": False})
    either.send({"op": "subshell", "id": "opened", "open": False})
    time.sleep(0.3)
    assert "subshell-opened" not in either.run(names).text()


def test_a_cell_of_a_closed_one_goes_on_and_can_be_stopped(either: Guest) -> None:
    cell = either.submit("while True: pass", subshell="closing")
    time.sleep(0.3)
    either.send({"op": "subshell", "id": "closing", "open": False})
    time.sleep(0.2)
    either.send({"op": "stop", "cell": cell})
    assert either.collect(cell, 10).error()["ename"] == "KeyboardInterrupt"


def test_the_end_of_a_cell_that_was_not_sent_is_out_of_turn(fresh: Guest) -> None:
    fresh.run("1", subshell=BESIDE)
    fresh.submit(
        "import sys, time\n"
        "sys.stdout._router.send({'op': 'done', 'cell': 'cell-1', 'status': 'ok'}, b'{}')\ntime.sleep(20)"
    )
    assert "was not to run" in fresh.until("violation")[0]["reason"]


TRACED = "import sys; sys.settrace(lambda *_: None); (lambda: 1)(); sys.settrace(None); print('to its end')"


def test_neither_a_cell_nor_a_stop_leaves_an_exception_to_look_for(either: Guest) -> None:
    """Where one was, a debugger never gets anywhere again before Python 3.13, in no thread."""
    assert either.run("1", subshell=BESIDE).done[0] == "ok"
    assert either.run(TRACED).text() == "to its end\n"
    for _ in range(5):
        cell = either.submit("while True: pass", subshell=BESIDE)
        time.sleep(0.1)
        either.send({"op": "stop", "cell": cell})
        either.send({"op": "stop", "cell": cell})
        assert either.collect(cell, 10).error()["ename"] == "KeyboardInterrupt"
        assert either.run(TRACED, subshell=BESIDE).text() == "to its end\n"
        assert either.run(TRACED).text() == "to its end\n"


def test_a_cell_can_stop_the_loop_that_it_runs_in(either: Guest) -> None:
    either.run("import asyncio")
    stop = "asyncio.get_event_loop().stop()"
    assert either.run(stop, subshell=BESIDE).done[0] == "ok"
    cell = either.run(f"{stop}; await asyncio.sleep(0.1); print('to its end')", subshell=BESIDE)
    assert cell.text() == "to its end\n"
    assert either.run("print('alive')", subshell=BESIDE).text() == "alive\n"


def test_a_loop_that_is_closed_ends_the_cell_that_awaits_there_and_no_other(either: Guest) -> None:
    either.run("import asyncio")
    close = "loop = asyncio.get_event_loop(); loop._thread_id = None; loop.close()"  # else it counts as running
    for ending in ("await asyncio.sleep(20)", "await asyncio.sleep(0)", "print('to its end')"):
        cell = either.run(f"{close}; {ending}", subshell=BESIDE)
        if "await" in ending:
            assert "loop" in cell.error()["evalue"]
        else:
            assert cell.text() == "to its end\n"
        assert either.run("print('alive')", subshell=BESIDE).text() == "alive\n"
        assert either.run("await asyncio.sleep(0.01); print('awaits')", subshell=BESIDE).text() == "awaits\n"


@pytest.mark.parametrize(
    "code",
    [
        "threading.Lock = None", "threading.Thread.start = None", "asyncio.set_event_loop = None",
        "asyncio.new_event_loop = None",
    ],
)
def test_a_cell_that_breaks_what_threads_are_made_of_costs_no_variables(fresh: Guest, code: str) -> None:
    fresh.run(f"import asyncio, threading; kept = 'variable'; {code}")
    assert fresh.run("print('never mind')", subshell=BESIDE).done[0] in ("ok", "error")
    assert fresh.run("print(kept)").text() == "variable\n"


@pytest.mark.parametrize(
    "code",
    [
        "child = os.fork()\nif child: await asyncio.sleep(0.4); print('ended with', ended(child))\n"
        "else: await asyncio.sleep(0)",
        "async def fork():\n    await asyncio.sleep(0)\n    return os.fork()\n"
        "task = asyncio.ensure_future(fork()); child = await task\nif child: print('ended with', ended(child))",
        "def fork():\n    global child\n    child = os.fork()\n"
        "asyncio.get_event_loop().call_soon(fork); await asyncio.sleep(0.4); print('ended with', ended(child))",
    ],
)
def test_a_child_that_is_forked_where_something_awaits_takes_no_part_in_its_parents_loop(
    either: Guest, code: str
) -> None:
    either.run("import asyncio, os\ndef ended(child): return os.waitpid(child, 0)[1]")
    cell = either.run(code, subshell=BESIDE)
    assert "ended with" in cell.text(), cell.frames
    for _ in range(20):
        assert either.run("await asyncio.sleep(0.001); print('awaits')", subshell=BESIDE).text() == "awaits\n"
