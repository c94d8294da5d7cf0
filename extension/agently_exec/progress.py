"""One line below a cell that says what goes on while its program shows nothing: a sandbox opens, a question waits.

A program that is quick, or that shows something soon, has no such line. It is made for front ends that can change what
they show; a terminal is told nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from agently_kernel.contract.approval import ApprovalOutcome, ApprovalRequest
from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.result import CodeExecutionResult

QUIET_SECONDS = 2.0
"""How long a cell may show nothing before the line appears."""
EVERY_SECONDS = 1.0
OPENING, RUNNING = "opening a sandbox", "the program runs"
_PHASES: Mapping[str, str] = {
    "provider_probe": "choosing a provider",
    "image_pull_started": "downloading a container image",
}


class Progress:
    """The line of one cell. Use it as a context manager on the loop that events and questions come on.

    ``send(kind, content)`` sends an iopub message as an answer to the cell's request; ``attached`` tells whether
    questions are shown in a panel.
    """

    def __init__(
        self, send: Callable[[str, dict[str, Any]], None], *, attached: Callable[[], bool] = lambda: False
    ) -> None:
        self._send = send
        self._attached = attached
        self._doing = RUNNING
        self._asked: set[str] = set()
        self._began = time.monotonic()
        self._shown = ""
        self._display = {"display_id": f"agently-progress-{secrets.token_hex(8)}"}
        self._task: asyncio.Task[None] | None = None
        self._result: CodeExecutionResult | None = None

    async def __aenter__(self) -> Progress:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._shown:
            self._show(self._end())

    # -- what happens --------------------------------------------------------------------------------------------------

    def event(self, event: ExecutionResourceEvent) -> None:
        """The resource manager told something (an EventHook)."""
        if event.event_type == "execution_resource.ready":
            self._doing = RUNNING
        elif event.event_type in ("execution_resource.ensuring", "execution_resource.progress"):
            by = f" ({event.provider_id})" if event.provider_id else ""
            self._doing = _PHASES.get(event.phase) or f"{OPENING}{by}"

    def question(self, event: str, request: ApprovalRequest, outcome: ApprovalOutcome | None, by: str) -> None:
        """A question opened or closed (a listener of the broker)."""
        if event == "opened":
            self._asked.add(request.request_id)
        else:
            self._asked.discard(request.request_id)

    def output(self) -> None:
        """The program shows something: that is sign of life enough, where the line is not there yet."""
        self._doing = RUNNING
        if not self._shown and self._task is not None:
            self._task.cancel()

    def ended(self, result: CodeExecutionResult) -> None:
        """The program ended; the line goes on to say how."""
        self._result = result

    # -- the line ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(QUIET_SECONDS)
            while True:
                self._show(f"… {self._now()} · {time.monotonic() - self._began:.0f} s")
                await asyncio.sleep(EVERY_SECONDS)

    def _now(self) -> str:
        if self._asked:
            return f"waiting for your answer in the {'sandbox panel' if self._attached() else 'input box'}"
        return self._doing

    def _end(self) -> str:
        seconds = f"{time.monotonic() - self._began:.1f} s"
        result = self._result
        if result is None:
            return f"✗ not run · {seconds}"
        mark = "✓" if result.status.value == "success" else "✗"
        where = f" in {result.facts.provider_id}" if result.facts is not None else ""
        return f"{mark} {result.status.value.replace('_', ' ')}{where} · {seconds}"

    def _show(self, text: str) -> None:
        if text == self._shown:
            return
        kind = "update_display_data" if self._shown else "display_data"
        self._shown = text
        self._send(kind, {"data": {"text/plain": text}, "metadata": {}, "transient": self._display})
