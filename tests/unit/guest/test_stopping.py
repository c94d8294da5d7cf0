# ruff: noqa: E501 - programs of cells stand on one line
"""Stop, and the ways in which an interpreter ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from guest_driver import Guest

from agently_kernel.guest import wire


def stop(guest: Guest, code: str, after: float = 0.3, **options: object) -> tuple[str, float]:
    """Run *code*, press Stop; return the error's name and the seconds that it took to end after that."""
    cell = guest.submit(code, **options)
    time.sleep(after)
    guest.send({"op": "interrupt"})
    started = time.monotonic()
    name = guest.collect(cell).error()["ename"]
    return name, time.monotonic() - started


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)", "while True: pass", "i = 0\nwhile True: print('again', i); i += 1",
        "while True: display(1)", "import asyncio\nwhile True: await asyncio.sleep(0.2)",
        "import asyncio\nawait asyncio.sleep(60)", "import asyncio\nawait asyncio.sleep(0)\nwhile True: pass",
        "import asyncio\nasync def f(): await asyncio.sleep(60)\nasyncio.run(f())",
        "import subprocess; subprocess.run(['sleep', '60'])", "import os; os.system('sleep 60'); raise KeyboardInterrupt",
        "import threading; threading.Event().wait()", "import sys\nwhile True: print('e', file=sys.stderr, flush=True)",
    ],
)
def test_stop_ends_a_cell_and_keeps_the_state(either: Guest, code: str) -> None:
    either.run("kept = 'm1'")
    name, seconds = stop(either, code)
    assert name == "KeyboardInterrupt"
    assert seconds < 5
    assert either.run("import asyncio\nawait asyncio.sleep(0.01); print(kept)").text() == "m1\n"


def test_a_shell_line_is_stopped_with_its_child(ipython: Guest) -> None:
    cell = ipython.submit("!echo begun; exec sleep 60")
    assert ipython.until("stream")[1] == b"begun\n"
    ipython.send({"op": "interrupt"})
    ipython.collect(cell, timeout=10)
    assert ipython.run("print(_exit_code)").text() == "-2\n"


def test_a_stop_at_any_moment_of_a_shell_lines_start_leaves_no_child(ipython: Guest) -> None:
    """The child may not be there yet, may have been forked and not executed, or may run."""
    for turn in range(40):
        ipython.run("_exit_code = None")
        cell = ipython.submit("!sleep 61.0421")
        time.sleep(0.0007 * turn)
        ipython.send({"op": "interrupt"})
        found = ipython.collect(cell, timeout=10)
        code = ipython.run("print(_exit_code)").text().strip()
        # stopped; never begun; or a shell that missed it in the middle of its own fork, and was killed
        assert code in ("-2", "None", "-9"), (turn, code)
        assert (code == "None") == (found.done[0] == "error")
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 61.0421" not in listed


@pytest.mark.parametrize("trap", ["INT", "INT TERM"])
def test_a_child_that_ignores_the_stop_is_ended(ipython: Guest, trap: str) -> None:
    cell = ipython.submit(f"!trap '' {trap}; echo begun; while :; do sleep 0.1; done")
    ipython.until("stream")
    ipython.send({"op": "interrupt"})
    ipython.collect(cell, timeout=10)
    assert ipython.run("print(_exit_code)").text() == "-9\n"


def test_stop_while_input_waits(either: Guest) -> None:
    cell = either.submit("input('waiting ')", allow_stdin=True)
    either.until("input")
    either.send({"op": "interrupt"})
    assert either.collect(cell).error()["ename"] == "KeyboardInterrupt"


def test_stop_between_cells_is_harmless(either: Guest) -> None:
    for _ in range(3):
        either.send({"op": "interrupt"})
    assert either.run("import time; time.sleep(0.2); print('clean')").text() == "clean\n"


def test_stop_that_comes_with_the_cell_is_not_lost(either: Guest) -> None:
    for _ in range(5):
        cell = either.submit("import time; time.sleep(30)")
        either.send({"op": "interrupt"})
        assert either.collect(cell, timeout=10).error()["ename"] == "KeyboardInterrupt"


def test_a_storm_of_stops_breaks_no_frame(either: Guest) -> None:
    for turn in range(15):
        cell = either.submit("while True: print('x' * 500); display('y' * 500)")
        time.sleep(0.01 * turn)
        for _ in range(3):
            either.send({"op": "interrupt"})
        assert either.collect(cell).done[0] == "error"
    assert either.run("print('whole')").text() == "whole\n"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(7)", {"exit_code": 7}),
        ("import os; os.kill(os.getpid(), 9)", {"signal": 9}),
        ("import ctypes; ctypes.string_at(0)", {"signal": 11}),
        ("import os; os.abort()", {"signal": 6}),
    ],
)
def test_a_death_is_named_and_loses_nothing_that_was_written(fresh: Guest, code: str, how: dict[str, int]) -> None:
    cell = fresh.submit(f"print('last words'); display('shown')\nimport sys; sys.stdout.flush()\n{code}")
    header, payload = fresh.until("stream")
    assert (header["cell"], payload) == (cell, b"last words\n")
    fresh.until("display")
    header, _ = fresh.until("interpreter", state="exited")
    assert {key: header[key] for key in ("exit_code", "signal") if key in header} == how
    fresh.start()
    assert fresh.run("print('new')").text() == "new\n"


def test_half_a_frame_of_a_dead_interpreter_is_dropped(fresh: Guest) -> None:
    fresh.submit(
        "import os, stat, struct\nfds = [fd for fd in map(int, os.listdir('/proc/self/fd')) if fd >= 100]\n"
        f"for fd in fds:\n    try: os.write(fd, {wire.encode({'op': 'clear', 'cell': 'x', 'wait': True})[:-3]!r})\n"
        "    except OSError: pass\nos._exit(7)"
    )
    header, _ = fresh.until("interpreter", state="exited")
    assert header["exit_code"] == 7
    fresh.start()
    assert fresh.run("print('new')").text() == "new\n"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x00\xff" * 64, "no frame"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 300 << 20, 0), "more than the protocol allows"),
        (wire.encode({"op": "hello", "nonce": "x"}), "unknown op 'hello'"),
        (wire.encode({"op": "interpreter", "generation": 9, "state": "exited"}), "unknown op 'interpreter'"),
        (wire.encode({"op": "busy", "cell": "x" * 300}), "cell is too long"),
    ],
)
def test_what_is_no_frame_of_an_interpreter_ends_it_with_a_reason(fresh: Guest, frame: bytes, reason: str) -> None:
    fresh.submit(
        f"import os, time\nfor fd in map(int, os.listdir('/proc/self/fd')):\n    if fd >= 100:\n        try: os.write(fd, {frame!r})\n"
        "        except OSError: pass\ntime.sleep(30)"
    )
    header, _ = fresh.until("violation")
    assert reason in header["reason"]
    assert fresh.until("interpreter", state="exited")[0]["signal"] == 9
    fresh.start()
    assert fresh.run("print('new')").text() == "new\n"


def test_kill_takes_the_children_along(fresh: Guest) -> None:
    cell = fresh.submit(
        "import os, subprocess\np = subprocess.Popen(['sh', '-c', 'trap \"\" INT TERM; sleep 61.007; :'], start_new_session=True)\n"
        "import signal\nfor s in (1, 2, 3, 15): signal.signal(s, signal.SIG_IGN)\nprint(p.pid, flush=True)\nwhile True: pass"
    )
    _, payload = fresh.until("stream")
    fresh.send({"op": "kill", "what": "interpreter"})
    assert fresh.until("interpreter", state="exited")[0]["signal"] == 9
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{int(payload)}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{int(payload)}")
    assert cell


def test_a_new_start_replaces_the_interpreter(fresh: Guest) -> None:
    fresh.run("old = 1")
    fresh.generation += 1
    fresh.send({"op": "start", "generation": fresh.generation})
    assert fresh.until("interpreter", state="exited")[0]["generation"] == fresh.generation - 1
    assert fresh.until("interpreter", state="ready")[0]["generation"] == fresh.generation
    assert fresh.run("print('old' in globals())").text() == "False\n"


def test_shutdown_runs_exit_handlers(fresh: Guest) -> None:
    fresh.run("import atexit; atexit.register(lambda: open('bye.txt', 'w').write('ran'))")
    fresh.send({"op": "shutdown", "grace": 5000})
    assert fresh.until("interpreter", state="exited")[0]["exit_code"] == 0
    assert fresh.process.wait(5) == 0
    assert Path(fresh.roots["build"], "bye.txt").read_text() == "ran"


@pytest.mark.parametrize(("last_cell", "grace"), [("pass", 5000), ("import time; time.sleep(60)", 300)])
def test_after_exit_handlers_init_can_stay_to_give_out_files(fresh: Guest, last_cell: str, grace: int) -> None:
    fresh.run("import atexit; atexit.register(lambda: open('bye.txt', 'w').write('ran')); open('kept.txt', 'w')")
    if grace < 1000:
        fresh.submit(last_cell)
        time.sleep(0.3)
    for _ in range(2):  # the second time there is no interpreter left to wait for
        fresh.send({"op": "shutdown", "grace": grace, "stay": True})
        time.sleep(0.1)
    fresh.until("interpreter", state="exited")
    fresh.send({"op": "list", "request": 7, "area": "build", "max_files": 10})
    fresh.until("listing")
    assert fresh.process.poll() is None
    fresh.send({"op": "shutdown", "grace": 200})
    assert fresh.process.wait(5) == 0
    assert Path(fresh.roots["build"], "kept.txt").exists()
    assert Path(fresh.roots["build"], "bye.txt").exists() is (grace > 1000)


def test_shutdown_does_not_wait_longer_than_its_grace(fresh: Guest) -> None:
    fresh.submit("import time; time.sleep(60)")
    time.sleep(0.3)
    started = time.monotonic()
    fresh.send({"op": "shutdown", "grace": 200})
    assert fresh.process.wait(5) == 0
    assert 0.15 < time.monotonic() - started < 3


@pytest.mark.parametrize("way", ["channel", "sigterm"])
def test_when_the_host_goes_everything_goes(fresh: Guest, way: str) -> None:
    cell = fresh.run("import subprocess\nprint(subprocess.Popen('setsid sleep 62.113 >/dev/null 2>&1 & echo $!', shell=True, "
                     "stdout=subprocess.PIPE).stdout.read().decode())")
    daemon = int(cell.text())
    assert os.path.exists(f"/proc/{daemon}")
    if way == "channel":
        assert fresh.process.stdin
        fresh.process.stdin.close()
        assert fresh.process.wait(5) == 0
    else:
        fresh.process.send_signal(signal.SIGTERM)
        assert fresh.process.wait(5) == 143
    assert not os.path.exists(f"/proc/{daemon}")


def test_init_cannot_be_looked_into_by_the_interpreter(fresh: Guest) -> None:
    cell = fresh.run(
        "import os\nfound = []\nfor name in ('environ', 'mem', 'fd'):\n    try:\n"
        "        os.listdir('/proc/%d/fd' % os.getppid()) if name == 'fd' else open('/proc/%d/%s' % (os.getppid(), name), 'rb').close()\n"
        "        found.append(name)\n    except OSError: pass\nprint(found if os.getuid() else [])"
    )
    assert cell.text() == "[]\n"


def test_the_interpreter_holds_no_descriptor_of_the_host(fresh: Guest) -> None:
    cell = fresh.run("import os\nprint(*sorted(os.readlink('/proc/self/fd/%s' % f) for f in os.listdir('/proc/self/fd') "
                     "if int(f) > 2 and os.path.exists('/proc/self/fd/%s' % f)))")
    held = cell.text().split()
    folder = Path(f"/proc/{fresh.process.pid}/fd")
    assert held and not {os.readlink(folder / name) for name in os.listdir(folder)} & set(held) - {"anon_inode:[eventpoll]"}
    assert [name.partition(":")[0] for name in held].count("socket") == 3  # the channel, and two of its own event loop
    assert len({name for name in held if name.startswith("pipe:")}) == 1  # its own, kept in reserve


def test_an_awaiting_cell_that_is_stopped_early_complains_of_nothing(either: Guest) -> None:
    for turn in range(25):
        cell = either.submit("import asyncio\nawait asyncio.sleep(9)")
        time.sleep(0.0002 * turn)
        either.send({"op": "interrupt"})
        found = either.collect(cell, timeout=10)
        assert found.error()["ename"] == "KeyboardInterrupt"
        assert "never awaited" not in found.text("stderr")
    assert either.run("import gc; gc.collect(); print('clean')").text("stderr") == ""


HANGING = """
import time
class Endless:
    def __init__(self, stubborn=False): self.stubborn = stubborn
    def _hang(self, *_):
        while True:
            try: time.sleep(0.05)
            except BaseException:
                if not self.stubborn: raise
    __dir__ = __repr__ = _hang
    def __getattr__(self, name): return self._hang()
endless = Endless()
"""


@pytest.mark.parametrize(("op", "code"), [("complete", "endless."), ("inspect", "endless"), ("inspect", "endless.x")])
def test_a_question_that_nobody_waits_for_any_more_is_ended(either: Guest, op: str, code: str) -> None:
    either.run(HANGING)
    either.requests += 1
    more = {"detail_level": 0} if op == "inspect" else {}
    either.send({"op": op, "request": either.requests, "cursor_pos": len(code), **more}, code.encode())
    time.sleep(0.3)
    either.send({"op": "give_up", "request": either.requests})
    started = time.monotonic()
    either.until("reply", request=either.requests)
    assert time.monotonic() - started < 4
    assert either.run("print(type(endless).__name__)").text() == "Endless\n"
