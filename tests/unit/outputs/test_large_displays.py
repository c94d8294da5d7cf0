"""Large displays: what is shown costs the kernel's loop a bounded time and the front end a bounded message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from agently_kernel.outputs import OutputFilter, OutputPolicy, frames

MIB = 1024**2
SECONDS = 2.0
"""Of processor time. Each of these took 2 to 8 seconds before there was a bound; the slowest takes about 0.7 now."""
SVG = "<svg xmlns='http://www.w3.org/2000/svg'>"


def filled(piece: str, mib: int, start: str = "", end: str = "") -> str:
    return start + piece * (mib * MIB // len(piece)) + end


COSTLY = {
    "formulas with links": ("text/latex", filled("\\href{x}{y} ", 45)),
    "formulas with schemes": ("text/latex", filled("data:x", 60)),
    "Markdown with links": ("text/markdown", filled("[a](b) `x` <b> ", 60)),
    "Markdown with handlers": ("text/markdown", filled("<a onload =", 60)),
    "Markdown with images": ("text/markdown", filled("![", 60) + "]("),
    "ordinary tags": ("text/html", filled("<b>x</b>", 60)),
    "tags below the largest length": ("text/html", filled("<b>x</b>", 15)),
    "open tags": ("text/html", filled("<p>x", 15)),
    "active tags": ("text/html", filled("<b>x</b>", 60, "<script>")),
    "active quotation marks": ("text/html", filled('"', 60, "<script>")),
    "a drawing of many elements": ("image/svg+xml", filled("<g/>", 15, SVG, "</svg>")),
    "a drawing of many attributes": ("image/svg+xml", filled("<g x='1' y='2' width='3'/>", 15, SVG, "</svg>")),
    "a very large drawing": ("image/svg+xml", filled("<g/>", 50, SVG, "</svg>")),
    "terminal sequences": ("text/plain", filled("\x1b[31mx\x1b]0;a\x07", 60)),
    "terminal sequences and Latin letters": ("text/plain", filled("é\x1b", 60)),
    "many mappings": ("application/vnd.vegalite.v5+json", {"data": {"values": [{"a": 1}] * 3_000_000}, "mark": "bar"}),
    "many lists": ("application/geo+json", {"type": "FeatureCollection", "features": [[]] * 3_000_000}),
}


@pytest.mark.parametrize("policy", [OutputPolicy.FRAMED, OutputPolicy.STATIC])
@pytest.mark.parametrize("name", COSTLY)
def test_no_display_costs_seconds_or_grows_beyond_an_output(name, policy):
    mime, value = COSTLY[name]
    outputs = OutputFilter(policy)
    started = time.process_time()
    shown = outputs.bundle({mime: value}, {}, kind="display_data", cell="c")
    took = time.process_time() - started
    assert took < SECONDS
    assert shown.data, "something is shown, if only why it is not"
    assert sum(len(text) for text in shown.data.values() if isinstance(text, str)) <= outputs.limits.bundle_chars


@pytest.mark.parametrize("mime", ["text/latex", "text/markdown"])
def test_what_is_too_much_to_typeset_is_withheld_and_the_plain_form_shows(mime):
    shown = OutputFilter().bundle(
        {mime: filled("\\alpha ", 5), "text/plain": "alpha…"}, {}, kind="execute_result", cell="c"
    )
    assert shown.data == {"text/plain": "alpha…"}
    assert f"A {mime} of 5.0 MiB was withheld" in shown.notice
    assert "output/" in shown.notice


def test_ordinary_large_outputs_show_as_they_are():
    picture = "![plot](data:image/png;base64," + "iVBORw0KGgo" * 200_000 + ")"
    formula = " + ".join(f"x_{{{n}}}" for n in range(20_000))
    numbers = "\n".join(map(str, range(2_000_000)))
    rows = "".join(f"<tr><th>{n}</th><td>{n}.5</td></tr>" for n in range(500_000))
    table = f"<table><tbody>{rows}</tbody></table>"
    for mime, value in {
        "text/markdown": picture, "text/latex": formula, "text/plain": numbers, "text/html": table,
    }.items():
        shown = OutputFilter().bundle({mime: value}, {}, kind="display_data", cell="c")
        assert shown.data == {mime: value}
        assert shown.notice == ""


def test_a_large_text_with_terminal_sequences_keeps_beginning_and_end():
    shown = OutputFilter().bundle(
        {"text/plain": "first" + filled("\x1b[2Jx", 8) + "last"}, {}, kind="display_data", cell="c"
    ).data["text/plain"]
    assert shown.startswith("first")
    assert shown.endswith("last")
    assert "characters left out" in shown
    assert "\x1b" not in shown


def test_html_that_is_too_large_in_its_frame_says_so():
    shown = OutputFilter().bundle({"text/html": filled('"', 20, "<script>")}, {}, kind="display_data", cell="c")
    assert "[withheld] An HTML output is larger than 64 MiB in its frame" in shown.data["text/html"]


@pytest.mark.parametrize("piece", [*map(chr, range(256)), "€", "\ud800", "😀"])
@pytest.mark.parametrize("network", [False, True])
def test_the_size_of_a_frame_is_never_underestimated(piece, network):
    around = len(frames.frame("<p>", network_allowed=network))
    assert len(frames.frame("<p>" + piece * 1000, network_allowed=network)) - around <= frames.framed_size(piece * 1000)


ESCAPES = "first" + filled("é\x1b[2J\x1b", 60) + "last"
"""A text that costs seconds to be cleaned as a whole."""
MANY = {f"first{n}": {"status": "ok", "data": {"text/html": "<b>x" * 2**18}} for n in range(256)}


def of_payload(outputs: OutputFilter, payload: dict[str, Any]) -> str:
    return repr(outputs.payloads([payload]).payloads[0])


TEXTS: dict[str, Callable[[OutputFilter], str]] = {
    "an error's value": lambda outputs: outputs.error("E", ESCAPES, []).evalue,
    "an error's name": lambda outputs: outputs.error(ESCAPES, "", []).ename,
    "one line of a traceback": lambda outputs: "\n".join(outputs.error("E", "", [ESCAPES]).traceback),
    "many lines of a traceback": lambda outputs: repr(outputs.error("E", "", ["first", *["\x1b["] * MIB]).traceback),
    "a prompt": lambda outputs: outputs.prompt(ESCAPES),
    "a page": lambda outputs: of_payload(outputs, {"source": "page", "data": {"text/plain": ESCAPES}}),
    "a next input": lambda outputs: of_payload(outputs, {"source": "set_next_input", "text": ESCAPES}),
    "a tooltip": lambda outputs: outputs.inspection({"text/plain": ESCAPES})["text/plain"],
    "an answer": lambda outputs: repr(
        outputs.user_expressions({"first": {"status": "ok", "data": {"text/plain": ESCAPES}}})
    ),
    "many answers": lambda outputs: repr(outputs.user_expressions(MANY)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_costs_seconds(name):
    outputs = OutputFilter()
    started = time.process_time()
    shown = TEXTS[name](outputs)
    assert time.process_time() - started < SECONDS
    assert "first" in shown
    assert len(shown) < 20 * MIB


def test_a_traceback_with_one_long_line_is_shown_once():
    limit = OutputFilter().limits.error_chars
    (line,) = OutputFilter().error("E", "", ["a" * 2 * limit]).traceback
    assert line.startswith("aaa") and "characters left out" in line
    assert len(line) < limit + 100
