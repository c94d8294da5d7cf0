"""Opening a resource: walk a requirement's candidates until one is open and observed to be what the policy needs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field

from agently_kernel.contract.approval import ApprovalDecision, Gate
from agently_kernel.contract.base import JSONValue
from agently_kernel.contract.errors import ApprovalDenied, ConfigurationError, ExecutionResourceReleaseError
from agently_kernel.contract.protocols import CodeExecutionResource, ExecutionResourceProvider, ProviderHost
from agently_kernel.contract.resource import (
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
    HandleStatus,
    ProviderSelection,
)
from agently_kernel.deadlines import Deadline, Overdue, Strays, bounded
from agently_kernel.handles import Handle, HandleBook
from agently_kernel.hooks import EventHub
from agently_kernel.redaction import describe_error
from agently_kernel.registry import ProviderRegistry
from agently_kernel.selection import Attempt, Problem, SelectionChain, reprobe_problem
from agently_kernel.uninterrupted import uninterrupted

log = logging.getLogger("agently_kernel.manager")

_WHY_NOT = {
    "timed_out": "nobody answered in time",
    "no_channel": "there is nobody who could be asked",
    "cancelled": "the question was withdrawn",
}
_DOCTOR = "run `agently-kernel doctor` for details"
ProbeEntries = MutableMapping[str, tuple[float, ExecutionResourceProbe]]
Gatekeeper = Callable[[ExecutionResourceRequirement, Gate, str], Awaitable[ApprovalDecision]]


@dataclass(frozen=True, slots=True)
class ManagerDeadlines:
    """Seconds that a provider has for each call; ``cleanup`` is what a cancelled ensure has to undo what it began.

    The time of ``ensure`` starts anew with every progress report and after every approval.
    """

    probe: float = 20.0
    ensure: float = 120.0
    health: float = 5.0
    release: float = 30.0
    cleanup: float = 15.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A resource that was opened and checked, not yet handed out."""

    provider: ExecutionResourceProvider
    resource: CodeExecutionResource
    selection: ProviderSelection
    requirement: ExecutionResourceRequirement
    """The requirement as its provider saw it."""


async def _no_spare(attempt: Attempt) -> CodeExecutionResource | None:
    return None


@dataclass(slots=True)
class Opener:
    """The part of the manager that talks to providers: probe, ensure, and the release that undoes an ensure."""

    registry: ProviderRegistry
    events: EventHub
    book: HandleBook
    deadlines: ManagerDeadlines
    host: ProviderHost
    gate: Gatekeeper
    spare: Callable[[Attempt], Awaitable[CodeExecutionResource | None]] = _no_spare
    """Asked before a launch; what it returns was opened for the same requirement and takes the launch's place."""
    probe_memory: ProbeEntries | None = None
    """Given to providers that can keep what their probes found (``remember_probes``)."""
    strays: Strays = field(default_factory=Strays)
    running: dict[str, Deadline] = field(default_factory=dict)
    _bound: set[int] = field(default_factory=set)

    async def open(self, handle: Handle) -> Opened:
        """Return the first candidate's resource that holds what the policy demands, with the explained selection.

        Raises ExecutionResourceUnavailable listing each candidate. Whatever was opened and not returned is closed
        again, also on cancellation; what cannot be closed is listed as a quarantined handle of its own.
        """
        policy = handle.requirement.policy

        async def probe(
            provider: ExecutionResourceProvider, merged: ExecutionResourceRequirement
        ) -> ExecutionResourceProbe | Problem:
            return await self._probe(handle, provider, merged)

        chain = SelectionChain(handle.requirement, self.registry.in_order, self.registry.get, probe, self._authorise)
        async for attempt in chain.attempts():
            resource = await self.spare(attempt) or await self.launch(handle, attempt.provider, attempt.requirement)
            if isinstance(resource, Problem):
                chain.skip(attempt, resource)
                continue
            demand = policy.isolation == "required" or (policy.isolation == "preferred" and not attempt.fallback)
            problem = reprobe_problem(attempt, resource.facts, demand_axes=demand)
            if problem is None:
                return Opened(attempt.provider, resource, chain.selection(attempt), attempt.requirement)
            await uninterrupted(self.discard(handle, attempt.provider, resource))
            chain.skip(attempt, problem)
            if policy.isolation == "required":
                break  # fail closed: a mechanism that is not what it was a moment ago is no reason to go on
            if demand and reprobe_problem(attempt, resource.facts, demand_axes=False) is None:
                chain.demote(attempt)
        raise chain.unavailable()

    async def dispose(self, handle: Handle) -> str:
        """Let the provider close the handle's resource within the deadline; return why that failed, else ""."""
        if handle.stray:
            return "what its provider began has not ended yet"
        if handle.provider is None or handle.resource is None:
            return ""
        try:
            await bounded(handle.provider.async_release(handle), self.deadlines.release, strays=self.strays)
        except Overdue as overdue:
            return f"it was not closed within {overdue.seconds:g} s"
        except (Exception, asyncio.CancelledError) as error:
            return describe_error(error, configs_of(handle.requirement))
        return ""

    async def discard(
        self, handle: Handle, provider: ExecutionResourceProvider, resource: CodeExecutionResource
    ) -> None:
        """Close a resource that was opened for *handle* and will not be handed out; never raises."""
        part = self._part(handle, provider)
        part.resource = resource
        if reason := await self.dispose(part):
            self.quarantine(part, reason)

    def quarantine(self, handle: Handle, reason: str) -> None:
        """Keep a handle listed whose resource could not be closed; its key becomes free for a new one."""
        handle.status, handle.error, handle.ref_count = HandleStatus.QUARANTINED, reason, 0
        self.book.unlink(handle)
        self.book.handles[handle.handle_id] = handle
        log.error(
            "the resource of %s (%s) could not be closed; it is quarantined", handle.handle_id, handle.provider_id
        )
        self.events.emit(
            "execution_resource.failed",
            handle.requirement,
            handle_id=handle.handle_id,
            provider_id=handle.provider_id or "",
            status=handle.status.value,
            error_code=ExecutionResourceReleaseError.code,
        )

    def _part(self, handle: Handle, provider: ExecutionResourceProvider) -> Handle:
        part = Handle(handle.requirement, handle.key, handle.loop)
        part.provider = provider
        return part

    def _bind(self, provider: ExecutionResourceProvider) -> None:
        bind = getattr(provider, "bind_host", None)
        if bind is not None and id(provider) not in self._bound:
            bind(self.host)
        remember = getattr(provider, "remember_probes", None)
        if remember is not None and self.probe_memory is not None and id(provider) not in self._bound:
            remember(self.probe_memory)
        self._bound.add(id(provider))

    async def _authorise(self, requirement: ExecutionResourceRequirement) -> Problem | None:
        try:
            await self.gate(requirement, "trusted_local", f"{requirement.language} with {requirement.provider_id}")
        except ApprovalDenied as denied:
            outcome = denied.details.get("outcome")
            return Problem(
                "approval",
                "trusted_local",
                f"running without isolation is not authorised ({_WHY_NOT.get(str(outcome), 'it was denied')})",
                "set trusted_local_authorized=True in the host's configuration, or allow it when asked",
            )
        return None

    async def _probe(
        self, handle: Handle, provider: ExecutionResourceProvider, merged: ExecutionResourceRequirement
    ) -> ExecutionResourceProbe | Problem:
        started = time.monotonic()
        configs = configs_of(handle.requirement)
        found: ExecutionResourceProbe | Problem
        # A probe that has to pull an image asks the user first and reports how it goes: its deadline can be moved.
        deadline = self.running[merged.requirement_id] = Deadline(self.deadlines.probe)
        try:
            self._bind(provider)
            probe = await bounded(
                provider.async_probe(requirement=merged, policy=merged.policy), deadline, strays=self.strays
            )
            found = (
                probe
                if isinstance(probe, ExecutionResourceProbe)
                else Problem(
                    "probe_failed",
                    "",
                    f"its probe returned {type(probe).__name__} instead of an ExecutionResourceProbe",
                    _DOCTOR,
                )
            )
        except Overdue as overdue:
            found = Problem(
                "probe_failed", "deadline", f"its probe did not answer within {overdue.seconds:g} s", _DOCTOR
            )
        except ApprovalDenied as denied:
            found = Problem("approval", str(denied.details.get("gate", "")), describe_error(denied, configs), "")
        except ConfigurationError as error:
            found = Problem(
                "config_invalid", "config", describe_error(error, configs), "correct the candidate's config"
            )
        except Exception as error:
            found = Problem("probe_failed", "", "its probe failed: " + describe_error(error, configs), _DOCTOR)
        finally:
            self.running.pop(merged.requirement_id, None)
        probed = isinstance(found, ExecutionResourceProbe)
        self.events.emit(
            "execution_resource.probed",
            handle.requirement,
            handle_id=handle.handle_id,
            phase="provider_probe",
            provider_id=provider.provider_id,
            status=handle.status.value,
            details={
                "available": probed and found.available,  # type: ignore[union-attr]
                "cached": probed and found.cached,  # type: ignore[union-attr]
                "seconds": round(time.monotonic() - started, 6),
            },
        )
        return found

    async def launch(
        self, handle: Handle, provider: ExecutionResourceProvider, merged: ExecutionResourceRequirement
    ) -> CodeExecutionResource | Problem:
        """Open one candidate for *handle*; return its resource, or why it could not be opened."""
        configs = configs_of(handle.requirement)
        part = self._part(handle, provider)

        async def undo(resource: CodeExecutionResource) -> None:
            part.stray, part.resource = False, resource
            if reason := await self.dispose(part):
                self.quarantine(part, reason)
            else:
                self.book.drop(part)

        def ended() -> None:
            part.stray = False
            if part.resource is None:
                self.book.drop(part)

        deadline = self.running[merged.requirement_id] = Deadline(self.deadlines.ensure)
        try:
            return await bounded(
                provider.async_ensure(requirement=merged, policy=merged.policy, existing_handle=None),
                deadline,
                grace=self.deadlines.cleanup,
                undo=undo,
                strays=self.strays,
                strayed=lambda: self._stray(part),
                ended=ended,
            )
        except Overdue as overdue:
            problem = Problem("launch_failed", "deadline", f"it did not start within {overdue.seconds:g} s", _DOCTOR)
        except ApprovalDenied as denied:
            problem = Problem("approval", str(denied.details.get("gate", "")), describe_error(denied, configs), "")
        except ConfigurationError as error:
            problem = Problem(
                "config_invalid", "config", describe_error(error, configs), "correct the candidate's config"
            )
        except Exception as error:
            details = getattr(error, "details", None)
            remedy = details.get("remedy") if isinstance(details, Mapping) else None
            problem = Problem(
                "launch_failed", "", "it did not start: " + describe_error(error, configs), str(remedy or _DOCTOR)
            )
        finally:
            self.running.pop(merged.requirement_id, None)
        return problem

    def _stray(self, part: Handle) -> None:
        part.stray = True
        self.quarantine(part, "its provider neither finished nor stopped starting it within the deadlines")


def configs_of(requirement: ExecutionResourceRequirement) -> Iterable[Mapping[str, JSONValue]]:
    """Return every config whose values must not show up in a text about *requirement*."""
    return (requirement.config, *(candidate.config for candidate in requirement.provider_candidates))
