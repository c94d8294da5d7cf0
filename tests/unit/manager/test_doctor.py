"""The doctor with SYNTHETIC providers: which one cells run in, what is not even started, what is said of each."""

from __future__ import annotations

import sys

import pytest
from synthetic_manager_provider import (  # type: ignore[import-not-found]
    SyntheticProvider,
    isolation,
    trusted_local,
)

from agently_kernel.contract.isolation import SafetyClass
from agently_kernel.contract.resource import ExecutionResourcePolicy, ProviderCandidate
from agently_kernel.doctor import DoctorReport, conclusion, examine, render
from agently_kernel.registry import ProviderRegistry


def registry(*providers: SyntheticProvider) -> ProviderRegistry:
    found = ProviderRegistry(entry_points=False)
    for provider in providers:
        found.register(provider)
    return found


def chain(*names: str) -> tuple[ProviderCandidate, ...]:
    return tuple(ProviderCandidate(provider_id=name) for name in names)


def unsafe() -> SyntheticProvider:
    provider = SyntheticProvider("unsafe")
    provider.capability, provider.safety_class = trusted_local(), SafetyClass.TRUSTED_LOCAL
    return provider


def used(report: DoctorReport) -> str | None:
    return report.in_use.provider_id if report.in_use else None


async def test_the_one_in_use_is_the_one_that_the_selection_takes() -> None:
    absent, weak = SyntheticProvider("absent"), SyntheticProvider("weak", isolation=isolation(syscalls_restricted=None))
    full, later = SyntheticProvider("full"), SyntheticProvider("later")
    absent.available = False
    found = registry(absent, weak, full, later)
    report = await examine(found)
    assert used(report) == "full"
    assert "→  full " in render(report)
    assert render(report).endswith("Cells run in full, the first that is what isolation='required' asks for.")
    assert used(await examine(found, policy=ExecutionResourcePolicy(isolation="none"))) == "weak"
    preferred = ExecutionResourcePolicy(isolation="preferred")
    assert used(await examine(found, policy=preferred)) == "full"
    assert used(await examine(found, chain("absent", "weak"), preferred)) == "weak"
    report = await examine(found, chain("absent", "weak"), others=True)
    assert used(report) is None
    assert conclusion(report).endswith("Name one of these in c.AgentlyKernel.providers: full, later.")
    assert [item.in_chain for item in report.providers] == [True, True, False, False]
    sample = await examine(found, chain("later"), sample=True)
    assert (used(sample), conclusion(sample)) == (None, "Usable with isolation='required': later.")


async def test_a_provider_with_a_network_is_not_in_use_where_none_is_wanted() -> None:
    found = registry(SyntheticProvider("open", network="inherited"))
    assert used(await examine(found)) is None
    assert used(await examine(found, policy=ExecutionResourcePolicy(network_mode="enabled"))) == "open"


async def test_looking_for_the_one_in_use_goes_no_further() -> None:
    full, later = SyntheticProvider("full"), SyntheticProvider("later")
    report = await examine(registry(full, later), until_found=True)
    assert used(report) == "full" and later.log == []


async def test_what_isolates_nothing_is_not_started_by_the_doctor_either() -> None:
    provider = unsafe()
    report = await examine(registry(provider))
    assert provider.log == []
    text = render(report)
    assert "unsafe: it isolates nothing, and isolation is required; so it was not started" in text
    assert "trusted_local_authorized=True" in text
    policy = ExecutionResourcePolicy(isolation="none", unsafe_fallback=True)
    assert used(await examine(registry(provider), policy=policy)) == "unsafe" and provider.log == ["probe"]


async def test_what_is_made_for_another_system_is_left_out_unless_it_is_named() -> None:
    other, here = SyntheticProvider("other"), SyntheticProvider("here")
    other.platforms, here.platforms = ("plan9",), (sys.platform,)
    report = await examine(registry(other, here))
    assert [item.provider_id for item in report.providers] == ["here"] and other.log == []
    assert "For other operating systems: other." in render(report)
    named = await examine(registry(other, here), chain("other"), others=True)
    assert [item.provider_id for item in named.providers] == ["other", "here"]


@pytest.mark.parametrize("details", [False, True])
async def test_every_remark_stands_below_the_name_it_is_about(details: bool) -> None:
    providers = [SyntheticProvider(name) for name in ("one", "two", "three")]
    providers[1].available = False
    providers[2].probe_error = RuntimeError("broken")
    lines = render(await examine(registry(*providers)), details=details).splitlines()
    about, name = {}, ""
    for line in lines:
        if line and not line.startswith(" "):
            name = line.partition(":")[0]
        about.setdefault(name, []).append(line)
    assert any("remedy: apt install synthetic" in line for line in about["two"])
    assert any("remedy: report this to the provider's author" in line for line in about["three"])
    assert ("one" in about) == details
