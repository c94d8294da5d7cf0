"""The panel over the real kernel: what it shows of grants, taking them back, saving, and coming back after a reload."""

from __future__ import annotations

from lab_desk import Desk
from playwright.sync_api import expect

GRANT = "%agently grant marks.csv"
MANY = "for n in range(40):\n    open(f'output/f{n:02}.txt', 'w').write('x')\nopen('output/p.txt', 'w').write('new')"
ALLOW = "%agently allow network granted.example"


def test_hosts_and_files_are_shown_and_taken_back(desk: Desk) -> None:
    path = desk.lab.notebook("taking_back.ipynb", [ALLOW, GRANT, "print(open('marks.csv').read())"], "agently")
    (desk.lab.folder / "marks.csv").write_text("zed,9")
    desk.open(path)
    desk.run_cell(0)
    desk.card().get_by_role("button", name="Allow once").wait_for()
    desk.page.wait_for_timeout(900)
    desk.card().get_by_role("button", name="Allow once").click()
    network = desk.panel.locator("[data-axis=network]")
    expect(network).to_contain_text("Network blocked but for granted.example")
    grants = desk.panel.locator("[data-section=grants]")
    expect(grants).to_contain_text("granted.example")
    desk.run_cell(1)
    inputs = desk.panel.locator("[data-section=inputs]")
    expect(inputs).to_contain_text("marks.csv")
    desk.run_cell(2)
    expect(desk.output(2)).to_contain_text("zed,9")
    desk.shot("taking-back")
    grants.get_by_role("button", name="Take back").click()
    expect(network).to_contain_text("Network blocked")
    expect(network).not_to_contain_text("granted.example")
    expect(grants).to_have_count(0)
    inputs.get_by_role("button", name="Take back marks.csv").click()
    expect(inputs).to_have_count(0)
    expect(desk.page.locator(".Toastify")).to_contain_text("marks.csv was removed from the sandbox")


def test_the_question_about_saving_comes_into_view_and_names_what_is_replaced(desk: Desk) -> None:
    path = desk.lab.notebook("saving.ipynb", [MANY], "agently")
    mine = desk.lab.folder / "p.txt"
    mine.write_text("my own")
    desk.open(path)
    desk.run_cell(0)
    save = desk.panel.get_by_role("button", name="Save output/f00.txt beside the notebook")
    save.scroll_into_view_if_needed()
    replace = desk.panel.get_by_role("button", name="Save output/p.txt beside the notebook")
    save.click()
    expect(desk.card()).to_be_in_viewport()
    expect(desk.card()).to_contain_text("You, by a click in this panel")
    desk.card().get_by_role("button", name="Deny").click()
    replace.click()
    expect(desk.card()).to_contain_text(f"would be overwritten with what the sandbox produced: {mine}")
    expect(desk.card().get_by_role("button", name="Allow for this session")).to_have_count(0)
    desk.card().get_by_role("button", name="Deny").click()
    expect(desk.card()).to_have_count(0)
    assert mine.read_text() == "my own"


def test_the_panel_is_there_again_after_a_reload(desk: Desk) -> None:
    desk.open(desk.lab.notebook("reload.ipynb", ["1"], "agently"))
    expect(desk.panel).to_be_visible()
    desk.page.wait_for_timeout(1500)  # the layout is saved a moment after it changed
    desk.page.reload()
    expect(desk.panel).to_be_visible(timeout=30_000)
