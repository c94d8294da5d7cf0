"""Answers of a guest to completion, inspection and history: synthetic replies, as a hostile interpreter sends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agently_kernel.introspection import MAX_HISTORY, Introspection
from agently_kernel.outputs import OutputFilter

TYPES = "_jupyter_types_experimental"
CODE = "first\nsecond; third(b.na"
AT = len(CODE)
TOKEN = CODE.index("third")
MIB = 1024**2


class SyntheticGuest:
    def __init__(self, reply: dict[str, Any]) -> None:
        self._reply = reply

    async def request(self, op: str, code: str = "", **_: Any) -> dict[str, Any]:
        return self._reply


def ask(kind: Any, reply: dict[str, Any], code: str = CODE, at: int | None = None) -> dict[str, Any]:
    async def find() -> SyntheticGuest:
        return SyntheticGuest(reply)

    return asyncio.run(Introspection(find, OutputFilter()).ask(kind, code, cursor_pos=at))


def completion(text: str, start: int, end: int, code: str = CODE, at: int | None = None) -> dict[str, Any]:
    typed = [{"start": start, "end": end, "text": text, "type": "function", "signature": "(x)"}]
    reply = {"status": "ok", "matches": [text], "cursor_start": start, "cursor_end": end, "metadata": {TYPES: typed}}
    return ask("complete", reply, code, at)


@pytest.mark.parametrize("sign", [
    "\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\x00", "\x1b[2J", "\x9b", "\u202e", "\u200b",
])
def test_a_match_that_is_not_one_visible_line_is_dropped(sign):
    answer = completion(f"b.name{sign}!rm -rf ~ #", TOKEN, AT)
    assert answer["matches"] == []
    assert answer["metadata"].get(TYPES, []) == []


@pytest.mark.parametrize(("start", "end"), [
    (0, AT), (5, AT), (6, AT), (TOKEN - 1, AT), (TOKEN, AT - 1), (0, 3), (AT, TOKEN), (-1, AT), (AT, AT + 1),
    (True, AT), (None, None), (AT - 2, None), ("0", AT),
])
def test_a_completion_that_replaces_more_than_the_token_at_the_cursor_is_refused(start, end):
    answer = completion("%agently allow javascript", start, end)
    assert (answer["matches"], answer["cursor_start"], answer["cursor_end"]) == ([], AT, AT)
    assert answer["metadata"].get(TYPES, []) == []


def test_typed_matches_are_held_to_the_same():
    typed = [
        {"start": 0, "end": AT, "text": "b.name", "type": "x", "signature": ""},
        {"start": TOKEN, "end": AT, "text": "b.na\nme", "type": "x", "signature": ""},
        {"start": TOKEN, "end": AT, "text": ["b.name"], "type": "x", "signature": ""},
        {"start": AT - 2, "end": AT, "text": "name", "type": "a\x1b[2Jb", "signature": "(x,\n\x1b]0;t\x07y)"},
    ]
    answer = ask("complete", {
        "matches": ["name"], "cursor_start": AT - 2, "cursor_end": AT, "metadata": {TYPES: typed},
    })
    assert answer["matches"] == ["name"]
    assert answer["metadata"][TYPES] == [
        {"start": AT - 2, "end": AT, "text": "name", "type": "ab", "signature": "(x, y)"}
    ]


@pytest.mark.parametrize(("code", "start", "text", "behind"), [
    ("a\nb.na", 4, "name", ""),
    ("b.na", 0, "b.name", ""),
    ("%ti", 0, "%time", ""),
    ("x = \\alp", 4, "α", ""),
    ("df['sales t", 4, "sales total", ""),
    ("df['sales t", 0, "df['sales total", ""),
    ("open('/my f", 6, "/my file", ""),
    ("open('/my f", 5, "'/my file", ""),
    ("say \"it's", 4, '"it\'s here', ""),
    ("b.na", 2, "name", "me(1)"),
    ("", 0, "print", ""),
])
def test_honest_completions_pass(code, start, text, behind):
    at = len(code)
    answer = completion(text, start, at, code + behind, at)
    assert (answer["matches"], answer["cursor_start"], answer["cursor_end"]) == ([text], start, at)
    assert answer["metadata"][TYPES][0]["text"] == text


@pytest.mark.parametrize("code", ["x = 'done'; b", "os.remove(p) 'a", "y 'it'"])
def test_a_closed_or_later_quotation_does_not_open_the_line(code):
    assert completion("!rm", 0, len(code), code)["matches"] == []


def test_the_rest_of_a_word_behind_the_cursor_may_be_replaced_and_no_more():
    assert completion("name", 2, 5, "b.name(1)", 3)["matches"] == ["name"]
    assert completion("name", 2, 9, "b.name(1)", 3)["matches"] == []


def test_an_inspection_keeps_beginning_and_end_of_a_long_text():
    text = "first" + "\x1b]0;t\x07" + "d" * (60 * MIB) + "last"
    shown = ask("inspect", {"found": True, "data": {"text/plain": text, "text/html": "<script>"}})["data"]
    assert list(shown) == ["text/plain"]
    assert shown["text/plain"].startswith("firstd")
    assert shown["text/plain"].endswith("last")
    assert len(shown["text/plain"]) < MIB + 100


def test_a_page_is_bounded_like_an_inspection():
    payload = {"source": "page", "data": {"text/plain": "x" * (5 * MIB)}, "start": 0}
    (kept,) = OutputFilter().payloads([payload]).payloads
    assert len(kept["data"]["text/plain"]) < MIB + 100


def test_history_holds_rows_of_the_protocol_up_to_a_bound_and_the_newest_stay():
    good = [[1, 1, "a"], [1, 2, ["b", None]], [1, 3, ["c", "3"]]]
    bad = [[1, 1], ["1", 1, "a"], [1, 1, {"a": "x" * MIB}], [1, 1, ["a"]], [1, 1, [[], None]], [True, 1, "a"], 5]
    assert ask("history", {"history": [*bad, *good]})["history"] == good
    large = [[1, n, "x" * MIB] for n in range(40)]
    kept = ask("history", {"history": large})["history"]
    assert kept == large[-len(kept):]
    assert 5 <= len(kept) <= MAX_HISTORY // MIB
