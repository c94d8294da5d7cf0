"""Questions of the policy gates on their way to a person, and the answers on their way back.

A question is shown where somebody can see it: in a panel that is attached right now, else in the front end's input box
while a cell runs that may ask, else nowhere, which is said at once. When the last panel goes while a question is open,
the question moves to the input box, or is over. An answer must carry the request's nonce and the digest of what was
shown. Questions are asked on the kernel's main loop; answers may come from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from agently_kernel.contract.approval import ApprovalOutcome, ApprovalRequest

GRAVE_GATES: Mapping[str, str] = {"trusted_local": "trusted_local"}
"""Gates that give up the isolation, with the word that a person must type before allowing one; never for a session."""

EACH_TIME = frozenset((*GRAVE_GATES, "replace_file"))
"""Gates that are asked each time, and never allowed for a session: what they allow may be another thing tomorrow."""

Ask: TypeAlias = Callable[[str, bool], Awaitable[str]]
"""``ask(prompt, password) -> line``: the input box of the cell that runs."""
BrokerEvent: TypeAlias = Literal["opened", "closed"]
Listener: TypeAlias = Callable[[BrokerEvent, ApprovalRequest, ApprovalOutcome | None, str], None]
"""``listener(event, request, outcome, by)``; ``by`` names who answered."""


@dataclass(slots=True)
class _Pending:
    request: ApprovalRequest
    loop: asyncio.AbstractEventLoop
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    given: tuple[ApprovalOutcome, str] | None = None
    remark: str = ""

    def give(self, outcome: ApprovalOutcome, by: str) -> None:
        """Answer once; later answers are ignored. The caller holds the broker's guard; any thread."""
        if self.given is None:
            self.given = (outcome, by)
            self.loop.call_soon_threadsafe(self.answered.set)


class ApprovalBroker:
    """Holds the open questions of one kernel.

    ``panel_attached`` tells whether a panel is there to show a question; ``input_box`` returns the way to the front
    end's input box while the running cell allows it, else None.
    """

    def __init__(
        self,
        *,
        panel_attached: Callable[[], bool] = lambda: False,
        input_box: Callable[[], Ask | None] = lambda: None,
    ) -> None:
        self.panel_attached = panel_attached
        self.input_box = input_box
        self._pending: dict[str, _Pending] = {}
        self._listeners: list[Listener] = []
        self._box = asyncio.Lock()
        self._guard = threading.Lock()
        self._accounts: dict[str, tuple[str, str]] = {}

    def pending(self) -> tuple[ApprovalRequest, ...]:
        """Return the open questions, oldest first."""
        with self._guard:
            return tuple(item.request for item in self._pending.values())

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call *listener* whenever a question opens or closes; returns a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def answer(self, request_id: str, nonce: str, digest: str, outcome: ApprovalOutcome, by: str = "panel") -> bool:
        """Take an answer; True when it was valid and the first. From any thread.

        Only the two approvals and ``denied`` are answers; the other outcomes are the kernel's own.
        """
        with self._guard:
            item = self._pending.get(request_id)
            if item is None or item.given is not None:
                return False
            request = item.request
            valid = (
                hmac.compare_digest(nonce.encode(), request.nonce.encode())
                and hmac.compare_digest(digest.encode(), request.digest().encode())
                and outcome in (ApprovalOutcome.APPROVED_ONCE, ApprovalOutcome.APPROVED_SESSION, ApprovalOutcome.DENIED)
                and not (outcome is ApprovalOutcome.APPROVED_SESSION and request.gate in EACH_TIME)
                and (request.expires_at is None or time.time() <= request.expires_at)
            )
            if valid:
                item.give(outcome, by)
            return valid

    def cancel_all(self) -> None:
        """Withdraw every open question (Stop, shutdown)."""
        with self._guard:
            for item in self._pending.values():
                item.give(ApprovalOutcome.CANCELLED, "withdrawn")

    async def handle(self, request: ApprovalRequest) -> ApprovalOutcome:
        """The approval handler of a kernel: return how *request* ended. The caller keeps the deadline by cancelling."""
        if not self.panel_attached() and self.input_box() is None:
            return ApprovalOutcome.NO_CHANNEL
        item = _Pending(request, asyncio.get_running_loop())
        with self._guard:
            self._pending[request.request_id] = item
        box: asyncio.Task[None] | None = None
        try:
            self._tell("opened", request, None, "")
            while not item.answered.is_set():
                if item.given is None and not self.panel_attached() and (box is None or box.done()):
                    box = self._without_panel(item)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(item.answered.wait(), LOOK_SECONDS)
        finally:
            if box is not None:
                box.cancel()
            with self._guard:
                del self._pending[request.request_id]
                late = request.expires_at is not None and time.time() >= request.expires_at
                ended = (ApprovalOutcome.TIMED_OUT, "deadline") if late else (ApprovalOutcome.CANCELLED, "withdrawn")
                outcome, by = item.given or ended
                self._accounts[request.request_id] = (by, item.remark)
                while len(self._accounts) > MOST_ACCOUNTS:
                    del self._accounts[next(iter(self._accounts))]
            self._tell("closed", request, outcome, by)
        return outcome

    def _without_panel(self, item: _Pending) -> asyncio.Task[None] | None:
        """Ask in the input box what no panel shows, or shows no more; without a box the question is over."""
        ask = self.input_box()
        if ask is not None:
            return asyncio.create_task(self._ask_in_box(item, ask))
        with self._guard:
            item.remark = PANEL_GONE
            item.give(ApprovalOutcome.NO_CHANNEL, "panel closed")
        return None

    async def _ask_in_box(self, item: _Pending, ask: Ask) -> None:
        """Ask by the input box: a word and a code that was never shown before, so that no guest can prepare a yes.

        A panel that comes meanwhile shows the question too; the first answer ends both. An input box that fails ends
        the question only when there is no panel.
        """
        request = item.request
        code = f"{secrets.randbelow(9000) + 1000}"
        grave = GRAVE_GATES.get(request.gate)
        allow = ["allow", grave, code] if grave else ["allow", code]
        session = "" if request.gate in EACH_TIME else f", 'allow session {code}' for the whole session"
        prompt = (
            f"{PROMPT_MARK} {in_one_line(request)} "
            f"Type '{' '.join(allow)}' to allow it this once{session}; anything else denies: "
        )
        try:
            async with self._box:
                line = await ask(prompt, False)
        except asyncio.CancelledError:
            raise
        except Exception:
            if self.panel_attached():
                return
            outcome = ApprovalOutcome.NO_CHANNEL
        else:
            words = line.split()
            if words == allow:
                outcome = ApprovalOutcome.APPROVED_ONCE
            elif words == ["allow", "session", code] and request.gate not in EACH_TIME:
                outcome = ApprovalOutcome.APPROVED_SESSION
            else:
                outcome = ApprovalOutcome.DENIED
                if line.strip().casefold() not in PLAIN_NO:
                    item.remark = NOT_A_YES
        with self._guard:
            item.give(outcome, "input box")

    def account(self, request_id: str) -> tuple[str, str]:
        """Return who ended a question ("panel", "input box", …) and a remark about the answer, both "" when unknown."""
        with self._guard:
            return self._accounts.pop(request_id, ("", ""))

    def _tell(self, event: BrokerEvent, request: ApprovalRequest, outcome: ApprovalOutcome | None, by: str) -> None:
        for listener in tuple(self._listeners):
            listener(event, request, outcome, by)


def in_one_line(request: ApprovalRequest) -> str:
    """Return everything that a question says as sentences in one line, for an input box."""
    first, *facts = request.what.split("\n")
    parts = [f"{request.title}.", first]
    if facts:
        parts.append(f"Details: {'; '.join(facts)}.")
    if request.why:
        parts.append(f"Why: {request.why}")
    parts.append(request.meaning)
    return " ".join(part for part in parts if part)


LOOK_SECONDS = 1.0
"""How often it is looked whether a panel still shows an open question: one that vanishes says nothing."""
MOST_ACCOUNTS = 64
PLAIN_NO = frozenset({"", "n", "no", "deny", "nein", "non", "否", "不"})
"""Answers that are a no as it was meant; what else is typed and denies may have been meant as a yes."""
NOT_A_YES = "a yes must be the words and the code that the question shows, such as 'allow 1234'"
PANEL_GONE = "the panel that showed it was closed, and the cell may not use the input box"
PROMPT_MARK = "Agently approval ·"
"""How a question of the kernel's own begins in an input box; a guest's prompt that resembles it is marked."""
