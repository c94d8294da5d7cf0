"""Failures as an IPython shows them: one sentence under the name that the sandboxed kernel uses, without our frames."""

from __future__ import annotations

from agently_exec.result import ExecutionOutcome
from agently_kernel.cells import failure_name
from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.contract.result import CodeExecutionResult
from agently_kernel.contract.words import sentence
from agently_kernel.outputs import FilteredError


class ExecutionFailed(Exception):
    """A ``%%agently_exec`` cell did not succeed. ``outcome`` is what it came to, None when it was not run at all."""

    outcome: ExecutionOutcome | None = None
    shown: tuple[str, ...] = ()

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the sandbox's own traceback, or one sentence; our frames would tell nothing."""
        return list(self.shown) if self.shown else [f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


class Stopped(KeyboardInterrupt):
    """A cell that was stopped, shown as one sentence: our frames would tell nothing."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


Stopped.__name__ = Stopped.__qualname__ = KeyboardInterrupt.__name__  # what the cell's error is called, as ever


def _named(name: str, message: str) -> ExecutionFailed:
    error: ExecutionFailed = type(name, (ExecutionFailed,), {})(message)
    return error


def failure_of(result: CodeExecutionResult, filtered: FilteredError | None = None) -> ExecutionFailed:
    """Return the exception for a result that is not a success.

    *filtered* is the cleaned exception of the sandbox's interpreter, where that raised one.
    """
    if filtered is not None:
        name = filtered.ename if filtered.ename.isidentifier() else "ExecutionFailed"
        error = _named(name, filtered.evalue)
        error.shown = tuple(filtered.traceback)
    else:
        error = _named(failure_name(result), sentence(result.message or result.status.value))
    error.outcome = ExecutionOutcome(result)
    return error


def refusal_of(error: AgentlyKernelError) -> ExecutionFailed:
    """Return the exception for what was refused before anything ran."""
    return _named(type(error).__name__, sentence(str(error)))
