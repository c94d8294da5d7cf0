"""The eight steps with a SYNTHETIC provider and a real TaskWorkspace: order, statuses, and what is given back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from synthetic_manager_provider import Managed, SyntheticProvider, wanted  # type: ignore[import-not-found]

from agently_kernel import execution as execution_module
from agently_kernel import execution_run as execution_run_module
from agently_kernel.contract.approval import ApprovalOutcome
from agently_kernel.contract.bundle import CodeExecutionRequest, ExecutionForm
from agently_kernel.contract.errors import ExecutionResourceError, SandboxDied, WorkspaceError
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.result import CodeExecutionResult, DeathCause, ExecutionStatus
from agently_kernel.contract.workspace import CollectionLimits, CollectionReport, RefusedOutput
from agently_kernel.execution import CodeExecution
from agently_kernel.execution_run import STEPS
from agently_kernel.workspace.task_workspace import TaskWorkspace

CELL = CodeExecutionRequest(source_code="print(1)", form=ExecutionForm.SESSION)
SCRIPT = CodeExecutionRequest(source_code="print(1)", expected_outputs=("output/x.csv",))


@pytest.fixture
def workspace(tmp_path: Path):
    made = TaskWorkspace.create(
        session_id="s",
        limits=ResourceLimits(),
        collection=CollectionLimits(),
        data_dir=tmp_path / "data",
        runtime_dir=tmp_path / "run",
    )
    yield made
    made.close()


@pytest.fixture
def provider():
    return SyntheticProvider()


@pytest.fixture
def execution(make, provider, workspace):
    return CodeExecution(make(provider), workspace=workspace)


def outcomes(result: CodeExecutionResult) -> dict[str, str]:
    assert tuple(step.step for step in result.trace) == STEPS
    return {step.step: step.outcome for step in result.trace}


def success(**fields: Any):
    def script(bundle, manifest, grant, timeout):
        return CodeExecutionResult(
            status=ExecutionStatus.SUCCESS, bundle_id=bundle.bundle_id, bundle_digest=bundle.bundle_digest, **fields
        )

    return script


async def test_the_steps_run_in_the_fixed_order_and_all_is_given_back(execution, provider, workspace):
    seen: list[Any] = []

    def script(bundle, manifest, grant, timeout):
        seen.append((bundle.bundle_digest == manifest.bundle_digest, grant.grant_id == manifest.grant_id, timeout))
        assert workspace.open_grants == (grant,)
        assert (workspace.source_path / bundle.bundle_id / manifest.files[0].path).read_bytes() == b"print(1)"

    provider.script = script
    result = await execution.async_run(CELL, timeout=9.0, execution_id="execution-7")
    assert result.status is ExecutionStatus.SUCCESS and result.message == "" and result.error is None
    assert set(outcomes(result).values()) == {"ok"}
    starts = [step.started_at for step in result.trace]
    assert starts == sorted(starts)
    assert seen == [(True, True, 9.0)]
    assert result.execution_id == "execution-7" and result.selection.provider_id == "synthetic"
    assert result.facts == provider.opened[0].facts
    assert provider.live == [] and workspace.open_grants == () and execution.manager.list() == ()
    (kept,) = workspace.store.read_trace()
    assert kept["execution_id"] == "execution-7" and [step[0] for step in kept["steps"]] == list(STEPS)


async def test_a_session_keeps_its_sandbox_and_a_single_run_does_not_share(execution, provider, workspace):
    session = wanted()
    for _ in range(2):
        assert (await execution.async_run(CELL, requirement=session)).status is ExecutionStatus.SUCCESS
    assert len(provider.opened) == 1 and provider.live
    both = await asyncio.gather(execution.async_run(SCRIPT), execution.async_run(SCRIPT))
    assert len(provider.opened) == 3 and len(provider.live) == 1
    assert len({result.execution_id for result in both}) == 2
    await execution.manager.async_release_scope("session", "alice")
    assert provider.live == [] and workspace.open_grants == ()


async def test_the_shorter_of_the_two_time_limits_is_used(execution, provider):
    seen: list[float | None] = []
    provider.script = lambda bundle, manifest, grant, timeout: seen.append(timeout)
    for timeout, limit in ((None, None), (5.0, None), (None, 3.0), (5.0, 3.0), (2.0, 3.0)):
        await execution.async_run(CELL, timeout=timeout, policy=ExecutionResourcePolicy(timeout_seconds=limit))
    assert seen == [None, 5.0, 3.0, 3.0, 2.0]


async def test_no_provider_blocks_with_the_explanation(execution, provider, workspace):
    provider.available = False
    result = await execution.async_run(CELL)
    assert result.status is ExecutionStatus.BLOCKED
    assert "1. synthetic: the synthetic tool is missing." in result.message
    assert result.error["ename"] == "ExecutionResourceUnavailable" and result.error["evalue"] == result.message
    assert result.error["code"] == "execution_resource.provider_unavailable"
    assert outcomes(result) == {
        "issue_grant": "ok",
        "prepare": "ok",
        "ensure": "error",
        "materialize": "skipped",
        "execute": "skipped",
        "collect": "skipped",
        "release": "skipped",
        "close_grant": "ok",
    }
    assert workspace.open_grants == ()


async def test_a_denied_approval_blocks(execution):
    result = await execution.async_run(CELL, policy=ExecutionResourcePolicy(approval_mode="always"))
    assert result.status is ExecutionStatus.BLOCKED and "could not be asked" in result.message
    assert result.error["ename"] == "ApprovalDenied"


async def test_an_unknown_language_is_an_error_and_closes_the_grant(execution, provider, workspace):
    result = await execution.async_run(CodeExecutionRequest(language="cobol", source_code="x"))
    assert (result.status, result.bundle_id, outcomes(result)["prepare"]) == (ExecutionStatus.ERROR, "", "error")
    assert "cobol" in result.message and provider.log == [] and workspace.open_grants == ()


async def test_missing_declared_outputs_make_an_error_and_keep_the_others(execution, provider, monkeypatch):
    result = await execution.async_run(SCRIPT)
    assert result.status is ExecutionStatus.ERROR and "output/x.csv (missing" in result.message
    assert [(r.path, r.reason) for r in result.refused_outputs] == [("output/x.csv", "missing")]
    assert result.error["code"] == "code_execution.outputs_refused"

    async def found(*_: object, **__: object) -> CollectionReport:
        return CollectionReport(refused=(RefusedOutput(path="output/other", reason="symlink", message="a link"),))

    monkeypatch.setattr(execution.workspace, "collect", found)
    undeclared = await execution.async_run(CELL)
    assert undeclared.status is ExecutionStatus.SUCCESS and len(undeclared.refused_outputs) == 1


async def test_a_failed_release_turns_success_into_an_error(execution, provider, workspace):
    provider.release_errors = [RuntimeError("busy")]
    result = await execution.async_run(CELL)
    assert result.status is ExecutionStatus.ERROR and "quarantined" in result.message
    assert outcomes(result)["release"] == "error" and outcomes(result)["close_grant"] == "ok"
    assert result.error["ename"] == "ExecutionResourceReleaseError"
    assert [view.status.value for view in execution.manager.list()] == ["quarantined"]
    assert workspace.open_grants == ()


@pytest.mark.parametrize("status", [ExecutionStatus.ERROR, ExecutionStatus.TIMED_OUT, ExecutionStatus.DIED])
async def test_what_already_failed_keeps_its_status(execution, provider, status):
    provider.script = lambda bundle, manifest, grant, timeout: CodeExecutionResult(
        status=status,
        bundle_id=bundle.bundle_id,
        bundle_digest=bundle.bundle_digest,
        message="first",
        error={"ename": "ValueError", "evalue": "1", "traceback": []},
    )
    provider.release_errors = [RuntimeError("busy")]
    result = await execution.async_run(SCRIPT)
    assert result.status is status and result.error["ename"] == "ValueError"
    assert result.message.startswith("first\nDeclared outputs are missing") and "quarantined" in result.message


async def test_a_sandbox_that_died_says_why_and_its_files_are_collected(execution, provider, workspace):
    cause = DeathCause(what="sandbox", kind="memory_limit", limit="memory", message="out of memory")

    def die(*_: object) -> None:
        raise SandboxDied("The sandbox ended: out of memory.", details={"cause": cause})

    provider.script = die
    result = await execution.async_run(CELL)
    assert (result.status, result.death, result.message) == (
        ExecutionStatus.DIED,
        cause,
        "The sandbox ended: out of memory.",
    )
    assert outcomes(result)["collect"] == "ok" and workspace.open_grants == ()


async def test_foreign_exceptions_of_a_resource_are_results(execution, provider, workspace):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("oops")

    provider.script = fail
    result = await execution.async_run(CELL)
    assert result.status is ExecutionStatus.ERROR and "ZeroDivisionError: oops" in result.message
    assert provider.live == [] and workspace.open_grants == ()


async def test_a_resource_that_ignores_its_time_limit_is_ended_from_above(execution, provider, workspace, monkeypatch):
    monkeypatch.setattr(execution_module, "OVERTIME", 0.05)
    provider.script = lambda *_: asyncio.sleep(60)
    result = await execution.async_run(CELL, timeout=0.05)
    assert result.status is ExecutionStatus.TIMED_OUT and "did not stop the code" in result.message
    assert provider.live == [] and workspace.open_grants == ()


async def test_a_full_disk_at_collection_is_an_error_and_the_rest_is_kept(execution, provider, workspace, monkeypatch):
    async def full(*_: object, **__: object) -> CollectionReport:
        raise WorkspaceError("no space left in the store; make room there")

    monkeypatch.setattr(workspace, "collect", full)

    provider.script = success(reply={"execution_count": 3})
    result = await execution.async_run(CELL)
    assert result.status is ExecutionStatus.ERROR and "make room there" in result.message
    assert dict(result.reply) == {"execution_count": 3}


async def test_traces_are_written_soon_and_together_and_one_that_cannot_be_is_only_logged(
    execution, provider, workspace, monkeypatch, caplog
):
    monkeypatch.setattr(execution_run_module, "TRACE_AFTER", 0.05)
    file = workspace.store.path / "trace.jsonl"
    provider.script = success()
    for _ in range(2):
        await execution.async_run(CELL)
    assert not file.exists()
    await asyncio.sleep(0.15)
    assert len(file.read_bytes().splitlines()) == 2
    file.unlink()
    file.mkdir()
    assert (await execution.async_run(CELL)).status is ExecutionStatus.SUCCESS
    await asyncio.sleep(0.15)
    assert "the trace could not be kept: WorkspaceError" in caplog.text
    file.rmdir()
    await execution.async_run(CELL)
    workspace.close()
    assert len(file.read_bytes().splitlines()) == 1


@pytest.mark.parametrize("steps", [*range(0, 24, 2), 40])
async def test_cancelling_anywhere_gives_everything_back(execution, provider, workspace, steps):
    provider.before_probe = provider.before_ensure = provider.before_release = lambda: asyncio.sleep(0)
    provider.script = lambda *_: asyncio.sleep(0.01)
    task = asyncio.create_task(execution.async_run(SCRIPT))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert provider.live == [] and workspace.open_grants == () and execution.manager.list() == ()


async def test_the_network_for_a_step_is_asked_for_by_its_exact_commands(make, workspace, monkeypatch):
    from agently_kernel import languages
    from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionFile, CodeExecutionStep

    class Adapter:
        def prepare(self, request, policy):
            return CodeExecutionBundle.create(
                language="python",
                files=(CodeExecutionFile(path="a.py", content=b"x"),),
                entrypoint="a.py",
                build_steps=(CodeExecutionStep(argv=("pip", "install", "six"), role="build", network=True),),
                run_step=CodeExecutionStep(argv=("python3", "a.py"), role="run"),
            )

    monkeypatch.setattr(languages, "get_adapter", lambda language: Adapter())
    provider = SyntheticProvider(network_modes=("disabled", "hosts"))
    provider.facts_changes = {"network": "filtered"}
    execution = CodeExecution(make(provider), workspace=workspace)
    asked: list[str] = []

    async def person(request):
        asked.append(f"{request.gate}: {request.subject}")
        return ApprovalOutcome.APPROVED_ONCE

    blocked = await execution.async_run(SCRIPT)
    assert blocked.status is ExecutionStatus.BLOCKED and provider.log == []
    execution.manager.approval.set_channel(person)
    policies: list[str] = []
    original = provider.async_ensure

    async def ensure(*, requirement, policy, existing_handle=None):
        policies.append(policy.network_mode)
        return await original(requirement=requirement, policy=policy)

    provider.async_ensure = ensure
    await execution.async_run(SCRIPT)
    assert asked == ["dependencies: pip install six"] and policies == ["hosts"]


async def test_a_resident_sandbox_refuses_what_it_cannot_run(execution, provider, workspace):
    session = wanted()
    assert (await execution.async_run(CELL, requirement=session)).status is ExecutionStatus.SUCCESS
    result = await execution.async_run(CodeExecutionRequest(language="node", source_code="1"), requirement=session)
    assert result.status is ExecutionStatus.BLOCKED and "does not run node" in result.message
    assert len(provider.opened) == 1 and provider.live and workspace.open_grants == ()


async def test_without_a_workspace_nothing_can_run(make):
    with pytest.raises(TypeError, match="TaskWorkspace"):
        await CodeExecution(make(SyntheticProvider())).async_run(CELL)


def test_the_synchronous_form_runs_and_is_refused_on_a_loop(workspace):
    manager = Managed(SyntheticProvider())
    execution = CodeExecution(manager, workspace=workspace)
    assert execution.run(CELL).status is ExecutionStatus.SUCCESS

    async def inside() -> None:
        with pytest.raises(ExecutionResourceError, match="running event loop"):
            execution.run(CELL)

    asyncio.run(inside())
    manager.close()
