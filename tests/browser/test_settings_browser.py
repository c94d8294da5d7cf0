"""The settings editor's page for the sandbox, wired to a real kernel: wishes that are taken and wishes that are not."""

from __future__ import annotations

import re

import pytest
from lab_desk import Desk, put_setting
from playwright.sync_api import Locator, expect

PLUGIN = "agently-kernel-panel:panel"


@pytest.fixture(autouse=True)
def plain_settings(desk: Desk):  # type: ignore[no-untyped-def]
    yield
    put_setting(desk.lab, PLUGIN, {})


def setting(desk: Desk, name: str) -> Locator:
    """Return the field of one setting in the settings editor, which is opened when it is not in front."""
    editor = desk.page.locator(".jp-SettingsPanel")
    if not editor.is_visible():
        desk.page.keyboard.press("Escape")
        desk.page.keyboard.press("Control+,")
        desk.page.locator(".jp-PluginList-entry", has_text=re.compile("^Sandbox$")).click()
    field = editor.locator(f"[id$='panel_{name}']").first
    field.scroll_into_view_if_needed()
    return field


def back(desk: Desk, notebook: str) -> None:
    desk.page.locator(f".lm-DockPanel-tabBar .lm-TabBar-tab:has-text('{notebook}')").click()
    expect(desk.panel.locator("h2")).to_have_text(notebook)


def test_stricter_isolation_is_taken_and_holds_for_the_next_cell(desk: Desk) -> None:
    desk.open(desk.lab.notebook("open.ipynb", ["x = 1", "print(x)"], "agently-open"), linked=False)
    expect(desk.panel.locator(".agently-Summary")).to_contain_text("NOT isolated", timeout=20_000)
    setting(desk, "isolation").select_option(label="Required: nothing weaker is ever taken")
    back(desk, "open.ipynb")
    expect(desk.panel.locator(".agently-Summary")).to_contain_text("Isolated by bubblewrap", timeout=15_000)
    desk.run_cell(0)
    expect(desk.cell(0)).to_have_attribute("data-agently-badge", "ran")
    setting(desk, "isolation").select_option(label="As the kernel is configured")
    back(desk, "open.ipynb")
    desk.run_cell(1)
    expect(desk.output(1)).to_have_text("1\n")
    desk.page.reload()
    desk.settle()
    desk.show_panel()
    expect(desk.panel.locator(".agently-Summary")).to_contain_text("Isolated by bubblewrap", timeout=15_000)


def test_what_the_configuration_forbids_is_refused_and_said(desk: Desk) -> None:
    desk.open(desk.lab.notebook("strict.ipynb", ["%agently allow mime:text/x-demo"], "agently"))
    setting(desk, "isolation").select_option(label="Preferred: a recorded fallback is allowed")
    weaker = "Your setting “isolation preferred” is weaker than the kernel’s configuration; “isolation required” holds."
    expect(desk.page.locator(".Toastify__toast", has_text=weaker)).to_be_visible(timeout=10_000)
    setting(desk, "approvalTimeout").fill("600")
    longer = "Your setting of 600 seconds for an answer is longer than the kernel’s configuration allows; 120 seconds"
    back(desk, "strict.ipynb")
    expect(desk.panel.locator(".agently-Summary .agently-note")).to_have_count(2, timeout=10_000)
    expect(desk.panel.locator(".agently-Summary")).to_contain_text(weaker)
    expect(desk.panel.locator(".agently-Summary")).to_contain_text(longer)
    desk.shot("settings-refused")
    setting(desk, "approvalTimeout").fill("9")
    back(desk, "strict.ipynb")
    expect(desk.panel.locator(".agently-Summary .agently-note")).to_have_count(1, timeout=10_000)
    desk.run_cell(0)
    expect(desk.card().locator(".agently-count")).to_have_text(re.compile(r"Denied in 0:0\d if nobody answers\."))
    expect(desk.output(0).last).to_contain_text("nobody answered within 9 seconds", timeout=15_000)


def test_the_panel_changes_sides(desk: Desk) -> None:
    desk.open(desk.lab.notebook("side.ipynb", ["1"], "synthetic"))
    expect(desk.page.locator("#jp-right-stack #agently-panel")).to_be_visible()
    setting(desk, "panelSide").select_option(label="Left")
    expect(desk.page.locator("#jp-left-stack #agently-panel")).to_have_count(1)
    expect(desk.page.locator("#jp-right-stack #agently-panel")).to_have_count(0)
