"""Where contract tests run: a workspace, a manager with one provider, and an inventory of what the machine holds."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from agently_kernel.contract.bundle import CodeExecutionRequest, ExecutionForm
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.outputs import OutputEvent
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement, ProviderCandidate
from agently_kernel.contract.result import CodeExecutionResult
from agently_kernel.contract.workspace import CollectionLimits, TaskWorkspaceAccessGrant
from agently_kernel.execution import CodeExecution
from agently_kernel.manager import ExecutionResourceManager
from agently_kernel.registry import ProviderRegistry
from agently_kernel.workspace.task_workspace import TaskWorkspace


class Surroundings:
    """An async context: one provider in a manager of its own, one workspace, everything closed at the end."""

    def __init__(
        self,
        provider: ExecutionResourceProvider,
        config: Mapping[str, Any],
        policy: ExecutionResourcePolicy,
        folder: Path,
    ) -> None:
        self.provider = provider
        self.candidate = ProviderCandidate(provider_id=provider.provider_id, config=dict(config))
        self.policy = policy
        self.manager = ExecutionResourceManager(registry=ProviderRegistry(entry_points=False))
        self.manager.register_provider(provider)
        self.workspace = self.new_workspace(folder)
        self.execution = CodeExecution(
            self.manager, workspace=self.workspace, policy=policy, candidates=(self.candidate,)
        )
        self.events: list[OutputEvent] = []

    @staticmethod
    def new_workspace(folder: Path) -> TaskWorkspace:
        """Return a workspace whose store lies in *folder*."""
        return TaskWorkspace.create(
            session_id=f"contract-{secrets.token_hex(4)}",
            limits=ResourceLimits(),
            collection=CollectionLimits(),
            data_dir=folder,
        )

    async def __aenter__(self) -> Surroundings:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.manager.aclose()
        self.workspace.close()

    def requirement(self, owner: str = "contract", **fields: Any) -> ExecutionResourceRequirement:
        """Return the requirement of a session of *owner*."""
        return ExecutionResourceRequirement(
            **{
                "scope": "session",
                "owner_id": owner,
                "provider_candidates": (self.candidate,),
                "policy": self.policy,
                **fields,
            }
        )

    async def script(self, source: str, **fields: Any) -> CodeExecutionResult:
        """Run *source* in a fresh sandbox; ``timeout`` and ``policy`` go to the run, the rest to the request."""
        options = {name: fields.pop(name) for name in ("timeout", "policy") if name in fields}
        request = CodeExecutionRequest(source_code=source, **fields)
        return await self.execution.async_run(request, sink=self.events.append, **options)

    async def cell(self, source: str, owner: str = "contract", **options: Any) -> CodeExecutionResult:
        """Run *source* in the resident interpreter of *owner*'s session."""
        request = CodeExecutionRequest(source_code=source, form=ExecutionForm.SESSION)
        return await self.execution.async_run(
            request, requirement=self.requirement(owner), sink=self.events.append, **options
        )

    @contextlib.contextmanager
    def granted(self) -> Iterator[TaskWorkspaceAccessGrant]:
        """Issue a grant for the time of the block."""
        grant = self.workspace.issue_grant(execution_id=f"contract-{secrets.token_hex(4)}")
        try:
            yield grant
        finally:
            self.workspace.close_grant(grant)


class HostWitness:
    """What is planted on the host for a sandbox to find: a canary file, this process, an open port, a variable."""

    VARIABLE = "AGENTLY_CONTRACT_CANARY"

    def __init__(self) -> None:
        self.word = secrets.token_hex(16)
        self._folder = tempfile.TemporaryDirectory(prefix="agently-contract-")
        self.canary = Path(self._folder.name) / "canary.txt"
        self.canary.write_text(self.word)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        os.environ[self.VARIABLE] = self.word

    def __enter__(self) -> HostWitness:
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop(self.VARIABLE, None)
        self._listener.close()
        self._folder.cleanup()

    def challenge(self) -> dict[str, Any]:
        """Return what the program in the sandbox is told."""
        return {"canary": str(self.canary), "pid": os.getpid(), "port": self._listener.getsockname()[1]}

    def was_reached(self) -> bool:
        """True when something connected to the port."""
        try:
            self._listener.accept()[0].close()
        except OSError:
            return False
        return True

    def was_changed(self) -> bool:
        """True when the canary or its folder was written to."""
        return self.canary.read_text() != self.word or len(list(self.canary.parent.iterdir())) != 1


def inventory() -> frozenset[str]:
    """Return what this process could have left on the machine: child processes, mounts, descriptors' targets."""
    gc.collect()
    found = {f"process {child.pid} {child.name()}" for child in _children()}
    mounts = Path("/proc/self/mountinfo")
    if mounts.exists():
        points = (line.split()[4] for line in mounts.read_text().splitlines())
        found |= {f"mount {point}" for point in points if "agently-kernel" in point}  # others mount things meanwhile
    return frozenset(found)


def settles(before: frozenset[str], look: Callable[[], frozenset[str]], seconds: float) -> frozenset[str]:
    """Return what *look* finds beyond *before* after at most *seconds*; empty as soon as there is nothing."""
    until = time.monotonic() + seconds
    while (left := look() - before) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _children() -> list[psutil.Process]:
    alive = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                alive.append(child)
    return alive
