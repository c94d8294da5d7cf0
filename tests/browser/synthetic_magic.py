"""A synthetic stand-in for a magic in an ordinary kernel: it asks, and blocks the main thread until it is answered."""

from __future__ import annotations

import threading
import time

from IPython import get_ipython

from agently_kernel.contract.approval import ApprovalOutcome
from agently_kernel.panel import PanelService, announce, install, publisher
from agently_kernel.panel_schema import SessionView
from agently_kernel.panel_state import PanelState
from agently_kernel.policy_text import build_request

STATE = PanelState(session=SessionView(host="ipython", status="ready", started_at=time.time()))


class SyntheticDesk:
    """Holds one answer."""

    def __init__(self) -> None:
        self.given = threading.Event()
        self.outcome: ApprovalOutcome | None = None

    def answer(self, request_id: str, nonce: str, digest: str, outcome: ApprovalOutcome, by: str = "panel") -> bool:
        self.outcome = outcome
        self.given.set()
        return True


DESK = SyntheticDesk()


def load() -> None:
    """Serve panels from this kernel."""
    kernel = get_ipython().kernel
    install(kernel, PanelService(publisher(kernel), STATE, DESK).handle)
    announce()


def ask() -> None:
    """Ask, wait with the main thread blocked, and print the answer."""
    request = build_request("network", "pypi.example:443", timeout=20.0)
    STATE.approval_asked(request)
    if not DESK.given.wait(20.0):
        raise TimeoutError("nobody answered")
    STATE.approval_closed(request.request_id)
    assert DESK.outcome is not None
    print(DESK.outcome.value)
