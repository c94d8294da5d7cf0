# ruff: noqa: E501 - programs of cells stand on one line
"""Whose output it is, and in which order it arrives."""

from __future__ import annotations

import time

import pytest
from guest_driver import Guest


def test_text_displays_children_and_bytes_keep_their_order(either: Guest) -> None:
    cell = either.run(
        "import os, subprocess, sys\nos.write(1, b'raw-first\\n')\nfor i in range(5):\n"
        "    print('py', i); display(i); sys.stdout.flush(); os.write(1, b'raw\\n'); subprocess.run(['echo', 'child'])\n"
        "    os.system('echo shell'); print('err', i, file=sys.stderr); print('after')"
    )
    wanted = [("stdout", "raw-first\n")]
    for i in range(5):
        if i:
            wanted[-1] = ("stdout", wanted[-1][1] + f"py {i}\n")
        else:
            wanted[-1] = ("stdout", "raw-first\npy 0\n")
        wanted += [
            ("display_data", {"text/plain": str(i)}), ("stdout", "raw\nchild\nshell\n"), ("stderr", f"err {i}\n"),
            ("stdout", "after\n"),
        ]
    assert cell.script() == wanted


def test_streams_alternate_in_the_order_of_writing(either: Guest) -> None:
    cell = either.run("import sys\nfor i in range(50):\n    print('o', i)\n    print('e', i, file=sys.stderr)")
    assert cell.script() == [
        item for i in range(50) for item in (("stdout", f"o {i}\n"), ("stderr", f"e {i}\n"))
    ]


def test_bytes_written_first_thing_belong_to_the_cell_that_writes_them(either: Guest) -> None:
    for i in range(20):
        cell = either.run(f"import os; os.write(1, b'cell {i}\\n');")
        assert cell.text() == f"cell {i}\n"


def test_output_arrives_while_the_cell_runs(either: Guest) -> None:
    started = time.monotonic()
    cell = either.submit("import time\nprint('tick')\ntime.sleep(1.0)\nprint('tock')")
    either.until("stream")
    assert time.monotonic() - started < 0.8
    either.collect(cell)


def test_a_thread_prints_to_the_cell_that_started_it(either: Guest) -> None:
    first = either.run(
        "import threading\ngo = threading.Event()\ndef late():\n    go.wait(); print('LATE'); display('shown')\n"
        "th = threading.Thread(target=late); th.start(); print('started')"
    )
    second = either.run("print('second'); go.set(); th.join(); print('joined')")
    assert (first.text(), second.text()) == ("started\n", "second\njoined\n")
    late = [h for h, _ in second.frames if h["op"] in ("text", "display") and h["cell"] == first.cell]
    assert [h["op"] for h in late] == ["text", "display"]


def test_a_task_prints_to_the_cell_that_started_it(either: Guest) -> None:
    first = either.run("import asyncio\nasync def later():\n    await asyncio.sleep(0.1); print('LATE')\nt = asyncio.create_task(later())")
    second = either.run("await asyncio.sleep(0.3); print('second')")
    assert second.text() == "second\n"
    assert [(h["cell"], p) for h, p in second.frames if h["op"] == "text"] == [(first.cell, b"LATE\n")]


def test_text_after_the_cell_still_names_it(either: Guest) -> None:
    cell = either.run("import threading, time\nthreading.Timer(0.1, lambda: print('afterwards')).start()")
    header, payload = either.until("text")
    assert (header["cell"], header["name"], payload) == (cell.cell, "stdout", b"afterwards\n")


def test_a_child_that_outlives_its_cell_is_heard(either: Guest) -> None:
    cell = either.run("import subprocess; p = subprocess.Popen('sleep 0.2; echo late child', shell=True);")
    header, payload = either.until("stream")
    assert (header["cell"], payload) == (cell.cell, b"late child\n")


def test_lone_surrogates_lose_nothing_around_them(either: Guest) -> None:
    cell = either.run("print('before'); print('\\ud83d'); print('after')\n'\\udcff result'")
    assert cell.text() == "before\n\\ud83d\nafter\n"
    assert cell.result() == {"text/plain": "'\\udcff result'"}


def test_bytes_that_are_no_text_arrive_as_they_are(either: Guest) -> None:
    cell = either.run("import os, sys\nos.write(1, b'\\xff\\xfe')\nsys.stdout.buffer.write(b'\\x80binary'); sys.stdout.flush()")
    assert b"".join(p for h, p in cell.frames if h["op"] == "stream") == b"\xff\xfe\x80binary"


def test_the_streams_are_what_programs_expect(either: Guest) -> None:
    cell = either.run(
        "import sys, subprocess\nprint(sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.isatty(), sys.stdout.encoding,\n"
        "      sys.stdout.errors, sys.stdout.writable(), sys.stdin.read() == '', sys.stdout.write('') )\n"
        "subprocess.run(['sh', '-c', 'echo handed over'], stdout=sys.stdout);\nsys.stdout.close(); print('open')"
    )
    assert cell.text() == "1 2 False UTF-8 backslashreplace True True 0\nhanded over\nopen\n"


def test_writing_what_is_no_text_is_an_error(either: Guest) -> None:
    assert either.run("import sys; sys.stdout.write(b'x')").error()["evalue"] == "write() argument must be str, not bytes"
    assert either.run("print('a', end=''); sys.stdout.write(5)").error()["ename"] == "TypeError"


def test_text_of_the_c_library_arrives_at_once(either: Guest) -> None:
    cell = either.submit("import ctypes, time\nctypes.CDLL(None).puts(b'from C'); time.sleep(0.5);")
    started = time.monotonic()
    _, payload = either.until("stream")
    assert (payload[:6], time.monotonic() - started < 0.4) == (b"from C", True)
    either.collect(cell)


def test_two_pipes_full_at_once_do_not_lock(either: Guest) -> None:
    cell = either.run(
        "import subprocess, sys\nchild = 'import sys\\nfor i in range(40):\\n    sys.stderr.write(\"e\" * 16384)\\n"
        "    sys.stdout.write(\"o\" * 16384)\\n'\nprint('rc', subprocess.run([sys.executable, '-c', child]).returncode)"
    )
    assert (cell.text("stderr"), cell.text()) == ("e" * 655360, "o" * 655360 + "rc 0\n")


def test_a_flood_arrives_whole(either: Guest) -> None:
    cell = either.run("line = 'x' * 199\nfor i in range(20000): print(line)\nprint('LAST')")
    assert cell.text() == ("x" * 199 + "\n") * 20000 + "LAST\n"


def test_threads_that_print_at_once_lose_nothing(either: Guest) -> None:
    cell = either.run(
        "import threading\ndef work(n):\n    for i in range(500): print(f'<{n}:{i}>')\n"
        "ts = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n[t.start() for t in ts]; [t.join() for t in ts];"
    )
    text = cell.text()
    for n in range(4):
        assert [i for i in range(500) if f"<{n}:{i}>" not in text] == []


def test_clear_keeps_its_flag_and_its_place(ipython: Guest) -> None:
    cell = ipython.run("from IPython.display import clear_output, display\nfor i in range(2):\n    clear_output(wait=True); display(i)")
    assert [item[0] for item in cell.script()] == ["clear", "display_data", "clear", "display_data"]
    assert [h["wait"] for h, _ in cell.frames if h["op"] == "clear"] == [True, True]


def test_closed_descriptors_do_not_silence_a_cell(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Guest(tmp_path_factory.mktemp("closed"), mode="plain") as guest:
        guest.start()
        cell = guest.run("import os\nfor fd in range(0, 64):\n    try: os.close(fd)\n    except OSError: pass\nprint('still heard')")
        assert cell.text() == "still heard\n"
        assert guest.run("print('and later')").text() == "and later\n"


def test_a_thief_on_low_descriptors_steals_no_request(either: Guest) -> None:
    either.run(
        "import os, stat, threading, time\ndef steal():\n    for _ in range(50):\n        for fd in range(64):\n            try:\n"
        "                if stat.S_ISSOCK(os.fstat(fd).st_mode) or (fd != 1 and fd != 2 and stat.S_ISFIFO(os.fstat(fd).st_mode)):\n"
        "                    os.set_blocking(fd, False); os.read(fd, 65536)\n            except OSError: pass\n        time.sleep(0.005)\n"
        "threading.Thread(target=steal, daemon=True).start()"
    )
    for i in range(20):
        assert either.run(f"print({i})").text() == f"{i}\n"


def test_logging_shows_each_record_once(either: Guest) -> None:
    cell = either.run("import logging\nlogging.basicConfig(level=logging.INFO, format='FMT:%(message)s', force=True)\nlogging.info('two')")
    assert cell.text("stderr") == "FMT:two\n"
