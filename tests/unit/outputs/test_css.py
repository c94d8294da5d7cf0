"""Declarations and style sheets."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agently_kernel.outputs.css import clean_declarations, clean_stylesheet, clean_value

DECLARATIONS = {
    "color: red": ("color: red", False),
    "COLOR:RED;": ("color: RED", False),
    "color: #fff; width: 10em": ("color: #fff; width: 10em", False),
    "background: linear-gradient(90deg, #d65f5f 50.0%, transparent 50.0%)": (
        "background: linear-gradient(90deg, #d65f5f 50.0%, transparent 50.0%)",
        False,
    ),
    "font-family: 'DejaVu Sans Mono', monospace": ("font-family: 'DejaVu Sans Mono', monospace", False),
    "width: calc(100% - 2px) !important": ("width: calc(100% - 2px) !important", False),
    "--mine: 3px; padding: var(--mine)": ("--mine: 3px; padding: var(--mine)", False),
    "position: relative": ("position: relative", False),
    "content: '▶'": ("content: '▶'", False),
    "position: fixed": ("", True),
    "position: absolute; color: red": ("color: red", True),
    "position: var(--p)": ("", True),
    "p\\6fsition: fixed": ("", True),
    "position/**/: fixed": ("", True),
    "background: url(x)": ("", True),
    "background: u\\72l(x)": ("", True),
    "background: URL('x')": ("", True),
    "background: image-set('x' 1x)": ("", True),
    "background: -webkit-image-set('x' 1x)": ("", True),
    "width: expression(1)": ("", True),
    "behavior: url(x)": ("", True),
    "margin: -5px": ("", True),
    "margin-top: calc(0px - 500px)": ("", True),
    "margin: var(--m)": ("", True),
    "margin: 0 auto": ("margin: 0 auto", False),
    "inset: 0; top: 0; transform: none; animation: x": ("", True),
    "--jp-layout-color1: red": ("", True),
    "color: red}body{color:blue": ("", True),
    "color: \"a'b\" c'd": ("", True),
    "color: 'a": ("", True),
    "color: </style>": ("", True),
    "color": ("", True),
    "": ("", False),
    "/* x */ color: red /* y": ("color: red", False),
}


@pytest.mark.parametrize(("source", "expected"), DECLARATIONS.items())
def test_declarations(source: str, expected: tuple[str, bool]) -> None:
    assert clean_declarations(source) == expected
    assert clean_declarations(expected[0]) == (expected[0], False)


SHEETS = {
    ".a{color:red}": ("#s .a {color: red}", False),
    "#x, p > .b:nth-child(2n+1){color:red}": ("#s #o-x, #s p > .b:nth-child(2n+1) {color: red}", False),
    ":is(.a, .b){color:red}": ("#s :is(.a, .b) {color: red}", False),
    "input[type='checkbox']:checked ~ p{color:red}": ("#s input[type='checkbox']:checked ~ p {color: red}", False),
    "@media (max-width: 3px){.a{color:red}}": ("@media (max-width: 3px) {\n#s .a {color: red}\n}", False),
    "@media print{.a{color:red}": ("@media print {\n#s .a {color: red}\n}", False),
    "/* c */ .a /* d */ {color:red}": ("#s .a  {color: red}".replace("  ", " "), False),
    "@import url(x); .a{color:red}": ("#s .a {color: red}", True),
    "@font-face{font-family:x;src:url(y)} .a{color:red}": ("#s .a {color: red}", True),
    "@keyframes x{from{color:red}} .a{color:red}": ("#s .a {color: red}", True),
    ".a{position:fixed}": ("", True),
    ".a{& body{color:red}} .b{color:red}": ("#s .b {color: red}", True),
    ":root{color:red}": ("", True),
    ":host-context(body){color:red}": ("", True),
    ":has(a){color:red}": ("", True),
    "> body{color:red}": ("", True),
    ".a,{color:red}": ("", True),
    "a\\:b{color:red}": ("", True),
    ".a{color:red": ("", True),
    "trailing": ("", True),
    "}} .a{color:red}": ("#s .a {color: red}", False),
    "<!-- .a{color:red} -->": ("#s .a {color: red}", False),
    "</style><script>{color:red}": ("", True),
    "@media (a){@media (b){.a{color:red}} .b{color:red}}": ("@media (a) {\n#s .b {color: red}\n}", True),
}


@pytest.mark.parametrize(("source", "expected"), SHEETS.items())
def test_style_sheets(source: str, expected: tuple[str, bool]) -> None:
    text, dropped = clean_stylesheet(source, "s", "o-")
    assert (text, dropped) == expected


ALPHABET = st.sampled_from(
    [
        "{",
        "}",
        ";",
        ":",
        ",",
        "@media (a)",
        "@import 'x'",
        "body",
        ".a",
        "#i",
        "color",
        "red",
        "url(",
        "(",
        ")",
        "'",
        '"',
        "/*",
        "*/",
        "\\",
        "<",
        " ",
        ">",
        "&",
        ":is(",
        "[",
        "]",
    ]
)


@given(st.lists(ALPHABET, max_size=20).map("".join))
@settings(max_examples=400, deadline=None)
def test_no_sheet_leaves_its_scope(source: str) -> None:
    text, _ = clean_stylesheet(source, "s", "o-")
    assert not re.search(r"[<\\@&]|url", re.sub(r"@media", "", text))
    depth = 0
    for line in text.splitlines():
        assert line == "}" or line.startswith(("#s ", "@media "))
        depth += line.count("{") - line.count("}")
        assert depth in (0, 1)
    assert depth == 0


@given(st.text(alphabet="urlexpat(-)'\"\\/*;:,.0#% \n<>@", max_size=40))
@settings(max_examples=400, deadline=None)
def test_values_are_words_numbers_and_known_functions(value: str) -> None:
    safe = clean_value(value)
    if safe is not None:
        assert not re.search(r"[;:{}<>@\\]", safe)
        assert set(re.findall(r"([a-z-]+)\(", safe)) <= {"rgb", "calc", "var"}
