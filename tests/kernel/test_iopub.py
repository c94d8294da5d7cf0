"""The output coalescer: order, rate, budget, tail, pace, late output."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.iopub import MAX_MESSAGE, Publisher, collapse_returns

PARENT = {"header": {"msg_id": "one"}}


class Wire:
    """Keeps what was sent, with the time of sending."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, str, dict[str, Any], Mapping[str, Any]]] = []

    def __call__(
        self, kind: str, content: Mapping[str, Any], parent: Mapping[str, Any], metadata: Any, buffers: Sequence[bytes]
    ) -> None:
        self.sent.append((time.monotonic(), kind, dict(content), parent))

    def text(self, name: str = "stdout") -> str:
        return "".join(c["text"] for _, kind, c, _ in self.sent if kind == "stream" and c["name"] == name)

    @property
    def kinds(self) -> list[str]:
        return [kind for _, kind, _, _ in self.sent]


class Log:
    """A spill log in memory."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.closed = False

    def account(self, hidden: int) -> str:
        return "They are in the log."

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def write(self, text: str) -> None:
        self.pieces.append(text)

    def close(self) -> None:
        self.closed = True


def make(budget: int = 2**23, **options: Any) -> tuple[Publisher, Wire, list[Log]]:
    wire, logs = Wire(), []

    def open_log(cell: str) -> Log:
        logs.append(Log())
        return logs[-1]

    return Publisher(wire, budget=budget, open_log=open_log, **options), wire, logs


async def test_a_short_cell_is_one_message_and_keeps_its_parent() -> None:
    publisher, wire, _ = make()
    publisher.begin("a", PARENT)
    publisher.text("a", "stdout", "one\n")
    publisher.text("a", "stdout", "two\n")
    await publisher.finish("a")
    assert [(kind, content, parent) for _, kind, content, parent in wire.sent] == [
        ("stream", {"name": "stdout", "text": "one\ntwo\n"}, PARENT)
    ]
    publisher.close()


async def test_text_comes_before_the_display_that_followed_it() -> None:
    publisher, wire, _ = make()
    publisher.begin("a", PARENT)
    publisher.text("a", "stdout", "before")
    publisher.message("display_data", {"data": {}}, "a")
    publisher.text("a", "stderr", "after")
    await publisher.finish("a")
    assert wire.kinds == ["stream", "display_data", "stream"]
    publisher.close()


async def test_text_arrives_while_the_cell_runs_and_at_most_twenty_times_a_second() -> None:
    publisher, wire, _ = make()
    publisher.begin("a", PARENT)
    started = time.monotonic()
    while time.monotonic() - started < 0.5:
        publisher.text("a", "stdout", "x")
        await asyncio.sleep(0.001)
    elapsed = time.monotonic() - started
    assert wire.sent[0][0] - started < 0.1
    assert 3 <= len(wire.sent) <= 2 + elapsed * 20
    publisher.close()


async def test_alternating_streams_keep_their_order_while_few_and_are_gathered_when_many() -> None:
    publisher, wire, _ = make()
    publisher.begin("a", PARENT)
    for _ in range(2):
        publisher.text("a", "stdout", "o")
        publisher.text("a", "stderr", "e")
    await publisher.finish("a")
    assert [content["text"] for _, _, content, _ in wire.sent] == ["o", "e", "o", "e"]
    wire.sent.clear()
    publisher.begin("b", PARENT)
    for _ in range(5000):
        publisher.text("b", "stdout", "o")
        publisher.text("b", "stderr", "e")
    await publisher.finish("b")
    assert (wire.text("stdout"), wire.text("stderr"), len(wire.sent)) == ("o" * 5000, "e" * 5000, 2)
    publisher.close()


async def test_no_message_is_larger_than_a_mebibyte() -> None:
    publisher, wire, _ = make()
    publisher.begin("a", PARENT)
    publisher.text("a", "stdout", "x" * (3 * MAX_MESSAGE + 5))
    await publisher.finish("a")
    assert [len(content["text"]) for _, _, content, _ in wire.sent] == [MAX_MESSAGE] * 3 + [5]
    publisher.close()


async def test_beyond_the_budget_head_and_tail_stay_and_the_marker_counts_what_is_missing() -> None:
    publisher, wire, logs = make(budget=2000)
    publisher.begin("a", PARENT)
    lines = [f"line {number:05}\n" for number in range(1000)]
    for line in lines:
        publisher.text("a", "stdout", line)
    await publisher.finish("a")
    shown, notes = wire.text("stdout"), wire.text("stderr")
    assert shown.startswith("line 00000\n")
    assert shown.endswith("line 00999\n")
    assert len(shown) <= 2000 + len(lines[0])
    missing = 1000 * len(lines[0]) - len(shown)
    count = 1000 - shown.count("\n")
    assert f"[agently] {missing:,} bytes in {count:,} lines are not shown here. They are in the log." in notes
    assert logs[0].text == "".join(lines)[len("".join(lines)) - len(logs[0].text) :]
    assert logs[0].closed
    publisher.close()


async def test_a_flood_keeps_memory_flat() -> None:
    publisher, wire, _ = make(budget=2**16)
    publisher.begin("a", PARENT)
    piece = "y" * 4096 + "\n"
    for number in range(10_000):
        publisher.text("a", "stdout", piece)
        if number % 100 == 0:
            await asyncio.sleep(0)
    output = publisher._cells["a"]
    assert output.tail_size <= 2**15 + len(piece)
    await publisher.finish("a")
    assert len(wire.text("stdout")) <= 2**16 + len(piece)
    publisher.close()


async def test_late_text_goes_to_its_own_cell() -> None:
    publisher, wire, _ = make()
    publisher.begin("a", PARENT)
    await publisher.finish("a")
    publisher.begin("b", {"header": {"msg_id": "two"}})
    publisher.text("a", "stdout", "late\n")
    publisher.text("b", "stdout", "now\n")
    await publisher.finish("b")
    assert [(content["text"], parent) for _, _, content, parent in wire.sent] == [
        ("late\n", PARENT),
        ("now\n", {"header": {"msg_id": "two"}}),
    ]
    publisher.close()


async def test_late_floods_go_to_the_log_only() -> None:
    publisher, wire, logs = make(budget=2000)
    publisher.begin("a", PARENT)
    await publisher.finish("a")
    for _ in range(100):
        publisher.text("a", "stdout", "z" * 100)
    await publisher.finish("a")
    assert 900 <= len(wire.text()) <= 1100
    publisher.close()
    assert len(logs[0].text) + len(wire.text()) == 10_000


async def test_behind_a_server_text_is_paced_and_none_is_lost() -> None:
    publisher, wire, _ = make(pace=1_000_000.0, burst=100_000.0)
    publisher.begin("a", PARENT)
    started = time.monotonic()
    publisher.text("a", "stdout", "x" * 3 * MAX_MESSAGE)
    publisher.message("display_data", {}, "a")
    await publisher.finish("a")
    assert 1.5 < time.monotonic() - started < 6
    assert len(wire.text()) == 3 * MAX_MESSAGE
    assert wire.kinds == ["stream", "stream", "stream", "display_data"]
    publisher.close()


async def test_a_flood_of_messages_holds_the_guest_back_and_lets_it_go_on() -> None:
    held: list[bool] = []
    publisher, _, _ = make(hold=held.append)
    publisher.begin("a", PARENT)
    for _ in range(3000):
        publisher.message("display_data", {}, "a")
    assert held == [True]
    publisher._traffic.level = 1.0
    await asyncio.sleep(0.2)
    assert held == [True, False]
    publisher.close()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("10%\r20%\r30%\r40%", "10%\r40%"),
        ("a\rb\r", "a\rb\r"),
        ("x\ry\rz\r\nnext", "x\rz\r\nnext"),
        ("start\rlonger text\rab\rcd", "start\rlonger text\rcd"),
        ("s\r\x1b[31mred\x1b[0m\rab\rcd", "s\r\x1b[31mred\x1b[0m\rcd"),
    ],
)
def test_what_a_return_painted_over_is_dropped(text: str, kept: str) -> None:
    assert collapse_returns(text) == kept


def painted(text: str) -> list[str]:
    """Return what a screen shows: each line with later pieces written over earlier ones."""
    lines = []
    for line in text.split("\n"):
        cells = ""
        for piece in line.split("\r"):
            cells = piece + cells[len(piece) :]
        lines.append(cells)
    return lines


@given(st.text(alphabet="ab \r\n", max_size=80))
def test_collapsing_never_changes_what_is_seen(text: str) -> None:
    assert painted(collapse_returns(text)) == painted(text)
