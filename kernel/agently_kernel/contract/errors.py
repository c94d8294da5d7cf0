"""Every error this product raises on purpose. Each message says what happened, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class AgentlyKernelError(Exception):
    """Base of all errors raised on purpose. ``code`` is stable and may be matched; ``details`` is plain JSON."""

    code = "agently_kernel.error"

    def __init__(self, message: str, *, code: str | None = None, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.details: Mapping[str, object] = MappingProxyType(dict(details or {}))


class ConfigurationError(AgentlyKernelError):
    """A setting, option or candidate is malformed; the message names the field and the allowed values."""

    code = "configuration.invalid"


class ExecutionResourceError(AgentlyKernelError):
    """A managed resource could not be had, used or released. ``code`` is ``execution_resource.<reason>``."""

    code = "execution_resource.failed"


class ExecutionResourceUnavailable(ExecutionResourceError):
    """No candidate provider is eligible. ``selection`` (in details) lists each skipped candidate with its reason."""

    code = "execution_resource.provider_unavailable"


class ExecutionResourceReleaseError(ExecutionResourceError):
    """A release failed; the handle is quarantined and an otherwise successful call becomes an error."""

    code = "execution_resource.release_failed"


class ApprovalDenied(ExecutionResourceError):
    """A policy gate was not approved. ``details['outcome']`` is denied, timed_out, no_channel or cancelled."""

    code = "execution_resource.approval_denied"


class WorkspaceError(AgentlyKernelError):
    """The TaskWorkspace refused or could not do something."""

    code = "task_workspace.error"


class GrantError(WorkspaceError):
    """A TaskWorkspaceAccessGrant is missing, closed, or does not cover what was asked."""

    code = "task_workspace.grant"


class MaterializationError(WorkspaceError):
    """A bundle could not be written to the source root exactly as its manifest says."""

    code = "task_workspace.materialization"


class SandboxError(AgentlyKernelError):
    """A sandbox could not be opened or used."""

    code = "sandbox.error"


class SandboxLaunchError(SandboxError):
    """The mechanism did not start. ``details['remedy']`` says what would fix it where that is known."""

    code = "sandbox.launch_failed"


class SandboxDied(SandboxError):
    """The sandbox or its interpreter ended; ``details`` has ``cause`` (see contract.result.DeathCause) and ``lost``."""

    code = "sandbox.died"


class SandboxProtocolError(SandboxError):
    """The guest sent something that the protocol does not allow; the sandbox was ended for it."""

    code = "sandbox.protocol"


class SandboxCleanupError(SandboxError):
    """Something of a closed sandbox could not be removed."""

    code = "sandbox.cleanup"
