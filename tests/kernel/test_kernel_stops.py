# ruff: noqa: E501 - programs of cells stand on one line
"""Stop at any moment and whatever a cell shows: the cell ends at once, variables are kept, the next cell runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from kernel_session import KernelSession

Start = Callable[..., KernelSession]
PATIENT = 2.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
"""Seconds from Stop to the end of a cell: two, and as many more as other work on the machine takes."""

LOOPS = {
    "clear_output": "from IPython.display import clear_output\nwhile True: clear_output()",
    "clear_output and print": "from IPython.display import clear_output\nwhile True: clear_output(True); print(1)",
    "display updates": "handle = display(0, display_id=True)\nn = 0\nwhile True: n += 1; handle.update(n)",
    "widget updates": "import ipywidgets\nbar = ipywidgets.IntProgress(max=10**9); display(bar)\nwhile True: bar.value += 1",
    "displays": "while True: display(1)",
    "both streams": "import sys\nwhile True: print(1); print(2, file=sys.stderr)",
    "threads": "import threading\nfrom IPython.display import clear_output\ngo = True\ndef f():\n    while go: clear_output(); display(1)\nthreads = [threading.Thread(target=f) for _ in range(3)]\n[t.start() for t in threads]\ntry: [t.join() for t in threads]\nfinally: go = False",
}


def stop(kernel: KernelSession, code: str, after: float) -> float:
    """Run *code*, press Stop after some seconds; return the seconds until reply and idle."""
    kernel.run("kept = 41")
    run = kernel.send(code)
    kernel.settle(after)
    started = time.monotonic()
    kernel.interrupt()
    kernel.wait(run, within=30)
    seconds = time.monotonic() - started
    assert run.reply.get("ename") == "KeyboardInterrupt", run.reply
    return seconds


@pytest.mark.parametrize("what", LOOPS)
def test_stop_of_an_endless_loop_that_shows(kernel: KernelSession, what: str) -> None:
    seconds = stop(kernel, LOOPS[what], 1.5)
    assert kernel.run("kept + 1").result == "42"
    assert seconds < PATIENT


def test_stop_between_cells_frees_the_next_one(kernel: KernelSession) -> None:
    """A task of the event loop keeps the interpreter busy when no cell runs."""
    kernel.run("kept = 41")
    kernel.run("import asyncio\nasync def hog():\n    while True: pass\ntask = asyncio.get_event_loop().create_task(hog())")
    kernel.settle(0.5)
    started = time.monotonic()
    kernel.interrupt()
    assert kernel.run("kept + 1").result == "42"
    assert time.monotonic() - started < PATIENT + 2


def test_what_was_painted_last_is_what_is_seen_after_a_stop(kernel: KernelSession) -> None:
    run = kernel.send(
        "from IPython.display import clear_output\nn = 0\ntry:\n    while True:\n        n += 1; clear_output(wait=True); print('picture', n)\nfinally: last = n"
    )
    kernel.settle(1.0)
    kernel.interrupt()
    kernel.wait(run, within=30)
    shown, waiting = "", False
    for message in run.of("stream", "clear_output", "error"):
        if message["msg_type"] == "clear_output":
            waiting = True
            continue
        text = message["content"].get("text", "stopped\n")
        shown, waiting = text if waiting else shown + text, False
    last = int(kernel.run("last").result)
    assert shown in {"stopped\n", f"picture {last}\nstopped\n", f"picture {last - 1}\nstopped\n", "picturestopped\n"}


@pytest.mark.parametrize("code", ["while True: print('x' * 100)", "while True: print('x' * 10_000)"])
def test_stop_is_not_behind_the_pace_of_a_server(start: Start, code: str) -> None:
    kernel = start(env={"JPY_SESSION_NAME": "notebook.ipynb"})
    assert stop(kernel, code, 1.5) < 2 * PATIENT  # a burst and a short tail may be on their way
    assert kernel.run("kept + 1").result == "42"


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 0.6, 1.0])
def test_stop_while_the_kernel_is_loaded_reaches_the_cell_that_was_sent_before(start: Start, moment: float) -> None:
    kernel = start(ready=False)
    run = kernel.send("import time\nfor _ in range(300): time.sleep(0.1)")
    time.sleep(moment)
    kernel.interrupt()
    kernel.wait(run, within=25)
    assert run.reply["ename"] == "KeyboardInterrupt"
    assert kernel.run("6 * 7").result == "42"


def test_a_stop_before_a_cell_was_sent_does_not_reach_it(kernel: KernelSession) -> None:
    for _ in range(20):
        kernel.interrupt()
        assert kernel.run("6 * 7").result == "42"


HANGING = (
    "import time\nclass Endless:\n    def __init__(self, stubborn): self.stubborn = stubborn\n    def hang(self, *_):\n        while True:\n"
    "            try: time.sleep(0.05)\n            except BaseException:\n                if not self.stubborn: raise\n"
    "    __dir__ = __repr__ = hang\n    def __getattr__(self, name): return self.hang()\n"
    "endless, stubborn, kept = Endless(False), Endless(True), 41"
)
QUESTIONS = {
    "complete_request": {"code": "{}.", "cursor_pos": -1},
    "inspect_request": {"code": "{}", "cursor_pos": -1, "detail_level": 0},
}


def ask(kernel: KernelSession, kind: str, name: str) -> None:
    code = QUESTIONS[kind]["code"].format(name)  # type: ignore[attr-defined]
    content = {**QUESTIONS[kind], "code": code, "cursor_pos": len(code)}
    kernel.client.shell_channel.send(kernel.client.session.msg(kind, content))


@pytest.mark.parametrize("kind", QUESTIONS)
def test_stop_ends_a_question_and_keeps_the_variables(kernel: KernelSession, kind: str) -> None:
    kernel.run(HANGING)
    ask(kernel, kind, "endless")
    kernel.settle(0.5)
    started = time.monotonic()
    kernel.interrupt()
    assert kernel.run("kept + 1").result == "42"
    assert time.monotonic() - started < PATIENT


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_cell_does_not_wait_for_a_question(kernel: KernelSession, kind: str) -> None:
    kernel.run(HANGING)
    ask(kernel, kind, "endless")
    started = time.monotonic()
    assert kernel.run("kept + 1").result == "42"
    assert time.monotonic() - started < 1.5 * PATIENT


def test_a_question_that_swallows_everything_costs_the_variables_and_the_next_cell_is_told(start: Start) -> None:
    kernel = start(settings={"interrupt_grace": 1})
    kernel.run(HANGING)
    ask(kernel, "inspect_request", "stubborn")
    kernel.settle(0.5)
    kernel.interrupt()
    kernel.settle(1.0 + PATIENT)
    run = kernel.run("6 * 7", within=20)
    assert run.result == "42"
    assert "went on for 1 s after your Stop" in run.text("stderr") and "Variables" in run.text("stderr")


@pytest.mark.parametrize("form", ["{}", "%%agently_exec\n{}"])
def test_a_cell_that_is_too_long_gets_a_sentence(kernel: KernelSession, form: str) -> None:
    _, sentence = kernel.run(form.format(f"'{'x' * (17 << 20)}'\n1")).error
    assert "the limit is 16777216 bytes" in sentence and "Nothing was run" in sentence
    assert not any(word in sentence for word in ("pydantic", "validation error", "http", "input_value"))


def test_the_death_of_the_sandbox_says_what_was_lost(start: Start) -> None:
    kernel = start()
    name, sentence = kernel.run("import os, time; os.kill(os.getppid(), 15); time.sleep(20)").error
    assert name == "SandboxDied"
    assert "SIGTERM" in sentence and "are lost" in sentence
