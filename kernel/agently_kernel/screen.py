"""From a guest's output events to what the front end gets: every event passes the trust filter, then the publisher."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agently_kernel.contract.outputs import (
    ClearOutput,
    CommOutput,
    DisplayOutput,
    ErrorOutput,
    NoticeOutput,
    OutputEvent,
    StreamOutput,
)
from agently_kernel.contract.words import counted
from agently_kernel.iopub import MAX_CELLS, Publisher
from agently_kernel.outputs import OutputFilter, StreamFilter, Withheld

log = logging.getLogger("agently_kernel.screen")

MOST_NOTICES = 20
"""Lines about withheld outputs that one cell is told; what is beyond them is counted in one more."""


def weight(data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None, buffers: Sequence[bytes] = ()) -> int:
    """Return the rough weight in bytes of a bundle: its strings and buffers, which make up nearly all of it."""
    size = 512 + sum(len(buffer) for buffer in buffers)
    stack: list[Any] = [data, metadata]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, Mapping):
            stack.extend(item.values())
            size += 16 * len(item)
        elif isinstance(item, list | tuple):
            stack.extend(item)
            size += 8 * len(item)
    return size


@dataclass(slots=True)
class _Notices:
    """What a cell was told of withheld outputs."""

    lines: set[str] = field(default_factory=set)
    left_out: int = 0


class Screen:
    """The sink of all of a kernel's executions. ``observe`` is told what was shown as text, and what was withheld."""

    def __init__(
        self,
        publisher: Publisher,
        outputs: OutputFilter,
        *,
        observe_text: Callable[[str, str], None] = lambda cell, text: None,
        observe_withheld: Callable[[str, Withheld], None] = lambda cell, item: None,
    ) -> None:
        self._publisher = publisher
        self._outputs = outputs
        self._observe_text = observe_text
        self._observe_withheld = observe_withheld
        self._filters: OrderedDict[tuple[str, str], StreamFilter] = OrderedDict()
        self._counts: OrderedDict[str, int | None] = OrderedDict()
        self._notices: OrderedDict[str, _Notices] = OrderedDict()
        self._unattended: set[str] = set()

    def begin(
        self, cell: str, parent: Mapping[str, Any], count: int | None, *, unattended: bool = False
    ) -> None:
        """Say that *cell* starts, which request it answers, and the number its result is shown with (None: silent).

        *unattended*: nobody sits at the front end, so there is no page either in which a comm could have listened.
        """
        self._publisher.begin(cell, parent)
        self._counts[cell] = count
        if unattended:
            self._unattended.add(cell)
        while len(self._counts) > MAX_CELLS:
            self._unattended.discard(self._counts.popitem(last=False)[0])

    async def finish(self, cell: str, *, stopped: bool = False) -> None:
        """Return when everything that *cell* has shown is on its way; of a *stopped* one, what its user waits for."""
        said = self._notices.get(cell)
        if said is not None and said.left_out:
            were = "was" if said.left_out == 1 else "were"
            self.note(cell, f"… and {counted(said.left_out, 'more output')} {were} withheld, in whole or in part.")
            said.left_out = 0
        for name in ("stdout", "stderr"):
            stream = self._filters.pop((cell, name), None)
            if stream is not None:
                self._text(cell, name, stream.flush())
        await self._publisher.finish(cell, stopped=stopped)

    def __call__(self, event: OutputEvent) -> None:
        """Take one event (an OutputSink): on the loop's thread, never blocks, never raises."""
        try:
            self._take(event)
        except Exception:
            # A fault here must not end the reader of the guest's channel; the event is lost and the log says so.
            log.exception("an output of kind %s could not be shown", type(event).__name__)

    def _take(self, event: OutputEvent) -> None:
        if isinstance(event, StreamOutput):
            key = (event.cell, event.name)
            stream = self._filters.get(key)
            if stream is None:
                stream = self._filters[key] = StreamFilter()
                while len(self._filters) > 2 * MAX_CELLS:
                    self._filters.popitem(last=False)
            self._text(event.cell, event.name, stream.feed(event.text))
        elif isinstance(event, DisplayOutput):
            self._display(event)
        elif isinstance(event, ErrorOutput):
            self.error(event.cell, event.ename, event.evalue, event.traceback)
        elif isinstance(event, ClearOutput):
            self._outputs.clear(event.cell)
            self._publisher.message("clear_output", {"wait": event.wait}, event.cell)
        elif isinstance(event, CommOutput):
            self._comm(event)
        elif isinstance(event, NoticeOutput):
            self.note(event.cell, event.text)

    def note(self, cell: str, text: str) -> None:
        """Show one line of the kernel's own; only what no guest can bring about at will."""
        self._publisher.note(cell, text)
        self._observe_text(cell, f"[agently] {text}\n")

    def error(self, cell: str, ename: str, evalue: str, traceback: Sequence[str]) -> dict[str, Any]:
        """Show an error and return its cleaned fields, as a reply carries them."""
        shown = self._outputs.error(ename, evalue, tuple(traceback))
        content = {"ename": shown.ename, "evalue": shown.evalue, "traceback": list(shown.traceback)}
        self._publisher.message("error", content, cell, size=weight(content))
        self._observe_text(cell, "\n".join(shown.traceback) + "\n")
        return content

    def new_guest(self) -> None:
        """The interpreter that opened comms and displays is gone: its widgets are closed in the front end."""
        for comm_id in self._outputs.new_guest():
            self.close_comm(comm_id)

    def close_comm(self, comm_id: str) -> None:
        """Tell the front end that a comm has ended."""
        self._publisher.message("comm_close", {"comm_id": comm_id, "data": {}}, "")

    def withdraw(self, kind: str) -> list[str]:
        """Show *kind* no more; comms that were open by it are closed in the front end. Returns the ids of those."""
        closed = self._outputs.disallow(kind)
        for comm_id in closed:
            self.close_comm(comm_id)
        return closed

    def withheld(self, cell: str, items: Sequence[Withheld], notice: str = "") -> None:
        """Say what was not shown: each thing once a cell, and no more than 20 lines, however much a guest tries."""
        for item in items:
            self._observe_withheld(cell, item)
        said = self._notices.get(cell)
        if said is None:
            if not notice:
                return
            said = self._notices[cell] = _Notices()
            while len(self._notices) > MAX_CELLS:
                self._notices.popitem(last=False)
        if len(said.lines) >= MOST_NOTICES:
            said.left_out += bool(items)
        elif notice and notice not in said.lines:
            said.lines.add(notice)
            self._publisher.note(cell, notice)

    def _text(self, cell: str, name: str, text: str) -> None:
        if text:
            self._publisher.text(cell, name, text)
            self._observe_text(cell, text)

    def _display(self, event: DisplayOutput) -> None:
        bundle = self._outputs.bundle(event.data, event.metadata, kind=event.kind, cell=event.cell)
        if bundle.data:
            content: dict[str, Any] = {"data": bundle.data, "metadata": bundle.metadata}
            display_id = self._outputs.display_id(event.display_id)
            if event.kind == "execute_result":
                content["execution_count"] = self._counts.get(event.cell)
            if display_id is not None:
                content["transient"] = {"display_id": display_id}
            elif event.kind == "update_display_data":
                return
            self._publisher.message(event.kind, content, event.cell, size=weight(bundle.data))
            plain = bundle.data.get("text/plain")
            if isinstance(plain, str):
                self._observe_text(event.cell, plain + "\n")
        self.withheld(event.cell, bundle.withheld, bundle.notice)

    def _comm(self, event: CommOutput) -> None:
        filtered = self._outputs.comm_from_guest(event)
        message = filtered.message
        if message is not None:
            content: dict[str, Any] = {"comm_id": message.comm_id, "data": dict(message.data)}
            if message.kind == "comm_open":
                content["target_name"] = message.target_name
            self._publisher.message(
                message.kind, content, event.cell, metadata=dict(message.metadata), buffers=message.buffers,
                size=weight(message.data, None, message.buffers),
            )
        notice = filtered.notice
        if event.cell in self._unattended and all(item.kind.startswith("comm:") for item in filtered.withheld):
            notice = ""  # as with the ordinary kernel, a comm that nobody listens to says nothing
        self.withheld(event.cell, filtered.withheld, notice)
