"""The panel with the real kernel and a real sandbox: what a person sees, and what no cell can do to the page."""

from __future__ import annotations

from playwright.sync_api import expect


def test_a_cell_runs_in_the_sandbox_and_its_file_comes_out(desk):
    write = "x = 41\nprint(x + 1)\nopen('output/table.csv', 'w').write('name,value\\nalpha,1\\n')"
    desk.open(desk.lab.notebook("real.ipynb", [write, "x", "raise KeyError('k')"], "agently"))
    expect(desk.panel.locator(".agently-Summary")).to_contain_text("Isolated by bubblewrap")
    expect(desk.panel.locator("[data-section=isolation] .agently-count-badge")).to_have_text("4/4")
    expect(desk.page.locator("#jp-main-statusbar .agently-Shield")).to_have_text("bubblewrap 4/4")
    desk.run_cell(0)
    expect(desk.output(0).first).to_have_text("42\n")
    row = desk.panel.locator("[data-output='output/table.csv']")
    row.get_by_role("button", name="Preview output/table.csv").click()
    expect(row.locator("td")).to_have_text(["alpha", "1"])
    expect(desk.cell(0)).to_have_attribute("data-agently-badge", "ran")
    desk.run_cell(1)
    expect(desk.output(1)).to_have_text("41")
    desk.run_cell(2)
    runs = desk.panel.locator("[data-section=runs] li")
    expect(runs.first).to_contain_text("KeyError")
    desk.panel.locator("[data-axis=host_filesystem_restricted] > summary").click()
    expect(desk.panel.locator("[data-axis=host_filesystem_restricted] .agently-evidence li")).not_to_have_count(0)
    desk.shot("real-kernel")


def test_a_file_is_saved_after_a_yes_and_not_after_a_no(desk):
    desk.open(desk.lab.notebook("save.ipynb", ["open('output/kept.txt', 'w').write('kept')"], "agently"))
    desk.run_cell(0)
    row = desk.panel.locator("[data-output='output/kept.txt']")
    save = row.get_by_role("button", name="Save output/kept.txt beside the notebook")
    save.click()
    expect(desk.card().locator("h3")).to_have_text("Save files beside the notebook")
    desk.shot("real-save")
    desk.card().get_by_role("button", name="Deny").click()
    expect(row.get_by_role("status")).to_contain_text("denied")
    assert not (desk.lab.folder / "kept.txt").exists()
    expect(desk.card()).to_have_count(0)
    save.click()
    allow = desk.card().get_by_role("button", name="Allow once")
    expect(allow).to_have_attribute("aria-disabled", "false")
    allow.click()
    expect(row.get_by_role("status")).to_contain_text("Saved as")
    assert (desk.lab.folder / "kept.txt").read_text() == "kept"


def test_active_output_waits_for_a_yes(desk):
    show = "from IPython.display import Javascript\nJavascript('window.guestRan = true')"
    desk.open(desk.lab.notebook("active.ipynb", [show, "%agently allow javascript"], "agently"))
    desk.run_cell(0)
    expect(desk.panel.locator("[data-section=withheld]")).to_contain_text("application/javascript")
    expect(desk.cell(0)).to_have_attribute("data-agently-badge", "withheld")
    assert desk.page.evaluate("window.guestRan") is None
    desk.run_cell(1)
    card = desk.card()
    expect(card.locator("h3")).to_have_text("Show active output")
    expect(card.get_by_role("button", name="Cell 2 from the top")).to_be_visible()
    desk.shot("real-question")
    card.get_by_role("button", name="Deny").click()
    expect(card).to_have_count(0)


HOSTILE = (
    "<div style='position:fixed;inset:0;z-index:2147483647;background:red'>cover</div>",
    "<style>.agently-Card, #agently-panel { position: fixed; left: -9999px; display: none !important }</style>",
    "<img src=x onerror=\"for (const b of document.querySelectorAll('.agently-once')) b.click()\">",
    "<script>setInterval(() => { for (const b of document.querySelectorAll('.agently-once')) b.click() }, 20)</script>",
    "<iframe srcdoc=\"<script>for(const b of parent.document.querySelectorAll('button'))b.click()</script>\"></iframe>",
    "<div class='agently-Card' role='group'><h3>Give network access</h3><button autofocus>Deny</button></div>",
)


def test_nothing_that_a_cell_shows_reaches_the_question(desk):
    cells = [f"from IPython.display import HTML, display\ndisplay(HTML({html!r}))" for html in HOSTILE]
    desk.open(desk.lab.notebook("hostile.ipynb", ["\n".join(cells), "%agently allow mime:text/x-demo"], "agently"))
    desk.run_cell(0)
    expect(desk.panel.locator("[data-section=runs] li").first).to_contain_text("done")
    desk.cell(1).scroll_into_view_if_needed()
    desk.run_cell(1)
    allow = desk.card().get_by_role("button", name="Allow once")
    expect(allow).to_have_attribute("aria-disabled", "false")
    desk.page.wait_for_timeout(500)
    desk.shot("hostile")
    box = allow.bounding_box()
    top = desk.page.evaluate("([x, y]) => document.elementFromPoint(x, y).className", [box["x"] + 5, box["y"] + 5])
    assert "agently-once" in top
    expect(desk.page.locator(".jp-OutputArea .agently-Card")).to_have_count(0)
    assert desk.page.evaluate("!document.activeElement.closest('.jp-OutputArea')")
    allow.click()
    expect(desk.card()).to_have_count(0)
    expect(desk.output(1)).to_contain_text("text/x-demo")


def test_reload_while_a_cell_runs(desk):
    code = "import time\nprint('before', flush=True)\ntime.sleep(25)\nprint('after')"
    desk.open(desk.lab.notebook("long.ipynb", [code], "agently"))
    desk.run_cell(0)
    expect(desk.output(0)).to_have_text("before\n")
    desk.page.keyboard.press("Control+s")
    desk.page.wait_for_timeout(400)
    desk.page.reload()
    desk.settle()
    desk.show_panel()
    expect(desk.chip()).to_have_text("Busy", timeout=3000)
    run = desk.panel.locator("[data-section=runs] li").first
    expect(run).to_contain_text("running")
    expect(run).to_contain_text("done", timeout=40_000)
    run.get_by_role("button", name="Text").click()
    expect(run.locator("pre")).to_have_text("before\nafter\n")


def test_restart_of_the_sandbox(desk):
    desk.open(desk.lab.notebook("again.ipynb", ["x = 1", "x"], "agently"))
    desk.run_cell(0)
    expect(desk.panel.locator("[data-section=runs] li")).to_have_count(1)
    desk.panel.get_by_role("button", name="Restart sandbox").click()
    desk.page.locator(".jp-Dialog button.jp-mod-warn").click()
    expect(desk.page.locator(".Toastify__toast")).to_contain_text("The sandbox was closed")
    desk.run_cell(1)
    expect(desk.output(1)).to_contain_text("NameError")
