"""Where nothing isolates, that is said everywhere: below every cell, in its reply, in status and facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_session import KernelSession
from magic_homes import environment

SETTINGS = (
    "c.AgentlyKernel.providers = ['trusted_local']\nc.AgentlyKernel.isolation = 'none'\n"
    "c.AgentlyKernel.unsafe_fallback = True\nc.AgentlyKernel.trusted_local_authorized = True\n"
)
LINE = "[agently] This ran WITHOUT isolation (trusted_local), as it was allowed to.\n"


@pytest.fixture(scope="module", params=("agently", "python3"))
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelSession]:
    """A kernel whose user has configured that nothing isolates."""
    base = tmp_path_factory.mktemp("bare")
    env = environment(base)
    Path(env["JUPYTER_CONFIG_DIR"], "agently_kernel_config.py").write_text(SETTINGS, "utf-8")
    with KernelSession(base, kernel=request.param, env=env) as session:
        if request.param != "agently":
            assert session.run("%load_ext agently_exec").status == "ok"
        yield session


CELLS = {"well": "x = 1", "with an error": "1/0", "ending its interpreter": "import os; os._exit(3)"}


@pytest.mark.parametrize("how", CELLS)
@pytest.mark.parametrize("options", [None, "", "--session"], ids=["plain", "program", "session"])
def test_every_run_is_marked_once(bare: KernelSession, how: str, options: str | None) -> None:
    ours = bare.manager.kernel_name == "agently"
    if options is None and not ours:
        return  # a plain cell of the ordinary kernel is none of ours
    run = bare.run(CELLS[how] if options is None else f"%%agently_exec {options}\n{CELLS[how]}")
    assert run.text("stderr").count(LINE) == 1
    if ours:
        assert run.reply["agently"] == {"unsafe": True, "provider": "trusted_local"}


def test_status_and_facts_claim_no_limit_that_nothing_holds(bare: KernelSession) -> None:
    for command in ("status", "facts"):
        run = bare.run(f"%agently {command}")
        shown = "".join(m["content"]["data"]["text/plain"] for m in run.of("display_data", "execute_result"))
        assert "processes" in shown and "not limited" in shown
        assert "by none" not in shown
    assert "✗ unsafe" in shown


def test_an_isolated_cell_is_not_marked(home: KernelSession) -> None:
    run = home.run("%%agently_exec\nprint(1)")
    assert "WITHOUT" not in run.text("stderr")
    assert "agently" not in run.reply


def test_the_panels_state_marks_the_run_and_no_other(bare: KernelSession, home: KernelSession) -> None:
    """Each execution says it of itself: a program without isolation may stand beside an isolated session."""
    asked = {"version": 1, "client_id": "test-client", "action": "snapshot"}
    for session, unsafe in ((bare, True), (home, False)):
        session.run("%%agently_exec\nprint(1)")
        snapshot = session.ask("agently_panel_request", asked, channel="control")["snapshot"]
        assert {run["unsafe"] for run in snapshot["executions"]} == {unsafe}
