"""The vocabulary of the output filter: policy, limits, what was withheld, and the table of MIME types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from agently_kernel.contract.outputs import CommOutput

_KIND = re.compile(r"[\w@/.:+-]{1,120}\Z", re.ASCII)


class OutputPolicy(str, Enum):
    """How active output of a guest is shown.

    ``framed``: in a sandboxed frame of its own opaque origin. ``static``: cleaned, nothing runs. ``trusted``: HTML,
    SVG, Markdown and scripts pass as they are and run with the user's rights; an explicit choice of the user.
    """

    FRAMED = "framed"
    STATIC = "static"
    TRUSTED = "trusted"


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Caps of what one guest may show. Sizes are characters of text (close to bytes for the formats concerned)."""

    bundle_chars: int = 64 * 1024**2
    bundle_kinds: int = 64
    announced_kinds: int = 64
    cell_chars: int = 512 * 1024**2
    cell_outputs: int = 2000
    error_chars: int = 2 * 1024**2
    prompt_chars: int = 4096
    comms: int = 4096
    buffer_bytes: int = 32 * 1024**2


@dataclass(frozen=True, slots=True)
class Withheld:
    """Something a guest wanted to show and that was not shown.

    ``kind`` is what an approval covers (``javascript``, ``widget:anywidget``, ``mime:application/pdf``, …) and the
    subject of the ``active_output`` gate; it is empty when nothing can allow it. ``reason`` and ``how_to_allow`` are
    sentences.
    """

    kind: str
    mime: str
    reason: str
    how_to_allow: str = ""

    @property
    def line(self) -> str:
        """The one line a user reads: what was withheld, why, and how to allow it."""
        return f"[withheld] {self.reason}{' ' + self.how_to_allow if self.how_to_allow else ''}"


KINDS = ("javascript", "chart", "set_next_input")
"""Kinds of output that have a name of their own; the others are a family and what of it, such as ``mime:x/y``."""
FAMILIES = ("mime", "widget", "comm")


def is_kind(kind: str) -> bool:
    """True when something that is withheld can be called *kind*."""
    family, colon, rest = kind.partition(":")
    if not _KIND.match(kind):
        return False
    return kind in KINDS or (bool(colon and rest) and family in FAMILIES and (family != "mime" or "/" in rest))


def how_to_allow(kind: str) -> str:
    """Return the sentence that tells a user how to allow *kind*."""
    return f"To allow it in this session: %agently allow {kind}"


def withheld(kind: str, mime: str, reason: str) -> Withheld:
    """Return a Withheld that an approval of *kind* would lift; a kind that cannot be typed can never be allowed."""
    if not _KIND.match(kind):
        return Withheld("", mime, reason)
    return Withheld(kind, mime, reason, how_to_allow(kind))


@dataclass(frozen=True, slots=True)
class FilteredBundle:
    """A MIME bundle that may be shown. ``data`` is empty when nothing of it may be shown (too many outputs).

    ``notice`` is at most one line to print after the output; empty when ``data`` already says it or it was said
    before in this cell.
    """

    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    withheld: tuple[Withheld, ...] = ()
    notice: str = ""


@dataclass(frozen=True, slots=True)
class FilteredComm:
    """What of a guest's comm message may go to the front end: at most one message, and what was withheld."""

    message: CommOutput | None
    withheld: tuple[Withheld, ...] = ()
    notice: str = ""


@dataclass(frozen=True, slots=True)
class FilteredPayloads:
    """Payloads of an execute_reply that may be sent, and what was withheld."""

    payloads: list[dict[str, Any]]
    withheld: tuple[Withheld, ...] = ()
    notice: str = ""


@dataclass(frozen=True, slots=True)
class FilteredError:
    """The three fields of an error, cleaned of terminal control sequences and bounded."""

    ename: str
    evalue: str
    traceback: list[str]


class Treatment(str, Enum):
    """What happens to one MIME type; each name is a function of :mod:`agently_kernel.outputs.bundle`."""

    TEXT = "text"
    HTML = "html"
    SVG = "svg"
    MARKDOWN = "markdown"
    LATEX = "latex"
    IMAGE = "image"
    JSON = "json"
    GEOJSON = "geojson"
    VEGA = "vega"
    PLOTLY = "plotly"
    WIDGET = "widget"
    SCRIPT = "script"


MIME_TABLE: Mapping[str, Treatment] = {
    "text/plain": Treatment.TEXT,
    "text/html": Treatment.HTML,
    "image/svg+xml": Treatment.SVG,
    "text/markdown": Treatment.MARKDOWN,
    "text/latex": Treatment.LATEX,
    "image/png": Treatment.IMAGE,
    "image/jpeg": Treatment.IMAGE,
    "image/gif": Treatment.IMAGE,
    "image/webp": Treatment.IMAGE,
    "application/json": Treatment.JSON,
    "application/geo+json": Treatment.GEOJSON,
    "application/vnd.plotly.v1+json": Treatment.PLOTLY,
    **{f"application/vnd.vega.v{n}+json": Treatment.VEGA for n in range(2, 7)},
    **{f"application/vnd.vegalite.v{n}+json": Treatment.VEGA for n in range(1, 7)},
    "application/vnd.jupyter.widget-view+json": Treatment.WIDGET,
    "application/javascript": Treatment.SCRIPT,
    "application/x-javascript": Treatment.SCRIPT,
    "application/ecmascript": Treatment.SCRIPT,
    "text/javascript": Treatment.SCRIPT,
    "text/ecmascript": Treatment.SCRIPT,
}
"""Every MIME type that can be shown without approval, and the treatment it gets. Any other type is withheld."""

METADATA_KEYS = frozenset({"width", "height", "needs_background", "unconfined"})
"""What is kept of metadata: of the bundle and of each MIME type in it. The front end reads sizes from these."""
