"""What frames for a finished cell come to: nothing that comes later alters it, and honest late output is not lost."""

from __future__ import annotations

import json

import pytest
from sandbox_support import Harness, until

from agently_kernel.contract.outputs import ClearOutput, DisplayOutput, ErrorOutput, StreamOutput

ERROR = """send("error", b'{"ename": "Fake", "evalue": "e", "traceback": ["t1", "t2"]}', cell=c)"""
RESULT = """send("display", b'{"data": {"text/plain": "FAKE"}, "metadata": {}}', cell=c, kind="execute_result")"""
DISPLAY = RESULT.replace("execute_result", "display_data")
UPDATE = RESULT.replace("execute_result", "update_display_data")
CLEAR = 'send("clear", cell=c, wait=False)'
TEXT = 'send("text", b"late", name="stderr", cell=c)'
LATE = {
    "error": (ERROR, [StreamOutput("c1", "stderr", "t1\nt2\n")]),
    "result": (RESULT, [DisplayOutput("c1", "display_data", {"text/plain": "FAKE"}, {}, None)]),
    "clear": (CLEAR, []),
    "display": (DISPLAY, [DisplayOutput("c1", "display_data", {"text/plain": "FAKE"}, {}, None)]),
    "update": (UPDATE, [DisplayOutput("c1", "update_display_data", {"text/plain": "FAKE"}, {}, None)]),
    "text": (TEXT, [StreamOutput("c1", "stderr", "late")]),
}
AFTER = """
boot(); start(); c = cell()["cell"]
{before}
done(c)
{other}
{late}
send("stream", b"end", name="stdout")
receive(); receive()
"""


@pytest.mark.parametrize("other", ["", 'd = cell()["cell"]'], ids=["idle", "another cell runs"])
@pytest.mark.parametrize("before", [TEXT, DISPLAY, ERROR, 'send("stream", b"x", name="stdout", cell=c)'])
@pytest.mark.parametrize("kind", LATE)
async def test_frames_for_a_finished_cell(harness: Harness, kind: str, before: str, other: str) -> None:
    late, wanted = LATE[kind]
    await harness.open(AFTER.format(before=before, other=other, late=late + ("; done(d)" if other else "")))
    await harness.run("1", cell="c1")
    if other:
        await harness.run("2", cell="c2")
    await until(lambda: any(getattr(event, "text", "") == "end" for event in harness.background))
    assert harness.background[:-1] == wanted
    assert all(event.cell != "c2" for event in harness.events)


async def test_a_cell_that_had_shown_nothing_clears_what_came_later(harness: Harness) -> None:
    await harness.open(AFTER.format(before="", other="", late="; ".join([TEXT, CLEAR, TEXT, CLEAR])))
    await harness.run("1", cell="c1")
    await until(lambda: len(harness.background) == 5)
    text, clear = StreamOutput("c1", "stderr", "late"), ClearOutput("c1", False)
    assert harness.background[:-1] == [text, clear, text, clear]


def comm(state: dict[str, object], kind: str = "comm_msg", cell: str = "c") -> str:
    content = json.dumps({"data": {"state": state}, "metadata": {}}).encode()
    return f'send("comm", {content!r}.replace(b"CELL", c.encode()), cell={cell}, kind={kind!r}, comm_id="w", ' \
        f'buffers=[len({content!r}.replace(b"CELL", c.encode()))])'


async def test_what_an_output_widget_takes_goes_on_as_ever(harness: Harness) -> None:
    opened = comm({"_model_name": "OutputModel", "msg_id": ""}, "comm_open")
    late = "; ".join([comm({"msg_id": "CELL"}), CLEAR, ERROR, comm({"msg_id": ""}), CLEAR, ERROR])
    await harness.open(AFTER.format(before=TEXT + "; " + opened, other="", late=late))
    await harness.run("1", cell="c1")
    await until(lambda: len(harness.background) == 6)
    shown = [event for event in harness.background if not hasattr(event, "comm_id")]
    assert shown[:-1] == [
        ClearOutput("c1", False), ErrorOutput("c1", "Fake", "e", ("t1", "t2")), StreamOutput("c1", "stderr", "t1\nt2\n")
    ]


@pytest.mark.parametrize(
    "claim",
    [
        comm({"_model_name": "SliderModel", "msg_id": "CELL"}, "comm_open"),
        comm({"msg_id": "CELL"}),
        comm({"_model_name": "OutputModel", "msg_id": "other"}, "comm_open"),
    ],
    ids=["no output widget", "never opened", "of another cell"],
)
async def test_only_an_output_widget_of_the_cell_itself_takes(harness: Harness, claim: str) -> None:
    await harness.open(AFTER.format(before=TEXT, other="", late=claim + "; " + CLEAR))
    await harness.run("1", cell="c1")
    await until(lambda: any(getattr(event, "text", "") == "end" for event in harness.background))
    assert not any(isinstance(event, ClearOutput) for event in harness.background)
