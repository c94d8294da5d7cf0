"""The cells of this session, for history requests. Nothing is kept beyond the session."""

from __future__ import annotations

import fnmatch
from typing import Any, Dict, List, Mapping, Tuple


class History:
    """Remembers (execution count, source)."""

    def __init__(self) -> None:
        self._entries: List[Tuple[int, str]] = []

    def add(self, line: int, source: str) -> None:
        """A cell is about to run."""
        self._entries.append((line, source.rstrip("\n")))

    def select(self, query: Dict[str, Any], outputs: Mapping[int, Any]) -> List[Any]:
        """Answer a history_request (tail, range or search) with [session, line, source or [source, output]].

        With ``before`` in the query the newest cell, which asks, is left out.
        """
        chosen = self._entries[:-1] if query.get("before") else self._entries
        kind, most = query.get("hist_access_type"), query.get("n")
        if kind == "range":
            first, last = query.get("start") or 1, query.get("stop")
            here = query.get("session") in (None, 0, 1)  # there is no other session than this one
            chosen = [entry for entry in chosen if here and entry[0] >= first and (last is None or entry[0] < last)]
        else:
            if kind == "search":
                pattern = query.get("pattern") or "*"
                chosen = [entry for entry in chosen if fnmatch.fnmatchcase(entry[1], pattern)]
                if query.get("unique"):
                    newest = {source: line for line, source in chosen}
                    chosen = sorted((line, source) for source, line in newest.items())
            if most:
                chosen = chosen[-most:]
        if query.get("output"):
            return [[0, line, [source, outputs.get(line)]] for line, source in chosen]
        return [[0, line, source] for line, source in chosen]
