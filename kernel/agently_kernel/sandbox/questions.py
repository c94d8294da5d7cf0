"""What the host asks the resident interpreter besides executing: Jupyter requests, and comm messages of a front end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agently_kernel.contract.errors import SandboxError
from agently_kernel.guest import wire
from agently_kernel.sandbox.payloads import decode_json, json_object
from agently_kernel.sandbox.resident import Resident
from agently_kernel.sandbox.session import GuestSession

RequestOp = Literal["complete", "inspect", "is_complete", "history"]
CommKind = Literal["comm_open", "comm_msg", "comm_close"]


def empty_reply(op: RequestOp, cursor_pos: int) -> dict[str, Any]:
    """Return the content of a reply that says nothing."""
    if op == "complete":
        return {"status": "ok", "matches": [], "cursor_start": cursor_pos, "cursor_end": cursor_pos, "metadata": {}}
    if op == "inspect":
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}
    return {"status": "unknown"} if op == "is_complete" else {"status": "ok", "history": []}


async def ask(
    session: GuestSession,
    resident: Resident,
    op: RequestOp,
    code: str,
    *,
    cursor_pos: int,
    detail_level: int,
    query: Mapping[str, Any] | None,
    timeout: float,
) -> dict[str, Any]:
    """Ask and return the reply's content, or an empty one when there is no good answer within *timeout* seconds."""
    header: dict[str, Any] = {"op": op}
    if op in ("complete", "inspect"):
        header["cursor_pos"] = cursor_pos
    if op == "inspect":
        header["detail_level"] = detail_level
    if op == "history":
        header["query"] = dict(query or {})
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    try:
        if resident.state != "ready":
            await asyncio.wait_for(resident.ready(), timeout)
        payload = b"" if op == "history" else code.encode("utf-8", "replace")
        _, answer = await session.request(header, payload, timeout=max(0.05, end - loop.time()))
        return json_object(await decode_json(answer), "a reply")
    except wire.WireError as error:
        session.kill(f"the guest broke the protocol ({error})")
    except (asyncio.TimeoutError, SandboxError):
        pass
    return empty_reply(op, cursor_pos)


def comm_frame(
    kind: CommKind,
    comm_id: str,
    data: Mapping[str, Any],
    metadata: Mapping[str, Any],
    buffers: Sequence[bytes | memoryview],
    target_name: str,
) -> tuple[dict[str, Any], bytes]:
    """Return header and payload of a ``comm`` frame. Raises TypeError or ValueError for what JSON cannot hold."""
    content = json.dumps({"data": dict(data), "metadata": dict(metadata)}).encode()
    parts = [content, *(bytes(buffer) for buffer in buffers)]
    header: dict[str, Any] = {"op": "comm", "kind": kind, "comm_id": comm_id, "buffers": [len(part) for part in parts]}
    if target_name:
        header["target_name"] = target_name
    return header, b"".join(parts)
