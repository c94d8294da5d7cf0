"""Routes a guest's output frames to the execution, cell or background that they belong to, as typed events.

Everything in a frame is untrusted. A cell id that never ran here counts as no cell at all, so that a guest cannot put
words into a cell that this sandbox has not run. Threads, tasks and widgets of a cell that has ended go on showing text
and displays below it. What would alter a finished cell is theirs no more: see :meth:`OutputRouter._late`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from agently_kernel.contract.outputs import (
    ClearOutput,
    CommOutput,
    DisplayOutput,
    ErrorOutput,
    OutputEvent,
    OutputSink,
    StreamOutput,
)
from agently_kernel.guest import wire
from agently_kernel.sandbox.activity import Activity, CellRun, deliver
from agently_kernel.sandbox.bounds import StreamDecoders
from agently_kernel.sandbox.payloads import BIG_JSON, json_object
from agently_kernel.sandbox.steps import PlanRun

KNOWN_CELLS = 10_000
MAX_TRACEBACK_LINES = 10_000
MOST_OUTPUT_WIDGETS = 1000


class OutputRouter:
    """Knows the running executions and the cells that have run; turns frames into events.

    ``active`` has the sandbox's main turn; ``beside`` are cells that run in subshells, by their names.
    """

    def __init__(self) -> None:
        self.active: Activity | None = None
        self.beside: dict[str, CellRun] = {}
        self.background_sink: OutputSink | None = None
        self._cells: OrderedDict[str, bool] = OrderedDict()  # with whether it had shown anything at its end
        self._output_widgets: OrderedDict[str, str] = OrderedDict()  # with the cell whose output each takes now
        self._decoders = StreamDecoders()

    def remember(self, cell: str) -> None:
        """Note a cell that runs now; of very many the oldest are forgotten."""
        self._cells[cell] = False
        self._cells.move_to_end(cell)
        while len(self._cells) > KNOWN_CELLS:
            self._cells.popitem(last=False)

    @property
    def runs(self) -> tuple[Activity, ...]:
        """All that runs, what has the main turn first."""
        return (*(() if self.active is None else (self.active,)), *self.beside.values())

    def run_of(self, cell: str) -> Activity | None:
        """Return what runs under the name *cell*."""
        if self.active is not None and self.active.cell == cell:
            return self.active
        return self.beside.get(cell)

    def ended(self, run: Activity) -> None:
        """Note that *run* is over."""
        if self.run_of(run.cell) is not run:
            return
        if self.active is run:
            self.active = None
        else:
            del self.beside[run.cell]
        if run.cell in self._cells:
            self._cells[run.cell] = run.shown

    def handle(self, op: str, header: Mapping[str, Any], payload: bytes) -> Awaitable[None] | None:
        """Take one output frame. Raises WireError for content of the wrong shape."""
        if op == "stream":
            self._stream(header, payload)
            return None
        if op == "text":
            self._text(header, payload)
            return None
        if op == "clear":
            cell = self._owner(header["cell"])
            self._emit(cell, ClearOutput(cell, header["wait"]))
            return None
        if len(payload) > BIG_JSON:
            return self._content_later(op, header, payload)
        self._content(op, header, _parse(op, header, payload))
        return None

    async def _content_later(self, op: str, header: Mapping[str, Any], payload: bytes) -> None:
        self._content(op, header, await asyncio.to_thread(_parse, op, header, payload))

    def _owner(self, cell: str | None) -> str:
        if cell is None:
            sent = (run.cell for run in self.runs if isinstance(run, CellRun) and run.sent)
            return next(sent, "")
        return cell if cell in self._cells else ""

    def _emit(self, cell: str, event: OutputEvent) -> None:
        run = self.run_of(cell)
        if run is not None:
            run.shown |= not isinstance(event, ClearOutput | CommOutput)
            deliver(run.sink, event)
        elif (late := self._late(cell, event)) is not None:
            deliver(self.background_sink, late)

    def _late(self, cell: str, event: OutputEvent) -> OutputEvent | None:
        """Return what is shown of an event for a cell that does not run: nothing may alter what it came to.

        An error is text (a widget's callback or a thread has failed, not the cell), a result a display. A clear counts
        where the cell had shown nothing when it ended, so that all there is came later. What an output widget takes
        does not touch the cell: there all goes on as ever, for ``interact`` clears and fails there.
        """
        if cell and cell in self._output_widgets.values():
            return event
        if isinstance(event, ErrorOutput):
            lines = event.traceback or (f"{event.ename}: {event.evalue}",)
            return StreamOutput(cell, "stderr", "\n".join(lines) + "\n")
        if isinstance(event, DisplayOutput) and event.kind == "execute_result":
            return replace(event, kind="display_data")
        if isinstance(event, ClearOutput) and self._cells.get(cell, True):
            return None
        return event

    def _note_output_widget(self, event: CommOutput) -> None:
        state = event.data.get("state")
        if event.kind == "comm_close":
            self._output_widgets.pop(event.comm_id, None)
        if not isinstance(state, Mapping):
            return
        if event.kind == "comm_open" and state.get("_model_name") == "OutputModel":
            self._output_widgets[event.comm_id] = ""
            while len(self._output_widgets) > MOST_OUTPUT_WIDGETS:
                self._output_widgets.popitem(last=False)
        if event.comm_id in self._output_widgets and "msg_id" in state:
            # a page is told of no other cell than the comm's own
            self._output_widgets[event.comm_id] = event.cell if state["msg_id"] == event.cell else ""

    def _stream(self, header: Mapping[str, Any], payload: bytes) -> None:
        name, step = header["name"], header.get("step")
        if step is not None:
            if isinstance(self.active, PlanRun) and step == self.active.current_step:
                self.active.stream(name, payload)
            return  # the last words of a step that is over
        cell = self._owner(header.get("cell"))
        run = self.run_of(cell)
        if isinstance(run, CellRun):
            run.stream(name, payload)
            return
        text = self._decoders.decode(cell, name, payload)
        if text:
            self._emit(cell, StreamOutput(cell, name, text))

    def _text(self, header: Mapping[str, Any], payload: bytes) -> None:
        name, cell = header["name"], self._owner(header["cell"])
        run = self.run_of(cell)
        if isinstance(run, CellRun):
            run.streams[name].add(payload)
        self._emit(cell, StreamOutput(cell, name, payload.decode("utf-8", "replace")))

    def _content(self, op: str, header: Mapping[str, Any], content: Any) -> None:
        cell = self._owner(header.get("cell"))
        event: OutputEvent
        if op == "comm":
            parts, buffers = content
            event = CommOutput(
                cell, header["kind"], header["comm_id"], json_object(parts.get("data") or {}, "a comm's data"),
                json_object(parts.get("metadata") or {}, "a comm's metadata"), header.get("target_name") or "",
                tuple(buffers),
            )
            self._note_output_widget(event)
        elif op == "display":
            bundle = json_object(content, "a display")
            event = DisplayOutput(
                cell, header["kind"], json_object(bundle.get("data"), "a display's data"),
                json_object(bundle.get("metadata") or {}, "a display's metadata"), header.get("display_id"),
            )
        else:
            error = json_object(content, "an error")
            lines = error.get("traceback") or []
            if not isinstance(lines, list) or len(lines) > MAX_TRACEBACK_LINES:
                raise wire.WireError("an error's traceback is not a list of lines")
            event = ErrorOutput(
                cell, str(error.get("ename", ""))[:1000], str(error.get("evalue", "")),
                tuple(str(line) for line in lines),
            )
            run = self.run_of(cell)
            if isinstance(run, CellRun):
                run.error = {
                    "ename": event.ename, "evalue": event.evalue, "traceback": list(event.traceback)
                }
        self._emit(cell, event)


def _parse(op: str, header: Mapping[str, Any], payload: bytes) -> Any:
    return wire.split_buffers(header.get("buffers"), payload) if op == "comm" else wire.loads(payload)
