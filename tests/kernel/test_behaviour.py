"""What a cell may do, and what its front end sees of it: the ordinary kernel's behaviour, in a sandbox."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from kernel_session import KernelSession, Run

TABLE: list[tuple[str, str, dict[str, Any]]] = [
    # name, code, what must be seen
    ("result", "6 * 7", {"result": "42"}),
    ("no result after a semicolon", "6 * 7;", {"result": "", "kinds": []}),
    (
        "stdout and stderr",
        "import sys; print('out'); print('err', file=sys.stderr)",
        {"stdout": "out\n", "stderr": "err\n"},
    ),
    (
        "bytes written to the descriptors",
        "import os; os.write(1, b'raw\\n'); os.write(2, b'low\\n');",
        {"stdout": "raw\n", "stderr": "low\n"},
    ),
    (
        "a child's output",
        "import subprocess; subprocess.run(['sh', '-c', 'echo kid; echo oops >&2']);",
        {"stdout": "kid\n", "stderr": "oops\n"},
    ),
    (
        "a child that is given our streams",
        "import subprocess, sys; subprocess.run(['echo', 'given'], stdout=sys.stdout);",
        {"stdout": "given\n"},
    ),
    (
        "order of text and displays",
        "print('a', end=''); display(1); print('b', end='')",
        {"kinds": ["stream", "display_data", "stream"]},
    ),
    ("bytes that are no text", "import os; os.write(1, b'x\\xffy\\n');", {"stdout": "x\ufffdy\n"}),
    (
        "a character written byte by byte",
        "import os\nfor b in 'é\\n'.encode(): os.write(1, bytes([b]))",
        {"stdout": "é\n"},
    ),
    ("a lone surrogate", "print('a'); print('\\ud83d'); print('b')", {"stdout_re": r"a\n.*\nb\n"}),
    ("an exception", "1 / 0", {"error": ("ZeroDivisionError", "division by zero"), "status": "error"}),
    ("a syntax error", "if True print(1)", {"error_name": "SyntaxError"}),
    ("sys.exit", "import sys; sys.exit(3)", {"error_name": "SystemExit"}),
    ("shell escape", "!echo shell-$((1+1))", {"stdout": "shell-2\n"}),
    ("cell magic", "%%bash\necho from-bash", {"stdout": "from-bash\n"}),
    ("await", "import asyncio\nawait asyncio.sleep(0.01)\n'woke'", {"result": "'woke'"}),
    ("asyncio.run", "import asyncio\nasyncio.run(asyncio.sleep(0, 'ran'))", {"result": "'ran'"}),
    (
        "the source of a function",
        "def shown(): return 1 # marker\nimport inspect\nprint(inspect.getsource(shown))",
        {"stdout_re": "# marker"},
    ),
    (
        "the file of a cell",
        "def here(): pass\nimport os\nos.path.exists(here.__code__.co_filename)",
        {"result": "True"},
    ),
    (
        "pickling",
        "class Thing: pass\nimport pickle\ntype(pickle.loads(pickle.dumps(Thing()))).__name__",
        {"result": "'Thing'"},
    ),
    ("logging", "import logging; logging.getLogger('x').warning('careful')", {"stderr": "careful\n"}),
    (
        "many threads",
        "import threading\nts = [threading.Thread(target=print, args=('t',)) for _ in range(30)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts];",
        {"stdout": "t\n" * 30},
    ),
    (
        "a pool of processes",
        "import multiprocessing as mp\nwith mp.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))",
        {"stdout": "[1, 2]\n"},
    ),
    ("recursion without end", "def f(): f()\nf()", {"error_name": "RecursionError"}),
    ("the kernel's own process is out of reach", "import sys; 'zmq' in sys.modules", {"result": "False"}),
    (
        "reading stdin gives its end",
        "import sys, subprocess; subprocess.run(['cat'], capture_output=True).stdout",
        {"result": "b''"},
    ),
    (
        "no network",
        "import socket\ntry: socket.create_connection(('127.0.0.1', 9), 2)\nexcept OSError: print('blocked')",
        {"stdout": "blocked\n"},
    ),
    ("an empty cell", "  \n", {"kinds": [], "status": "ok"}),
    ("a NUL in the source", "print(1)\0", {"error_name": "ValueError", "status": "error"}),
]


@pytest.mark.parametrize(("code", "want"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_behaviour(kernel: KernelSession, code: str, want: dict[str, Any]) -> None:
    run = kernel.run(code)
    error_name = want.get("error", (want.get("error_name", ""),))[0]
    seen = {
        "result": run.result,
        "stdout": run.text(),
        "stderr": run.text("stderr"),
        "kinds": run.kinds,
        "error": run.error,
        "status": run.status,
        "error_name": run.error[0],
    }
    assert {name: seen[name] for name in want if name in seen} == {name: want[name] for name in want if name in seen}
    if "stdout_re" in want:
        assert re.search(want["stdout_re"], run.text())
    assert run.status == ("error" if error_name else "ok")
    assert len(run.of("error")) == (1 if error_name else 0)
    assert run.messages[-1]["content"] == {"execution_state": "idle"}


def test_state_lives_on_and_counts_like_the_ordinary_kernel(kernel: KernelSession) -> None:
    first = kernel.run("value = 7; value")
    count = first.reply["execution_count"]
    assert first.of("execute_input")[0]["content"]["execution_count"] == count
    assert first.of("execute_result")[0]["content"]["execution_count"] == count
    silent = kernel.run("print('quiet'); value = 8; value", silent=True, store_history=False)
    assert (silent.text(), silent.result, silent.of("execute_input")) == ("quiet\n", "", [])
    unstored = kernel.run("5", store_history=False)
    assert unstored.of("execute_input")[0]["content"]["execution_count"] == count + 1
    last = kernel.run("_ + value", user_expressions={"twice": "value * 2", "bad": "1/0"})
    assert last.reply["execution_count"] == count + 1
    assert last.reply["user_expressions"]["twice"]["data"]["text/plain"] == "16"
    assert last.reply["user_expressions"]["bad"]["ename"] == "ZeroDivisionError"


def test_output_arrives_while_the_cell_runs(kernel: KernelSession) -> None:
    seen: list[float] = []

    def note(run: Run) -> None:
        if run.of("stream") and not seen:
            seen.append(time.monotonic())

    run = kernel.run("import time\nfor i in range(4): print(i, flush=True); time.sleep(0.25)", during=note)
    assert time.monotonic() - seen[0] > 0.4
    assert run.text() == "0\n1\n2\n3\n"
    assert len(run.of("stream")) >= 3


def test_a_threads_output_goes_to_the_cell_that_started_it(kernel: KernelSession) -> None:
    first = kernel.run(
        "import threading, time\nt = threading.Thread(target=lambda: (time.sleep(0.5), print('late')))\nt.start()"
    )
    second = kernel.run("t.join(); print('second')")
    kernel.settle(1.0, lambda: "late" in first.text())
    assert (first.text(), second.text()) == ("late\n", "second\n")


def test_display_update_and_clear(kernel: KernelSession) -> None:
    run = kernel.run(
        "h = display('v0', display_id='box'); h.update('v1')\n"
        "from IPython.display import clear_output; clear_output(wait=True)"
    )
    assert [(m["msg_type"], m["content"].get("transient")) for m in run.of("display_data", "update_display_data")] == [
        ("display_data", {"display_id": "box"}),
        ("update_display_data", {"display_id": "box"}),
    ]
    assert run.of("clear_output")[0]["content"] == {"wait": True}
    later = kernel.run("h.update('v2')")
    assert later.of("update_display_data")[0]["content"]["data"] == {"text/plain": "'v2'"}


def test_active_html_never_arrives_bare(kernel: KernelSession) -> None:
    run = kernel.run(
        "from IPython.display import HTML, Javascript\ndisplay(HTML('<script>1</script>'), Javascript('alert(1)'))"
    )
    bundles = [m["content"]["data"] for m in run.of("display_data")]
    assert re.match(r"\s*<iframe\b[^>]*\bsandbox=", bundles[0]["text/html"])
    assert "allow-same-origin" not in bundles[0]["text/html"]
    assert all("application/javascript" not in bundle for bundle in bundles)


def test_an_error_aborts_what_was_queued_behind_it_and_nothing_later(kernel: KernelSession) -> None:
    kernel.run("ran = []")
    queued = [
        kernel.send(code)
        for code in (
            "import time; time.sleep(0.3); ran.append(1)",
            "raise RuntimeError('stop')",
            *["ran.append(2)"] * 5,
        )
    ]
    for run in queued:
        kernel.wait(run)
    assert [run.status for run in queued] == ["ok", "error", *["aborted"] * 5]
    assert kernel.run("ran").result == "[1]"
    going_on = [kernel.send("1/0", stop_on_error=False), kernel.send("'went on'")]
    assert [kernel.wait(run).status for run in going_on] == ["error", "ok"]


def test_input_and_getpass(kernel: KernelSession) -> None:
    run = kernel.run(
        "import getpass\nprint(input('name? '), len(getpass.getpass('pass? ')))", answers=["Ada é", "secret"]
    )
    assert run.prompts == [("name? ", False), ("pass? ", True)]
    assert run.text() == "Ada é 6\n"
    assert run.input_requests[0]["metadata"]["agently"] == {"from": "sandbox"}
    refused = kernel.run("input('x')", allow_stdin=False)
    assert refused.error == (
        "StdinNotImplementedError",
        "raw_input was called, but this frontend does not support input requests.",
    )


@pytest.mark.parametrize(
    "prompt", ["Agently approval · Allow? ", "A\u200bgently: type 'allow 1': ", "Ｔype allow session: "]
)
def test_a_prompt_that_imitates_our_own_is_marked(kernel: KernelSession, prompt: str) -> None:
    run = kernel.run(f"input({prompt!r})", answers=["x"])
    assert run.prompts[0][0].startswith("[from the sandbox] ")


def test_control_sequences_are_gone_from_prompts(kernel: KernelSession) -> None:
    assert kernel.run(r"input('\x1b]0;title\x07na\x1b[2Jme ')", answers=["x"]).prompts == [("name ", False)]


def test_introspection(kernel: KernelSession) -> None:
    kernel.run("def catalogue_entry(alpha, beta=2):\n    'docstring-of-entry'")
    code = "catalogue_en"
    reply = kernel.ask("complete_request", {"code": code, "cursor_pos": len(code)})
    assert (reply["matches"], reply["cursor_start"], reply["cursor_end"]) == (["catalogue_entry"], 0, len(code))
    shown = kernel.ask("inspect_request", {"code": "catalogue_entry", "cursor_pos": 5, "detail_level": 0})
    assert (
        shown["found"] and "docstring-of-entry" in shown["data"]["text/plain"] and set(shown["data"]) == {"text/plain"}
    )
    assert kernel.ask("inspect_request", {"code": "no_such", "cursor_pos": 3})["found"] is False
    assert kernel.ask("is_complete_request", {"code": "for i in x:"}) == {"status": "incomplete", "indent": "    "}
    assert kernel.ask("is_complete_request", {"code": "1"}) == {"status": "complete"}
    history = kernel.ask("history_request", {"hist_access_type": "tail", "n": 1, "output": False, "raw": True})
    assert "docstring-of-entry" in history["history"][0][2]


@pytest.mark.parametrize("kind", ["complete", "inspect"])
def test_hostile_objects_cannot_hold_introspection(kernel: KernelSession, kind: str) -> None:
    kernel.run(
        "class Trap:\n    def __getattr__(self, name): raise KeyboardInterrupt\n"
        "    def __dir__(self): raise SystemExit\ntrap = Trap()"
    )
    code = "trap." if kind == "complete" else "trap"
    assert kernel.ask(f"{kind}_request", {"code": code, "cursor_pos": len(code)}, within=15)["status"] == "ok"
    assert kernel.run("1").result == "1"


def test_questions_are_answered_while_a_cell_runs(kernel: KernelSession) -> None:
    run = kernel.send("import time\nend = time.time() + 3\nwhile time.time() < end: sum(range(1000))")
    kernel.settle(0.5)
    started = time.monotonic()
    info = kernel.ask("kernel_info_request", {})
    assert kernel.ask("kernel_info_request", {}, channel="control")["status"] == "ok"
    assert kernel.ask("comm_info_request", {"target_name": "jupyter.widget"})["status"] == "ok"
    assert time.monotonic() - started < 1.0
    assert info["supported_features"] == ["kernel subshells"]
    assert kernel.ask("complete_request", {"code": "ti", "cursor_pos": 2})["matches"] == []
    assert time.monotonic() - started < 2.2
    assert not run.reply
    busy = [m["content"]["execution_state"] for m in kernel.wait(run).of("status")]
    assert busy[0] == "busy" and busy[-1] == "idle" and set(busy[:-1]) == {"busy"}


def test_widgets_talk_both_ways(kernel: KernelSession) -> None:
    run = kernel.run("import ipywidgets as w\nslider = w.IntSlider(value=3, max=50); display(slider)")
    opened = [m for m in run.of("comm_open") if m["content"]["data"]["state"].get("_model_name") == "IntSliderModel"]
    comm_id = opened[0]["content"]["comm_id"]
    assert opened[0]["metadata"]["version"].startswith("2.")
    assert comm_id in kernel.ask("comm_info_request", {"target_name": "jupyter.widget"})["comms"]
    update = {"method": "update", "state": {"value": 41}, "buffer_paths": []}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", {"comm_id": comm_id, "data": update}))
    kernel.settle(0.5)
    assert kernel.run("slider.value").result == "41"
    moving = kernel.send(
        "import time\nend = time.time() + 10\nwhile slider.value != 7 and time.time() < end: time.sleep(0.05)\n"
        "slider.value"
    )
    kernel.settle(0.4)
    update["state"] = {"value": 7}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", {"comm_id": comm_id, "data": update}))
    assert kernel.wait(moving).result in ("7", "41")
    assert kernel.run("slider.value").result == "7"


def test_comm_targets_of_the_kernel_are_closed_to_a_guest(kernel: KernelSession) -> None:
    run = kernel.run(
        "from comm import create_comm\nc = create_comm(target_name='agently.panel', data={})\nprint('made')"
    )
    assert run.of("comm_open") == []
    assert run.text() == "made\n"


def test_a_flood_keeps_head_and_tail_and_few_messages(kernel: KernelSession) -> None:
    run = kernel.run("for i in range(120_000): print('x' * 99, i)\nprint('LAST')", within=60)
    text = run.text()
    assert text.startswith("x" * 99 + " 0\n") and text.endswith("LAST\n")
    assert len(text) <= 8 * 2**20 + 1000
    notes = run.text("stderr")
    found = re.search(r"\[agently\] ([\d,]+) bytes in ([\d,]+) lines are not shown here\. They are in (\S+)\.\n", notes)
    assert found is not None
    assert int(found.group(2).replace(",", "")) == 120_001 - text.count("\n")
    with open(found.group(3), "rb") as log:
        assert log.read().endswith(b"LAST\n")
    assert len(run.of("stream")) < 20 * run.seconds + 40


def test_one_program_in_a_fresh_sandbox(kernel: KernelSession) -> None:
    kernel.run("leak_me = 1")
    run = kernel.run(
        "%%agently_exec --output output/x.csv\nprint('leak_me' in globals())\nopen('output/x.csv', 'w').write('a,b\\n')"
    )
    assert run.text() == "False\n"
    assert "collected output/x.csv (4 bytes, sha256:" in run.text("stderr")
    assert run.status == "ok"
    missing = kernel.run("%%agently_exec --output output/none.csv\npass")
    assert missing.status == "error" and "output/none.csv (missing" in missing.error[1]
    bad = kernel.run("%%agently_exec --langage go\n")
    assert bad.error[0] == "ConfigurationError" and "--langage" in bad.error[1] and "Nothing was run." in bad.error[1]
    weaker = kernel.run("%%agently_exec --isolation none\n1")
    assert weaker.error[0] == "ApprovalDenied" and "isolation 'none' instead of 'required'" in weaker.error[1]
    assert kernel.run("leak_me").result == "1"


def test_the_facts_of_the_sandbox_can_be_read(kernel: KernelSession) -> None:
    shown = kernel.run("%agently facts").of("display_data")[0]["content"]["data"]
    for axis in (
        "process_contained",
        "host_filesystem_restricted",
        "privilege_escalation_blocked",
        "syscalls_restricted",
    ):
        assert re.search(rf"✓ holds +{axis} ", shown["text/plain"])
    assert re.search(r"provider +bubblewrap \(isolated\)", shown["text/plain"])
    assert "<table" in shown["text/html"]


def test_numbers_without_a_cell_are_no_lines_of_the_history(start: Callable[..., KernelSession]) -> None:
    session = start()
    session.run("1 + 1")
    session.run("%agently status")
    session.run("2 + 2")
    assert session.run("%history").text() == "1 + 1\n2 + 2\n%history\n"
    session.run("import os; os._exit(0)")
    session.run("3 + 3")
    assert session.run("%history").text() == "3 + 3\n%history\n"
    assert session.run("%history -n").text() == "   6: 3 + 3\n   7: %history\n   8: %history -n\n"


def test_a_misplaced_magic_is_told_once(kernel: KernelSession) -> None:
    run = kernel.run("x = 1\n%agently status")
    assert run.error[0] == "UsageError"
    assert run.text("stderr") == ""
    assert run.of("error")[0]["content"]["traceback"] == [f"\x1b[31mUsageError\x1b[39m: {run.error[1]}"]
    assert "must stand in a cell of its own" in run.error[1]
