"""Widgets and comms of a guest, over the protocol: both ways, while a cell runs too, and never as somebody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kernel_session import KernelSession, Run

PRELUDE = "import ipywidgets as w, threading, time\nfrom IPython.display import display\n"


@pytest.fixture(scope="module", autouse=True)
def prepared(kernel: KernelSession) -> None:
    assert kernel.run(PRELUDE).status == "ok"


def models(run: Run, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Ids and states of the widgets of a model that a cell has opened."""
    return [
        (m["content"]["comm_id"], m["content"]["data"]["state"])
        for m in run.of("comm_open")
        if m["content"]["data"]["state"].get("_model_name") == name
    ]


def states(run: Run, comm_id: str) -> list[dict[str, Any]]:
    """What of a widget's state a cell has sent after it was opened."""
    return [
        m["content"]["data"]["state"]
        for m in run.of("comm_msg")
        if m["content"]["comm_id"] == comm_id and m["content"]["data"].get("method") in ("update", "echo_update")
    ]


def set_state(kernel: KernelSession, comm_id: str, **state: Any) -> None:
    """Send a widget's change as a front end does."""
    data = {"method": "update", "state": state, "buffer_paths": []}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data}))


def test_interact_calls_its_function_for_each_change(kernel: KernelSession) -> None:
    run = kernel.run(
        "calls = []\n@w.interact(x=(0, 10))\ndef shown(x=3):\n    calls.append(x); print('x is', x); return x"
    )
    ((slider, state),) = models(run, "IntSliderModel")
    for change in states(run, slider):
        state |= change
    assert (state["value"], state["min"], state["max"], state["description"]) == (3, 0, 10, "x")
    ((output, _),) = models(run, "OutputModel")
    views = [m["content"]["data"].get("application/vnd.jupyter.widget-view+json") for m in run.of("display_data")]
    assert [view["version_major"] for view in views if view] == [2]
    set_state(kernel, slider, value=8)
    kernel.settle(1.0)
    assert kernel.run("calls").result == "[3, 8]"
    assert output


def test_the_output_of_a_block_goes_into_an_output_widget(kernel: KernelSession) -> None:
    run = kernel.run("out = w.Output()\nprint('before')\nwith out:\n    print('inside')\nprint('after')")
    ((comm_id, _),) = models(run, "OutputModel")
    msg_ids = [state["msg_id"] for state in states(run, comm_id) if "msg_id" in state]
    assert msg_ids == [run.message_id, ""]  # what the page moves into the widget is the output of this very request
    order = [
        m["content"]["text"] if m["msg_type"] == "stream" else m["content"]["data"]["state"].get("msg_id")
        for m in run.messages
        if m["msg_type"] == "stream" or (m["msg_type"] == "comm_msg" and m["content"]["comm_id"] == comm_id)
    ]
    assert order == ["before\n", run.message_id, "inside\n", "", "after\n"]
    appended = kernel.run("out.append_stdout('added'); out.append_display_data('shown'); len(out.outputs)")
    assert appended.result == "2"
    (last,) = states(appended, comm_id)[-1:]
    assert [o["output_type"] for o in last["outputs"]] == ["stream", "display_data"]


def test_an_output_widget_cannot_take_the_output_of_another_request(kernel: KernelSession) -> None:
    victim = kernel.run("'victim'")
    run = kernel.run(f"out.msg_id = {victim.message_id!r}; out.msg_id = 'guessed_id_of_the_next'; out.msg_id = ''")
    assert {state.get("msg_id") for m in run.of("comm_msg") for state in [m["content"]["data"]["state"]]} == {""}


def test_progress_from_a_thread_while_the_cell_runs_and_after_it(kernel: KernelSession) -> None:
    run = kernel.run(
        "bar = w.FloatProgress(max=10); display(bar)\n"
        "def work():\n    for i in range(1, 11):\n        time.sleep(0.03); bar.value = i\n"
        "t = threading.Thread(target=work); t.start(); time.sleep(0.15)"
    )
    ((comm_id, _),) = models(run, "FloatProgressModel")
    during = [state["value"] for state in states(run, comm_id)]
    assert during and during[-1] < 10
    kernel.run("t.join()")
    kernel.settle(1.0, lambda: states(run, comm_id)[-1]["value"] == 10)
    assert [state["value"] for state in states(run, comm_id)] == [float(i) for i in range(1, 11)]


def test_tqdm_of_a_notebook_is_a_widget(kernel: KernelSession) -> None:
    run = kernel.run(
        "from tqdm.notebook import tqdm as notebook_bar\nfor i in notebook_bar(range(5)): time.sleep(0.01)"
    )
    ((comm_id, state),) = models(run, "FloatProgressModel")
    assert state["max"] == 5.0
    assert states(run, comm_id)[-1].get("bar_style", "success") == "success"


def test_a_cell_that_runs_hears_of_changes(kernel: KernelSession) -> None:
    opened = kernel.run(
        "field = w.Text(); button = w.Button(description='Go'); display(field, button)\nclicks = []\n"
        "button.on_click(lambda b: clicks.append(field.value))"
    )
    ((field, _),), ((button, _),) = models(opened, "TextModel"), models(opened, "ButtonModel")
    run = kernel.send("end = time.time() + 10\nwhile not clicks and time.time() < end: time.sleep(0.02)\nclicks")
    kernel.settle(0.3)
    set_state(kernel, field, value="typed")
    data = {"method": "custom", "content": {"event": "click"}}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", {"comm_id": button, "data": data}))
    assert kernel.wait(run).result == "['typed']"


def test_an_awaiting_cell_hears_of_changes(kernel: KernelSession) -> None:
    opened = kernel.run("import asyncio\nnumber = w.IntText(); display(number)")
    ((number, _),) = models(opened, "IntTextModel")
    run = kernel.send(
        "future = asyncio.get_running_loop().create_future()\n"
        "number.observe(lambda c: future.done() or future.set_result(c.new), 'value')\n"
        "await asyncio.wait_for(future, 10)"
    )
    kernel.settle(0.3)
    set_state(kernel, number, value=12)
    assert kernel.wait(run).result == "12"


def test_buffers_both_ways(kernel: KernelSession) -> None:
    run = kernel.run(
        "picture = w.Image(value=b'\\x89PNG\\r\\n\\x1a\\n' + bytes(range(256)), format='png'); display(picture)"
    )
    (opened,) = [m for m in run.of("comm_open") if m["content"]["data"]["state"].get("_model_name") == "ImageModel"]
    assert [bytes(b) for b in opened["buffers"]] == [b"\x89PNG\r\n\x1a\n" + bytes(range(256))]
    assert opened["content"]["data"]["buffer_paths"] == [["value"]]
    run = kernel.run("upload = w.FileUpload(); display(upload)")
    ((comm_id, _),) = models(run, "FileUploadModel")
    entry = {"name": "a.bin", "type": "x/y", "size": 3, "last_modified": 0, "error": ""}
    data = {"method": "update", "state": {"value": [entry]}, "buffer_paths": [["value", 0, "content"]]}
    message = kernel.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
    kernel.client.session.send(kernel.client.shell_channel.socket, message, buffers=[b"\x00\xff\x01"])
    kernel.settle(0.5)
    assert kernel.run("bytes(upload.value[0].content)").result == "b'\\x00\\xff\\x01'"


def test_a_page_that_loads_gets_the_states_of_all_widgets(kernel: KernelSession) -> None:
    kernel.run("slider = w.IntSlider(value=17); display(slider)")
    content = {"comm_id": "control-1", "target_name": "jupyter.widget.control", "data": {}}
    message = kernel.client.session.msg("comm_open", content, metadata={"version": "1.0.0"})
    kernel.client.shell_channel.send(message)
    request = kernel.client.session.msg("comm_msg", {"comm_id": "control-1", "data": {"method": "request_states"}})
    kernel.client.shell_channel.send(request)
    found: dict[str, Any] = {}

    def arrived() -> bool:
        for m in [*kernel.other, *(m for run in kernel.runs.values() for m in run.messages)]:
            if m["msg_type"] == "comm_msg" and m["content"]["comm_id"] == "control-1":
                found.update(m["content"]["data"])
        return bool(found)

    kernel.settle(5.0, arrived)
    assert found["method"] == "update_states"
    values = [s["state"].get("value") for s in found["states"].values() if s["model_name"] == "IntSliderModel"]
    assert 17 in values


def test_a_comm_that_a_cell_opens_by_hand(kernel: KernelSession) -> None:
    run = kernel.run(
        "from comm import create_comm\n"
        "c = create_comm(target_name='jupyter.widget', data={'state': {'_model_module': '@jupyter-widgets/controls', "
        "'_model_name': 'LabelModel', 'value': 'by hand'}}, metadata={'version': '2.1.0'})\nc.close()"
    )
    ((comm_id, state),) = models(run, "LabelModel")
    assert state["value"] == "by hand"
    assert [m["content"]["comm_id"] for m in run.of("comm_close")] == [comm_id]


@pytest.mark.parametrize(
    "target", ["agently.panel", "Agently.x", "jupyter.widget.control", "hello", "", "pyviz", "jupyter.widget "]
)
def test_other_comm_targets_do_not_reach_the_front_end(kernel: KernelSession, target: str) -> None:
    run = kernel.run(
        f"c = create_comm(target_name={target!r}, data={{'x': 1}}); c.send({{'y': 2}}); c.close()\nprint('on')"
    )
    assert run.of("comm_open", "comm_msg", "comm_close") == []
    assert run.text() == "on\n"
    assert run.status == "ok"


def test_an_allowed_comm_answers_while_its_cell_awaits(start: Callable[..., KernelSession]) -> None:
    kernel = start(settings={"auto_allow": True})
    code = (
        "import asyncio, comm\nreply = asyncio.get_running_loop().create_future()\n"
        "c = comm.create_comm(target_name='page-script', data={'x': 1})\n"
        "c.on_msg(lambda m: reply.set_result(m['content']['data']['value']))\n"
        "print(await asyncio.wait_for(reply, 10))"
    )
    kernel.run("%agently allow comm:page-script")

    def answer(run: Run) -> None:
        if not answered and run.of("comm_open"):
            answered.append(run.of("comm_open")[0]["content"]["comm_id"])
            content = {"comm_id": answered[0], "data": {"value": 42}}
            kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", content))

    answered: list[str] = []
    run = kernel.run(code, during=answer)
    assert run.text() == "42\n", run.error
    other = kernel.run("comm.create_comm(target_name='another-script')", allow_stdin=True)
    assert other.of("comm_open") == []
    assert "%agently allow comm:another-script" in other.text("stderr")


def test_a_comm_that_no_page_could_take_says_nothing(kernel: KernelSession) -> None:
    assert kernel.run("c = create_comm(target_name='missing-handler'); c.send({'y': 2})").text("stderr") == ""


def test_comms_of_others_cannot_be_used_or_closed(kernel: KernelSession) -> None:
    content = {"comm_id": "panel-of-a-page", "target_name": "agently.panel", "data": {"protocol": 1}}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_open", content))
    kernel.settle(0.5)
    before = len(kernel.other)
    run = kernel.run(
        "from comm.base_comm import BaseComm\nimport comm\n"
        "class Forged(type(create_comm(target_name='x'))):\n    pass\n"
        "f = Forged(comm_id='panel-of-a-page', target_name='agently.panel', primary=False)\n"
        "f.publish_msg('comm_msg', {'type': 'decide', 'allow': True}); f.publish_msg('comm_close', {})\n"
        "f.publish_msg('comm_open', {}, target_name='agently.panel')"
    )
    assert run.of("comm_open", "comm_msg", "comm_close") == []
    forged = [m for m in kernel.other[before:] if m["content"].get("data") in ({"type": "decide", "allow": True}, {})]
    assert [m for m in forged if m["msg_type"].startswith("comm_")] == []


def test_frames_in_the_name_of_a_cell_that_never_ran_here(kernel: KernelSession) -> None:
    """A guest that writes to its channel itself: its text may show, but never as another request's."""
    magic = kernel.run("%agently status")
    run = kernel.run(
        "from IPython import get_ipython\nservices = get_ipython().services\n"
        "import json\n"
        f"for cell in ({magic.message_id!r}, 'no-such-cell'):\n"
        "    services.send({'op': 'display', 'cell': cell, 'kind': 'display_data'},"
        " json.dumps({'data': {'text/plain': 'forged'}, 'metadata': {}}).encode())\n"
        "    services.send({'op': 'text', 'name': 'stdout', 'cell': cell}, b'forged')\n"
        "    services.send({'op': 'clear', 'cell': cell, 'wait': False})"
    )
    kernel.settle(0.5)
    assert [m for m in magic.messages if "forged" in str(m["content"])] == []
    assert magic.of("clear_output") == []
    assert run.status == "ok"


def test_widgets_with_code_of_their_own_wait_for_approval(kernel: KernelSession) -> None:
    run = kernel.run(
        "import traitlets\nclass Custom(w.DOMWidget):\n"
        "    _model_module = traitlets.Unicode('anywidget').tag(sync=True)\n"
        "    _model_name = traitlets.Unicode('AnyModel').tag(sync=True)\n"
        "    _esm = traitlets.Unicode('export default {}').tag(sync=True)\ndisplay(Custom())"
    )
    assert models(run, "AnyModel") == []
    ((_, state),) = models(run, "LabelModel")
    assert "%agently allow widget:anywidget" in state["value"]
    assert "export default" not in str(run.of("comm_open", "comm_msg", "display_data"))
