"""The host's end with the real guest in a plain subprocess (SYNTHETIC: no isolation)."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sandbox_support import Harness, until

from agently_kernel.contract.bundle import CodeExecutionStep
from agently_kernel.contract.errors import SandboxDied, SandboxError
from agently_kernel.contract.outputs import DisplayOutput, NoticeOutput, OutputEvent, StreamOutput
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.sandbox.session import GuestSession


async def test_state_lives_on_and_streams_and_results_come(harness: Harness) -> None:
    await harness.open()
    assert (await harness.run("x = 20", cell="a")).status is ExecutionStatus.SUCCESS
    result = await harness.run("import sys\nprint('é')\nprint('err', file=sys.stderr)\nx * 2 + 2", cell="b")
    assert result.status is ExecutionStatus.SUCCESS
    assert (result.stdout.text, result.stderr.text) == ("é\n", "err\n")
    shown = [e for e in harness.events if isinstance(e, DisplayOutput)]
    assert [(e.cell, e.kind, e.data["text/plain"]) for e in shown] == [("b", "execute_result", "42")]


async def test_an_error_and_what_comes_after(harness: Harness) -> None:
    await harness.open()
    result = await harness.run("1/0")
    assert result.status is ExecutionStatus.ERROR and result.message == "The cell raised ZeroDivisionError."
    assert result.error is not None and result.error["evalue"] == "division by zero"
    assert (await harness.run("1")).status is ExecutionStatus.SUCCESS


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
async def test_stop_interrupts_and_state_is_kept(harness: Harness, code: str) -> None:
    await harness.open()
    await harness.run("kept = 7")
    task = asyncio.ensure_future(harness.run(code))
    await until(lambda: harness.resource.interpreter_state == "busy")
    await asyncio.sleep(0.05)
    started = time.monotonic()
    assert await harness.resource.interrupt()
    result = await task
    assert time.monotonic() - started < 2
    assert result.status is ExecutionStatus.CANCELLED and result.death is None
    assert result.error is not None and result.error["ename"] == "KeyboardInterrupt"
    assert (await harness.run("print(kept)")).stdout.text == "7\n"


async def test_stop_at_the_very_moment_of_the_start_is_not_lost(harness: Harness) -> None:
    await harness.open()
    await harness.resource.ready()
    for _ in range(5):
        task = asyncio.ensure_future(harness.run("import time\nfor _ in range(600): time.sleep(0.1)"))
        await until(lambda: harness.resource.interpreter_state == "busy")
        await harness.resource.interrupt()
        result = await asyncio.wait_for(task, 4)
        assert result.status is ExecutionStatus.CANCELLED and result.death is None


async def test_the_time_limit_is_an_interrupt_first(harness: Harness) -> None:
    await harness.open()
    await harness.run("kept = 7")
    started = time.monotonic()
    result = await harness.run("import time; time.sleep(60)", timeout=0.3)
    assert 0.3 <= time.monotonic() - started < 3
    assert result.status is ExecutionStatus.TIMED_OUT and result.death is None
    assert result.message == "The cell ran past its time limit of 0.3 s and was interrupted."
    assert (await harness.run("print(kept)")).stdout.text == "7\n"


async def test_a_stop_that_a_finaliser_swallows_is_sent_again_and_variables_are_kept(harness: Harness) -> None:
    await harness.open()
    await harness.run("kept = 41")
    code = (
        "import time\nclass Late:\n    def __del__(self):\n"
        "        try: time.sleep(60)\n        finally: print('swallowed')\n"
        "late = Late(); del late\nfor _ in range(600): time.sleep(0.1)"
    )
    task = asyncio.ensure_future(harness.run(code))
    await until(lambda: harness.resource.interpreter_state == "busy")
    await asyncio.sleep(0.5)
    await harness.resource.interrupt()
    result = await asyncio.wait_for(task, 20)
    assert result.status is ExecutionStatus.CANCELLED and result.death is None
    assert "swallowed" in harness.text()
    assert (await harness.run("print(kept)")).status is ExecutionStatus.SUCCESS


async def test_a_cell_that_swallows_the_stop_loses_its_interpreter_only(harness: Harness) -> None:
    await harness.open(interrupt_grace=0.3)
    code = """
import time
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""
    result = await asyncio.wait_for(harness.run(code, timeout=0.2), 6)
    assert result.status is ExecutionStatus.TIMED_OUT and result.death is not None
    assert (result.death.what, result.death.kind) == ("interpreter", "time_limit")
    assert any(isinstance(e, NoticeOutput) and "did not end within 0.3 s" in e.text for e in harness.events)
    assert (await harness.run("print('alive')")).stdout.text == "alive\n"
    assert harness.resource.generation == 2


@pytest.mark.parametrize(
    ("code", "exit_code", "signal"),
    [
        ("print('before', flush=True); import os; os._exit(3)", 3, None),
        ("print('before', flush=True); import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", None, "SIGSEGV"),
        ("print('before', flush=True); import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, "SIGKILL"),
    ],
)
async def test_a_death_is_named_and_the_next_cell_works(
    harness: Harness, code: str, exit_code: int | None, signal: str | None
) -> None:
    await harness.open()
    result = await harness.run(code)
    assert result.status is ExecutionStatus.DIED and result.death is not None
    assert (result.death.what, result.death.exit_code, result.death.signal) == ("interpreter", exit_code, signal)
    assert result.stdout.text == "before\n"
    after = await harness.run("print('alive', 'x' in dir())")
    assert after.status is ExecutionStatus.SUCCESS and after.stdout.text == "alive False\n"


async def test_an_idle_death_is_told_once(harness: Harness) -> None:
    await harness.open()
    await harness.run("import threading, os, time\nthreading.Timer(0.1, lambda: os._exit(9)).start()")
    await until(lambda: harness.resource.interpreter_state == "exited")
    await harness.run("1", cell="told")
    await harness.run("1", cell="quiet")
    notices = [e for e in harness.events if isinstance(e, NoticeOutput)]
    assert [e.cell for e in notices] == ["told"] and "exit code 9" in notices[0].text


async def test_threads_of_a_finished_cell_speak_for_that_cell(harness: Harness) -> None:
    await harness.open()
    await harness.run(
        "import threading, time\nt = threading.Timer(0.3, lambda: print('late'))\nt.start()", cell="first"
    )
    await harness.run("import time; time.sleep(0.6)", cell="second")
    late = [e for e in [*harness.events, *harness.background] if isinstance(e, StreamOutput) and "late" in e.text]
    assert [(e.cell, e.name) for e in late] == [("first", "stdout")]


async def test_input_and_its_interrupt(harness: Harness) -> None:
    await harness.open()

    async def answer(prompt: str, password: bool) -> str:
        return f"{prompt}/{password}"

    result = await harness.run("print(input('name? '))", input_handler=answer)
    assert result.stdout.text == "name? /False\n"
    cancelled = asyncio.Event()

    async def hang(prompt: str, password: bool) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    task = asyncio.ensure_future(harness.run("input('?')", input_handler=hang))
    await asyncio.sleep(0.3)
    await harness.resource.interrupt()
    result = await asyncio.wait_for(task, 3)
    assert result.status is ExecutionStatus.CANCELLED and cancelled.is_set() and result.death is None
    refused = await harness.run("input('?')")
    assert refused.status is ExecutionStatus.ERROR


async def test_requests_to_the_interpreter(harness: Harness) -> None:
    await harness.open()
    await harness.run("interesting_name = 1")
    reply = await harness.resource.request("complete", "interesting_na", cursor_pos=14, timeout=30)
    assert reply["status"] == "ok" and "interesting_name" in reply["matches"]
    assert (await harness.resource.request("is_complete", "for i in range(3):"))["status"] == "incomplete"
    assert (await harness.resource.request("inspect", "len", cursor_pos=3))["found"] is True


async def test_restart_gives_a_fresh_interpreter_in_the_same_sandbox(harness: Harness) -> None:
    await harness.open()
    await harness.run("x = 1\nopen('kept.txt', 'w').write('k')")
    await harness.resource.restart_interpreter()
    result = await harness.run("print('x' in globals(), open('kept.txt').read())")
    assert result.stdout.text == "False k\n" and harness.events[-1] == StreamOutput("run2", "stdout", "False k\n")


async def test_closing_runs_exit_handlers_and_leaves_no_process(harness: Harness) -> None:
    await harness.open()
    file = harness.folder / "exit.txt"
    await harness.run(f"import atexit\natexit.register(lambda: open({str(file)!r}, 'w').write('bye'))")
    result = await harness.run("import subprocess\np = subprocess.Popen(['sleep', '60'])\nprint(p.pid)")
    child = int(result.stdout.text)
    await harness.resource.aclose(grace=2)
    assert file.read_text() == "bye"
    assert not Path(f"/proc/{child}").exists()
    with pytest.raises(SandboxDied, match="closed"):
        await harness.run("1")
    await harness.resource.aclose()


async def test_a_flood_can_be_stopped_and_the_reader_held_back(harness: Harness) -> None:
    await harness.open(max_output_bytes=4096)
    count = 0

    def sink(event: OutputEvent) -> None:
        nonlocal count
        count += 1

    task = asyncio.ensure_future(harness.run("while True: print('y' * 80)", sink=sink))
    await until(lambda: count > 20)
    harness.resource.pause()
    await asyncio.sleep(0.2)
    before = count
    await asyncio.sleep(0.2)
    assert count == before
    await harness.resource.interrupt()
    harness.resource.resume()
    result = await asyncio.wait_for(task, 5)
    assert result.status is ExecutionStatus.CANCELLED and result.death is None and result.stdout.truncated


def step(role: str, *argv: str, **fields: object) -> CodeExecutionStep:
    return CodeExecutionStep(argv=argv, role=role, **fields)  # type: ignore[arg-type]


async def test_a_plan_runs_its_steps_in_order(harness: Harness) -> None:
    await harness.open(start_interpreter=False)
    result = await harness.plan(
        "print(input() + open('workspace'[:0] + __import__('os').environ['MADE']).read())",
        [
            step("build", "/bin/sh", "-c", 'printf built > "$OUT/x"', env={"OUT": "workspace://build"}),
            step("run", sys.executable, "cell.py", env={"MADE": "workspace://build/x"}),
        ],
        stdin=b"given ",
    )
    assert result.status is ExecutionStatus.SUCCESS and result.returncode == 0
    assert result.stdout.text == "given built\n" == harness.text()
    assert [(s.role, s.exit_code) for s in result.steps] == [("build", 0), ("run", 0)]


async def test_a_plan_stops_at_the_first_step_that_fails(harness: Harness) -> None:
    await harness.open(start_interpreter=False)
    failing = [step("build", "/bin/sh", "-c", "echo no >&2; exit 4"), step("run", "/bin/echo", "never")]
    result = await harness.plan("", failing)
    assert result.status is ExecutionStatus.ERROR and result.returncode == 4 and len(result.steps) == 1
    assert result.message == "Step 1 of 2 (build: /bin/sh) ended with exit code 4."
    assert (result.stdout.text, result.stderr.text) == ("", "no\n")
    result = await harness.plan("", [step("run", "/bin/sh", "-c", "kill -SEGV $$")])
    assert result.message == "Step 1 of 1 (run: /bin/sh) was ended by SIGSEGV."
    result = await harness.plan("", [step("run", "/nonexistent/tool")])
    assert result.status is ExecutionStatus.ERROR and "could not be started" in result.message


async def test_a_plan_past_its_time_limit_is_ended_with_all_it_started(harness: Harness) -> None:
    await harness.open(start_interpreter=False)
    started = time.monotonic()
    result = await harness.plan(
        "", [step("run", "/bin/sh", "-c", "sleep 60 & echo $!; setsid sleep 60 & echo $!; wait")], 0.4
    )
    assert time.monotonic() - started < 3
    assert result.status is ExecutionStatus.TIMED_OUT and result.steps[0].timed_out
    pids = [int(word) for word in result.stdout.text.split()]
    assert len(pids) == 2
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert (await harness.plan("", [step("run", "/bin/echo", "again")])).stdout.text == "again\n"


async def test_cancelling_a_plan_ends_its_step(harness: Harness) -> None:
    await harness.open(start_interpreter=False)
    task = asyncio.ensure_future(harness.plan("", [step("run", "/bin/sh", "-c", "echo $$; exec sleep 60")]))
    await until(lambda: harness.text().strip().isdigit())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{harness.text().strip()}").exists()


async def test_files_over_the_protocol(harness: Harness) -> None:
    resource = await harness.open(start_interpreter=False)
    output = Path(harness.sandbox.paths["output"])
    data = os.urandom(700_000)
    (output / "a.bin").write_bytes(data)
    (output / "sub").mkdir()
    (output / "sub" / "b.txt").write_text("b")
    (output / "link").symlink_to("/etc/hostname")
    source = resource.output_source
    assert sorted(await source.list_files("output", 100)) == [("a.bin", 700_000), ("sub/b.txt", 1)]
    assert b"".join([part async for part in source.fetch_file("output", "a.bin", 10**6)]) == data
    for path, code in (("link", "symlink"), ("nothing", "missing"), ("sub", "not_regular")):
        with pytest.raises(SandboxError) as caught:
            _ = [part async for part in source.fetch_file("output", path, 10)]
        assert caught.value.code == code
    with pytest.raises(SandboxError) as caught:
        _ = [part async for part in source.fetch_file("output", "a.bin", 1000)]
    assert caught.value.code == "too_large"
    stream = source.fetch_file("output", "a.bin", 10**6)
    await anext(stream)
    await stream.aclose()  # given up in the middle: the channel goes on
    await resource.put_file("input", "d/in.txt", b"hello")
    assert Path(harness.sandbox.paths["input"], "d", "in.txt").read_bytes() == b"hello"
    with pytest.raises(SandboxError, match="did not take"):
        await resource.put_file("input", "../up.txt", b"x")


async def test_tools_are_observed_inside(harness: Harness) -> None:
    resource = await harness.open(
        start_interpreter=False, tools={"python": [sys.executable, "--version"], "go": ["/nonexistent/go", "version"]}
    )
    facts = await resource.check_tools({"bash": ["/bin/bash", "--version"], "node": ["/bin/true"]})
    assert facts["bash"].available and facts["bash"].version is not None and facts["bash"].version[0].isdigit()
    assert not facts["node"].available
    assert not resource.facts.toolchains["go"].available
    assert resource.facts.toolchains["python"].version == ".".join(str(part) for part in sys.version_info[:3])


async def test_a_guest_s_word_that_its_outputs_are_as_they_were_saves_one_question(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question to begin with, then only after cells that changed something; the word holds for one look."""
    resource = await harness.open()
    output = harness.sandbox.paths["output"]
    asked: list[str] = []
    real = GuestSession.request

    async def request(self: GuestSession, message: dict[str, Any], *args: Any, **more: Any) -> Any:
        asked.append(message["op"])
        return await real(self, message, *args, **more)

    monkeypatch.setattr(GuestSession, "request", request)

    async def look(code: str) -> tuple[list[tuple[str, int]], int]:
        await harness.run(code)
        asked.clear()
        return sorted(await resource.output_source.list_files("output", 100)), asked.count("list")

    write = f"open({output!r} + '/{{}}', 'w').write({{!r}})"
    assert await look("1") == ([], 1)
    assert await look("2") == ([], 0)
    assert await look(write.format("a", "x")) == ([("a", 1)], 1)
    assert await look("3") == ([("a", 1)], 0)
    assert await look(write.format("a", "xx")) == ([("a", 2)], 1)
    assert await look(f"import os; os.mkdir({output!r} + '/d')") == ([("a", 2)], 0)
    assert await look(write.format("d/b", "y")) == ([("a", 2), ("d/b", 1)], 1)
    assert await look(f"os.remove({output!r} + '/a')") == ([("d/b", 1)], 1)

    await harness.run("4")
    source = resource.output_source
    assert await source.list_files("output", 100) == [("d/b", 1)]
    Path(output, "late").write_text("")  # as by a thread that a cell left behind
    assert sorted(await source.list_files("output", 100)) == [("d/b", 1), ("late", 0)]
    await harness.run("5")
    assert await source.list_files("output", 1) != []  # another question than the last one
    await harness.run("6")
    assert len(await source.list_files("output", 100)) == 2

    await harness.run(f"import atexit; atexit.register(lambda: {write.format('end', 'z')})")
    await resource.finish()
    assert ("end", 1) in await source.list_files("output", 100)
