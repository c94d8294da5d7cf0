"""The ordered, explained selection with SYNTHETIC providers: every rule, every reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_manager_provider import (  # type: ignore[import-not-found]
    AXES,
    SyntheticProvider,
    capability,
    isolation,
    trusted_local,
    wanted,
)

from agently_kernel.contract.approval import ApprovalOutcome
from agently_kernel.contract.bundle import CodeExecutionToolchainRequirement
from agently_kernel.contract.errors import ConfigurationError, ExecutionResourceUnavailable, SandboxLaunchError
from agently_kernel.contract.isolation import IsolationAxis, IsolationFacts, LimitFact, SafetyClass, ToolchainFact
from agently_kernel.contract.resource import ExecutionResourcePolicy, ProviderCandidate
from agently_kernel.contract.workspace import GrantedInput, TaskWorkspaceAccessGrant
from agently_kernel.selection import is_full_match, isolation_problem, toolchain_problem


def unsafe(provider_id: str = "unsafe") -> SyntheticProvider:
    provider = SyntheticProvider(provider_id)
    provider.capability = trusted_local()
    return provider


def tool(text: str) -> CodeExecutionToolchainRequirement:
    return CodeExecutionToolchainRequirement.parse(text)


async def skipped(manager: Any, **fields: Any) -> list[tuple[str, str, str]]:
    """Ensure something that no provider can give and return (provider, code, subject) of each skip."""
    with pytest.raises(ExecutionResourceUnavailable) as caught:
        await manager.async_ensure(wanted(**fields))
    reasons = caught.value.details["selection"]["skipped"]
    for reason in reasons:
        assert reason["message"] in str(caught.value)
        assert reason["provider_id"] in str(caught.value) and reason["remedy"].rstrip(".") in str(caught.value)
    return [(r["provider_id"], r["code"], r["subject"]) for r in reasons]


async def test_the_first_eligible_of_the_registered_order_is_taken(make):
    first, second = SyntheticProvider("zeta"), SyntheticProvider("alpha")
    handle = await make(first, second).async_ensure(wanted())
    assert (handle.provider_id, handle.selection.index, handle.selection.skipped) == ("zeta", 0, ())
    assert second.log == []


async def test_an_explicit_id_is_the_only_candidate_and_keeps_its_config(make):
    first, second = SyntheticProvider("first"), SyntheticProvider("second")
    manager = make(first, second)
    candidates = (ProviderCandidate(provider_id="second", config={"p": 1}), ProviderCandidate(provider_id="first"))
    handle = await manager.async_ensure(wanted(provider_id="second", provider_candidates=candidates))
    assert handle.provider_id == "second" and second.configs == [{"p": 1}, {"p": 1}] and first.log == []
    assert await skipped(manager, provider_id="third") == [("third", "unregistered", "third")]


async def test_a_candidates_config_reaches_no_other_candidate(make):
    first, second = SyntheticProvider("first"), SyntheticProvider("second")
    first.available = False
    handle = await make(first, second).async_ensure(
        wanted(
            config={"common": 1, "level": "low"},
            provider_candidates=[{"provider_id": "first", "config": {"only_first": True, "level": "high"}}, "second"],
        )
    )
    assert handle.provider_id == "second" and handle.selection.index == 1
    assert first.configs == [{"common": 1, "level": "high", "only_first": True}]
    assert second.configs == [{"common": 1, "level": "low"}] * 2
    assert [(s.provider_id, s.code, s.message, s.remedy) for s in handle.selection.skipped] == [
        ("first", "unavailable", "the synthetic tool is missing", "apt install synthetic")
    ]


@pytest.mark.parametrize(
    ("change", "fields", "code", "subject"),
    [
        ({"languages": ("node",)}, {}, "language", "python"),
        ({}, {"toolchains": (tool("python>=3.12"),)}, "toolchain", "python>=3.12"),
        ({}, {"toolchains": (tool("python==3.11"),)}, "toolchain", "python==3.11"),
        ({}, {"toolchains": (tool("node"),)}, "toolchain", "node"),
        ({}, {"toolchains": (tool("ruby"),)}, "toolchain", "ruby"),
        ({}, {"toolchains": (tool("bash>=5"),)}, "toolchain", "bash>=5"),
        ({}, {"workspace_access_mode": "read_write"}, "workspace_access", "read_write"),
        ({}, {"kind": "browser"}, "kind", "browser"),
        ({"isolation": isolation(syscalls_restricted=None)}, {}, "isolation", "syscalls_restricted"),
        (
            {"isolation": isolation(process_contained=False, privilege_escalation_blocked=None)},
            {},
            "isolation",
            "process_contained, privilege_escalation_blocked",
        ),
        ({"isolation": IsolationFacts()}, {}, "isolation", ", ".join(AXES)),
        ({"network": "inherited"}, {}, "network", "inherited"),
        ({"isolation": isolation(network=False)}, {}, "network", "none"),
    ],
)
async def test_each_constraint_has_its_reason(make, change, fields, code, subject):
    provider = SyntheticProvider(**change)
    assert await skipped(make(provider), **fields) == [("synthetic", code, subject)]
    assert "ensure" not in provider.log


async def test_constraints_that_hold_are_no_obstacle(make):
    provider = SyntheticProvider()
    handle = await make(provider).async_ensure(
        wanted(toolchains=(tool("python>=3.11"), tool("go==1.22.1"), tool("bash")), language="go")
    )
    assert handle.provider_id == "synthetic"


async def test_a_live_input_needs_its_access_mode(make):
    grant = TaskWorkspaceAccessGrant(
        grant_id="g",
        task_workspace_id="w",
        execution_id="e",
        mode="read_only",
        roots=(),
        issued_at=0.0,
        inputs=(GrantedInput(name="data", host_path="/data", mode="read_only"),),
    )
    assert await skipped(make(SyntheticProvider()), task_workspace_access_grant=grant) == [
        ("synthetic", "workspace_access", "read_only")
    ]


HOSTS = ExecutionResourcePolicy(network_mode="hosts", network_hosts=("example.org",))


async def test_single_hosts_need_a_provider_that_can_open_them(make):
    assert await skipped(make(SyntheticProvider()), policy=HOSTS) == [("synthetic", "network", "hosts")]
    opened = SyntheticProvider(network="inherited", network_modes=("disabled", "hosts"))
    assert await skipped(make(opened), policy=HOSTS) == [("synthetic", "network", "inherited")]


@pytest.mark.parametrize("network", ["none", "inherited", "unknown"])
async def test_a_sandbox_that_is_not_seen_to_be_filtered_is_not_used_for_single_hosts(make, network):
    provider = SyntheticProvider(network_modes=("disabled", "hosts"))
    provider.facts_changes = {"network": network}
    assert await skipped(make(provider), policy=HOSTS) == [("synthetic", "reprobe_changed", "network")]
    provider.facts_changes = {"network": "filtered"}
    assert (await make(provider).async_ensure(wanted(policy=HOSTS))).facts.network == "filtered"


async def test_an_enabled_network_is_no_constraint(make):
    handle = await make(SyntheticProvider(network="inherited", isolation=isolation(network=False))).async_ensure(
        wanted(policy=ExecutionResourcePolicy(network_mode="enabled"))
    )
    assert handle.facts.network == "inherited"


async def test_probes_that_raise_hang_or_answer_nonsense_are_reasons(make):
    raising, hanging, odd, config, silent = (
        SyntheticProvider(n) for n in ("raising", "hanging", "odd", "config", "silent")
    )
    raising.probe_error = OSError("no such binary")
    hanging.before_probe = lambda: asyncio.sleep(60)

    async def nonsense(**_: object) -> str:
        return "isolated"

    odd.async_probe = nonsense
    config.probe_error = ConfigurationError("image: must be text")
    silent.capability = None
    got = await skipped(make(raising, hanging, odd, config, silent))
    assert got == [
        ("raising", "probe_failed", ""),
        ("hanging", "probe_failed", "deadline"),
        ("odd", "probe_failed", ""),
        ("config", "config_invalid", "config"),
        ("silent", "probe_failed", "capability"),
    ]


async def test_a_launch_that_fails_goes_on_to_the_next_candidate_and_shows_it(make):
    first, second = SyntheticProvider("first"), SyntheticProvider("second")
    first.ensure_error = SandboxLaunchError(
        "no user namespaces", details={"remedy": "sysctl user.max_user_namespaces=1"}
    )
    handle = await make(first, second).async_ensure(wanted())
    assert handle.provider_id == "second"
    (reason,) = handle.selection.skipped
    assert (reason.code, reason.message, reason.remedy) == (
        "launch_failed",
        "it did not start: no user namespaces",
        "sysctl user.max_user_namespaces=1",
    )


async def test_without_any_provider_the_error_says_so(make):
    with pytest.raises(ExecutionResourceUnavailable, match="No provider is configured or installed"):
        await make().async_ensure(wanted())


# -- preferred, none, and running without isolation

PREFERRED = ExecutionResourcePolicy(isolation="preferred")


async def test_preferred_takes_a_later_full_match_before_an_earlier_partial_one(make):
    partial, full = (
        SyntheticProvider("partial", isolation=isolation(syscalls_restricted=False)),
        SyntheticProvider("full"),
    )
    handle = await make(partial, full).async_ensure(wanted(policy=PREFERRED))
    selection = handle.selection
    assert (selection.provider_id, selection.index, selection.preference_fallback, selection.unsafe) == (
        "full",
        1,
        False,
        False,
    )
    assert [(s.provider_id, s.code, s.subject) for s in selection.skipped] == [
        ("partial", "isolation", "syscalls_restricted")
    ]
    assert "ensure" not in partial.log


async def test_preferred_falls_back_in_order_and_records_it(make):
    one = SyntheticProvider("one", isolation=isolation(process_contained=None), safety_class=SafetyClass.CONSTRAINED)
    two = SyntheticProvider("two", isolation=isolation(process_contained=False))
    handle = await make(one, two).async_ensure(wanted(policy=PREFERRED))
    assert (handle.provider_id, handle.selection.preference_fallback, handle.selection.unsafe) == ("one", True, False)
    assert two.opened == []


async def test_preferred_demotes_what_turns_out_to_be_less_than_probed(make):
    provider = SyntheticProvider()
    provider.facts_isolation = isolation(syscalls_restricted=None)
    handle = await make(provider).async_ensure(wanted(policy=PREFERRED))
    assert handle.selection.preference_fallback is True
    assert [s.code for s in handle.selection.skipped] == ["reprobe_changed"]
    assert len(provider.opened) == 2 and len(provider.live) == 1


async def test_none_takes_the_first_in_order(make):
    partial, full = (
        SyntheticProvider("partial", isolation=isolation(syscalls_restricted=False)),
        SyntheticProvider("full"),
    )
    handle = await make(partial, full).async_ensure(wanted(policy=ExecutionResourcePolicy(isolation="none")))
    assert (handle.provider_id, handle.selection.preference_fallback) == ("partial", False)


@pytest.mark.parametrize("mode", ["required", "preferred", "none"])
@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("authorised", [False, True])
async def test_trusted_local_needs_the_word_and_the_authorisation(make, mode, fallback, authorised):
    if mode == "required" and fallback:
        with pytest.raises(ValueError, match="needs isolation="):
            ExecutionResourcePolicy(isolation=mode, unsafe_fallback=fallback)
        return
    policy = ExecutionResourcePolicy(
        isolation=mode, unsafe_fallback=fallback, trusted_local_authorized=authorised, auto_allow=True
    )
    manager = make(unsafe())
    if mode != "required" and fallback and authorised:
        handle = await manager.async_ensure(wanted(policy=policy))
        assert handle.selection.unsafe is True and handle.selection.preference_fallback is (mode == "preferred")
        assert handle.facts.isolation.as_mapping() == dict.fromkeys(AXES, False)
    elif fallback and mode != "required":
        assert await skipped(manager, policy=policy) == [("unsafe", "approval", "trusted_local")]
    else:
        subject = "isolation" if mode == "required" else "unsafe_fallback"
        assert await skipped(manager, policy=policy) == [("unsafe", "trusted_local_refused", subject)]


async def test_required_refuses_trusted_local_even_when_no_axis_is_asked_for(make):
    policy = ExecutionResourcePolicy(required_axes=(), trusted_local_authorized=True)
    assert await skipped(make(unsafe()), policy=policy) == [("unsafe", "trusted_local_refused", "isolation")]


async def test_trusted_local_can_be_authorised_by_a_person_but_only_when_it_is_its_turn(make):
    asked: list[tuple[str, str]] = []

    async def person(request):
        asked.append((request.gate, request.subject))
        return ApprovalOutcome.APPROVED_ONCE

    full = SyntheticProvider("full")
    manager = make(unsafe(), full)
    manager.approval.set_channel(person)
    policy = ExecutionResourcePolicy(isolation="preferred", unsafe_fallback=True)
    assert (await manager.async_ensure(wanted(policy=policy))).provider_id == "full"
    assert asked == []
    full.available = False
    handle = await manager.async_ensure(wanted(policy=policy, owner_id="bob"))
    assert handle.selection.unsafe is True and asked == [("trusted_local", "python with unsafe")]
    assert "approval_required" in manager.types


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (ExecutionResourcePolicy(), {}),
        (ExecutionResourcePolicy(required_axes=(), trusted_local_authorized=True), {}),
        (ExecutionResourcePolicy(isolation="preferred"), {}),
        (ExecutionResourcePolicy(isolation="none"), {}),
        (ExecutionResourcePolicy(isolation="none", unsafe_fallback=True), {}),  # nobody there who could be asked
        (ExecutionResourcePolicy(isolation="preferred", unsafe_fallback=True), {}),
        (
            ExecutionResourcePolicy(isolation="none", unsafe_fallback=True, trusted_local_authorized=True),
            {"workspace_access_mode": "read_only"},
        ),
    ],
)
async def test_what_says_that_it_isolates_nothing_runs_nothing_where_it_may_not_be_taken(make, policy, fields):
    provider = unsafe()
    provider.safety_class = SafetyClass.TRUSTED_LOCAL
    manager = make(provider)
    [(name, code, _)] = await skipped(manager, policy=policy, **fields)
    assert name == "unsafe" and code in ("trusted_local_refused", "approval", "workspace_access")
    assert provider.log == [] and "probed" not in manager.types


@pytest.mark.parametrize("mode", ["preferred", "none"])
@pytest.mark.parametrize("authorised", [False, True])
async def test_what_says_that_it_isolates_nothing_is_asked_for_once_and_then_probed(make, mode, authorised):
    asked: list[str] = []
    provider = unsafe()
    provider.safety_class = SafetyClass.TRUSTED_LOCAL

    async def person(request):
        asked.append(request.gate)
        assert provider.log == []
        return ApprovalOutcome.APPROVED_ONCE

    manager = make(provider)
    manager.approval.set_channel(person)
    policy = ExecutionResourcePolicy(isolation=mode, unsafe_fallback=True, trusted_local_authorized=authorised)
    handle = await manager.async_ensure(wanted(policy=policy))
    assert handle.selection.unsafe is True and handle.selection.preference_fallback is (mode == "preferred")
    assert (asked, provider.log) == ([] if authorised else ["trusted_local"], ["probe", "ensure"])


async def test_under_preferred_it_comes_after_everything_that_isolates(make):
    provider, full = unsafe(), SyntheticProvider("full")
    provider.safety_class = SafetyClass.TRUSTED_LOCAL
    policy = ExecutionResourcePolicy(isolation="preferred", unsafe_fallback=True, trusted_local_authorized=True)
    handle = await make(provider, full).async_ensure(wanted(policy=policy))
    assert handle.provider_id == "full" and provider.log == []
    assert [(s.provider_id, s.message) for s in handle.selection.skipped] == [
        ("unsafe", "it isolates nothing, and another provider does")
    ]


async def test_trusted_local_takes_snapshot_grants_only(make):
    provider = unsafe()
    provider.capability = provider.capability.model_copy(update={"workspace_access_modes": ("snapshot", "read_only")})
    policy = ExecutionResourcePolicy(isolation="none", unsafe_fallback=True, trusted_local_authorized=True)
    assert await skipped(make(provider), policy=policy, workspace_access_mode="read_only") == [
        ("unsafe", "workspace_access", "snapshot")
    ]


# -- the re-probe: what was opened is what counts


@pytest.mark.parametrize(
    ("facts", "subject"),
    [
        ({"isolation": isolation(process_contained=False)}, "process_contained"),
        ({"isolation": isolation(host_filesystem_restricted=None)}, "host_filesystem_restricted"),
        ({"isolation": isolation(network=False)}, "network"),
        ({"isolation": isolation(network=None)}, "network"),
        ({"network": "inherited"}, "network"),
        ({"provider_id": "another"}, "provider_id"),
        ({"safety_class": SafetyClass.TRUSTED_LOCAL}, "safety_class"),
    ],
)
async def test_an_opened_sandbox_that_differs_fails_closed(make, facts, subject):
    provider, other = SyntheticProvider(), SyntheticProvider("other")
    provider.facts_changes = facts
    assert await skipped(make(provider, other)) == [("synthetic", "reprobe_changed", subject)]
    assert provider.live == [] and other.log == []


async def test_tools_and_limits_are_taken_from_the_opened_sandbox(make):
    provider = SyntheticProvider()
    provider.facts_changes = {"toolchains": {"python": ToolchainFact(tool="python", available=True, version="3.9.2")}}
    manager = make(provider)
    assert await skipped(manager, toolchains=(tool("python>=3.10"),)) == [("synthetic", "toolchain", "python>=3.10")]
    policy = ExecutionResourcePolicy(required_limits=("memory", "processes"))
    assert await skipped(manager, policy=policy) == [("synthetic", "limits", "processes")]
    provider.facts_changes = {
        "limits": (
            LimitFact(name="memory", limit=1, mechanism="cgroup2"),
            LimitFact(name="processes", limit=9, mechanism="none"),
        )
    }
    assert await skipped(manager, policy=policy) == [("synthetic", "limits", "processes")]
    provider.facts_changes = {
        "limits": tuple(LimitFact(name=n, limit=1, mechanism="rlimit") for n in ("memory", "processes"))
    }
    assert (await manager.async_ensure(wanted(policy=policy))).provider_id == "synthetic"
    assert provider.live == provider.opened[-1:]


async def test_a_rejected_sandbox_that_cannot_be_closed_is_quarantined_under_its_own_id(make):
    provider = SyntheticProvider()
    provider.facts_isolation = isolation(process_contained=False)
    provider.release_errors = [RuntimeError("busy")]
    manager = make(provider)
    assert await skipped(manager) == [("synthetic", "reprobe_changed", "process_contained")]
    (view,) = manager.list()
    assert (view.status.value, view.error) == ("quarantined", "RuntimeError: busy")


# -- rules as properties

VALUES = st.sampled_from([True, False, None])


@given(axes=st.fixed_dictionaries(dict.fromkeys(AXES, VALUES)), asked=st.sets(st.sampled_from(list(IsolationAxis))))
def test_an_axis_counts_only_when_it_was_observed_true(axes, asked):
    policy = ExecutionResourcePolicy(required_axes=tuple(asked))
    facts = isolation(**axes)
    good = all(axes[axis.value] is True for axis in asked)
    assert is_full_match(policy, facts) is good
    assert (isolation_problem(policy, facts) is None) is good


NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=4)


@settings(max_examples=200)
@given(have=NUMBERS, want=NUMBERS, exact=st.booleans())
def test_versions_are_compared_by_number_with_zeros_for_what_is_missing(have, want, exact):
    text = ".".join(map(str, want))
    need = tool(f"go=={text}" if exact else f"go>={text}")
    fact = {"go": ToolchainFact(tool="go", available=True, version=".".join(map(str, have)))}
    width = max(len(have), len(want))
    left, right = have + [0] * (width - len(have)), want + [0] * (width - len(want))
    assert (toolchain_problem([need], fact) is None) is (left == right if exact else left >= right)


def test_the_capability_of_the_synthetic_provider_is_complete():
    assert is_full_match(ExecutionResourcePolicy(), capability().isolation)
