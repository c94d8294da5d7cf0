"""What a panel can be shown: a bounded record that the kernel writes to as things happen, and views built from it.

Writing is cheap and never waits for a reader: the record keeps the contract's own objects and remembers which parts
changed; views are built only when a panel asks. All methods may be called from any thread.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agently_kernel.contract.approval import ApprovalDecision, ApprovalOutcome, ApprovalRequest, Gate
from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.isolation import SandboxFacts
from agently_kernel.contract.resource import ProviderSelection
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.contract.workspace import CollectedOutput, GrantedInput
from agently_kernel.panel_schema import (
    ExecutionText,
    ExecutionView,
    GrantView,
    InputView,
    OutputView,
    PolicyView,
    SandboxView,
    SelectionView,
    SessionView,
    TimelineEntry,
    WishView,
    WithheldView,
)
from agently_kernel.panel_views import clean, output_view, sandbox_view, selection_view

MAX_EXECUTIONS = 200
MAX_TIMELINE = 500
MAX_OUTPUTS = 256
MAX_WITHHELD = 200
MAX_INPUTS = 256
MAX_GRANTS = 256
MAX_TEXT_BYTES = 64 * 1024
MAX_TEXTS = 50

Section = Literal["session", "policy", "sandbox", "selection", "inputs", "approvals", "grants", "outputs", "withheld"]


@dataclass(slots=True)
class Changes:
    """What happened since it was last taken."""

    sections: set[Section]
    executions: set[str]
    timeline: deque[TimelineEntry]

    def __bool__(self) -> bool:
        return bool(self.sections or self.executions or self.timeline)


@dataclass(frozen=True, slots=True)
class _Text:
    """Bounded head and tail of what an execution showed."""

    head: str = ""
    tail: str = ""
    dropped: int = 0

    def add(self, text: str) -> _Text:
        half = MAX_TEXT_BYTES // 2
        room = half - len(self.head)
        head = self.head + text[:room] if room > 0 else self.head
        rest = self.tail + text[max(room, 0):]
        extra = max(0, len(rest) - half)
        return _Text(head, rest[extra:], self.dropped + extra)


def _grant_id(gate: Gate, subject: str) -> str:
    return hashlib.sha256(f"{gate} {subject}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


class PanelState:
    """The bounded record behind a panel. ``on_change`` is called, without the lock, after each change."""

    def __init__(self, *, session: SessionView | None = None, policy: PolicyView | None = None) -> None:
        self._lock = threading.RLock()
        self._session = session or SessionView()
        self._policy = self._configured = policy or PolicyView()
        self._facts: SandboxFacts | None = None
        self._selection: ProviderSelection | None = None
        self._inputs: tuple[GrantedInput, ...] = ()
        self._pending: dict[str, ApprovalRequest] = {}
        self._grants: OrderedDict[str, tuple[ApprovalRequest, float]] = OrderedDict()
        self._in_force: dict[tuple[Gate, str], float] = {}
        self._outputs: OrderedDict[str, OutputView] = OrderedDict()
        self._stored: dict[str, CollectedOutput] = {}
        self._withheld: deque[WithheldView] = deque(maxlen=MAX_WITHHELD)
        self._executions: OrderedDict[str, ExecutionView] = OrderedDict()
        self._cells: OrderedDict[str, str] = OrderedDict()
        self._texts: OrderedDict[str, _Text] = OrderedDict()
        self._timeline: deque[TimelineEntry] = deque(maxlen=MAX_TIMELINE)
        self._number = 0
        self._changes = Changes(set(), set(), deque(maxlen=MAX_TIMELINE))
        self.on_change: Callable[[], None] | None = None

    # ------------------------------------------------------------------------------------------------------- writing

    def set_session(self, **fields: object) -> None:
        """Change fields of the SessionView, for example ``status='busy'``. Raises ValueError for a bad field."""
        with self._lock:
            new = SessionView.model_validate({**self._session.model_dump(), **fields})
            if new == self._session:
                return
            self._session = new
        self._changed("session")

    def set_policy(self, policy: PolicyView) -> None:
        """Record what the user's configuration allows."""
        with self._lock:
            self._policy = self._configured = policy
        self._changed("policy")

    def set_wishes(self, wishes: tuple[WishView, ...]) -> None:
        """Record what became of a page's settings; what holds now becomes the policy that is shown."""
        with self._lock:
            base = self._configured
            changes: dict[str, object] = {"wishes": wishes}
            for wish in wishes:
                if wish.name == "isolation":
                    changes["isolation"] = wish.effective
                else:
                    changes["approval_timeout_seconds"] = float(wish.effective)
            policy = base.model_copy(update=changes)
            if policy == self._policy:
                return
            self._policy = policy
        self._changed("policy")

    def set_sandbox(self, facts: SandboxFacts | None, selection: ProviderSelection | None = None) -> None:
        """Record the facts of the live sandbox (None: there is none) and how its provider was selected.

        Cheap when both are the objects that are recorded already, so it may be called after every cell.
        """
        with self._lock:
            new_facts = facts is not self._facts
            new_selection = selection is not None and selection is not self._selection
            self._facts = facts
            if selection is not None:
                self._selection = selection
        if new_facts:
            self._changed("sandbox")
        if new_selection:
            self._changed("selection")

    def set_inputs(self, inputs: tuple[GrantedInput, ...]) -> None:
        """Record the host files that cells of this session were given."""
        with self._lock:
            if inputs == self._inputs:
                return
            self._inputs = inputs[-MAX_INPUTS:]
        self._changed("inputs")

    def execution_started(
        self, execution_id: str, *, cell_id: str = "", bundle_digest: str = "",
        form: Literal["session", "one_shot"] = "session", language: str = "python", count: int | None = None,
        quiet: bool = False,
    ) -> None:
        """Record that an execution began. ``quiet`` marks one that a front end runs for itself. One without a
        ``cell_id`` belongs to the cell of that name."""
        view = ExecutionView(
            execution_id=execution_id, cell_id=clean(cell_id, 200) or self._cells.get(execution_id, ""),
            bundle_digest=bundle_digest, form=form, language=language, count=count, status="running",
            started_at=time.time(), seconds=0.0, quiet=quiet,
        )
        with self._lock:
            self._put_execution(view)
        self._line("execution", "started", subject=execution_id, cell_id=view.cell_id, problem=False)

    def execution_output(self, execution_id: str, text: str) -> None:
        """Keep plain text that an execution showed (stream text, results, errors), head and tail, bounded."""
        with self._lock:
            known = self._texts.pop(execution_id, None) or _Text()
            self._texts[execution_id] = known.add(text)
            while len(self._texts) > MAX_TEXTS:
                self._texts.popitem(last=False)

    def execution_finished(self, execution_id: str, result: CodeExecutionResult, *, count: int | None = None) -> None:
        """Record how an execution ended, with its outputs, facts and selection."""
        with self._lock:
            known = self._executions.get(execution_id)
            view = ExecutionView(
                execution_id=execution_id, cell_id=known.cell_id if known else "",
                bundle_digest=result.bundle_digest or (known.bundle_digest if known else ""),
                form=known.form if known else "session", language=known.language if known else "python",
                count=count if count is not None else (known.count if known else None), status=result.status,
                started_at=result.started_at or (known.started_at if known else time.time()), seconds=result.seconds,
                message=clean(_why(result)), outputs=len(result.outputs), refused=len(result.refused_outputs),
                withheld=known.withheld if known else 0, quiet=known.quiet if known else False,
                unsafe=result.selection is not None and result.selection.unsafe,
            )
            self._put_execution(view)
            self._put_outputs(view, result)
        if result.outputs or result.refused_outputs:
            self._changed("outputs")
        if result.facts is not None and view.form == "session":
            self.set_sandbox(result.facts, result.selection)
        problem = result.status is not ExecutionStatus.SUCCESS or bool(result.refused_outputs)
        self._line(
            "execution", result.status.value, subject=execution_id, cell_id=view.cell_id, problem=problem,
            text=view.message,
        )

    def outputs_collected(self, outputs: tuple[CollectedOutput, ...]) -> None:
        """Record files that were collected outside of an execution (at the end of a sandbox)."""
        with self._lock:
            for output in outputs:
                self._put_output(output_view(output, "", ""), output)
        if outputs:
            self._changed("outputs")

    def withheld(self, execution_id: str, *, kind: str, mime: str, reason: str, how_to_allow: str) -> None:
        """Record that something a cell wanted to show was not passed on as it was."""
        with self._lock:
            known = self._executions.get(execution_id)
            self._withheld.append(WithheldView(
                execution_id=execution_id, cell_id=known.cell_id if known else "", kind=clean(kind, 80),
                mime=clean(mime, 120), reason=clean(reason), how_to_allow=clean(how_to_allow),
            ))
            if known is not None:
                self._put_execution(known.model_copy(update={"withheld": known.withheld + 1}))
        self._changed("withheld")

    def resource_event(self, event: ExecutionResourceEvent) -> None:
        """Put one event of the resource manager on the timeline (an EventHook)."""
        name = event.event_type.removeprefix("execution_resource.")
        problem = name in ("failed", "unhealthy") or bool(event.error_code)
        text = event.error_code or event.phase
        self._line("resource", name, subject=event.provider_id, problem=problem, text=text)

    def approval_asked(self, request: ApprovalRequest) -> None:
        """Put a question in front of every panel, and on the timeline."""
        with self._lock:
            self._pending[request.request_id] = request
        self._changed("approvals")
        cell, what = self.cell_of(request.cell_id), request.subject
        self._line("approval", "asked", subject=request.gate, cell_id=cell, problem=False, text=what)

    def approval_closed(self, request_id: str) -> None:
        """Take a question away from every panel; harmless when it is not there."""
        with self._lock:
            gone = self._pending.pop(request_id, None)
        if gone is not None:
            self._changed("approvals")

    def approval_ended(self, request: ApprovalRequest, decision: ApprovalDecision) -> None:
        """Put a decision on the timeline (a DecisionListener); a session approval joins the grants."""
        self.approval_closed(request.request_id)
        if decision.outcome is ApprovalOutcome.APPROVED_SESSION:
            with self._lock:
                known = any(r.gate == request.gate and r.subject == request.subject for r, _ in self._grants.values())
                if not known:
                    self._grants[request.request_id] = (request, decision.decided_at)
                    while len(self._grants) > MAX_GRANTS:
                        self._grants.popitem(last=False)
            if not known:
                self._changed("grants")
        self._line(
            "approval", decision.outcome.value, subject=request.gate, cell_id=self.cell_of(request.cell_id),
            problem=not decision.approved, text=decision.by,
        )

    def set_in_force(
        self, remembered: Collection[tuple[Gate, str]], in_force: Sequence[tuple[Gate, str]]
    ) -> None:
        """Record what holds now, as (gate, subject): the approvals of the whole session, and all else that holds."""
        now = time.time()
        with self._lock:
            before = self.grants()
            self._grants = OrderedDict(
                (key, kept) for key, kept in self._grants.items() if (kept[0].gate, kept[0].subject) in remembered
            )
            self._in_force = {item: self._in_force.get(item, now) for item in in_force[:MAX_GRANTS]}
            changed = self.grants() != before
        if changed:
            self._changed("grants")

    def granted(self, grant_id: str) -> tuple[Gate, str] | None:
        """Return gate and subject of what can be taken back under this id, None when there is no such thing."""
        with self._lock:
            known = self._grants.get(grant_id)
            if known is not None:
                return known[0].gate, known[0].subject
            inputs: list[tuple[Gate, str]] = [("input", item.host_path) for item in self._inputs]
            return next((item for item in (*self._in_force, *inputs) if _grant_id(*item) == grant_id), None)

    def grant_removed(self, grant_id: str, gate: Gate, subject: str) -> None:
        """Forget what was taken back, and put that on the timeline."""
        with self._lock:
            self._grants.pop(grant_id, None)
            self._in_force.pop((gate, subject), None)
        self._changed("grants")
        self._line("approval", "revoked", subject=gate, problem=False, text=subject)

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def lock(self) -> threading.RLock:
        """Hold this to read several parts, and the changes, as of one moment."""
        return self._lock

    @property
    def urgent(self) -> bool:
        """True while a question opened or closed that no panel was told of: somebody waits for that."""
        with self._lock:
            return "approvals" in self._changes.sections

    def take_changes(self) -> Changes:
        """Return what changed since the last call, and start afresh."""
        with self._lock:
            changes = self._changes
            self._changes = Changes(set(), set(), deque(maxlen=MAX_TIMELINE))
            return changes

    def session(self) -> SessionView:
        """Return the session."""
        return self._session

    def policy(self) -> PolicyView:
        """Return the policy."""
        return self._policy

    def sandbox(self) -> SandboxView | None:
        """Return the live sandbox's facts."""
        return None if self._facts is None else sandbox_view(self._facts)

    def selection(self) -> SelectionView | None:
        """Return how the provider was selected."""
        return None if self._selection is None else selection_view(self._selection)

    def inputs(self) -> tuple[InputView, ...]:
        """Return the granted inputs."""
        return tuple(
            InputView(
                name=i.name, host_path=clean(i.host_path), mode=i.mode, sha256=i.sha256, size=i.size,
                grant_id=_grant_id("input", i.host_path),
            )
            for i in self._inputs
        )

    def grants(self) -> tuple[GrantView, ...]:
        """Return what holds in this session until it is taken back: approvals, oldest first, then all else."""
        with self._lock:
            views = [
                GrantView(grant_id=key, gate=request.gate, subject=clean(request.subject), since=since)
                for key, (request, since) in self._grants.items()
            ]
            covered = {(view.gate, part) for view in views for part in (view.subject, *view.subject.split(", "))}
            return (*views, *(
                GrantView(grant_id=_grant_id(gate, subject), gate=gate, subject=clean(subject), since=since)
                for (gate, subject), since in self._in_force.items() if (gate, subject) not in covered
            ))

    def pending(self) -> tuple[ApprovalRequest, ...]:
        """Return the open questions, oldest first."""
        with self._lock:
            return tuple(self._pending.values())

    def outputs(self) -> tuple[OutputView, ...]:
        """Return the outputs, the most recent last."""
        with self._lock:
            return tuple(self._outputs.values())

    def withheld_views(self) -> tuple[WithheldView, ...]:
        """Return what was withheld, the most recent last."""
        with self._lock:
            return tuple(self._withheld)

    def executions(self, only: set[str] | None = None) -> tuple[ExecutionView, ...]:
        """Return the executions, the most recent last; ``only`` those ids when given."""
        with self._lock:
            return tuple(v for v in self._executions.values() if only is None or v.execution_id in only)

    def cell_named(self, name: str, cell_id: str) -> None:
        """Record under which *name* questions and executions of a notebook's cell come."""
        with self._lock:
            self._cells[name] = clean(cell_id, 200)
            while len(self._cells) > MAX_EXECUTIONS:
                self._cells.popitem(last=False)

    def cell_of(self, name: str) -> str:
        """Return the notebook's cell id for *name*, which may be an execution's id."""
        with self._lock:
            known = self._executions.get(name)
            return known.cell_id if known is not None else self._cells.get(name, name)

    def timeline(self) -> tuple[TimelineEntry, ...]:
        """Return the timeline, the most recent last."""
        with self._lock:
            return tuple(self._timeline)

    def stored(self, path: str) -> CollectedOutput | None:
        """Return the collected output called *path*, or None."""
        return self._stored.get(path)

    def text_of(self, execution_id: str) -> ExecutionText | None:
        """Return what an execution showed, or None when nothing is known of it."""
        with self._lock:
            view, text = self._executions.get(execution_id), self._texts.get(execution_id)
            if view is None and text is None:
                return None
            text = text or _Text()
            gap = f"\n… {text.dropped} characters left out …\n" if text.dropped else ""
            return ExecutionText(
                execution_id=execution_id, text=text.head + gap + text.tail, dropped_bytes=text.dropped,
                running=view is not None and view.status == "running",
            )

    # ------------------------------------------------------------------------------------------------------ internal

    def _changed(self, section: Section) -> None:
        with self._lock:
            self._changes.sections.add(section)
        if self.on_change is not None:
            self.on_change()

    def _line(
        self, kind: Literal["resource", "execution", "approval"], name: str, *, problem: bool, subject: str = "",
        cell_id: str = "", text: str = "",
    ) -> None:
        with self._lock:
            self._number += 1
            entry = TimelineEntry(
                number=self._number, at=time.time(), kind=kind, name=name, problem=problem, subject=clean(subject, 200),
                cell_id=clean(cell_id, 200), text=clean(text, 300),
            )
            self._timeline.append(entry)
            self._changes.timeline.append(entry)
        if self.on_change is not None:
            self.on_change()

    def _put_execution(self, view: ExecutionView) -> None:
        self._executions[view.execution_id] = view
        self._changes.executions.add(view.execution_id)
        while len(self._executions) > MAX_EXECUTIONS:
            old, _ = self._executions.popitem(last=False)
            self._changes.executions.discard(old)

    def _put_outputs(self, view: ExecutionView, result: CodeExecutionResult) -> None:
        for output in result.outputs:
            self._put_output(output_view(output, view.execution_id, view.cell_id), output)
        for refused in result.refused_outputs:
            self._put_output(OutputView(
                path=clean(refused.path, 500), state="refused", declared=refused.declared,
                execution_id=view.execution_id, cell_id=view.cell_id, media="other", reason=refused.reason,
                message=clean(refused.message),
            ), None)

    def _put_output(self, view: OutputView, stored: CollectedOutput | None) -> None:
        self._outputs.pop(view.path, None)
        self._stored.pop(view.path, None)
        self._outputs[view.path] = view
        if stored is not None:
            self._stored[view.path] = stored
        while len(self._outputs) > MAX_OUTPUTS:
            path, _ = self._outputs.popitem(last=False)
            self._stored.pop(path, None)


def _why(result: CodeExecutionResult) -> str:
    if result.message:
        return result.message
    error: Mapping[str, object] = result.error or {}
    name, value = str(error.get("ename", "")), str(error.get("evalue", ""))
    return f"{name}: {value}"[:300] if name else ""
