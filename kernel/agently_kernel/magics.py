"""``%%agently_exec`` and ``%agently``: recognised here, in the kernel, by a cell's first line; never by the guest.

Grammar and work are those of ``agently_exec``, which serves every other IPython too; here they meet the kernel's
screen, panel and replies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agently_kernel.contract.bundle import CodeExecutionRequest, ExecutionForm
from agently_kernel.contract.result import CodeExecutionResult

if TYPE_CHECKING:
    from agently_exec.options import Completions, ExecOptions, LineOptions
    from agently_exec.work import Wanted
    from agently_kernel.kernel import AgentlyKernel
    from agently_kernel.subshells import RunningCell

_MARKS = ("%%agently_exec", "%agently")


class Magic(Protocol):
    """A cell that the kernel answers itself."""

    async def run(self, kernel: AgentlyKernel, running: RunningCell, cell_id: str) -> dict[str, Any]:
        """Return the reply's content. Raises AgentlyKernelError with a sentence."""


def parse_magic(code: str) -> Magic | None:
    """Return the magic that *code* is, or None for an ordinary cell. Raises ConfigurationError for bad options."""
    if not any(mark in code for mark in _MARKS):
        return None
    from agently_exec import options

    text = options.asked_help(code)
    if text is not None:
        return HelpMagic(text)
    split = options.split_exec(code)
    if split is not None:
        return ExecMagic(options.parse_exec(split[0]), split[1])
    lines = tuple(options.parse_line(line) for line in options.split_lines(code))
    return LineMagic(lines) if lines else None


def inspect_magic(code: str, cursor: int) -> str | None:
    """Return the help of the magic in whose line the cursor is, None when it is elsewhere."""
    if not code.lstrip().startswith(_MARKS):
        return None
    from agently_exec.options import help_at

    return help_at(code, cursor)


def complete_magic(code: str, cursor: int) -> Completions | None:
    """Complete in the line of a magic; None when the cursor is elsewhere."""
    if not code.lstrip().startswith(_MARKS):
        return None
    from agently_exec.options import complete

    return complete(code, cursor)


def _ok() -> dict[str, Any]:
    return {"status": "ok", "user_expressions": {}, "payload": []}


@dataclass(frozen=True, slots=True)
class ExecMagic:
    """One program: in a fresh sandbox of its own, or in the session's."""

    options: ExecOptions
    body: str

    async def run(self, kernel: AgentlyKernel, running: RunningCell, cell_id: str) -> dict[str, Any]:
        """Run the program and return the reply; collected outputs are listed below what it printed."""
        from agently_exec.options import exec_help
        from agently_exec.work import prepare, show_outputs

        if self.options.help:
            kernel.publisher.text(running.cell, "stdout", exec_help())
            return _ok()
        wanted = await prepare(
            kernel, self.options, self.body, cell=cell_id, allow_stdin=running.allow_stdin,
            count=max(0, kernel.execution_count - 1),
        )
        result = await self._execute(kernel, running, cell_id, wanted)
        show_outputs(kernel, running.cell, wanted, result)
        if self.options.result is not None:
            await self._bind(kernel, running, self.options.result, result)
        return kernel.cells.reply(running.cell, result)

    @staticmethod
    async def _execute(
        kernel: AgentlyKernel, running: RunningCell, cell_id: str, wanted: Wanted
    ) -> CodeExecutionResult:
        return await kernel.cells.execute(
            running, wanted.request, cell_id=cell_id, count=None, requirement=wanted.requirement, access=wanted.access,
            timeout=wanted.timeout,
        )

    @staticmethod
    async def _bind(kernel: AgentlyKernel, running: RunningCell, name: str, result: CodeExecutionResult) -> None:
        """Bind what came of it in the session's interpreter, where the next cells look for it."""
        from agently_exec.result import binding_code

        request = CodeExecutionRequest(
            source_code=binding_code(name, result), form=ExecutionForm.SESSION,
            options={"silent": True, "store_history": False, "allow_stdin": False, "user_expressions": {},
                     "execution_count": 0},
        )
        bound = await kernel.sandbox.run(
            request, cell=running.cell, execution_id=f"{result.execution_id}-result", sink=kernel.screen,
            input_handler=None, timeout=BIND_SECONDS,
        )
        if bound.status.value != "success":
            why = bound.message or bound.status.value
            kernel.screen.note(running.cell, f"--result {name} could not be bound: {why}")


BIND_SECONDS = 30.0
"""Seconds that binding a result may take, the start of an interpreter included."""


@dataclass(frozen=True, slots=True)
class LineMagic:
    """Commands of ``%agently``, one after the other."""

    lines: tuple[LineOptions, ...]

    async def run(self, kernel: AgentlyKernel, running: RunningCell, cell_id: str) -> dict[str, Any]:
        """Do what was asked and show what came of it."""
        from agently_exec.reports import run_line

        for options in self.lines:
            report = await run_line(kernel, options, cell=cell_id)
            content = {"data": report.bundle(), "metadata": {}}
            kernel.publisher.message("display_data", content, running.cell, size=len(content["data"]["text/html"]))
        return _ok()


@dataclass(frozen=True, slots=True)
class HelpMagic:
    """``%agently?`` and its like: the help, in the front end's pager as for every other name."""

    text: str

    async def run(self, kernel: AgentlyKernel, running: RunningCell, cell_id: str) -> dict[str, Any]:
        """Return the reply with the page."""
        return {**_ok(), "payload": [{"source": "page", "data": {"text/plain": self.text}, "start": 0}]}
