"""Completion, inspection, is_complete and history: asked of the guest, under a deadline, never trusted to answer."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeGuard

from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.outputs import OutputFilter
from agently_kernel.outputs.text import one_line

DEADLINES: Mapping[str, float] = {"complete": 8.0, "inspect": 5.0, "is_complete": 2.0, "history": 5.0}
"""Seconds a guest has for each kind of question: hooks of hostile objects may never return."""
MAX_MATCHES = 5000
MAX_TEXT = 4096
MAX_HISTORY = 8 * 2**20
"""Characters of a history_reply; what is beyond them is left out, the oldest first."""
log = logging.getLogger("agently_kernel.introspection")
_LINE_BREAK = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_BLANK = re.compile(r"\s")
_WORD = re.compile(r"\w*")
_COMPLETION_TYPES = "_jupyter_types_experimental"


class Guest(Protocol):
    """What is asked here."""

    async def request(
        self, op: Op, code: str = ..., *, cursor_pos: int = ..., detail_level: int = ...,
        query: Mapping[str, Any] | None = ..., timeout: float = ...,
    ) -> Mapping[str, Any]:
        """Return the guest's reply, unchecked."""


Op = Literal["complete", "inspect", "is_complete", "history"]
Find = Callable[[], Awaitable[Guest | None]]


def busy_reply(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the honest empty answer to a question that cannot be put to the guest now."""
    if kind == "complete":
        at = _position(content.get("cursor_pos"), len(str(content.get("code", ""))))
        return {"status": "ok", "matches": [], "cursor_start": at, "cursor_end": at, "metadata": {}}
    if kind == "inspect":
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}
    if kind == "history":
        return {"status": "ok", "history": []}
    return {"status": "unknown"}


def _is_position(value: object, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _position(value: object, length: int) -> int:
    return value if _is_position(value, length) else length


def _is_insertable(text: object) -> TypeGuard[str]:
    """True for text that a completion may put into the user's cell: it is seen whole in the list, and is one line.

    What a guest answers is inserted with one keystroke, often as the only match without being shown first. Printable
    characters exclude line breaks of every kind, controls and invisible or direction characters.
    """
    return isinstance(text, str) and len(text) <= MAX_TEXT and text.isprintable()


def _span(item: Mapping[str, Any], prefix: str, code: str, at: int) -> tuple[int, int]:
    """Return (start, end) of what a completion replaces, or (-1, -1) for one that reaches beyond the word at *at*.

    A completion belongs where the cursor stands: it may replace what has no blank before the cursor in its line
    (``df["sales`` too, and a path with blanks inside an open quotation), and the rest of the word behind it.
    """
    start, end = item.get(f"{prefix}start"), item.get(f"{prefix}end")
    if not (_is_position(start, at) and _is_position(end, len(code)) and end >= at):
        return -1, -1
    replaced, rest = code[start:at], code[at:end]
    if _LINE_BREAK.search(replaced) or (rest and not _WORD.fullmatch(rest)):
        return -1, -1
    return (-1, -1) if _BLANK.search(replaced) and not _in_quotes(code[:start], replaced) else (start, end)


def _in_quotes(before: str, replaced: str) -> bool:
    """True when *replaced* begins behind, or holds, a quotation mark of its line that is still open at its end."""
    line = _LINE_BREAK.split(before)[-1]
    opened = ""
    for place, sign in enumerate(line + replaced):
        if sign in "'\"":
            if not opened:
                opened, begun = sign, place
            elif sign == opened:
                opened = ""
    return bool(opened) and (begun < len(line) or not _BLANK.search(replaced[: begun - len(line)]))


def _typed(item: object, code: str, at: int) -> dict[str, Any] | None:
    """Return one entry of the typed matches, or None for one that may not be inserted."""
    if not isinstance(item, Mapping) or not _is_insertable(item.get("text")):
        return None
    start, end = _span(item, "", code, at)
    if start < 0:
        return None
    kind, signature = item.get("type"), item.get("signature")
    return {
        "start": start, "end": end, "text": item["text"],
        "type": one_line(kind, 64) if isinstance(kind, str) else "",
        "signature": one_line(signature, MAX_TEXT) if isinstance(signature, str) else "",
    }


def _is_history_row(row: object) -> TypeGuard[list[Any]]:
    """True for (session, line, input) or (session, line, (input, output or None)), as the protocol has it."""
    if not isinstance(row, list) or len(row) != 3 or not all(_is_position(number, 2**53) for number in row[:2]):
        return False
    text = row[2]
    if isinstance(text, str):
        return True
    pair = isinstance(text, list) and len(text) == 2 and isinstance(text[0], str)
    return pair and (text[1] is None or isinstance(text[1], str))


class Introspection:
    """Puts the questions. ``find`` returns the guest to ask, or None when there is none."""

    def __init__(self, find: Find, outputs: OutputFilter) -> None:
        self._find = find
        self._outputs = outputs
        self._asked: set[asyncio.Task[dict[str, Any]]] = set()

    async def ask(self, kind: Op, code: str, *, cursor_pos: int | None = None, **extra: Any) -> dict[str, Any]:
        """Return the reply's content to a question of *kind*; an empty one when the guest does not answer in time, or
        when :meth:`stop` ends the wait."""
        at = _position(cursor_pos, len(code))
        empty = busy_reply(kind, {"code": code, "cursor_pos": at})
        work = asyncio.get_running_loop().create_task(self._ask(kind, code, at, empty, **extra))
        self._asked.add(work)
        try:
            await asyncio.wait((work,))
            return empty if work.cancelled() else work.result()
        finally:
            self._asked.discard(work)
            work.cancel()

    async def stop(self) -> None:
        """Answer with nothing what is being asked now. The guest is told to give it up."""
        asked = tuple(self._asked)
        for work in asked:
            work.cancel()
        if asked:
            await asyncio.wait(asked, timeout=1.0)

    async def _ask(self, kind: Op, code: str, at: int, empty: dict[str, Any], **extra: Any) -> dict[str, Any]:
        try:
            guest = await asyncio.wait_for(self._find(), DEADLINES[kind])
            if guest is None:
                return empty
            reply = await guest.request(kind, code, cursor_pos=at, timeout=DEADLINES[kind], **extra)
        except (AgentlyKernelError, asyncio.TimeoutError):
            return empty
        except Exception:
            log.exception("a %s request could not be put to the guest", kind)
            return empty
        clean = {"complete": self._completion, "inspect": self._inspection, "is_complete": self._completeness}.get(
            kind, self._history
        )
        return clean(reply, code, at) or empty

    def _completion(self, reply: Mapping[str, Any], code: str, at: int) -> dict[str, Any] | None:
        matches = reply.get("matches")
        if not isinstance(matches, list):
            return None
        texts = [match for match in matches[:MAX_MATCHES] if _is_insertable(match)]
        start, end = _span(reply, "cursor_", code, at)
        metadata: dict[str, Any] = {}
        raw = reply.get("metadata")
        types = raw.get(_COMPLETION_TYPES) if isinstance(raw, Mapping) else None
        if isinstance(types, list):
            metadata[_COMPLETION_TYPES] = [
                typed for item in types[:MAX_MATCHES] if (typed := _typed(item, code, at)) is not None
            ]
        if start < 0:
            return None
        return {"status": "ok", "matches": texts, "cursor_start": start, "cursor_end": end, "metadata": metadata}

    def _inspection(self, reply: Mapping[str, Any], code: str, at: int) -> dict[str, Any] | None:
        data = reply.get("data")
        if not reply.get("found") or not isinstance(data, Mapping):
            return None
        shown = self._outputs.inspection(data)
        return {"status": "ok", "found": bool(shown), "data": shown, "metadata": {}}

    @staticmethod
    def _completeness(reply: Mapping[str, Any], code: str, at: int) -> dict[str, Any] | None:
        status = reply.get("status")
        if status not in ("complete", "incomplete", "invalid", "unknown"):
            return None
        answer: dict[str, Any] = {"status": status}
        indent = reply.get("indent")
        if status == "incomplete":
            answer["indent"] = indent if isinstance(indent, str) and not indent.strip() and len(indent) < 256 else ""
        return answer

    @staticmethod
    def _history(reply: Mapping[str, Any], code: str, at: int) -> dict[str, Any] | None:
        rows = reply.get("history")
        if not isinstance(rows, list):
            return None
        kept: list[list[Any]] = []
        left = MAX_HISTORY
        for row in reversed(rows):
            if not _is_history_row(row):
                continue
            texts = [row[2]] if isinstance(row[2], str) else row[2]
            left -= 32 + sum(len(text or "") for text in texts)
            if left < 0:
                break
            kept.append(row)
        return {"status": "ok", "history": kept[::-1]}
