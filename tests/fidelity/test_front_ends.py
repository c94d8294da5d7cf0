"""The habits of front ends, over the protocol: what each of them sends and relies on."""

from __future__ import annotations

import json
import queue
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import papermill
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.jsonutil import parse_date
from jupyter_client.manager import KernelManager
from kernel_session import KernelSession, Run
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat.v4 import new_code_cell, new_notebook

SPEC = {"kernelspec": {"name": "agently", "display_name": "Agently (sandboxed)", "language": "python"}}


@pytest.fixture(autouse=True)
def _own_folders(own_folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in own_folders.items():
        monkeypatch.setenv(name, value)


def book(*cells: str) -> nbformat.NotebookNode:
    return new_notebook(cells=[new_code_cell(source) for source in cells], metadata=SPEC)


# -- nbclient and papermill --------------------------------------------------------------------------------------------


def test_nbclient_runs_a_notebook_and_names_its_language(tmp_path: Path) -> None:
    notebook = book("x = 2", "print(x)\nx * 3", "import sys\nprint('e', file=sys.stderr)")
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert notebook.metadata.language_info.name == "python"
    assert notebook.metadata.language_info.version == ".".join(map(str, sys.version_info[:3]))
    outputs = [[(o.output_type, o.get("text") or o.get("data")) for o in cell.outputs] for cell in notebook.cells]
    assert outputs == [
        [],
        [("stream", "2\n"), ("execute_result", {"text/plain": "6"})],
        [("stream", "e\n")],
    ]
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3]
    nbformat.validate(notebook)


def test_nbclient_stops_at_an_error_and_goes_on_where_it_may() -> None:
    notebook = book("1/0", "'after'")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        NotebookClient(notebook, timeout=60).execute()
    assert notebook.cells[1].outputs == []
    tagged = book("1/0", "'after'")
    tagged.cells[0].metadata["tags"] = ["raises-exception"]
    NotebookClient(tagged, timeout=60).execute()
    assert tagged.cells[1].outputs[0].data["text/plain"] == "'after'"


def test_nbclient_interrupts_a_cell_that_takes_too_long() -> None:
    notebook = book("import time\ntime.sleep(60)", "'next'")
    NotebookClient(notebook, timeout=2, interrupt_on_timeout=True, allow_errors=True).execute()
    assert notebook.cells[0].outputs[-1].ename == "KeyboardInterrupt"
    assert notebook.cells[1].outputs[0].data["text/plain"] == "'next'"
    with pytest.raises(CellTimeoutError):
        NotebookClient(book("while True: pass"), timeout=1).execute()


def test_nbclient_asks_nobody() -> None:
    with pytest.raises(CellExecutionError, match="does not support input requests"):
        NotebookClient(book("input('?')"), timeout=60).execute()
    started = time.monotonic()
    with pytest.raises(CellExecutionError, match="ApprovalDenied"):
        NotebookClient(book("%%agently_exec --isolation none\n1"), timeout=60).execute()
    assert time.monotonic() - started < 30


def test_nbclient_keeps_the_state_of_widgets() -> None:
    notebook = book("import ipywidgets as w\ns = w.IntSlider(4); out = w.Output()\nwith out: print('kept')\ns")
    NotebookClient(notebook, timeout=60).execute()
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    assert [s["state"]["value"] for s in states if s["model_name"] == "IntSliderModel"] == [4]
    (captured,) = [s["state"]["outputs"] for s in states if s["model_name"] == "OutputModel"]
    assert captured == [{"output_type": "stream", "name": "stdout", "text": "kept\n"}]


def test_papermill_passes_parameters_and_writes_as_it_goes(tmp_path: Path) -> None:
    source, target = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    notebook = book("alpha = 1\nname = 'none'", "print(name, alpha)")
    notebook.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(notebook, source)
    papermill.execute_notebook(source, target, {"alpha": 7, "name": "given"}, progress_bar=False, cwd=tmp_path)
    done = nbformat.read(target, as_version=4)
    assert done.cells[1].metadata["tags"] == ["injected-parameters"]
    assert done.cells[2].outputs[0].text == "given 7\n"
    assert [cell.metadata.papermill.status for cell in done.cells] == ["completed"] * 3
    failing = book("raise ValueError('told')")
    nbformat.write(failing, source)
    with pytest.raises(papermill.exceptions.PapermillExecutionError, match="told"):
        papermill.execute_notebook(source, target, progress_bar=False, cwd=tmp_path)
    assert nbformat.read(target, as_version=4).cells[-1].outputs[0].ename == "ValueError"


# -- jupyter console and qtconsole -------------------------------------------------------------------------------------


def test_a_console_asks_whether_a_line_is_complete_and_for_history(kernel: KernelSession) -> None:
    kernel.run("pass")  # the sandbox has booted: a question before waits two seconds for it at most
    for code, answer in (
        ("for i in range(3):", {"status": "incomplete", "indent": "    "}),
        ("x = 1", {"status": "complete"}),
        ("x = (", {"status": "incomplete", "indent": "    "}),
        ("x = = 1", {"status": "invalid"}),
        ("%%timeit", {"status": "incomplete", "indent": ""}),
    ):
        found = kernel.ask("is_complete_request", {"code": code})
        assert {**found, "indent": answer.get("indent", "")} == {"indent": "", **answer}, code
    kernel.run("console_line = 11")
    tail = {"hist_access_type": "tail", "n": 1000, "raw": True, "output": False}
    assert kernel.ask("history_request", tail)["history"][-1][2] == "console_line = 11"
    search = {"hist_access_type": "search", "pattern": "console_l*", "n": 1, "raw": True, "output": False}
    assert [entry[2] for entry in kernel.ask("history_request", search)["history"]] == ["console_line = 11"]


def test_a_qtconsole_uses_silent_user_expressions_pages_and_tooltips(kernel: KernelSession) -> None:
    run = kernel.run("", silent=True, user_expressions={"cwd": "__import__('os').getcwd()"})
    assert run.reply["user_expressions"]["cwd"]["data"]["text/plain"] == "'/workspace/build'"
    assert run.kinds == []
    kernel.run("def pick(alpha, beta=2):\n    'Tip of pick.'")
    tip = kernel.ask("inspect_request", {"code": "pick(", "cursor_pos": 5, "detail_level": 0})
    assert tip["found"] and "Signature: " in plain(tip["data"]["text/plain"]) and set(tip["data"]) == {"text/plain"}
    full = kernel.ask("inspect_request", {"code": "pick", "cursor_pos": 4, "detail_level": 1})
    assert "def pick(alpha, beta=2):" in plain(full["data"]["text/plain"])
    page = kernel.run("pick??").reply["payload"]
    assert [entry["source"] for entry in page] == ["page"]
    kernel.run("value_of_a_long_name = 1")
    completion = kernel.ask("complete_request", {"code": "value_of_a", "cursor_pos": 10})
    assert completion["matches"] == ["value_of_a_long_name"]


def plain(text: str) -> str:
    """Text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_second_client_sees_the_first_ones_cells(kernel: KernelSession) -> None:
    second: BlockingKernelClient = kernel.manager.blocking_client()
    second.start_channels()
    try:
        second.wait_for_ready(timeout=30)
        run = kernel.run("print('for all')")
        seen: list[str] = []
        end = time.monotonic() + 10
        while "idle" not in seen and time.monotonic() < end:
            try:
                message = second.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") == run.message_id:
                seen.append(message["content"].get("execution_state") or message["msg_type"])
        assert seen == ["busy", "execute_input", "stream", "idle"]
        own = second.execute("answer = input('second? ')", allow_stdin=True)
        question = second.get_stdin_msg(timeout=20)  # goes to the client whose cell asks
        assert question["content"]["prompt"] == "second? "
        second.input("from the second")
        assert second.get_shell_msg(timeout=20)["parent_header"]["msg_id"] == own
    finally:
        second.stop_channels()
    assert kernel.run("answer").result == "'from the second'"


# -- VS Code -----------------------------------------------------------------------------------------------------------


def test_silent_cells_that_print_and_queries_between_cells(kernel: KernelSession) -> None:
    before = kernel.run("1").reply["execution_count"]
    silent = {"silent": True, "store_history": False, "stop_on_error": False}
    assert kernel.run("import sys\nprint(sys.executable)", **silent).text().strip().endswith("python")
    run = kernel.run(
        "import json as _json\nprint(_json.dumps({'names': [n for n in ('before', 'sys') if n in globals()]}))\n"
        "del _json",
        **silent,
    )
    assert json.loads(run.text()) == {"names": ["sys"]}
    assert kernel.run("this is wrong", **silent).status == "error"
    assert kernel.run("'goes on'").result == "'goes on'"
    assert kernel.run("2").reply["execution_count"] == before + 2
    assert "print(_json" not in kernel.run("%history").text()


def test_cells_are_numbered_and_named_by_their_metadata(kernel: KernelSession) -> None:
    message = kernel.client.session.msg(
        "execute_request",
        {
            "code": "1/0",
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        },
        metadata={"cellId": "8d3c-1", "deletedCells": [], "recordTiming": True},
    )
    run = kernel.runs[message["header"]["msg_id"]] = Run(message["header"]["msg_id"], ())
    kernel.client.shell_channel.send(message)
    kernel.wait(run)
    reply = kernel.replies[run.message_id]
    assert run.error[0] == "ZeroDivisionError"
    assert parse_date(reply["metadata"]["started"]) <= reply["header"]["date"]  # what "record timing" shows
    assert run.of("execute_input")[0]["content"]["code"] == "1/0"


# -- what all of them do -----------------------------------------------------------------------------------------------


@pytest.fixture
def manager() -> Iterator[KernelManager]:
    manager = KernelManager(kernel_name="agently")
    manager.start_kernel()
    yield manager
    if manager.has_kernel:
        manager.shutdown_kernel(now=True)


def test_restart_gives_a_fresh_kernel_to_the_same_client(manager: KernelManager) -> None:
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        assert ask(client, "kept = 1") == "ok"
        manager.restart_kernel(now=False)
        client.wait_for_ready(timeout=60)
        assert ask(client, "kept") == "error"
        assert ask(client, "kept = 2; kept") == "ok"
    finally:
        client.stop_channels()


def test_curve_encryption_where_the_client_offers_it(tmp_path: Path) -> None:
    manager = KernelManager(kernel_name="agently", transport_encryption="required")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        assert ask(client, "1 + 1") == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)


def ask(client: BlockingKernelClient, code: str) -> str:
    """The status of a cell's reply."""
    return str(client.execute(code, reply=True, timeout=60)["content"]["status"])


def test_requests_keep_their_order_behind_a_failing_cell(kernel: KernelSession) -> None:
    sent: list[str] = []
    for kind, content in (
        ("execute_request", {"code": "import time\ntime.sleep(0.3)\n1/0"}),
        ("kernel_info_request", {}),
        ("comm_info_request", {}),
        ("inspect_request", {"code": "print", "cursor_pos": 5}),
        ("complete_request", {"code": "pri", "cursor_pos": 3}),
    ):
        message = kernel.client.session.msg(kind, content)
        sent.append(message["header"]["msg_id"])
        kernel.client.shell_channel.send(message)
    kernel.settle(15, lambda: all(identity in kernel.replies for identity in sent))
    replies = [kernel.replies[identity] for identity in sent]
    assert [reply["content"]["status"] for reply in replies] == ["error", "ok", "ok", "ok", "ok"]
    dates = [reply["header"]["date"] for reply in replies]
    assert dates == sorted(dates)


def test_cells_on_the_control_channel_wait_their_turn(kernel: KernelSession) -> None:
    sent = []
    for seconds in (0.3, 0.1):
        message = kernel.client.session.msg("execute_request", {"code": f"import time\ntime.sleep({seconds})"})
        sent.append(message["header"]["msg_id"])
        kernel.client.control_channel.send(message)
    kernel.settle(15, lambda: all(identity in kernel.replies for identity in sent))
    first, second = (kernel.replies[identity] for identity in sent)
    assert first["content"]["status"] == second["content"]["status"] == "ok"
    assert parse_date(second["metadata"]["started"]) >= first["header"]["date"]


def test_modules_in_the_notebooks_folder_do_not_run_in_the_kernels_process(
    start: Callable[..., KernelSession], tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    names = (
        "zmq", "asyncio", "gc", "ipykernel", "pydantic", "IPython", "matplotlib", "psutil", "runpy", "pkgutil", "types",
        "encodings", "site", "sitecustomize", "usercustomize", "collections", "agently_exec",
    )
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n")
    (tmp_path / "agently_kernel").mkdir()
    for name in ("__init__", "__main__"):
        (tmp_path / "agently_kernel" / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('ours')\n")
    kernel = start(env={"PYTHONSAFEPATH": ""})  # as with Python 3.10, which does not know it
    assert kernel.run("1 + 1").result == "2"
    assert kernel.run("%%agently_exec\nprint('apart')").text() == "apart\n"
    assert not mark.exists()


def test_a_cell_of_a_repeated_or_odd_message_id_runs(start: Callable[..., KernelSession]) -> None:
    kernel = start()
    for identity in ("../../odd id\n", "same", "same"):
        message = kernel.client.session.msg("execute_request", {"code": "print('ran')", "silent": False})
        message["header"]["msg_id"] = message["msg_id"] = identity
        kernel.other.clear()
        kernel.client.shell_channel.send(message)
        kernel.settle(10, lambda: any(m["content"].get("text") == "ran\n" for m in kernel.other))
        shown = [m for m in kernel.other if m["content"].get("text") == "ran\n"]
        assert [m["parent_header"]["msg_id"] for m in shown] == [identity]
