"""Execution resources: requirement, policy, candidates, probe, selection, handle (reference: "Execution Resource")."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Literal

from pydantic import Field, field_validator, model_validator

from agently_kernel.contract.base import MAX_SECONDS, Frozen, JSONValue, canonical_json, freeze_mapping, thaw
from agently_kernel.contract.bundle import CodeExecutionToolchainRequirement, normalise_tool_id
from agently_kernel.contract.isolation import (
    REQUIRED_AXES,
    CodeExecutionProviderCapability,
    IsolationAxis,
    ResourceLimits,
    SandboxFacts,
)
from agently_kernel.contract.network import NetworkMode, normalise_hosts
from agently_kernel.contract.workspace import AccessMode, TaskWorkspaceAccessGrant

KIND_CODE_EXECUTION = "code_execution"
Scope = Literal["global", "agent", "session", "request", "execution", "action_call"]
IsolationPolicy = Literal["required", "preferred", "none"]


class HandleStatus(str, Enum):
    """The reference's statuses, and ``quarantined`` for a handle whose release failed."""

    DECLARED = "declared"
    PENDING_APPROVAL = "pending_approval"
    ENSURING = "ensuring"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"
    QUARANTINED = "quarantined"


class ProviderCandidate(Frozen):
    """One entry of the ordered chain; ``config`` is merged for this candidate only. A plain string is its id."""

    provider_id: str = Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*$")
    config: Mapping[str, JSONValue] = Field(default_factory=dict, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"provider_id": value} if isinstance(value, str) else value

    @field_validator("config")
    @classmethod
    def _config(cls, value: Mapping[str, JSONValue]) -> Mapping[str, JSONValue]:
        return freeze_mapping(value)


class ExecutionResourcePolicy(Frozen):
    """What the host allows for one requirement. A guest or a notebook can only ask for less than this.

    ``isolation`` is selection policy, not evidence. ``unsafe_fallback`` admits ``trusted_local`` and needs
    ``preferred`` or ``none``; ``trusted_local_authorized`` is the explicit host authorisation that the reference
    demands with it.
    ``approval_mode``: ``always`` asks before ensure, ``auto`` asks only where a gate applies, ``never`` denies gates.
    ``timeout_seconds`` is wall-clock for the whole execution; None means no limit (a session cell).
    """

    isolation: IsolationPolicy = "required"
    required_axes: tuple[IsolationAxis, ...] = REQUIRED_AXES
    unsafe_fallback: bool = False
    trusted_local_authorized: bool = False
    auto_allow: bool = False
    approval_mode: Literal["auto", "always", "never"] = "auto"
    policy_approval_handler: str | None = None
    approval_timeout_seconds: float | None = Field(
        default=120.0, ge=0, le=MAX_SECONDS, description="0 or None: wait until cancelled"
    )
    network_mode: NetworkMode = "disabled"
    network_hosts: tuple[str, ...] = Field(default=(), description="with network_mode='hosts': what may be reached")
    package_hosts: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, description="by language: where packages are installed from, instead of its public index"
    )
    timeout_seconds: float | None = Field(default=None, gt=0, le=MAX_SECONDS)
    max_output_bytes: int = Field(default=8 * 1024**2, ge=1024, le=1024**3)
    limits: ResourceLimits = ResourceLimits()
    required_limits: tuple[str, ...] = Field(default=(), description="limit names that must have a mechanism in force")
    pass_environment: tuple[str, ...] = Field(default=(), description="variables that code gets as they are here")

    @field_validator("network_hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return normalise_hosts(value)

    @field_validator("package_hosts")
    @classmethod
    def _package_hosts(cls, value: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        return freeze_mapping({normalise_tool_id(name): normalise_hosts(hosts) for name, hosts in value.items()})

    @model_validator(mode="after")
    def _fallback(self) -> ExecutionResourcePolicy:
        if self.unsafe_fallback and self.isolation == "required":
            raise ValueError("unsafe_fallback=True needs isolation='preferred' or 'none'; 'required' forbids it")
        if self.network_hosts and self.network_mode != "hosts":
            raise ValueError("network_hosts needs network_mode='hosts'")
        return self


class ExecutionResourceRequirement(Frozen):
    """A wish for a managed resource. ``owner_id`` within ``scope`` owns what comes of it."""

    requirement_id: str = ""
    kind: str = KIND_CODE_EXECUTION
    scope: Scope = "action_call"
    owner_id: str = "Agently"
    resource_key: str = KIND_CODE_EXECUTION
    provider_id: str | None = None
    provider_candidates: tuple[ProviderCandidate, ...] = ()
    language: str = "python"
    toolchains: tuple[CodeExecutionToolchainRequirement, ...] = ()
    workspace_access_mode: AccessMode = "snapshot"
    task_workspace_access_grant: TaskWorkspaceAccessGrant | None = Field(default=None, repr=False)
    config: Mapping[str, JSONValue] = Field(default_factory=dict, repr=False)
    policy: ExecutionResourcePolicy = ExecutionResourcePolicy()
    approval_required: bool = False
    reuse_key: str | None = Field(default=None, repr=False)
    resident: bool = Field(default=True, description="False: only argv plans will run; no interpreter need be started")

    @field_validator("provider_candidates", mode="before")
    @classmethod
    def _candidates(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("config")
    @classmethod
    def _config(cls, value: Mapping[str, JSONValue]) -> Mapping[str, JSONValue]:
        return freeze_mapping(value)

    def reuse_digest(self) -> str:
        """Return a hash under which equal requirements of one owner share a handle; shows nothing of the config."""
        grant = self.task_workspace_access_grant
        plain = {
            "reuse_key": self.reuse_key, "kind": self.kind, "scope": self.scope, "owner": self.owner_id,
            "resource_key": self.resource_key, "provider": self.provider_id,
            "candidates": [[c.provider_id, thaw(c.config)] for c in self.provider_candidates],
            "language": self.language, "resident": self.resident, "toolchains": [t.describe() for t in self.toolchains],
            "config": thaw(self.config), "policy": self.policy.model_dump(mode="json"),
            "mounts": repr(grant.mounts_key()) if grant else None,
        }
        return hashlib.sha256(canonical_json(plain)).hexdigest()[:32]


class ReuseDigests:
    """Gives :meth:`ExecutionResourceRequirement.reuse_digest`, and makes none twice in a row: the cells of a session
    differ in their grants only."""

    def __init__(self) -> None:
        self._last: tuple[ExecutionResourceRequirement, object, str] | None = None

    def of(self, requirement: ExecutionResourceRequirement) -> str:
        """Return the reuse digest of *requirement*."""
        grant = requirement.task_workspace_access_grant
        wish = requirement.model_copy(update={"task_workspace_access_grant": None})
        mounts = grant.mounts_key() if grant is not None else None
        if self._last is None or self._last[0] != wish or self._last[1] != mounts:
            self._last = wish, mounts, requirement.reuse_digest()
        return self._last[2]


class SkipReason(Frozen):
    """Why a candidate was not taken, for people (``message``, ``remedy``) and for programs (``code``, ``subject``)."""

    provider_id: str
    index: int
    code: Literal[
        "unregistered", "unavailable", "probe_failed", "kind", "language", "toolchain", "workspace_access", "isolation",
        "network", "limits", "trusted_local_refused", "approval", "launch_failed", "config_invalid", "reprobe_changed",
    ]
    subject: str = ""
    message: str
    remedy: str = ""


class ExecutionResourceProbe(Frozen):
    """What a provider observed about itself. ``reason`` and ``remedy`` are filled whenever it is not available."""

    provider_id: str
    available: bool
    supported_kinds: tuple[str, ...] = (KIND_CODE_EXECUTION,)
    capability: CodeExecutionProviderCapability | None = None
    reason: str = Field(default="", max_length=2000)
    remedy: str = Field(default="", max_length=2000)
    diagnostics: tuple[str, ...] = ()
    probed_at: float
    seconds: float = 0.0
    cached: bool = False


class ProviderSelection(Frozen):
    """Which candidate was taken, and why others were not. ``preference_fallback``: preferred isolation was not met."""

    index: int | None = None
    provider_id: str | None = None
    isolation: IsolationPolicy = "required"
    preference_fallback: bool = False
    unsafe: bool = False
    skipped: tuple[SkipReason, ...] = ()
    probe: ExecutionResourceProbe | None = None


class ExecutionResourceHandleView(Frozen):
    """An immutable picture of a handle, as ``inspect`` and ``list`` return it; never the live resource."""

    handle_id: str
    requirement_id: str
    kind: str
    scope: Scope
    owner_id: str
    resource_key: str
    provider_id: str | None
    status: HandleStatus
    ref_count: int
    created_at: float
    facts: SandboxFacts | None = None
    selection: ProviderSelection | None = None
    error: str = ""
