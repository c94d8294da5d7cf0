"""Traps that kernels are known to fall into (issues of ipykernel, jupyter_client and front ends), over the wire."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.manager import KernelManager
from kernel_session import KernelSession, Run

from agently_kernel.providers.bubblewrap_binary import find_bwrap

Start = Callable[..., KernelSession]


# -- signals and Stop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    ["import time; time.sleep(2); 'ended'", "import asyncio; await asyncio.sleep(2, 'ended')"],
    ids=["wait", "await"],
)
@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
def test_a_sigint_to_the_process_leaves_kernel_and_sandbox_alive(kernel: KernelSession, code: str, group: bool) -> None:
    """A front end of ``interrupt_mode: signal``, or Ctrl-C in a terminal that kernel and client share."""
    kernel.run("kept = 5")
    run = kernel.send(code)
    kernel.settle(0.7)
    (os.killpg if group else os.kill)(kernel.pid, signal.SIGINT)
    kernel.wait(run, within=15)
    assert run.result == "'ended'" or run.error[0] == "KeyboardInterrupt", run.error
    (os.killpg if group else os.kill)(kernel.pid, signal.SIGINT)  # and while nothing runs
    assert kernel.run("kept").result == "5"


def test_many_stops_in_a_row_end_one_cell_and_nothing_else(kernel: KernelSession) -> None:
    kernel.run("kept = 6")
    run = kernel.send("import time; time.sleep(60)")
    kernel.settle(0.5)
    for _ in range(5):
        kernel.interrupt()
    kernel.wait(run, within=15)
    assert run.error[0] == "KeyboardInterrupt"
    assert kernel.run("kept").result == "6"


# -- answers -----------------------------------------------------------------------------------------------------------

QUESTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("shell", "kernel_info_request", {}),
    ("shell", "comm_info_request", {}),
    ("shell", "connect_request", {}),
    ("shell", "history_request", {"hist_access_type": "tail", "n": 1, "raw": True, "output": False}),
    ("shell", "complete_request", {"code": "pri", "cursor_pos": 3}),
    ("shell", "inspect_request", {"code": "print", "cursor_pos": 5, "detail_level": 0}),
    ("shell", "is_complete_request", {"code": "1"}),
    ("control", "kernel_info_request", {}),
    ("control", "usage_request", {}),
    ("control", "debug_request", {"type": "request", "seq": 1, "command": "initialize", "arguments": {}}),
    ("control", "interrupt_request", {}),
]


@pytest.mark.parametrize(
    ("channel", "kind", "content"), QUESTIONS, ids=[f"{kind}-{where}" for where, kind, _ in QUESTIONS]
)
def test_every_request_of_the_protocol_gets_a_reply(
    kernel: KernelSession, channel: str, kind: str, content: dict[str, Any]
) -> None:
    kernel.ask(kind, content, channel=channel, within=10)
    assert kernel.run("1 + 1").result == "2"


def test_a_crowd_of_requests_beside_a_cell_that_prints_is_answered_in_full(kernel: KernelSession) -> None:
    """A socket that two parts of a kernel read or write can miss its wake-up, and then stays silent."""
    run = kernel.send("import time\nend = time.time() + 3\nwhile time.time() < end: print('x' * 100)")
    kernel.settle(0.3)
    sent = []
    for _ in range(20):
        for channel, kind, content in QUESTIONS:
            if kind != "interrupt_request":
                message = kernel.client.session.msg(kind, content)
                getattr(kernel.client, f"{channel}_channel").send(message)
                sent.append(message["header"]["msg_id"])
    kernel.settle(30, lambda: all(identity in kernel.replies for identity in sent))
    assert [identity for identity in sent if identity not in kernel.replies] == []
    assert kernel.wait(run).status == "ok"


def test_a_source_of_megabytes_runs(kernel: KernelSession) -> None:
    assert kernel.run(f"long = {'y' * 3_000_000!r}\nlen(long)").result == "3000000"


def test_a_debugger_is_not_advertised_although_debugpy_is_there(kernel: KernelSession) -> None:
    __import__("debugpy")
    for channel in ("shell", "control"):
        info = kernel.ask("kernel_info_request", {}, channel=channel)
        assert "debugger" not in info["supported_features"]
        assert not info.get("debugger")


def test_use_of_memory_is_told_while_a_cell_runs(kernel: KernelSession) -> None:
    run = kernel.send("hoard = bytearray(b'1') * 200_000_000\nimport time; time.sleep(3)")
    kernel.settle(1.0)
    usage = kernel.ask("usage_request", {}, channel="control", within=2)
    assert not run.reply
    assert usage["kernel_memory"] > 200_000_000
    kernel.wait(run)
    kernel.run("del hoard")


def test_a_comm_to_a_target_that_nobody_knows_is_closed(kernel: KernelSession) -> None:
    """Else the front end waits for the other end of it."""

    def closed() -> list[str]:
        seen = [*kernel.other, *(m for run in kernel.runs.values() for m in run.messages)]
        return [m["content"]["comm_id"] for m in seen if m["msg_type"] == "comm_close"]

    for name, target in (("c1", "nobody"), ("c2", "agently.panel")):
        content = {"comm_id": name, "target_name": target, "data": {}}
        kernel.client.shell_channel.send(kernel.client.session.msg("comm_open", content))
        kernel.settle(5, lambda name=name: name in closed())  # type: ignore[misc]
    assert closed() == ["c1", "c2"]
    opened = kernel.run("import ipywidgets; ipywidgets.IntSlider()").of("comm_open")[-1]["content"]["comm_id"]
    content = {"comm_id": opened, "target_name": "nobody", "data": {}}  # an id that is taken: that comm lives on
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_open", content))
    kernel.settle(0.5)
    assert opened not in closed()
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", {"comm_id": "stale", "data": {}}))
    assert kernel.run("'goes on'").result == "'goes on'"


# -- beats -------------------------------------------------------------------------------------------------------------


@contextmanager
def beats(manager: KernelManager) -> Iterator[list[float]]:
    """Ask for a heartbeat all the time, in a thread; yield the seconds that each took."""
    took: list[float] = []
    over = threading.Event()
    context = zmq.Context()

    def listen() -> None:
        with context.socket(zmq.REQ) as socket:
            socket.connect(f"tcp://{manager.ip}:{manager.hb_port}")
            while not over.is_set():
                asked = time.monotonic()
                socket.send(b"ping")
                while not socket.poll(50) and not over.is_set():
                    continue
                took.append(time.monotonic() - asked)
                if not over.is_set():
                    socket.recv()
                over.wait(0.02)

    thread = threading.Thread(target=listen)
    thread.start()
    yield took
    over.set()
    thread.join()
    context.destroy(linger=0)


@pytest.mark.parametrize(
    "code",
    [
        "import time\nend = time.time() + 3\nwhile time.time() < end: pass",
        "import time\nend = time.time() + 3\nwhile time.time() < end: print('x' * 1000)",
        "import time\nend = time.time() + 3\nwhile time.time() < end: display({'text/html': '<i>' * 1000}, raw=True)",
        "import ctypes\nctypes.PyDLL(None).usleep(2_500_000)",  # with the interpreter's lock held
    ],
    ids=["busy", "text", "displays", "lock"],
)
def test_the_heart_beats_whatever_a_cell_does(kernel: KernelSession, code: str) -> None:
    with beats(kernel.manager) as took:
        kernel.run(code)
    assert len(took) > 10
    assert max(took) < 2.0  # front ends give up after three seconds or more


def slow_bwrap(folder: Path, seconds: float) -> str:
    """Return a bwrap that starts everything late."""
    program = folder / "slow-bwrap"
    found = find_bwrap()
    assert found is not None, "bubblewrap is not installed"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] || sleep {seconds}\nexec {found[0]} "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_a_kernel_answers_before_its_sandbox_is_open_and_a_cells_time_begins_then(
    start: Start, tmp_path: Path
) -> None:
    """Front ends call a kernel dead that does not answer at once; a limit on time is not for starting a mechanism."""
    providers = [{"provider_id": "bubblewrap", "config": {"binary": slow_bwrap(tmp_path, 4)}}]
    kernel = start(settings={"providers": providers, "timeout": 3}, ready=False)
    with beats(kernel.manager) as took:
        assert kernel.ask("kernel_info_request", {}, within=10)["status"] == "ok"
        opened = kernel.send("'ran'")
        assert kernel.ask("kernel_info_request", {}, channel="control", within=5)["status"] == "ok"
        assert not opened.reply
        assert kernel.wait(opened, within=60).result == "'ran'"
    assert max(took[1:]) < 2.0  # the first waits for the process


# -- input -------------------------------------------------------------------------------------------------------------


def test_code_of_no_cell_cannot_wait_for_input(kernel: KernelSession) -> None:
    """A message of a comm allows no input, nor does a cell that has ended: such a question would never be answered."""
    run = kernel.run(
        "import ipywidgets, threading, time\nsaid = []\ndef ask(*_):\n    try: said.append(input('who? '))\n"
        "    except BaseException as e: said.append(type(e).__name__)\n"
        "slider = ipywidgets.IntSlider(); slider.observe(ask, 'value'); display(slider)\n"
        "threading.Timer(0.5, ask).start()",
        allow_stdin=True,
    )
    (comm,) = [m["content"]["comm_id"] for m in run.of("comm_open") if "max" in m["content"]["data"]["state"]
               and m["content"]["data"]["state"]["_model_name"] == "IntSliderModel"]
    kernel.settle(1.0)
    data = {"method": "update", "state": {"value": 7}, "buffer_paths": []}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", {"comm_id": comm, "data": data}))
    kernel.settle(1.0)
    assert run.prompts == []
    told = kernel.run("said, slider.value", within=10).result
    assert told.startswith("(['StdinNotImplementedError', 'StdinNotImplementedError'], 7)"), told
    assert kernel.run("input('now ')", answers=["yes"]).result == "'yes'"


def test_a_question_goes_to_the_client_whose_cell_asks(kernel: KernelSession) -> None:
    other = kernel.manager.blocking_client()
    other.start_channels()
    try:
        other.wait_for_ready(timeout=30)
        message = other.execute("answer = input('second? ')", allow_stdin=True)
        asked = other.get_stdin_msg(timeout=10)
        assert asked["content"]["prompt"] == "second? "
        assert asked["parent_header"]["msg_id"] == message
        waiting = kernel.send("input('first? ')", answers=["one"])
        kernel.settle(0.5)
        assert waiting.prompts == []
        other.input("two")
        assert kernel.wait(waiting).result == "'one'"
        assert kernel.run("answer").result == "'two'"
    finally:
        other.stop_channels()


# -- hooks and parents -------------------------------------------------------------------------------------------------


def test_hooks_of_cells_run_for_cells_alone_and_show_in_them(kernel: KernelSession) -> None:
    """Of a message of a comm the output would be no cell's, and front ends drop it."""
    opened = kernel.run("import ipywidgets\nslider = ipywidgets.IntSlider(); display(slider)")
    comm = next(m["content"]["comm_id"] for m in opened.of("comm_open")
                if m["content"]["data"]["state"]["_model_name"] == "IntSliderModel")
    names = ("pre_execute", "pre_run_cell", "post_execute", "post_run_cell")
    kernel.run(
        f"for name in {names}:\n    def hook(*_, name=name): print(name)\n"
        "    get_ipython().events.register(name, hook)\n"
        "    hooks = {**globals().get('hooks', {}), name: hook}"
    )
    data = {"method": "update", "state": {"value": 3}, "buffer_paths": []}
    kernel.other.clear()
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", {"comm_id": comm, "data": data}))
    kernel.settle(1.0)
    assert [m for m in kernel.other if m["msg_type"] == "stream"] == []
    run = kernel.run("print('cell', slider.value)")
    assert run.text().split("\n") == ["pre_execute", "pre_run_cell", "cell 3", "post_execute", "post_run_cell", ""]
    kernel.run("for name, hook in hooks.items(): get_ipython().events.unregister(name, hook)")


# -- the ends ----------------------------------------------------------------------------------------------------------


def test_a_kernel_says_nothing_at_start_answers_the_shutdown_and_ends_well(start: Start) -> None:
    kernel = start()
    assert kernel.run("1").result == "1"
    process: Any = kernel.manager.provisioner
    process = process.process
    reply = kernel.ask("shutdown_request", {"restart": False}, channel="control", within=10)
    assert (reply["status"], reply["restart"]) == ("ok", False)
    assert process.wait(timeout=5) == 0
    assert kernel.log.read_text() == ""


def shown(run: Run) -> list[str]:
    return [m["content"]["execution_state"] for m in run.of("status")]


def test_a_second_page_that_asks_does_not_make_a_busy_kernel_look_idle(kernel: KernelSession) -> None:
    run = kernel.send("import time; time.sleep(2)")
    kernel.settle(1.0)
    message = kernel.client.session.msg("kernel_info_request", {})
    kernel.client.shell_channel.send(message)

    def own() -> list[str]:
        told = [m for m in kernel.other if m["parent_header"].get("msg_id") == message["header"]["msg_id"]]
        return [m["content"]["execution_state"] for m in told]

    kernel.settle(5, lambda: message["header"]["msg_id"] in kernel.replies and own()[-1:] == ["idle"])
    assert own() == ["busy", "idle"]
    assert not run.reply
    kernel.settle(0.2)
    assert shown(run)[-1] == "busy"  # said again, after the other's idle
    assert shown(kernel.wait(run))[-1] == "idle"
