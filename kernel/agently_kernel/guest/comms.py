"""Comms of the interpreter: the ``comm`` package, where it is installed, bound to the channel."""

from __future__ import annotations

import logging
from typing import Any, Dict, Optional

from . import bundles, wire
from .services import Services


class CommRoom:
    """Holds the comm manager. ``manager`` is None where the ``comm`` package is missing."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.manager: Any = None
        try:
            import comm
            from comm.base_comm import BaseComm, CommManager
        except ImportError:
            return
        # A front end asks for targets that a cell never registered; a warning about that is not the cell's output.
        logging.getLogger("Comm").addHandler(logging.NullHandler())
        self.manager = manager = CommManager()
        room = self

        class GuestComm(BaseComm):  # type: ignore[misc]
            """A comm whose messages travel as ``comm`` frames."""

            def publish_msg(
                self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
            ) -> None:
                room.send(msg_type, self.comm_id, data, metadata, buffers, keys.get("target_name"))

        comm.create_comm = GuestComm
        comm.get_comm_manager = lambda: manager

    def send(
        self, kind: str, comm_id: str, data: Any, metadata: Any, buffers: Any, target: Optional[str] = None
    ) -> None:
        """Send a comm message of the guest."""
        if not self._services.router.channel.open:
            return
        content = bundles.dumps({"data": data or {}, "metadata": metadata or {}})
        binary = [bytes(memoryview(item).cast("B")) for item in buffers or []]
        header: Dict[str, Any] = {
            "op": "comm", "kind": kind, "comm_id": comm_id, "buffers": [len(content)] + [len(item) for item in binary],
        }
        cell = self._services.router.owner()
        if cell:
            header["cell"] = cell
        if target:
            header["target_name"] = target
        self._services.send(header, b"".join([content] + binary))

    def receive(self, header: Dict[str, Any], payload: bytes) -> None:
        """Deliver a comm message of the front end."""
        if self.manager is None:
            return
        content, buffers = wire.split_buffers(header.get("buffers"), payload)
        message = {
            "header": {"msg_type": header["kind"], "msg_id": header.get("cell", "")},
            "msg_type": header["kind"],
            "parent_header": {},
            "metadata": content.get("metadata") or {},
            "content": {
                "comm_id": header["comm_id"], "target_name": header.get("target_name", ""),
                "data": content.get("data") or {},
            },
            "buffers": [memoryview(item) for item in buffers],
        }
        getattr(self.manager, header["kind"])(None, "", message)
