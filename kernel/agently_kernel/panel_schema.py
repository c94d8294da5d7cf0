"""The panel protocol's messages, version 1: what a panel may ask and what it is told.

Everything here is a frozen value that travels as JSON; ``panel_typescript`` makes the TypeScript of the same messages.

Times are seconds since the epoch, durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agently_kernel.contract.approval import Gate
from agently_kernel.contract.base import Frozen
from agently_kernel.contract.isolation import IsolationAxis, SafetyClass
from agently_kernel.contract.result import ExecutionStatus

PROTOCOL_VERSION = 1
REQUEST_TYPE = "agently_panel_request"
REPLY_TYPE = "agently_panel_reply"
EVENT_TYPE = "agently_panel_event"
ANNOUNCE_TARGET = "agently.announce.v1"
"""Comm target by which a kernel that is not the agently kernel says that it speaks this protocol."""

MAX_ID = 200
MAX_TEXT = 2000
MAX_PREVIEW_BYTES = 2 * 1024**2


class PanelRequest(Frozen):
    """Base of every request. ``client_id`` is chosen by the panel, one for each page and kernel connection."""

    version: int
    client_id: str = Field(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")


class AttachRequest(PanelRequest):
    """Take a lease: events flow until ``lease_seconds`` after the last attach or renew. Answered with a snapshot."""

    action: Literal["attach"]
    lease_seconds: float = Field(default=30.0, ge=1, le=120)


class RenewRequest(PanelRequest):
    """Keep the lease. ``seq`` is the last event seen; the answer has a snapshot only when that is not the newest."""

    action: Literal["renew"]
    lease_seconds: float = Field(default=30.0, ge=1, le=120)
    seq: int = Field(ge=0)


class DetachRequest(PanelRequest):
    """Give the lease up; harmless when there is none."""

    action: Literal["detach"]


class SnapshotRequest(PanelRequest):
    """Ask for everything at once, without a lease."""

    action: Literal["snapshot"]


class DecideRequest(PanelRequest):
    """Answer one approval. ``nonce`` and ``digest`` echo what was shown; ``confirm`` is a typed word."""

    action: Literal["decide"]
    request_id: str = Field(max_length=MAX_ID)
    nonce: str = Field(max_length=MAX_ID, repr=False)
    digest: str = Field(max_length=MAX_ID)
    outcome: Literal["approved_once", "approved_session", "denied"]
    confirm: str = Field(default="", max_length=MAX_ID)


class RevokeRequest(PanelRequest):
    """Take back a grant, or an input, by its ``grant_id``: at once, in the open sandbox too."""

    action: Literal["revoke"]
    grant_id: str = Field(max_length=MAX_ID)


class RestartSandboxRequest(PanelRequest):
    """Close the sandbox; the next cell gets a fresh one. Variables are lost, collected files are kept."""

    action: Literal["restart_sandbox"]


class DoctorRequest(PanelRequest):
    """Ask for the report of every provider: observed facts, reasons, remedies."""

    action: Literal["doctor"]


class ReadOutputRequest(PanelRequest):
    """Read one collected output from the host's store: ``max_bytes`` from ``offset`` on; ``raw`` asks for base64."""

    action: Literal["read_output"]
    path: str = Field(max_length=4096)
    offset: int = Field(default=0, ge=0)
    raw: bool = False
    max_bytes: int = Field(default=256 * 1024, ge=1, le=MAX_PREVIEW_BYTES)


class SaveOutputRequest(PanelRequest):
    """Copy one collected output into the folder of the notebook (or ``folder`` beneath it), through its gate."""

    action: Literal["save_output"]
    path: str = Field(max_length=4096)
    folder: str = Field(default="", max_length=4096)


class ReadExecutionRequest(PanelRequest):
    """Read what one execution printed and showed, for a page that was reloaded while the cell ran."""

    action: Literal["read_execution"]
    execution_id: str = Field(max_length=MAX_ID)


class WishRequest(PanelRequest):
    """Say what this page's settings would like; null is "as configured". Only what is stricter than the kernel's
    configuration is taken. The answer's ``accepted`` is false when a part was refused; ``policy.wishes`` has the rest.
    """

    action: Literal["wish"]
    isolation: Literal["required", "preferred", "none"] | None = None
    approval_timeout_seconds: float | None = Field(default=None, ge=5, le=86400)


AnyRequest = (
    AttachRequest | RenewRequest | DetachRequest | SnapshotRequest | DecideRequest | RevokeRequest
    | RestartSandboxRequest | DoctorRequest | ReadOutputRequest | SaveOutputRequest | ReadExecutionRequest
    | WishRequest
)


class SessionView(Frozen):
    """Which kernel session this is. ``host`` is the agently kernel, or an ordinary kernel with the magic loaded."""

    session_id: str = ""
    host: Literal["agently", "ipython"] = "agently"
    product_version: str = ""
    started_at: float = 0.0
    workspace_id: str = ""
    status: Literal["starting", "ready", "busy", "failed", "no_sandbox"] = "no_sandbox"
    message: str = Field(default="", description="one sentence when status is failed")


class WishView(Frozen):
    """What became of a setting of a page: ``weaker`` and ``longer`` are refusals; ``effective`` is what holds."""

    name: Literal["isolation", "approval_timeout"]
    wished: str
    effective: str
    outcome: Literal["applied", "next_sandbox", "weaker", "longer"]


class PolicyView(Frozen):
    """What the user's configuration allows at most, made stricter by the last wish of a page."""

    isolation: Literal["required", "preferred", "none"] = "required"
    output_policy: Literal["framed", "static", "trusted"] = "framed"
    network_mode: Literal["disabled", "hosts", "enabled"] = "disabled"
    approval_timeout_seconds: float | None = 120.0
    scratch: Literal["tmpfs", "disk"] = "tmpfs"
    wishes: tuple[WishView, ...] = ()


class EvidenceView(Frozen):
    """One observation: what was tried, from where, and what came of it."""

    check: str
    value: bool | None
    source: Literal["outside", "inside"]
    detail: str
    observed_at: float


class AxisView(Frozen):
    """One isolation axis, or the network: true, false, or null for "could not be observed"."""

    axis: IsolationAxis | Literal["network"]
    value: bool | None
    evidence: tuple[EvidenceView, ...] = ()


class LimitView(Frozen):
    """One limit with the mechanism that holds it; ``observed`` is null when it could not be seen in force.

    ``detail`` says what the mechanism does not cover.
    """

    name: str
    limit: float | None
    mechanism: str
    observed: bool | None
    detail: str = ""


class ToolView(Frozen):
    """A tool as found where the code runs."""

    tool: str
    available: bool
    version: str | None
    detail: str = ""


class NamedText(Frozen):
    """A fact of the mechanism, for people."""

    name: str
    value: str


class SandboxView(Frozen):
    """The live sandbox as it was observed."""

    provider_id: str
    safety_class: SafetyClass
    network: Literal["none", "inherited", "filtered", "unknown"]
    network_hosts: tuple[str, ...] = ()
    axes: tuple[AxisView, ...]
    network_axis: AxisView
    limits: tuple[LimitView, ...] = ()
    toolchains: tuple[ToolView, ...] = ()
    mechanism: tuple[NamedText, ...] = ()
    observed_at: float


class SkippedView(Frozen):
    """A candidate that was not taken."""

    provider_id: str
    index: int
    code: str
    subject: str
    message: str
    remedy: str


class SelectionView(Frozen):
    """Which candidate was taken, and why the others were not."""

    provider_id: str | None
    index: int | None
    isolation: Literal["required", "preferred", "none"]
    preference_fallback: bool
    unsafe: bool
    skipped: tuple[SkippedView, ...] = ()


class InputView(Frozen):
    """A file or folder of the host that a cell was given."""

    name: str
    host_path: str
    mode: Literal["snapshot", "read_only", "read_write"]
    sha256: str | None
    size: int | None
    grant_id: str = Field(default="", description="what a revoke request names to take it back")


class GrantView(Frozen):
    """What holds in this session until it is taken back: an approval, a host, a kind of output."""

    grant_id: str
    gate: Gate
    subject: str
    since: float


class ApprovalView(Frozen):
    """A question that waits for a person. ``remaining`` counts down by the kernel's clock; null waits for ever.

    ``allow_session`` is false where only one execution may be allowed; ``confirm`` is the word that must be typed
    before allowing something grave, empty otherwise.
    """

    request_id: str
    nonce: str = Field(repr=False)
    digest: str
    gate: Gate
    subject: str
    title: str
    what: str
    why: str
    meaning: str
    cell_id: str
    notebook: str
    created_at: float
    remaining: float | None
    allow_session: bool
    confirm: str


class OutputView(Frozen):
    """A declared or found output: collected into the host's store, or refused with the reason."""

    path: str
    state: Literal["collected", "refused"]
    declared: bool
    execution_id: str
    cell_id: str
    size: int | None = None
    sha256: str | None = None
    media: Literal["text", "csv", "image", "other"] = "other"
    reason: str = ""
    message: str = ""


class WithheldView(Frozen):
    """Something a cell wanted to show that was not passed on as it was."""

    execution_id: str
    cell_id: str
    kind: str
    mime: str
    reason: str
    how_to_allow: str


class ExecutionView(Frozen):
    """One execution: a cell in the resident interpreter, or a one-shot program in a sandbox of its own."""

    execution_id: str
    cell_id: str
    bundle_digest: str
    form: Literal["session", "one_shot"]
    language: str
    count: int | None = Field(description="the number in the cell's prompt, where there is one")
    status: ExecutionStatus | Literal["running"]
    started_at: float
    seconds: float
    message: str = ""
    outputs: int = 0
    refused: int = 0
    withheld: int = 0
    quiet: bool = Field(default=False, description="run by a front end for itself, not by a person")
    unsafe: bool = Field(default=False, description="it ran in something that isolates nothing")


class TimelineEntry(Frozen):
    """One line of the timeline: ids and status only."""

    number: int
    at: float
    kind: Literal["resource", "execution", "approval"]
    name: str
    problem: bool
    subject: str = ""
    cell_id: str = ""
    text: str = ""


class PanelSnapshot(Frozen):
    """Everything a panel shows. ``seq`` is the number of the last event that it contains."""

    version: int
    seq: int
    now: float
    session: SessionView
    policy: PolicyView
    sandbox: SandboxView | None
    selection: SelectionView | None
    inputs: tuple[InputView, ...]
    approvals: tuple[ApprovalView, ...]
    grants: tuple[GrantView, ...]
    outputs: tuple[OutputView, ...]
    withheld: tuple[WithheldView, ...]
    executions: tuple[ExecutionView, ...]
    timeline: tuple[TimelineEntry, ...]


class PanelEvent(Frozen):
    """What changed since event ``seq - 1``; null means unchanged.

    ``executions`` are merged by id, ``timeline`` is appended, every other field replaces the snapshot's field.
    ``sandbox`` and ``selection`` come wrapped, because null is a value of theirs.
    """

    version: int
    seq: int
    now: float
    session: SessionView | None = None
    policy: PolicyView | None = None
    sandbox: tuple[SandboxView | None] | None = None
    selection: tuple[SelectionView | None] | None = None
    inputs: tuple[InputView, ...] | None = None
    approvals: tuple[ApprovalView, ...] | None = None
    grants: tuple[GrantView, ...] | None = None
    outputs: tuple[OutputView, ...] | None = None
    withheld: tuple[WithheldView, ...] | None = None
    executions: tuple[ExecutionView, ...] | None = None
    timeline: tuple[TimelineEntry, ...] | None = None


class FilePreview(Frozen):
    """A bounded piece of a file; ``content`` is text, or base64 for an image."""

    path: str
    size: int
    sha256: str
    media: Literal["text", "csv", "image", "other"]
    mime: str
    encoding: Literal["text", "base64"]
    content: str
    truncated: bool


class ExecutionText(Frozen):
    """What one execution printed, result and error included, as plain text; head and tail are kept."""

    execution_id: str
    text: str
    dropped_bytes: int
    running: bool


class DoctorView(Frozen):
    """The doctor's report: a table for people and the same as plain JSON values."""

    text: str
    report: dict[str, Any]


class PanelReply(Frozen):
    """The answer to every request. ``status`` error carries a sentence; ``accepted`` is false when nothing was done."""

    version: int
    action: str
    status: Literal["ok", "error"]
    code: str = ""
    message: str = ""
    accepted: bool = True
    lease_seconds: float | None = None
    snapshot: PanelSnapshot | None = None
    preview: FilePreview | None = None
    execution: ExecutionText | None = None
    doctor: DoctorView | None = None
