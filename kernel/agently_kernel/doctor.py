"""What this machine can isolate: every provider probed, with what was observed, why not, and what would help."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import Mapping, Sequence

from agently_kernel import __version__
from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.contract.isolation import REQUIRED_AXES, Evidence, IsolationAxis, LimitFact, SafetyClass
from agently_kernel.contract.resource import (
    ExecutionResourcePolicy,
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
    ProviderCandidate,
)
from agently_kernel.contract.words import in_words
from agently_kernel.redaction import describe_error
from agently_kernel.registry import ProviderRegistry
from agently_kernel.selection import declares_no_isolation, no_isolation_problem
from agently_kernel.settings import refusal

PROBE_SECONDS = 30.0
ON_REQUEST = (
    "none is needed; only if code may do everything that you can do, set isolation='preferred' (or 'none'), "
    "unsafe_fallback=True and trusted_local_authorized=True"
)


class ProviderReport(Frozen):
    """One provider. ``axes`` and ``network_blocked`` are true, false, or null for "could not be observed"."""

    provider_id: str
    available: bool
    meets_required: bool
    safety_class: str = ""
    axes: Mapping[str, bool | None] = {}
    network_blocked: bool | None = None
    network: str = ""
    toolchains: Mapping[str, str] = {}
    mechanism: Mapping[str, str] = {}
    limits: tuple[LimitFact, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    remedy: str = ""
    diagnostics: tuple[str, ...] = ()
    seconds: float = 0.0
    in_chain: bool = True
    in_use: bool = False
    """Cells run in this one: the first of the chain that is what the policy asks for."""


class DoctorReport(Frozen):
    """The whole report."""

    version: str
    python: str
    platform: str
    made_at: float
    providers: tuple[ProviderReport, ...]
    isolation: str = "required"
    elsewhere: tuple[str, ...] = ()
    """Ids of providers that are for other operating systems, which were not looked at."""
    sample: bool = False
    """These are not all that cells could run in."""
    faults: tuple[str, ...] = ()
    """What is wrong with the configuration, in sentences. No cell is run then, whatever the providers can do."""

    @property
    def usable(self) -> bool:
        """True when at least one provider meets ``isolation="required"``."""
        return any(provider.meets_required for provider in self.providers)

    @property
    def in_use(self) -> ProviderReport | None:
        """The provider that cells run in, None when there is none or the configuration has faults."""
        return next((provider for provider in self.providers if provider.in_use), None)


async def examine(
    registry: ProviderRegistry,
    candidates: tuple[ProviderCandidate, ...] = (),
    policy: ExecutionResourcePolicy | None = None,
    *,
    others: bool = False,
    until_found: bool = False,
    sample: bool = False,
    faults: Sequence[str] = (),
) -> DoctorReport:
    """Probe the *candidates*, or all registered providers, in order, and return the report. Raises nothing.

    *others*: also the registered ones that are no candidates. *until_found*: stop at the one that cells run in.
    *sample*: the candidates are not the chain that cells use. *faults* of the configuration: none is in use
    then. What is made for another operating system is left out unless it is a candidate.
    """
    policy = policy or ExecutionResourcePolicy()
    named = [candidate.provider_id for candidate in candidates]
    foreign = [name for name in registry.ids() if name not in named and not _is_for_here(registry, name)]
    chain = candidates or tuple(ProviderCandidate(provider_id=n) for n in registry.ids() if n not in foreign)
    rest = [name for name in registry.ids() if others and named and name not in (*named, *foreign)]
    reports: list[ProviderReport] = []
    found = False
    for candidate in (*chain, *(ProviderCandidate(provider_id=name) for name in rest)):
        report = await _examine_one(registry, candidate, policy)
        in_chain = candidate.provider_id not in rest
        used = in_chain and not sample and not found and _serves(report, policy)
        found = found or used
        reports.append(report.model_copy(update={"in_chain": in_chain, "in_use": used}))
        if found and until_found:
            break
    second = _second_best(reports) if policy.isolation == "preferred" and not sample else None
    if second is not None:
        reports = [r.model_copy(update={"in_use": r.provider_id == second.provider_id}) for r in reports]
    if faults:
        reports = [report.model_copy(update={"in_use": False}) for report in reports]
    return DoctorReport(
        version=__version__, python=f"{platform.python_version()} ({sys.executable})", platform=platform.platform(),
        made_at=time.time(), providers=tuple(reports), isolation=policy.isolation,
        elsewhere=() if sample else tuple(foreign), sample=sample, faults=tuple(faults),
    )


def _is_for_here(registry: ProviderRegistry, name: str) -> bool:
    """False for a provider that names the systems it is made for (``platforms``), and this is none of them."""
    try:
        platforms = getattr(registry.get(name), "platforms", None)
    except AgentlyKernelError:
        return True
    return platforms is None or sys.platform in platforms


def _serves(report: ProviderReport, policy: ExecutionResourcePolicy) -> bool:
    """True when cells would run in a provider with this report, under everything but ``preferred``'s second choice."""
    trusted = report.safety_class == SafetyClass.TRUSTED_LOCAL.value
    offline = report.network == "none" and report.network_blocked is not False
    if not report.available or not (trusted or offline or policy.network_mode == "enabled"):
        return False
    return policy.isolation == "none" or (report.meets_required and not trusted)


def _second_best(reports: list[ProviderReport]) -> ProviderReport | None:
    """Return what ``preferred`` falls back to when nothing of the chain isolates as wished."""
    if any(report.in_use for report in reports):
        return None
    return next((report for report in reports if report.in_chain and report.available), None)


async def _examine_one(
    registry: ProviderRegistry, candidate: ProviderCandidate, policy: ExecutionResourcePolicy
) -> ProviderReport:
    name, started = candidate.provider_id, time.monotonic()

    def failed(reason: str, remedy: str = "") -> ProviderReport:
        return ProviderReport(
            provider_id=name, available=False, meets_required=False, reason=reason, remedy=remedy,
            seconds=time.monotonic() - started,
        )

    try:
        provider = registry.get(name)
        if provider is None:
            return failed("no provider of this name is installed", f"use one of {', '.join(registry.ids()) or 'none'}")
        requirement = ExecutionResourceRequirement(
            provider_id=name, provider_candidates=(candidate,), config=candidate.config, policy=policy
        )
        refused = no_isolation_problem(requirement) if declares_no_isolation(provider) else None
        if refused is not None:  # nothing of it runs, not even to look at it
            reason = f"{refused.message}; so it was not started"
            return failed(reason, ON_REQUEST).model_copy(update={"safety_class": SafetyClass.TRUSTED_LOCAL.value})
        probe = await asyncio.wait_for(provider.async_probe(requirement=requirement, policy=policy), PROBE_SECONDS)
    except asyncio.TimeoutError:
        return failed(f"its probe did not answer within {PROBE_SECONDS:g} s", "look at what the machine is busy with")
    except AgentlyKernelError as error:
        return failed(describe_error(error, [candidate.config]), str(error.details.get("remedy") or ""))
    except Exception as error:
        said = describe_error(error, [candidate.config])
        return failed(f"its probe failed: {said}", "report this to the provider's author")
    return _report(probe, policy)


def _report(probe: ExecutionResourceProbe, policy: ExecutionResourcePolicy) -> ProviderReport:
    capability = probe.capability
    if capability is None:
        return ProviderReport(
            provider_id=probe.provider_id, available=False, meets_required=False, seconds=probe.seconds,
            reason=probe.reason or "it reported no capability", remedy=probe.remedy, diagnostics=probe.diagnostics,
        )
    isolation = capability.isolation
    return ProviderReport(
        provider_id=probe.provider_id,
        available=probe.available,
        meets_required=probe.available and all(isolation.axis(axis) is True for axis in policy.required_axes),
        safety_class=capability.safety_class.value,
        axes={axis.value: isolation.axis(axis) for axis in REQUIRED_AXES},
        network_blocked=isolation.network_blocked,
        network=capability.network,
        toolchains={
            tool: (fact.version or "present") if fact.available else "not there"
            for tool, fact in capability.toolchains.items()
        },
        mechanism={str(key): in_words(value) for key, value in capability.mechanism.items()},
        evidence=isolation.evidence,
        reason=probe.reason, remedy=probe.remedy, diagnostics=probe.diagnostics, seconds=probe.seconds,
    )


_MARK = {True: "✓", False: "✗", None: "?"}
_HEADS = {
    IsolationAxis.PROCESS_CONTAINED: "processes",
    IsolationAxis.HOST_FILESYSTEM_RESTRICTED: "files",
    IsolationAxis.PRIVILEGE_ESCALATION_BLOCKED: "privileges",
    IsolationAxis.SYSCALLS_RESTRICTED: "syscalls",
}


def render(report: DoctorReport, *, details: bool = False) -> str:
    """Return the report as a table for people; with *details* every observation too."""
    head = ["", "provider", "usable", *_HEADS.values(), "no network", "class"]
    rows = [head]
    for item in report.providers:
        marks = [_MARK[item.axes.get(axis.value)] if item.available else "·" for axis in _HEADS]
        network = _MARK[item.network_blocked] if item.available else "·"
        usable = "yes" if item.meets_required else "weaker" if item.available else "no"
        used = "→" if item.in_use else "" if item.in_chain else "-"
        rows.append([used, item.provider_id, usable, *marks, network, item.safety_class or "·"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [f"agently-kernel {report.version} · Python {report.python} · {report.platform}", ""]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", "✓ observed to hold   ✗ observed not to hold   ? could not be observed   · not available"]
    if not report.sample:
        in_use = "" if report.faults else "→ cells run in this one   "
        lines.append(f"{in_use}- installed, but not in your chain")
    for item in report.providers:
        lines += _about(item, details)
    if report.elsewhere:
        lines += ["", f"For other operating systems: {', '.join(report.elsewhere)}."]
    return "\n".join([*lines, "", conclusion(report)])


def _about(item: ProviderReport, details: bool) -> list[str]:
    """Return what is to be said of one provider below the table, under its name; nothing when there is nothing."""
    lines = [f"    remedy: {item.remedy}"] if item.remedy else []
    failed = [e for e in item.evidence if details or e.value is not True]
    trusted = item.safety_class == SafetyClass.TRUSTED_LOCAL.value  # every observation fails there
    if failed and item.available and (details or not trusted):
        lines.append("    observations:")
        lines += [f"      {_MARK[e.value]} {e.subject}: {e.check} ({e.source}) {e.detail}".rstrip() for e in failed]
    if details and item.available:
        lines += [f"    {key}: {value}" for key, value in item.mechanism.items()]
        lines += [f"    tool {tool}: {version}" for tool, version in item.toolchains.items()]
    lines += [f"    note: {note}" for note in item.diagnostics]
    if not lines and not item.reason:
        return []
    said = item.reason or ("available" if item.available else "not usable as it is")
    return ["", f"{item.provider_id}: {said}", *lines]


def conclusion(report: DoctorReport) -> str:
    """Return in a sentence where cells run, or that they do not."""
    used = report.in_use
    if report.faults:
        return refusal(report.faults)
    if used is not None:
        return f"Cells run in {used.provider_id}, the first that is what isolation={report.isolation!r} asks for."
    names = ", ".join(provider.provider_id for provider in report.providers if provider.meets_required)
    if report.sample:
        return f"Usable with isolation={report.isolation!r}: {names or 'none of these'}."
    if report.usable:
        return (
            f"Nothing in your chain can be used with isolation={report.isolation!r}: cells will not run. "
            f"Name one of these in c.AgentlyKernel.providers: {names}."
        )
    return (
        f"No provider meets isolation={report.isolation!r}: cells will not run until one of the remedies is applied."
    )
