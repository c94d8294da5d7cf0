"""Subshells: cells that run beside the main shell's, each with its own output, queue and Stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kernel_session import KernelSession

from agently_kernel.subshells import MOST_SUBSHELLS


def ask(kernel: KernelSession, what: str, **content: Any) -> dict[str, Any]:
    return kernel.ask(f"{what}_subshell_request", content, channel="control", within=10)


def create(kernel: KernelSession) -> str:
    return str(ask(kernel, "create")["subshell_id"])


@pytest.fixture
def subshell(kernel: KernelSession) -> Iterator[str]:
    name = create(kernel)
    yield name
    ask(kernel, "delete", subshell_id=name)


def test_they_are_offered_made_listed_and_deleted(start: Callable[..., KernelSession]) -> None:
    kernel = start()
    assert kernel.ask("kernel_info_request", {})["supported_features"] == ["kernel subshells"]
    assert ask(kernel, "list") == {"status": "ok", "subshell_id": []}
    first, second = create(kernel), create(kernel)
    assert ask(kernel, "list")["subshell_id"] == [first, second]
    assert ask(kernel, "delete", subshell_id=first) == {"status": "ok"}
    assert ask(kernel, "list")["subshell_id"] == [second]
    for name in (first, "nonsense", None):
        refused = ask(kernel, "delete", subshell_id=name)
        assert (refused["status"], refused["ename"]) == ("error", "UnknownSubshellError")


def test_there_is_a_most(start: Callable[..., KernelSession]) -> None:
    kernel = start()
    replies = [ask(kernel, "create") for _ in range(MOST_SUBSHELLS + 1)]
    assert {reply["status"] for reply in replies[:-1]} == {"ok"}
    assert replies[-1]["status"] == "error" and f"{MOST_SUBSHELLS} subshells" in replies[-1]["evalue"]


@pytest.mark.parametrize("kind", ["execute_request", "kernel_info_request", "complete_request", "history_request"])
def test_a_request_for_one_that_is_not_there_is_refused(kernel: KernelSession, kind: str) -> None:
    reply = kernel.ask(kind, {"code": "1", "cursor_pos": 1}, subshell="0" * 36)
    assert (reply["status"], reply["ename"]) == ("error", "UnknownSubshellError")
    kernel.settle(5, until=lambda: states_of(kernel, kind) == ["busy", "idle"])
    assert states_of(kernel, kind) == ["busy", "idle"]


def test_a_person_reads_why_a_cell_for_one_that_is_not_there_did_not_run(kernel: KernelSession) -> None:
    run = kernel.run("print('never')", subshell="left behind")
    assert run.kinds == ["error"] and "open the console anew" in run.error[1]
    assert run.reply["evalue"] == "Unknown subshell_id 'left behind'"


def states_of(kernel: KernelSession, kind: str) -> list[str]:
    """Return the states that were told of the last request of this kind, apart from those of cells."""
    told = [m for m in kernel.other if m["msg_type"] == "status" and m["parent_header"].get("msg_type") == kind]
    last = told[-1]["parent_header"]["msg_id"] if told else ""
    return [m["content"]["execution_state"] for m in told if m["parent_header"]["msg_id"] == last]


def test_cells_run_beside_each_other_and_share_variables(kernel: KernelSession, subshell: str) -> None:
    kernel.run("import threading; both = threading.Barrier(2); there = 'variable'")
    main = kernel.send("both.wait(10); print('in main'); from_main = 1; 'result of main'")
    beside = kernel.send("both.wait(10); print('beside', there); from_beside = 2; 'result beside'", subshell=subshell)
    kernel.wait(main)
    kernel.wait(beside)
    assert (main.text(), main.result) == ("in main\n", "'result of main'")
    assert (beside.text(), beside.result) == ("beside variable\n", "'result beside'")
    assert kernel.run("from_main + from_beside").result == "3"
    counts = [run.of("execute_result")[0]["content"]["execution_count"] for run in (main, beside)]
    assert counts == [main.reply["execution_count"], beside.reply["execution_count"]]
    outs = kernel.run(f"Out[{counts[0]}], Out[{counts[1]}]").result
    assert outs == "('result of main', 'result beside')"


def test_all_that_a_cell_shows_is_its_own(kernel: KernelSession, subshell: str) -> None:
    main = kernel.send("import time\nfor _ in range(20):\n    print('m'); time.sleep(0.1)")
    beside = kernel.send(
        "from IPython.display import display, clear_output\n"
        "import sys, threading, warnings\n"
        "print('text'); print('bad', file=sys.stderr)\n"
        "display('shown')\n"
        "other = threading.Thread(target=print, args=('of a thread',)); other.start(); other.join()\n"
        "!echo of a child; echo of its errors >&2; exit 3\n"
        "print(_exit_code)\n"
        "get_ipython().set_next_input('never')\n"
        "1/0",
        subshell=subshell,
    )
    kernel.wait(beside)
    assert not main.reply, "the cell of the main shell was to go on"
    kernel.wait(main)
    assert main.text() == "m\n" * 20 and main.text("stderr") == "" and main.kinds == ["stream"] * len(main.kinds)
    assert beside.text() == "text\nof a thread\nof a child\n3\n"
    assert beside.text("stderr").startswith("bad\nof its errors\n")
    assert [item["source"] for item in beside.reply["payload"]] == ["set_next_input"]
    assert [m["content"]["data"]["text/plain"] for m in beside.of("display_data")] == ["'shown'"]
    assert beside.error[0] == beside.reply["ename"] == "ZeroDivisionError"
    assert main.reply["payload"] == []


def test_a_child_of_the_only_cell_that_runs_prints_into_it(kernel: KernelSession, subshell: str) -> None:
    kernel.run("print('before')")
    beside = kernel.run("import os; os.system('echo straight to the descriptor')", subshell=subshell)
    assert beside.text() == "straight to the descriptor\n"


def test_an_error_aborts_what_waits_behind_it_and_nothing_else(kernel: KernelSession, subshell: str) -> None:
    other = create(kernel)
    failing = kernel.send("import asyncio; await asyncio.sleep(0.5); 1/0", subshell=subshell)
    behind = [kernel.send("print('never')", subshell=subshell) for _ in range(3)]
    elsewhere = [kernel.send("import time; time.sleep(0.7); 'fine'", subshell=where) for where in (other, None)]
    after = [kernel.send("'fine'", subshell=where) for where in (other, None)]
    for run in (failing, *behind, *elsewhere, *after):
        kernel.wait(run)
    assert failing.status == "error"
    assert [run.status for run in behind] == ["aborted"] * 3
    assert [run.result for run in (*elsewhere, *after)] == ["'fine'"] * 4
    assert kernel.run("'again'", subshell=subshell).result == "'again'"
    ask(kernel, "delete", subshell_id=other)


def test_questions_to_a_subshell_are_answered_while_the_main_shell_is_busy(
    kernel: KernelSession, subshell: str
) -> None:
    kernel.run("1")
    main = kernel.send("import time; time.sleep(3)")
    kernel.settle(0.3)
    began = time.monotonic()
    info = kernel.ask("kernel_info_request", {}, subshell=subshell)
    complete = kernel.ask("complete_request", {"code": "pri", "cursor_pos": 3}, subshell=subshell)
    assert time.monotonic() - began < 2.5
    assert info["implementation"] == "agently-kernel" and complete["status"] == "ok"
    assert kernel.wait(main).status == "ok"
    found = kernel.ask("complete_request", {"code": "prin", "cursor_pos": 4}, subshell=subshell)
    assert "print" in found["matches"]


@pytest.mark.parametrize("there", [True, False])
def test_a_comm_message_for_a_subshell_reaches_a_busy_interpreter(
    kernel: KernelSession, subshell: str, there: bool
) -> None:
    opened = kernel.run(
        "import comm, asyncio\n"
        "heard = asyncio.get_running_loop().create_future()\n"
        "own = comm.create_comm(target_name='jupyter.widget', data={'state': {"
        "'_model_module': '@jupyter-widgets/controls', '_model_name': 'IntSliderModel'}}, "
        "metadata={'version': '2.1.0'})\n"
        "own.on_msg(lambda message: heard.set_result(message['content']['data']['state']['value']))"
    )
    comm_id = opened.of("comm_open")[0]["content"]["comm_id"]
    waiting = kernel.send("await asyncio.wait_for(heard, 10)")
    kernel.settle(0.3)
    message = kernel.client.session.msg(
        "comm_msg", {"comm_id": comm_id, "data": {"method": "update", "state": {"value": 42}, "buffer_paths": []}}
    )
    message["header"]["subshell_id"] = subshell if there else "left behind"
    kernel.client.shell_channel.send(message)
    assert kernel.wait(waiting).result == "42"
    assert states_of(kernel, "comm_msg") == ["busy", "idle"]


def test_asyncio_works_in_both_ways(kernel: KernelSession, subshell: str) -> None:
    awaited = kernel.run("import asyncio; await asyncio.sleep(0.01, 'awaited')", subshell=subshell)
    assert awaited.result == "'awaited'"
    assert kernel.run("asyncio.run(asyncio.sleep(0.01, 'run'))", subshell=subshell).result == "'run'"
    task = kernel.run("task = asyncio.create_task(asyncio.sleep(0.01, 'of a task'))", subshell=subshell)
    assert task.status == "ok"
    assert kernel.run("await task", subshell=subshell).result == "'of a task'"


def test_nobody_can_be_asked_there(kernel: KernelSession, subshell: str) -> None:
    run = kernel.run("input('?')", subshell=subshell, answers=["x"])
    assert run.error == (
        "StdinNotImplementedError", "A cell of a subshell cannot ask for input; ask in a cell of the notebook."
    )


def test_a_child_in_the_background_keeps_no_cell_waiting_and_prints_on(kernel: KernelSession, subshell: str) -> None:
    run = kernel.run("!(sleep 1.5; echo later) & echo now", subshell=subshell)
    assert run.text() == "now\n" and run.seconds < 1.4
    kernel.settle(5, until=lambda: "later" in run.text())
    assert run.text() == "now\nlater\n"


def test_a_child_closes_its_pipes_and_goes_on_or_prints_much(kernel: KernelSession, subshell: str) -> None:
    run = kernel.run("!exec >&- 2>&-; sleep 0.5; exit 4\n_exit_code", subshell=subshell)
    assert run.result == "4"
    assert kernel.run("!head -c 1000000 /dev/zero | tr '\\0' a", subshell=subshell).text() == "a" * 1_000_000


def test_a_stop_of_the_main_cell_does_not_reach_a_child_of_another(kernel: KernelSession, subshell: str) -> None:
    beside = kernel.send("!sleep 2; echo survived", subshell=subshell)
    kernel.settle(0.3)
    main = kernel.send("import time; time.sleep(60)")
    kernel.settle(0.7)
    kernel.interrupt()
    assert kernel.wait(main, within=10).error[0] == "KeyboardInterrupt"
    assert kernel.wait(beside).text() == "survived\n"


def test_a_stop_ends_all_that_a_child_has_started(kernel: KernelSession, subshell: str) -> None:
    run = kernel.send("!sleep 98765 | cat", subshell=subshell)
    kernel.settle(0.7)
    kernel.interrupt()
    assert kernel.wait(run, within=10).error[0] == "KeyboardInterrupt"
    assert kernel.run("!pgrep -x sleep -a | grep 98765", subshell=subshell).text() == ""


# -- what IPython and libraries keep for the one cell that runs --------------------------------------------------------


@pytest.mark.parametrize("awaits", ["", "await asyncio.sleep(0.001); "])
def test_many_cells_at_once_keep_their_results_and_numbers(
    kernel: KernelSession, subshell: str, awaits: str
) -> None:
    kernel.run("import asyncio")
    shells = [None, subshell, *(create(kernel) for _ in range(4))]
    codes = [(f"{awaits}'{n} of {at}'", where) for n in range(40) for at, where in enumerate(shells)]
    runs = [(code, kernel.send(code, subshell=where)) for code, where in codes]
    for code, run in runs:
        assert kernel.wait(run).result and run.result in code
    counts = {run.reply["execution_count"]: code for code, run in runs}
    assert len(counts) == len(runs)
    assert kernel.run(f"[n for n, code in {counts!r}.items() if In[n] != code or Out[n] not in code]").result == "[]"
    for where in shells[2:]:
        ask(kernel, "delete", subshell_id=where)


# -- Stop --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import asyncio; await asyncio.sleep(60)",
        "async def busy():\n    while True: pass\nawait busy()",
        "!sleep 60",
    ],
)
def test_stop_ends_the_only_cell_that_runs(kernel: KernelSession, subshell: str, code: str) -> None:
    kernel.run("kept = 'variable'")
    run = kernel.send(code, subshell=subshell)
    kernel.settle(0.5)
    assert not run.reply
    kernel.interrupt()
    if "busy()" in code:  # only what awaits hears of a first one
        kernel.settle(0.3)
        kernel.interrupt()
    assert kernel.wait(run, within=10).error[0] == "KeyboardInterrupt"
    assert kernel.run("kept", subshell=subshell).result == "'variable'"
    assert kernel.run("kept").result == "'variable'"


def test_stop_is_for_the_main_shell_while_a_cell_runs_there(kernel: KernelSession, subshell: str) -> None:
    beside = kernel.send("import time\nfor _ in range(15): time.sleep(0.1)\n'went on'", subshell=subshell)
    main = kernel.send("import time; time.sleep(60)")
    kernel.settle(0.5)
    kernel.interrupt()
    assert kernel.wait(main, within=10).error[0] == "KeyboardInterrupt"
    assert kernel.wait(beside).result == "'went on'"


def test_a_wait_that_no_stop_reaches_costs_variables_only_when_stop_is_pressed_again(
    start: Callable[..., KernelSession],
) -> None:
    kernel = start(settings={"interrupt_grace": 1.0})
    subshell = create(kernel)
    kernel.run("kept = 1")
    run = kernel.send("import threading; threading.Event().wait(60)", subshell=subshell)
    kernel.settle(0.5)
    kernel.interrupt()
    kernel.settle(5, until=lambda: "Stop once more" in run.text("stderr"))
    assert "Stop once more to end the interpreter" in run.text("stderr") and not run.reply
    assert kernel.run("kept").result == "1"
    kernel.interrupt()
    assert kernel.wait(run, within=15).status == "error"
    assert kernel.run("kept").error[0] == "NameError"
    assert kernel.run("'alive'", subshell=subshell).result == "'alive'"


def test_the_time_limit_holds_there_too(start: Callable[..., KernelSession]) -> None:
    kernel = start(settings={"timeout": 1.0, "interrupt_grace": 1.0})
    subshell = create(kernel)
    stubborn = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    run = kernel.run(stubborn, subshell=subshell)
    assert run.status == "error" and "time limit of 1 s" in run.text("stderr") + run.error[1]
    assert kernel.run("'alive'", subshell=subshell).result == "'alive'"


# -- ends --------------------------------------------------------------------------------------------------------------


def test_the_death_of_the_interpreter_ends_every_cell(start: Callable[..., KernelSession]) -> None:
    kernel = start()
    subshell = create(kernel)
    beside = kernel.send("import time; time.sleep(30)", subshell=subshell)
    kernel.settle(0.5)
    main = kernel.run("import os; os._exit(3)")
    kernel.wait(beside, within=10)
    assert [run.error[0] for run in (main, beside)] == ["InterpreterDied"] * 2
    assert kernel.run("'alive'", subshell=subshell).result == "'alive'"
    assert kernel.run("'alive'").result == "'alive'"


def test_children_of_a_subshell_end_with_the_interpreter(start: Callable[..., KernelSession]) -> None:
    kernel = start()
    subshell = create(kernel)
    kernel.run("!sleep 98761 &", subshell=subshell)
    kernel.run("!sleep 98762 &")
    beside = kernel.send("!sleep 98763 | cat", subshell=subshell)
    kernel.settle(0.7)
    assert kernel.run("import os; os._exit(3)").status == kernel.wait(beside, within=10).status == "error"
    assert kernel.run("!pgrep -a -x sleep").text() == ""


def test_what_is_deleted_ends_its_cell_and_runs_no_other(kernel: KernelSession) -> None:
    subshell = create(kernel)
    running = kernel.send("import time; time.sleep(1); 'to its end'", subshell=subshell)
    waiting = kernel.send("'never'", subshell=subshell)
    kernel.settle(0.3)
    ask(kernel, "delete", subshell_id=subshell)
    assert kernel.wait(running).result == "'to its end'"
    assert kernel.wait(waiting).reply["ename"] == "UnknownSubshellError"
    gone = "import threading; [t.name for t in threading.enumerate() if t.name.startswith('subshell-')]"
    assert subshell not in kernel.run(gone).result


def test_a_child_that_a_cell_forks_ends_with_its_code(kernel: KernelSession, subshell: str) -> None:
    run = kernel.run(
        "import os\nchild = os.fork()\n"
        "if child: print('ended with', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "else: raise SystemExit(7)",
        subshell=subshell,
    )
    assert run.text().endswith("ended with 7\n") and run.status == "ok"
    assert kernel.run("'one answer'", subshell=subshell).result == "'one answer'"


def test_a_shutdown_does_not_wait_for_them(start: Callable[..., KernelSession]) -> None:
    kernel = start()
    run = kernel.send("import time; time.sleep(60)", subshell=create(kernel))
    kernel.settle(0.7)
    began = time.monotonic()
    kernel.close()
    assert time.monotonic() - began < 8 and run.status != "ok"


def test_the_first_cells_meet_in_one_sandbox(start: Callable[..., KernelSession]) -> None:
    kernel = start()
    both = [kernel.send(f"x{n} = {n}; import socket; socket.gethostname()", subshell=create(kernel)) for n in range(3)]
    both.append(kernel.send("x3 = 3"))
    for run in both:
        assert kernel.wait(run).status == "ok"
    assert kernel.run("[x0, x1, x2, x3]").result == "[0, 1, 2, 3]"


def test_programs_in_sandboxes_of_their_own_run_beside_a_cell_and_are_stopped_apart(
    kernel: KernelSession, subshell: str
) -> None:
    program = "%%agently_exec --language bash\nsleep 30"
    beside = kernel.send("import time\nfor _ in range(100): time.sleep(0.1)\n'went on'", subshell=subshell)
    kernel.settle(0.3)
    main = kernel.send(program)
    kernel.settle(2.0)
    kernel.interrupt()
    assert kernel.wait(main, within=10).error[0] == "KeyboardInterrupt"
    assert not beside.reply
    assert kernel.wait(beside).result == "'went on'"
