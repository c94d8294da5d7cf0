# ruff: noqa: E501 - programs of cells stand on one line
"""A cell that writes frames of its own: refused with a named reason, and nothing is ever shown in another cell."""

from __future__ import annotations

from typing import Any

import pytest
from guest_driver import Guest

from agently_kernel.guest import wire

FIND = (
    "import os, sys, time\n"
    "channel = sys.stdout._router.channel\n"
    "wire = sys.modules[type(channel).__module__.rpartition('.')[0] + '.wire']\n"
    "me = sys.stdout._router.running\n"
)
RAW = {
    "a second end": {"op": "done", "cell": "{me}", "status": "ok"},
    "the end of an earlier cell": {"op": "done", "cell": "cell-1", "status": "ok"},
    "the begin of another cell": {"op": "busy", "cell": "cell-99"},
    "an answer": {"op": "reply", "request": 1},
    "words of another cell": {"op": "text", "name": "stdout", "cell": "cell-1"},
    "a question": {"op": "input", "cell": "{me}", "prompt": "p", "password": False},
}


def forge(header: dict[str, Any], number: str) -> str:
    """Return a program that writes the frame itself, numbered by the expression *number*."""
    return (
        FIND + f"header = {{k: me if v == '{{me}}' else v for k, v in {header!r}.items()}}\n"
        f"number = {number}\nif number is not None: header['n'] = number\n"
        "os.write(channel.fd, wire.encode(header, b'{}' if header['op'] in ('done', 'reply', 'text') else b''))\ntime.sleep(0.2)\nprint('after', flush=True)\ntime.sleep(20)"
    )


@pytest.mark.parametrize("number", ["None", "0", "1", "channel._sent", "channel._sent + 7"])
@pytest.mark.parametrize("what", RAW)
def test_a_frame_that_is_not_the_next_one_ends_the_interpreter_with_a_reason(fresh: Guest, what: str, number: str) -> None:
    fresh.run("kept = 1")
    fresh.submit(forge(RAW[what], number))
    header, _ = fresh.until("violation")
    assert "channel" in header["reason"] or "lacks n" in header["reason"]
    assert fresh.until("interpreter", state="exited")[0]["signal"] == 9
    fresh.start()
    assert fresh.run("print('new')").text() == "new\n"


def test_a_frame_with_the_right_number_makes_the_next_honest_one_wrong(fresh: Guest) -> None:
    fresh.submit(forge({"op": "text", "name": "stdout", "cell": "cell-99"}, "channel._sent + 1") + "\ndisplay(1)")
    fresh.until("text")
    fresh.send({"op": "interrupt"})
    assert "channel" in fresh.until("violation")[0]["reason"]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"op": "done", "cell": "cell-1", "status": "ok"}, "ended which was not to run"),
        ({"op": "done", "cell": "cell-77", "status": "ok"}, "ended which was not to run"),
        ({"op": "busy", "cell": "cell-77"}, "began which was not to run"),
        ({"op": "busy", "cell": "{me}"}, "twice"),
        ({"op": "reply", "request": 12345}, "not put"),
    ],
)
def test_the_interpreters_own_channel_cannot_say_what_is_not_due(fresh: Guest, header: dict[str, Any], reason: str) -> None:
    fresh.run("kept = 1")
    fresh.submit(FIND + f"channel.send({{k: me if v == '{{me}}' else v for k, v in {header!r}.items()}}, b'' if {header['op'] == 'busy'} else b'{{}}')\ntime.sleep(20)")
    assert reason in fresh.until("violation")[0]["reason"]
    assert fresh.until("interpreter", state="exited")[0]["signal"] == 9


def test_what_follows_a_cells_own_end_stays_with_that_cell_and_the_real_end_is_refused(fresh: Guest) -> None:
    first = fresh.submit(
        FIND + "channel.send({'op': 'done', 'cell': me, 'status': 'ok'}, b'{}')\n"
        "time.sleep(0.3)\nos.write(1, b'late words\\n')\nprint('later', flush=True)\ntime.sleep(0.5)"
    )
    fresh.until("done", cell=first)
    seen = []
    while True:
        header, payload = fresh.frame()
        if header["op"] in ("stream", "text"):
            seen.append((header["cell"], payload))
        if header["op"] == "violation":
            break
    assert {cell for cell, _ in seen} == {first}
    assert b"".join(text for _, text in seen) == b"late words\nlater\n"
    assert "ended which was not to run" in header["reason"]


def test_numbers_have_no_gap_whatever_a_stop_breaks_into(either: Guest) -> None:
    for turn in range(12):
        cell = either.submit("import threading\nfor _ in range(2): threading.Thread(target=lambda: [print('t') for _ in range(300)]).start()\nwhile True: display('y'); print('x')")
        either.frame()
        for _ in range(1 + turn % 3):
            either.send({"op": "interrupt"})
        assert either.collect(cell).done[0] == "error"
    assert either.run("print('whole')").text().endswith("whole\n")


def test_every_frame_of_an_interpreter_is_numbered_and_no_other() -> None:
    assert all("n" in message.fields for message in wire.INSIDE.values())
    assert not any("n" in message.fields for message in wire.FROM_GUEST.values())
