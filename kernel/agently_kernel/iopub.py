"""What a cell shows, on its way to the iopub socket: in order, coalesced, bounded, nothing lost to a slow reader.

A publishing socket drops messages silently when a reader falls behind by its high-water mark, ``idle`` included, and a
Jupyter server drops streams above a rate. So text is gathered and sent at most twenty times a second and stream, in
messages of at most 1 MiB; a cell that prints without end keeps its head and its tail, and what lies between goes to a
log of the workspace. Everything else (displays, errors, clears) goes out at once, after the text that came before it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from agently_kernel.contract.words import counted

INTERVAL = 0.05
"""Seconds between two messages of one stream."""
MAX_MESSAGE = 2**20
"""Most characters of one stream message."""
BURST = 20
"""Stream messages that may be sent at once to keep the order of stdout and stderr before the two are gathered."""
STOPPED_TAIL = 128 * 1024
"""Most bytes of the tail of a stopped cell behind a Jupyter server: what a moment's pace allows."""
MAX_CELLS = 1000
"""Finished cells whose late output still finds its way."""

Send: TypeAlias = Callable[[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any] | None, Sequence[bytes]], None]
"""``send(message type, content, parent, metadata, buffers)``"""


class SpillLog(Protocol):
    """Where the text between head and tail is written; bounded by whoever made it."""

    def write(self, text: str) -> None:
        """Append *text*; beyond its bound it is dropped silently."""

    def close(self) -> None:
        """Close the log; harmless when it is closed."""

    def account(self, hidden: int) -> str:
        """Return a sentence on where the first *hidden* bytes are, and what of them could not be kept; "" for none."""


def size_of(text: str) -> int:
    """Return the number of UTF-8 bytes of *text*."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def collapse_returns(text: str) -> str:
    """Drop what a carriage return has certainly painted over, so that a progress bar costs its last picture only.

    Within a line ``a\\rb\\rc`` an inner piece is dropped when a later piece is at least as long. The first piece stays,
    since it goes on from text that was sent earlier; pieces with terminal escapes stay, since their width is unknown.
    """
    if text.count("\r") < 3:
        return text
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.count("\r") < 3:
            continue
        ending = "\r" if number < len(lines) - 1 and line.endswith("\r") else ""
        pieces = (line[:-1] if ending else line).split("\r")
        kept, longest = [pieces[-1]], len(pieces[-1]) if "\x1b" not in pieces[-1] else 0
        for piece in reversed(pieces[1:-1]):
            if len(piece) > longest or "\x1b" in piece:
                kept.append(piece)
            if "\x1b" not in piece:
                longest = max(longest, len(piece))
        kept.append(pieces[0])
        lines[number] = "\r".join(reversed(kept)) + ending
    return "\n".join(lines)


@dataclass(slots=True)
class _Bucket:
    """A token bucket: ``rate`` a second, at most ``most`` saved up; it may go below zero for one spend."""

    rate: float
    most: float
    level: float = field(init=False)
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.level, self.at = self.most, time.monotonic()

    def refill(self) -> float:
        now = time.monotonic()
        self.level = min(self.most, self.level + (now - self.at) * self.rate)
        self.at = now
        return self.level


@dataclass(slots=True)
class CellOutput:
    """The output side of one cell."""

    cell: str
    parent: Mapping[str, Any]
    head_left: int
    tail_most: int
    open_log: Callable[[str], SpillLog]
    finished: bool = False
    tail: deque[tuple[str, str]] = field(default_factory=deque)
    tail_size: int = 0
    overflow_bytes: int = 0
    overflow_lines: int = 0
    log: SpillLog | None = None
    shown_note: bool = False


class Publisher:
    """Sends the output of all cells of a kernel. Lives on one event loop's thread; ``close`` when the kernel ends.

    ``budget`` is the most bytes of text shown of one cell. ``pace`` is bytes of text a second, with a burst of
    ``burst`` bytes, for front ends behind a server that drops faster streams; None sends as fast as it comes. ``hold``
    is called with True when so much is on its way that whoever reads from the guest should pause, and with False when
    it may go on.
    """

    def __init__(
        self,
        send: Send,
        *,
        budget: int,
        open_log: Callable[[str], SpillLog],
        pace: float | None = None,
        burst: float = 2_400_000.0,
        hold: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._send = send
        self._budget = budget
        self._open_log = open_log
        self._hold = hold
        self._cells: OrderedDict[str, CellOutput] = OrderedDict()
        # The outbox: text waits here as (cell, name, pieces), anything else as a ready call; strictly in order.
        self._outbox: deque[tuple[CellOutput, str, list[str]] | Callable[[], None]] = deque()
        self._pace = _Bucket(pace, burst) if pace else None
        self._stream_tokens = _Bucket(1 / INTERVAL, BURST)
        self._traffic = _Bucket(800, 1600)
        self._volume = _Bucket(32e6, 128e6)
        self._holding = False
        self._timer: asyncio.TimerHandle | None = None
        self._last_flush = 0.0
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False

    # -- cells ---------------------------------------------------------------------------------------------------------

    def begin(self, cell: str, parent: Mapping[str, Any]) -> None:
        """Say that *cell* starts and which request its output answers."""
        half = max(1, self._budget // 2)
        self._cells[cell] = CellOutput(cell, parent, half, half, self._open_log)
        while len(self._cells) > MAX_CELLS:
            self._release_log(self._cells.popitem(last=False)[1])

    async def finish(self, cell: str, *, stopped: bool = False) -> None:
        """Send all that *cell* has shown so far, its kept tail included, and return when it is on the socket.

        Of a cell that was *stopped* the tail is short where the pace would hold up its end: its user waits for that.
        """
        output = self._cells.get(cell)
        if output is None:
            return
        output.finished = True
        if stopped and self._pace is not None:
            output.tail_most = min(output.tail_most, STOPPED_TAIL)
            self._trim(output)
        self._send_tail(output)
        # what threads of a finished cell still print has a small budget of its own, with the log behind it and no tail
        output.head_left, output.tail_most = min(64 * 1024, self._budget // 2), 0
        self._drain()
        await self._empty.wait()

    def flush(self) -> None:
        """Send now what is waiting, as far as the pace allows: a question is about to be asked."""
        self._drain()

    def parent(self, cell: str) -> Mapping[str, Any]:
        """Return the parent that output of *cell* belongs to; for an unknown cell that of the newest one."""
        output = self._cells.get(cell) or (next(reversed(self._cells.values())) if self._cells else None)
        return output.parent if output else {}

    def close(self) -> None:
        """Send what is waiting, close logs and stop the timer."""
        self._pace = None
        self._drain()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for output in self._cells.values():
            self._release_log(output)

    # -- output --------------------------------------------------------------------------------------------------------

    def text(self, cell: str, name: str, text: str) -> None:
        """Take cleaned text of a stream of *cell*."""
        output = self._cells.get(cell) or (next(reversed(self._cells.values())) if self._cells else None)
        if output is None or not text or self._closed:
            return
        size = size_of(text)
        if output.head_left >= size and not output.overflow_bytes:
            output.head_left -= size
            self._put(output, name, text)
        else:
            self._overflow(output, name, text, size)

    def note(self, cell: str, text: str) -> None:
        """Show a line of the kernel's own on the cell's stderr; it does not count against the cell's budget."""
        output = self._cells.get(cell) or (next(reversed(self._cells.values())) if self._cells else None)
        if output is not None:
            self._put(output, "stderr", f"[agently] {text}\n")

    def message(
        self,
        kind: str,
        content: Mapping[str, Any],
        cell: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        buffers: Sequence[bytes] = (),
        size: int = 1024,
    ) -> None:
        """Send anything that is not text, after the text before it. *size* is its rough weight in bytes."""
        if self._closed:
            return
        parent = self.parent(cell)
        self._outbox.append(lambda: self._send(kind, content, parent, metadata, buffers))
        self._spend(1, size)
        self._drain()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _put(self, output: CellOutput, name: str, text: str) -> None:
        last = self._outbox[-1] if self._outbox else None
        if isinstance(last, tuple) and last[0] is output and last[1] == name:
            last[2].append(text)
        else:
            self._outbox.append((output, name, [text]))
        self._empty.clear()
        if self._timer is None:
            # after a quiet moment the first text goes out in the next turn of the loop, with all that came with it
            self._schedule(max(0.0, self._last_flush + INTERVAL - time.monotonic()))

    def _schedule(self, seconds: float) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._drain()
        if self._holding and self._traffic.refill() > 0 and self._volume.refill() > 0:
            self._holding = False
            self._hold(False)
        if self._outbox or self._holding:
            self._schedule(INTERVAL)

    def _spend(self, messages: int, size: int) -> None:
        self._traffic.refill()
        self._volume.refill()
        self._traffic.level -= messages
        self._volume.level -= size
        if not self._holding and (self._traffic.level < 0 or self._volume.level < 0):
            self._holding = True
            self._hold(True)
            self._schedule(INTERVAL)

    def _drain(self) -> None:
        """Send the outbox in order, as far as the pace allows."""
        self._last_flush = time.monotonic()
        self._gather()
        while self._outbox:
            entry = self._outbox[0]
            if isinstance(entry, tuple):
                output, name, pieces = entry
                if self._pace is not None and self._pace.refill() <= 0:
                    self._schedule(INTERVAL)
                    return
                text = collapse_returns("".join(pieces))
                if len(text) > MAX_MESSAGE:
                    text, rest = text[:MAX_MESSAGE], text[MAX_MESSAGE:]
                    pieces[:] = [rest]
                else:
                    self._outbox.popleft()
                size = size_of(text)
                if self._pace is not None:
                    self._pace.level -= size
                self._stream_tokens.level -= 1
                self._spend(1, size)
                self._send("stream", {"name": name, "text": text}, output.parent, None, ())
            else:
                self._outbox.popleft()
                entry()
        self._empty.set()

    def _gather(self) -> None:
        """When stdout and stderr alternate faster than messages may be sent, put each run's pieces together by name."""
        if len(self._outbox) <= 2 or len(self._outbox) <= self._stream_tokens.refill():
            return
        gathered: deque[tuple[CellOutput, str, list[str]] | Callable[[], None]] = deque()
        run: dict[tuple[str, str], tuple[CellOutput, str, list[str]]] = {}
        for entry in self._outbox:
            if isinstance(entry, tuple):
                key = (entry[0].cell, entry[1])
                if key in run:
                    run[key][2].extend(entry[2])
                else:
                    run[key] = entry
                    gathered.append(entry)
            else:
                run.clear()
                gathered.append(entry)
        self._outbox = gathered

    def _overflow(self, output: CellOutput, name: str, text: str, size: int) -> None:
        if output.log is None:
            output.log = output.open_log(output.cell)
        output.log.write(text)
        output.overflow_bytes += size
        output.overflow_lines += text.count("\n")
        if not output.shown_note and not output.finished:
            output.shown_note = True
            self.note(output.cell, "This cell prints more than is shown while it runs; its last part follows later.")
        output.tail.append((name, text))
        output.tail_size += size
        self._trim(output)

    @staticmethod
    def _trim(output: CellOutput) -> None:
        while output.tail and output.tail_size - size_of(output.tail[0][1]) >= output.tail_most:
            output.tail_size -= size_of(output.tail.popleft()[1])

    def _send_tail(self, output: CellOutput) -> None:
        if not output.tail:
            return
        tail, kept = list(output.tail), output.tail_size
        excess = kept - output.tail_most
        if excess > 0:
            name, first = tail[0]
            tail[0] = (name, first[min(len(first), excess) :])
            kept = sum(size_of(text) for _, text in tail)
        lines = output.overflow_lines - sum(text.count("\n") for _, text in tail)
        dropped = output.overflow_bytes - kept
        if dropped > 0:
            account = output.log.account(dropped) if output.log is not None else ""
            where = f" {account}" if account else ""
            self.note(output.cell, f"{counted(dropped, 'byte')} in {counted(lines, 'line')} are not shown here.{where}")
        for name, text in tail:
            self._put(output, name, text)
        output.tail.clear()
        output.tail_size = output.overflow_bytes = output.overflow_lines = 0
        self._release_log(output)

    @staticmethod
    def _release_log(output: CellOutput) -> None:
        if output.log is not None:
            output.log.close()
            output.log = None
