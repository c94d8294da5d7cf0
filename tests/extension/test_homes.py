"""The magics in both homes: the sandboxed kernel, and an ordinary ipykernel with the extension loaded."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from kernel_session import KernelSession, Run
from magic_homes import answering, environment

from agently_kernel.languages.indexes import pip_hosts
from agently_kernel.providers.toolchains import VERSION_COMMANDS

HELLO = {
    "bash": "echo hello", "node": "console.log('hello')",
    "go": 'package main\nimport "fmt"\nfunc main() { fmt.Println("hello") }',
    "c++": '#include <cstdio>\nint main() { std::puts("hello"); }',
}


def folder_of(home: KernelSession) -> Path:
    return home.log.parent


def shown(run: Run) -> str:
    """Return the plain text of everything that was displayed."""
    return "\n".join(str(m["content"]["data"].get("text/plain", "")) for m in run.of("display_data", "execute_result"))


def test_a_program_runs_with_a_declared_output(home: KernelSession) -> None:
    run = home.run(
        "%%agently_exec --output output/x.csv --isolation required\n"
        "open('output/x.csv', 'w').write('k,v\\n1,2\\n')\nprint('one-shot ran')"
    )
    assert (run.status, run.text()) == ("ok", "one-shot ran\n")
    assert "collected output/x.csv (8 bytes, sha256:" in run.text("stderr")
    listed = home.run("%agently outputs")
    assert "output/x.csv  8 bytes" in shown(listed)
    kept = Path(shown(listed).rpartition("kept in ")[2].strip())
    assert (kept / "output" / "x.csv").read_text() == "k,v\n1,2\n"


def test_a_missing_output_fails_the_cell_with_the_list(home: KernelSession) -> None:
    run = home.run("%%agently_exec --output output/a output/b\nopen('output/a', 'w').write('1')")
    assert run.status == "error"
    assert run.error[0] == "CodeExecutionError"
    assert "output/b (missing" in run.error[1]
    assert "collected output/a (1 byte," in run.text("stderr")


def test_programs_see_nothing_of_the_session_and_change_nothing(home: KernelSession) -> None:
    assert home.run("leak_me = 'session value'").status == "ok"
    assert home.run("%%agently_exec\nprint('leak_me' in globals())\nleak_me = 1").text() == "False\n"
    assert home.run("print(leak_me)").text() == "session value\n"


@pytest.mark.parametrize(
    ("options", "named", "allowed"),
    [("--isolation wrong", "--isolation", "required"), ("--langage go", "--langage", "did you mean --language?")],
)
def test_a_bad_option_runs_nothing(home: KernelSession, options: str, named: str, allowed: str) -> None:
    run = home.run(f"%%agently_exec {options}\nprint('ran')")
    assert (run.status, run.text(), run.error[0]) == ("error", "", "ConfigurationError")
    assert named in run.error[1]
    assert allowed in run.error[1]
    assert run.error[1].endswith("Nothing was run.")


def test_help_needs_no_program(home: KernelSession) -> None:
    run = home.run("%%agently_exec --help")
    assert run.status == "ok"
    assert run.text().startswith("usage: %%agently_exec [options] [-- ARGS…]")


@pytest.mark.parametrize("code", ["%agently?", "?%agently", "%%agently_exec?", "%agently ?", "%%agently_exec ?"])
def test_a_question_mark_shows_the_help(home: KernelSession, code: str) -> None:
    run = home.run(code)
    assert run.status == "ok"
    pages = "".join(item["data"]["text/plain"] for item in run.reply.get("payload", ()))
    said = pages + run.text() + "".join(m["content"]["data"]["text/plain"] for m in run.of("display_data"))
    assert ("--isolation" if "exec" in code else "%agently COMMAND") in said
    name = code.strip("? ")
    tip = home.ask("inspect_request", {"code": name, "cursor_pos": len(name), "detail_level": 0})
    assert tip["found"] and ("--isolation" if "exec" in code else "%agently COMMAND") in tip["data"]["text/plain"]


def test_comments_may_stand_above_a_command(home: KernelSession) -> None:
    assert "Agently status" in shown(home.run("# how is it?\n\n%agently status"))


def test_a_comment_above_a_cell_magic_is_told_once_with_what_to_do(home: KernelSession) -> None:
    run = home.run("# a comment\n%%agently_exec\nprint(1)")
    assert run.status == "error"
    said = run.text("stderr") + "".join(line for m in run.of("error") for line in m["content"]["traceback"])
    assert said.count("must be the first line of its cell") == 1
    assert "Move what stands above it, comments too" in said
    assert run.text() == ""
    assert home.run("\n\n%%agently_exec\nprint(1)").text() == "1\n"  # as in IPython


FAILURES = [
    "import urllib.request\nurllib.request.urlopen('http://example.org')",
    "import socket\nsocket.create_connection(('93.184.216.34', 80), 3)",
    "import socket\nsocket.gethostbyname('example.org')",
    "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', '--index-url', "
    "'http://example.org/simple', '--retries', '0', 'no-such-package'], check=True)",
]


@pytest.mark.parametrize("where", ["--fresh", "--session"])
@pytest.mark.parametrize("program", FAILURES)
def test_a_network_that_is_missed_is_told_once(home: KernelSession, where: str, program: str) -> None:
    run = home.run(f"%%agently_exec {where}\n{program}")
    assert run.status == "error"
    assert run.text("stderr").count("The network is off in this sandbox, on purpose.") == 1
    hosts = ",".join(pip_hosts()) if "pip" in program else "HOST"
    assert f"%%agently_exec --network {hosts}" in run.text("stderr")
    assert f"%agently allow network {hosts.replace(',', ' ')}" in run.text("stderr")
    assert ("install others there" in run.text("stderr")) == ("pip" in program)


@pytest.mark.parametrize("program", ["1 + 1", "import math\nmath.pi", "sum([1])"])
def test_a_program_that_shows_nothing_is_told_how_values_are_shown(home: KernelSession, program: str) -> None:
    run = home.run(f"%%agently_exec\n{program}")
    assert (run.status, run.text()) == ("ok", "")
    assert run.text("stderr").count("Use print(), save figures in output/, or run it with --session") == 1
    assert home.run(f"%%agently_exec --session\n{program}").result != ""


PLAIN = ["print(1)", "x = 1", "open('output/x', 'w').close()", "import sys; sys.stderr.write('x')"]


@pytest.mark.parametrize("program", PLAIN)
def test_a_program_that_does_what_it_should_has_no_such_hint(home: KernelSession, program: str) -> None:
    assert "save figures" not in home.run(f"%%agently_exec\n{program}").text("stderr")


def test_a_program_that_asks_is_told_where_its_input_comes_from(home: KernelSession) -> None:
    run = home.run("%%agently_exec\nprint(input('name? '))", allow_stdin=False)
    assert "give it a file with --stdin PATH, or use --session" in run.text("stderr")


def test_a_failure_without_a_network_in_it_has_no_such_hint(home: KernelSession) -> None:
    assert "network" not in home.run("%%agently_exec\n1 / 0").text("stderr")


def test_failures_keep_their_names(home: KernelSession) -> None:
    assert home.run("%%agently_exec\nraise SystemExit(3)").error == (
        "CodeExecutionError", "Step 1 of 1 (run: python3) ended with exit code 3."
    )
    timed_out = home.run("%%agently_exec --timeout 1\nwhile True: pass")
    assert timed_out.error[0] == "CellTimedOut"
    blocked = home.run("%%agently_exec --toolchain 'python>=99'\nprint(1)")
    assert blocked.error[0] == "ExecutionResourceUnavailable"
    assert "python>=99" in blocked.error[1]
    assert blocked.text() == ""


def test_output_comes_while_the_program_runs(home: KernelSession) -> None:
    started = time.monotonic()
    first: list[float] = []

    def during(run: Run) -> None:
        if not first and run.text():
            first.append(time.monotonic() - started)

    program = "import time\nprint('early', flush=True)\ntime.sleep(3)\nprint('late')"
    run = home.run(f"%%agently_exec\n{program}", during=during)
    assert run.text() == "early\nlate\n"
    assert run.seconds - first[0] > 2.0


def test_stop_ends_the_program_and_the_kernel_goes_on(home: KernelSession) -> None:
    pressed: list[float] = []

    def during(run: Run) -> None:
        if run.text() and not pressed:
            pressed.append(time.monotonic())
            home.interrupt()

    run = home.run("%%agently_exec\nprint('started', flush=True)\nwhile True: pass", during=during)
    assert run.status == "error"
    assert run.error[0] == "KeyboardInterrupt"
    shown_lines = [line for m in run.of("error") for line in m["content"]["traceback"]]
    assert len(shown_lines) == 1
    assert "stopped" in shown_lines[0]
    assert time.monotonic() - pressed[0] < 8
    assert home.run("print('alive')").text() == "alive\n"


@pytest.mark.parametrize("where", ["--fresh", "--session"])
def test_a_time_limit_is_named(home: KernelSession, where: str) -> None:
    run = home.run(f"%%agently_exec {where} --timeout 1.5\nwhile True: pass")
    said = run.error[1] + run.text("stderr")
    assert "its time limit of 1.5 s" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("events --all", "there is no option --all. It takes no options."),
        ("outputs --all", "there is no option --all. The options are --save."),
        ("outputs --sav x", "there is no option --sav; did you mean --save? The options are --save."),
        ("grant big", "'big' does not exist"),
        ("allow network none", "this opens hosts and closes none"),
        ("allow network pypi.org", "list the hosts in c.AgentlyKernel.network_hosts"),
        ("grant /etc/hostname", "set c.AgentlyKernel.auto_allow"),
        ("allow nonsense", "The line that begins with [agently] [withheld]"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_with_what_can(home: KernelSession, line: str, said: str) -> None:
    run = home.run(f"%agently {line}")
    assert run.status == "error"
    assert said in run.error[1]


def test_arguments_are_not_filled_from_variables(home: KernelSession) -> None:
    assert home.run("secret = 'value'").status == "ok"
    assert home.run("%%agently_exec -- '{secret}' $secret\nimport sys\nprint(sys.argv[1:])").text() == (
        "['{secret}', '$secret']\n"
    )


def test_a_file_beside_the_notebook_is_found_under_its_name(home: KernelSession) -> None:
    (folder_of(home) / "in").mkdir(exist_ok=True)
    (folder_of(home) / "in" / "data.csv").write_text("k,v\n1,2\n")
    run = home.run("%%agently_exec --input in/data.csv\nimport csv\nprint(list(csv.reader(open('in/data.csv'))))")
    assert (run.text(), run.status) == ("[['k', 'v'], ['1', '2']]\n", "ok")


def test_files_become_a_program_and_its_standard_input(home: KernelSession) -> None:
    place = folder_of(home) / "prog"
    place.mkdir(exist_ok=True)
    (place / "main.go").write_text(
        'package main\nimport ("fmt"; "io"; "os")\nfunc main() { in, _ := io.ReadAll(os.Stdin); '
        "fmt.Print(double(string(in))) }\n"
    )
    (place / "part.go").write_text("package main\nfunc double(s string) string { return s + s }\n")
    (folder_of(home) / "in.txt").write_text("twice\n")
    run = home.run(
        "%%agently_exec --language go --file main.go=prog/main.go part.go=prog/part.go --stdin in.txt"
    )
    assert (run.text(), run.status) == ("twice\ntwice\n", "ok")


@pytest.mark.parametrize("path", ["/etc/passwd", "~/.ssh"])
def test_a_sensitive_place_is_refused_where_nobody_can_be_asked(home: KernelSession, path: str) -> None:
    run = home.run(f"%%agently_exec --input {path}\nprint('ran')")
    assert (run.status, run.text()) == ("error", "")
    assert run.error[0] in ("ApprovalDenied", "WorkspaceError")  # the second: there is no such folder on this machine


def test_a_question_is_answered_in_the_input_box(home: KernelSession, tmp_path: Path) -> None:
    (tmp_path / "far.txt").write_text("from far")
    code = f"%%agently_exec --input {tmp_path / 'far.txt'}\nprint(open('far.txt').read())"
    denied = home.run(code, allow_stdin=True, during=answering(home, "no"))
    assert (denied.error[0], denied.text()) == ("ApprovalDenied", "")
    assert "size in bytes: 8" in denied.prompts[0][0]
    allowed = home.run(code, allow_stdin=True, during=answering(home, "allow"))
    assert (allowed.text(), allowed.status) == ("from far\n", "ok")


def test_less_isolation_than_configured_is_asked_for(home: KernelSession) -> None:
    code = "%%agently_exec --isolation preferred --unsafe-fallback --provider trusted_local\nprint('ran')"
    assert home.run(code).error[0] == "ApprovalDenied"
    asked = home.run(code, allow_stdin=True, during=answering(home, "allow"))
    assert [("WEAKER" in prompt, "WITHOUT any isolation" in prompt) for prompt, _ in asked.prompts] == [
        (True, False), (False, True)
    ]
    assert asked.text() == "ran\n"
    assert "This ran WITHOUT isolation (trusted_local)" in asked.text("stderr")
    more = home.run("%%agently_exec --isolation none --provider trusted_local\nprint(1)", allow_stdin=True,
                    during=answering(home, "allow"))
    assert more.error[0] == "ExecutionResourceUnavailable"


def test_more_than_configured_is_asked_for_and_less_is_not(home: KernelSession) -> None:
    assert home.run("%%agently_exec --memory 256M --network none\nprint(1)").text() == "1\n"
    assert home.run("%%agently_exec --memory 64G\nprint(1)").error[0] == "ApprovalDenied"
    assert home.run("%%agently_exec --network example.org\nprint(1)").error[0] == "ApprovalDenied"


def test_a_result_is_bound(home: KernelSession) -> None:
    program = "print('out')\nopen('output/r.txt', 'w').write('12')"
    run = home.run(f"%%agently_exec --output output/r.txt --result r\n{program}")
    assert run.status == "ok"
    checked = home.run(
        "print([r.status, r.ok, r.returncode, r.stdout, r.outputs['output/r.txt'].size, len(r.trace), len(r.steps)])"
    )
    assert checked.text() == "['success', True, 0, 'out\\n', 2, 8, 1]\n"
    assert home.run("print(r)").text().startswith("<success, 1 output, ")
    failed = home.run("%%agently_exec --result r\nraise SystemExit(2)")
    assert failed.status == "error"
    assert home.run("print(r.status, r.returncode)").text() == "error 2\n"


def test_a_bound_result_shows_itself_as_tables(home: KernelSession, tmp_path: Path) -> None:
    """HTML and text, in both homes; in a sandbox it names no place of the host."""
    program = "open('output/<b>.txt', 'w').write('12')"
    assert home.run(f"%%agently_exec --output 'output/<b>.txt' --result shown\n{program}").status == "ok"
    run = home.run("shown")
    (message,) = run.of("execute_result")
    data = message["content"]["data"]
    assert {"text/plain", "text/html"} <= set(data)
    assert "<table" in data["text/html"] and "output/<b>.txt" not in data["text/html"]
    for text in data.values():
        for word in ("Execution", "exit code", "Steps", "materialize", "process_contained", "memory"):
            assert word in text, (word, text)
    assert "output/<b>.txt" in data["text/plain"] and "✓ success" in data["text/plain"]
    assert "withheld" not in run.text("stderr")
    if home.manager.kernel_name == "agently":
        assert str(home.log.parent) not in repr(data) and "jupyter-data" not in repr(data)


def test_a_session_keeps_its_variables_and_shows_results(home: KernelSession) -> None:
    assert home.run("%%agently_exec --session\nkept = 41").status == "ok"
    run = home.run("%%agently_exec --session\nkept + 1")
    assert (run.result, run.status) == ("42", "ok")
    error = home.run("%%agently_exec --session\n1 / 0")
    assert error.error == ("ZeroDivisionError", "division by zero")
    assert len(error.of("error")) == 1
    traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.of("error")[0]["content"]["traceback"]))
    assert "1 / 0" in traceback
    assert f"Cell In[{error.reply['execution_count']}], line 1" in traceback


@pytest.mark.parametrize("language", sorted(VERSION_COMMANDS))
def test_the_sessions_sandbox_runs_every_language_whose_tools_it_has(home: KernelSession, language: str) -> None:
    assert home.run("%%agently_exec --session\nopen('left.txt', 'w').write('here')").status == "ok"
    program = HELLO[language]
    for _ in range(2):
        run = home.run(f"%%agently_exec --session --language {language}\n{program}")
        assert (run.status, run.text()) == ("ok", "hello\n"), run.error


def test_status_facts_events_and_doctor_are_tables(home: KernelSession) -> None:
    assert home.run("%%agently_exec --session\n1").status == "ok"
    status = home.run("%agently")
    assert "✓ 4 of 4 axes observed to hold" in shown(status)
    assert status.of("display_data")[0]["content"]["data"]["text/html"].startswith('<div class="agently-report">')
    facts = shown(home.run("%agently facts"))
    for axis in ("process_contained", "host_filesystem_restricted", "privilege_escalation_blocked",
                 "syscalls_restricted", "network (none): blocked"):
        assert f"✓ holds  {axis}" in facts
    assert "scratch_bytes" in facts
    assert "ready" in shown(home.run("%agently events"))


def test_a_grant_lasts_and_outputs_are_saved_only_when_allowed(home: KernelSession) -> None:
    (folder_of(home) / "granted.txt").write_text("content")
    run = home.run("%agently grant granted.txt")
    assert "name inside  granted.txt" in shown(run)
    assert home.run("%%agently_exec\nprint(open('granted.txt').read())").text() == "content\n"
    assert "granted.txt  snapshot" in shown(home.run("%agently status"))
    assert home.run("%%agently_exec\nopen('output/s.txt', 'w').write('saved')").status == "ok"
    assert home.run("%agently outputs --save results").error[0] == "ApprovalDenied"
    assert not (folder_of(home) / "results").exists()
    allowed = home.run("%agently outputs --save results", allow_stdin=True, during=answering(home, "allow"))
    assert "Saved in" in shown(allowed)
    assert (folder_of(home) / "results" / "s.txt").read_text() == "saved"


def test_a_bad_command_names_what_there_is(home: KernelSession) -> None:
    run = home.run("%agently statsu")
    assert run.error[0] == "ConfigurationError"
    assert "Did you mean status?" in run.error[1]


def test_options_are_completed(home: KernelSession) -> None:
    code = "%%agently_exec --isolation pre"
    reply = home.ask("complete_request", {"code": code, "cursor_pos": len(code)})
    assert reply["matches"] == ["preferred"]
    assert code[reply["cursor_start"] : reply["cursor_end"]] == "pre"


def test_50_megabytes_are_shown_with_head_and_tail(home: KernelSession) -> None:
    run = home.run(
        "%%agently_exec --result big\nimport sys\nfor n in range(50):\n"
        "    sys.stdout.write(f'block {n}\\n' + 'x' * (2**20 - 10) + '\\n')", within=120
    )
    assert run.status == "ok"
    assert run.text().startswith("block 0\n")
    assert "block 49\n" in run.text()
    assert len(run.text()) < 9 * 2**20
    assert home.run("print(big.status)").text() == "success\n"


def test_a_restart_gives_a_fresh_session(home: KernelSession) -> None:
    assert home.run("%%agently_exec --session\ngone = 1").status == "ok"
    assert "fresh one" in shown(home.run("%agently restart"))
    assert home.run("%%agently_exec --session\n'gone' in globals()").result == "False"


@pytest.mark.parametrize("kernel", ["python3"])
def test_in_an_ordinary_kernel_a_running_loop_is_no_hindrance(
    kernel: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with KernelSession(tmp_path, kernel=kernel, env=environment(tmp_path_factory.getbasetemp())) as session:
        run = session.run(
            "import asyncio\nget_ipython().run_line_magic('load_ext', 'agently_exec')\n"
            "async def work():\n    get_ipython().run_cell_magic('agently_exec', '', 'print(6 * 7)')\nawait work()"
        )
        assert (run.text(), run.status) == ("42\n", "ok")
        assert session.run("%unload_ext agently_exec").status == "ok"
        assert session.run("%agently status").status == "error"


def test_a_configuration_of_the_user_holds_in_an_ordinary_kernel(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    wanted = {"providers": ["bubblewrap"], "save_outputs": "kept"}
    (config / "agently_kernel_config.json").write_text(json.dumps({"AgentlyKernel": wanted}))
    (config / "jupyter_server_config.py").write_text("c.AgentlyKernel.timeout = 1")
    env = {**environment(tmp_path_factory.getbasetemp()), "JUPYTER_CONFIG_DIR": str(config)}
    with KernelSession(tmp_path, kernel="python3", env=env) as session:
        session.run("%load_ext agently_exec")
        run = session.run("%%agently_exec --provider docker\nprint(1)")
        assert "'docker' is not in your configuration; allowed are bubblewrap" in run.error[1]
        assert run.text("stderr").count("jupyter_server_config.py holds settings of this kernel, but that file") == 1
        saved = session.run("%%agently_exec\nopen('output/k', 'w').write('x')")
        assert "that file" not in saved.text("stderr")
        assert (tmp_path / "kept" / "k").read_text() == "x"
        (config / "agently_kernel_config.json").write_text(json.dumps({"AgentlyKernel": {"isolation": "some"}}))
        session.run("%reload_ext agently_exec")
        broken = session.run("%%agently_exec\nprint(1)")
        assert broken.error[0] == "ConfigurationError"
        assert "c.AgentlyKernel.isolation" in broken.error[1]
        assert "No cell is run until this is corrected" in broken.error[1]


def test_a_panel_answers_while_an_ordinary_kernels_main_thread_is_blocked(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, far = tmp_path / "notebook", tmp_path / "far.txt"
    folder.mkdir()
    far.write_text("from far")
    with KernelSession(folder, kernel="python3", env=environment(tmp_path_factory.getbasetemp())) as session:
        session.run("%load_ext agently_exec\n%agently status")
        client = {"version": 1, "client_id": "test-client-0001"}

        def panel(action: str, **fields: object) -> dict[str, Any]:
            content = {**client, "action": action, **fields}
            return session.ask("agently_panel_request", content, channel="control")

        reply = panel("attach", lease_seconds=60)
        assert reply["status"] == "ok", reply
        assert reply["snapshot"]["session"]["host"] == "ipython"
        code = f"%%agently_exec --input {far}\nprint(open('far.txt').read())"
        run = session.send(code, metadata={"cellId": "the-cell"})
        waiting: list[dict[str, Any]] = []
        end = time.monotonic() + 20
        while not waiting and time.monotonic() < end:
            waiting = panel("snapshot")["snapshot"]["approvals"]
        [asked] = waiting
        assert (asked["subject"], asked["cell_id"]) == (str(far), "the-cell")
        echoed = {name: asked[name] for name in ("request_id", "nonce", "digest")}
        answer = panel("decide", outcome="approved_once", **echoed)
        assert answer["status"] == "ok", answer
        assert (session.wait(run).text(), run.status) == ("from far\n", "ok")
        [ran] = panel("snapshot")["snapshot"]["executions"]
        assert (ran["cell_id"], ran["status"]) == ("the-cell", "success")


def test_a_shutdown_leaves_nothing_and_keeps_what_the_session_wrote(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    env = environment(tmp_path_factory.getbasetemp())
    with KernelSession(tmp_path, kernel="python3", env=env) as session:
        session.run("%load_ext agently_exec")
        session.run("%%agently_exec --session\nopen('left.txt', 'w').write('x')")
        where = session.run("print(get_ipython()._agently_exec_magics.session.sandbox.workspace.runtime_path)").text()
        kept = Path(shown(session.run("%agently outputs")).rpartition("kept in ")[2].strip())
        assert Path(where.strip()).is_dir()
    assert not Path(where.strip()).exists()
    assert (kept / "left.txt").read_text() == "x"


def test_in_the_sandboxed_kernel_a_cell_that_misses_a_file_asks_and_goes_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "data.csv").write_text("k,v\n1,2\n")
    (tmp_path / "other.csv").write_text("x\n")
    with KernelSession(tmp_path, env=environment(tmp_path_factory.getbasetemp())) as session:
        alone = session.run("open('other.csv')")
        assert alone.error == ("FileNotFoundError", "[Errno 2] No such file or directory: 'other.csv'")
        assert "To give it: %agently grant other.csv" in alone.text("stderr")
        code = "import pandas as pd\nprint(int(pd.read_csv('data.csv')['v'][0]))"
        run = session.run(code, allow_stdin=True, during=answering(session, "allow"))
        assert (run.text(), run.status) == ("2\n", "ok")
        assert len(run.prompts) == 1
        assert "/data.csv" in run.prompts[0][0]
        denied = session.run("open('other.csv')", allow_stdin=True, during=answering(session, "no"))
        assert denied.error[0] == "FileNotFoundError"
        assert session.run("%agently grant other.csv").status == "ok"
        assert session.run("print(open('other.csv').read())").text() == "x\n\n"
        (tmp_path / "pixel.jpg").write_bytes(b"\xff\xd8\xff synthetic")
        picture = session.run("from IPython.display import Image\nImage('pixel.jpg')", allow_stdin=True,
                              during=answering(session, "allow"))
        assert set(picture.of("execute_result")[0]["content"]["data"]) == {"image/jpeg", "text/plain"}
        assert len(picture.prompts) == 1
        hinted = session.run("raise OSError('library: unable to open kernel.log')")
        assert "To give it: %agently grant kernel.log" in hinted.text("stderr")


def test_notebook_clients_that_drive_a_loop_of_their_own_work(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell("%load_ext agently_exec"),
        nbformat.v4.new_code_cell("%%agently_exec\nprint('from nbclient')"),
    ]
    where = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, kernel_name="python3", resources=where, timeout=60, coalesce_streams=True)
    asyncio.run(client.async_execute())
    assert [output.text for output in notebook.cells[1].outputs if output.name == "stdout"] == ["from nbclient\n"]


MISSED = (
    "%%agently_exec\nimport csv, os\nprint(list(csv.reader(open('asked/far.csv'))))\n"
    "print(sorted(n for n in os.environ if 'AGENTLY' in n or n == 'PYTHONPATH'))"
)


def test_a_program_that_misses_a_file_asks_once_and_the_same_open_goes_on(home: KernelSession) -> None:
    (folder_of(home) / "asked").mkdir(exist_ok=True)
    (folder_of(home) / "asked" / "far.csv").write_text("k,v\n1,2\n")
    refused = home.run(MISSED, allow_stdin=True, during=answering(home, "no"))
    assert len(refused.prompts) == 1
    assert "size in bytes: 8" in refused.prompts[0][0]
    assert refused.error[0] == "CodeExecutionError"
    assert "FileNotFoundError" in refused.text("stderr")
    assert refused.text("stderr").count("%agently grant asked/far.csv") == 1
    run = home.run(MISSED, allow_stdin=True, during=answering(home, "allow"))
    assert len(run.prompts) == 1
    assert (run.status, run.text()) == ("ok", "[['k', 'v'], ['1', '2']]\n[]\n")


@pytest.mark.parametrize(
    ("language", "program"),
    [
        ("bash", "cat hinted.txt"),
        ("node", "require('fs').readFileSync('hinted.txt')"),
        ("c++", '#include <fstream>\n#include <iostream>\nint main() { std::ifstream f("hinted.txt"); if (!f) {'
                ' std::cerr << "cannot open hinted.txt"; return 1; } }'),
        ("python", "import sqlite3, sys\nsys.exit(\"unable to open 'hinted.txt'\")"),
    ],
)
def test_a_program_that_cannot_ask_is_told_how_to_give_the_file(
    home: KernelSession, language: str, program: str
) -> None:
    (folder_of(home) / "hinted.txt").write_text("here")
    run = home.run(f"%%agently_exec --language {language}\n{program}")
    assert run.status == "error"
    assert run.text("stderr").count("%agently grant hinted.txt") == 1


def test_the_panel_is_announced_once_and_to_a_person_only(tmp_path: Path) -> None:
    """A program that runs notebooks has no panel, and would complain of a comm that it does not know."""
    def opened(run: Run) -> int:
        return sum(m["content"].get("target_name") == "agently.announce.v1" for m in run.of("comm_open"))

    with KernelSession(tmp_path, kernel="python3", env=environment(tmp_path)) as session:
        session.run("%load_ext agently_exec")
        assert opened(session.run("%agently help", allow_stdin=False)) == 0
        assert opened(session.run("%agently help", allow_stdin=True)) == 1
        assert opened(session.run("%agently help", allow_stdin=True)) == 0
