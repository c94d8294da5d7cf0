"""Synthetic values for the panel's unit tests: a service over a real state, with a desk that notes what it is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agently_kernel.contract.approval import ApprovalOutcome, ApprovalRequest
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.workspace import CollectedOutput
from agently_kernel.panel import PanelService
from agently_kernel.panel_schema import PROTOCOL_VERSION
from agently_kernel.panel_state import PanelState
from agently_kernel.wishes import Wish, WishResult


def question(request_id: str = "r1", **fields: Any) -> ApprovalRequest:
    values = {
        "request_id": request_id, "nonce": f"nonce-{request_id}", "gate": "network", "subject": "pypi.example:443",
        "title": "Give the sandbox network access", "what": "A cell asks for network access: pypi.example:443.",
        "cell_id": "cell-1", "created_at": 1000.0, "expires_at": time.time() + 60,
    }
    return ApprovalRequest.model_validate({**values, **fields})


class SyntheticDesk:
    """Accepts the first answer to each question, as a broker does."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, ApprovalOutcome, str]] = []

    def answer(self, request_id: str, nonce: str, digest: str, outcome: ApprovalOutcome, by: str = "panel") -> bool:
        if any(given == request_id for given, _, _ in self.answers):
            return False
        self.answers.append((request_id, outcome, by))
        return True


class SyntheticHost:
    def __init__(self) -> None:
        self.revoked: list[str] = []
        self.stays: set[str] = set()

    async def restart_sandbox(self) -> str:
        raise ConfigurationError("A cell is running. Stop it first.")

    async def doctor(self) -> tuple[str, dict[str, Any]]:
        raise RuntimeError("a secret path")

    async def save_output(self, output: CollectedOutput, folder: str) -> str:
        return f"{folder}/{output.path}"

    async def revoke(self, gate: str, subject: str) -> str:
        if subject in self.stays:
            raise ConfigurationError(f"{subject} could not be taken back.")
        self.revoked.append(subject)
        return f"{subject} is gone."

    async def wish(self, wish: Wish) -> tuple[WishResult, ...]:
        """Refuse everything that is wished for."""
        results = []
        if wish.isolation is not None:
            results.append(
                WishResult(name="isolation", wished=wish.isolation, effective="required", outcome="weaker")
            )
        if wish.approval_timeout is not None:
            results.append(WishResult(
                name="approval_timeout", wished=f"{wish.approval_timeout:g}", effective="30", outcome="longer"
            ))
        return tuple(results)


class Bench:
    """A service with everything around it."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.state = PanelState()
        self.desk, self.host = SyntheticDesk(), SyntheticHost()
        self.service = PanelService(lambda kind, content: self.events.append(content), self.state, self.desk, self.host)

    async def ask(self, action: str, **fields: Any) -> dict[str, Any]:
        client = fields.pop("client_id", "client-1")
        return await self.service.handle({"version": PROTOCOL_VERSION, "client_id": client, "action": action, **fields})

    def wait(self, condition: Callable[[], bool], seconds: float = 2.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"did not come about within {seconds} s; events: {self.events}"
            time.sleep(0.005)
