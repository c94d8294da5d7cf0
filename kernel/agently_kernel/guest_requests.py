"""What code in a cell may know of the request that runs it: ``get_ipython().kernel.get_parent()`` and the like.

Libraries read the id of the request, the front end's cell id and the session from it. Names of the user and of the
machine stay out, and so does whatever is too large to be carried with every cell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_HEADER = ("msg_id", "msg_type", "session", "version", "date", "subshell_id")
_STRING = 256
_METADATA_CHARS = 8 * 1024


def told_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"header": …, "metadata": …}`` of a request of the front end; {} for anything else.

    Metadata of more than 8 KiB are reduced to the cell's id.
    """
    header = request.get("header")
    if not isinstance(header, Mapping) or "msg_id" not in header:
        return {}
    kept = {name: _plain(header[name]) for name in _HEADER if name in header}
    given = request.get("metadata")
    metadata = dict(given) if isinstance(given, Mapping) else {}
    if not metadata:
        return {"header": kept, "metadata": {}}
    try:
        text = json.dumps(metadata, default=str)
    except (TypeError, ValueError):
        text = ""
    if not text or len(text) > _METADATA_CHARS:
        text = json.dumps({key: _plain(metadata[key]) for key in ("cellId",) if key in metadata})
    return {"header": kept, "metadata": json.loads(text)}


def _plain(value: Any) -> str | None:
    if value is None:
        return None
    moment = getattr(value, "isoformat", None)
    return (moment() if moment is not None else str(value))[:_STRING]
