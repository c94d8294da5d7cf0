"""Runs that nobody watches (papermill, nbclient, CI): what the configuration gives them without a question."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_session import KernelSession

Start = Callable[..., KernelSession]
PROGRAM = "%%agently_exec\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A notebook's folder with an ordinary file, and all that is never given unasked."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("1,2")
    for number in range(20):
        (tmp_path / f"part{number}.txt").write_text(f"{number} ")
    (tmp_path / ".hidden").write_text("hidden")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "kept.txt").write_text("kept")
    (tmp_path / "server.pem").write_text("key")
    (tmp_path / "hostname").symlink_to("/etc/hostname")
    (tmp_path / "again.csv").symlink_to("data/rows.csv")
    (tmp_path / "elsewhere").symlink_to("/usr")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize("first", ["", PROGRAM], ids=["cell", "program"])
def test_files_beside_the_notebook_are_given_as_code_opens_them(start: Start, folder: Path, first: str) -> None:
    session = start(settings={"notebook_files": "give"})
    run = session.run(first + "print(*[open(f'part{n}.txt').read() for n in range(20)], open('data/rows.csv').read())")
    assert run.text().split() == [*map(str, range(20)), "1,2"]
    (folder / "data" / "rows.csv").write_text("3,4")
    session.run(first + "try: open('data/rows.csv', 'r+').write('9')\nexcept OSError: pass")
    assert (folder / "data" / "rows.csv").read_text() == "3,4"


NEVER = [".hidden", ".cache/kept.txt", "server.pem", "hostname", "again.csv", "elsewhere/bin/env", "loop", "../up.txt"]


@pytest.mark.parametrize("first", ["", PROGRAM], ids=["cell", "program"])
def test_hidden_files_secrets_and_links_are_not(start: Start, folder: Path, first: str) -> None:
    (folder.parent / "up.txt").write_text("up")
    session = start(settings={"notebook_files": "give"})
    code = f"for name in {NEVER}:\n    try: print('opened', name, open(name).read())\n    except OSError: print('no')"
    assert session.run(first + code).text() == "no\n" * len(NEVER)


def test_a_folder_is_given_to_nobody_who_only_opens_it(start: Start, folder: Path) -> None:
    session = start(settings={"notebook_files": "give"})
    code = "import os\ntry: open('data')\nexcept OSError: pass\nprint(os.path.exists('data'))"
    assert session.run(code).text() == "False\n"


def test_a_configuration_that_always_asks_gives_nothing(start: Start, folder: Path) -> None:
    session = start(settings={"notebook_files": "give", "approval_mode": "always", "auto_allow": "True"})
    assert session.run("open('part1.txt').read()").result == "'1 '"  # asked, and answered by auto_allow
    session = start(settings={"notebook_files": "give", "approval_mode": "never"})
    assert session.run("open('part1.txt').read()").result == "'1 '"  # nothing was to be asked


def test_without_the_setting_the_cell_names_it_where_it_would_help(start: Start, folder: Path) -> None:
    session = start()
    said = session.run("open('part1.txt')").text("stderr")
    told = '%agently grant part1.txt in a cell before it, or set c.AgentlyKernel.notebook_files = "give"'
    assert said.count(told) == 1
    hidden = session.run("open('.hidden')").text("stderr")
    assert "%agently grant .hidden" in hidden
    assert "notebook_files" not in hidden


@pytest.mark.parametrize("provider", ["bubblewrap", "runsc", "trusted_local"])
def test_named_variables_are_passed_on_and_no_others(start: Start, provider: str) -> None:
    allowed = {"isolation": "none", "unsafe_fallback": True, "trusted_local_authorized": True}
    weaker = allowed if provider == "trusted_local" else {}
    session = start(
        env={"RUN_DATE": "2026-11-30", "OTHER_KEY": "hunter2"},
        settings={"providers": [provider], "pass_environment": "RUN_DATE,NOT_SET", **weaker},
    )
    code = "import os; print(os.environ['RUN_DATE'], {'NOT_SET', 'OTHER_KEY'} & {*os.environ})"
    assert session.run(code, within=90).text() == "2026-11-30 set()\n"
    assert session.run("!echo $RUN_DATE $OTHER_KEY").text() == "2026-11-30\n"
    assert session.run(PROGRAM + code, within=90).text() == "2026-11-30 set()\n"


@pytest.mark.parametrize("first", ["", PROGRAM], ids=["cell", "program"])
def test_a_missing_variable_that_is_set_here_is_named(start: Start, first: str) -> None:
    session = start(env={"RUN_DATE": "2026-11-30", "REGION": "north"}, settings={"pass_environment": "REGION"})
    said = session.run(f"{first}import os\nos.environ['RUN_DATE']").text("stderr")
    assert said.count('c.AgentlyKernel.pass_environment = ["RUN_DATE"]') == 1
    for code in ("os.environ['NOWHERE']", "del os.environ['REGION']; os.environ['REGION']", "{}['RUN_DATE']"):
        assert "pass_environment" not in session.run(f"{first}import os\n{code}").text("stderr")


def test_a_module_is_asked_for_when_it_is_imported_and_a_package_as_a_whole(start: Start, folder: Path) -> None:
    (folder / "helper.py").write_text("VALUE = 1\n")
    (folder / "kit").mkdir()
    (folder / "kit" / "__init__.py").write_text("from .first import VALUE\n")
    (folder / "kit" / "first.py").write_text("from helper import VALUE\n")
    session = start(settings={"auto_allow": True})
    assert session.run("import kit; kit.VALUE").result == "1"
    given = session.run("%agently status").of("display_data")[0]["content"]["data"]["text/plain"]
    assert "helper.py" in given and "kit" in given and "__init__" not in given
    session = start()
    said = session.run("import kit")
    assert said.error[0] == "ModuleNotFoundError"
    told = '%agently grant kit in a cell before it, or set c.AgentlyKernel.notebook_files = "give"'
    assert said.text("stderr").count(told) == 1
    assert said.text("stderr").count("grant") == 1


def test_modules_beside_the_notebook_are_given_as_they_are_imported(start: Start, folder: Path) -> None:
    (folder / "helper.py").write_text("VALUE = 1\n")
    (folder / "kit" / "deep").mkdir(parents=True)
    (folder / "kit" / "__init__.py").write_text("from . import first\n")
    (folder / "kit" / "first.py").write_text("from helper import VALUE\n")
    (folder / "kit" / "deep" / "__init__.py").write_text("")
    (folder / "kit" / "deep" / "last.py").write_text(
        "import pathlib\nTEXT = (pathlib.Path(__file__).parent / 'text.txt').read_text()\n"
    )
    (folder / "kit" / "deep" / "text.txt").write_text("text of the package")
    (folder / "_away.py").symlink_to("/usr/lib/os-release")
    session = start(settings={"notebook_files": "give"})
    session.run("import helper, kit.deep.last")
    assert session.run("helper.VALUE, kit.first.VALUE, kit.deep.last.TEXT").result == "(1, 1, 'text of the package')"
    for name in ("_away", "nowhere", "kit.nowhere"):
        assert session.run(f"import {name}").error[0] == "ModuleNotFoundError"
