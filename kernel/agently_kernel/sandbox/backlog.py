"""What a cell shows after its Stop: of a loop that painted thousands of pictures, only what would still be seen.

A guest may have sent far more than a front end has taken when its user presses Stop. All of it is taken at once then,
so that the end of the cell is not behind it; what was painted over meanwhile is not sent to the front end at all.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Mapping

from agently_kernel.contract.outputs import (
    ClearOutput,
    CommOutput,
    DisplayOutput,
    NoticeOutput,
    OutputEvent,
    StreamOutput,
)

INTERVAL = 0.1
"""Seconds between two deliveries."""
MOST_EVENTS = 500
MOST_TEXT = 65536
"""Characters from which a piece of text is not put together with the next one."""
_UPDATE = "update_display_data"


class Backlog:
    """A sink that gathers events and passes what they come to on to another one, in order. ``close`` it at the end."""

    def __init__(self, deliver: Callable[[OutputEvent], None]) -> None:
        self._deliver = deliver
        self._events: dict[Hashable, OutputEvent] = {}
        self._count = itertools.count()
        self._last: Hashable = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __call__(self, event: OutputEvent) -> None:
        """Take one event (an OutputSink): on the loop's thread, never blocks."""
        if self._closed:
            self._deliver(event)
            return
        if isinstance(event, NoticeOutput):
            self._flush()
            self._deliver(event)
            return
        if isinstance(event, StreamOutput):
            self._stream(event)
        elif isinstance(event, ClearOutput):
            self._clear(event)
        elif isinstance(event, DisplayOutput) and event.kind == _UPDATE and event.display_id is not None:
            self._replace((_UPDATE, event.cell, event.display_id), event)
        elif isinstance(event, CommOutput):
            self._comm(event)
        else:
            self._output(event)
        if len(self._events) > MOST_EVENTS:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._flush)

    def close(self) -> None:
        """Pass on what is left, and from now on everything at once. Idempotent."""
        self._closed = True
        self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        events, self._events, self._last = self._events, {}, None
        for event in events.values():
            self._deliver(event)

    def _add(self, event: OutputEvent) -> None:
        self._last = next(self._count)
        self._events[self._last] = event

    def _replace(self, key: Hashable, event: OutputEvent) -> None:
        self._events.pop(key, None)
        self._events[key] = event
        self._last = key

    def _output(self, event: OutputEvent) -> None:
        """Add what takes a place of its own in the cell's output; a clear that waited for it takes effect."""
        pending = ("clear", event.cell)
        if pending in self._events:
            self._drop_outputs(event.cell, before=pending)
            self._add(self._events.pop(pending))
        self._add(event)

    def _stream(self, event: StreamOutput) -> None:
        last = self._events.get(self._last)
        same = isinstance(last, StreamOutput) and (last.cell, last.name) == (event.cell, event.name)
        same = same and ("clear", event.cell) not in self._events
        if isinstance(last, StreamOutput) and same and len(last.text) < MOST_TEXT:
            self._events[self._last] = StreamOutput(event.cell, event.name, last.text + event.text)
        else:
            self._output(event)

    def _clear(self, event: ClearOutput) -> None:
        if event.wait:
            self._events.setdefault(("clear", event.cell), event)
            return
        self._events.pop(("clear", event.cell), None)
        self._drop_outputs(event.cell)
        self._add(event)

    def _drop_outputs(self, cell: str, before: Hashable = None) -> None:
        """Forget the outputs of *cell* that are cleared, and earlier clears of it."""
        for key, event in list(self._events.items()):
            if key == before:
                return
            painted = isinstance(event, StreamOutput | ClearOutput) or (
                isinstance(event, DisplayOutput) and event.kind != _UPDATE
            )
            if painted and event.cell == cell:
                del self._events[key]

    def _comm(self, event: CommOutput) -> None:
        key = ("comm", event.comm_id)
        state = _state(event)
        if state is None:
            known = self._events.pop(key, None)
            if known is not None:
                self._add(known)  # later updates must not be put together with it, across this message
            self._add(event)
            return
        known = self._events.get(key)
        before = _state(known) if isinstance(known, CommOutput) else None
        data = {**event.data, "state": {**(before or {}), **state}}
        self._replace(
            key, CommOutput(event.cell, event.kind, event.comm_id, data, event.metadata, event.target_name, ())
        )


def _state(event: CommOutput) -> Mapping[str, object] | None:
    """Return the widget state that a message updates, None for any other message and for one with binary parts."""
    state = event.data.get("state")
    plain = event.kind == "comm_msg" and event.data.get("method") == "update" and not event.buffers
    return state if plain and isinstance(state, Mapping) else None
