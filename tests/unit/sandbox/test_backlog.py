"""After a Stop only what would still be seen is delivered."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.contract.outputs import (
    ClearOutput,
    CommOutput,
    DisplayOutput,
    NoticeOutput,
    OutputEvent,
    StreamOutput,
)
from agently_kernel.sandbox.backlog import MOST_EVENTS, Backlog


def seen(events: list[OutputEvent]) -> Any:
    """What a front end shows in the end: outputs of each cell, displays by id, state of each widget."""
    outputs: dict[str, list[Any]] = {}
    waiting: set[str] = set()
    displays: dict[str, Any] = {}
    states: dict[str, Any] = {}
    for event in events:
        if isinstance(event, ClearOutput):
            waiting.discard(event.cell)
            if event.wait:
                waiting.add(event.cell)
            else:
                outputs[event.cell] = []
        elif isinstance(event, CommOutput):
            if event.data.get("method") == "update":
                states.setdefault(event.comm_id, {}).update(event.data["state"])
            else:
                states[event.comm_id] = {"said": (dict(event.data), dict(states.get(event.comm_id, {})))}
        elif isinstance(event, DisplayOutput) and event.kind == "update_display_data":
            displays[event.display_id or ""] = event.data
        else:
            if event.cell in waiting:
                waiting.discard(event.cell)
                outputs[event.cell] = []
            place = outputs.setdefault(event.cell, [])
            if isinstance(event, StreamOutput) and place and place[-1][0] == event.name:
                place[-1] = (event.name, place[-1][1] + event.text)
            elif isinstance(event, StreamOutput):
                place.append((event.name, event.text))
            else:
                place.append(("display", getattr(event, "data", None)))
    return {cell: found for cell, found in outputs.items() if found}, displays, states, waiting


cells = st.sampled_from(["a", "b"])
numbers = st.integers(0, 9)
events = st.one_of(
    st.builds(lambda c, n, t: StreamOutput(c, n, str(t)), cells, st.sampled_from(["stdout", "stderr"]), numbers),
    st.builds(ClearOutput, cells, st.booleans()),
    st.builds(lambda c, n: DisplayOutput(c, "display_data", {"text/plain": str(n)}, {}, None), cells, numbers),
    st.builds(
        lambda c, i, n: DisplayOutput(c, "update_display_data", {"text/plain": str(n)}, {}, i),
        st.just("a"), st.sampled_from(["x", "y"]), numbers,
    ),
    st.builds(
        lambda i, k, n: CommOutput("a", "comm_msg", i, {"method": "update", "state": {k: n}}),
        st.sampled_from(["m", "n"]), st.sampled_from(["value", "max"]), numbers,
    ),
    st.builds(lambda i, n: CommOutput("a", "comm_msg", i, {"method": "custom", "content": n}), st.just("m"), numbers),
)


@given(st.lists(events, max_size=60))
def test_the_same_is_seen_in_the_end(stream: list[OutputEvent]) -> None:
    async def through() -> list[OutputEvent]:
        got: list[OutputEvent] = []
        backlog = Backlog(got.append)
        for event in stream:
            backlog(event)
        backlog.close()
        return got

    got = asyncio.run(through())
    assert seen(got) == seen(stream)
    assert len(got) <= len(stream)


async def test_endless_painting_comes_to_a_few_events() -> None:
    got: list[OutputEvent] = []
    backlog = Backlog(got.append)
    for n in range(20_000):
        backlog(ClearOutput("a", n % 2 == 0))
        backlog(DisplayOutput("a", "update_display_data", {"text/plain": str(n)}, {}, "x"))
        backlog(CommOutput("a", "comm_msg", "m", {"method": "update", "state": {"value": n}}))
        backlog(StreamOutput("a", "stdout", f"{n}\n"))
    backlog.close()
    assert len(got) < 40
    assert got[-1] == StreamOutput("a", "stdout", "19999\n")


async def test_what_cannot_be_put_together_is_passed_on_in_order_and_bounded() -> None:
    got: list[OutputEvent] = []
    backlog = Backlog(got.append)
    sent: list[OutputEvent] = [
        CommOutput("a", "comm_msg", "m", {"method": "update", "state": {"v": n}}, {}, "", (b"x",)) for n in range(2000)
    ]
    for event in sent:
        backlog(event)
        assert len(backlog._events) <= MOST_EVENTS + 1
    backlog(NoticeOutput("a", "ours"))
    assert got == [*sent, NoticeOutput("a", "ours")]
    backlog.close()
    backlog(StreamOutput("a", "stdout", "late"))
    assert got[-1] == StreamOutput("a", "stdout", "late")
