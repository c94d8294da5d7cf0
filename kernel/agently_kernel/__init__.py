"""Agently (sandboxed): a Jupyter kernel that runs every cell in a sandbox and shows what the sandbox restricts.

The names below are the Python interface for scripts and services; they are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agently_kernel.contract.bundle import CodeExecutionFile as CodeExecutionFile
    from agently_kernel.contract.bundle import CodeExecutionRequest as CodeExecutionRequest
    from agently_kernel.contract.bundle import CodeExecutionToolchainRequirement as CodeExecutionToolchainRequirement
    from agently_kernel.contract.isolation import ResourceLimits as ResourceLimits
    from agently_kernel.contract.resource import ExecutionResourcePolicy as ExecutionResourcePolicy
    from agently_kernel.contract.resource import ExecutionResourceRequirement as ExecutionResourceRequirement
    from agently_kernel.contract.resource import ProviderCandidate as ProviderCandidate
    from agently_kernel.contract.result import CodeExecutionResult as CodeExecutionResult
    from agently_kernel.contract.result import ExecutionStatus as ExecutionStatus
    from agently_kernel.contract.workspace import TaskWorkspaceAccessRequirement as TaskWorkspaceAccessRequirement
    from agently_kernel.execution import CodeExecution as CodeExecution
    from agently_kernel.manager import ExecutionResourceManager as ExecutionResourceManager
    from agently_kernel.policy import PolicyApproval as PolicyApproval
    from agently_kernel.workspace.task_workspace import TaskWorkspace as TaskWorkspace

__version__ = "2026.11.0"

_PLACES = {
    "CodeExecution": "execution",
    "CodeExecutionFile": "contract.bundle",
    "CodeExecutionRequest": "contract.bundle",
    "CodeExecutionResult": "contract.result",
    "CodeExecutionToolchainRequirement": "contract.bundle",
    "ExecutionResourceManager": "manager",
    "ExecutionResourcePolicy": "contract.resource",
    "ExecutionResourceRequirement": "contract.resource",
    "ExecutionStatus": "contract.result",
    "PolicyApproval": "policy",
    "ProviderCandidate": "contract.resource",
    "ResourceLimits": "contract.isolation",
    "TaskWorkspace": "workspace.task_workspace",
    "TaskWorkspaceAccessRequirement": "contract.workspace",
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{place}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
