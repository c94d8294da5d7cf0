"""Comm messages of the front end on their way to the guest. What the guest sends goes through the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, cast

from agently_kernel.contract.outputs import CommOutput
from agently_kernel.outputs import OutputFilter

Kind = Literal["comm_open", "comm_msg", "comm_close"]


class CommTarget(Protocol):
    """Where allowed messages go."""

    async def send_comm(
        self, kind: Kind, comm_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any],
        buffers: tuple[bytes, ...], target_name: str = "",
    ) -> None:
        """Pass the message on."""


class CommRelay:
    """Passes what the filter allows, in both of its directions' rules; keeps no state of its own.

    *close* tells the front end that a comm has ended: one that it opened and that nobody takes.
    """

    def __init__(self, outputs: OutputFilter, target: CommTarget, close: Callable[[str], None]) -> None:
        self._outputs = outputs
        self._target = target
        self._close = close
        self._order = asyncio.Lock()  # a message must not overtake the one that opens its comm

    async def from_front_end(self, message: Mapping[str, Any]) -> None:
        """Take a comm_open, comm_msg or comm_close message; what is not allowed is dropped, an opening answered."""
        content = message["content"]
        kind = cast(Kind, message["header"]["msg_type"])
        comm_id = str(content.get("comm_id", ""))
        allowed = self._outputs.comm_from_front_end(
            CommOutput(
                cell="", kind=kind, comm_id=comm_id, data=content.get("data") or {},
                metadata=message.get("metadata") or {}, target_name=str(content.get("target_name", "")),
                buffers=tuple(bytes(buffer) for buffer in message.get("buffers") or ()),
            )
        )
        if allowed is None:
            if kind == "comm_open" and comm_id not in self._outputs.open_comms():
                self._close(comm_id)  # as ipykernel does: else the front end waits for the other end
            return
        async with self._order:
            await self._target.send_comm(
                allowed.kind, allowed.comm_id, allowed.data, allowed.metadata, allowed.buffers, allowed.target_name
            )

    def listing(self, target_name: str | None) -> dict[str, dict[str, str]]:
        """Return the open comms as comm_info_reply lists them, all or those of one target."""
        return {
            comm_id: {"target_name": target}
            for comm_id, target in self._outputs.open_comms().items()
            if target_name in (None, target)
        }
