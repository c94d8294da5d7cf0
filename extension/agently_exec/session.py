"""The magics' home in an ordinary IPython: a session of its own beside the user's code, never inside it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from agently_exec.frontend import FrontEnd
from agently_exec.options import ExecOptions, LineOptions
from agently_exec.progress import Progress
from agently_exec.reports import run_line
from agently_exec.service import LoopThread
from agently_exec.tables import Report
from agently_exec.work import Wanted, prepare, show_outputs
from agently_kernel import __version__
from agently_kernel.approvals import ApprovalBroker, Ask
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.outputs import ErrorOutput, OutputEvent
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.handles import Handle
from agently_kernel.hints import memory_hint, network_hint, variable_hint
from agently_kernel.iopub import Publisher
from agently_kernel.outputs import FilteredError, OutputFilter, OutputPolicy
from agently_kernel.panel_actions import PanelActions
from agently_kernel.panel_link import PanelLink
from agently_kernel.prompts import guest_prompt
from agently_kernel.saving import save_as_configured
from agently_kernel.screen import Screen
from agently_kernel.settings import refusal
from agently_kernel.spill import open_spill_log
from agently_kernel.startup import prepare as read_user_settings
from agently_kernel.taking_back import in_force, remembered
from agently_kernel.user_config import misplaced, read_config

T = TypeVar("T")
SERVER_PACE = 900_000.0
"""Bytes of text a second when a Jupyter server is in between: it drops faster streams."""
CLOSE_SECONDS = 15.0


class Session:
    """One for each IPython. Make it on the main thread; ``close`` at the end. Nothing is started before the first cell.

    Settings are those of the sandboxed kernel (``agently_kernel_config.py`` in Jupyter's configuration folders).
    """

    def __init__(self, front_end: FrontEnd) -> None:
        prepared = read_user_settings(*read_config(()))
        self.settings, self.faults = prepared.settings, prepared.faults
        self.session_id, self.approval, self.sandbox = prepared.session_id, prepared.approval, prepared.sandbox
        self.running: str | None = None
        self._looked_for_settings = False
        self._front_end = front_end
        self._thread = LoopThread(front_end.read)
        self._numbers = itertools.count(1)
        self._can_ask = False
        self._remove_announcement: Callable[[], None] | None = None
        self.filter = OutputFilter(
            OutputPolicy(self.settings.outputs), network_allowed=self.settings.network == "enabled"
        )
        self.publisher = Publisher(
            front_end.send, budget=self.settings.cell_output_bytes,
            open_log=lambda cell: open_spill_log(self.sandbox.workspace.store, cell),
            pace=SERVER_PACE if os.environ.get("JPY_SESSION_NAME") else None,
            hold=lambda paused: self.sandbox.hold(paused),
        )
        self.broker = ApprovalBroker(panel_attached=lambda: self._panel_attached, input_box=self._input_box)
        self.approval.set_channel(self.broker.handle, self.broker.account)
        self._panel = self._make_panel()
        self.screen = Screen(self.publisher, self.filter)
        if self._panel is not None:
            self.broker.listen(self._panel.question)
            self.approval.add_listener(self._panel.decided)
            self.screen = Screen(
                self.publisher, self.filter, observe_text=self._panel.text, observe_withheld=self._panel.withheld
            )
        self._progress: Progress | None = None
        self.sandbox.attach(sink=self.screen, on_handle=self._new_sandbox, on_event=self._event)
        self.sandbox.on_grants = self._grants_changed

    # -- the panel -----------------------------------------------------------------------------------------------------

    def _make_panel(self) -> PanelLink | None:
        kernel = self._front_end.kernel
        if kernel is None or not hasattr(kernel, "control_handlers"):
            return None
        panel = PanelLink(
            kernel, self.broker, PanelActions(self), self.settings, session_id=self.session_id,
            product_version=__version__, started_at=time.time(), status="ready", host="ipython",
        )
        self._thread.loop.call_soon_threadsafe(panel.start)
        return panel

    def _announce(self) -> None:
        """Tell the front end of the panel once a person sits there; a program that runs notebooks would complain."""
        if self._panel is None or self._remove_announcement is not None or not self._can_ask:
            return
        self._remove_announcement = lambda: None
        with contextlib.suppress(Exception):  # a front end without comms has no panel either
            from agently_kernel.panel import announce

            self._remove_announcement = announce()

    @property
    def _panel_attached(self) -> bool:
        return self._panel is not None and self._panel.attached

    def _event(self, event: ExecutionResourceEvent) -> None:
        for told in (self._panel, self._progress):
            if told is not None:
                told.event(event)

    def _new_sandbox(self, handle: Handle) -> None:
        self.screen.new_guest()
        if self._panel is not None and handle.facts is not None:
            self._panel.session(workspace_id=self.sandbox.workspace.workspace_id)
            self._panel.sandbox(handle.facts, handle.selection)

    def _grants_changed(self) -> None:
        if self._panel is not None:
            if self.sandbox.facts is not None:
                self._panel.sandbox(self.sandbox.facts, self.sandbox.selection)
            self._panel.grants(self.sandbox.given, remembered(self), in_force(self))

    async def on_main(self, work: Coroutine[Any, Any, T], seconds: float = 10.0) -> T:
        """Run *work* on the session's loop, from another loop; what the panel does comes this way."""
        return await asyncio.wait_for(asyncio.wrap_future(self._thread.submit(work)), seconds)

    # -- what the magics call, on the main thread ----------------------------------------------------------------------

    def execute(self, options: ExecOptions, body: str, *, count: int = 0) -> CodeExecutionResult:
        """Run a program, show its output as it comes, and return what it came to. *count*: the cell's number.

        Raises AgentlyKernelError when it could not be run; KeyboardInterrupt when it was stopped.
        """

        parent = self._front_end.parent()

        async def work(cell: str) -> CodeExecutionResult:
            async with self._telling(parent):
                wanted = await prepare(self, options, body, cell=cell, allow_stdin=self._can_ask, count=count)
                result = await self._run(cell, wanted)
            show_outputs(self, cell, wanted, result)
            if self.settings.save_outputs is not None and result.outputs:
                files = [(output.path, Path(output.stored_path)) for output in result.outputs]
                said = await asyncio.to_thread(save_as_configured, self, self.settings.save_outputs, files)
                if said:
                    self.screen.note(cell, said)
            late = result.message if result.status is ExecutionStatus.TIMED_OUT and self.guest_error(result) else ""
            variable = variable_hint(result, self.settings.pass_environment)
            for hint in filter(None, (network_hint(result), memory_hint(result), variable, late)):
                self.screen.note(cell, hint)
            return result

        return self._call(work)

    @contextlib.asynccontextmanager
    async def _telling(self, parent: Mapping[str, Any]) -> AsyncIterator[None]:
        """Say below the cell what goes on, where the front end can change what it shows."""
        if self._front_end.kernel is None:
            yield
            return
        progress = Progress(
            lambda kind, content: self._front_end.send(kind, content, parent, None, ()),
            attached=lambda: self._panel_attached,
        )
        ignore = self.broker.listen(progress.question)
        self._progress = progress
        try:
            async with progress:
                yield
        finally:
            self._progress = None
            ignore()

    def guest_error(self, result: CodeExecutionResult) -> FilteredError | None:
        """Return the exception that the sandbox's interpreter ended with, cleaned; None when it was no such thing."""
        error = result.error or {}
        if result.death is not None or not error or "code" in error:
            return None
        lines = tuple(map(str, error.get("traceback") or ()))
        return self.filter.error(str(error.get("ename", "")), str(error.get("evalue", "")), lines)

    def _show(self, event: OutputEvent) -> None:
        """Take output of a guest; its exception is shown by IPython, as that of the cell."""
        if self._progress is not None:
            self._progress.output()
        if not isinstance(event, ErrorOutput):
            self.screen(event)

    def command(self, options: LineOptions) -> Report:
        """Do what a ``%agently`` line asks for. Raises as :meth:`execute` does."""

        async def work(cell: str) -> Report:
            return await run_line(self, options, cell=cell)

        return self._call(work)

    def _call(self, work: Callable[[str], Awaitable[T]]) -> T:
        if self.faults:
            raise ConfigurationError(refusal(self.faults))
        cell, parent = f"cell-{next(self._numbers)}-{secrets.token_hex(2)}", self._front_end.parent()
        self._can_ask = self._front_end.can_ask()
        self._announce()

        async def run() -> T:
            self.running = cell
            if self._panel is not None:
                self._panel.cell(cell, str(parent.get("metadata", {}).get("cellId", "")))
            self.screen.begin(cell, parent, None)
            try:
                return await work(cell)
            finally:
                if not self._looked_for_settings:
                    self._looked_for_settings = True
                    for sentence in misplaced():
                        self.screen.note(cell, sentence)
                self.running = None
                await self.screen.finish(cell)

        return self._thread.call(run, stop=self._stop)

    async def _run(self, cell: str, wanted: Wanted) -> CodeExecutionResult:
        request, panel = wanted.request, self._panel
        if panel is not None:
            panel.started(cell, form=request.form.value, language=request.language, count=None, quiet=False)
        if wanted.requirement is None and self.sandbox.interpreter_lost:
            self.screen.new_guest()
        result = await self.sandbox.run(
            request, cell=cell, execution_id=f"execution-{secrets.token_hex(8)}", sink=self._show,
            input_handler=self._guest_input if self._can_ask else None,
            timeout=wanted.timeout or self.settings.timeout, requirement=wanted.requirement, access=wanted.access,
        )
        if panel is not None:
            panel.finished(cell, result, count=None)
        if self._progress is not None:
            self._progress.ended(result)
        return result

    async def _stop(self) -> bool:
        self.broker.cancel_all()
        return await self.sandbox.interrupt()

    def _input_box(self) -> Ask | None:
        return self._ask if self._can_ask and self.running is not None else None

    async def _ask(self, prompt: str, password: bool) -> str:
        self.publisher.flush()
        return await self._thread.ask(prompt, password)

    async def _guest_input(self, prompt: str, password: bool) -> str:
        return await self._ask(guest_prompt(self.filter.prompt(prompt)), password)

    def close(self) -> None:
        """End the session's sandbox, remove what it made, stop the thread. Bounded; idempotent; raises nothing."""

        async def end() -> None:
            self.broker.cancel_all()
            await self.sandbox.close()
            self.publisher.close()
            if self._panel is not None:
                self._panel.close()

        with contextlib.suppress(Exception):
            if self._remove_announcement is not None:
                self._remove_announcement()
        with contextlib.suppress(concurrent.futures.TimeoutError, RuntimeError):
            self._thread.submit(end()).result(CLOSE_SECONDS)
        self._thread.close()
