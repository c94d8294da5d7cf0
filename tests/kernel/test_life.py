"""Stop, deaths, limits, the end of a kernel, and what is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import psutil
import pytest
from kernel_session import KernelSession, Run

Start = Callable[..., KernelSession]


def stop_once(session: KernelSession, after: float = 0.6) -> Callable[[Run], None]:
    """Return a hook that presses Stop once, *after* seconds into the cell."""
    done: list[bool] = []

    def press(run: Run) -> None:
        if not done and time.monotonic() - run.started > after:
            done.append(True)
            session.interrupt()

    return press


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)",
        "while True: pass",
        "while True: print('again')",
        "import asyncio\nwhile True: await asyncio.sleep(0.2)",
        "import subprocess; subprocess.run(['sleep', '60'])",
        "!sleep 60",
    ],
)
def test_stop_ends_the_cell_and_nothing_else(kernel: KernelSession, code: str) -> None:
    kernel.run("kept = 'kept'")
    run = kernel.run(code, during=stop_once(kernel), within=20)
    assert (run.error[0] or "none", run.status) in [("KeyboardInterrupt", "error"), ("none", "ok")]
    assert run.seconds < 8
    assert kernel.run("kept").result == "'kept'"


def test_stop_while_a_person_is_asked(kernel: KernelSession) -> None:
    run = kernel.run("input('waiting ')", allow_stdin=True, during=stop_once(kernel))
    assert run.error[0] == "KeyboardInterrupt"
    assert run.prompts == [("waiting ", False)]
    assert kernel.run("input('again ')", answers=["yes"]).result == "'yes'"


def test_stop_without_a_cell_is_harmless(kernel: KernelSession) -> None:
    kernel.run("a = 1")
    kernel.interrupt()
    kernel.interrupt()
    kernel.settle(0.3)  # both have arrived before the next cell is sent
    assert kernel.run("a").result == "1"


def test_a_cell_that_will_not_stop_loses_its_interpreter_and_is_told_so(start: Start) -> None:
    session = start(settings={"interrupt_grace": 1})
    session.run("kept = 1; open('note.txt', 'w').write('x')")
    code = "import time\nend = time.time() + 60\nwhile time.time() < end:\n"
    code += "  try: time.sleep(1)\n  except KeyboardInterrupt: pass"
    run = session.run(code, during=stop_once(session), within=20)
    assert "did not end within 1 s after you stopped it; its interpreter is being ended" in run.text("stderr")
    assert run.error[0] == "InterpreterDied"
    assert session.run("'kept' in globals()").result == "False"
    assert session.run("open('note.txt').read()").result == "'x'"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import os; os._exit(9)", "The interpreter ended itself with exit code 9."),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "The interpreter was ended by SIGSEGV"),
        ("import ctypes; print('last words', flush=True); ctypes.string_at(0)", "The interpreter was ended by SIGSEGV"),
    ],
)
def test_a_death_is_named_and_the_next_cell_works(kernel: KernelSession, code: str, sentence: str) -> None:
    run = kernel.run(code)
    assert run.error[0] == "InterpreterDied"
    assert run.error[1].startswith(sentence)
    assert run.error[1].endswith("Variables, imports and threads are lost; files and the sandbox live on.")
    assert ("last words" in run.text()) == ("last words" in code)
    assert kernel.run("1 + 1").result == "2"


def test_a_death_between_cells_is_told_once(kernel: KernelSession) -> None:
    kernel.run("import os, threading; threading.Timer(0.2, os._exit, [9]).start()")
    kernel.settle(1.0)
    assert "exit code 9" in kernel.run("1").text("stderr")
    assert kernel.run("2").text("stderr") == ""


def test_garbage_on_every_descriptor_cannot_forge_or_wedge(kernel: KernelSession) -> None:
    code = "import os\nfor fd in map(int, os.listdir('/proc/self/fd')):\n"
    code += "  try: os.write(fd, b'\\xa7K\\x01\\x00' + b'\\xff' * 300)\n  except OSError: pass"
    run = kernel.run(code, within=20)
    assert run.of("execute_result") == []
    assert kernel.run("'honest'", within=20).result == "'honest'"


def sandboxes_of(session: KernelSession) -> list[psutil.Process]:
    return [p for p in psutil.Process(session.pid).children() if p.name() == "bwrap"]


def test_the_sandboxs_end_is_named_and_a_fresh_one_opens(start: Start) -> None:
    session = start()
    session.run("x = 1")
    sandbox = sandboxes_of(session)
    run = session.send("import time; time.sleep(60)")
    session.settle(0.5)
    sandbox[0].kill()
    session.wait(run, within=20)
    assert run.error[0] == "SandboxDied"
    assert session.run("'x' in globals()", within=20).result == "False"


def test_the_sandboxs_end_between_cells_is_told_once_in_the_next_cell(start: Start) -> None:
    session = start()
    session.run("x = 1")
    sandbox = sandboxes_of(session)
    sandbox[0].kill()
    psutil.wait_procs(sandbox, timeout=5)
    session.settle(0.5)
    run = session.run("print('x' in globals())", within=20)
    assert run.text() == "False\n"
    told = run.text("stderr")
    assert "[agently] Since the last cell: The sandbox ended by SIGKILL" in told and "Variables" in told, told
    assert session.run("x = 2").text("stderr") == ""
    sandbox = sandboxes_of(session)
    run = session.send("import time; time.sleep(60)")
    session.settle(0.5)
    sandbox[0].kill()
    session.wait(run, within=20)
    assert run.error[0] == "SandboxDied"
    assert session.run("1", within=20).text("stderr") == "", "the cell that it ended in has told it"


def test_memory_processes_and_time_are_limited(start: Start) -> None:
    session = start(settings={"limits": {"memory": "256M", "processes": 64}, "timeout": 8})
    run = session.run("hoard = [bytearray(b'1') * 2**24 for _ in range(64)]", within=30)
    assert run.error[0] == "MemoryError" or "memory limit" in run.error[1]
    code = "import subprocess\nkids = []\ntry:\n  for _ in range(200): kids.append(subprocess.Popen(['sleep', '20']))\n"
    code += "except OSError as e: print(type(e).__name__)\n[k.kill() for k in kids]; [k.wait() for k in kids];"
    assert session.run(code, within=30).text() == "BlockingIOError\n"
    slow = session.run("import time; time.sleep(60)", within=30)
    assert slow.status == "error"
    assert "time limit of 8 s" in slow.error[1] + slow.text("stderr")
    assert session.run("'usable'").result == "'usable'"


@pytest.mark.parametrize(("provider", "seconds"), [("bubblewrap", 4.5), ("runsc", 10.0)])
def test_shutdown_runs_exit_handlers_and_keeps_files(
    start: Start, tmp_path: Path, provider: str, seconds: float
) -> None:
    """Also where the folders of the sandbox are gone with it, as with runsc."""
    data = tmp_path / "data"
    session = start(env={"JUPYTER_DATA_DIR": str(data)}, settings={"providers": [provider]})
    session.run("import atexit, os, subprocess\natexit.register(lambda: open('goodbye.txt', 'w').write('ran'))")
    session.run("open('output/x.csv', 'w').write('1,2'); subprocess.Popen(['setsid', 'sleep', '71.717']);")
    children = psutil.Process(session.pid).children(recursive=True)
    started = time.monotonic()
    session.close()
    assert time.monotonic() - started < seconds
    files = next((data / "agently-kernel" / "workspaces").iterdir()) / "files"
    assert (files / "goodbye.txt").read_text() == "ran"
    assert (files / "output" / "x.csv").read_text() == "1,2"
    assert [p for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    assert "Traceback" not in session.log.read_text()


def leftovers(pid: int, runtime: Path) -> list[str]:
    """Return what is left of the kernel *pid*: control groups and everything in its runtime folder."""
    groups = []
    for path, folders, _ in os.walk("/sys/fs/cgroup"):  # unlike a glob, it bears folders that vanish meanwhile
        groups += [f"{path}/{name}" for name in folders if fnmatch(name, f"agently-kernel-*-{pid}-*")]
    return groups + [str(path) for path in runtime.rglob("ws-*")] + [str(path) for path in runtime.glob("*probe*")]


@pytest.mark.parametrize("moment", [0.15, 0.35, 0.6, 2.0])
def test_a_killed_kernel_leaves_nothing(start: Start, moment: float) -> None:
    runtime = Path("/dev/shm") / f"agently-test-{os.getpid()}-{int(moment * 1000)}"
    runtime.mkdir(mode=0o700)
    try:
        session = start(env={"XDG_RUNTIME_DIR": str(runtime)}, ready=moment > 1)
        if moment > 1:
            session.run("import subprocess; subprocess.Popen(['setsid', 'sleep', '72.727']);")
        else:
            time.sleep(moment)
        pid = session.pid
        children = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 8
        alive = children
        while time.monotonic() < end and (alive or leftovers(pid, runtime)):
            time.sleep(0.05)
            alive = [p for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        assert (alive, leftovers(pid, runtime)) == ([], [])
    finally:
        shutil.rmtree(runtime)


def test_sigterm_ends_the_kernel_the_tidy_way(start: Start) -> None:
    session = start()
    session.run("1")
    children = psutil.Process(session.pid).children(recursive=True)
    os.kill(session.pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []


def test_two_kernels_share_nothing(start: Start, tmp_path: Path) -> None:
    first, second = (start(folder=tmp_path) for _ in range(2))
    code = "import os; open('/tmp/shared.txt', 'w').write('{0}'); open('note.txt', 'w').write('{0}')"
    first.run(code.format("one"))
    second.run(code.format("two"))
    both = "open('/tmp/shared.txt').read() + open('note.txt').read()"
    assert (first.run(both).result, second.run(both).result) == ("'oneone'", "'twotwo'")


def test_restart_gives_a_fresh_interpreter(start: Start) -> None:
    session = start()
    session.run("x = 1")
    session.manager.restart_kernel(now=False)
    session.client.wait_for_ready(timeout=60)
    run = session.run("'x' in globals()")
    assert (run.result, run.reply["execution_count"]) == ("False", 1)


def test_transport_is_encrypted_where_the_client_offers_it() -> None:
    spec = json.loads((Path(__file__).parents[2] / "kernel" / "kernelspec" / "kernel.json").read_text())
    assert spec["metadata"]["supported_encryption"] == ["curve"]
    assert spec["interrupt_mode"] == "message"
    assert spec["display_name"] == "Agently (sandboxed)"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"isolation": "strong"}, "c.AgentlyKernel.isolation = 'strong' is not valid: input should be 'required', "),
        ({"limits": "{'memroy': '1G'}"}, "c.AgentlyKernel.limits.memroy is not a setting."),
        ({"provider": "x"}, "c.AgentlyKernel.provider is not a setting. Did you mean providers?"),
    ],
)
def test_bad_settings_are_told_in_the_first_cell(start: Start, settings: dict[str, str], sentence: str) -> None:
    run = start(settings=settings).run("1")
    assert run.error[0] == "ConfigurationError"
    assert run.error[1].startswith(f"The command line: {sentence}")


def test_a_settings_file_is_read_from_the_users_folder_only(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    notebook = tmp_path / "notebook"
    notebook.mkdir()
    (notebook / "agently_kernel_config.py").write_text("c.AgentlyKernel.isolation = 'none'\nraise SystemExit\n")
    (config / "agently_kernel_config.py").write_text("c.AgentlyKernel.limits = {'memory': '300M'}\n")
    session = start(folder=notebook, env={"JUPYTER_CONFIG_DIR": str(config)})
    status = session.run("%agently status").of("display_data")[0]["content"]["data"]["text/plain"]
    assert re.search(r"memory +300 MiB by", status)
    (config / "agently_kernel_config.py").write_text("c.AgentlyKernel.limits = {\n")
    broken = start(folder=notebook, env={"JUPYTER_CONFIG_DIR": str(config)}).run("1")
    assert broken.error[0] == "ConfigurationError"
    assert f"{config / 'agently_kernel_config.py'} cannot be used: line 1: SyntaxError: " in broken.error[1]


def test_without_an_eligible_provider_the_cell_says_why_and_how_to_help(start: Start) -> None:
    session = start(
        settings={"providers": "['no-such', {'provider_id': 'bubblewrap', 'config': {'binary': '/nonexistent/bwrap'}}]"}
    )
    run = session.run("1")
    assert run.error[0] == "ExecutionResourceUnavailable"
    assert (
        "1. no-such: " in run.error[1]
        and "2. bubblewrap: No bwrap program was found (/nonexistent/bwrap)" in run.error[1]
    )
    assert "To fix it: " in run.error[1]
    assert session.run("2").status == "error"


def test_secrets_reach_no_log_event_or_guest(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    session = start(
        env={"JUPYTER_DATA_DIR": str(data), "MY_TOKEN": "hunter2-env"},
        settings={"providers": "[{'provider_id': 'bubblewrap', 'config': {'env': {'API': 'hunter2-config'}}}]"},
    )
    assert session.run("import os; os.environ['API'], 'MY_TOKEN' in os.environ").result == "('hunter2-config', False)"
    session.run("password = 'hunter2-source'; 1/0")
    snapshot = session.ask(
        "agently_panel_request", {"version": 1, "client_id": "test-client", "action": "snapshot"}, channel="control"
    )
    assert snapshot["status"] == "ok"
    seen = json.dumps(snapshot["snapshot"]) + session.log.read_text()
    seen += "".join(path.read_text() for path in data.rglob("trace.jsonl"))
    assert "hunter2" not in seen


def test_a_gate_without_anybody_to_ask_is_denied_at_once(start: Start) -> None:
    session = start()
    session.run("1")
    run = session.run("%agently allow javascript")
    assert run.error[0] == "ApprovalDenied"
    assert "could not be asked" in run.error[1]
    assert run.seconds < 2


def test_a_gate_is_answered_in_the_input_box_with_word_and_code(start: Start) -> None:
    session = start()
    run = session.send("%agently allow javascript", allow_stdin=True)
    session.settle(20, lambda: bool(run.prompts))
    found = re.search(r"'allow (\d{4})'", run.prompts[0][0])
    assert found is not None and run.prompts[0][0].startswith("Agently approval ·")
    assert run.input_requests[0]["metadata"]["agently"] == {"from": "kernel"}
    session.client.input(f"allow {found.group(1)}")
    session.wait(run)
    assert run.status == "ok"
    denied = session.send("%agently allow chart", allow_stdin=True)
    session.settle(20, lambda: bool(denied.prompts))
    session.client.input("y")
    assert session.wait(denied).error[0] == "ApprovalDenied"


def test_a_panel_answers_while_the_cell_waits(start: Start) -> None:
    session = start()
    base = {"version": 1, "client_id": "test-client"}
    attached = session.ask("agently_panel_request", {**base, "action": "attach"}, channel="control")
    assert attached["snapshot"]["session"]["host"] == "agently"
    run = session.send("%agently allow javascript")
    approvals: list[dict[str, str]] = []
    end = time.monotonic() + 20
    while not approvals and time.monotonic() < end:
        snapshot = session.ask("agently_panel_request", {**base, "action": "snapshot"}, channel="control")["snapshot"]
        approvals = snapshot["approvals"]
    asked = approvals[0]
    answer = {
        **base,
        "action": "decide",
        "request_id": asked["request_id"],
        "nonce": asked["nonce"],
        "outcome": "approved_once",
    }
    wrong = session.ask("agently_panel_request", {**answer, "digest": "sha256:other"}, channel="control")
    assert wrong["accepted"] is False
    right = session.ask("agently_panel_request", {**answer, "digest": asked["digest"]}, channel="control")
    assert right["accepted"] is True
    assert session.wait(run).status == "ok"


def test_a_question_whose_panel_vanished_comes_to_the_input_box(start: Start) -> None:
    session = start()
    attach = {"version": 1, "client_id": "test-client", "action": "attach", "lease_seconds": 2}
    assert session.ask("agently_panel_request", attach, channel="control")["status"] == "ok"
    run = session.send("%agently allow javascript", allow_stdin=True)
    session.settle(1.0, lambda: bool(run.prompts))
    assert run.prompts == []
    session.settle(20, lambda: bool(run.prompts))
    found = re.search(r"'allow (\d{4})'", run.prompts[0][0])
    assert found is not None
    session.client.input(f"allow {found.group(1)}")
    assert session.wait(run).status == "ok"


def test_collected_outputs_are_saved_where_the_configuration_says(start: Start, tmp_path: Path) -> None:
    session = start(settings={"save_outputs": "saved"})
    session.run("import os; os.makedirs('output/deep'); open('output/deep/a.txt', 'w').write('here')")
    assert (tmp_path / "saved" / "deep" / "a.txt").read_text() == "here"
