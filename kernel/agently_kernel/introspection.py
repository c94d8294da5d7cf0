"""Completion, inspection, is_complete and history: asked of the guest, under a deadline, never trusted to answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.outputs import OutputFilter

DEADLINES: Mapping[str, float] = {"complete": 8.0, "inspect": 5.0, "is_complete": 2.0, "history": 5.0}
"""Seconds a guest has for each kind of question: hooks of hostile objects may never return."""
MAX_MATCHES = 5000
MAX_TEXT = 4096
log = logging.getLogger("agently_kernel.introspection")
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


def _position(value: object, length: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= length else length


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
        texts = [match for match in matches[:MAX_MATCHES] if isinstance(match, str) and len(match) <= MAX_TEXT]
        start = _position(reply.get("cursor_start"), len(code))
        end = _position(reply.get("cursor_end"), len(code))
        metadata: dict[str, Any] = {}
        raw = reply.get("metadata")
        types = raw.get(_COMPLETION_TYPES) if isinstance(raw, Mapping) else None
        if isinstance(types, list):
            metadata[_COMPLETION_TYPES] = [
                {
                    "start": _position(item.get("start"), len(code)), "end": _position(item.get("end"), len(code)),
                    "text": str(item.get("text", ""))[:MAX_TEXT], "type": str(item.get("type", ""))[:64],
                    "signature": str(item.get("signature", ""))[:MAX_TEXT],
                }
                for item in types[:MAX_MATCHES] if isinstance(item, Mapping)
            ]
        return {
            "status": "ok", "matches": texts, "cursor_start": min(start, end), "cursor_end": end, "metadata": metadata,
        }

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
        return {"status": "ok", "history": [row for row in rows if isinstance(row, list) and len(row) == 3]}
