"""The fixed wording of approval questions, composed from validated fields and from nothing that a cell printed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from agently_kernel.contract.approval import ApprovalRequest, Gate
from agently_kernel.contract.paths import has_deceptive_characters

MAX_SUBJECT = 4096
MAX_FACT = 200


@dataclass(frozen=True, slots=True)
class _Wording:
    title: str
    what: str
    meaning: str


WORDING: Mapping[Gate, _Wording] = {
    "ensure": _Wording(
        "Start a sandbox",
        "Your configuration asks before a sandbox is started. Wanted: {subject}.",
        "A sandbox is started and the cell runs in it, with what it was granted and nothing else.",
    ),
    "network": _Wording(
        "Give the sandbox network access",
        "A cell asks for network access to: {subject}.",
        "Code in the sandbox can reach these hosts and no others, and can send them everything that it can read.",
    ),
    "trusted_local": _Wording(
        "Run WITHOUT any isolation",
        "The provider wanted for this isolates nothing. The code would run directly on this machine: {subject}.",
        "The code can do everything that you can do: read and change your files, use your network and credentials.",
    ),
    "image_pull": _Wording(
        "Download a container image",
        "A container image is needed that is not on this machine: {subject}.",
        "The image is downloaded from its registry and kept by the container engine.",
    ),
    "input": _Wording(
        "Let the sandbox read a file",
        "A cell wants to read {subject}.",
        "Code in the sandbox gets to read it. The original cannot be changed from there.",
    ),
    "sensitive_input": _Wording(
        "Let the sandbox read a SENSITIVE place",
        "A cell wants to read {subject}, a place that usually holds keys, passwords or private settings.",
        "Code in the sandbox gets to read everything there and can show it in outputs.",
    ),
    "save_output": _Wording(
        "Save files beside the notebook",
        "What the sandbox produced would be saved here: {subject}.",
        "It is copied into your folder and replaces nothing. Nobody has checked what is in it.",
    ),
    "replace_file": _Wording(
        "REPLACE a file of yours",
        "This exists already and would be overwritten with what the sandbox produced: {subject}.",
        "What is in it now is lost. Nobody has checked what takes its place.",
    ),
    "dependencies": _Wording(
        "Install packages",
        "Packages would be downloaded and installed inside the sandbox: {subject}.",
        "While they are installed the sandbox reaches the package index. The code of these packages runs in it.",
    ),
    "active_output": _Wording(
        "Show active output",
        "An output holds programs that would run in this page: {subject}.",
        "The output's programs run with the rights of the page that shows the notebook.",
    ),
    "set_next_input": _Wording(
        "Put code into a new cell",
        "A cell wants to put text into the next input: {subject}.",
        "The text appears in a new cell. It does not run before you run it.",
    ),
    "limits": _Wording(
        "Raise a limit of the sandbox",
        "A cell asks for more than your configuration gives: {subject}.",
        "The sandbox may use that much of this machine.",
    ),
    "isolation": _Wording(
        "Accept WEAKER isolation",
        "A cell asks for less isolation than your configuration demands: {subject}.",
        "A provider may be taken that keeps the code away from less than you decided it must.",
    ),
}


def build_request(
    gate: Gate,
    subject: str,
    *,
    facts: Mapping[str, str | int] | None = None,
    why: str = "",
    session_id: str = "",
    cell_id: str = "",
    notebook: str = "",
    timeout: float | None = None,
) -> ApprovalRequest:
    """Return the question of *gate* about exactly *subject*.

    *facts* are named details that the host itself observed (size in words, kind, digest); *why* is our own sentence.
    *timeout* is in seconds, None or 0 for a question that waits until it is cancelled. Raises ValueError when the
    subject or a fact is empty, too long to be shown whole, or holds characters that could deceive a reader.
    """
    wording = WORDING.get(gate)
    if wording is None:
        raise ValueError(f"unknown gate {gate!r}; the gates are {', '.join(WORDING)}")
    shown = [wording.what.format(subject=_checked(subject, "subject", MAX_SUBJECT))]
    shown += [f"{name}: {_checked(str(value), name, MAX_FACT)}" for name, value in (facts or {}).items()]
    now = time.time()
    return ApprovalRequest(
        request_id=f"approval-{os.urandom(8).hex()}",
        nonce=os.urandom(16).hex(),
        gate=gate,
        subject=subject,
        title=wording.title,
        what="\n".join(shown),
        why=why and _checked(why, "reason", MAX_SUBJECT),
        meaning=wording.meaning,
        session_id=session_id,
        cell_id=cell_id,
        notebook=notebook,
        created_at=now,
        expires_at=now + timeout if timeout else None,
    )


def _checked(text: str, what: str, most: int) -> str:
    if not text.strip():
        raise ValueError(f"the {what} of an approval request is empty")
    if len(text) > most:
        raise ValueError(
            f"the {what} of an approval request has {len(text)} characters; at most {most} can be shown whole"
        )
    if has_deceptive_characters(text):
        raise ValueError(
            f"the {what} {text[:80]!r} of an approval request holds control or direction-changing characters"
        )
    return text
