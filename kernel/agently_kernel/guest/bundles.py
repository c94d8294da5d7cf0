"""From objects of a cell to JSON that every receiver takes: finite, shallow, without repeated keys, binary as
base64."""

from __future__ import annotations

import base64
import json
import math
from typing import Any, Dict, Optional

from . import wire

_DEEPEST = wire.MAX_DEPTH - 4
_WIDEST_INT = 1 << 1024
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def clean(value: Any, depth: int = 0) -> Any:
    """Return *value* as plain JSON types. What JSON has no word for becomes null (NaN), base64 (bytes) or text."""
    if value is None or value is True or value is False or type(value) is str:
        return value
    kind = type(value)
    if kind is int or (isinstance(value, int) and not isinstance(value, bool)):
        return int(value) if -_WIDEST_INT < value < _WIDEST_INT else _word(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if depth > _DEEPEST:
        return _word(value)
    if isinstance(value, dict):
        cleaned: Dict[str, Any] = {}
        for key, item in value.items():
            name = key if type(key) is str else "true" if key is True else "false" if key is False else _word(key)
            cleaned[name] = clean(item, depth + 1)
        return cleaned
    if isinstance(value, (list, tuple, set, frozenset)):
        return [clean(item, depth + 1) for item in value]
    for name in ("item", "isoformat"):  # numpy's numbers, dates
        method = getattr(value, name, None)
        if callable(method):
            try:
                return clean(method(), depth + 1)
            except Exception:
                break
    return _word(value)


def _word(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return "<%s>" % type(value).__name__


def dumps(value: Any) -> bytes:
    """Return *value* as JSON bytes after :func:`clean`."""
    return _encode(clean(value)).encode("ascii")


def bundle(data: Any, metadata: Optional[Any]) -> bytes:
    """Return the payload of a ``display`` frame."""
    return dumps({"data": data or {}, "metadata": metadata or {}})
