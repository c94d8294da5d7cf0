# ruff: noqa: E501 - programs of cells stand on one line
"""What a notebook has beyond a plain Python: magics, shell lines, plots, widgets, payloads, and how libraries see it."""

from __future__ import annotations

import json
import time

import pytest
from guest_driver import Cell, Guest

from agently_kernel.guest import wire


def test_magics_and_shell_lines(ipython: Guest) -> None:
    assert ipython.run("out = !echo captured\nprint(out)\n!echo live; echo err >&2\n!exit 3\nprint(_exit_code)").script() == [
        ("stdout", "['captured']\nlive\n"), ("stderr", "err\n"), ("stdout", "3\n"),
    ]
    assert ipython.run("%%bash\necho in-bash-$((2+3))").text() == "in-bash-5\n"
    assert ipython.run("%%capture cap\nprint('kept')").text() == ""
    assert ipython.run("print(cap.stdout.strip().upper())").text() == "KEPT\n"
    assert "per loop" in ipython.run("%timeit -n 2 -r 1 sum(range(10))").text()
    assert "Wall time" in ipython.run("%%time\nsum(range(1000))").text()
    assert ipython.run("%%writefile note.txt\nhello").text().startswith(("Writing", "Overwriting"))


def test_output_of_a_later_script_cell_is_its_own(ipython: Guest) -> None:
    for word in ("first", "second"):
        assert ipython.run(f"%%bash\necho {word}").text() == f"{word}\n"


def test_reset_keeps_the_notebook_usable(ipython: Guest) -> None:
    ipython.run("q = 1")
    ipython.run("%reset -f")
    cell = ipython.run("import asyncio\nawait asyncio.sleep(0)\nprint('q' in globals()); display('shown')\n6 * 7")
    assert cell.script() == [
        ("stdout", "False\n"), ("display_data", {"text/plain": "'shown'"}), ("execute_result", {"text/plain": "42"}),
    ]


def test_in_and_out_are_kept(ipython: Guest) -> None:
    ipython.run("%reset -f")
    ipython.run("10 * 10", execution_count=501)
    assert ipython.run("print(Out[501], In[501], _501)", execution_count=502).text() == "100 10 * 10 100\n"


def test_payloads_travel_with_the_reply(ipython: Guest) -> None:
    page = ipython.run("len?").done[1]["payload"]
    assert page[0]["source"] == "page" and "Return the number of items" in page[0]["data"]["text/plain"]
    assert ipython.run("get_ipython().set_next_input('x = 1')").done[1]["payload"] == [
        {"source": "set_next_input", "text": "x = 1", "replace": False},
    ]
    assert ipython.run("pass").done[1]["payload"] == []


def test_plots_show_at_the_end_of_the_cell(ipython: Guest) -> None:
    cell = ipython.run("import matplotlib.pyplot as plt\nprint(plt.get_backend())\nplt.plot([1, 2]); print('before');", timeout=60)
    assert cell.text().splitlines()[-1] == "before"
    (shown,) = cell.displays("display_data")
    assert shown["data"]["image/png"].startswith("iVBORw0KGgo")
    assert len(ipython.run("%matplotlib inline\nplt.plot([3, 4]);", timeout=60).displays("display_data")) == 1


def test_a_gui_loop_is_refused_with_a_reason(ipython: Guest) -> None:
    assert "There is no window system in this sandbox" in ipython.run("%gui qt").text("stderr")


def test_libraries_recognise_a_notebook(ipython: Guest) -> None:
    cell = ipython.run(
        "import sys\nip = get_ipython()\nprint(type(ip).__name__, 'IPKernelApp' in ip.config, 'ipykernel.zmqshell' in sys.modules,\n"
        "      'zmq' in sys.modules, ip.kernel.get_parent()['header']['msg_id'], ip.get_parent()['header']['msg_id'])"
    )
    assert cell.text() == f"ZMQInteractiveShell True True False {cell.cell} {cell.cell}\n"


def test_session_send_shows_what_a_library_sends_by_hand(ipython: Guest) -> None:
    cell = ipython.run(
        "k = get_ipython().kernel\nk.session.send(k.iopub_socket, 'display_data', {'data': {'text/plain': 'x'}, 'metadata': {}})\n"
        "k.session.send(k.iopub_socket, 'stream', {'name': 'stdout', 'text': 'by hand'})\nk.session.send(k.iopub_socket, 'status', {});"
    )
    assert cell.script() == [("display_data", {"text/plain": "x"}), ("stdout", "by hand")]


def comms(cell: Cell) -> list[tuple[dict[str, object], dict[str, object], list[bytes]]]:
    return [(h, *wire.split_buffers(h["buffers"], p)) for h, p in cell.frames if h["op"] == "comm"]


def test_comms_go_both_ways_with_buffers(ipython: Guest) -> None:
    cell = ipython.run(
        "from comm import create_comm\nheard = []\nc = create_comm(target_name='t.x', data={'a': 1}, buffers=[b'\\x00\\xff'])\n"
        "c.on_msg(lambda m: (heard.append((m['content']['data'], bytes(m['buffers'][0]))), print('heard')));"
    )
    ((header, content, buffers),) = comms(cell)
    assert (header["kind"], header["target_name"], header["cell"]) == ("comm_open", "t.x", cell.cell)
    assert (content, buffers) == ({"data": {"a": 1}, "metadata": {}}, [b"\x00\xff"])
    data = json.dumps({"data": {"b": 2}, "metadata": {}}).encode()
    ipython.send({"op": "comm", "kind": "comm_msg", "comm_id": header["comm_id"], "buffers": [len(data), 2]}, data + b"zz")
    assert ipython.until("text")[1] == b"heard\n"
    assert ipython.run("print(heard)").text() == "[({'b': 2}, b'zz')]\n"


def test_a_comm_message_is_heard_while_a_cell_keeps_the_main_thread(ipython: Guest) -> None:
    cell = ipython.run("from comm import create_comm\ngot = []\nc = create_comm(target_name='t.y')\nc.on_msg(lambda m: got.append(1));")
    comm_id = comms(cell)[0][0]["comm_id"]
    running = ipython.submit("import time\nend = time.time() + 20\nwhile not got and time.time() < end: time.sleep(0.01)\nprint('got', got)")
    time.sleep(0.3)
    ipython.send({"op": "comm", "kind": "comm_msg", "comm_id": comm_id, "buffers": [2]}, b"{}")
    assert ipython.collect(running).text() == "got [1]\n"


def test_widgets(ipython: Guest) -> None:
    cell = ipython.run("import ipywidgets as w\nslider = w.IntSlider(value=3, max=50)\nslider", timeout=60)
    model = cell.result()["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert model in [h["comm_id"] for h, _, _ in comms(cell)]
    data = json.dumps({"data": {"method": "update", "state": {"value": 41}, "buffer_paths": []}}).encode()
    ipython.send({"op": "comm", "kind": "comm_msg", "comm_id": model, "buffers": [len(data)]}, data)
    assert ipython.run("print(slider.value)").text() == "41\n"
    assert ipython.run("o = w.Output()\nwith o: print('inside')").done[0] == "ok"


def test_a_thread_moves_a_progress_bar(ipython: Guest) -> None:
    ipython.run(
        "import ipywidgets as w, threading\nbar = w.FloatProgress(value=0.0)\nfailures = []\ndef work():\n    try: bar.value = 1.0\n"
        "    except BaseException as e: failures.append(repr(e))\nt = threading.Thread(target=work)"
    )
    cell = ipython.run("t.start(); t.join(); print(failures)")
    assert cell.text() == "[]\n"
    assert [content["data"]["state"] for _, content, _ in comms(cell)] == [{"value": 1.0}]  # type: ignore[index]


def test_completion_knows_types(ipython: Guest) -> None:
    deadline = time.monotonic() + 60  # what is not in the namespace is known as soon as jedi has read its own files
    while not (reply := ipython.query("complete", "import os\nos.pa", cursor_pos=15))["matches"]:
        assert time.monotonic() < deadline
    assert "path" in [item.split(".")[-1] for item in reply["matches"]]
    assert {item["text"] for item in reply["metadata"]["_jupyter_types_experimental"]} == set(reply["matches"])
    assert (reply["cursor_start"], reply["cursor_end"]) == (13, 15)


@pytest.mark.parametrize("code", ["%no_such_magic", "%%no_such_cell\nx", "%agently status extra\n1"])
def test_unknown_magics_are_errors(ipython: Guest, code: str) -> None:
    cell = ipython.run(code)
    assert cell.done[0] == "error" or "not found" in cell.text("stderr")


def test_the_python_of_a_cell_is_made_once(ipython: Guest) -> None:
    ipython.run(
        "made = []\ndef count(lines):\n    made.append(''.join(lines))\n    return lines\n"
        "get_ipython().input_transformers_cleanup.append(count)"
    )
    ipython.run("1 + 1")
    ipython.run("import asyncio; await asyncio.sleep(0)")
    assert ipython.run("print(made[:-1])").text() == "['1 + 1\\n', 'import asyncio; await asyncio.sleep(0)\\n']\n"
    nested = ipython.run("r = get_ipython().run_cell('2 + 2'); print(len(made), made[-1], r.result)")
    assert nested.text().endswith("5 2 + 2\n 4\n")
    ipython.run("get_ipython().input_transformers_cleanup.remove(count)")
