"""One cell: from its text to the content of its reply."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agently_kernel.contract.bundle import CodeExecutionRequest, ExecutionForm
from agently_kernel.contract.errors import AgentlyKernelError, reasons
from agently_kernel.contract.resource import ExecutionResourceRequirement
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.contract.words import sentence
from agently_kernel.contract.workspace import TaskWorkspaceAccessRequirement
from agently_kernel.hints import memory_hint, network_hint, variable_hint
from agently_kernel.magics import parse_magic
from agently_kernel.output_notes import isolation_line, refused_line
from agently_kernel.saving import save_as_configured
from agently_kernel.settings import refusal
from agently_kernel.user_config import misplaced

if TYPE_CHECKING:
    from agently_kernel.kernel import AgentlyKernel
    from agently_kernel.subshells import RunningCell

log = logging.getLogger("agently_kernel.cells")

_NAMES = {
    ExecutionStatus.TIMED_OUT: "CellTimedOut",
    ExecutionStatus.CANCELLED: "KeyboardInterrupt",
    ExecutionStatus.BLOCKED: "ExecutionBlocked",
    ExecutionStatus.DIED: "SandboxDied",
    ExecutionStatus.ERROR: "CodeExecutionError",
}
INTERRUPTED = "The cell was stopped before it ran in the sandbox."
INTERRUPTED_LATE = (
    "The cell was over when you stopped it; what remained to be done for it, such as keeping its files, was left. "
    "Its variables are there."
)
INTERRUPTED_ALONE = (
    "The run was stopped and its own sandbox ended. Files that it may have written were not collected; the session's "
    "variables and files are untouched."
)


def failure_name(result: CodeExecutionResult) -> str:
    """Return the error name of a failure that the guest did not show itself.

    For a death it says what ended; it is nothing that looks like an exception of the cell's own.
    """
    if result.death is not None:
        return "SandboxDied" if result.death.what == "sandbox" else "InterpreterDied"
    if result.status in (ExecutionStatus.TIMED_OUT, ExecutionStatus.CANCELLED):
        return _NAMES[result.status]
    return str((result.error or {}).get("ename") or _NAMES[result.status])


class CellRunner:
    """Runs cells for a kernel, one at a time in each of its shells."""

    def __init__(self, kernel: AgentlyKernel) -> None:
        self._kernel = kernel
        self._looked_for_settings = False

    async def run(
        self,
        running: RunningCell,
        code: str,
        *,
        silent: bool,
        store_history: bool,
        count: int,
        user_expressions: Mapping[str, Any],
        cell_id: str,
        subshell: str | None = None,
    ) -> dict[str, Any]:
        """Run *code* and return the reply's content without its execution_count. Errors of ours are replies too.

        *subshell*: the id of the one that it runs in, None for the main shell.
        """
        kernel = self._kernel
        cell = running.cell
        if kernel.faults:
            return self.failed(cell, "ConfigurationError", refusal(kernel.faults))
        if not code.strip() and not user_expressions:
            return {"status": "ok", "user_expressions": {}, "payload": []}
        try:
            magic = parse_magic(code)
            if magic is not None:
                return await magic.run(kernel, running, cell_id)
            options: dict[str, Any] = {
                "silent": silent, "store_history": store_history, "allow_stdin": running.allow_stdin,
                "user_expressions": dict(user_expressions), "execution_count": count, "request": dict(running.told),
            }
            if subshell is not None:
                options["subshell"] = subshell
            request = CodeExecutionRequest(
                language="python", source_code=code, form=ExecutionForm.SESSION, options=options
            )
            shown = None if silent else count
            result = await self.execute(running, request, cell_id=cell_id, count=shown, quiet=silent)
            for line in (isolation_line(result.selection), refused_line(result.refused_outputs, fresh=False)):
                if line and not silent:
                    kernel.screen.note(cell, line)
            if not (silent or self._looked_for_settings):
                self._looked_for_settings = True
                for line in misplaced():
                    kernel.screen.note(cell, line)
        except ValidationError as error:
            return self.failed(cell, "ValueError", f"{reasons(error)}. Nothing was run.")
        except AgentlyKernelError as error:
            return self.failed(cell, type(error).__name__, str(error))
        except Exception as error:
            log.exception("a cell could not be run")
            return self.failed(
                cell, "KernelError",
                f"The kernel itself met {type(error).__name__}: {error}. The cell did not run to its end; the kernel's "
                "log has the details.",
            )
        return self.reply(cell, result)

    async def execute(
        self,
        running: RunningCell,
        request: CodeExecutionRequest,
        *,
        cell_id: str,
        count: int | None,
        quiet: bool = False,
        requirement: ExecutionResourceRequirement | None = None,
        access: TaskWorkspaceAccessRequirement | None = None,
        timeout: float | None = None,
    ) -> CodeExecutionResult:
        """Run *request* with the kernel's screen as its sink and tell the panel about it."""
        kernel = self._kernel
        running.fresh_sandbox = requirement is not None
        execution_id = f"execution-{os.urandom(8).hex()}"
        kernel.panel.started(
            running.cell, cell_id=cell_id, form=request.form.value, language=request.language, count=count, quiet=quiet
        )
        if kernel.sandbox.interpreter_lost:
            kernel.screen.new_guest()
        result = await kernel.sandbox.run(
            request, cell=running.cell, execution_id=execution_id, sink=kernel.screen,
            input_handler=kernel.guest_input(running), timeout=timeout or kernel.settings.timeout,
            requirement=requirement, access=access,
        )
        if result.death is not None and requirement is None:
            kernel.screen.new_guest()
        kernel.panel.finished(running.cell, result, count=count)
        if kernel.settings.save_outputs is not None and result.outputs:
            files = [(output.path, Path(output.stored_path)) for output in result.outputs]
            said = await asyncio.to_thread(save_as_configured, kernel, kernel.settings.save_outputs, files)
            if said:
                kernel.screen.note(running.cell, said)
        return result

    def reply(self, cell: str, result: CodeExecutionResult) -> dict[str, Any]:
        """Return the content of the reply for *result*, and show what the guest could not show itself."""
        kernel = self._kernel
        reply: dict[str, Any] = {"status": "ok", "user_expressions": {}, "payload": []}
        if result.selection is not None and result.selection.unsafe:  # for programs; people read the line
            reply["agently"] = {"unsafe": True, "provider": result.selection.provider_id}
        passed = kernel.settings.pass_environment
        gate = kernel.sandbox.grants.inputs
        hints = (network_hint(result), gate.hint(result, cell=cell), memory_hint(result), variable_hint(result, passed))
        for hint in hints:
            if hint:
                kernel.screen.note(cell, hint)
        payloads = result.reply.get("payload")
        if payloads:
            allowed = kernel.filter.payloads(list(payloads), cell=cell)
            kernel.screen.withheld(cell, allowed.withheld, allowed.notice)
            reply["payload"] = allowed.payloads
        if result.status is ExecutionStatus.SUCCESS:
            expressions = result.reply.get("user_expressions")
            if expressions:
                reply["user_expressions"] = kernel.filter.user_expressions(expressions)
            return reply
        error = result.error or {}
        if result.death is None and error and "code" not in error:
            # the guest has shown its exception itself; the reply repeats it, cleaned the same way
            shown = kernel.filter.error(
                str(error.get("ename", "")), str(error.get("evalue", "")),
                tuple(map(str, error.get("traceback") or ())),
            )
            content = {"ename": shown.ename, "evalue": shown.evalue, "traceback": list(shown.traceback)}
            if result.status is ExecutionStatus.TIMED_OUT:
                kernel.screen.note(cell, result.message)
        else:
            content = self.show_error(cell, failure_name(result), result.message)
        return {**reply, "status": "error", **content}

    def interrupted(self, running: RunningCell) -> dict[str, Any]:
        """Return the reply of a cell that was stopped outside of the session's sandbox."""
        said = INTERRUPTED_ALONE if running.fresh_sandbox else INTERRUPTED
        if not running.fresh_sandbox and self._kernel.sandbox.began(running.cell):
            said = INTERRUPTED_LATE
        return self.failed(running.cell, "KeyboardInterrupt", said)

    def failed(self, cell: str, name: str, said: str) -> dict[str, Any]:
        """Show an error of ours in *cell* and return its reply."""
        content = self.show_error(cell, name, said)
        return {"status": "error", "user_expressions": {}, "payload": [], **content}

    def show_error(self, cell: str, name: str, said: str) -> dict[str, Any]:
        """Show an error of ours; its traceback is the sentence, for there are no frames that would tell more."""
        said = sentence(said)
        return self._kernel.screen.error(cell, name, said, (f"\x1b[31m{name}\x1b[39m: {said}",))
