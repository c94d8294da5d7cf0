"""Every error this product raises on purpose. Each message says what happened, why, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType

from pydantic import ValidationError

_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on the file system that it lies on"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "the folder has gone; restart the kernel"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check who owns it and its permissions"),
    errno.EROFS: "the file system is mounted read-only; make it writable or choose another folder",
    errno.EFBIG: "this process may not write so large a file; raise `ulimit -f`",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "too many files are open; close some kernels or raise `ulimit -n`"),
    errno.EIO: "the disk or its connection fails; check it",
    errno.ESTALE: "the network file system has lost it; mount it again",
    errno.ENOMEM: "the machine is out of memory; end something",
}


def os_reason(error: OSError) -> str:
    """Return why the system refused something and what to do about that very reason, without a full stop."""
    why = error.strerror or str(error) or type(error).__name__
    advice = _ADVICE.get(error.errno or 0, "check the folder's file system and permissions")
    return f"{why}; {advice}"


def reasons(error: ValueError) -> str:
    """Return why a value was refused, in the words of whoever wrote the rule: no class names, no addresses."""
    if not isinstance(error, ValidationError):
        return str(error)
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(str(item["msg"]).removeprefix("Value error, ") for item in faults)


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


class SandboxCleanupError(SandboxError):
    """Something of a closed sandbox could not be removed."""

    code = "sandbox.cleanup"
