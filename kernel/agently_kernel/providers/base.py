"""What the providers have in common: reading a config, mounts from a grant, a remembered launch probe, the end.

A provider says how a launch is planned (:meth:`SandboxProvider.plan`) and how a sandbox is opened for a plan
(:meth:`SandboxProvider.create_resource`); variants of a mechanism override the latter only.
"""

from __future__ import annotations

import abc
import hashlib
import os
import platform
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import GrantError, SandboxError, os_reason
from agently_kernel.contract.isolation import CodeExecutionProviderCapability, SandboxFacts
from agently_kernel.contract.network import NetworkMode
from agently_kernel.contract.protocols import ProviderHost
from agently_kernel.contract.resource import (
    KIND_CODE_EXECUTION,
    ExecutionResourcePolicy,
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
)
from agently_kernel.contract.workspace import SANDBOX_PATHS, AccessMode, TaskWorkspaceAccessGrant
from agently_kernel.guest import wire
from agently_kernel.providers.bubblewrap_binary import file_stamp
from agently_kernel.providers.candidate_config import read_config
from agently_kernel.providers.network import with_network
from agently_kernel.providers.toolchains import LANGUAGES, wanted_tools
from agently_kernel.sandbox.launch import FIRST_PROGRAM, install_guest
from agently_kernel.sandbox.resource import SandboxResource
from agently_kernel.sandbox.runtime import temporary_runtime
from agently_kernel.workspace.inputs import special_files

PROBE_SECONDS = 600.0

PlanT = TypeVar("PlanT")


class Mounts(Frozen):
    """What a grant lets a sandbox see, as host paths. ``live`` and ``copies`` are (name below the working directory,
    host path) and (name, path below the input root); ``masked`` are names, as those of ``live``, of sockets and the
    like in folders that are mounted: nobody must open them."""

    guest: Path
    source: Path
    input: Path | None = None
    live: tuple[tuple[str, str], ...] = ()
    copies: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()

    @classmethod
    def of(cls, grant: TaskWorkspaceAccessGrant, provider_id: str) -> Mounts:
        """Derive the mounts from *grant*, which looks through its folders. Raises GrantError for what no provider of
        ours mounts, WorkspaceError for a folder that is too large to look through."""
        roots = {root.name: root.host_path for root in grant.roots}
        source, given = roots.get("source"), roots.get("input")
        if source is None:
            raise GrantError(f"Grant {grant.grant_id} has no source folder on this host; nothing was started.")
        for item in grant.inputs:
            if item.name.split("/")[0] == "output":
                raise GrantError(f"The input {item.name!r} would hide the output folder; give it another name.")
            if item.mode == "read_write":
                raise GrantError(
                    f"The input {item.name!r} is granted for writing, but a {provider_id} sandbox writes to no folder "
                    "of the host; grant a snapshot or read_only, and take the result from output/."
                )
        live = tuple((item.name, item.host_path) for item in grant.inputs if item.mode == "read_only")
        return cls(
            guest=Path(source).parent / "guest", source=Path(source), input=Path(given) if given else None, live=live,
            masked=tuple(f"{name}/{special}" for name, path in live for special in special_files(path)),
            copies=tuple(item.name for item in grant.inputs if item.mode == "snapshot"),
        )

    def install(self) -> None:
        """Put the guest's programs where the sandbox gets them from. Raises OSError."""
        if not (self.guest / FIRST_PROGRAM).exists():
            install_guest(self.guest)

    def links(self, paths: Mapping[str, str] = SANDBOX_PATHS) -> dict[str, str]:
        """Return the links (path to target) to make inside: the output folder's and those of private copies."""
        return {f"{paths['build']}/output": paths["output"], **self.copy_links(paths)}

    def copy_links(self, paths: Mapping[str, str] = SANDBOX_PATHS) -> dict[str, str]:
        """Return the links that show private copies below the working directory."""
        return {f"{paths['build']}/{name}": f"{paths['input']}/{name}" for name in self.copies}


class LaunchRequest(Frozen):
    """How one sandbox is to be opened. ``grant`` is None for a probe."""

    mounts: Mounts
    policy: ExecutionResourcePolicy
    tools: Mapping[str, Sequence[str]]
    grant: TaskWorkspaceAccessGrant | None = None
    resident: bool = False


def unavailable(provider_id: str, error: SandboxError, now: float, seconds: float) -> ExecutionResourceProbe:
    """Return the probe of a mechanism that cannot be used: *error*, its remedy, and what the mechanism itself said.

    *now* is the time of the probe (seconds since the epoch), *seconds* how long it took.
    """
    said = str(error.details.get("diagnostics") or "")
    return ExecutionResourceProbe(
        provider_id=provider_id, available=False, reason=str(error)[:2000],
        remedy=str(error.details.get("remedy") or "")[:2000], diagnostics=(said[:2000],) if said else (),
        probed_at=now, seconds=seconds,
    )


class SandboxProvider(abc.ABC, Generic[PlanT]):
    """Base of the providers. Implements ``ExecutionResourceProvider``."""

    provider_id: str
    supported_kinds: tuple[str, ...] = (KIND_CODE_EXECUTION,)
    access_modes: tuple[AccessMode, ...] = ("snapshot", "read_only")
    output_collection: Literal["directory", "protocol", "none"] = "directory"
    network_modes: tuple[NetworkMode, ...] = ("disabled",)

    def __init__(self) -> None:
        self._probes: MutableMapping[str, tuple[float, ExecutionResourceProbe]] = {}
        self.host: ProviderHost | None = None

    def bind_host(self, host: ProviderHost) -> None:
        """Take what the manager offers: gates and progress."""
        self.host = host

    def remember_probes(self, memory: MutableMapping[str, tuple[float, ExecutionResourceProbe]]) -> None:
        """Keep what probes find in *memory* from now on."""
        self._probes = memory

    @abc.abstractmethod
    async def plan(self, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy) -> PlanT:
        """Find out all that a launch needs, starting nothing that outlives the call.

        Raises ConfigurationError, SandboxLaunchError (``details['remedy']``), ApprovalDenied.
        """

    @abc.abstractmethod
    def plan_key(self, plan: PlanT) -> Sequence[object]:
        """Return whatever of *plan* could change what a probe sees."""

    @abc.abstractmethod
    async def create_resource(self, plan: PlanT, request: LaunchRequest) -> SandboxResource:
        """Open a sandbox and return its resource. Leaves nothing behind when it raises SandboxError."""

    def notes(self, plan: PlanT) -> tuple[str, ...]:
        """Return what a person may want to know of the plan."""
        return ()

    async def async_probe(
        self, *, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy
    ) -> ExecutionResourceProbe:
        """Open a real sandbox, observe it, close it; remembered for ten minutes.

        Raises ConfigurationError for a malformed config; everything else is told in the probe.
        """
        started, now = time.monotonic(), time.time()
        try:
            plan = await self.plan(requirement, policy)
            tools = wanted_tools(requirement)
            key = self._key(plan, policy, tools)
            known = self._probes.get(key)
            if known is not None and started - known[0] < PROBE_SECONDS:
                return known[1].model_copy(update={"cached": True})
            facts = await self._observe(plan, policy, tools)
        except SandboxError as error:
            return unavailable(self.provider_id, error, now, time.monotonic() - started)
        except OSError as error:
            problem = SandboxError(
                f"A folder for the probe could not be prepared: {os_reason(error)}.",
                details={"remedy": os_reason(error)},
            )
            return unavailable(self.provider_id, problem, now, time.monotonic() - started)
        probe = ExecutionResourceProbe(
            provider_id=self.provider_id,
            available=True,
            capability=CodeExecutionProviderCapability(
                languages=LANGUAGES, toolchains=facts.toolchains, isolation=facts.isolation,
                workspace_access_modes=self.access_modes, network=facts.network, network_modes=self.network_modes,
                safety_class=facts.safety_class,
                output_collection=self.output_collection, mechanism=facts.mechanism,
            ),
            diagnostics=self.notes(plan),
            probed_at=now,
            seconds=time.monotonic() - started,
        )
        self._probes[key] = (started, probe)
        return probe

    async def _observe(
        self, plan: PlanT, policy: ExecutionResourcePolicy, tools: Mapping[str, Sequence[str]]
    ) -> SandboxFacts:
        with temporary_runtime() as folder:
            mounts = Mounts(guest=folder / "guest", source=folder / "source")
            mounts.install()
            resource = await self.create_resource(plan, LaunchRequest(mounts=mounts, policy=policy, tools=tools))
            try:
                return resource.facts
            finally:
                await resource.aclose()

    def _key(self, plan: PlanT, policy: ExecutionResourcePolicy, tools: Mapping[str, Sequence[str]]) -> str:
        guest = [(path.name, file_stamp(str(path))) for path in sorted(Path(wire.__file__).parent.glob("*.py"))]
        parts = [
            self.plan_key(plan), platform.release(), platform.machine(), user_id(), guest, sorted(tools),
            policy.limits.model_dump_json(), policy.network_mode,
        ]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()

    async def async_ensure(
        self,
        *,
        requirement: ExecutionResourceRequirement,
        policy: ExecutionResourcePolicy,
        existing_handle: Any = None,
    ) -> SandboxResource:
        """Open a sandbox for the requirement's grant. Raises GrantError, ConfigurationError, SandboxLaunchError."""
        grant = requirement.task_workspace_access_grant
        if grant is None:
            raise GrantError(
                f"A {self.provider_id} sandbox needs a task workspace access grant: its mounts come from it."
            )
        plan = await self.plan(requirement, policy)
        mounts = Mounts.of(grant, self.provider_id)
        try:
            mounts.install()
            resource = await self.create_resource(
                plan,
                LaunchRequest(
                    mounts=mounts, policy=policy, tools=wanted_tools(requirement), grant=grant,
                    resident=requirement.resident,
                ),
            )
            return await with_network(resource, requirement, policy, self.network_modes, self.host)
        except SandboxError:
            self._probes.clear()  # something changed since it was seen to work
            raise
        except OSError as error:
            raise SandboxError(
                f"The runtime folder of the workspace could not be prepared: {os_reason(error)}. Then try again.",
                details={"remedy": f"{error.filename or 'the runtime folder'}: {os_reason(error)}"},
            ) from error

    def seen_ready(self, handle: Any) -> bool:
        """Whether it is seen at once that :meth:`async_health_check` would return ``ready``: never past an own one."""
        resource: SandboxResource = handle.resource
        return type(self).async_health_check is SandboxProvider.async_health_check and resource.seen_ready

    async def async_health_check(self, handle: Any) -> Literal["ready", "unhealthy"]:
        """Tell whether ``handle.resource`` can serve another execution."""
        resource: SandboxResource = handle.resource
        return await resource.health()

    async def async_release(self, handle: Any) -> None:
        """Close ``handle.resource``. Raises SandboxCleanupError when something of it is left."""
        resource: SandboxResource = handle.resource
        await resource.aclose()


def user_id() -> int:
    """Return the effective user id, -1 where there is no such thing."""
    return os.geteuid() if hasattr(os, "geteuid") else -1


__all__ = ["LaunchRequest", "Mounts", "SandboxProvider", "read_config", "user_id"]
