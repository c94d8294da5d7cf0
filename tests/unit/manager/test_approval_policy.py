"""Approval: five ends kept apart, deadlines, what is remembered, and what configuration decides."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_manager_provider import SyntheticProvider, wanted  # type: ignore[import-not-found]

from agently_kernel.contract.approval import ApprovalOutcome
from agently_kernel.contract.errors import ApprovalDenied, ConfigurationError
from agently_kernel.contract.paths import has_deceptive_characters
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.policy import PolicyApproval
from agently_kernel.policy_text import WORDING, build_request

QUICK = ExecutionResourcePolicy(approval_timeout_seconds=0.05)


class Person:
    """A channel that gives one answer and notes what it was asked."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, request: object) -> object:
        self.asked.append((request.gate, request.subject))  # type: ignore[attr-defined]
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def outcome_of(approval: PolicyApproval, policy: ExecutionResourcePolicy = QUICK, **fields: str) -> str:
    try:
        decision = await approval.gate("network", fields.pop("subject", "example.org"), policy=policy, **fields)
    except ApprovalDenied as denied:
        assert denied.details["gate"] == "network" and denied.details["reason"] == denied.details["reason"]
        return str(denied.details["outcome"])
    return decision.outcome.value


@pytest.mark.parametrize("outcome", list(ApprovalOutcome))
async def test_each_end_is_kept_as_it_is(outcome):
    approval = PolicyApproval()
    approval.set_channel(Person(outcome))
    assert await outcome_of(approval) == outcome.value


@pytest.mark.parametrize("answer", [True, "approved_once", None, {"status": "approved"}, RuntimeError("secret-word")])
async def test_an_odd_or_raising_handler_denies_with_the_reason(answer, caplog):
    approval = PolicyApproval()
    approval.register_handler("odd", Person(answer))
    with pytest.raises(ApprovalDenied) as caught:
        await approval.gate(
            "network", "example.org", policy=QUICK.model_copy(update={"policy_approval_handler": "odd"})
        )
    assert caught.value.details["outcome"] == "denied" and "'odd'" in caught.value.details["reason"]
    assert "secret-word" not in str(caught.value) + caplog.text


async def test_without_a_channel_it_ends_at_once():
    started = time.monotonic()
    assert await outcome_of(PolicyApproval(), ExecutionResourcePolicy()) == "no_channel"
    assert time.monotonic() - started < 1
    approval = PolicyApproval()
    approval.set_channel(Person(ApprovalOutcome.APPROVED_ONCE))
    approval.set_channel(None)
    assert await outcome_of(approval) == "no_channel"


async def test_a_handler_that_never_answers_times_out_and_is_cancelled():
    ended: list[str] = []

    async def hang(request):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    approval = PolicyApproval()
    approval.set_channel(hang)
    assert await outcome_of(approval) == "timed_out"
    assert ended == ["cancelled"]


@pytest.mark.parametrize("forever", [0, None])
async def test_no_timeout_waits_until_cancelled(forever):
    approval = PolicyApproval()
    asked = asyncio.Event()

    async def hang(request):
        assert request.expires_at is None
        asked.set()
        await asyncio.sleep(60)

    approval.set_channel(hang)
    policy = ExecutionResourcePolicy(approval_timeout_seconds=forever)
    task = asyncio.create_task(approval.gate("network", "example.org", policy=policy))
    await asked.wait()
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_blocking_handler_runs_beside_the_loop():
    release = threading.Event()

    def blocking(request):
        release.wait(5)
        return ApprovalOutcome.APPROVED_ONCE

    approval = PolicyApproval()
    approval.set_channel(blocking)
    assert await outcome_of(approval) == "timed_out"
    release.set()
    assert await outcome_of(approval, ExecutionResourcePolicy()) == "approved_once"


async def test_session_approvals_are_remembered_for_exactly_their_subject_and_denials_never():
    approval, person = PolicyApproval(), Person(ApprovalOutcome.APPROVED_SESSION)
    approval.set_channel(person)
    for _ in range(2):
        assert await outcome_of(approval, session_id="s") == "approved_session"
    assert len(person.asked) == 1
    person.answer = ApprovalOutcome.DENIED
    assert await outcome_of(approval, session_id="t") == "denied"
    assert await outcome_of(approval, session_id="s", subject="example.com") == "denied"
    assert await outcome_of(approval, session_id="t") == "denied"
    assert len(person.asked) == 4
    assert approval.remembered() == (("s", "network", "example.org"),)
    person.answer = ApprovalOutcome.APPROVED_ONCE
    for _ in range(2):
        assert await outcome_of(approval, session_id="t") == "approved_once"
    assert len(person.asked) == 6
    assert approval.forget("s", "network") == 1 and approval.remembered() == ()
    assert await outcome_of(approval, session_id="s") == "approved_once"


async def test_auto_allow_answers_gates_but_lifts_no_constraint():
    approval = PolicyApproval()
    approval.configure(auto_allow=True)
    assert await outcome_of(approval) == "approved_once"
    with pytest.raises(ApprovalDenied) as caught:
        await approval.gate("trusted_local", "python", policy=QUICK)
    assert caught.value.details["outcome"] == "no_channel"
    assert await outcome_of(approval, ExecutionResourcePolicy(approval_mode="never")) == "denied"


async def test_fail_closed_denies_without_asking_and_unknown_handlers_are_named():
    approval = PolicyApproval()
    approval.configure(handler="fail_closed")
    assert await outcome_of(approval) == "denied"
    with pytest.raises(ConfigurationError, match=r"'nobody'.*fail_closed, input_timeout_fail"):
        approval.configure(handler="nobody")
    with pytest.raises(ConfigurationError, match="'nobody'"):
        await outcome_of(approval, ExecutionResourcePolicy(policy_approval_handler="nobody"))
    with pytest.raises(ValueError, match="registered already"):
        approval.register_handler("fail_closed", Person(None))


async def test_listeners_learn_every_decision_and_cannot_disturb():
    approval, got = PolicyApproval(), []

    def broken(request, decision):
        raise RuntimeError

    approval.add_listener(broken)
    remove = approval.add_listener(
        lambda request, decision: got.append((request.gate, decision.outcome.value, decision.by))
    )
    await outcome_of(approval)
    await outcome_of(approval, ExecutionResourcePolicy(auto_allow=True))
    remove()
    await outcome_of(approval)
    assert got == [("network", "no_channel", "input_timeout_fail"), ("network", "approved_once", "auto_allow")]


async def test_ensure_is_gated_by_mode_and_requirement(make):
    provider, person = SyntheticProvider(), Person(ApprovalOutcome.DENIED)
    manager = make(provider)
    manager.approval.set_channel(person)
    await manager.async_ensure(wanted())
    assert person.asked == []
    always = wanted(policy=ExecutionResourcePolicy(approval_mode="always"))
    for requirement in (always, wanted(approval_required=True)):
        with pytest.raises(ApprovalDenied, match="denied"):
            await manager.async_ensure(requirement)
    assert person.asked == [("ensure", "python with the default providers")] * 2
    with pytest.raises(ApprovalDenied, match="approval_mode is 'never'"):
        await manager.async_ensure(
            wanted(approval_required=True, policy=ExecutionResourcePolicy(approval_mode="never", auto_allow=True))
        )
    assert len(person.asked) == 2 and len(provider.opened) == 1
    person.answer = ApprovalOutcome.APPROVED_SESSION
    for _ in range(3):
        await manager.async_ensure(always)
    assert len(person.asked) == 3 and manager.types.count("approval_required") == 3
    (event,) = [e for e in manager.seen if e.event_type.endswith("approval_required")][:1]
    assert (event.status, dict(event.details)) == ("pending_approval", {"gate": "ensure"})


async def test_a_waiting_declaration_shows_as_pending(make):
    manager = make(SyntheticProvider())
    seen: list[str] = []

    async def look(request):
        seen.extend(view.status.value for view in manager.list())
        return ApprovalOutcome.DENIED

    manager.approval.set_channel(look)
    named = manager.declare(wanted(approval_required=True))
    with pytest.raises(ApprovalDenied):
        await manager.async_ensure(named.requirement_id)
    assert seen == ["pending_approval"]
    assert manager.inspect(named.requirement_id).status.value == "declared"


@pytest.mark.parametrize("gate", list(WORDING))
def test_every_gate_has_complete_fixed_wording(gate):
    request = build_request(gate, "data/{x}.csv", facts={"size": "12 kB"}, timeout=5, session_id="s")
    assert "data/{x}.csv" in request.what and request.what.endswith("size: 12 kB")
    assert request.title and request.meaning.endswith(".")
    assert request.expires_at == request.created_at + 5
    assert request.digest() != build_request(gate, "data/y.csv").digest()


@given(subject=st.text(max_size=50))
def test_a_question_shows_its_whole_subject_or_is_not_asked(subject):
    try:
        request = build_request("input", subject)
    except ValueError:
        assert not subject.strip() or has_deceptive_characters(subject)
    else:
        assert subject in request.what and not has_deceptive_characters(request.what)


def test_a_subject_too_long_to_be_shown_and_an_unknown_gate_are_refused():
    with pytest.raises(ValueError, match="5000 characters"):
        build_request("input", "x" * 5000)
    with pytest.raises(ValueError, match="unknown gate 'root'"):
        build_request("root", "x")  # type: ignore[arg-type]
