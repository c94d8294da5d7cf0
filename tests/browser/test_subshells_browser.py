"""Subshells as JupyterLab uses them: a console beside a busy notebook, and widgets that are heard meanwhile."""

from __future__ import annotations

from playwright.sync_api import expect

WAIT = "import time\nfor _ in range(400):\n    time.sleep(0.1)\n    if 'heard' in globals(): break\n"
BUSY = f"shared = 'seen'\n{WAIT}print('over')"
SLIDER = (
    "import ipywidgets as widgets\nslider = widgets.IntSlider(value=3, description='level')\n"
    "slider.observe(lambda change: globals().__setitem__('heard', change['new']), 'value')\nslider"
)


def test_a_console_runs_code_beside_a_busy_notebook(desk):
    desk.open(desk.lab.notebook("beside.ipynb", [BUSY], "agently"))
    desk.run_cell(0)
    expect(desk.chip()).to_have_text("Busy")
    desk.page.keyboard.press("Control+Shift+c")
    search = desk.page.locator(".lm-CommandPalette-input")
    search.fill("subshell console")
    desk.page.locator(".lm-CommandPalette-item", has_text="Subshell").first.click()
    editor = desk.page.locator(".jp-CodeConsole-input .cm-content")
    editor.click(timeout=30_000)
    desk.page.wait_for_timeout(1500)  # JupyterLab asks for the subshell after it has drawn the console
    desk.page.keyboard.type("shared.upper()")
    desk.page.keyboard.press("Shift+Enter")
    outputs = desk.page.locator(".jp-CodeConsole-content .jp-OutputArea-output")
    expect(outputs).to_have_text(["'SEEN'"], timeout=20_000)
    expect(desk.output(0)).to_have_count(0)
    expect(desk.chip()).to_have_text("Busy")
    desk.shot("subshell-console")
    editor.click()
    desk.page.keyboard.type("heard = True")
    desk.page.keyboard.press("Shift+Enter")
    expect(desk.output(0)).to_have_text("over\n", timeout=20_000)


def test_a_widget_is_heard_while_a_cell_runs(desk):
    desk.open(desk.lab.notebook("heard.ipynb", [SLIDER, f"{WAIT}print('heard', heard)"], "agently"))
    desk.run_cell(0)
    number = desk.cell(0).locator(".widget-readout")
    expect(number).to_have_text("3", timeout=30_000)
    desk.run_cell(1)
    expect(desk.chip()).to_have_text("Busy")
    number.click()
    number.fill("7")
    number.press("Enter")
    expect(desk.output(1)).to_have_text("heard 7\n", timeout=30_000)
