"""The panel service: answers a panel's requests and tells attached panels what changed.

It knows no transport. ``publish(msg_type, content)`` sends one event to everybody who listens and is called from the
service's own thread; requests come in through :meth:`PanelService.handle` on any event loop. :func:`install` and
:func:`publisher` wire both to an ipykernel kernel: requests on the control channel (which is served while a cell blocks
the main thread), events on iopub, and only while somebody holds a lease.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from agently_kernel.approvals import EACH_TIME, GRAVE_GATES
from agently_kernel.contract.approval import ApprovalOutcome, ApprovalRequest, Gate
from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.contract.workspace import CollectedOutput
from agently_kernel.panel_link import without_status
from agently_kernel.panel_schema import (
    ANNOUNCE_TARGET,
    EVENT_TYPE,
    PROTOCOL_VERSION,
    REPLY_TYPE,
    REQUEST_TYPE,
    AnyRequest,
    ApprovalView,
    AttachRequest,
    DecideRequest,
    DetachRequest,
    DoctorRequest,
    DoctorView,
    FilePreview,
    PanelEvent,
    PanelReply,
    PanelSnapshot,
    ReadExecutionRequest,
    ReadOutputRequest,
    RenewRequest,
    RestartSandboxRequest,
    RevokeRequest,
    SaveOutputRequest,
    SnapshotRequest,
    WishRequest,
    WishView,
)
from agently_kernel.panel_state import Changes, PanelState
from agently_kernel.panel_views import clean, media_of
from agently_kernel.wishes import Wish, WishResult

MAX_LEASES = 16
MIN_EVENT_GAP = 0.05
_IMAGE_HEADS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)
_log = logging.getLogger(__name__)
_requests: TypeAdapter[AnyRequest] = TypeAdapter(AnyRequest)


class ApprovalDesk(Protocol):
    """Where an answer to an open question goes; from any thread."""

    def answer(self, request_id: str, nonce: str, digest: str, outcome: ApprovalOutcome, by: str = "panel") -> bool:
        """Give an answer; True when it was valid and the first."""


class PanelHost(Protocol):
    """What a panel can make the kernel do; called on the loop that handles requests, hops to the kernel's own.

    Each may raise AgentlyKernelError with a sentence for the user.
    """

    async def restart_sandbox(self) -> str:
        """Close the sandbox so that the next cell gets a fresh one; return a sentence about what was lost."""

    async def doctor(self) -> tuple[str, dict[str, Any]]:
        """Return the doctor's report as text and as plain JSON."""

    async def save_output(self, output: CollectedOutput, folder: str) -> str:
        """Copy an output to *folder* of the notebook's folder through the save_output gate; return where it went."""

    async def revoke(self, gate: Gate, subject: str) -> str:
        """Take back what *gate* allowed of *subject*, at once; return what that came to."""

    async def wish(self, wish: Wish) -> tuple[WishResult, ...]:
        """Take what of a page's settings is stricter than the configuration; return what became of each part."""


def approval_view(request: ApprovalRequest, *, cell_id: str) -> ApprovalView:
    """Return what a panel shows of a question; *cell_id* is the asking cell's id in the notebook."""
    return ApprovalView(
        request_id=request.request_id, nonce=request.nonce, digest=request.digest(), gate=request.gate,
        subject=clean(request.subject), title=clean(request.title, 300), what=clean(request.what),
        why=clean(request.why), meaning=clean(request.meaning), cell_id=clean(cell_id, 200),
        notebook=clean(request.notebook, 300), created_at=request.created_at,
        remaining=None if request.expires_at is None else max(0.0, request.expires_at - time.time()),
        allow_session=request.gate not in EACH_TIME, confirm=GRAVE_GATES.get(request.gate, ""),
    )


class PanelService:
    """Serves every panel of one kernel session. Close it at shutdown.

    A panel that is slow, gone or hostile costs a bounded lease table and nothing else: events are built from what
    changed since the last one, at most one in ``MIN_EVENT_GAP`` seconds (a question does not wait for that), and none
    without a live lease.
    """

    def __init__(
        self, publish: Callable[[str, dict[str, Any]], None], state: PanelState, desk: ApprovalDesk,
        host: PanelHost | None = None,
    ) -> None:
        self._publish = publish
        self._state = state
        self._desk = desk
        self._host = host
        self._leases: dict[str, float] = {}
        self._seq = 0
        self._wake = threading.Condition()
        self._dirty = False
        self._urgent = False
        self._closed = False
        self._thread: threading.Thread | None = None
        state.on_change = self._note_change

    @property
    def attached(self) -> bool:
        """True while at least one panel holds a live lease: a question put now can be seen by somebody."""
        now = time.monotonic()
        with self._wake:
            return any(end > now for end in self._leases.values())

    def close(self) -> None:
        """Stop telling panels anything. Idempotent."""
        with self._wake:
            self._closed = True
            self._leases.clear()
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)

    # ------------------------------------------------------------------------------------------------------ requests

    async def handle(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request with the content of its reply; never raises for anything that a panel can send."""
        action = str(content.get("action", ""))[:40]
        version = content.get("version")
        if version != PROTOCOL_VERSION:
            return self._error(action, "version", (
                f"This panel speaks protocol {str(version)[:20]}, the kernel {PROTOCOL_VERSION}: they come from "
                "different versions of agently-kernel. Restart JupyterLab and reload this page."
            ))
        try:
            request = _requests.validate_python(dict(content))
        except ValidationError:
            return self._error(action, "request", f"The kernel did not understand the panel's request {action!r}.")
        try:
            reply = await self._answer(request)
        except AgentlyKernelError as error:
            return self._error(action, error.code, str(error))
        except Exception:
            _log.exception("panel request %s failed", action)
            return self._error(action, "internal", f"The kernel could not do {action!r}; its log says why.")
        return reply.model_dump(mode="json")

    async def _answer(self, request: AnyRequest) -> PanelReply:
        match request:
            case AttachRequest():
                self._lease(request.client_id, request.lease_seconds)
                return self._ok(request.action, lease_seconds=request.lease_seconds, snapshot=self.snapshot())
            case RenewRequest():
                known = self._lease(request.client_id, request.lease_seconds)
                stale = not known or request.seq != self._seq
                snapshot = self.snapshot() if stale else None
                return self._ok(request.action, lease_seconds=request.lease_seconds, snapshot=snapshot)
            case DetachRequest():
                with self._wake:
                    self._leases.pop(request.client_id, None)
                    self._wake.notify_all()
                return self._ok(request.action)
            case SnapshotRequest():
                return self._ok(request.action, snapshot=self.snapshot())
            case DecideRequest():
                return self._decide(request)
            case ReadOutputRequest():
                return await self._read_output(request)
            case ReadExecutionRequest():
                text = self._state.text_of(request.execution_id)
                if text is None:
                    return self._no(request.action, "unknown", "The kernel knows nothing of that execution any more.")
                return self._ok(request.action, execution=text)
            case _:
                return await self._ask_host(request)

    async def _ask_host(
        self, request: RevokeRequest | RestartSandboxRequest | DoctorRequest | SaveOutputRequest | WishRequest
    ) -> PanelReply:
        host = self._host
        if host is None:
            return self._no(request.action, "unsupported", "This kernel does not offer that.")
        match request:
            case RestartSandboxRequest():
                return self._ok(request.action, message=await host.restart_sandbox())
            case DoctorRequest():
                text, report = await host.doctor()
                return self._ok(request.action, doctor=DoctorView(text=text, report=report))
            case RevokeRequest():
                grant = self._state.granted(request.grant_id)
                if grant is None:
                    return self._no(request.action, "unknown", "That was taken back already.")
                message = await host.revoke(*grant)
                self._state.grant_removed(request.grant_id, *grant)
                return self._ok(request.action, message=message)
            case SaveOutputRequest():
                stored = self._state.stored(request.path)
                if stored is None:
                    return self._no_output(request.action, request.path)
                return self._ok(request.action, message=await host.save_output(stored, request.folder))
            case WishRequest():
                return self._wished(request.action, await host.wish(
                    Wish(isolation=request.isolation, approval_timeout=request.approval_timeout_seconds)
                ))

    def _wished(self, action: str, results: tuple[WishResult, ...]) -> PanelReply:
        self._state.set_wishes(tuple(WishView(**result.model_dump()) for result in results))
        refused = [result for result in results if result.outcome in ("weaker", "longer")]
        if refused:
            parts = ", ".join(f"{r.name} stays {r.effective} ({r.wished} was wished)" for r in refused)
            return self._no(action, "refused", f"Your configuration of the kernel decides: {parts}.")
        return self._ok(action)

    def _decide(self, request: DecideRequest) -> PanelReply:
        waiting = next((item for item in self._state.pending() if item.request_id == request.request_id), None)
        if waiting is None:
            return self._resolved(request.action)
        outcome = ApprovalOutcome(request.outcome)
        if waiting.nonce != request.nonce or waiting.digest() != request.digest:
            return self._no(request.action, "mismatch", "The answer was for something else than is asked; look again.")
        word = GRAVE_GATES.get(waiting.gate, "")
        if outcome is ApprovalOutcome.APPROVED_SESSION and waiting.gate in EACH_TIME:
            return self._no(request.action, "session", "This can be allowed once only.")
        if outcome.approved and word and request.confirm != word:
            return self._no(request.action, "confirm", f"Type {word} to allow this.")
        if not self._desk.answer(request.request_id, request.nonce, request.digest, outcome, "panel"):
            return self._resolved(request.action)
        return self._ok(request.action)

    async def _read_output(self, request: ReadOutputRequest) -> PanelReply:
        stored = self._state.stored(request.path)
        if stored is None:
            return self._no_output(request.action, request.path)
        try:
            data = await asyncio.to_thread(_read, Path(stored.stored_path), request.offset, request.max_bytes)
        except OSError as error:
            why = error.strerror or type(error).__name__
            sentence = f"The kernel's copy of {stored.path} could not be read: {why}."
            return self._no(request.action, "unreadable", sentence)
        return self._ok(request.action, preview=_preview(stored, data, offset=request.offset, raw=request.raw))

    # ------------------------------------------------------------------------------------------------------ snapshot

    def snapshot(self) -> PanelSnapshot:
        """Return everything a panel shows, as of now."""
        state = self._state
        with state.lock:
            return PanelSnapshot(
                version=PROTOCOL_VERSION, seq=self._seq, now=time.time(), session=state.session(),
                policy=state.policy(), sandbox=state.sandbox(), selection=state.selection(), inputs=state.inputs(),
                approvals=self._approvals(), grants=state.grants(), outputs=state.outputs(),
                withheld=state.withheld_views(),
                executions=state.executions(), timeline=state.timeline(),
            )

    def _approvals(self) -> tuple[ApprovalView, ...]:
        state = self._state
        return tuple(approval_view(item, cell_id=state.cell_of(item.cell_id)) for item in state.pending())

    def _event(self, changes: Changes) -> PanelEvent:
        state, sections = self._state, changes.sections
        with state.lock:
            self._seq += 1
            return PanelEvent(
                version=PROTOCOL_VERSION, seq=self._seq, now=time.time(),
                approvals=self._approvals() if "approvals" in sections else None,
                session=state.session() if "session" in sections else None,
                policy=state.policy() if "policy" in sections else None,
                sandbox=(state.sandbox(),) if "sandbox" in sections else None,
                selection=(state.selection(),) if "selection" in sections else None,
                inputs=state.inputs() if "inputs" in sections else None,
                grants=state.grants() if "grants" in sections else None,
                outputs=state.outputs() if "outputs" in sections else None,
                withheld=state.withheld_views() if "withheld" in sections else None,
                executions=state.executions(changes.executions) if changes.executions else None,
                timeline=tuple(changes.timeline) if changes.timeline else None,
            )

    # -------------------------------------------------------------------------------------------------------- events

    def _lease(self, client_id: str, seconds: float) -> bool:
        """Take or renew a lease; return whether it was alive. The oldest goes when there are too many."""
        now = time.monotonic()
        with self._wake:
            alive = self._leases.pop(client_id, 0.0) > now
            self._leases = {key: end for key, end in self._leases.items() if end > now}
            while len(self._leases) >= MAX_LEASES:
                del self._leases[next(iter(self._leases))]
            self._leases[client_id] = now + seconds
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._tell, name="agently-panel", daemon=True)
                self._thread.start()
        return alive

    def _note_change(self) -> None:
        if not self._leases:
            return
        urgent = self._state.urgent  # read first: the record's lock is never taken inside of this one
        with self._wake:
            self._dirty = True
            self._urgent = self._urgent or urgent
            self._wake.notify_all()

    def _tell(self) -> None:
        """Publish what changes until the last lease is over (the service's thread)."""
        while True:
            with self._wake:
                while not self._dirty and not self._closed:
                    left = max(self._leases.values(), default=0.0) - time.monotonic()
                    if left <= 0:
                        break
                    self._wake.wait(timeout=left)
                if self._closed or not self._dirty:
                    self._leases.clear()
                    self._thread = None
                    return
                self._dirty = self._urgent = False
            try:
                changes = self._state.take_changes()
                if changes:
                    self._publish(EVENT_TYPE, self._event(changes).model_dump(mode="json"))
            except Exception:
                _log.exception("a panel event could not be published; panels read the next snapshot instead")
            with self._wake:
                self._wake.wait_for(lambda: self._urgent or self._closed, MIN_EVENT_GAP)

    # ------------------------------------------------------------------------------------------------------- replies

    @staticmethod
    def _ok(action: str, **fields: Any) -> PanelReply:
        return PanelReply(version=PROTOCOL_VERSION, action=action, status="ok", **fields)

    @staticmethod
    def _no(action: str, code: str, message: str) -> PanelReply:
        return PanelReply(
            version=PROTOCOL_VERSION, action=action, status="ok", code=code, message=message, accepted=False
        )

    def _resolved(self, action: str) -> PanelReply:
        return self._no(action, "resolved", "This was answered already, withdrawn, or its time was over.")

    def _no_output(self, action: str, path: str) -> PanelReply:
        return self._no(action, "unknown", f"No collected output is called {clean(path, 200)}.")

    @staticmethod
    def _error(action: str, code: str, message: str) -> dict[str, Any]:
        return PanelReply(
            version=PROTOCOL_VERSION, action=action, status="error", code=code, message=message, accepted=False
        ).model_dump(mode="json")


def _read(path: Path, offset: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(count)


def _preview(stored: CollectedOutput, data: bytes, *, offset: int, raw: bool) -> FilePreview:
    """Return a piece of a file as text, or as base64 when asked for raw or when it is an image by name and content."""
    media = media_of(stored.path)
    mime = next((mime for head, mime in _IMAGE_HEADS if data.startswith(head)), "")
    if media == "image" and not mime and not raw:
        media = "other"
    whole = offset + len(data) >= stored.size
    if raw or media == "image":
        return FilePreview(
            path=stored.path, size=stored.size, sha256=stored.sha256, media=media, encoding="base64",
            mime=mime or "application/octet-stream", content=base64.b64encode(data).decode("ascii"),
            truncated=not whole,
        )
    return FilePreview(
        path=stored.path, size=stored.size, sha256=stored.sha256, media=media, mime="text/plain", encoding="text",
        content=clean(data.decode("utf-8", "replace"), len(data) + 1), truncated=not whole,
    )


# ------------------------------------------------------------------------------------------------- wiring to ipykernel


def publisher(kernel: Any) -> Callable[[str, dict[str, Any]], None]:
    """Return a ``publish`` that sends on the iopub channel of an ipykernel kernel; it may be called from any thread."""

    def publish(msg_type: str, content: dict[str, Any]) -> None:
        kernel.session.send(kernel.iopub_socket, msg_type, content, ident=kernel._topic(msg_type))

    return publish


def install(kernel: Any, handle: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]) -> Callable[[], None]:
    """Answer panel requests on the control channel of an ipykernel kernel; return a function that takes that back.

    The control channel handles one message at a time, so the answer is worked out in a task of its own: an interrupt
    never waits behind a doctor's report. No busy and idle are published around these requests.
    """
    speak_again = without_status(kernel)
    tasks: set[asyncio.Task[None]] = set()

    async def reply(stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        content = await handle(parent.get("content", {}))
        kernel.session.send(stream, REPLY_TYPE, content, parent, ident)

    async def handler(stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(reply(stream, ident, parent))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    kernel.control_handlers[REQUEST_TYPE] = handler

    def remove() -> None:
        kernel.control_handlers.pop(REQUEST_TYPE, None)
        speak_again()
        for task in tuple(tasks):
            task.get_loop().call_soon_threadsafe(task.cancel)

    return remove


def announce() -> Callable[[], None]:
    """Say to front ends that this ordinary IPython kernel speaks the panel protocol now; return what takes that back.

    A front end without the panel closes a comm that it does not know. The comm is put back then, because a page that
    is loaded later finds the kernel by it.
    """
    import comm

    manager = comm.get_comm_manager()
    mine = comm.create_comm(target_name=ANNOUNCE_TARGET, data={"version": PROTOCOL_VERSION}, primary=True)
    mine.on_close(lambda _message: manager.register_comm(mine))

    def remove() -> None:
        mine.on_close(None)
        mine.close()
        manager.comms.pop(mine.comm_id, None)

    return remove
