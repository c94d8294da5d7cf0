"""A panel of a real kernel, for tests: asks on the control channel, and answers the questions of a running cell."""

from __future__ import annotations

import time
from typing import Any

from kernel_session import KernelSession, Run

ID = {"version": 1, "client_id": "test-panel-0001"}


class PanelClient:
    """Attached as long as its lease lasts; every question then goes to it."""

    def __init__(self, session: KernelSession) -> None:
        self.session = session
        session.run("%agently status")  # an ordinary kernel has no panel before the magics were used
        assert self.ask("attach", lease_seconds=100)["status"] == "ok"

    def ask(self, action: str, **fields: Any) -> dict[str, Any]:
        """Send one request and return its reply."""
        return self.session.ask("agently_panel_request", {**ID, "action": action, **fields}, channel="control")

    def snapshot(self) -> dict[str, Any]:
        """Return everything that a panel shows."""
        found: dict[str, Any] = self.ask("snapshot")["snapshot"]
        return found

    def question(self, seconds: float = 20.0) -> dict[str, Any]:
        """Return the question that waits."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            waiting = self.snapshot()["approvals"]
            if waiting:
                found: dict[str, Any] = waiting[0]
                return found
            time.sleep(0.05)
        raise AssertionError(f"nothing was asked within {seconds:g} s")

    def decide(self, asked: dict[str, Any], outcome: str) -> None:
        """Answer a question."""
        echoed = {name: asked[name] for name in ("request_id", "nonce", "digest")}
        assert self.ask("decide", outcome=outcome, **echoed)["accepted"], asked

    def run(self, code: str, outcome: str = "approved_session", questions: int = 1) -> Run:
        """Run a cell that asks *questions* times, answering each with *outcome*."""
        run = self.session.send(code)
        for _ in range(questions):
            self.decide(self.question(), outcome)
        return self.session.wait(run)
