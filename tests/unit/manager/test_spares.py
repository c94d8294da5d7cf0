"""The warm spare with a SYNTHETIC provider: who gets it, when it is opened, and that it never stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_manager_provider import (  # type: ignore[import-not-found]
    Managed,
    SyntheticProvider,
    trusted_local,
    wanted,
)

from agently_kernel import spares
from agently_kernel.contract.bundle import CodeExecutionRequest, CodeExecutionToolchainRequirement, ExecutionForm
from agently_kernel.contract.errors import ExecutionResourceUnavailable, SandboxLaunchError
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.resource import ExecutionResourcePolicy, HandleStatus, ProviderCandidate
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.contract.workspace import CollectionLimits, TaskWorkspaceAccessRequirement
from agently_kernel.execution import CodeExecution
from agently_kernel.workspace.task_workspace import TaskWorkspace

SCRIPT = CodeExecutionRequest(source_code="print(1)")


@pytest.fixture
def workspace(tmp_path: Path):
    made = TaskWorkspace.create(
        session_id="s", limits=ResourceLimits(), collection=CollectionLimits(), data_dir=tmp_path / "data",
        runtime_dir=tmp_path / "run",
    )
    yield made
    made.close()


@pytest.fixture
def provider() -> SyntheticProvider:
    return SyntheticProvider()


@pytest.fixture
def manager(make: Callable[..., Managed], provider: SyntheticProvider) -> Managed:
    return make(provider, spare_seconds=60.0)


@pytest.fixture
def execution(manager: Managed, workspace: TaskWorkspace) -> CodeExecution:
    return CodeExecution(manager, workspace=workspace)


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that within two seconds")


async def with_spare(execution: CodeExecution, provider: SyntheticProvider, **options: Any) -> Any:
    """Run once and return the resource that was then opened ahead."""
    before = len(provider.opened)
    assert (await execution.async_run(SCRIPT, **options)).status is ExecutionStatus.SUCCESS
    await until(lambda: len(provider.opened) == before + 2 and execution.manager.list(status="ready"))
    return provider.opened[-1]


async def test_the_next_run_gets_the_spare_and_another_one_is_opened_after_it(execution, provider, manager) -> None:
    spare = await with_spare(execution, provider)
    assert provider.opened[0].closed and not spare.closed and spare.executed == []
    (view,) = manager.list()
    assert (view.status, view.ref_count, view.scope) == (HandleStatus.READY, 0, "action_call")
    during: list[int] = []
    spare.script = lambda *_: during.append(len(provider.opened))
    result = await execution.async_run(SCRIPT)
    assert result.status is ExecutionStatus.SUCCESS and result.facts is spare.facts
    assert result.selection is not None and result.selection.provider_id == "synthetic"
    assert during == [2], "the next one is opened after the run, not beside it"
    assert len(spare.executed) == 1 and spare.closed
    await until(lambda: len(provider.live) == 1)
    assert provider.live[0] is provider.opened[2] and provider.live[0].executed == []


async def test_a_spare_goes_through_probe_health_and_policy_like_a_launch(
    execution, provider, manager, monkeypatch
) -> None:
    monkeypatch.setattr(spares, "IN_A_ROW", 0.0)  # else a slow machine opens the next one while this run goes on
    await with_spare(execution, provider)
    provider.log.clear()
    manager.seen.clear()
    await execution.async_run(SCRIPT)
    assert provider.log == ["probe", "health", "release"]
    assert manager.types == ["ensuring", "probed", "ready", "releasing", "released"]
    provider.available = False
    await until(lambda: len(provider.live) == 1)
    result = await execution.async_run(SCRIPT)
    assert result.status is ExecutionStatus.BLOCKED and provider.live[0].executed == []


async def test_events_tell_of_the_spare(execution, provider, manager) -> None:
    await with_spare(execution, provider)
    spare = [event for event in manager.seen if event.phase == "spare"]
    assert [event.event_type.rpartition(".")[2] for event in spare] == ["ensuring", "ready"]
    assert {event.handle_id for event in spare} == {manager.list()[0].handle_id}


async def test_without_the_setting_there_is_none(make, provider, workspace) -> None:
    execution = CodeExecution(make(provider), workspace=workspace)
    await execution.async_run(SCRIPT)
    await asyncio.sleep(0.05)
    assert len(provider.opened) == 1 and provider.live == []


@pytest.mark.parametrize(
    "requirement",
    [
        wanted(scope="action_call", policy=ExecutionResourcePolicy(max_output_bytes=4096)),
        wanted(scope="action_call", config={"other": 1}),
        wanted(scope="action_call", provider_candidates=(ProviderCandidate(provider_id="second"),)),
    ],
)
async def test_another_kind_of_run_never_gets_it(execution, provider, manager, requirement) -> None:
    manager.register_provider(SyntheticProvider("second"))
    spare = await with_spare(execution, provider)
    result = await execution.async_run(SCRIPT, requirement=requirement)
    assert result.status is ExecutionStatus.SUCCESS and spare.executed == []
    await until(lambda: spare.closed)
    await until(lambda: [view.status for view in manager.list()] == [HandleStatus.READY])


async def test_a_run_that_needs_other_tools_never_gets_it(execution, provider) -> None:
    spare = await with_spare(execution, provider)
    tools = (CodeExecutionToolchainRequirement(tool="go"),)
    result = await execution.async_run(CodeExecutionRequest(source_code="print(1)", toolchains=tools))
    assert result.status is ExecutionStatus.SUCCESS and spare.executed == []


async def test_another_owner_may_get_it_for_nothing_ever_ran_in_it(execution, provider) -> None:
    spare = await with_spare(execution, provider, requirement=wanted(scope="action_call", owner_id="alice"))
    await execution.async_run(SCRIPT, requirement=wanted(scope="action_call", owner_id="bob"))
    assert len(spare.executed) == 1


async def test_none_after_runs_in_a_session_with_an_interpreter_or_with_inputs(
    execution, provider, workspace, tmp_path
) -> None:
    cell = CodeExecutionRequest(source_code="1", form=ExecutionForm.SESSION)
    assert (await execution.async_run(cell)).status is ExecutionStatus.SUCCESS
    assert (await execution.async_run(cell, requirement=wanted())).status is ExecutionStatus.SUCCESS
    (tmp_path / "in.csv").write_text("1")
    access = TaskWorkspaceAccessRequirement(inputs=(workspace.snapshot_input(tmp_path / "in.csv", "in.csv"),))
    assert (await execution.async_run(SCRIPT, access=access)).status is ExecutionStatus.SUCCESS
    await asyncio.sleep(0.05)
    assert len(provider.opened) == 3


async def test_none_without_isolation(make, workspace) -> None:
    provider = SyntheticProvider("unsafe")
    provider.capability = trusted_local()
    policy = ExecutionResourcePolicy(isolation="none", unsafe_fallback=True, trusted_local_authorized=True)
    execution = CodeExecution(make(provider, spare_seconds=60.0), workspace=workspace, policy=policy)
    assert (await execution.async_run(SCRIPT)).status is ExecutionStatus.SUCCESS
    await asyncio.sleep(0.05)
    assert len(provider.opened) == 1


async def test_nobody_is_asked_for_a_spare(make, provider, workspace) -> None:
    policies: list[str] = []
    original = provider.async_ensure

    async def recorded(*, requirement: Any, policy: Any, existing_handle: Any = None) -> Any:
        policies.append(policy.approval_mode)
        return await original(requirement=requirement, policy=policy, existing_handle=existing_handle)

    provider.async_ensure = recorded
    await with_spare(CodeExecution(make(provider, spare_seconds=60.0), workspace=workspace), provider)
    assert policies == ["auto", "never"]


async def test_it_is_closed_when_nobody_takes_it(make, provider, workspace) -> None:
    manager = make(provider, spare_seconds=0.1)
    spare = await with_spare(CodeExecution(manager, workspace=workspace), provider)
    await until(lambda: spare.closed and manager.list() == ())
    assert manager.types[-2:] == ["releasing", "released"]


async def test_it_is_closed_with_the_manager(execution, provider, manager) -> None:
    spare = await with_spare(execution, provider)
    report = await manager.aclose()
    assert spare.closed and len(report.released) == 1 and manager.list() == ()


async def test_none_is_opened_once_the_manager_is_closed(execution, provider, manager) -> None:
    await execution.async_run(SCRIPT)
    await manager.aclose()
    await asyncio.sleep(0.05)
    assert len(provider.opened) == 1


async def test_closing_the_manager_stops_one_that_is_being_opened(execution, provider, manager) -> None:
    begun = asyncio.Event()

    async def slow() -> None:
        begun.set()
        await asyncio.sleep(30)

    await execution.async_run(SCRIPT)
    provider.before_ensure = slow
    await asyncio.wait_for(begun.wait(), 2)
    await manager.aclose()
    assert provider.live == [] and manager.list() == ()


async def test_it_is_closed_with_its_owners_scope(execution, provider, manager) -> None:
    spare = await with_spare(execution, provider, requirement=wanted(scope="action_call"))
    await manager.async_release_scope("action_call", "bob")
    assert not spare.closed
    await manager.async_release_scope("action_call", "alice")
    assert spare.closed and manager.list() == ()


async def test_a_released_scope_opens_none_any_more(execution, provider, manager) -> None:
    await execution.async_run(SCRIPT, requirement=wanted(scope="action_call"))
    await manager.async_release_scope("action_call", "alice")
    await asyncio.sleep(0.05)
    assert len(provider.opened) == 1


async def test_an_unhealthy_one_is_closed_and_the_run_gets_a_fresh_one(execution, provider, manager) -> None:
    spare = await with_spare(execution, provider)
    provider.health = "unhealthy"
    result = await execution.async_run(SCRIPT)
    assert result.status is ExecutionStatus.SUCCESS
    assert spare.closed and spare.executed == [] and len(provider.opened[2].executed) == 1
    assert "unhealthy" in manager.types


async def test_one_that_cannot_be_closed_is_quarantined_and_seen(make, provider, workspace) -> None:
    manager = make(provider, spare_seconds=0.1)
    await with_spare(CodeExecution(manager, workspace=workspace), provider)
    provider.release_errors.append(RuntimeError("stuck"))
    await until(lambda: [view.status for view in manager.list()] == [HandleStatus.QUARANTINED])


async def test_a_spare_that_does_not_start_is_told_by_an_event_only(execution, provider, manager) -> None:
    await execution.async_run(SCRIPT)
    provider.ensure_error = SandboxLaunchError("no room")
    await until(lambda: "failed" in manager.types)
    failed = manager.seen[-1]
    assert (failed.phase, failed.error_code) == ("spare", "launch_failed") and manager.list() == ()
    provider.ensure_error = None
    assert (await execution.async_run(SCRIPT)).status is ExecutionStatus.SUCCESS


async def test_a_run_waits_for_the_one_that_is_being_opened(execution, provider) -> None:
    go = asyncio.Event()
    await execution.async_run(SCRIPT)
    provider.before_ensure = go.wait
    await until(lambda: provider.log[-1] == "ensure" and provider.log.count("ensure") == 2)
    run = asyncio.ensure_future(execution.async_run(SCRIPT))
    await asyncio.sleep(0.03)
    assert not run.done()
    provider.before_ensure = None
    go.set()
    assert (await run).status is ExecutionStatus.SUCCESS
    assert len(provider.opened) == 2 and len(provider.opened[1].executed) == 1


async def test_a_run_that_is_cancelled_while_it_takes_the_spare_leaves_nothing(execution, provider, manager) -> None:
    spare = await with_spare(execution, provider)
    asked = asyncio.Event()

    async def slow() -> str:
        asked.set()
        await asyncio.sleep(30)
        return "ready"

    provider.health = slow
    run = asyncio.ensure_future(execution.async_run(SCRIPT))
    await asyncio.wait_for(asked.wait(), 2)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await until(lambda: manager.list() == ())
    assert spare.closed and provider.live == []


async def test_two_runs_at_once_never_share_it(execution, provider) -> None:
    spare = await with_spare(execution, provider)
    results = await asyncio.gather(*(execution.async_run(SCRIPT) for _ in range(3)))
    assert [result.status for result in results] == [ExecutionStatus.SUCCESS] * 3
    assert len(spare.executed) == 1
    assert all(len(resource.executed) <= 1 for resource in provider.opened)


async def test_one_that_is_not_what_the_policy_needs_is_not_used(execution, provider, manager) -> None:
    provider.facts_changes = {"network": "inherited"}
    with pytest.raises(ExecutionResourceUnavailable):
        await manager.async_ensure(wanted(scope="action_call", resident=False))
    provider.facts_changes = {}
    await execution.async_run(SCRIPT)
    provider.facts_changes = {"network": "inherited"}
    await until(lambda: len(provider.live) == 1)
    spare = provider.live[0]
    result = await execution.async_run(SCRIPT)
    assert result.status is ExecutionStatus.BLOCKED and spare.executed == [] and spare.closed
