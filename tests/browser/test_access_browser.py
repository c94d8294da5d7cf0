"""For people who do not look, or look otherwise: the accessibility tree, the focus order, axe-core in every look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lab_desk import REPO, Desk, put_setting
from playwright.sync_api import CDPSession, expect

from agently_kernel.policy_text import WORDING

AXE = REPO / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
OURS = ["#agently-panel", ".agently-Banner", "#jp-main-statusbar .agently-Shield", ".jp-NotebookPanel .agently-Shield"]
ASK = "ask network pypi.example:443"
EVERYTHING = "\n".join((
    "print hello", "output output/table.csv", "output output/dot.png", "missing output/log.txt", "withhold text/html",
    "inputs", "axes syscalls_restricted=none", ASK,
))
LOOKS = {
    "light": ("JupyterLab Light", "default"), "dark": ("JupyterLab Dark", "default"),
    "contrast": ("JupyterLab Dark High Contrast", "default"), "chinese": ("JupyterLab Light", "zh_CN"),
}


@pytest.fixture(params=LOOKS)
def look(desk: Desk, request: pytest.FixtureRequest) -> Iterator[str]:
    theme, locale = LOOKS[request.param]
    put_setting(desk.lab, "@jupyterlab/apputils-extension:themes", {"theme": theme})
    put_setting(desk.lab, "@jupyterlab/translation-extension:plugin", {"locale": locale})
    yield request.param
    put_setting(desk.lab, "@jupyterlab/apputils-extension:themes", {})
    put_setting(desk.lab, "@jupyterlab/translation-extension:plugin", {})


def faults(desk: Desk) -> list[str]:
    """Return what axe-core finds in everything of ours that is in view."""
    if not desk.page.evaluate("typeof axe === 'object'"):
        desk.page.add_script_tag(path=str(AXE))
    found: list[str] = desk.page.evaluate(
        """ours => axe.run({include: ours.filter(s => document.querySelector(s)).map(s => [s])})
            .then(r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html + n.failureSummary).join(' | ')))""",
        OURS,
    )
    return found


def unfold(desk: Desk) -> None:
    desk.page.evaluate("document.querySelectorAll('#agently-panel details').forEach(each => { each.open = true; })")


def panel_shot(desk: Desk, name: str) -> None:
    """Take the whole panel, however long it is."""
    desk.page.set_viewport_size({"width": 1360, "height": 2600})
    desk.page.wait_for_timeout(300)
    desk.panel.screenshot(path=str(REPO / "test-results" / "browser" / f"{name}.png"))
    desk.page.set_viewport_size({"width": 1360, "height": 880})


def test_axe_finds_nothing_in_any_look_or_state(desk: Desk, look: str) -> None:
    desk.open(desk.lab.notebook(f"axe-{look}.ipynb", [EVERYTHING, "ask trusted_local python"], "synthetic"))
    desk.run_cell(0)
    allow = desk.card().locator(".agently-once")
    expect(allow).to_have_attribute("aria-disabled", "false")
    assert faults(desk) == []
    desk.shot(f"look-{look}-question")
    desk.hide_panel()
    expect(desk.card(".agently-Banner")).to_be_visible()
    expect(desk.card(".agently-Banner").locator(".agently-once")).to_have_attribute("aria-disabled", "false")
    assert faults(desk) == []
    desk.shot(f"look-{look}-banner")
    desk.show_panel()
    desk.card().locator(".agently-session").click()
    expect(desk.card()).to_have_count(0)
    unfold(desk)
    desk.panel.locator("[data-output='output/table.csv'] .agently-icons button").first.click()
    expect(desk.panel.locator("[data-output='output/table.csv'] td").first).to_be_visible()
    assert faults(desk) == []
    panel_shot(desk, f"look-{look}-panel")
    desk.run_cell(1)
    expect(desk.card()).to_be_visible()
    assert faults(desk) == []
    desk.shot(f"look-{look}-grave")


Node = dict[str, Any]


def tree(cdp: CDPSession) -> dict[str, Node]:
    """Return Chromium's accessibility tree, as a screen reader gets it, by node id."""
    return {node["nodeId"]: node for node in cdp.send("Accessibility.getFullAXTree")["nodes"]}


def role(node: Node) -> str:
    return str(node.get("role", {}).get("value", ""))


def name(node: Node) -> str:
    return str(node.get("name", {}).get("value", ""))


def prop(node: Node, key: str) -> object:
    return next((each["value"].get("value") for each in node.get("properties", []) if each["name"] == key), None)


def below(nodes: dict[str, Node], top: Node) -> list[Node]:
    """Return *top* and all below it that are not ignored, in reading order."""
    found = [] if top.get("ignored") else [top]
    for child in top.get("childIds", []):
        if child in nodes:
            found += below(nodes, nodes[child])
    return found


def one(nodes: dict[str, Node], kind: str, text: str) -> Node:
    found = [node for node in nodes.values() if not node.get("ignored") and role(node) == kind and name(node) == text]
    assert len(found) == 1, [(role(n), name(n)) for n in nodes.values() if role(n) == kind]
    return found[0]


def test_a_screen_reader_is_told_everything(desk: Desk) -> None:
    desk.open(desk.lab.notebook("reader.ipynb", [EVERYTHING.removesuffix(ASK), ASK], "synthetic"))
    cdp = desk.page.context.new_cdp_session(desk.page)
    desk.run_cell(0)
    expect(desk.panel.locator("[data-output='output/table.csv']")).to_be_visible()
    desk.run_cell(1)
    expect(desk.card().locator(".agently-once")).to_have_attribute("aria-disabled", "false")
    nodes = tree(cdp)

    said = desk.page.locator("body > .agently-hidden[aria-live=polite]")
    expect(said).to_have_text(
        "A question waits in reader.ipynb: Give the sandbox network access. Press Alt S to go to it."
    )
    live = [node for node in nodes.values() if prop(node, "live") == "polite" and "Press Alt S" in
            " ".join(name(each) for each in below(nodes, node))]
    assert live, "the announcement is not a live region"

    panel = below(nodes, one(nodes, "region", "Sandbox"))
    assert [name(node) for node in panel if role(node) == "heading"][:2] == [
        "reader.ipynb", "Give the sandbox network access"
    ]
    assert "Waiting for you" in [name(node) for node in panel]

    card = below(nodes, one(nodes, "group", "Give the sandbox network access"))
    buttons = [node for node in card if role(node) == "button"]
    assert [name(node) for node in buttons][-3:] == ["Deny", "Allow once", "Allow for this session"]
    assert all(not prop(node, "disabled") for node in buttons)
    words = " ".join(name(node) for node in card)
    question = WORDING["network"]
    for part in (question.what.format(subject="pypi.example:443"), question.meaning, "Denied in"):
        assert part in words, f"{part!r} is not read out in {words!r}"
    assert not any(prop(node, "live") for node in card if "Denied in" in name(node)), "a countdown read each second"

    disclosures = [name(node) for node in panel if role(node) in ("DisclosureTriangle", "button")]
    for part in ("Processes contained holds", "System calls filtered not observed", "Isolation 3 of 4 hold"):
        assert any(each.startswith(part) for each in disclosures), (part, disclosures)
    names = [name(node) for node in panel if role(node) == "button"]
    assert all(names), "a button without a name"
    for part in ("Preview output/table.csv", "Download output/table.csv", "Restart sandbox"):
        assert part in names

    order = []
    desk.page.keyboard.press("Escape")
    desk.page.keyboard.press("Alt+s")
    expect(desk.card()).to_be_focused()
    for _ in range(6):
        desk.page.keyboard.press("Tab")
        order.append(desk.page.evaluate(
            "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).trim()"
        ))
    assert order[1:4] == ["Deny", "Allow once", "Allow for this session"]
    assert order[4].startswith("Isolation")
    for _ in range(4):
        desk.page.keyboard.press("Shift+Tab")
    desk.page.keyboard.press("Enter")
    expect(desk.card()).to_have_count(0)
    expect(desk.output(1).last).to_contain_text("denied")
