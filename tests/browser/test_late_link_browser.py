"""A question that was asked before the page was linked: in the input box, then in the panel too; one answer counts."""

from __future__ import annotations

import pytest
from lab_desk import Desk
from playwright.sync_api import WebSocketRoute, expect

ASK = "%agently allow mime:text/x-demo"


class HeldLink:
    """Keeps the page's panel requests back until :meth:`let_go`; everything else passes."""

    def __init__(self, desk: Desk) -> None:
        self._held: list[tuple[WebSocketRoute, bytes | str]] = []
        self._open = False
        desk.page.route_web_socket("**/channels**", self._route)

    def _route(self, page: WebSocketRoute) -> None:
        server = page.connect_to_server()

        def pass_on(message: bytes | str) -> None:
            asks = b"agently_panel_request" in (message if isinstance(message, bytes) else message.encode())
            if asks and not self._open:
                self._held.append((server, message))
            else:
                server.send(message)

        page.on_message(pass_on)

    def let_go(self) -> None:
        """Pass on what was kept back, and everything from now on."""
        self._open = True
        for server, message in self._held:
            server.send(message)


@pytest.mark.parametrize("kernel", ["agently", "python3"])
def test_the_panel_answers_and_the_box_closes(desk: Desk, kernel: str) -> None:
    cells = [ASK, "print('next', input('name? '))"] if kernel == "agently" else [ASK, "print('next', 'ann')"]
    if kernel == "python3":
        cells = ["%load_ext agently_exec", *cells]
    held = HeldLink(desk)
    desk.open(desk.lab.notebook(f"late-{kernel}.ipynb", cells, kernel), linked=False)
    at = len(cells) - 2
    if at:
        desk.run_cell(0)  # the ordinary kernel announces itself with its first question, so that any link is late
    desk.run_cell(at)
    box = desk.cell(at).locator(".jp-Stdin")
    expect(box).to_contain_text("Agently approval · Show active output.", timeout=20_000)
    expect(desk.card()).to_have_count(0)
    held.let_go()
    expect(desk.card().locator("h3")).to_have_text("Show active output", timeout=10_000)
    desk.shot(f"late-link-{kernel}")
    allow = desk.card().get_by_role("button", name="Allow once")
    expect(allow).to_have_attribute("aria-disabled", "false")
    allow.click()
    expect(desk.card()).to_have_count(0)
    expect(box).to_have_count(0)
    expect(desk.cell(at).locator(".jp-OutputArea")).to_contain_text("is shown from now on", timeout=10_000)
    desk.run_cell(at + 1)
    if kernel == "agently":
        field = desk.cell(at + 1).locator(".jp-Stdin input")
        field.fill("ann")
        field.press("Enter")
    expect(desk.output(at + 1).last).to_contain_text("next ann")


def test_the_box_answers_and_the_panel_closes(desk: Desk) -> None:
    held = HeldLink(desk)
    desk.open(desk.lab.notebook("late-box.ipynb", [ASK], "agently"), linked=False)
    desk.run_cell(0)
    box = desk.cell(0).locator(".jp-Stdin")
    prompt = box.locator(".jp-Stdin-prompt").text_content() or ""
    held.let_go()
    expect(desk.card()).to_be_visible(timeout=10_000)
    box.locator("input").fill("allow " + prompt.split("'allow ")[1][:4])
    box.locator("input").press("Enter")
    expect(desk.card()).to_have_count(0)
    expect(desk.cell(0).locator(".jp-OutputArea")).to_contain_text("is shown from now on")


def test_the_box_of_a_question_that_nobody_answered_closes(desk: Desk) -> None:
    held = HeldLink(desk)
    desk.open(desk.lab.notebook("late-nobody.ipynb", [ASK, "print('next')"], "agently-hasty"), linked=False)
    desk.run_cell(0)
    box = desk.cell(0).locator(".jp-Stdin")
    expect(box).to_be_visible(timeout=20_000)
    held.let_go()
    expect(desk.card()).to_be_visible(timeout=5_000)
    expect(desk.card()).to_have_count(0, timeout=15_000)
    expect(box).to_have_count(0)
    expect(desk.cell(0).locator(".jp-OutputArea")).to_contain_text("nobody answered")
    desk.run_cell(1)
    expect(desk.output(1)).to_have_text("next\n")
