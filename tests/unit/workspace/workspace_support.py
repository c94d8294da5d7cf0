"""What the workspace tests share: making workspaces, bundles and manifests, and SYNTHETIC output sources."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionFile, ExecutionForm
from agently_kernel.contract.errors import SandboxError
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.workspace import TaskWorkspace


def make_workspace(root, *, collection=None, limits=None, **more):
    """Return a workspace whose store and runtime area lie below *root*."""
    (root / "run").mkdir(exist_ok=True)
    return TaskWorkspace.create(
        session_id="test",
        limits=limits or ResourceLimits(),
        collection=collection or CollectionLimits(),
        data_dir=root / "data",
        runtime_dir=root / "run",
        **more,
    )


def make_bundle(files=None, outputs=(), **options):
    """Return a session bundle; its entrypoint is the first file."""
    files = files or {"cell.py": b"1\n"}
    return CodeExecutionBundle.create(
        language="python",
        form=ExecutionForm.SESSION,
        entrypoint=next(iter(files)),
        expected_outputs=outputs,
        files=tuple(CodeExecutionFile(path=path, content=content) for path, content in files.items()),
        options=options,
    )


def materialized(workspace, outputs=()):
    """Return a manifest under an open grant that declares *outputs*."""
    return workspace.materialize(make_bundle(outputs=outputs), workspace.issue_grant(execution_id="x"))


class FolderSource:
    """SYNTHETIC: plain host folders in the place of a sandbox's areas, reached by descriptor."""

    def __init__(self, root: Path) -> None:
        self.output, self.build = root / "output", root / "build"
        self.output.mkdir(parents=True)
        self.build.mkdir()

    def open_directory(self, area):
        return os.open(getattr(self, area), os.O_PATH | os.O_DIRECTORY)

    def fetch_file(self, area, path, max_bytes):
        raise AssertionError("files are read by descriptor here")


class WireSource:
    """SYNTHETIC: files in memory in the place of a sandbox that has no descriptor."""

    def __init__(self, files, *, build=None, delay=0.0) -> None:
        self.areas = {"output": files, "build": build or {}}
        self.delay = delay
        self.fetched = []

    def open_directory(self, area):
        return None

    async def fetch_file(self, area, path, max_bytes):
        self.fetched.append(f"{area}/{path}")
        content = self.areas[area].get(path)
        if isinstance(content, SandboxError):
            raise content
        if content is None:
            raise SandboxError("there is no such file", code="missing")
        for start in range(0, len(content), 3):
            await asyncio.sleep(self.delay)
            yield content[start : start + 3]

    async def list_files(self, area, max_files):
        return [(path, len(content)) for path, content in self.areas[area].items() if isinstance(content, bytes)]
