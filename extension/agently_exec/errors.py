"""Failures as an IPython shows them: one sentence under the name that the sandboxed kernel uses, without our frames."""

from __future__ import annotations

from collections.abc import Mapping

from agently_exec.result import ExecutionOutcome
from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus

NAMES: Mapping[ExecutionStatus, str] = {
    ExecutionStatus.TIMED_OUT: "CellTimedOut",
    ExecutionStatus.CANCELLED: "KeyboardInterrupt",
    ExecutionStatus.BLOCKED: "ExecutionBlocked",
    ExecutionStatus.DIED: "SandboxDied",
    ExecutionStatus.ERROR: "CodeExecutionError",
}


class ExecutionFailed(Exception):
    """A ``%%agently_exec`` cell did not succeed. ``outcome`` is what it came to, None when it was not run at all."""

    outcome: ExecutionOutcome | None = None

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: our frames would tell nothing."""
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


def _named(name: str, message: str) -> ExecutionFailed:
    error: ExecutionFailed = type(name, (ExecutionFailed,), {})(message)
    return error


def failure_of(result: CodeExecutionResult) -> ExecutionFailed:
    """Return the exception for a result that is not a success."""
    ename = (result.error or {}).get("ename")
    death = result.death
    if death is not None:
        name = "SandboxDied" if death.what == "sandbox" else "InterpreterDied"
    elif result.status is ExecutionStatus.ERROR and isinstance(ename, str) and ename.isidentifier():
        name = ename
    else:
        name = NAMES[result.status]
    message = result.message or str((result.error or {}).get("evalue") or result.status.value)
    error = _named(name, message)
    error.outcome = ExecutionOutcome(result)
    return error


def refusal_of(error: AgentlyKernelError) -> ExecutionFailed:
    """Return the exception for what was refused before anything ran."""
    return _named(type(error).__name__, str(error))
