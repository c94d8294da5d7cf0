"""The panel in a real browser: facts, questions and their answers, files, several notebooks."""

from __future__ import annotations

from playwright.sync_api import expect


def test_facts_of_the_sandbox(desk):
    desk.open(desk.lab.notebook("facts.ipynb", ["print hello"], "synthetic"))
    expect(desk.chip()).to_have_text("Ready")
    expect(desk.panel.locator(".agently-Summary")).to_contain_text("Isolated by bubblewrap")
    desk.run_cell(0)
    expect(desk.output(0)).to_have_text("hello\n")
    desk.shot("facts")
