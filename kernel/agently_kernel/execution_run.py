"""What one execution comes to: the trace while it runs, and the result that is made of everything at its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from agently_kernel.contract.bundle import CodeExecutionBundle
from agently_kernel.contract.errors import (
    AgentlyKernelError,
    ApprovalDenied,
    ExecutionResourceUnavailable,
    SandboxDied,
)
from agently_kernel.contract.resource import ProviderSelection
from agently_kernel.contract.result import CodeExecutionResult, DeathCause, ExecutionStatus, TraceStep
from agently_kernel.contract.workspace import CollectionReport, TaskWorkspaceAccessGrant
from agently_kernel.handles import Handle
from agently_kernel.output_notes import lost_outputs
from agently_kernel.redaction import describe_error

if TYPE_CHECKING:
    from agently_kernel.workspace.store import WorkspaceStore
    from agently_kernel.workspace.task_workspace import TaskWorkspace

log = logging.getLogger("agently_kernel.execution")

TRACE_AFTER = 0.25
"""Seconds from an execution's end until its trace is written, with those of all that end meanwhile."""

StepName = Literal["issue_grant", "prepare", "ensure", "materialize", "execute", "collect", "release", "close_grant"]
STEPS: tuple[StepName, ...] = (
    "issue_grant",
    "prepare",
    "ensure",
    "materialize",
    "execute",
    "collect",
    "release",
    "close_grant",
)


class Step:
    """A context manager that times one step; a class, because a generator costs three times as much, eight times a
    cell."""

    __slots__ = ("_at", "_clock", "_name", "_trace")

    def __init__(self, trace: list[TraceStep], name: StepName) -> None:
        self._trace, self._name = trace, name

    def __enter__(self) -> None:
        self._at, self._clock = time.time(), time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome: Literal["ok", "error", "cancelled"] = "ok"
        detail = ""
        if isinstance(error, asyncio.CancelledError):
            outcome = "cancelled"
        elif error is not None:
            outcome, detail = "error", getattr(error, "code", type(error).__name__)
        self._trace.append(
            TraceStep(
                step=self._name, started_at=self._at, seconds=time.monotonic() - self._clock, outcome=outcome,
                detail=detail,
            )
        )


@dataclass(slots=True)
class ExecutionRun:
    """What one execution has come to so far."""

    execution_id: str
    started_at: float = field(default_factory=time.time)
    clock: float = field(default_factory=time.monotonic)
    trace: list[TraceStep] = field(default_factory=list)
    grant: TaskWorkspaceAccessGrant | None = None
    bundle: CodeExecutionBundle | None = None
    handle: Handle | None = None
    result: CodeExecutionResult | None = None
    report: CollectionReport | None = None
    selection: ProviderSelection | None = None

    def step(self, name: StepName) -> Step:
        """Time one step into the trace."""
        return Step(self.trace, name)

    def finished_trace(self) -> tuple[TraceStep, ...]:
        """Return the whole trace in the fixed order; steps that were not reached are marked as skipped."""
        done = {step.step: step for step in self.trace}
        now = time.time()
        return tuple(
            done.get(name)
            or TraceStep(step=name, started_at=now, seconds=0.0, outcome="skipped", detail="")
            for name in STEPS
        )

    def keep_trace(self, space: TaskWorkspace, trace: tuple[TraceStep, ...]) -> None:
        """Have the trace appended to the workspace's store soon, for nobody who waits for the result waits for that.

        It is written at the latest when the workspace is read or closed. One that cannot be kept is only logged.
        """
        record = {
            "execution_id": self.execution_id,
            "bundle_id": self.bundle.bundle_id if self.bundle else "",
            "provider_id": self.handle.provider_id if self.handle else "",
            "steps": [[s.step, round(s.started_at, 6), round(s.seconds, 6), s.outcome, s.detail] for s in trace],
        }
        if space.store.put_off(record):
            asyncio.get_running_loop().call_later(TRACE_AFTER, _write_trace, space.store)

    def finish(
        self, trace: tuple[TraceStep, ...], failure: BaseException | None, late: list[Exception]
    ) -> CodeExecutionResult:
        """Return the result: *failure* is what ended the steps, *late* what went wrong in releasing and closing."""
        update: dict[str, Any] = {
            "execution_id": self.execution_id,
            "selection": self.selection,
            "trace": trace,
            "started_at": self.started_at,
            "seconds": time.monotonic() - self.clock,
        }
        result = self.result
        if result is None:
            result = CodeExecutionResult.model_construct(
                status=ExecutionStatus.ERROR,
                bundle_id=self.bundle.bundle_id if self.bundle else "",
                bundle_digest=self.bundle.bundle_digest if self.bundle else "",
                facts=self.handle.facts if self.handle else None,
            )
        sentences = [result.message] if result.message else []
        if failure is not None:
            if result.status is ExecutionStatus.SUCCESS or self.result is None:
                update["status"], update["death"] = _status_of(failure), _death_of(failure) or result.death
            sentences.append(_sentence(failure, self))
        if self.report is not None:
            update["outputs"], update["refused_outputs"] = self.report.outputs, self.report.refused
            lost = [refused for refused in self.report.refused if refused.declared]
            if lost:
                sentences.append(lost_outputs(lost))
                if result.status is ExecutionStatus.SUCCESS:
                    update.setdefault("status", ExecutionStatus.ERROR)
        for error in late:
            sentences.append(_sentence(error, self))
            if result.status is ExecutionStatus.SUCCESS:
                update.setdefault("status", ExecutionStatus.ERROR)
        update["message"] = "\n".join(sentences)
        if (
            result.error is None
            and update["message"]
            and update.get("status", result.status) is not ExecutionStatus.SUCCESS
        ):
            cause = failure or (late[0] if late else None)
            update["error"] = {
                "ename": type(cause).__name__ if isinstance(cause, AgentlyKernelError) else "CodeExecutionError",
                "evalue": update["message"],
                "traceback": [],
                "code": getattr(
                    cause, "code", "code_execution.outputs_refused" if cause is None else "code_execution.failed"
                ),
            }
        return result.model_copy(update=update)


def _write_trace(store: WorkspaceStore) -> None:
    try:
        store.write_off()
    except (AgentlyKernelError, OSError) as error:  # a full disk must take nothing else away
        log.warning("the trace could not be kept: %s", type(error).__name__)


def _status_of(error: BaseException) -> ExecutionStatus:
    if isinstance(error, ApprovalDenied | ExecutionResourceUnavailable):
        return ExecutionStatus.BLOCKED
    if isinstance(error, SandboxDied):
        return ExecutionStatus.DIED
    timed_out = getattr(error, "code", "") == "execution_resource.timed_out"
    return ExecutionStatus.TIMED_OUT if timed_out else ExecutionStatus.ERROR


def _death_of(error: BaseException) -> DeathCause | None:
    cause = error.details.get("cause") if isinstance(error, SandboxDied) else None
    if isinstance(cause, Mapping):
        return DeathCause.model_validate(dict(cause))
    return cause if isinstance(cause, DeathCause) else None


def _sentence(error: BaseException, run: ExecutionRun) -> str:
    if isinstance(error, AgentlyKernelError):
        return str(error)
    configs = () if run.handle is None else (run.handle.requirement.config,)
    log.error("execution %s met %s", run.execution_id, type(error).__name__)
    return "The execution failed inside its provider or workspace: " + describe_error(error, configs)
