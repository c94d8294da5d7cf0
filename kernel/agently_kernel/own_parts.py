"""Manager, workspace and watcher of an execution that belongs to no kernel: made together, closed together."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.manager import ExecutionResourceManager
from agently_kernel.policy import PolicyApproval
from agently_kernel.reaper import Reaper, watch
from agently_kernel.workspace.task_workspace import TaskWorkspace


@dataclass(frozen=True, slots=True)
class OwnParts:
    """Close them once, by :meth:`close` or :meth:`async_close`."""

    manager: ExecutionResourceManager
    workspace: TaskWorkspace
    watcher: Reaper | None

    @classmethod
    def make(
        cls, policy: ExecutionResourcePolicy | None, approval: PolicyApproval | None, folder: Path | None
    ) -> OwnParts:
        """Make them for *folder* (default: the current one). Raises WorkspaceError; nothing is left behind then."""
        session_id, watcher = f"script-{os.urandom(6).hex()}", watch()
        try:
            workspace = TaskWorkspace.create(
                session_id=session_id, limits=(policy or ExecutionResourcePolicy()).limits,
                collection=CollectionLimits(), notebook_dir=folder or Path.cwd(),
            )
        except BaseException:
            if watcher is not None:
                watcher.close()
            raise
        return cls(ExecutionResourceManager(approval=approval, session_id=session_id), workspace, watcher)

    def close(self) -> None:
        """Release everything, remove the runtime area, end the watcher. Raises WorkspaceError for what is left."""
        try:
            self.manager.close()
        finally:
            self._close_workspace()

    async def async_close(self) -> None:
        """As :meth:`close`, on an event loop."""
        try:
            await self.manager.aclose()
        finally:
            await asyncio.to_thread(self._close_workspace)

    def _close_workspace(self) -> None:
        try:
            self.workspace.close()
        finally:
            if self.watcher is not None:
                self.watcher.close()
