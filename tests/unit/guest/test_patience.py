"""An end to questions that the user's own objects never answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from agently_kernel.guest import patience as module
from agently_kernel.guest.patience import OutOfPatience, patience


def test_a_block_that_never_ends_is_ended() -> None:
    started = time.monotonic()
    with pytest.raises(OutOfPatience), patience(0.2):
        while True:
            time.sleep(0.01)
    assert 0.15 < time.monotonic() - started < 5


def test_it_is_raised_again_when_it_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.1)
    seen = 0
    with pytest.raises(OutOfPatience), patience(0.1):
        while True:
            try:
                time.sleep(5)
            except OutOfPatience:
                seen += 1
                if seen == 3:
                    raise
    assert seen == 3


def test_a_stop_meanwhile_goes_where_it_went_before() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
    try:
        with patience(30):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert got == [signal.SIGINT, signal.SIGINT]


def test_many_short_blocks_leave_no_signal_behind() -> None:
    program = (
        "import signal, time\nfrom agently_kernel.guest.patience import OutOfPatience, patience\n"
        "late = 0\n"
        "for i in range(300):\n"
        "    try:\n        with patience(0.002): time.sleep(0.0019)\n"
        "    except OutOfPatience: late += 1\n"
        "    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "time.sleep(0.05)\nprint('whole')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("whole\n", 0), done.stderr
