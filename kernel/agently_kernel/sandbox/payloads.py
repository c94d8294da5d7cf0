"""Reads the JSON that frames of a guest carry: hostile, bounded, and never in the way of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from agently_kernel.guest import wire

BIG_JSON = 256 * 1024
"""Bytes from which on JSON is decoded in a thread."""


async def decode_json(payload: bytes) -> Any:
    """Decode hostile JSON; what is big is decoded in a thread, so that the event loop goes on. Raises WireError."""
    if len(payload) > BIG_JSON:
        return await asyncio.to_thread(wire.loads, payload)
    return wire.loads(payload)


def json_object(value: Any, what: str) -> dict[str, Any]:
    """Return *value* when it is a JSON object. Raises WireError naming *what* otherwise."""
    if not isinstance(value, dict):
        raise wire.WireError(f"{what} is not an object")
    return value
