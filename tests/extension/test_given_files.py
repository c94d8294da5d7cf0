"""Files that were given, and files that code makes under the same names, in both homes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kernel_session import KernelSession, Run
from magic_homes import answering

SESSION = "%%agently_exec --session\n"


def folder_of(home: KernelSession) -> Path:
    return home.log.parent


def shown(run: Run) -> str:
    return "\n".join(str(m["content"]["data"].get("text/plain", "")) for m in run.of("display_data", "execute_result"))


def fill(folder: Path) -> None:
    folder.mkdir()
    (folder / "scores.csv").write_text("scores")
    (folder / "names.csv").write_text("names")


@pytest.mark.parametrize("order", [("{0}/scores.csv", "{0}"), ("{0}", "{0}/scores.csv")])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("mode", ["snapshot", "read_only"])
def test_a_file_and_its_folder_are_given_in_either_order(
    home: KernelSession, order: tuple[str, str], restart: bool, mode: str, request: pytest.FixtureRequest
) -> None:
    name = "d" + re.sub(r"\W", "", request.node.name)[-40:]
    fill(folder_of(home) / name)
    home.run(SESSION + "1")
    for path in order:
        run = home.run(f"%agently grant {path.format(name)} --mode {mode}")
        assert run.status == "ok", run.error
    if restart:
        home.run("%agently restart")
    if restart or mode == "snapshot":
        read = home.run(SESSION + f"print(open('{name}/scores.csv').read(), open('{name}/names.csv').read())")
        assert (read.status, read.text()) == ("ok", "scores names\n"), read.error
    program = home.run(f"%%agently_exec --input {name}\nprint(open('{name}/names.csv').read())")
    assert (program.status, program.text()) == ("ok", "names\n"), program.error


@pytest.mark.parametrize("how", ["'a'", "'r+'", "'a+'"])
@pytest.mark.parametrize("first", ["%%agently_exec\n", SESSION])
def test_code_that_adds_to_a_file_of_the_user_is_told_that_it_is_another(
    home: KernelSession, how: str, first: str
) -> None:
    (folder_of(home) / "marks.csv").write_text("ada,1\n")
    run = home.run(first + f"try:\n    open('marks.csv', {how}).write('zed,9')\nexcept FileNotFoundError: pass",
                   allow_stdin=True)
    assert run.prompts == []
    assert run.text("stderr").count("marks.csv beside the notebook was not opened") == 1
    assert "%agently grant marks.csv" in run.text("stderr")
    assert (folder_of(home) / "marks.csv").read_text() == "ada,1\n"
    anew = home.run(first + "open('marks.csv', 'w').write('mine')\nimport os; os.remove('marks.csv')")
    assert "beside the notebook" not in anew.text("stderr")


def test_a_grant_that_cannot_be_seen_says_so_and_how_it_can(home: KernelSession) -> None:
    (folder_of(home) / "hid").mkdir(exist_ok=True)
    (folder_of(home) / "hid" / "in.csv").write_text("yours")
    home.run(SESSION + "import os\nos.makedirs('hid')\nopen('hid/in.csv', 'w').write('mine')")
    for path in ("hid/in.csv", "hid"):
        said = shown(home.run(f"%agently grant {path}"))
        assert "Not visible yet" in said
        assert "hid/in.csv" in said
    assert home.run(SESSION + "print(open('hid/in.csv').read()); os.remove('hid/in.csv')").text() == "mine\n"
    assert home.run(SESSION + "print(open('hid/in.csv').read())").text() == "yours\n"


@pytest.mark.parametrize("folder", [False, True])
def test_a_mount_that_waits_for_a_restart_is_named_when_it_is_missed(home: KernelSession, folder: bool) -> None:
    name = f"mount{folder}"
    fill(folder_of(home) / name)
    home.run(SESSION + "1")
    given = name if folder else f"{name}/names.csv"
    assert "%agently restart" in shown(home.run(f"%agently grant {given} --mode read_only"))
    run = home.run(SESSION + f"open('{name}/names.csv')", allow_stdin=True, during=answering(home, "allow"))
    assert run.prompts == []
    assert run.error[0] == "FileNotFoundError"
    assert f"{given} was given as a live mount" in run.text("stderr")
    assert "%agently restart" in run.text("stderr")
    home.run("%agently restart")
    assert home.run(SESSION + f"print(open('{name}/names.csv').read())").text() == "names\n"
