"""A workspace and a resource of the real provider, for tests of what users get."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionFile, CodeExecutionStep, ExecutionForm
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.contract.result import CodeExecutionResult
from agently_kernel.contract.workspace import CollectionLimits, CollectionReport, TaskWorkspaceAccessRequirement
from agently_kernel.providers.bubblewrap import BubblewrapExecutionResourceProvider
from agently_kernel.sandbox.resource import SandboxResource
from agently_kernel.workspace.task_workspace import TaskWorkspace


class Opened:
    """An open session: run cells and plans in it, collect what they leave."""

    def __init__(
        self, workspace: TaskWorkspace, resource: SandboxResource, access: TaskWorkspaceAccessRequirement
    ) -> None:
        self.workspace = workspace
        self.resource = resource
        self.report = CollectionReport()
        self._access = access
        self._count = 0

    async def run(
        self, code: str, *, timeout: float | None = 60, outputs: tuple[str, ...] = ()
    ) -> CodeExecutionResult:
        """Run *code* as a cell and collect its outputs into ``report``."""
        bundle = CodeExecutionBundle.create(
            language="python", entrypoint="cell.py",
            files=(CodeExecutionFile(path="cell.py", content=code.encode()),),
            form=ExecutionForm.SESSION, expected_outputs=outputs,
        )
        return await self._execute(bundle, timeout)

    async def run_program(
        self, files: Mapping[str, bytes], argv: tuple[str, ...], *, timeout: float | None = 60
    ) -> CodeExecutionResult:
        """Run *argv* as a process of its own in the scratch folder, with *files* in its source folder."""
        bundle = CodeExecutionBundle.create(
            language="python",
            files=tuple(CodeExecutionFile(path=name, content=data) for name, data in files.items()),
            entrypoint=next(iter(files)), form=ExecutionForm.ONE_SHOT,
            run_step=CodeExecutionStep(argv=argv, role="run", cwd="build"),
        )
        return await self._execute(bundle, timeout)

    async def _execute(self, bundle: CodeExecutionBundle, timeout: float | None) -> CodeExecutionResult:
        self._count += 1
        grant = self.workspace.issue_grant(execution_id=f"e{self._count}", requirement=self._access)
        try:
            manifest = self.workspace.materialize(bundle, grant)
            result = await self.resource.async_execute_code(bundle, manifest, grant, timeout)
            self.report = await self.workspace.collect(manifest, self.resource.output_source)
            return result
        finally:
            self.workspace.close_grant(grant)


@contextlib.asynccontextmanager
async def opened(
    folder: Path,
    *,
    provider: BubblewrapExecutionResourceProvider | None = None,
    config: Mapping[str, Any] | None = None,
    limits: ResourceLimits | None = None,
    collection: CollectionLimits | None = None,
    access: TaskWorkspaceAccessRequirement | None = None,
    workspace: TaskWorkspace | None = None,
) -> AsyncIterator[Opened]:
    """Open a session whose store lies in *folder*; close everything at the end, and fail when something is left."""
    limits, access = limits or ResourceLimits(), access or TaskWorkspaceAccessRequirement()
    workspace = workspace or TaskWorkspace.create(
        session_id="test", limits=limits, collection=collection or CollectionLimits(), data_dir=folder
    )
    try:
        grant = workspace.issue_grant(execution_id="open", requirement=access)
        try:
            resource = await (provider or BubblewrapExecutionResourceProvider()).async_ensure(
                requirement=ExecutionResourceRequirement(
                    task_workspace_access_grant=grant, scope="session", config=dict(config or {})
                ),
                policy=ExecutionResourcePolicy(limits=limits),
            )
        finally:
            workspace.close_grant(grant)
        try:
            yield Opened(workspace, resource, access)
        finally:
            await resource.aclose(grace=0.2)
    finally:
        workspace.close()
