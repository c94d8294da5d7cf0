"""Policy approval: named handlers answer gates, under a deadline, and every way that can go wrong denies."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from agently_kernel.contract.approval import ApprovalDecision, ApprovalHandler, ApprovalOutcome, ApprovalRequest, Gate
from agently_kernel.contract.errors import ApprovalDenied, ConfigurationError
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.deadlines import Overdue, Strays, bounded
from agently_kernel.policy_text import build_request

log = logging.getLogger("agently_kernel.policy")

CONSTRAINT_GATES: frozenset[Gate] = frozenset({"trusted_local", "isolation", "replace_file"})
"""Gates that lift a constraint, or cost a file of the user's. ``auto_allow`` approves none: a person answers these."""

CHANNEL_HANDLER = "input_timeout_fail"

DecisionListener = Callable[[ApprovalRequest, ApprovalDecision], None]


class PolicyApproval:
    """Answers approval requests with the configured handler and remembers what was allowed for the session.

    Handlers: ``input_timeout_fail`` (default) asks through the channel that :meth:`set_channel` was given (for a kernel
    the panel or the front end's input box) and answers ``no_channel`` at once where there is none; ``fail_closed``
    denies everything; others come by :meth:`register_handler`. ``longest_wait`` (seconds, None: no more than the
    policy's) shortens the deadline of questions asked from then on; it never lengthens one.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, ApprovalHandler] = {CHANNEL_HANDLER: _no_channel, "fail_closed": _fail_closed}
        self._default = CHANNEL_HANDLER
        self._auto_allow = False
        self.longest_wait: float | None = None
        self._remembered: dict[tuple[str, Gate, str], ApprovalDecision] = {}
        self._listeners: list[DecisionListener] = []
        self._strays = Strays()
        self._account: Callable[[str], tuple[str, str]] = lambda request_id: ("", "")

    def register_handler(self, name: str, handler: ApprovalHandler) -> None:
        """Make *handler* selectable as *name*. It is a function or coroutine function from request to outcome.

        A plain function runs in a thread of its own, because it may block. Raises ValueError for a name in use.
        """
        if self._handlers.get(name, handler) is not handler:
            raise ValueError(f"an approval handler named {name!r} is registered already")
        self._handlers[name] = handler

    def configure(self, *, handler: str | None = None, auto_allow: bool | None = None) -> None:
        """Choose the default handler by name, and whether gates are approved without asking.

        Raises ConfigurationError for a name that is not registered.
        """
        if handler is not None:
            self._known(handler)
            self._default = handler
        if auto_allow is not None:
            self._auto_allow = auto_allow

    def set_channel(
        self, channel: ApprovalHandler | None, account: Callable[[str], tuple[str, str]] | None = None
    ) -> None:
        """Give the default handler its way to a person, or take it away with None.

        ``account(request id)`` tells afterwards who answered ("panel", "input box") and a remark, both may be "".
        """
        self._handlers[CHANNEL_HANDLER] = channel or _no_channel
        self._account = account or (lambda request_id: ("", ""))

    def add_listener(self, listener: DecisionListener) -> Callable[[], None]:
        """Tell *listener* every decision; return a function that removes it again."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def remembered(self, session_id: str | None = None) -> tuple[tuple[str, Gate, str], ...]:
        """Return what was allowed for a session: (session id, gate, exact subject)."""
        return tuple(key for key in self._remembered if session_id is None or key[0] == session_id)

    def forget(self, session_id: str, gate: Gate | None = None, subject: str | None = None) -> int:
        """Take back remembered approvals; None matches all. Return how many there were."""
        gone = [
            key
            for key in self._remembered
            if key[0] == session_id and gate in (None, key[1]) and subject in (None, key[2])
        ]
        for key in gone:
            del self._remembered[key]
        return len(gone)

    async def gate(
        self,
        gate: Gate,
        subject: str,
        *,
        policy: ExecutionResourcePolicy,
        facts: Mapping[str, str | int] | None = None,
        why: str = "",
        session_id: str = "",
        cell_id: str = "",
        notebook: str = "",
        before_asking: Callable[[], None] | None = None,
    ) -> ApprovalDecision:
        """Ask about *subject* unless configuration or a remembered decision answers, and return an approving decision.

        *before_asking* is called when a handler is about to be asked. Raises ApprovalDenied (``details``: outcome,
        gate, subject, by, reason) for every other end, and ValueError when the question could not be shown truthfully.
        """
        limits = (policy.approval_timeout_seconds, self.longest_wait)
        timeout = min((limit for limit in limits if limit), default=None)
        request = build_request(
            gate,
            subject,
            facts=facts,
            why=why,
            session_id=session_id,
            cell_id=cell_id,
            notebook=notebook,
            timeout=timeout,
        )
        decision = self._without_asking(request, policy)
        if decision is None:
            if before_asking is not None:
                before_asking()
            decision = await self.ask(request, handler=policy.policy_approval_handler, timeout=timeout)
        if not decision.approved:
            raise ApprovalDenied(
                _refusal(request, decision),
                details={
                    "outcome": decision.outcome.value,
                    "gate": gate,
                    "subject": subject,
                    "by": decision.by,
                    "reason": decision.reason,
                    "request_id": request.request_id,
                },
            )
        return decision

    async def ask(
        self, request: ApprovalRequest, *, handler: str | None = None, timeout: float | None = None
    ) -> ApprovalDecision:
        """Put *request* to a handler, at most *timeout* seconds (None or 0: until cancelled); return how it ended.

        A handler that raises or returns something else than an ApprovalOutcome denies; one that does not answer in time
        ends as ``timed_out``. CancelledError passes through after the handler has been cancelled. Raises
        ConfigurationError for an unknown handler name.
        """
        name = handler or self._default
        answer = self._known(name)
        outcome, reason = ApprovalOutcome.DENIED, ""
        try:
            got: Any = await bounded(_call(answer, request), timeout or None, grace=1.0, strays=self._strays)
            if isinstance(got, ApprovalOutcome):
                outcome = got
            else:
                reason = f"the approval handler {name!r} returned {type(got).__name__} instead of an ApprovalOutcome"
        except Overdue as overdue:
            outcome = ApprovalOutcome.TIMED_OUT
            reason = f"nobody answered within {overdue.seconds:g} seconds"
        except Exception as error:
            reason = f"the approval handler {name!r} raised {type(error).__name__}"
            log.warning("the approval handler %r raised %s; the request was denied", name, type(error).__name__)
        by, remark = self._account(request.request_id) if name == CHANNEL_HANDLER else ("", "")
        reason = reason or remark
        if outcome is ApprovalOutcome.NO_CHANNEL and not reason:
            reason = "there is nobody who could be asked"
        decision = ApprovalDecision(
            request_id=request.request_id, outcome=outcome, by=by or name, reason=reason,
            decided_at=time.time(),
        )
        if outcome is ApprovalOutcome.APPROVED_SESSION:
            self._remembered[(request.session_id, request.gate, request.subject)] = decision
        self._tell(request, decision)
        return decision

    def _without_asking(self, request: ApprovalRequest, policy: ExecutionResourcePolicy) -> ApprovalDecision | None:
        def decided(outcome: ApprovalOutcome, by: str, reason: str = "") -> ApprovalDecision:
            decision = ApprovalDecision(
                request_id=request.request_id, outcome=outcome, by=by, reason=reason, decided_at=time.time()
            )
            self._tell(request, decision)
            return decision

        if policy.approval_mode == "never":
            return decided(ApprovalOutcome.DENIED, "configuration", "approval_mode is 'never'")
        if (self._auto_allow or policy.auto_allow) and request.gate not in CONSTRAINT_GATES:
            return decided(ApprovalOutcome.APPROVED_ONCE, "auto_allow")
        if (request.session_id, request.gate, request.subject) in self._remembered:
            return decided(ApprovalOutcome.APPROVED_SESSION, "remembered")
        return None

    def _known(self, name: str) -> ApprovalHandler:
        try:
            return self._handlers[name]
        except KeyError:
            raise ConfigurationError(
                f"policy_approval_handler: no approval handler is named {name!r}; "
                f"registered are {', '.join(sorted(self._handlers))}."
            ) from None

    def _tell(self, request: ApprovalRequest, decision: ApprovalDecision) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(request, decision)
            except Exception as error:
                log.warning("an approval listener raised %s and was passed over", type(error).__name__)


def _no_channel(request: ApprovalRequest) -> ApprovalOutcome:
    return ApprovalOutcome.NO_CHANNEL


def _fail_closed(request: ApprovalRequest) -> ApprovalOutcome:
    return ApprovalOutcome.DENIED


async def _call(handler: ApprovalHandler, request: ApprovalRequest) -> Any:
    """Call *handler*. What may block goes to a daemon thread: neither the loop nor the process' end waits for it."""
    called = getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__ is meant
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called):
        got: Any = handler(request)
    else:
        got = await _in_thread(handler, request)
    return await got if inspect.isawaitable(got) else got


async def _in_thread(handler: ApprovalHandler, request: ApprovalRequest) -> Any:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_exception(error) if error is not None else answer.set_result(value)

    def work() -> None:
        value, failure = None, None
        try:
            value = handler(request)
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
        try:
            loop.call_soon_threadsafe(settle, value, failure)
        except RuntimeError:
            pass  # the loop was closed: the question is over

    threading.Thread(target=work, name="agently-kernel-approval", daemon=True).start()
    return await answer


PERSON = frozenset({"panel", "input box"})
"""Where a person answers; every other name is that of a handler or of a rule."""


def _allowed_by(gate: Gate) -> str:
    """Return which setting of the user's configuration opens *gate* without a question."""
    if gate == "network":
        return "list the hosts in c.AgentlyKernel.network_hosts in your configuration"
    if gate in CONSTRAINT_GATES:
        return "set c.AgentlyKernel.isolation, unsafe_fallback and trusted_local_authorized in your configuration"
    if gate == "save_output":
        return "name the folder in c.AgentlyKernel.save_outputs in your configuration"
    return "set c.AgentlyKernel.auto_allow = True in your configuration, which answers every question with yes"


def _refusal(request: ApprovalRequest, decision: ApprovalDecision) -> str:
    """Return the sentences about a gate that stayed closed: what was asked, how it ended, what can be done."""
    because = f" because {decision.reason}" if decision.reason else ""
    again = "Run it again to be asked again."
    match decision.outcome:
        case ApprovalOutcome.TIMED_OUT:
            ended, remedy = f"was not answered in time{because}", "Run it again and answer the question."
        case ApprovalOutcome.NO_CHANNEL:
            ended = f"could not be asked{because}"
            remedy = f"Use a front end with the panel or an input box, or {_allowed_by(request.gate)}."
        case ApprovalOutcome.CANCELLED:
            ended, remedy = f"was cancelled{because}", "Run it again if it was meant."
        case _ if decision.by in PERSON:
            ended, remedy = f"was denied in the {decision.by}{because}", again
        case _ if decision.by == "configuration":
            ended, remedy = f"was denied by your configuration{because}", "Change it there to be asked."
        case _:
            ended = f"was denied by the approval handler {decision.by!r}{because}"
            remedy = f"{again} Your configuration names the handler."
    return f"“{request.title}” ({request.gate}: {request.subject}) {ended}; nothing was run for it. {remedy}"
