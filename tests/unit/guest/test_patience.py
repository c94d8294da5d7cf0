"""An end to questions that the user's own objects never answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from agently_kernel.guest import patience as module
from agently_kernel.guest.patience import OutOfPatience, Patience


def test_a_block_that_never_ends_is_ended() -> None:
    started = time.monotonic()
    with pytest.raises(OutOfPatience), Patience().question(1, 0.2):
        while True:
            time.sleep(0.01)
    assert 0.15 < time.monotonic() - started < 5


def test_it_is_raised_again_when_it_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.1)
    seen = 0
    with pytest.raises(OutOfPatience), Patience().question(1, 0.1):
        while True:
            try:
                time.sleep(5)
            except OutOfPatience:
                seen += 1
                if seen == 3:
                    raise
    assert seen == 3


def test_what_nobody_waits_for_any_more_is_ended_at_once() -> None:
    patience = Patience()
    threading.Timer(0.2, patience.give_up, (7,)).start()
    started = time.monotonic()
    with pytest.raises(OutOfPatience), patience.question(7, 30):
        time.sleep(20)
    assert time.monotonic() - started < 5


def test_only_the_question_that_is_meant_is_ended() -> None:
    patience = Patience()
    patience.give_up(3)
    with patience.question(1, 30):
        patience.give_up(2)
        time.sleep(0.2)
    for request in (2, 3):
        with pytest.raises(OutOfPatience), patience.question(request, 30):
            raise AssertionError("it was to end before it began")
    patience.give_up(3)  # late: it has been answered
    with patience.question(4, 30):
        time.sleep(0.2)


def test_a_stop_meanwhile_goes_where_it_went_before_and_ends_the_question() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
    try:
        with pytest.raises(OutOfPatience), Patience().question(1, 30):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert got == [signal.SIGINT, signal.SIGINT]


@pytest.mark.parametrize("end", ["seconds", "give_up"])
def test_many_short_blocks_leave_no_signal_behind(end: str) -> None:
    program = (
        "import signal, threading, time\nfrom agently_kernel.guest.patience import OutOfPatience, Patience\n"
        "late, patience = 0, Patience()\n"
        "for i in range(1, 300):\n"
        f"    short = {end == 'seconds'}\n"
        "    if not short: threading.Timer(0.0018, patience.give_up, (i,)).start()\n"
        "    try:\n        with patience.question(i, 0.002 if short else 30): time.sleep(0.0019)\n"
        "    except OutOfPatience: late += 1\n"
        "    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "time.sleep(0.05)\nprint('whole')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("whole\n", 0), done.stderr
