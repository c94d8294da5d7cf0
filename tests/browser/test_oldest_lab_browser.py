"""The oldest JupyterLab and Notebook that are supported: the panel of this build, shortly, in a server of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_desk import Desk, Lab, serve, shut_down_kernels
from playwright.sync_api import Browser, expect

OLDEST = ("jupyterlab~=4.5.0", "notebook~=7.5.0")
INSTALL_SECONDS = 400
ASK = "ask network pypi.example:443"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def oldest(built_extension: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A server in an environment of its own; its kernels run in this one."""
    root = tmp_path_factory.mktemp("oldest")
    subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True, timeout=120)
    python = str(root / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *OLDEST]
    subprocess.run(pip, check=True, timeout=INSTALL_SECONDS)
    with serve(root, built_extension, python) as running:
        yield running


@pytest.fixture
def old_desk(oldest: Lab, browser: Browser) -> Iterator[Desk]:
    context = browser.new_context(viewport={"width": 1360, "height": 880})
    yield Desk(oldest, context.new_page())
    context.close()
    shut_down_kernels(oldest)


def test_the_oldest_lab_shows_facts_and_takes_an_answer(old_desk: Desk) -> None:
    old_desk.open(old_desk.lab.notebook("old.ipynb", [f"output output/table.csv\n{ASK}"], "synthetic"))
    config = "JSON.parse(document.getElementById('jupyter-config-data').textContent)"
    version = old_desk.page.evaluate(f"{config}.appVersion")
    assert version.startswith("4.5.")
    expect(old_desk.panel.locator(".agently-Summary")).to_contain_text("Isolated by bubblewrap")
    expect(old_desk.page.locator("#jp-main-statusbar .agently-Shield")).to_have_text("bubblewrap 4/4")
    old_desk.run_cell(0)
    allow = old_desk.card().get_by_role("button", name="Allow once")
    expect(allow).to_have_attribute("aria-disabled", "false")
    old_desk.shot("oldest-lab")
    allow.click()
    expect(old_desk.output(0)).to_have_text("network: approved_once\n")
    expect(old_desk.panel.locator("[data-output='output/table.csv']")).to_be_visible()
    expect(old_desk.cell(0)).to_have_attribute("data-agently-badge", "ran")


def test_the_oldest_notebook_asks_above_the_cells(old_desk: Desk) -> None:
    name = old_desk.lab.notebook("old-nb.ipynb", [ASK], "synthetic")
    old_desk.open(name, app="notebook", panel=False)
    old_desk.run_cell(0)
    allow = old_desk.card(".agently-Banner").get_by_role("button", name="Allow once")
    expect(allow).to_have_attribute("aria-disabled", "false")
    old_desk.shot("oldest-notebook")
    allow.click()
    expect(old_desk.output(0)).to_have_text("network: approved_once\n")
