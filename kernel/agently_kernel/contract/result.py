"""What an execution came to: status, streams kept, outputs, facts, trace, and the cause of a death."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal

from pydantic import Field

from agently_kernel.contract.base import Frozen, JSONValue
from agently_kernel.contract.isolation import SandboxFacts
from agently_kernel.contract.resource import ProviderSelection
from agently_kernel.contract.workspace import CollectedOutput, RefusedOutput


class ExecutionStatus(str, Enum):
    """Kept apart to the end, never folded into a plain "error"."""

    SUCCESS = "success"
    ERROR = "error"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    DIED = "died"
    BLOCKED = "blocked"


class DeathCause(Frozen):
    """Why an interpreter or sandbox ended, as far as the host could observe it.

    ``what`` says which of the two ended: after ``interpreter`` the sandbox and its files live on, after ``sandbox``
    only collected outputs do. ``signal`` is a name such as SIGSEGV. ``limit`` names the limit that was reached.
    ``advice`` is a sentence on what else to do than to run the code again, empty where there is none.
    """

    what: Literal["interpreter", "sandbox"]
    kind: Literal["exit", "signal", "memory_limit", "process_limit", "cpu_limit", "time_limit", "stopped_by_user",
                  "protocol", "watchdog", "provider_lost", "unknown"]
    exit_code: int | None = None
    signal: str | None = None
    limit: str | None = None
    message: str
    advice: str = ""


class TraceStep(Frozen):
    """One step of the fixed call order: name, start (seconds since the epoch), duration in seconds, outcome."""

    step: Literal["issue_grant", "prepare", "ensure", "materialize", "execute", "collect", "release", "close_grant"]
    started_at: float
    seconds: float
    outcome: Literal["ok", "error", "cancelled", "skipped"]
    detail: str = ""


class CapturedStream(Frozen):
    """Bounded text of one stream: head and tail are kept; ``dropped_bytes`` counts what lies between them."""

    text: str = ""
    total_bytes: int = 0
    dropped_bytes: int = 0

    @property
    def truncated(self) -> bool:
        """True when something between head and tail was dropped."""
        return self.dropped_bytes > 0


class StepResult(Frozen):
    """One argv of a one-shot plan: exit code or signal name, seconds."""

    role: Literal["build", "run"]
    argv: tuple[str, ...]
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    seconds: float = 0.0


class CodeExecutionResult(Frozen):
    """The result of ``async_execute_code`` and, completed with outputs, selection and trace, of CodeExecution."""

    status: ExecutionStatus
    bundle_id: str
    bundle_digest: str
    execution_id: str = ""
    returncode: int | None = None
    error: Mapping[str, JSONValue] | None = Field(default=None, description="ename, evalue, traceback of the guest")
    message: str = Field(default="", description="one sentence of ours when status is not success")
    death: DeathCause | None = None
    reply: Mapping[str, JSONValue] = Field(
        default_factory=dict, description="session form: execution_count, user_expressions, payload; untrusted"
    )
    stdout: CapturedStream = CapturedStream()
    stderr: CapturedStream = CapturedStream()
    steps: tuple[StepResult, ...] = ()
    outputs: tuple[CollectedOutput, ...] = ()
    refused_outputs: tuple[RefusedOutput, ...] = ()
    facts: SandboxFacts | None = None
    selection: ProviderSelection | None = None
    trace: tuple[TraceStep, ...] = ()
    started_at: float = 0.0
    seconds: float = 0.0
