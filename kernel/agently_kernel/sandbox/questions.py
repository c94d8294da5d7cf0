"""What the host asks the resident interpreter besides executing: Jupyter requests, and comm messages of a front end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from agently_kernel.contract.errors import SandboxError
from agently_kernel.contract.result import DeathCause
from agently_kernel.guest import wire
from agently_kernel.sandbox.deaths import LOST_VARIABLES
from agently_kernel.sandbox.payloads import decode_json, json_object
from agently_kernel.sandbox.resident import Resident
from agently_kernel.sandbox.session import GuestSession
from agently_kernel.sandbox.stopping import TaskKeeper

RequestOp = Literal["complete", "inspect", "is_complete", "history"]
CommKind = Literal["comm_open", "comm_msg", "comm_close"]


def empty_reply(op: RequestOp, cursor_pos: int) -> dict[str, Any]:
    """Return the content of a reply that says nothing."""
    if op == "complete":
        return {"status": "ok", "matches": [], "cursor_start": cursor_pos, "cursor_end": cursor_pos, "metadata": {}}
    if op == "inspect":
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}
    return {"status": "unknown"} if op == "is_complete" else {"status": "ok", "history": []}


class Questions:
    """Asks the interpreter, and ends what is asked in vain: objects of the user may never answer."""

    def __init__(
        self, session: GuestSession, resident: Resident, tasks: TaskKeeper, on_lost: Callable[[DeathCause], None]
    ) -> None:
        """*on_lost* hears that the interpreter was ended for a question, and why."""
        self._session = session
        self._resident = resident
        self._tasks = tasks
        self._on_lost = on_lost
        self._late: dict[int, asyncio.Future[None]] = {}
        session.on_late_answer = self._answered

    async def ask(
        self,
        op: RequestOp,
        code: str,
        *,
        cursor_pos: int,
        detail_level: int,
        query: Mapping[str, Any] | None,
        timeout: float,
    ) -> dict[str, Any]:
        """Ask and return the reply's content, or an empty one when there is no good answer within *timeout* seconds.

        The guest is told to give up what nobody waits for any more, also when this is cancelled.
        """
        header: dict[str, Any] = {"op": op}
        if op in ("complete", "inspect"):
            header["cursor_pos"] = cursor_pos
        if op == "inspect":
            header["detail_level"] = detail_level
        if op == "history":
            header["query"] = dict(query or {})
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        asked = 0
        try:
            if self._resident.state != "ready":
                await asyncio.wait_for(self._resident.ready(), timeout)
            payload = b"" if op == "history" else code.encode("utf-8", "replace")
            async with self._session.requesting(header, payload) as (asked, answers):
                frame = await asyncio.wait_for(answers.get(), max(0.05, end - loop.time()))
            asked = 0
            if frame is not None:
                return json_object(await decode_json(frame[1]), "a reply")
        except wire.WireError as error:
            self._session.kill(f"the guest broke the protocol ({error})")
        except (asyncio.TimeoutError, SandboxError):
            pass
        finally:
            if asked and self._session.alive:
                self._late[asked] = loop.create_future()
                self._tasks.add(self._give_up(asked))
        return empty_reply(op, cursor_pos)

    def end_late(self, grace: float) -> None:
        """End the interpreter when questions that were given up do not end within *grace* seconds."""
        if self._late:
            self._tasks.add(self._end_late(tuple(self._late.values()), grace))

    def forget(self) -> None:
        """Take note that the interpreter has ended, and with it all that it was asked."""
        for number in list(self._late):
            self._answered(number)

    def _answered(self, number: int) -> None:
        late = self._late.pop(number, None)
        if late is not None and not late.done():
            late.set_result(None)

    async def _give_up(self, number: int) -> None:
        with contextlib.suppress(SandboxError):
            await self._session.send({"op": "give_up", "request": number})

    async def _end_late(self, late: tuple[asyncio.Future[None], ...], grace: float) -> None:
        generation = self._resident.generation
        await asyncio.wait(late, timeout=grace)
        if all(question.done() for question in late) or generation != self._resident.generation:
            return
        with contextlib.suppress(SandboxError):
            await self._resident.kill("stopped_by_user")
        self._on_lost(DeathCause(
            what="interpreter", kind="stopped_by_user",
            message="The interpreter was ended because a completion or inspection went on for "
            f"{grace:g} s after your Stop. {LOST_VARIABLES}",
        ))


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
