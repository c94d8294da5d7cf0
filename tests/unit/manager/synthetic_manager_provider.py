"""SYNTHETIC provider and resource for the manager's tests: no isolation, no processes, facts as ordered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

from agently_kernel.contract.errors import SandboxError
from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.isolation import (
    CodeExecutionProviderCapability,
    Evidence,
    IsolationAxis,
    IsolationFacts,
    LimitFact,
    SafetyClass,
    SandboxFacts,
    ToolchainFact,
)
from agently_kernel.contract.resource import ExecutionResourceProbe, ExecutionResourceRequirement
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.manager import ExecutionResourceManager
from agently_kernel.opening import ManagerDeadlines
from agently_kernel.registry import ProviderRegistry

AXES = tuple(axis.value for axis in IsolationAxis)


def isolation(*, network: bool | None = True, **axes: bool | None) -> IsolationFacts:
    """Facts with all axes true but for those given."""
    now = time.time()
    evidence = tuple(
        Evidence(subject=axis, check=f"synthetic {axis}", value=axes.get(axis, True), source="outside", observed_at=now)
        for axis in AXES
    )
    net = Evidence(subject="network", check="synthetic network", value=network, source="inside", observed_at=now)
    return IsolationFacts.from_evidence((*evidence, net))


def capability(**changes: Any) -> CodeExecutionProviderCapability:
    fields: dict[str, Any] = {
        "languages": ("python", "go"),
        "toolchains": {
            "python": ToolchainFact(tool="python", available=True, version="3.11.7"),
            "go": ToolchainFact(tool="go", available=True, version="1.22.1"),
            "node": ToolchainFact(tool="node", available=False),
            "bash": ToolchainFact(tool="bash", available=True, version=None),
        },
        "isolation": isolation(),
        "network": "none",
        "safety_class": SafetyClass.ISOLATED,
    }
    return CodeExecutionProviderCapability(**{**fields, **changes})


def trusted_local() -> CodeExecutionProviderCapability:
    return capability(
        isolation=isolation(network=False, **dict.fromkeys(AXES, False)),
        network="inherited",
        safety_class=SafetyClass.TRUSTED_LOCAL,
    )


class EmptySource:
    """An output source without a directory and without files."""

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        return None

    async def fetch_file(self, area: str, path: str, max_bytes: int) -> AsyncIterator[bytes]:
        raise SandboxError("no such file", code="missing")
        yield b""

    async def list_files(self, area: str, max_files: int) -> list[Any]:
        return []


class SyntheticResource:
    """A resource that answers with what the test's ``script`` returns."""

    def __init__(self, facts: SandboxFacts) -> None:
        self.facts = facts
        self.closed = False
        self.executed: list[str] = []
        self.script: Callable[..., Any] | None = None
        self.output_source = EmptySource()

    async def async_execute_code(
        self,
        bundle: Any,
        manifest: Any,
        grant: Any,
        timeout: float | None,
        *,
        sink: Any = None,
        cell: str = "",
        input_handler: Any = None,
    ) -> CodeExecutionResult:
        self.executed.append(bundle.bundle_id)
        if self.script is not None:
            answer = self.script(bundle, manifest, grant, timeout)
            answer = await answer if asyncio.iscoroutine(answer) else answer
            if answer is not None:
                return answer
        return CodeExecutionResult(
            status=ExecutionStatus.SUCCESS,
            bundle_id=bundle.bundle_id,
            bundle_digest=bundle.bundle_digest,
            facts=self.facts,
        )

    async def aclose(self) -> None:
        self.closed = True


class SyntheticProvider:
    """A provider whose every answer the test orders. ``opened`` holds every resource it ever made."""

    supported_kinds: tuple[str, ...] = ("code_execution",)

    def __init__(self, provider_id: str = "synthetic", **capability_changes: Any) -> None:
        self.provider_id = provider_id
        self.capability = capability(**capability_changes)
        self.available = True
        self.opened: list[SyntheticResource] = []
        self.log: list[str] = []
        self.configs: list[dict[str, Any]] = []
        self.health: Any = "ready"
        self.facts_isolation: IsolationFacts | None = None
        self.facts_changes: dict[str, Any] = {}
        self.probe_error: Exception | None = None
        self.ensure_error: Exception | None = None
        self.release_errors: list[BaseException] = []
        self.before_ensure: Callable[[], Any] | None = None
        self.before_probe: Callable[[], Any] | None = None
        self.before_release: Callable[[], Any] | None = None
        self.script: Callable[..., Any] | None = None

    @property
    def live(self) -> list[SyntheticResource]:
        return [resource for resource in self.opened if not resource.closed]

    async def async_probe(self, *, requirement: Any, policy: Any) -> ExecutionResourceProbe:
        self.log.append("probe")
        self.configs.append(dict(requirement.config))
        if self.before_probe is not None:
            await self.before_probe()
        if self.probe_error is not None:
            raise self.probe_error
        return ExecutionResourceProbe(
            provider_id=self.provider_id,
            available=self.available,
            capability=self.capability,
            probed_at=time.time(),
            reason="" if self.available else "the synthetic tool is missing",
            remedy="" if self.available else "apt install synthetic",
        )

    async def async_ensure(self, *, requirement: Any, policy: Any, existing_handle: Any = None) -> SyntheticResource:
        self.log.append("ensure")
        self.configs.append(dict(requirement.config))
        if self.before_ensure is not None:
            await self.before_ensure()
        if self.ensure_error is not None:
            raise self.ensure_error
        fields: dict[str, Any] = {
            "provider_id": self.provider_id,
            "safety_class": self.capability.safety_class,
            "isolation": self.facts_isolation or self.capability.isolation,
            "network": self.capability.network,
            "limits": (LimitFact(name="memory", limit=1e9, mechanism="rlimit", observed=True),),
            "observed_at": time.time(),
        }
        resource = SyntheticResource(SandboxFacts(**{**fields, **self.facts_changes}))
        resource.script = self.script
        self.opened.append(resource)
        return resource

    async def async_health_check(self, handle: Any) -> Any:
        self.log.append("health")
        if isinstance(self.health, Exception):
            raise self.health
        if callable(self.health):
            return await self.health()
        return self.health

    async def async_release(self, handle: Any) -> None:
        self.log.append("release")
        if self.before_release is not None:
            await self.before_release()
        if self.release_errors:
            raise self.release_errors.pop(0)
        await handle.resource.aclose()


FAST = ManagerDeadlines(probe=0.3, ensure=0.3, health=0.2, release=0.3, cleanup=0.2)


def wanted(**fields: Any) -> ExecutionResourceRequirement:
    """A requirement of one session owner."""
    return ExecutionResourceRequirement(**{"scope": "session", "owner_id": "alice", **fields})


class Managed(ExecutionResourceManager):
    """A manager that keeps the events it sent."""

    def __init__(self, *providers: Any, **options: Any) -> None:
        super().__init__(registry=ProviderRegistry(entry_points=False), **{"deadlines": FAST, **options})
        self.seen: list[ExecutionResourceEvent] = []
        self.add_hook(self.seen.append)
        for provider in providers:
            self.register_provider(provider)

    @property
    def types(self) -> list[str]:
        return [event.event_type.removeprefix("execution_resource.") for event in self.seen]
