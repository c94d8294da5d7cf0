# ruff: noqa: E501 - programs of cells stand on one line
"""A cell that takes every descriptor can be followed by one that gives them back."""

from __future__ import annotations

import pytest
from guest_driver import Guest

LEAKS = {
    "files": "import os\nheld = []\ntry:\n    while True: held.append(os.open('/dev/null', 0))\nexcept OSError as error: print(error.errno)",
    "sockets": "import os, socket\nkept, held = [], []\ntry:\n    while True:\n        kept.append(socket.socket()); held.append(os.dup(kept[-1].fileno()))\nexcept OSError as error: print(error.errno)\nheld += [s.detach() for s in kept]",
    "an error that nobody catches": "import os\nheld = []\nprint(24)\nwhile True: held.append(os.open('/dev/null', 0))",
    "ours too": "import os\nfor fd in range(64, 90):\n    try:\n        if os.readlink(f'/proc/self/fd/{fd}').startswith('pipe'): os.close(fd)\n    except OSError: pass\nheld = []\ntry:\n    while True: held.append(os.open('/dev/null', 0))\nexcept OSError as error: print(error.errno)\nos.close(held.pop())",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_cells_after_a_leak_run_and_can_mend_it(either: Guest, leak: str) -> None:
    assert either.run(LEAKS[leak]).text().startswith("24\n")  # IPython adds that it cannot format an error
    for number in range(3):
        cell = either.run(f"print({number})")
        assert cell.text() == f"{number}\n" and cell.done[0] == "ok"
    before = "import stat\nassert all(os.fstat(fd) for fd in held)\n"  # none of the user's was taken
    assert either.run(before + "for fd in held: os.close(fd)\nprint('freed')").text() == "freed\n"
    assert either.run("print(open('/dev/null').read() == '')").text() == "True\n"


def test_a_lowered_limit_stays_as_the_cell_set_it_and_cells_go_on(either: Guest) -> None:
    either.run("import resource as r\nsoft, hard = r.getrlimit(r.RLIMIT_NOFILE)\nr.setrlimit(r.RLIMIT_NOFILE, (3, hard))")
    assert either.run("print(r.getrlimit(r.RLIMIT_NOFILE) == (3, hard))").text() == "True\n"
    assert either.run("r.setrlimit(r.RLIMIT_NOFILE, (soft, hard)); print(open('/dev/null').read() == '')").text() == "True\n"


def test_a_limit_that_cannot_be_raised_is_told_with_the_way_out(fresh: Guest) -> None:
    fresh.run("import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (3, 3))")
    error = fresh.run("1").error()
    assert error["ename"] == "RuntimeError"
    assert "may open no more files (its limit is 3" in error["evalue"] and "%agently restart" in error["evalue"]


def test_a_cell_that_replaces_what_files_are_opened_with_is_followed_by_others(either: Guest) -> None:
    names = ("os.open", "os.read", "os.close", "builtins.open", "io.open")
    either.run(f"import os, io, builtins\nkept = {{n: eval(n) for n in {names!r}}}")
    either.run("; ".join(f"{name} = lambda *a, **k: 1 / 0" for name in names))
    assert either.run("print('goes on')").text() == "goes on\n"
    either.run("; ".join(f"{name} = kept[{name!r}]" for name in names))
    assert either.run("print(open('/dev/null').read() == '')").text() == "True\n"
