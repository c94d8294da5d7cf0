"""Saving through the magic and the panel: what exists is named and asked for, in both homes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kernel_session import KernelSession, Run
from magic_homes import answering, environment
from panel_client import PanelClient

WRITE = (
    "%%agently_exec --session\nopen('output/marks.csv', 'w').write('{}'); open('marks.csv', 'w').write('beside')\n"
    "open('output/p.txt', 'w').write('new')"
)


def shown(run: Run) -> str:
    """Return the plain text of everything that was displayed."""
    return "\n".join(str(m["content"]["data"].get("text/plain", "")) for m in run.of("display_data", "execute_result"))


@pytest.mark.parametrize("kernel", ["agently", "python3"])
def test_own_files_are_named_before_they_are_replaced(
    kernel: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mine = tmp_path / "p.txt"
    mine.write_text("my own")
    with KernelSession(tmp_path, kernel=kernel, env=environment(tmp_path_factory.getbasetemp())) as session:
        if kernel != "agently":
            session.run("%load_ext agently_exec")
        session.run(WRITE.format("from output"))
        alone = session.run("%agently outputs --save .")
        assert alone.error[0] == "ApprovalDenied"
        assert str(mine) in alone.error[1]
        denied = session.run("%agently outputs --save .", allow_stdin=True, during=answering(session, "no"))
        told = f"exists already and would be overwritten with what the sandbox produced: {mine}."
        assert told in denied.prompts[0][0]
        assert "allow session" not in denied.prompts[0][0]
        assert mine.read_text() == "my own"
        session.run("%agently restart")  # collects what was left in the working folder
        saved = session.run("%agently outputs --save coll", allow_stdin=True, during=answering(session, "allow"))
        assert "exists already" not in saved.prompts[0][0]
        places = {path.relative_to(tmp_path / "coll").as_posix(): path.read_text() for path in
                  (tmp_path / "coll").rglob("*.*")}
        assert places == {"marks.csv": "beside", "output/marks.csv": "from output", "output/p.txt": "new"}
        assert all(name in shown(saved) for name in places)

        panel = PanelClient(session)
        run_save: dict[str, Any] = {"action": "save_output", "version": 1, "client_id": "test-panel-0001"}
        message = session.client.session.msg("agently_panel_request", {**run_save, "path": "output/p.txt"})
        session.client.control_channel.send(message)
        asked = panel.question()
        assert (asked["gate"], asked["subject"], asked["allow_session"]) == ("replace_file", str(mine), False)
        panel.decide(asked, "approved_once")
        session.settle(10, lambda: mine.read_text() == "new")
        assert mine.read_text() == "new"


def test_the_configured_folder_keeps_what_is_the_users(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine.txt").write_text("my own")
    env, settings = environment(tmp_path_factory.getbasetemp()), {"save_outputs": "results"}
    with KernelSession(tmp_path, env=env, settings=settings) as session:
        for text in ("1", "2"):  # a rerun replaces what it saved itself
            run = session.run(
                f"for name in ('mine', 'other'): open(f'output/{{name}}.txt', 'w').write('{text}')", allow_stdin=True
            )
            assert "another file has that name: results/mine.txt" in run.text("stderr")
            assert (tmp_path / "results" / "other.txt").read_text() == text
        assert (tmp_path / "results" / "mine.txt").read_text() == "my own"
