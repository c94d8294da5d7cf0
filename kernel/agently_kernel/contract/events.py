"""Events of the manager. They carry ids and status only: no environment, source, config, paths or clear reuse key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from pydantic import Field

from agently_kernel.contract.base import Frozen

EventType = Literal[
    "execution_resource.declared",
    "execution_resource.approval_required",
    "execution_resource.ensuring",
    "execution_resource.probed",
    "execution_resource.progress",
    "execution_resource.ready",
    "execution_resource.unhealthy",
    "execution_resource.releasing",
    "execution_resource.released",
    "execution_resource.failed",
]


class ExecutionResourceEvent(Frozen):
    """One event. ``details`` values are short strings, numbers or booleans of our own wording, never a config value."""

    event_id: str
    event_type: EventType
    timestamp: float = Field(description="seconds since the epoch")
    requirement_id: str = ""
    handle_id: str = ""
    kind: str = ""
    scope: str = ""
    owner_id: str = ""
    resource_key: str = ""
    provider_id: str = ""
    status: str = ""
    error_code: str = ""
    phase: str = ""
    details: Mapping[str, str | int | float | bool] = Field(default_factory=dict)


EventHook: TypeAlias = Callable[[ExecutionResourceEvent], None]
"""Called synchronously in order; an exception in a hook is logged and swallowed."""
