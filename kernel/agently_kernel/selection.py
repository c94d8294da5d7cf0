"""Choosing a provider: ordered, deterministic, and explained candidate by candidate.

Here are the rules alone; :mod:`agently_kernel.opening` talks to providers. A value that could not be observed (None)
never satisfies a requirement, and no rule looks at a provider's name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agently_kernel.contract.base import JSONValue, freeze_mapping, thaw
from agently_kernel.contract.bundle import CodeExecutionToolchainRequirement, compare_versions, normalise_version
from agently_kernel.contract.errors import ExecutionResourceUnavailable
from agently_kernel.contract.isolation import IsolationAxis, IsolationFacts, SafetyClass, SandboxFacts, ToolchainFact
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.resource import (
    ExecutionResourcePolicy,
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
    ProviderCandidate,
    ProviderSelection,
    SkipReason,
)

_SHOWN_AXES: Mapping[IsolationAxis, str] = {
    IsolationAxis.PROCESS_CONTAINED: "process containment",
    IsolationAxis.HOST_FILESYSTEM_RESTRICTED: "host file system restriction",
    IsolationAxis.PRIVILEGE_ESCALATION_BLOCKED: "blocked privilege escalation",
    IsolationAxis.SYSCALLS_RESTRICTED: "system call restriction",
}


class Problem(NamedTuple):
    """Why a candidate does not fit: the fields of a SkipReason without provider and index."""

    code: Any
    subject: str
    message: str
    remedy: str


@dataclass(slots=True)
class Attempt:
    """A candidate that may be opened. ``full``: every axis wanted was probed true; ``fallback``: second best."""

    index: int
    candidate: ProviderCandidate
    requirement: ExecutionResourceRequirement
    provider: ExecutionResourceProvider
    probe: ExecutionResourceProbe
    full: bool
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class _Unprobed:
    """A candidate that says of itself that it isolates nothing: nothing of it runs before that was allowed."""

    index: int
    candidate: ProviderCandidate
    requirement: ExecutionResourceRequirement
    provider: ExecutionResourceProvider


def declares_no_isolation(provider: object) -> bool:
    """True when the provider itself says, before any probe, that it isolates nothing (``safety_class``).

    Such a word only ever makes the rules stricter; that a provider isolates is never taken from what it says.
    """
    return getattr(provider, "safety_class", None) is SafetyClass.TRUSTED_LOCAL


def candidates_of(requirement: ExecutionResourceRequirement, known: Iterable[str]) -> tuple[ProviderCandidate, ...]:
    """Return the chain: the explicit ``provider_id`` alone, else ``provider_candidates``, else all *known* in order."""
    if requirement.provider_id is not None:
        named = [c for c in requirement.provider_candidates if c.provider_id == requirement.provider_id]
        return tuple(named) or (ProviderCandidate(provider_id=requirement.provider_id),)
    return requirement.provider_candidates or tuple(ProviderCandidate(provider_id=name) for name in known)


def merge_candidate(
    requirement: ExecutionResourceRequirement, candidate: ProviderCandidate
) -> ExecutionResourceRequirement:
    """Return the requirement as this one candidate may see it: its own config over the common one, no other's."""
    config: Mapping[str, JSONValue] = freeze_mapping({**thaw(requirement.config), **thaw(candidate.config)})
    return requirement.model_copy(
        update={"provider_id": candidate.provider_id, "provider_candidates": (candidate,), "config": config}
    )


def is_full_match(policy: ExecutionResourcePolicy, isolation: IsolationFacts) -> bool:
    """True when every axis that the policy asks for was observed true."""
    return all(isolation.axis(axis) is True for axis in policy.required_axes)


def isolation_problem(policy: ExecutionResourcePolicy, isolation: IsolationFacts) -> Problem | None:
    """Return what is wrong with the axes that the policy asks for, or None."""
    bad = [axis for axis in policy.required_axes if isolation.axis(axis) is not True]
    if not bad:
        return None
    words = [
        f"{_SHOWN_AXES[a]} ({a.value}) {'could not be observed' if isolation.axis(a) is None else 'does not hold'}"
        for a in bad
    ]
    failed = [
        f"{e.check}: {e.detail or 'failed'}"
        for e in isolation.evidence
        if e.value is not True and e.subject in {a.value for a in bad}
    ]
    return Problem(
        "isolation",
        ", ".join(axis.value for axis in bad),
        "; ".join(words) + (f" [{'; '.join(failed[:4])}]" if failed else ""),
        "use a provider that restricts this, or set isolation='preferred' to accept less",
    )


def toolchain_problem(
    wanted: Iterable[CodeExecutionToolchainRequirement], observed: Mapping[str, ToolchainFact], *, partial: bool = False
) -> Problem | None:
    """Return the first constraint that the *observed* tools do not meet; *partial* passes over tools not listed."""
    for need in wanted:
        fact = observed.get(need.tool)
        if fact is None and partial:
            continue
        remedy = f"provide {need.describe()} where the code runs, or choose a provider that has it"
        if fact is None or not fact.available:
            return Problem(
                "toolchain", need.describe(), f"{need.tool} was not found there (wanted: {need.describe()})", remedy
            )
        limit = need.exact_version or need.minimum_version
        if limit is None:
            continue
        try:
            version = normalise_version(fact.version or "")
        except ValueError:
            return Problem("toolchain", need.describe(), f"the version of {need.tool} could not be observed", remedy)
        order = compare_versions(version, limit)
        if order < 0 or (need.exact_version is not None and order != 0):
            return Problem(
                "toolchain", need.describe(), f"{need.tool} is {version} (wanted: {need.describe()})", remedy
            )
    return None


def hard_problem(requirement: ExecutionResourceRequirement, probe: ExecutionResourceProbe) -> Problem | None:
    """Return why the probed provider cannot serve the requirement, whatever its isolation; None when it can."""
    if not probe.available:
        return Problem("unavailable", "", probe.reason or "it is not available", probe.remedy)
    if requirement.kind not in probe.supported_kinds:
        return Problem("kind", requirement.kind, f"it does not provide resources of the kind {requirement.kind}", "")
    capability = probe.capability
    if capability is None:
        return Problem(
            "probe_failed", "capability", "its probe reported no capability", "repair or update the provider"
        )
    if requirement.language not in capability.languages:
        return Problem(
            "language",
            requirement.language,
            f"it does not run {requirement.language}",
            f"choose a provider that runs {requirement.language}",
        )
    found = toolchain_problem(requirement.toolchains, capability.toolchains)
    if found is not None:
        return found
    modes = _access_modes(requirement)
    for mode in sorted(modes):
        if mode not in capability.workspace_access_modes:
            return Problem(
                "workspace_access",
                mode,
                f"it has no {mode} access to the workspace",
                f"ask for one of: {', '.join(capability.workspace_access_modes)}",
            )
    trusted = capability.safety_class is SafetyClass.TRUSTED_LOCAL
    if trusted:
        return no_isolation_problem(requirement)
    network = requirement.policy.network_mode
    if network != "enabled" and (capability.network != "none" or capability.isolation.network_blocked is False):
        return _network_problem(capability.network)
    if network == "hosts" and "hosts" not in capability.network_modes:
        return Problem(
            "network",
            "hosts",
            "it cannot open the network for single hosts",
            "use a provider that can (bubblewrap, runsc, docker, gvisor), or leave --network out",
        )
    return None


def _access_modes(requirement: ExecutionResourceRequirement) -> set[Any]:
    """Return every way in which the requirement wants files of the host."""
    grant = requirement.task_workspace_access_grant
    modes = {requirement.workspace_access_mode}
    return modes if grant is None else modes | {grant.mode, *(granted.mode for granted in grant.inputs)}


def no_isolation_problem(requirement: ExecutionResourceRequirement) -> Problem | None:
    """Return why something that isolates nothing cannot serve the requirement, None when it may be asked for."""
    policy = requirement.policy
    if policy.isolation == "required":
        return Problem(
            "trusted_local_refused",
            "isolation",
            "it isolates nothing, and isolation is required",
            "install an isolating provider; `agently-kernel doctor` says how",
        )
    if not policy.unsafe_fallback:
        return Problem(
            "trusted_local_refused",
            "unsafe_fallback",
            "it isolates nothing, and unsafe_fallback is not set",
            "set unsafe_fallback=True with isolation='preferred' or 'none' to accept running without isolation",
        )
    if _access_modes(requirement) != {"snapshot"}:
        return Problem(
            "workspace_access",
            "snapshot",
            "without isolation only snapshot grants are given",
            "grant inputs as snapshot",
        )
    return None


def _network_problem(network: str) -> Problem:
    return Problem(
        "network",
        network,
        f"the network is disabled by policy, but its network is {network}",
        "use a provider that blocks the network, or set network_mode='enabled'",
    )


def reprobe_problem(attempt: Attempt, facts: SandboxFacts, *, demand_axes: bool) -> Problem | None:
    """Compare what the opened sandbox was observed to be with what the policy needs; None when it may be used.

    *demand_axes* asks for every required axis (always under ``required``; under ``preferred`` for a full match).
    """
    policy = attempt.requirement.policy
    if facts.provider_id != attempt.candidate.provider_id:
        return Problem(
            "reprobe_changed",
            "provider_id",
            f"the opened resource calls itself {facts.provider_id}",
            "repair the provider",
        )
    capability = attempt.probe.capability
    trusted = facts.safety_class is SafetyClass.TRUSTED_LOCAL
    if trusted and (capability is None or capability.safety_class is not SafetyClass.TRUSTED_LOCAL):
        return Problem(
            "reprobe_changed",
            "safety_class",
            "the opened resource isolates nothing, unlike its probe",
            "repair the provider",
        )
    if demand_axes and (found := isolation_problem(policy, facts.isolation)) is not None:
        return found._replace(code="reprobe_changed", message="in the opened sandbox, " + found.message)
    if not trusted and policy.network_mode != "enabled":
        blocked = facts.isolation.network_blocked
        wanted = "none" if policy.network_mode == "disabled" else "filtered"
        if facts.network != wanted or blocked is False or (blocked is None and policy.isolation == "required"):
            seen = (
                "could not be observed to be blocked"
                if facts.network in ("none", "unknown") and blocked is not False
                else f"is {facts.network}"
            )
            return _network_problem(facts.network)._replace(
                code="reprobe_changed", subject="network", message=f"in the opened sandbox, the network {seen}"
            )
    in_force = {limit.name for limit in facts.limits if limit.mechanism != "none" and limit.observed is not False}
    missing = [name for name in policy.required_limits if name not in in_force]
    if missing:
        return Problem(
            "limits",
            ", ".join(missing),
            f"no mechanism holds the required limit of {', '.join(missing)}",
            "take the limit out of required_limits, or use a provider or host (cgroups) that can hold it",
        )
    tools = toolchain_problem(attempt.requirement.toolchains, facts.toolchains, partial=True)
    return None if tools is None else tools._replace(message="in the opened sandbox, " + tools.message)


Lookup = Callable[[str], ExecutionResourceProvider | None]
ProbeProvider = Callable[
    [ExecutionResourceProvider, ExecutionResourceRequirement], Awaitable[ExecutionResourceProbe | Problem]
]
Authorise = Callable[[ExecutionResourceRequirement], Awaitable[Problem | None]]


@dataclass(slots=True)
class SelectionChain:
    """Walks the candidates of one requirement and keeps why each was not taken.

    ``probe`` observes one provider; ``authorise`` decides on running without isolation.
    """

    requirement: ExecutionResourceRequirement
    known: Callable[[], Iterable[str]]
    lookup: Lookup
    probe: ProbeProvider
    authorise: Authorise
    skipped: list[SkipReason] = field(default_factory=list)
    _later: list[Attempt | _Unprobed] = field(default_factory=list)

    def candidates(self) -> Iterable[ProviderCandidate]:
        """Return the chain; installed packages are looked for only if nothing is named, as far as it is walked."""
        named = candidates_of(self.requirement, ())
        return named or (ProviderCandidate(provider_id=name) for name in self.known())

    async def attempts(self) -> AsyncIterator[Attempt]:
        """Yield what may be opened, in order: full matches first under ``preferred``, then its eligible fallbacks."""
        policy = self.requirement.policy
        for index, candidate in enumerate(self.candidates()):
            attempt = await self._consider(index, candidate)
            if attempt is None:
                continue
            if attempt.full or policy.isolation == "none":
                yield attempt
                continue
            self._later.append(attempt)
        for waiting in sorted(self._later, key=lambda item: item.index):
            unsafe = isinstance(waiting, _Unprobed) or _is_unsafe(waiting)
            found = await self._authorised(waiting.requirement) if unsafe else None
            if found is not None:
                self._record(waiting.index, waiting.candidate, found)
                continue
            second = await self._probed(waiting) if isinstance(waiting, _Unprobed) else waiting
            if second is not None:
                second.fallback = True
                yield second

    def skip(self, attempt: Attempt, problem: Problem) -> None:
        """Record why *attempt* was not taken."""
        self._record(attempt.index, attempt.candidate, problem)

    def demote(self, attempt: Attempt) -> None:
        """Under ``preferred``: what was opened as a full match and is none may be tried again as a fallback."""
        attempt.full = False
        self._later.append(attempt)

    def selection(self, taken: Attempt | None) -> ProviderSelection:
        """Return the explained choice."""
        skipped = list(self.skipped)
        if taken is not None and not taken.fallback:
            for passed in self._later:
                isolation = IsolationFacts() if isinstance(passed, _Unprobed) else _isolation(passed)
                if (problem := isolation_problem(self.requirement.policy, isolation)) is not None:
                    if isinstance(passed, _Unprobed):
                        problem = problem._replace(message="it isolates nothing, and another provider does")
                    skipped.append(_skip_reason(passed.index, passed.candidate, problem))
        skipped.sort(key=lambda reason: reason.index)
        capability = taken.probe.capability if taken else None
        return ProviderSelection(
            index=taken.index if taken else None,
            provider_id=taken.candidate.provider_id if taken else None,
            isolation=self.requirement.policy.isolation,
            preference_fallback=taken.fallback if taken else False,
            unsafe=capability is not None and capability.safety_class is SafetyClass.TRUSTED_LOCAL,
            skipped=tuple(skipped),
            probe=taken.probe if taken else None,
        )

    def unavailable(self) -> ExecutionResourceUnavailable:
        """Return the error for a chain without an eligible candidate; it lists each one with reason and remedy."""
        selection = self.selection(None)
        lines = [
            f"No provider can run this {self.requirement.language} code with isolation={selection.isolation!r}; "
            "nothing was run."
        ]
        for reason in selection.skipped:
            lines.append(f"  {reason.index + 1}. {reason.provider_id}: {reason.message.rstrip('.')}.")
            if reason.remedy:
                lines.append(f"     To fix it: {reason.remedy.rstrip('.')}.")
        if not selection.skipped:
            lines.append(
                "  No provider is configured or installed. To fix it: install one, or list one in providers=[…]."
            )
        return ExecutionResourceUnavailable("\n".join(lines), details={"selection": selection.model_dump(mode="json")})

    async def _consider(self, index: int, candidate: ProviderCandidate) -> Attempt | None:
        policy = self.requirement.policy
        merged = merge_candidate(self.requirement, candidate)
        try:
            provider = self.lookup(candidate.provider_id)
        except ExecutionResourceUnavailable as error:
            self._record(index, candidate, Problem("unavailable", "", str(error), str(error.details.get("remedy", ""))))
            return None
        if provider is None:
            known = ", ".join(self.known()) or "none"
            self._record(
                index,
                candidate,
                Problem(
                    "unregistered",
                    candidate.provider_id,
                    "no provider of this id is installed or registered",
                    f"use one of: {known}; or install the package that brings it",
                ),
            )
            return None
        unprobed = _Unprobed(index, candidate, merged, provider)
        declared = declares_no_isolation(provider)
        found = no_isolation_problem(merged) if declared else None
        if found is None and declared and policy.isolation == "preferred":
            self._later.append(unprobed)
            return None
        if found is None and declared:
            found = await self._authorised(merged)
        attempt = await self._probed(unprobed) if found is None else None
        if attempt is not None:
            if policy.isolation == "required":
                found = isolation_problem(policy, _isolation(attempt))
            elif policy.isolation == "none" and _is_unsafe(attempt) and not declared:
                found = await self._authorised(merged)
        if found is not None:
            self._record(index, candidate, found)
            return None
        return attempt

    async def _probed(self, item: _Unprobed) -> Attempt | None:
        """Probe one candidate; None when it cannot serve the requirement, which is recorded then."""
        probe = await self.probe(item.provider, item.requirement)
        if isinstance(probe, Problem):
            self._record(item.index, item.candidate, probe)
            return None
        if (found := hard_problem(item.requirement, probe)) is not None:
            self._record(item.index, item.candidate, found)
            return None
        attempt = Attempt(item.index, item.candidate, item.requirement, item.provider, probe, False)
        attempt.full = is_full_match(self.requirement.policy, _isolation(attempt)) and not _is_unsafe(attempt)
        return attempt

    async def _authorised(self, requirement: ExecutionResourceRequirement) -> Problem | None:
        """Ask whether code may run without isolation; None when it may."""
        return None if requirement.policy.trusted_local_authorized else await self.authorise(requirement)

    def _record(self, index: int, candidate: ProviderCandidate, problem: Problem) -> None:
        self.skipped.append(_skip_reason(index, candidate, problem))


def _skip_reason(index: int, candidate: ProviderCandidate, problem: Problem) -> SkipReason:
    return SkipReason(
        provider_id=candidate.provider_id,
        index=index,
        code=problem.code,
        subject=problem.subject,
        message=problem.message,
        remedy=problem.remedy,
    )


def _isolation(attempt: Attempt) -> IsolationFacts:
    return attempt.probe.capability.isolation if attempt.probe.capability else IsolationFacts()


def _is_unsafe(attempt: Attempt) -> bool:
    capability = attempt.probe.capability
    return capability is not None and capability.safety_class is SafetyClass.TRUSTED_LOCAL
