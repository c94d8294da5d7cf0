"""The host's end against scripted guests (SYNTHETIC): what an honest one may do, and what a hostile one tries."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from sandbox_support import Harness, until

from agently_kernel.contract.errors import (
    GrantError,
    MaterializationError,
    SandboxDied,
    SandboxError,
    SandboxLaunchError,
)
from agently_kernel.contract.outputs import (
    ClearOutput,
    CommOutput,
    DisplayOutput,
    ErrorOutput,
    NoticeOutput,
    StreamOutput,
)
from agently_kernel.contract.result import DeathCause, ExecutionStatus

HONEST = """
boot(); start()
while True:
    header, payload = receive()
    if header["op"] == "execute":
        %s
        done(header["cell"], execution_count=3)
    elif header["op"] == "shutdown":
        os._exit(0)
"""


async def test_a_cell_streams_in_order_and_ends(harness: Harness) -> None:
    await harness.open(
        HONEST
        % """
        c = header["cell"]
        send("stream", b"a\\xc3", name="stdout", cell=c)
        send("stream", b"\\xa9b", name="stdout", cell=c)
        d = b'{"data": {"text/plain": "x"}, "metadata": {}}'
        send("display", d, cell=c, kind="display_data", display_id="d")
        send("clear", cell=c, wait=True)
        send("text", "ü".encode(), name="stderr", cell=c)
        send("comm", b'{"data": {"k": 1}}XY', cell=c, kind="comm_open", comm_id="i", target_name="t", buffers=[18, 2])
    """
    )
    result = await harness.run("1", cell="c1")
    assert result.status is ExecutionStatus.SUCCESS and result.reply == {"execution_count": 3}
    assert harness.events == [
        StreamOutput("c1", "stdout", "a"),
        StreamOutput("c1", "stdout", "éb"),
        DisplayOutput("c1", "display_data", {"text/plain": "x"}, {}, "d"),
        ClearOutput("c1", True),
        StreamOutput("c1", "stderr", "ü"),
        CommOutput("c1", "comm_open", "i", {"k": 1}, {}, "t", (b"XY",)),
    ]
    assert (result.stdout.text, result.stdout.total_bytes, result.stderr.text) == ("aéb", 4, "ü")
    assert result.facts == harness.resource.facts and result.message == ""


async def test_an_error_is_reported_with_its_content(harness: Harness) -> None:
    await harness.open(
        HONEST.replace("done(", "done(status='error', cell=")
        % """
        error = {"ename": "E", "evalue": "v", "traceback": ["t1", "t2"]}
        send("error", json.dumps(error).encode(), cell=header["cell"])
    """
    )
    result = await harness.run("1", cell="c1")
    assert result.status is ExecutionStatus.ERROR and result.message == "The cell raised E."
    assert result.error == {"ename": "E", "evalue": "v", "traceback": ["t1", "t2"]}
    assert harness.events == [ErrorOutput("c1", "E", "v", ("t1", "t2"))]


async def test_a_forged_cell_id_belongs_to_no_cell(harness: Harness) -> None:
    await harness.open(
        HONEST
        % """
        send("text", b"forged", name="stdout", cell="other")
        send("text", b"mine", name="stdout", cell=header["cell"])
        done("other")
    """
    )
    await harness.run("1", cell="c1")
    await harness.run("2", cell="c2")
    assert [e.cell for e in harness.events] == ["c1", "c2"]
    assert harness.background == [StreamOutput("", "stdout", "forged")] * 2


async def test_late_output_of_a_finished_cell_keeps_its_cell(harness: Harness) -> None:
    await harness.open("""
boot(); start(); c = cell()["cell"]; done(c)
send("text", b"late", name="stdout", cell=c)
send("stream", b"nobody's", name="stdout")
receive()
""")
    await harness.run("1", cell="c1")
    await until(lambda: len(harness.background) == 2)
    assert harness.background == [StreamOutput("c1", "stdout", "late"), StreamOutput("", "stdout", "nobody's")]


HOSTILE = {
    "garbage": ("raw(b'Traceback (most recent call last)')", "no frame"),
    "huge length": ("raw(wire.PREFIX.pack(wire.MAGIC, 1, 0, 10, 2**31))", "more than the protocol allows"),
    "deep JSON": ("send('display', b'[' * 100000, cell=c, kind='display_data')", "nests deeper"),
    "NaN": ("send('display', b'{\"data\": NaN}', cell=c, kind='display_data')", "NaN"),
    "repeated key": ("send('display', b'{\"data\": 1, \"data\": 2}', cell=c, kind='display_data')", "repeats a key"),
    "data is a list": ("send('display', b'{\"data\": []}', cell=c, kind='display_data')", "not an object"),
    "unknown op": ("send('root')", "unknown op"),
    "unknown field": ("send('clear', cell=c, wait=False, x=1)", "unknown field"),
    "host's op": ("send('execute', cell=c, path='/', digest='', options={})", "unknown op"),
    "second hello": ("send('hello', protocol=1, nonce='', python='3', pid=1, stage1={})", "after the start"),
    "answer to nothing": ("send('reply', b'{}', request=77)", "never made"),
    "unknown generation": ("send('interpreter', generation=9, state='exited')", "generation 9"),
    "traceback of numbers": ("send('error', b'{\"traceback\": 7}', cell=c)", "traceback"),
    "buffers that lie": ("send('comm', b'{}', cell=c, kind='comm_msg', comm_id='i', buffers=[1])", "add up"),
    "closed channel": ("os.close(1); time.sleep(60)", "closed its channel"),
    "big stream": (
        "raw(wire.PREFIX.pack(wire.MAGIC,1,0,43,300000) + json.dumps({'op':'stream','name':'stdout','cell':'c1'}"
        ",separators=(',',':')).encode() + bytes(300000))",
        "payload of",
    ),
}


@pytest.mark.parametrize("attack", HOSTILE)
async def test_a_broken_protocol_ends_the_sandbox_with_its_name(harness: Harness, attack: str) -> None:
    code, reason = HOSTILE[attack]
    await harness.open(f"boot(); start(); c = cell()['cell']\n{code}\nreceive(); receive()")
    result = await asyncio.wait_for(harness.run("1", cell="c1"), 5)
    assert result.status is ExecutionStatus.DIED and result.death is not None
    assert (result.death.what, result.death.kind) == ("sandbox", "protocol")
    assert reason in result.death.message and result.message == result.death.message
    assert not harness.resource.healthy and await harness.resource.health() == "unhealthy"
    with pytest.raises(SandboxDied, match=r"protocol|channel|message"):
        await harness.run("2")


async def test_half_a_frame_that_stays_half_ends_the_sandbox(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await harness.open(
        "boot(); start(); c = cell()['cell']\n"
        "raw(wire.encode({'op': 'clear', 'cell': c, 'wait': False})[:-3]); receive()"
    )
    object.__setattr__(harness.resource._live, "_timing", type(harness.resource._live._timing)(half_frame=0.2))
    started = time.monotonic()
    result = await harness.run("1")
    assert result.death is not None and "half a message" in result.death.message
    assert 0.15 < time.monotonic() - started < 3


async def test_a_paused_reader_is_no_half_frame(harness: Harness) -> None:
    await harness.open(HONEST % "send('stream', b'x' * 200000, name='stdout', cell=header['cell'])")
    object.__setattr__(harness.resource._live, "_timing", type(harness.resource._live._timing)(half_frame=0.1))
    harness.resource.pause()
    task = asyncio.ensure_future(harness.run("1"))
    await asyncio.sleep(0.4)
    assert not task.done() and harness.events == []
    harness.resource.resume()
    assert (await asyncio.wait_for(task, 5)).stdout.total_bytes == 200000


async def test_a_flood_of_tiny_frames_leaves_the_loop_alive(harness: Harness) -> None:
    await harness.open(
        HONEST
        % """
        one = wire.encode({"op": "text", "name": "stdout", "cell": header["cell"]}, b"x")
        for _ in range(60): raw(one * 500)
    """
    )
    gaps = []

    async def ticker() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    ticking = asyncio.ensure_future(ticker())
    count = 0

    def sink(event: object) -> None:
        nonlocal count
        count += 1

    result = await harness.run("1", sink=sink)
    ticking.cancel()
    assert count == 30000 and result.stdout.text == "x" * 30000
    assert sorted(gaps)[int(len(gaps) * 0.9)] < 0.1


async def test_input_is_answered_refused_and_freed_by_stop(harness: Harness) -> None:
    await harness.open(
        HONEST
        % """
        c = header["cell"]
        send("input", cell=c, prompt="name? ", password=False)
        answer, line = receive()
        send("text", (answer["op"] + ":" + line.decode() + answer.get("reason", "")).encode(), name="stdout", cell=c)
    """
    )
    asked = []

    async def answer(prompt: str, password: bool) -> str:
        asked.append((prompt, password))
        return "Ann"

    async def fail(prompt: str, password: bool) -> str:
        raise RuntimeError("nobody is there")

    await harness.run("1", input_handler=answer)
    await harness.run("2", input_handler=fail)
    await harness.run("3")
    assert asked == [("name? ", False)]
    assert [e.text for e in harness.events if isinstance(e, StreamOutput)] == [
        "input_reply:Ann",
        "input_refused:nobody is there",
        "input_refused:input() is not available here",
    ]


async def test_interrupt_reaches_the_cell_and_idle_stop_is_nothing(harness: Harness) -> None:
    await harness.open(
        HONEST
        % """
        assert receive()[0]["op"] == "interrupt"
        send("error", b'{"ename": "KeyboardInterrupt", "evalue": "", "traceback": []}', cell=header["cell"])
        done(header["cell"], "error"); continue
    """
    )
    assert await harness.resource.interrupt() is False
    task = asyncio.ensure_future(harness.run("1"))
    await until(lambda: harness.resource.interpreter_state == "busy")
    assert await harness.resource.interrupt() is True
    result = await task
    assert result.status is ExecutionStatus.CANCELLED and result.message == "You stopped the cell."
    assert result.error is not None and result.error["ename"] == "KeyboardInterrupt"
    assert harness.resource.interpreter_state == "idle" and await harness.resource.interrupt() is False


STUBBORN = """
boot(); start()
while True:
    header, payload = receive()
    op = header["op"]
    if op == "kill":
        send("interpreter", generation=1, state="exited", signal=9)
    elif op == "start":
        send("interpreter", generation=2, state="ready", mode="plain")
    elif op == "shutdown":
        os._exit(0)
"""


@pytest.mark.parametrize(("timeout", "kind"), [(None, "stopped_by_user"), (0.1, "time_limit")])
async def test_a_cell_that_will_not_stop_loses_its_interpreter(
    harness: Harness, timeout: float | None, kind: str
) -> None:
    await harness.open(STUBBORN, interrupt_grace=0.2)
    task = asyncio.ensure_future(harness.run("1", timeout=timeout))
    await until(lambda: harness.resource.interpreter_state == "busy")
    if timeout is None:
        await harness.resource.interrupt()
    result = await asyncio.wait_for(task, 3)
    assert result.death is not None and (result.death.what, result.death.kind) == ("interpreter", kind)
    assert result.status is (ExecutionStatus.TIMED_OUT if timeout else ExecutionStatus.CANCELLED)
    assert [type(e) for e in harness.events] == [NoticeOutput]
    assert "did not end within 0.2 s" in harness.events[0].text  # type: ignore[union-attr]
    assert harness.resource.interpreter_state == "exited" and harness.resource.healthy
    await harness.resource.ready()
    assert harness.resource.generation == 2 and harness.resource.interpreter_state == "idle"


async def test_a_guest_that_is_deaf_to_all_loses_its_sandbox(harness: Harness) -> None:
    await harness.open("boot(); start(); cell(); time.sleep(60)", interrupt_grace=0.1)
    task = asyncio.ensure_future(harness.run("1"))
    await until(lambda: harness.resource.interpreter_state == "busy")
    await harness.resource.interrupt()
    result = await asyncio.wait_for(task, 6)
    assert result.death is not None and (result.death.what, result.death.kind) == ("sandbox", "stopped_by_user")


async def test_an_idle_death_is_told_by_the_next_cell(harness: Harness) -> None:
    await harness.open("""
boot(); start(); c = cell()["cell"]; done(c)
send("interpreter", generation=1, state="exited", exit_code=3)
header, _ = receive()
assert header == {"op": "start", "generation": 2}, header
send("interpreter", generation=2, state="ready", mode="plain")
done(cell()["cell"])
receive()
""")
    await harness.run("1")
    await until(lambda: harness.resource.interpreter_state == "exited")
    result = await harness.run("2", cell="c2")
    assert result.status is ExecutionStatus.SUCCESS and result.death is None
    assert harness.events == [
        NoticeOutput(
            "c2",
            "The interpreter ended itself with exit code 3. Variables, imports and threads are lost; files "
            "and the sandbox live on. A new interpreter runs this cell.",
        )
    ]
    assert harness.resource.last_death is not None and harness.resource.last_death.exit_code == 3


async def test_an_interpreter_that_does_not_start_says_why(harness: Harness) -> None:
    await harness.open("""
boot()
for generation in (1, 2):
    assert receive()[0]["op"] == "start"
    send("interpreter", generation=generation, state="started", pid=2)
    send("stream", b"ImportError: no", name="stderr")
    send("interpreter", generation=generation, state="exited", exit_code=3)
receive()
""")
    result = await harness.run("1")
    assert (result.status, result.death) == (ExecutionStatus.ERROR, None)
    assert result.message == "The interpreter did not start: it ended with exit code 3. ImportError: no"
    with pytest.raises(SandboxError, match="did not start"):
        await harness.resource.ready()
    assert harness.resource.worn and not harness.resource.healthy  # twice in a row: the sandbox is to be replaced


async def test_an_interpreter_that_a_limit_ends_at_its_start_says_which(harness: Harness) -> None:
    await harness.open("""
boot()
assert receive()[0]["op"] == "start"
send("interpreter", generation=1, state="started", pid=2)
send("interpreter", generation=1, state="exited", signal=9)
receive()
""")
    harness.sandbox.explanation = DeathCause(what="sandbox", kind="memory_limit", limit="512 MiB", message="oom")
    result = await harness.run("1")
    assert result.message == (
        "The interpreter did not start: it was ended because the sandbox reached its memory limit (512 MiB)."
    )


async def test_the_mechanism_explains_a_killed_interpreter(harness: Harness) -> None:
    await harness.open("""
boot(); start(); cell()
send("interpreter", generation=1, state="exited", signal=9)
receive()
""")
    harness.sandbox.explanation = DeathCause(what="sandbox", kind="memory_limit", limit="512 MiB", message="oom")
    result = await harness.run("1")
    assert result.status is ExecutionStatus.DIED and result.death is not None
    assert (result.death.what, result.death.kind, result.death.limit) == ("interpreter", "memory_limit", "512 MiB")
    assert result.message.startswith(
        "The interpreter was ended because the sandbox reached its memory limit (512 MiB)."
    )


async def test_output_before_a_sandbox_death_is_kept(harness: Harness) -> None:
    await harness.open(
        "boot(); start(); c = cell()['cell']\nsend('text', b'last words', name='stdout', cell=c); os._exit(7)"
    )
    result = await harness.run("1")
    assert result.status is ExecutionStatus.DIED and result.stdout.text == "last words"
    assert result.death is not None and (result.death.what, result.death.exit_code) == ("sandbox", 7)


async def test_requests_are_answered_and_never_hang(harness: Harness) -> None:
    await harness.open("""
boot(); start()
header, code = receive()
content = {"got": header["op"], "pos": header["cursor_pos"], "code": code.decode()}
send("reply", json.dumps(content).encode(), request=header["request"])
receive()
late, _ = receive()
send("reply", b"{}", request=late["request"] - 1)
send("reply", b'{"second": 1}', request=late["request"])
cell(); receive()
""")
    resource = harness.resource
    assert await resource.request("complete", "ab", cursor_pos=2) == {"got": "complete", "pos": 2, "code": "ab"}
    started = time.monotonic()
    assert await resource.request("inspect", "x", timeout=0.2) == {
        "status": "ok",
        "found": False,
        "data": {},
        "metadata": {},
    }
    assert time.monotonic() - started < 1
    assert await resource.request("is_complete", "x") == {"second": 1}
    task = asyncio.ensure_future(harness.run("1"))
    await until(lambda: resource.interpreter_state == "busy")
    started = time.monotonic()
    assert await resource.request("complete", "ab", cursor_pos=1) == {
        "status": "ok",
        "matches": [],
        "cursor_start": 1,
        "cursor_end": 1,
        "metadata": {},
    }
    assert await resource.request("history", query={"n": 1}) == {"status": "ok", "history": []}
    assert time.monotonic() - started < 0.05
    await resource.aclose(grace=0.1)
    assert (await task).status is ExecutionStatus.DIED


async def test_bundle_manifest_and_grant_must_belong_together(harness: Harness) -> None:
    resource = await harness.open(HONEST % "pass", grant=harness.grant)
    bundle, manifest = harness.bundle("1")
    other, other_manifest = harness.bundle("2")
    with pytest.raises(MaterializationError, match="nothing was executed"):
        await resource.async_execute_code(bundle, other_manifest, harness.grant, None)
    with pytest.raises(GrantError, match="not under grant-2"):
        await resource.async_execute_code(
            bundle, manifest, harness.grant.model_copy(update={"grant_id": "grant-2"}), None
        )
    with pytest.raises(GrantError, match="other roots"):
        await resource.async_execute_code(bundle, manifest, harness.grant.model_copy(update={"roots": ()}), None)
    assert (
        await resource.async_execute_code(other, other_manifest, harness.grant, None)
    ).status is ExecutionStatus.SUCCESS


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("print('no luck', file=sys.stderr); sys.exit(3)", r"exit code 3.*no luck"),
        ("boot(); sys.exit(0) if False else None\nos._exit(9)", None),
        ("h, _ = receive(); send('hello', protocol=1, nonce='x', python='3', pid=1, stage1={}); receive()", "greeting"),
        ("send('clear', cell='x', wait=False); receive(); receive()", "before the guest had reported"),
        ("receive(); time.sleep(60)", "did not report within 0.5 s"),
    ],
)
async def test_a_failed_boot_is_told_and_leaves_nothing(harness: Harness, script: str, words: str | None) -> None:
    started = time.monotonic()
    if words is None:
        await harness.open(script, start_interpreter=False)
        await until(lambda: not harness.resource.healthy)
        return
    with pytest.raises(SandboxLaunchError, match=f"(?s){words}"):
        await harness.open(script, deadline=0.5)
    assert time.monotonic() - started < 2
    assert harness.sandbox.closed == 1 and harness.sandbox.process is not None
    assert harness.sandbox.process.returncode is not None


async def test_probe_payload_becomes_evidence(harness: Harness) -> None:
    observations = [
        {"subject": "network", "check": "tcp", "value": True, "detail": "refused"},
        {"subject": "syscalls_restricted", "check": "ptrace", "value": None},
        {"subject": "privilege_escalation_blocked", "check": "caps", "value": True},
    ]
    await harness.open(f"boot({json.dumps(observations).encode()!r}); receive(); receive()", start_interpreter=False)
    facts = harness.resource.facts.isolation
    assert (facts.privilege_escalation_blocked, facts.syscalls_restricted, facts.network_blocked) == (True, None, True)
    assert facts.process_contained is False  # outside
    assert facts.host_filesystem_restricted is None  # nothing reported
    assert harness.resource.facts.toolchains["python"].version == "3.11.7"


async def test_cancelling_an_execution_stops_it_first(harness: Harness) -> None:
    await harness.open(STUBBORN, interrupt_grace=0.1)
    task = asyncio.ensure_future(harness.run("1"))
    await until(lambda: harness.resource.interpreter_state == "busy")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.resource.interpreter_state == "exited" and harness.resource.healthy


async def test_cancelling_open_at_any_moment_leaves_no_process(harness: Harness) -> None:
    for delay in (0.0, 0.005, 0.02, 0.04, 0.06, 0.08):
        task = asyncio.ensure_future(harness.open("boot(); time.sleep(0.03); receive(); receive(); receive()"))
        await asyncio.sleep(delay)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            assert harness.sandbox.closed == 1
        else:
            await harness.resource.aclose(grace=0)
        process = harness.sandbox.process
        assert process is None or process.returncode is not None


async def test_a_flood_keeps_head_and_tail_and_little_memory(harness: Harness) -> None:
    await harness.open(
        HONEST
        % """
        c = header["cell"]
        send("stream", b"first", name="stdout", cell=c)
        for _ in range(200): send("stream", b"A" * 262144, name="stdout", cell=c)
        send("stream", b"last", name="stdout", cell=c)
    """,
        max_output_bytes=10000,
    )
    total = 0

    def sink(event: StreamOutput) -> None:
        nonlocal total
        total += len(event.text)

    result = await harness.run("1", sink=sink)
    assert total == 200 * 262144 + 9 == result.stdout.total_bytes
    assert result.stdout.text.startswith("firstAAA") and result.stdout.text.endswith("AAAlast")
    assert result.stdout.dropped_bytes == total - 10000 and len(result.stdout.text) < 10100
