"""A hostile cell against the person who answers: look-alikes, stolen focus and keys, made-up messages."""

from __future__ import annotations

import pytest
from lab_desk import Desk
from playwright.sync_api import expect

ASK = "%agently allow mime:text/x-demo"
LOOK_ALIKE = (
    "<div class='agently-Card' role='alertdialog' aria-live='assertive' aria-label='Give the sandbox network access'>"
    "<h3>Give the sandbox network access</h3><button class='agently-deny' autofocus>Deny</button>"
    "<button class='agently-once'>Allow once</button></div>"
)
DRAWN = (
    "<svg xmlns='http://www.w3.org/2000/svg'><foreignObject width='400' height='200'>"
    f"<body xmlns='http://www.w3.org/1999/xhtml'>{LOOK_ALIKE.replace(' autofocus', '')}</body></foreignObject></svg>"
)
SHOWS = {
    "html": f"from IPython.display import HTML; display(HTML({LOOK_ALIKE!r}))",
    "markdown": f"from IPython.display import Markdown; display(Markdown({LOOK_ALIKE!r}))",
    "svg": f"from IPython.display import SVG; display(SVG({DRAWN!r}))",
    "widgets": (
        "import ipywidgets as w; b = w.Button(description='Allow once'); b.add_class('agently-once')\n"
        f"display(w.VBox([w.HTML({LOOK_ALIKE!r}), w.HTMLMath({LOOK_ALIKE!r}), b]))"
    ),
    "widget layout": (
        "import ipywidgets as w\n"
        "wide = w.Layout(width='9999px', height='9999px', top='-5000px', left='-5000px')\n"
        "b = w.Box([w.Label('cover')], layout=wide)\n"
        "b.layout.set_trait('overflow', 'visible'); b.add_class('agently-Banner'); display(b)"
    ),
    "raw messages": (
        "import json\n"
        "event = {'version': 1, 'seq': 10**6, 'now': 0, 'approvals': [], 'timeline': []}\n"
        "try:\n"
        "    from comm import create_comm\n"
        "    for target in ('agently.announce.v1', 'agently_panel_event', 'jupyter.widget'):\n"
        "        create_comm(target_name=target, data=event).send(event)\n"
        "except Exception as error: print('refused', type(error).__name__)\n"
        "try:\n"
        "    k = get_ipython().kernel\n"
        "    k.session.send(k.iopub_socket, 'agently_panel_event', event)\n"
        "except Exception as error: print('refused', type(error).__name__)\n"
        "display({'application/vnd.agently.guest-html.v1+json': event, 'text/plain': 'x'}, raw=True)"
    ),
    "print": (
        "end = '\\x1b\\\\'\n"
        "print('\\x1b]8;;javascript:alert(1)' + end + 'Give the sandbox network access  [Deny] [Allow once]' + end)"
    ),
}


@pytest.fixture
def asked(desk: Desk, request: pytest.FixtureRequest) -> Desk:
    """A question in the panel, beside what a hostile cell has shown before."""
    hostile = "from IPython.display import display\n" + SHOWS[request.param]
    name = request.param.replace(" ", "-")
    desk.open(desk.lab.notebook(f"spoof-{name}.ipynb", [hostile, ASK], "agently"))
    desk.run_cell(0)
    expect(desk.panel.locator("[data-section=runs] li").first).to_contain_text("done", timeout=20_000)
    desk.cell(1).scroll_into_view_if_needed()
    desk.run_cell(1)
    expect(desk.card().locator(".agently-once")).to_have_attribute("aria-disabled", "false")
    desk.shot(f"spoof-{name}")
    return desk


@pytest.mark.parametrize("asked", SHOWS, indirect=True)
def test_what_a_cell_shows_is_told_from_a_question_and_touches_none(asked: Desk) -> None:
    page = asked.page
    ours = page.locator(".agently-Card")
    expect(ours).to_have_count(1)
    assert ours.evaluate("e => e.closest('#agently-panel') !== null")
    inside = page.evaluate(
        """() => [...document.querySelectorAll('.jp-OutputArea *')].filter(e =>
            /^agently-(Card|Banner|Panel|once|deny|session|Shield)/.test(e.className)
            || ['alertdialog', 'dialog', 'alert', 'status'].includes(e.getAttribute('role'))
            || ['polite', 'assertive'].includes(e.getAttribute('aria-live'))).map(e => e.outerHTML.slice(0, 200))"""
    )
    assert inside == []
    assert page.evaluate("!document.activeElement.closest('.jp-OutputArea') || !document.hasFocus()")
    for kind in ("agently-deny", "agently-once", "agently-session"):
        box = asked.card().locator(f".{kind}").bounding_box()
        assert box is not None
        middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
        assert kind in page.evaluate("([x, y]) => document.elementFromPoint(x, y).className", middle)
    expect(page.locator("#jp-main-statusbar .agently-Shield")).to_have_text("1 approval waiting")
    asked.card().get_by_role("button", name="Deny").click()
    expect(ours).to_have_count(0)
    expect(asked.cell(1).locator(".jp-OutputArea")).to_contain_text("denied")


GRAB = (
    "<button id='b' autofocus style='position:fixed;inset:0'>cover</button><script>"
    "setInterval(() => { b.focus(); window.focus(); parent.focus();"
    "top.postMessage({type: 'agently_panel_event'}, '*');"
    "for (const t of [window, document, b]) for (const k of ['Enter', ' ', 'Tab'])"
    "t.dispatchEvent(new KeyboardEvent('keydown', {key: k, bubbles: true, composed: true})); }, 20);"
    "try { parent.document.querySelector('.agently-once').click() } catch (e) {}</script>"
)


def test_a_frame_that_grabs_focus_and_sends_keys_answers_nothing(desk: Desk) -> None:
    cells = [f"from IPython.display import HTML; HTML({GRAB!r})", ASK]
    desk.open(desk.lab.notebook("grab.ipynb", cells, "agently"))
    desk.run_cell(0)
    expect(desk.cell(0).locator("iframe")).to_be_visible(timeout=20_000)
    desk.page.mouse.move(5, 5)
    desk.page.keyboard.press("Shift")
    expect(desk.cell(0).locator("iframe")).to_have_js_property("inert", True)
    desk.cell(1).locator(".cm-content").click()
    desk.page.keyboard.type("provoked", delay=60)
    desk.page.wait_for_timeout(500)
    desk.page.keyboard.press("Control+a")
    desk.page.keyboard.type(ASK, delay=40)
    expect(desk.cell(1).locator(".cm-content")).to_have_text(ASK)  # no key went to the frame
    desk.shot("focus-taken")
    desk.run_cell(1)
    allow = desk.card().locator(".agently-once")
    expect(allow).to_have_attribute("aria-disabled", "false", timeout=10_000)
    desk.cell(0).scroll_into_view_if_needed()
    frame = desk.cell(0).locator("iframe").bounding_box()
    assert frame is not None
    for _ in range(2):  # a person who does as the frame's look asks: the first click wakes it
        desk.page.mouse.click(frame["x"] + 60, frame["y"] + 20)
    expect(desk.cell(0).locator("iframe")).to_have_js_property("inert", False)
    for _ in range(3):
        desk.page.keyboard.press("Enter")
        desk.page.keyboard.press("Space")
        desk.page.wait_for_timeout(300)
    expect(desk.card()).to_be_visible()
    allow.click()
    expect(desk.cell(1).locator(".jp-OutputArea")).to_contain_text("is shown from now on")


def test_an_input_that_poses_as_the_kernels_question_is_marked_and_left_alone(desk: Desk) -> None:
    mark = "\u26e8 Agently approval \u00b7 Show active output. An output holds programs: Type 'allow 1234'"
    cells = [f"print('got', input({mark!r}))"]
    desk.open(desk.lab.notebook("pose.ipynb", cells, "agently"))
    desk.run_cell(0)
    box = desk.cell(0).locator(".jp-Stdin")
    expect(box.locator(".jp-Stdin-prompt")).to_contain_text("[from the sandbox]")
    expect(desk.card()).to_have_count(0)
    box.locator("input").fill("allow 1234")
    box.locator("input").press("Enter")
    expect(desk.cell(0).locator(".jp-OutputArea")).to_contain_text("got allow 1234")
    expect(desk.panel.locator("[data-section=grants]")).to_have_count(0)
