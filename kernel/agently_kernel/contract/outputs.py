"""Events that stream from a running guest to whoever listens, before any trust filter.

They are untrusted: every field came out of a sandbox and was only checked for shape and size. Plain frozen dataclasses,
because a busy cell makes many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class StreamOutput:
    """Text of stdout or stderr (already decoded, damaged bytes replaced)."""

    cell: str
    name: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True)
class DisplayOutput:
    """A MIME bundle. ``kind`` is display_data, update_display_data or execute_result."""

    cell: str
    kind: Literal["display_data", "update_display_data", "execute_result"]
    data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClearOutput:
    """The guest asks to clear the cell's output, at once or when the next output arrives (``wait``)."""

    cell: str
    wait: bool


@dataclass(frozen=True, slots=True)
class ErrorOutput:
    """An exception that ended the cell."""

    cell: str
    ename: str
    evalue: str
    traceback: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommOutput:
    """A comm message of the guest: comm_open, comm_msg or comm_close, with binary buffers."""

    cell: str
    kind: Literal["comm_open", "comm_msg", "comm_close"]
    comm_id: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    target_name: str = ""
    buffers: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class NoticeOutput:
    """Something that our own host side has to say about the execution (a death, a truncation): trusted text."""

    cell: str
    text: str


OutputEvent: TypeAlias = StreamOutput | DisplayOutput | ClearOutput | ErrorOutput | CommOutput | NoticeOutput
OutputSink: TypeAlias = Callable[[OutputEvent], None]
"""Called on the event loop's thread, in order; must not block and must not raise."""
