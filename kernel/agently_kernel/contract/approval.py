"""Policy approval: what is asked, and the five ways it can end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Literal, TypeAlias

from pydantic import Field

from agently_kernel.contract.base import Frozen, canonical_json, sha256_digest

Gate = Literal[
    "ensure", "network", "trusted_local", "image_pull", "input", "sensitive_input", "save_output", "replace_file",
    "dependencies", "active_output", "set_next_input", "limits", "isolation",
]


class ApprovalOutcome(str, Enum):
    """Kept apart: a person said yes, a person said no, nobody answered, nobody could be asked, the wait was ended."""

    APPROVED_ONCE = "approved_once"
    APPROVED_SESSION = "approved_session"
    DENIED = "denied"
    TIMED_OUT = "timed_out"
    NO_CHANNEL = "no_channel"
    CANCELLED = "cancelled"

    @property
    def approved(self) -> bool:
        """True for the two approvals."""
        return self in (ApprovalOutcome.APPROVED_ONCE, ApprovalOutcome.APPROVED_SESSION)


class ApprovalRequest(Frozen):
    """One question. ``title``, ``what``, ``why`` and ``meaning`` are composed by the kernel from validated fields.

    ``subject`` is the exact thing asked for (a path, a host list, an image): a remembered decision holds for this gate
    and exactly this subject. ``nonce`` and ``digest()`` must be echoed by the answer.
    """

    request_id: str
    nonce: str = Field(repr=False)
    gate: Gate
    subject: str
    title: str
    what: str
    why: str = ""
    meaning: str = Field(default="", description="what allowing means, in one sentence")
    session_id: str = ""
    cell_id: str = ""
    notebook: str = ""
    created_at: float
    expires_at: float | None = Field(default=None, description="seconds since the epoch; None waits until cancelled")

    def digest(self) -> str:
        """Return the digest of everything that was shown; an answer that echoes another one is refused."""
        shown = self.model_dump(mode="json", exclude={"expires_at", "created_at"})
        return sha256_digest(canonical_json(shown))


class ApprovalDecision(Frozen):
    """How a request ended."""

    request_id: str
    outcome: ApprovalOutcome
    by: str = Field(default="", description="panel, input box, configuration, remembered, auto_allow, deadline …")
    reason: str = ""
    decided_at: float

    @property
    def approved(self) -> bool:
        """True when the gate may be passed."""
        return self.outcome.approved


ApprovalHandler: TypeAlias = Callable[[ApprovalRequest], Awaitable[ApprovalOutcome] | ApprovalOutcome]
"""Answers one request. Raising, hanging past the deadline or returning anything else denies."""
