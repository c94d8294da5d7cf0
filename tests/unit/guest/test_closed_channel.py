"""An interpreter whose channel a cell has closed ends and says so; what an alarm of the user raises is not that."""

from __future__ import annotations

import pytest
from guest_driver import Guest

FIND = "import os, socket, sys, threading, time\nfd = sys.stdout._router.channel.fd\n"
WAYS = {
    "closed": "os.close(fd)",
    "closed with all others but three": "os.closerange(3, 5000)",
    "closed with all others": "os.closerange(0, 5000)",
    "shut down": "socket.socket(fileno=fd).shutdown(socket.SHUT_RDWR)",
    "closed by a thread while the cell runs": "threading.Timer(0.1, os.close, [fd]).start()\ntime.sleep(0.5)",
    "closed before a display": "os.close(fd)\ndisplay(1)",
    "closed before a question": "os.close(fd)\ninput()",
}


@pytest.mark.parametrize("way", WAYS)
def test_the_interpreter_ends_and_a_new_one_works(fresh: Guest, way: str) -> None:
    fresh.submit(FIND + WAYS[way], allow_stdin=True)
    ended, _ = fresh.until("interpreter", timeout=8, state="exited")
    assert ended.get("exit_code") == 1 or ended.get("signal") == 9
    fresh.start()
    assert fresh.run("print('new')").text() == "new\n"


def test_the_reason_is_told(fresh: Guest) -> None:
    fresh.submit(FIND + "os.close(fd)")
    header, text = fresh.until("stream")
    assert header["name"] == "stderr" and b"a cell closed descriptors that are not its own" in text


def test_a_timeout_that_an_alarm_raises_is_the_users(either: Guest) -> None:
    """``TimeoutError`` is an OSError; it may break in while a frame is written. (IPython's formatters swallow some.)"""
    cell = either.run(
        "import signal\ndef alarm(*_): raise TimeoutError('mine')\nsignal.signal(signal.SIGALRM, alarm)\nseen = set()\n"
        "for turn in range(150):\n    try:\n        signal.setitimer(signal.ITIMER_REAL, 0.0002 + turn * 2e-6)\n"
        "        for _ in range(40): display('x')\n        signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    except BaseException as error: seen.add(type(error).__name__)\n"
        "print('seen', sorted(seen))", timeout=60,
    )
    assert "seen ['TimeoutError']" in cell.text()
    assert either.run("print('on')").text() == "on\n"
