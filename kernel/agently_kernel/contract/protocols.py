"""The seams: what a provider, a sandbox, a resource and a language adapter must offer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from agently_kernel.contract.approval import ApprovalDecision, Gate
from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionRequest, CodeExecutionToolchainRequirement
from agently_kernel.contract.isolation import Evidence, LimitFact, SandboxFacts
from agently_kernel.contract.outputs import OutputSink
from agently_kernel.contract.resource import (
    ExecutionResourcePolicy,
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
)
from agently_kernel.contract.result import CodeExecutionResult, DeathCause
from agently_kernel.contract.workspace import MaterializationManifest, TaskWorkspaceAccessGrant


class SandboxProcess(Protocol):
    """The one process that a sandbox was opened with: three separate byte streams and an end.

    ``stdout`` carries frames, ``stderr`` untrusted diagnostics. ``wait`` answers as soon as the process is gone, never
    waiting for the end of a stream that a grandchild may hold.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    @property
    def returncode(self) -> int | None:
        """Exit code, negative signal number, or None while it lives."""

    async def wait(self) -> int:
        """Return the exit code once the process has ended."""

    def kill(self) -> None:
        """End the process and everything in its sandbox at once; harmless when it is gone."""


@runtime_checkable
class SeenAtOnce(Protocol):
    """A sandbox whose ``is_alive`` need not wait for anything, so that a cell in it does not wait for that either."""

    def alive_now(self) -> bool:
        """True while the first program lives and the mechanism still holds."""


class Sandbox(Protocol):
    """An isolated place that a provider opened. Everything above (guest session, steps, bounds, time) is shared code.

    ``spawn`` is called once, with the guest's first program. ``open_directory`` gives the host a directory descriptor
    into an area of the sandbox that outlives its processes, or None where there is no such thing (remote, Docker
    Desktop; the files then come over the guest protocol).
    """

    provider_id: str

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> SandboxProcess:
        """Start the first program. Raises SandboxLaunchError with a remedy in ``details``."""

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        """Return a new O_PATH|O_DIRECTORY descriptor (the caller closes it), or None."""

    async def observe(self) -> tuple[Evidence, ...]:
        """Return what the host kernel (or daemon) says of the very session process, right now."""

    async def limits(self) -> tuple[LimitFact, ...]:
        """Return each limit with the mechanism in force, observed where that can be done."""

    def mechanism(self) -> Mapping[str, Any]:
        """Return mechanism facts for people: versions, digests, runtime; no secrets, no host paths of the user."""

    async def explain_death(self, returncode: int | None) -> DeathCause:
        """Say why the sandbox ended, from what can be observed (cgroup oom count, watchdog, daemon state)."""

    async def is_alive(self) -> bool:
        """True while the first program lives and the mechanism still holds."""

    async def close(self) -> None:
        """Kill everything and remove what was made. Idempotent. Raises SandboxCleanupError naming what is left."""


@runtime_checkable
class OutputSource(Protocol):
    """Where collected outputs come from."""

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        """As Sandbox.open_directory."""

    def fetch_file(self, area: Literal["build", "output"], path: str, max_bytes: int) -> AsyncIterator[bytes]:
        """Stream one regular file over the guest protocol. Raises SandboxError with a RefusedOutput reason as code."""


@runtime_checkable
class ListingOutputSource(OutputSource, Protocol):
    """An output source that can also say what is there; needed only where ``open_directory`` gives None."""

    async def list_files(self, area: Literal["build", "output"], max_files: int) -> Sequence[tuple[str, int]]:
        """Return at most *max_files* regular files as (path relative to the area, size in bytes); both untrusted."""


class GuestNetwork(Protocol):
    """The host's end of a sandbox's network relay. ``hosts`` are granted now and may be set at any time.

    ``self_test`` is the name under which it answers by itself, with ``secret``. ``on_refused`` is called with a
    sentence for each request to a host that is not granted.
    """

    hosts: tuple[str, ...]
    secret: str
    self_test: str
    on_refused: Callable[[str], None]

    def attach(self, send: Callable[[Mapping[str, Any], bytes], Awaitable[None]]) -> None:
        """Take the way to the guest; called once."""

    def on_frame(self, op: str, header: Mapping[str, Any], payload: bytes) -> Awaitable[None] | None:
        """Take a frame of the guest. Raises WireError for what no honest guest sends."""

    async def drop(self) -> None:
        """End the connections that are open now."""

    async def aclose(self) -> None:
        """End all connections; nothing is served any more."""


class BuildStore(Protocol):
    """Keeps what compilers made, by a digest (64 hex digits) of everything that it was made from."""

    max_bytes: int

    def get(self, key: str) -> bytes | None:
        """Return what is kept, or None."""

    def show(self, key: str) -> str | None:
        """Let sandboxes that share the source root see what is kept; return its path there, None when they cannot."""

    def put(self, key: str, data: bytes) -> None:
        """Keep *data*; raises nothing when that is not possible."""


@runtime_checkable
class UsesBuilds(Protocol):
    """A resource that need not build an unchanged program again; ``builds`` is set before each execution that
    has build steps."""

    builds: BuildStore | None


@runtime_checkable
class ObservesTools(Protocol):
    """A resource that can be asked for tools after it was opened."""

    async def observe_tools(self, tools: Mapping[str, Sequence[str]]) -> None:
        """Add *tools* (tool id → argv that prints its version) to ``facts.toolchains`` as observed inside, now.

        Raises SandboxDied, asyncio.TimeoutError, WireError.
        """


class CodeExecutionResource(Protocol):
    """The live resource of a handle (reference: a resource implementing ``async_execute_code``)."""

    facts: SandboxFacts

    async def async_execute_code(
        self,
        bundle: CodeExecutionBundle,
        manifest: MaterializationManifest,
        grant: TaskWorkspaceAccessGrant,
        timeout: float | None,
        *,
        sink: OutputSink | None = None,
        cell: str = "",
        input_handler: Callable[[str, bool], Awaitable[str]] | None = None,
    ) -> CodeExecutionResult:
        """Run the materialised bundle and return its result.

        ``sink`` gets output as it arrives. ``input_handler(prompt, password)`` answers ``input()``; None refuses it.
        ``timeout`` is wall-clock seconds from now. Cancelling stops what runs.
        """

    @property
    def output_source(self) -> OutputSource:
        """Where ``TaskWorkspace.collect`` reads from."""

    async def aclose(self) -> None:
        """Close session and sandbox. Raises SandboxCleanupError."""


class ExecutionResourceProvider(Protocol):
    """One isolation mechanism (reference: "Required provider surface").

    One that isolates nothing says so beforehand with an attribute ``safety_class = SafetyClass.TRUSTED_LOCAL``; it is
    then not even probed where it may not be taken.
    """

    provider_id: str
    supported_kinds: tuple[str, ...]

    async def async_probe(
        self, *, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy
    ) -> ExecutionResourceProbe:
        """Observe availability and capability. Raising counts as not available."""

    async def async_ensure(
        self,
        *,
        requirement: ExecutionResourceRequirement,
        policy: ExecutionResourcePolicy,
        existing_handle: Any = None,
    ) -> CodeExecutionResource:
        """Open a sandbox for the requirement's grant and return its resource. Leaves nothing behind when it raises."""

    async def async_health_check(self, handle: Any) -> Literal["ready", "unhealthy"]:
        """Tell whether ``handle.resource`` can serve another execution.

        A provider may have a method ``seen_ready(handle)`` too, which is asked first: True when it is seen without
        waiting that this would return ``ready``; False leaves it to this.
        """

    async def async_release(self, handle: Any) -> None:
        """Close ``handle.resource``. Raising quarantines the handle."""


class ProviderHost(Protocol):
    """What the manager offers to a provider that has a method ``bind_host(host)``; called when it is first used."""

    async def approve(
        self,
        requirement: ExecutionResourceRequirement,
        gate: Gate,
        subject: str,
        *,
        facts: Mapping[str, str | int] | None = None,
        why: str = "",
    ) -> ApprovalDecision:
        """Pass a gate (``image_pull`` …); the wait is not charged to the deadline of ensure. Raises ApprovalDenied."""

    def progress(
        self, requirement: ExecutionResourceRequirement, phase: str, **details: str | int | float | bool
    ) -> None:
        """Report progress of a long ensure as an event, and renew the deadline of that ensure."""


class CodeRuntimeAdapter(Protocol):
    """Turns a request of one language into a bundle with an argv plan."""

    language_id: str
    aliases: tuple[str, ...]

    def prepare(self, request: CodeExecutionRequest, policy: ExecutionResourcePolicy) -> CodeExecutionBundle:
        """Plan the request. Raises ConfigurationError for what the language cannot do."""

    def toolchain_requirements(self, request: CodeExecutionRequest) -> tuple[CodeExecutionToolchainRequirement, ...]:
        """Return the tools that must be present where the code runs."""
