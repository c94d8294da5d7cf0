"""The panel service: leases, snapshots, events, answers, files."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from panel_support import Bench, question

from agently_kernel import panel as panel_module
from agently_kernel.contract.approval import ApprovalDecision, ApprovalOutcome
from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.contract.workspace import CollectedOutput, GrantedInput, RefusedOutput
from agently_kernel.panel_schema import PolicyView
from agently_kernel.panel_state import MAX_TIMELINE

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


async def decide(bench: Bench, outcome: object, **changes: Any) -> dict[str, Any]:
    request = bench.state.pending()[0]
    values = {"request_id": request.request_id, "nonce": request.nonce, "digest": request.digest(), "outcome": outcome}
    return await bench.ask("decide", **{**values, **changes})


async def test_attach_gives_everything_and_a_lease(bench: Bench) -> None:
    assert bench.service.attached is False
    reply = await bench.ask("attach", lease_seconds=5)
    assert (reply["status"], reply["accepted"], reply["lease_seconds"]) == ("ok", True, 5.0)
    assert reply["snapshot"]["seq"] == 0
    assert reply["snapshot"]["approvals"] == []
    assert bench.service.attached is True


async def test_no_event_without_a_lease(bench: Bench) -> None:
    bench.state.set_session(status="busy")
    reply = await bench.ask("snapshot")
    assert reply["snapshot"]["session"]["status"] == "busy"
    time.sleep(0.1)
    assert bench.events == []
    assert not [t for t in threading.enumerate() if t.name == "agently-panel"]


async def test_detach_ends_events_and_the_thread(bench: Bench) -> None:
    await bench.ask("attach")
    thread = next(t for t in threading.enumerate() if t.name == "agently-panel")
    await bench.ask("detach")
    thread.join(2)
    assert (thread.is_alive(), bench.service.attached) == (False, False)
    bench.state.set_session(status="busy")
    time.sleep(0.1)
    assert bench.events == []
    await bench.ask("attach")
    bench.wait(lambda: bench.service.attached)
    bench.state.set_session(status="ready")
    bench.wait(lambda: len(bench.events) == 1)


async def test_a_lease_runs_out(bench: Bench) -> None:
    await bench.ask("attach", lease_seconds=1)
    bench.wait(lambda: not bench.service.attached, 2.0)


async def test_leases_are_bounded_and_the_oldest_goes(bench: Bench) -> None:
    for number in range(panel_module.MAX_LEASES + 5):
        await bench.ask("attach", client_id=f"client-{number:04}")
    assert len(bench.service._leases) == panel_module.MAX_LEASES
    reply = await bench.ask("renew", client_id="client-0000", seq=0)
    assert reply["snapshot"] is not None, "a client whose lease was lost gets a snapshot"


async def test_renew_brings_a_snapshot_only_when_something_was_missed(bench: Bench) -> None:
    await bench.ask("attach")
    assert (await bench.ask("renew", seq=0))["snapshot"] is None
    bench.state.set_session(status="busy")
    bench.wait(lambda: len(bench.events) == 1)
    assert (await bench.ask("renew", seq=0))["snapshot"]["seq"] == 1
    assert (await bench.ask("renew", seq=1))["snapshot"] is None


async def test_events_say_what_changed_and_nothing_else(bench: Bench) -> None:
    await bench.ask("attach")
    bench.state.approval_asked(question())
    bench.wait(lambda: any(e["approvals"] for e in bench.events))
    event = next(e for e in bench.events if e["approvals"])
    assert event["approvals"][0]["subject"] == "pypi.example:443"
    assert 55 < event["approvals"][0]["remaining"] <= 60
    assert (event["sandbox"], event["outputs"], event["executions"]) == (None, None, None)
    bench.state.approval_closed("r1")
    bench.wait(lambda: bench.events[-1]["approvals"] == [])


async def test_a_burst_becomes_few_bounded_events(bench: Bench) -> None:
    await bench.ask("attach")
    began = time.monotonic()
    for number in range(3000):
        bench.state.resource_event(ExecutionResourceEvent(
            event_id=str(number), event_type="execution_resource.progress", timestamp=0.0, provider_id="p",
            phase=str(number),
        ))
    bench.wait(lambda: bool(bench.events) and bench.events[-1]["timeline"][-1]["text"] == "2999")
    allowed = (time.monotonic() - began) / panel_module.MIN_EVENT_GAP + 2
    assert len(bench.events) <= allowed
    assert max(len(e["timeline"]) for e in bench.events) <= MAX_TIMELINE
    assert len((await bench.ask("snapshot"))["snapshot"]["timeline"]) == MAX_TIMELINE


async def test_a_question_does_not_wait_for_the_pace_of_events(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_module, "MIN_EVENT_GAP", 60.0)
    await bench.ask("attach")
    bench.state.set_session(status="busy")
    bench.wait(lambda: len(bench.events) == 1)
    bench.state.set_session(status="ready")
    time.sleep(0.1)
    assert len(bench.events) == 1, "everything else keeps the pace"
    bench.state.approval_asked(question())
    bench.wait(lambda: bool(bench.events[-1]["approvals"]), 1.0)
    assert bench.events[-1]["session"]["status"] == "ready"
    bench.state.approval_closed("r1")
    bench.wait(lambda: bench.events[-1]["approvals"] == [], 1.0)


async def test_a_reader_that_raises_costs_nothing_more() -> None:
    def broken(kind: str, content: dict[str, Any]) -> None:
        raise OSError("gone")

    bench = Bench()
    bench.service._publish = broken
    await bench.ask("attach")
    bench.state.set_session(status="busy")
    time.sleep(0.15)
    reply = await bench.ask("renew", seq=0)
    assert reply["snapshot"]["session"]["status"] == "busy"
    bench.service.close()


async def test_an_answer_needs_nonce_and_digest_and_counts_once(bench: Bench) -> None:
    bench.state.approval_asked(question())
    assert (await decide(bench, "approved_once", nonce="other"))["code"] == "mismatch"
    assert (await decide(bench, "approved_once", digest="sha256:0"))["code"] == "mismatch"
    assert (await decide(bench, "approved_once", request_id="r9"))["code"] == "resolved"
    assert bench.desk.answers == []
    assert (await decide(bench, "approved_once"))["accepted"] is True
    second = await decide(bench, "denied")
    assert (second["accepted"], second["code"]) == (False, "resolved")
    assert bench.desk.answers == [("r1", ApprovalOutcome.APPROVED_ONCE, "panel")]


async def test_a_question_names_the_cell_of_the_notebook(bench: Bench) -> None:
    bench.state.execution_started("execution-7", cell_id="notebook-cell")
    bench.state.approval_asked(question(cell_id="execution-7"))
    snapshot = (await bench.ask("snapshot"))["snapshot"]
    assert snapshot["approvals"][0]["cell_id"] == "notebook-cell"
    assert snapshot["timeline"][-1]["cell_id"] == "notebook-cell"


@pytest.mark.parametrize("outcome", ["timed_out", "cancelled", "no_channel", "yes", True, None])
async def test_only_three_words_are_answers(bench: Bench, outcome: object) -> None:
    bench.state.approval_asked(question())
    reply = await decide(bench, outcome)
    assert (reply["status"], reply["code"], bench.desk.answers) == ("error", "request", [])


async def test_giving_up_isolation_needs_the_word_and_holds_once(bench: Bench) -> None:
    bench.state.approval_asked(question(gate="trusted_local", subject="python"))
    view = (await bench.ask("snapshot"))["snapshot"]["approvals"][0]
    assert (view["allow_session"], view["confirm"]) == (False, "trusted_local")
    assert (await decide(bench, "approved_session", confirm="trusted_local"))["code"] == "session"
    assert (await decide(bench, "approved_once"))["code"] == "confirm"
    assert bench.desk.answers == []
    assert (await decide(bench, "approved_once", confirm="trusted_local"))["accepted"] is True


async def test_denying_needs_no_word(bench: Bench) -> None:
    bench.state.approval_asked(question(gate="trusted_local", subject="python"))
    assert (await decide(bench, "denied"))["accepted"] is True


async def test_a_session_approval_is_listed_once_and_taken_back(bench: Bench) -> None:
    for number in (1, 2):
        request = question(f"r{number}")
        bench.state.approval_asked(request)
        bench.state.approval_ended(request, ApprovalDecision(
            request_id=request.request_id, outcome=ApprovalOutcome.APPROVED_SESSION, decided_at=5.0
        ))
    snapshot = (await bench.ask("snapshot"))["snapshot"]
    assert [(g["grant_id"], g["subject"], g["since"]) for g in snapshot["grants"]] == [("r1", "pypi.example:443", 5.0)]
    assert snapshot["approvals"] == []
    bench.host.stays.add("pypi.example:443")
    failed = await bench.ask("revoke", grant_id="r1")
    assert (failed["status"], failed["message"]) == ("error", "pypi.example:443 could not be taken back.")
    assert len((await bench.ask("snapshot"))["snapshot"]["grants"]) == 1  # what still holds stays in the list
    bench.host.stays.clear()
    taken = await bench.ask("revoke", grant_id="r1")
    assert (taken["accepted"], taken["message"]) == (True, "pypi.example:443 is gone.")
    assert bench.host.revoked == ["pypi.example:443"]
    assert (await bench.ask("revoke", grant_id="r1"))["code"] == "unknown"


async def test_all_that_holds_is_listed_once_and_can_be_taken_back(bench: Bench) -> None:
    request = question(subject="a.example, b.example")
    bench.state.approval_ended(request, ApprovalDecision(
        request_id=request.request_id, outcome=ApprovalOutcome.APPROVED_SESSION, decided_at=5.0
    ))
    kept = [("network", "a.example, b.example")]
    hosts = [("network", host) for host in ("a.example", "b.example", "c.example")]
    bench.state.set_in_force(kept, [*hosts, ("active_output", "comm:page")])
    grants = (await bench.ask("snapshot"))["snapshot"]["grants"]
    assert [g["subject"] for g in grants] == ["a.example, b.example", "c.example", "comm:page"]
    bench.state.set_in_force([], hosts[2:])
    assert [g["subject"] for g in (await bench.ask("snapshot"))["snapshot"]["grants"]] == ["c.example"]
    assert (await bench.ask("revoke", grant_id=grants[1]["grant_id"]))["accepted"] is True
    assert (await bench.ask("snapshot"))["snapshot"]["grants"] == []
    far = GrantedInput(name="far.txt", host_path="/far.txt", mode="snapshot", sha256="sha256:0", size=1)
    bench.state.set_inputs((far,))
    [shown] = (await bench.ask("snapshot"))["snapshot"]["inputs"]
    assert (await bench.ask("revoke", grant_id=shown["grant_id"]))["accepted"] is True
    assert bench.host.revoked == ["c.example", "/far.txt"]


async def test_what_the_host_refuses_is_a_sentence_and_what_breaks_tells_nothing(bench: Bench) -> None:
    refused = await bench.ask("restart_sandbox")
    assert (refused["status"], refused["message"]) == ("error", "A cell is running. Stop it first.")
    broken = await bench.ask("doctor")
    assert (broken["status"], broken["code"]) == ("error", "internal")
    assert "secret" not in broken["message"]


def stored(folder: Path, name: str, data: bytes) -> CollectedOutput:
    path = folder / name.replace("/", "_")
    path.write_bytes(data)
    return CollectedOutput(path=name, sha256=hashlib.sha256(data).hexdigest(), size=len(data), stored_path=str(path))


async def test_outputs_are_read_in_bounded_pieces(bench: Bench, tmp_path: Path) -> None:
    bench.state.outputs_collected((
        stored(tmp_path, "output/a.csv", b"a,b\n1,2\n"), stored(tmp_path, "output/p.png", PNG),
        stored(tmp_path, "output/fake.png", b"<script>"),
        stored(tmp_path, "output/odd.txt", b"\xff\x1b[31m\xe2\x80\xae"),
    ))
    csv = (await bench.ask("read_output", path="output/a.csv", max_bytes=5))["preview"]
    assert (csv["encoding"], csv["content"], csv["truncated"], csv["media"]) == ("text", "a,b\n1", True, "csv")
    rest = (await bench.ask("read_output", path="output/a.csv", offset=5, raw=True))["preview"]
    assert (base64.b64decode(rest["content"]), rest["truncated"]) == (b",2\n", False)
    image = (await bench.ask("read_output", path="output/p.png"))["preview"]
    assert (image["mime"], base64.b64decode(image["content"])) == ("image/png", PNG)
    fake = (await bench.ask("read_output", path="output/fake.png"))["preview"]
    assert (fake["media"], fake["encoding"], fake["content"]) == ("other", "text", "<script>")
    odd = (await bench.ask("read_output", path="output/odd.txt"))["preview"]
    assert odd["content"] == "\ufffd\\x1b[31m\\u202e"
    Path(bench.state.stored("output/a.csv").stored_path).unlink()  # type: ignore[union-attr]
    gone = await bench.ask("read_output", path="output/a.csv")
    assert (gone["accepted"], gone["code"]) == (False, "unreadable")
    assert (await bench.ask("read_output", path="/etc/passwd"))["code"] == "unknown"
    assert (await bench.ask("save_output", path="output/p.png", folder="here"))["message"] == "here/output/p.png"


async def test_executions_outputs_and_text(bench: Bench, tmp_path: Path) -> None:
    state = bench.state
    state.execution_started("e1", cell_id="c1", count=3)
    state.execution_output("e1", "hello\n")
    assert (await bench.ask("read_execution", execution_id="e1"))["execution"] == {
        "execution_id": "e1", "text": "hello\n", "dropped_bytes": 0, "running": True
    }
    state.withheld("e1", kind="html", mime="text/html", reason="r", how_to_allow="h")
    state.execution_finished("e1", CodeExecutionResult(
        status=ExecutionStatus.ERROR, bundle_id="b", bundle_digest="sha256:x",
        error={"ename": "KeyError", "evalue": "k"}, outputs=(stored(tmp_path, "output/a.csv", b"1"),), seconds=0.5,
        refused_outputs=(
            RefusedOutput(path="output/b", reason="symlink", message="a link"),
            RefusedOutput(path="output/c", reason="missing", message="no such file", declared=True),
        ),
    ))
    snapshot = (await bench.ask("snapshot"))["snapshot"]
    run = snapshot["executions"][0]
    assert (run["status"], run["message"], run["count"], run["cell_id"]) == ("error", "KeyError: k", 3, "c1")
    assert (run["outputs"], run["refused"], run["withheld"], run["seconds"]) == (1, 2, 1, 0.5)
    assert [(o["path"], o["state"], o["reason"], o["declared"]) for o in snapshot["outputs"]] == [
        ("output/a.csv", "collected", "", True), ("output/b", "refused", "symlink", False),
        ("output/c", "refused", "missing", True),
    ]
    assert [(e["name"], e["problem"]) for e in snapshot["timeline"]] == [("started", False), ("error", True)]
    assert (await bench.ask("read_execution", execution_id="e9"))["code"] == "unknown"


async def test_long_text_keeps_head_and_tail(bench: Bench) -> None:
    bench.state.execution_started("e1")
    for _ in range(40):
        bench.state.execution_output("e1", "x" * 4000)
    bench.state.execution_output("e1", "THE END")
    kept = (await bench.ask("read_execution", execution_id="e1"))["execution"]
    assert kept["dropped_bytes"] == 40 * 4000 + 7 - 64 * 1024
    assert kept["text"].endswith("THE END")
    assert f"… {kept['dropped_bytes']} characters left out …" in kept["text"]


async def test_another_version_is_told_what_to_do(bench: Bench) -> None:
    reply = await bench.service.handle({"version": 2, "client_id": "client-1", "action": "attach"})
    assert (reply["status"], reply["code"]) == ("error", "version")
    assert "reload this page" in reply["message"]
    assert bench.service.attached is False


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4), max_leaves=8,
)
ACTIONS = st.sampled_from(["attach", "renew", "decide", "revoke", "read_output", "save_output", "read_execution", "?"])


FIELDS = st.sampled_from(["client_id", "seq", "path", "request_id", "nonce", "outcome"])


@settings(max_examples=150, deadline=None)
@given(extra=st.dictionaries(FIELDS, JSON), action=ACTIONS)
async def test_no_request_makes_the_service_raise(extra: dict[str, Any], action: str) -> None:
    bench = Bench()
    reply = await bench.service.handle({"version": 1, "client_id": "client-1", "action": action, **extra})
    bench.service.close()
    assert reply["status"] in ("ok", "error")
    assert bench.desk.answers == []


async def test_a_refused_wish_is_told_in_the_reply_and_to_every_panel(bench: Bench) -> None:
    await bench.ask("attach")
    reply = await bench.ask("wish", isolation="none", approval_timeout_seconds=600)
    assert (reply["status"], reply["accepted"], reply["code"]) == ("ok", False, "refused")
    assert "isolation stays required (none was wished)" in reply["message"]
    bench.wait(lambda: any(event["policy"] for event in bench.events))
    policy = next(event["policy"] for event in bench.events if event["policy"])
    assert (policy["isolation"], policy["approval_timeout_seconds"]) == ("required", 30)
    assert [wish["outcome"] for wish in policy["wishes"]] == ["weaker", "longer"]
    assert (await bench.ask("wish"))["accepted"]
    snapshot = (await bench.ask("snapshot"))["snapshot"]
    assert snapshot["policy"] == PolicyView().model_dump(mode="json")


@pytest.mark.parametrize("seconds", [0, 4.9, -1, 1e9, "x", True])
async def test_a_wish_out_of_bounds_is_not_passed_on(bench: Bench, seconds: object) -> None:
    reply = await bench.ask("wish", approval_timeout_seconds=seconds)
    assert (reply["status"], reply["code"]) == ("error", "request")
