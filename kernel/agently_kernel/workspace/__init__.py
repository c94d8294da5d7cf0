"""The TaskWorkspace of one kernel session: areas, grants, materialisation, inputs, collection, the host's store."""

from __future__ import annotations

from agently_kernel.workspace.store import LogWriter, WorkspaceStore
from agently_kernel.workspace.task_workspace import TaskWorkspace

__all__ = ["LogWriter", "TaskWorkspace", "WorkspaceStore"]
