"""Questions and answers: channels, nonce and digest, the five ends, the input box."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from agently_kernel import approvals
from agently_kernel.approvals import PROMPT_MARK, ApprovalBroker, in_one_line
from agently_kernel.contract.approval import ApprovalOutcome, ApprovalRequest, Gate
from agently_kernel.contract.errors import ApprovalDenied
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.policy import CHANNEL_HANDLER, PolicyApproval
from agently_kernel.policy_text import WORDING, build_request


def question(timeout: float | None = 30.0) -> ApprovalRequest:
    return build_request("network", "data.example.org", timeout=timeout, session_id="s")


async def test_nobody_there_is_said_at_once() -> None:
    started = time.monotonic()
    assert await ApprovalBroker().handle(question()) is ApprovalOutcome.NO_CHANNEL
    assert time.monotonic() - started < 0.5


async def test_a_panels_answer_needs_nonce_and_digest_and_the_first_wins() -> None:
    broker = ApprovalBroker(panel_attached=lambda: True)
    seen: list[tuple[str, ApprovalOutcome | None, str]] = []
    broker.listen(lambda event, request, outcome, by: seen.append((event, outcome, by)))
    request = question()
    waiting = asyncio.create_task(broker.handle(request))
    await asyncio.sleep(0)
    assert broker.pending() == (request,)
    yes, no = ApprovalOutcome.APPROVED_ONCE, ApprovalOutcome.DENIED
    assert not broker.answer(request.request_id, "wrong", request.digest(), yes)
    assert not broker.answer(request.request_id, request.nonce, "sha256:other", yes)
    assert not broker.answer("other", request.nonce, request.digest(), yes)
    assert not broker.answer(request.request_id, request.nonce, request.digest(), ApprovalOutcome.TIMED_OUT)
    assert broker.answer(request.request_id, request.nonce, request.digest(), no)
    assert not broker.answer(request.request_id, request.nonce, request.digest(), yes)
    assert await waiting is no
    assert broker.pending() == ()
    assert seen == [("opened", None, ""), ("closed", no, "panel")]


async def test_an_answer_from_another_thread_arrives() -> None:
    broker = ApprovalBroker(panel_attached=lambda: True)
    request = question()
    waiting = asyncio.create_task(broker.handle(request))
    await asyncio.sleep(0)
    session = ApprovalOutcome.APPROVED_SESSION
    assert await asyncio.to_thread(broker.answer, request.request_id, request.nonce, request.digest(), session)
    assert await asyncio.wait_for(waiting, 5) is session


async def test_an_answer_after_the_deadline_does_not_count() -> None:
    broker = ApprovalBroker(panel_attached=lambda: True)
    request = question(timeout=0.01)
    waiting = asyncio.create_task(broker.handle(request))
    await asyncio.sleep(0.05)
    assert not broker.answer(request.request_id, request.nonce, request.digest(), ApprovalOutcome.APPROVED_ONCE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_stop_withdraws_what_is_asked() -> None:
    broker = ApprovalBroker(panel_attached=lambda: True)
    waiting = asyncio.create_task(broker.handle(question()))
    await asyncio.sleep(0)
    broker.cancel_all()
    assert await waiting is ApprovalOutcome.CANCELLED


async def test_through_the_policy_silence_is_timed_out_and_a_yes_for_the_session_is_remembered() -> None:
    broker = ApprovalBroker(panel_attached=lambda: True)
    approval = PolicyApproval()
    approval.set_channel(broker.handle)
    decision = await approval.ask(question(), timeout=0.05)
    assert decision.outcome is ApprovalOutcome.TIMED_OUT
    request = question()
    asking = asyncio.create_task(approval.ask(request, timeout=5))
    while not broker.pending():
        await asyncio.sleep(0.01)
    broker.answer(request.request_id, request.nonce, request.digest(), ApprovalOutcome.APPROVED_SESSION)
    assert (await asking).outcome is ApprovalOutcome.APPROVED_SESSION
    assert approval.remembered("s") == (("s", "network", "data.example.org"),)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("allow {code}", ApprovalOutcome.APPROVED_ONCE),
        ("  allow   {code} ", ApprovalOutcome.APPROVED_ONCE),
        ("allow session {code}", ApprovalOutcome.APPROVED_SESSION),
        ("allow", ApprovalOutcome.DENIED),
        ("y", ApprovalOutcome.DENIED),
        ("{code}", ApprovalOutcome.DENIED),
        ("allow 0000", ApprovalOutcome.DENIED),
        ("", ApprovalOutcome.DENIED),
    ],
)
async def test_the_input_box_wants_word_and_code(answer: str, outcome: ApprovalOutcome) -> None:
    prompts: list[str] = []

    async def box(prompt: str, password: bool) -> str:
        prompts.append(prompt)
        found = re.search(r"'allow (\d{4})'", prompt)
        assert found is not None
        return answer.format(code=found.group(1))

    broker = ApprovalBroker(input_box=lambda: box)
    assert await broker.handle(question()) is outcome
    assert prompts[0].startswith(PROMPT_MARK)
    assert "data.example.org" in prompts[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("y", "was denied in the input box because a yes must be the words and the code that the question shows"),
        ("yes please", "because a yes must be the words and the code"),
        ("allow 0000", "because a yes must be the words and the code"),
        ("n", "was denied in the input box; nothing was run for it. Run it again to be asked again."),
        ("", "was denied in the input box; nothing was run for it."),
    ],
)
async def test_a_no_says_who_said_it_and_a_yes_without_the_code_what_is_missing(answer: str, said: str) -> None:
    async def box(prompt: str, password: bool) -> str:
        return answer

    broker, approval = ApprovalBroker(input_box=lambda: box), PolicyApproval()
    approval.set_channel(broker.handle, broker.account)
    with pytest.raises(ApprovalDenied) as caught:
        await approval.gate("network", "data.example.org", policy=ExecutionResourcePolicy())
    assert said in str(caught.value)
    assert CHANNEL_HANDLER not in str(caught.value)
    assert caught.value.details["by"] == "input box"


async def test_a_denial_in_the_panel_says_so() -> None:
    broker, approval = ApprovalBroker(panel_attached=lambda: True), PolicyApproval()
    approval.set_channel(broker.handle, broker.account)
    asking = asyncio.create_task(approval.gate("network", "data.example.org", policy=ExecutionResourcePolicy()))
    while not broker.pending():
        await asyncio.sleep(0.01)
    (request,) = broker.pending()
    broker.answer(request.request_id, request.nonce, request.digest(), ApprovalOutcome.DENIED)
    with pytest.raises(ApprovalDenied, match="was denied in the panel; nothing was run for it"):
        await asking


@pytest.mark.parametrize(
    ("policy", "handler", "said"),
    [
        ({"approval_mode": "never"}, None, "was denied by your configuration because approval_mode is 'never'; "),
        ({}, "fail_closed", "was denied by the approval handler 'fail_closed'; "),
        ({}, "mine", "was denied by the approval handler 'mine' because the approval handler 'mine' returned str"),
    ],
)
async def test_a_no_of_a_rule_names_the_rule(policy: dict[str, str], handler: str | None, said: str) -> None:
    approval = PolicyApproval()
    approval.register_handler("mine", lambda request: "yes")  # type: ignore[arg-type,return-value]
    approval.configure(handler=handler)
    with pytest.raises(ApprovalDenied) as caught:
        await approval.gate("network", "data.example.org", policy=ExecutionResourcePolicy(**policy))
    assert said in str(caught.value)


@pytest.mark.parametrize("gate", sorted(WORDING))
def test_every_question_is_made_of_whole_sentences(gate: Gate) -> None:
    request = build_request(gate, "the-subject", facts={"kind": "file", "size in bytes": 5}, why="It is needed.")
    line = in_one_line(request)
    assert "\n" not in line
    assert f"{WORDING[gate].title}. " in line
    assert ". Details: kind: file; size in bytes: 5. Why: It is needed. " in line
    assert line.endswith(WORDING[gate].meaning) and line.endswith(".")


async def test_an_input_box_that_fails_is_no_channel() -> None:
    async def box(prompt: str, password: bool) -> str:
        raise EOFError

    assert await ApprovalBroker(input_box=lambda: box).handle(question()) is ApprovalOutcome.NO_CHANNEL


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("allow trusted_local {code}", ApprovalOutcome.APPROVED_ONCE),
        ("allow {code}", ApprovalOutcome.DENIED),
        ("allow session {code}", ApprovalOutcome.DENIED),
        ("allow session trusted_local {code}", ApprovalOutcome.DENIED),
    ],
)
async def test_giving_up_the_isolation_takes_its_name_and_holds_once(answer: str, outcome: ApprovalOutcome) -> None:
    async def box(prompt: str, password: bool) -> str:
        found = re.search(r"(\d{4})'", prompt)
        assert found is not None
        assert "session" not in prompt
        return answer.format(code=found.group(1))

    request = build_request("trusted_local", "python", timeout=30)
    assert await ApprovalBroker(input_box=lambda: box).handle(request) is outcome
    broker = ApprovalBroker(panel_attached=lambda: True)
    waiting = asyncio.create_task(broker.handle(request))
    await asyncio.sleep(0)
    session, once = ApprovalOutcome.APPROVED_SESSION, ApprovalOutcome.APPROVED_ONCE
    assert not broker.answer(request.request_id, request.nonce, request.digest(), session)
    assert broker.answer(request.request_id, request.nonce, request.digest(), once)
    assert await waiting is once


class LateBox:
    """A question in an input box, and a panel that comes while it waits there."""

    def __init__(self) -> None:
        self.attached = False
        self.typed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.withdrawn = False
        self.prompts: list[str] = []
        self.broker = ApprovalBroker(panel_attached=lambda: self.attached, input_box=lambda: self.box)

    async def box(self, prompt: str, password: bool) -> str:
        self.prompts.append(prompt)
        code = prompt.split("'allow ")[1][:4]
        try:
            return (await self.typed).replace("CODE", code)
        except asyncio.CancelledError:
            self.withdrawn = True
            raise

    async def ask(self, request: ApprovalRequest) -> asyncio.Task[ApprovalOutcome]:
        waiting = asyncio.create_task(self.broker.handle(request))
        for _ in range(5):
            await asyncio.sleep(0)
        self.attached = True
        return waiting


async def test_a_panel_that_comes_late_answers_and_the_box_is_withdrawn() -> None:
    late, request = LateBox(), question()
    waiting = await late.ask(request)
    once = ApprovalOutcome.APPROVED_ONCE
    assert late.broker.pending() == (request,)
    assert late.broker.answer(request.request_id, request.nonce, request.digest(), once)
    assert await waiting is once
    await asyncio.sleep(0)
    assert late.withdrawn


async def test_a_panel_that_comes_late_learns_that_the_box_answered() -> None:
    late, request = LateBox(), question()
    closed: list[tuple[str, str]] = []
    late.broker.listen(lambda event, _, __, by: closed.append((event, by)))
    waiting = await late.ask(request)
    late.typed.set_result("allow CODE")
    assert await waiting is ApprovalOutcome.APPROVED_ONCE
    assert closed == [("opened", ""), ("closed", "input box")]
    denied = ApprovalOutcome.DENIED
    assert not late.broker.answer(request.request_id, request.nonce, request.digest(), denied)


async def test_a_box_that_fails_leaves_the_question_to_a_panel_that_came_late() -> None:
    late, request = LateBox(), question()
    waiting = await late.ask(request)
    late.typed.set_exception(EOFError())
    await asyncio.sleep(0.05)
    assert late.broker.answer(request.request_id, request.nonce, request.digest(), ApprovalOutcome.DENIED)
    assert await waiting is ApprovalOutcome.DENIED


async def test_a_question_whose_panel_vanishes_moves_to_the_input_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "LOOK_SECONDS", 0.02)
    late, request = LateBox(), question()
    late.attached = True
    waiting = await late.ask(request)
    await asyncio.sleep(0.1)
    assert late.prompts == [], "the input box asks only where no panel shows the question"
    late.attached = False
    await asyncio.sleep(0.3)
    assert len(late.prompts) == 1
    assert late.broker.pending() == (request,), "a page that is loaded again finds it"
    late.typed.set_result("allow CODE")
    assert await asyncio.wait_for(waiting, 5) is ApprovalOutcome.APPROVED_ONCE


async def test_a_panel_that_comes_back_shows_the_question_and_answers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "LOOK_SECONDS", 0.02)
    late, request = LateBox(), question()
    for attached in (True, False, True):
        late.attached = attached
        if attached and not late.broker.pending():
            waiting = await late.ask(request)
        await asyncio.sleep(0.1)
        assert late.broker.pending() == (request,)
    assert late.broker.answer(request.request_id, request.nonce, request.digest(), ApprovalOutcome.DENIED)
    assert await asyncio.wait_for(waiting, 5) is ApprovalOutcome.DENIED
    await asyncio.sleep(0)
    assert late.withdrawn


async def test_a_question_whose_panel_vanishes_is_over_where_no_box_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "LOOK_SECONDS", 0.02)
    attached = True
    broker, approval = ApprovalBroker(panel_attached=lambda: attached), PolicyApproval()
    approval.set_channel(broker.handle, broker.account)
    policy = ExecutionResourcePolicy(approval_timeout_seconds=60)
    asking = asyncio.create_task(approval.gate("network", "data.example.org", policy=policy))
    while not broker.pending():
        await asyncio.sleep(0.01)
    attached = False
    with pytest.raises(ApprovalDenied) as caught:
        await asyncio.wait_for(asking, 5)
    assert caught.value.details["outcome"] == "no_channel"
    assert "could not be asked because the panel that showed it was closed, and the cell may not" in str(caught.value)
    assert "nothing was run for it" in str(caught.value)


async def test_a_shorter_wait_is_kept_and_a_longer_one_is_not() -> None:
    for wished, kept in ((5.0, 5.0), (500.0, 60.0), (None, 60.0)):
        broker = ApprovalBroker(panel_attached=lambda: True)
        approval = PolicyApproval()
        approval.set_channel(broker.handle)
        approval.longest_wait = wished
        policy = ExecutionResourcePolicy(approval_timeout_seconds=60)
        asking = asyncio.create_task(approval.gate("network", "data.example.org", policy=policy))
        while not broker.pending():
            await asyncio.sleep(0.001)
        (request,) = broker.pending()
        assert request.expires_at is not None
        assert request.expires_at - request.created_at == pytest.approx(kept)
        broker.cancel_all()
        with pytest.raises(ApprovalDenied):
            await asking
