"""What is said below a cell that misses something which the sandbox keeps from it on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_session import KernelSession

SESSION = "%%agently_exec --session\n"
FRESH = "%%agently_exec\n"


def folder_of(home: KernelSession) -> Path:
    return home.log.parent


@pytest.mark.parametrize(
    "code",
    [
        "!cat missed.txt", "%cat missed.txt", "!head -1 ./missed.txt > x", "import os; os.system('wc -l missed.txt')",
        "get_ipython().run_cell_magic('bash', '', 'cat missed.txt')", "open({here!r} + '/missed.txt')",
        "import pathlib; pathlib.Path({here!r}, 'missed.txt').read_text()",
        "import sqlite3; sqlite3.connect('missed.txt')",
    ],
)
def test_a_file_that_is_missed_in_any_way_is_named(home: KernelSession, code: str) -> None:
    (folder_of(home) / "missed.txt").write_text("here")
    run = home.run(SESSION + code.format(here=str(folder_of(home))))
    assert run.text("stderr").count("To give it: %agently grant missed.txt") == 1
    home.run(SESSION + "import os\nif os.path.exists('missed.txt'): os.remove('missed.txt')")


@pytest.mark.parametrize("code", ["bytearray(5 << 30)", "import numpy; numpy.ones(5 << 30)"])
def test_an_allocation_beyond_the_limit_is_told_the_limit_and_its_setting(home: KernelSession, code: str) -> None:
    run = home.run(SESSION + code)
    assert run.status == "error"
    assert run.text("stderr").count("together may use 2 GiB of memory") == 1
    assert run.text("stderr").count('c.AgentlyKernel.limits = {"memory": "4GiB"}') == 1
    assert "memory" not in home.run(SESSION + "raise ValueError('MemoryError')").text("stderr")


@pytest.mark.parametrize("first", [SESSION, FRESH])
@pytest.mark.parametrize("module", ["beside", "beside.inner"])
@pytest.mark.parametrize("package", [False, True])
def test_a_module_beside_the_notebook_is_named_and_is_found_when_given(
    home: KernelSession, first: str, module: str, package: bool
) -> None:
    name = f"m{package}{first.count('session')}{len(module)}".lower()
    module = module.replace("beside", name)
    if package:
        (folder_of(home) / name).mkdir(exist_ok=True)
        (folder_of(home) / name / "__init__.py").write_text("")
        (folder_of(home) / name / "inner.py").write_text("")
    else:
        (folder_of(home) / f"{name}.py").write_text("")
    path = name if package else f"{name}.py"
    how = f"%agently grant {path}"
    if first == FRESH:
        how = f"%%agently_exec --file {path}={path}" if package else f"%%agently_exec --file {path}"
    run = home.run(first + f"import {module}")
    assert run.status == "error"
    assert run.text("stderr").count(how) == 1
    if first == FRESH:
        first = f"{how}\n"
    else:
        assert home.run(how).status == "ok"
    if package or "." not in module:
        again = home.run(first + f"import {module}; print('found')")
        assert (again.status, again.text()) == ("ok", "found\n"), again.error


@pytest.mark.parametrize("magic", ["%pip", "%conda"])
def test_a_magic_that_installs_advises_no_restart(home: KernelSession, magic: str) -> None:
    run = home.run(SESSION + f"{magic} --version")
    said = run.text() + run.text("stderr") + "".join(run.error)
    assert "restart the kernel" not in said
    if magic == "%pip":
        assert run.text().count("packages that are installed from a cell last as long as this sandbox") == 1


@pytest.mark.parametrize("first", [SESSION, FRESH])
@pytest.mark.parametrize(
    "code", ["open('../x', 'w')", "open('/workspace/x', 'w')", "import os; os.mkdir('/usr/x')",
             "import pandas as pd; pd.DataFrame().to_csv('/my/dir/x.csv')"],
)
def test_a_result_that_cannot_be_written_there_is_told_where_it_can(home: KernelSession, first: str, code: str) -> None:
    run = home.run(first + code)
    assert run.status == "error"
    assert run.text("stderr").count("Write results to output/") == 1


def test_an_absolute_path_of_the_machine_is_told_how_it_is_given(home: KernelSession) -> None:
    run = home.run(SESSION + "open('/my/data/big file.csv')")
    assert "%agently grant '/my/data/big file.csv' and then open it as 'big file.csv'" in run.text("stderr")
    assert "%agently grant" not in home.run(SESSION + "open('/tmp/nothing.csv')").text("stderr")


@pytest.mark.parametrize("first", [SESSION, FRESH])
@pytest.mark.parametrize(
    "code", ["print('absent.txt was not found')", "1 / 0", "open('no-such-file')", "import no_such"]
)
def test_what_has_nothing_to_do_with_the_sandbox_has_no_hint(home: KernelSession, first: str, code: str) -> None:
    assert "%agently" not in home.run(first + code).text("stderr").replace("%%agently_exec", "")


@pytest.mark.parametrize("answer", ["y", "yes", "sure"])
@pytest.mark.parametrize("first", [SESSION, FRESH])
def test_a_yes_that_is_none_is_told_so(home: KernelSession, first: str, answer: str) -> None:
    (folder_of(home) / "meant.txt").write_text("here")
    run = home.run(first + "open('meant.txt')", allow_stdin=True, during=answering_plainly(home, answer))
    assert len(run.prompts) == 1
    assert run.text("stderr").count("a yes must be the words and the code that the question shows") == 1
    plain = home.run(first + "open('meant.txt')", allow_stdin=True, during=answering_plainly(home, "no"))
    assert "a yes must be" not in plain.text("stderr")


def answering_plainly(home: KernelSession, word: str):  # type: ignore[no-untyped-def]
    done = []

    def during(run):  # type: ignore[no-untyped-def]
        if run.prompts and not done:
            done.append(1)
            home.client.input(word)

    return during
