"""What this machine can isolate: every provider probed, with what was observed, why not, and what would help."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import Mapping

from agently_kernel import __version__
from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.contract.isolation import REQUIRED_AXES, Evidence, IsolationAxis, LimitFact
from agently_kernel.contract.resource import (
    ExecutionResourcePolicy,
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
    ProviderCandidate,
)
from agently_kernel.redaction import describe_error
from agently_kernel.registry import ProviderRegistry

PROBE_SECONDS = 30.0


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


class DoctorReport(Frozen):
    """The whole report."""

    version: str
    python: str
    platform: str
    made_at: float
    providers: tuple[ProviderReport, ...]

    @property
    def usable(self) -> bool:
        """True when at least one provider meets ``isolation="required"``."""
        return any(provider.meets_required for provider in self.providers)


async def examine(
    registry: ProviderRegistry,
    candidates: tuple[ProviderCandidate, ...] = (),
    policy: ExecutionResourcePolicy | None = None,
) -> DoctorReport:
    """Probe the *candidates*, or all registered providers, in order, and return the report. Raises nothing."""
    chain = candidates or tuple(ProviderCandidate(provider_id=name) for name in registry.ids())
    reports = [await _examine_one(registry, candidate, policy or ExecutionResourcePolicy()) for candidate in chain]
    return DoctorReport(
        version=__version__, python=f"{platform.python_version()} ({sys.executable})", platform=platform.platform(),
        made_at=time.time(), providers=tuple(reports),
    )


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
        mechanism={str(key): str(value) for key, value in capability.mechanism.items()},
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
    head = ["provider", "usable", *_HEADS.values(), "no network", "class"]
    rows = [head]
    for item in report.providers:
        marks = [_MARK[item.axes.get(axis.value)] if item.available else "·" for axis in _HEADS]
        network = _MARK[item.network_blocked] if item.available else "·"
        usable = "yes" if item.meets_required else "weaker" if item.available else "no"
        rows.append([item.provider_id, usable, *marks, network, item.safety_class or "·"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [f"agently-kernel {report.version} · Python {report.python} · {report.platform}", ""]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", "✓ observed to hold   ✗ observed not to hold   ? could not be observed   · not available"]
    for item in report.providers:
        if item.reason or item.remedy:
            lines += ["", f"{item.provider_id}: {item.reason or 'not usable as it is'}"]
            lines += [f"    remedy: {item.remedy}"] if item.remedy else []
        failed = [e for e in item.evidence if details or e.value is not True]
        if failed and item.available and (details or item.safety_class != "trusted_local"):  # all fail there
            lines += ["", f"{item.provider_id}: observations"]
            lines += [f"    {_MARK[e.value]} {e.subject}: {e.check} ({e.source}) {e.detail}".rstrip() for e in failed]
        if details and item.available:
            lines += [f"    {key}: {value}" for key, value in item.mechanism.items()]
            lines += [f"    tool {tool}: {version}" for tool, version in item.toolchains.items()]
        lines += [f"    note: {note}" for note in item.diagnostics]
    lines.append("")
    lines.append(
        "Cells can run with isolation='required'." if report.usable else
        "No provider meets isolation='required': cells will not run until one of the remedies is applied."
    )
    return "\n".join(lines)
