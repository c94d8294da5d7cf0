"""What the user of a page would like, held to the kernel's configuration: taken where it is stricter, else refused.

Settings of a page are no security boundary (a script in the page could change them), so a wish never widens anything.
"""

from __future__ import annotations

from typing import Literal, Protocol

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.resource import ExecutionResourcePolicy, IsolationPolicy
from agently_kernel.policy import PolicyApproval
from agently_kernel.session_sandbox import SessionSandbox
from agently_kernel.settings import KernelSettings

WishOutcome = Literal["applied", "next_sandbox", "weaker", "longer"]
"""``next_sandbox``: what is open was opened under less and stays until it is restarted. The last two are refusals."""
_STRICTNESS: tuple[IsolationPolicy, ...] = ("none", "preferred", "required")


class Wish(Frozen):
    """None means: as configured. The timeout is in seconds."""

    isolation: IsolationPolicy | None = None
    approval_timeout: float | None = None


class WishResult(Frozen):
    """What became of one part of a wish; ``effective`` is what holds now."""

    name: Literal["isolation", "approval_timeout"]
    wished: str
    effective: str
    outcome: WishOutcome


class WishHome(Protocol):
    """What is used of a session."""

    @property
    def settings(self) -> KernelSettings: ...
    @property
    def approval(self) -> PolicyApproval: ...
    @property
    def sandbox(self) -> SessionSandbox: ...


def at_least(configured: ExecutionResourcePolicy, wished: IsolationPolicy) -> ExecutionResourcePolicy | None:
    """Return *configured* with the stricter isolation that was wished for, or None when the wish is weaker."""
    if _STRICTNESS.index(wished) < _STRICTNESS.index(configured.isolation):
        return None
    changes: dict[str, object] = {"isolation": wished}
    if wished == "required":
        changes |= {"unsafe_fallback": False, "trusted_local_authorized": False}
    values: dict[str, object] = {name: getattr(configured, name) for name in ExecutionResourcePolicy.model_fields}
    return ExecutionResourcePolicy.model_validate(values | changes)


async def grant_wish(home: WishHome, wish: Wish) -> tuple[WishResult, ...]:
    """Apply what of *wish* is stricter than the configuration, withdraw an earlier wish, and say what came of it.

    Call it on the session's loop. Questions that are open already keep their deadline.
    """
    results: list[WishResult] = []
    configured = home.settings.policy()
    policy = configured if wish.isolation is None else at_least(configured, wish.isolation)
    opened_so = await home.sandbox.set_policy(policy or configured)
    if wish.isolation is not None:
        outcome: WishOutcome = "weaker" if policy is None else "applied" if opened_so else "next_sandbox"
        results.append(WishResult(
            name="isolation", wished=wish.isolation, effective=home.sandbox.policy.isolation, outcome=outcome
        ))
    most = home.settings.approval_timeout
    home.approval.longest_wait = None if wish.approval_timeout is None else min(wish.approval_timeout, most)
    if wish.approval_timeout is not None:
        results.append(WishResult(
            name="approval_timeout", wished=f"{wish.approval_timeout:g}",
            effective=f"{min(wish.approval_timeout, most):g}",
            outcome="longer" if wish.approval_timeout > most else "applied",
        ))
    return tuple(results)
