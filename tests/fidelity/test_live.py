"""What shows in time: updates of earlier displays, streams while they flow, input, threads, tasks and stops."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from kernel_session import KernelSession, Run


def first_seen(run: Run, text: str, times: dict[str, float]) -> None:
    """Note when *text* was seen for the first time."""
    if text not in times and text in run.text() + run.text("stderr"):
        times[text] = time.monotonic()


# -- displays ----------------------------------------------------------------------------------------------------------


def test_a_display_is_updated_from_a_later_cell_a_thread_and_a_task(kernel: KernelSession) -> None:
    kernel.run("from IPython.display import display, update_display, HTML\nbox = display('v0', display_id='box-1')")
    later = kernel.run(
        "import threading, asyncio\nbox.update('v1'); box.display('again')\n"
        "t = threading.Thread(target=lambda: update_display(HTML('<b>v2</b>'), display_id='box-1')); "
        "t.start(); t.join()\n"
        "async def task(): box.update('v3')\nawait asyncio.create_task(task())"
    )
    shown = [
        (m["msg_type"], m["content"]["data"], m["content"]["transient"]["display_id"])
        for m in later.messages
        if m["msg_type"].endswith("display_data")
    ]
    assert [kind for kind, _, _ in shown] == ["update_display_data", "display_data", *["update_display_data"] * 2]
    assert [data["text/plain"] for _, data, _ in shown] == [
        "'v1'",
        "'again'",
        "<IPython.core.display.HTML object>",
        "'v3'",
    ]
    assert {identity for _, _, identity in shown} == {"box-1"}


def test_clear_output_waits_for_the_next_output(kernel: KernelSession) -> None:
    run = kernel.run(
        "from IPython.display import clear_output\nfor i in range(3):\n    clear_output(wait=True); print('step', i)"
    )
    assert run.kinds == ["clear_output", "stream"] * 3
    assert [m["content"] for m in run.of("clear_output")] == [{"wait": True}] * 3


def test_an_animation_of_updates_keeps_its_last_picture(kernel: KernelSession) -> None:
    run = kernel.run("h = display(0, display_id=True)\nfor i in range(300): h.update(i)")
    updates = run.of("update_display_data")
    assert updates[-1]["content"]["data"] == {"text/plain": "299"}
    assert len({m["content"]["transient"]["display_id"] for m in updates}) == 1


def test_ids_of_the_kernels_own_displays_cannot_be_used(kernel: KernelSession) -> None:
    run = kernel.run(
        "display('x', display_id='agently:facts')\nfrom IPython.display import update_display\n"
        "update_display('forged', display_id='agently:facts')"
    )
    assert [m["content"].get("transient") for m in run.of("display_data")] == [None]
    assert run.of("update_display_data") == []


# -- streams -----------------------------------------------------------------------------------------------------------


def test_text_of_children_and_of_c_arrives_while_they_run(kernel: KernelSession) -> None:
    times: dict[str, float] = {}

    def watch(run: Run) -> None:
        for text in ("child", "library", "done"):
            first_seen(run, text, times)

    kernel.run(
        "import subprocess, ctypes, time\nlibc = ctypes.CDLL(None)\n"
        "p = subprocess.Popen(['sh', '-c', 'echo child; sleep 0.6'])\np.wait()\n"
        "libc.puts(b'library'); libc.fflush(None); time.sleep(0.4); print('done')",
        during=watch,
    )
    assert times["library"] - times["child"] > 0.3
    assert times["done"] - times["library"] > 0.2


def test_what_c_prints_right_after_a_display_comes_after_it(kernel: KernelSession) -> None:
    run = kernel.run(
        "import os\nfrom IPython.display import clear_output\n"
        "for i in range(20):\n    display(i); os.write(1, b'raw %d\\n' % i)\n"
        "clear_output(); os.write(1, b'after clear\\n');"
    )
    order = [
        m["content"].get("text") or m["content"].get("data", {}).get("text/plain")
        for m in run.messages
        if m["msg_type"] in ("stream", "display_data")
    ]
    assert order == [text for i in range(20) for text in (str(i), f"raw {i}\n")] + ["after clear\n"]
    assert run.kinds[-2:] == ["clear_output", "stream"]


def test_a_flood_of_carriage_returns_becomes_few_messages(kernel: KernelSession) -> None:
    run = kernel.run("for i in range(30_000): print(f'\\r{i:>6} of 30000', end='', flush=True)\nprint('\\nEND')")
    text = run.text()
    assert text.endswith("\r 29999 of 30000\nEND\n")
    assert len(run.of("stream")) < 20 * run.seconds + 25
    assert len(text) < 30_000 * 15 / 10  # lines that were overwritten before they could be seen are not sent


def test_two_streams_keep_the_order_in_which_they_were_written(kernel: KernelSession) -> None:
    run = kernel.run(
        "import sys\nprint('o1'); print('e1', file=sys.stderr); print('o2'); display(1); print('e2', file=sys.stderr)"
    )
    assert [m["content"].get("text", "shown") for m in run.messages if m["msg_type"] in ("stream", "display_data")] == [
        "o1\n",
        "e1\n",
        "o2\n",
        "shown",
        "e2\n",
    ]


def test_a_slow_reader_loses_nothing_and_sees_the_end(kernel: KernelSession) -> None:
    run = kernel.send("for i in range(20_000): print(i, flush=True)")
    time.sleep(2.0)  # nobody reads
    kernel.wait(run)
    assert run.text() == "".join(f"{i}\n" for i in range(20_000))


# -- whose output it is ------------------------------------------------------------------------------------------------


def test_output_follows_the_cell_of_the_thread_task_callback_and_logger(kernel: KernelSession) -> None:
    first = kernel.run(
        "import threading, asyncio, time, logging, logging.handlers, queue, sys\n"
        "def late():\n    time.sleep(0.3); print('thread'); display('thread shows')\n"
        "    inner = threading.Thread(target=print, args=('its thread',)); inner.start(); inner.join()\n"
        "async def task(): await asyncio.sleep(0.3); print('task')\n"
        "t = threading.Thread(target=late); t.start()\nj = asyncio.create_task(task())\n"
        "asyncio.get_running_loop().call_later(0.3, print, 'callback')\n"
        "threading.Timer(0.3, print, ('timer',)).start()\n"
        "q = queue.Queue()\nlistener = logging.handlers.QueueListener(q, logging.StreamHandler(sys.stdout)); "
        "listener.start()\n"
        "logger = logging.getLogger('queued'); logger.addHandler(logging.handlers.QueueHandler(q)); "
        "logger.propagate = False"
    )
    second = kernel.run(
        "t.join(); await j; await asyncio.sleep(0.1); logger.error('logged'); listener.stop(); print('second')"
    )
    kernel.settle(0.5, lambda: "logged" in first.text())
    assert sorted(first.text().split("\n")) == sorted(
        ["", "thread", "its thread", "task", "callback", "timer", "logged"]
    )
    assert [m["content"]["data"] for m in first.of("display_data")] == [{"text/plain": "'thread shows'"}]
    assert second.text() == "second\n"


def test_a_cell_can_read_the_request_that_runs_it(kernel: KernelSession) -> None:
    """As in ipykernel, where libraries take the front end's cell id and the session from it."""
    kernel.ask("kernel_info_request", {}, channel="control")
    asked = [m for m in kernel.replies.values() if m["msg_type"] == "kernel_info_reply"][-1]["parent_header"]
    session = kernel.client.session
    content = {"code": "k = get_ipython().kernel; p = k.get_parent()", "silent": False, "store_history": True,
               "user_expressions": {}, "allow_stdin": False, "stop_on_error": True}
    message = session.msg("execute_request", content, metadata={"cellId": "cell-of-the-page", "deletedCells": []})
    kernel.client.shell_channel.send(message)
    kernel.settle(10, lambda: message["header"]["msg_id"] in kernel.replies)
    seen = kernel.run(
        "import json\nc = k.get_parent('control')['header']\n"
        "print(json.dumps([p['header']['msg_id'], p['header']['session'], p['metadata'], p['content']['code'],\n"
        "    p['header']['username'], c['msg_id'], c['msg_type'], k._parent_ident['shell'][0].decode(),\n"
        "    k._parent_header['header']['msg_id'] == get_ipython().parent_header['header']['msg_id']]))"
    )
    assert json.loads(seen.text()) == [
        message["header"]["msg_id"], session.session, {"cellId": "cell-of-the-page", "deletedCells": []},
        content["code"], "sandbox", asked["msg_id"], "kernel_info_request", session.session, True,
    ]
    large = session.msg("execute_request", {**content, "code": "print(get_ipython().get_parent()['metadata'])"},
                        metadata={"cellId": "c1", "notes": "x" * 100_000})
    kernel.client.shell_channel.send(large)
    kernel.settle(10, lambda: large["header"]["msg_id"] in kernel.replies)
    assert kernel.replies[large["header"]["msg_id"]]["content"]["status"] == "ok"


def test_a_thread_can_be_given_to_a_cell_and_follow_the_running_one(kernel: KernelSession) -> None:
    first = kernel.run("own = get_ipython().get_parent()\nstep = threading.Event(); gone = threading.Event()")
    assert kernel.run("own['header']['msg_id']").result == repr(first.message_id)
    second = kernel.run(
        "def body():\n    shell = get_ipython()\n    token = shell.set_thread_parent(own); print('to the first')\n"
        "    shell.reset_thread_parent(token); step.wait(5); print('to the running one'); gone.set()\n"
        "thread = threading.Thread(target=body); thread.start(); time.sleep(0.2)"
    )
    third = kernel.run("step.set(); gone.wait(5); thread.join()")
    assert (first.text(), second.text(), third.text()) == ("to the first\n", "", "to the running one\n")


def test_an_error_in_a_thread_or_task_is_shown(kernel: KernelSession) -> None:
    run = kernel.run("t = threading.Thread(target=lambda: 1/0, name='doomed'); t.start(); t.join()")
    assert "Exception in thread doomed" in run.text("stderr") and "ZeroDivisionError" in run.text("stderr")
    assert run.status == "ok"


# -- input -------------------------------------------------------------------------------------------------------------


def test_the_debugger_asks_and_answers(kernel: KernelSession) -> None:
    run = kernel.run("def f(x):\n    y = x + 1\n    breakpoint()\n    return y\nf(41)", answers=["p y", "p x", "c"])
    assert "42\n" in run.text() and "41\n" in run.text()
    assert (run.result, [prompt for prompt, _ in run.prompts]) == ("42", ["ipdb> "] * 3)
    kernel.run("def g(z): return z / 0\ng(5)")
    post = kernel.run("%debug", answers=["p z", "u", "q"])
    assert "5\n" in post.text()
    assert post.status == "ok"


def test_a_stop_ends_the_debugger_and_input(kernel: KernelSession) -> None:
    for code in ("import pdb; pdb.set_trace()", "input('> ')"):
        run = kernel.send(code, allow_stdin=True)
        kernel.settle(10, lambda run=run: bool(run.prompts))  # type: ignore[misc]
        kernel.interrupt()
        kernel.wait(run, within=10)
        assert kernel.run("'alive'").result == "'alive'"


def test_output_goes_on_while_a_question_waits(kernel: KernelSession) -> None:
    run = kernel.send(
        "import threading, time\n"
        "threading.Thread(target=lambda: [time.sleep(0.2), print('meanwhile'), h.update('changed')]).start()\n"
        "h = display('start', display_id=True)\nanswer = input('? ')",
        allow_stdin=True,
    )
    kernel.settle(10, lambda: "meanwhile" in run.text() and bool(run.of("update_display_data")))
    assert run.prompts == [("? ", False)]
    assert run.text() == "meanwhile\n"
    kernel.client.input("yes")
    kernel.wait(run)
    assert kernel.run("answer").result == "'yes'"


def test_no_front_end_that_can_answer(kernel: KernelSession) -> None:
    for code in ("input()", "import getpass; getpass.getpass()", "breakpoint()"):
        started = time.monotonic()
        run = kernel.run(code, allow_stdin=False)
        assert run.status == "error" and time.monotonic() - started < 5
    assert run.error[0] in ("StdinNotImplementedError", "BdbQuit")


# -- payloads ----------------------------------------------------------------------------------------------------------


def test_pages_come_as_text(kernel: KernelSession) -> None:
    kernel.run("def documented():\n    'words of the docstring'")
    run = kernel.run("documented?")
    (page,) = run.reply["payload"]
    assert (page["source"], page["start"], set(page["data"])) == ("page", 0, {"text/plain"})
    assert "words of the docstring" in page["data"]["text/plain"]
    assert kernel.run("%page documented").reply["payload"][0]["source"] == "page"


def test_the_next_input_is_a_comment_until_approved_and_never_replaces(start: Callable[..., KernelSession]) -> None:
    kernel = start(settings={"auto_allow": True})
    refused = kernel.run("get_ipython().set_next_input('x = 1')")
    (harmless,) = refused.reply["payload"]
    assert (harmless["source"], harmless["replace"]) == ("set_next_input", False)
    assert harmless["text"].endswith("\n# x = 1\n")
    assert "%agently allow set_next_input" in refused.text("stderr")
    kernel.run("%agently allow set_next_input")
    allowed = kernel.run("get_ipython().set_next_input('x = 1', replace=True)")
    assert allowed.reply["payload"] == [{"source": "set_next_input", "text": "x = 1", "replace": False}]


# -- stops -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.sleep(60)",
        "while True: pass",
        "import asyncio\nawait asyncio.sleep(60)",
        "import asyncio\nasyncio.run(asyncio.sleep(60))",
        "import subprocess\nsubprocess.run(['sleep', '60'])",
        "!sleep 60",
        "import threading\nthreading.Event().wait(60)",
        "import asyncio\nawait asyncio.gather(*(asyncio.sleep(60) for _ in range(3)))",
    ],
)
def test_stop(kernel: KernelSession, code: str) -> None:
    kernel.run("kept = 5")
    run = kernel.send(code)
    kernel.settle(0.5)
    stopped = time.monotonic()
    kernel.interrupt()
    kernel.wait(run, within=10)
    assert time.monotonic() - stopped < 3
    assert run.status == "error" or code == "!sleep 60"
    assert kernel.run("kept").result == "5"


def test_a_completion_that_never_ends_does_not_hold_the_next_cell_for_long(kernel: KernelSession) -> None:
    kernel.run("import time\nclass Sleeper:\n    def __dir__(self):\n        time.sleep(1000)\nsleeper = Sleeper()")
    code = "sleeper."
    reply = kernel.ask("complete_request", {"code": code, "cursor_pos": len(code)}, within=15)
    assert reply["matches"] == []
    assert kernel.run("'next'", within=15).result == "'next'"
