"""Tables for people: one value, shown as text in a console and as HTML in a notebook.

Whatever stands in a cell may have come out of a sandbox: text is escaped for HTML, and control and direction-changing
characters are replaced.
"""

from __future__ import annotations

import html
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.isolation import IsolationAxis, SandboxFacts
from agently_kernel.contract.paths import has_deceptive_characters
from agently_kernel.contract.resource import ProviderSelection, SkipReason
from agently_kernel.contract.result import TraceStep
from agently_kernel.contract.words import counted
from agently_kernel.contract.workspace import CollectedOutput, RefusedOutput

MAX_CELL = 300
MARKS: Mapping[bool | None, str] = {True: "✓", False: "✗", None: "?"}
_WORDS: Mapping[bool | None, str] = {True: "holds", False: "does not hold", None: "could not be observed"}
_COLOURS = {"✓": "#2e7d32", "✗": "#c62828", "?": "#9a6700"}
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;white-space:pre-wrap"


def clean(text: object) -> str:
    """Return *text* as it may stand in a cell: one line of at most 300 characters, nothing that deceives a reader."""
    line = " ".join(str(text).split())
    if has_deceptive_characters(line):
        line = "".join("�" if has_deceptive_characters(ch) else ch for ch in line)
    return line if len(line) <= MAX_CELL else line[: MAX_CELL - 1] + "…"


def width(text: str) -> int:
    """Return how many columns of a terminal *text* takes."""
    return sum(
        0 if unicodedata.combining(ch) else 2 if unicodedata.east_asian_width(ch) in "WF" else 1 for ch in text
    )


@dataclass(frozen=True, slots=True)
class Table:
    """A title, headings, rows of plain values, and ``note``, a line below; without rows title and note alone."""

    title: str
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    note: str = ""

    def plain(self) -> str:
        """Return the table as text, its columns aligned."""
        lines = [clean(self.title)]
        if self.rows:
            cells = [tuple(map(clean, row)) for row in (self.heads, *self.rows)]
            widths = [max(width(row[column]) for row in cells) for column in range(len(self.heads))]
            for row in cells if any(self.heads) else cells[1:]:
                padded = (text + " " * (most - width(text)) for text, most in zip(row, widths, strict=True))
                lines.append(("  " + "  ".join(padded)).rstrip())
        return "\n".join([*lines, *([clean(self.note)] if self.note else [])])

    def html(self) -> str:
        """Return the table as an HTML fragment without scripts."""
        parts = [f'<div style="font-weight:600;margin-top:6px">{_escape(self.title)}</div>']
        if self.rows:
            head = "".join(f'<th style="{_CELL}">{_escape(text)}</th>' for text in self.heads)
            body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in self.rows)
            parts.append(
                '<table style="border-collapse:collapse;font-size:90%">'
                + (f"<thead><tr>{head}</tr></thead>" if any(self.heads) else "")
                + f"<tbody>{body}</tbody></table>"
            )
        if self.note:
            parts.append(f'<div style="opacity:.8">{_escape(self.note)}</div>')
        return "".join(parts)


def _escape(text: object) -> str:
    return html.escape(clean(text))


def _html_cell(text: str) -> str:
    colour = _COLOURS.get(text[:1])
    style = f"{_CELL};color:{colour}" if colour else _CELL
    return f'<td style="{style}">{_escape(text)}</td>'


@dataclass(frozen=True, slots=True)
class Report:
    """Tables that belong together, in both forms; ``text`` (our own words, several lines) stands for all of them."""

    tables: tuple[Table, ...] = ()
    text: str = ""

    def plain(self) -> str:
        """Return all tables as text."""
        return self.text or "\n\n".join(table.plain() for table in self.tables)

    def html(self) -> str:
        """Return all tables as one HTML fragment."""
        if self.text:
            return f"<pre>{html.escape(self.text)}</pre>"
        return f'<div class="agently-report">{"".join(table.html() for table in self.tables)}</div>'

    def bundle(self) -> dict[str, str]:
        """Return the MIME bundle of both forms."""
        return {"text/plain": self.plain(), "text/html": self.html()}

    def widget(self) -> Any:
        """Return the tables as an ipywidgets ``Tab``, one page a table, for front ends that show widgets.

        What is shown without being asked stays HTML and text: a widget in a saved notebook is an error message.
        """
        import ipywidgets

        tables = self.tables or (Table(self.text),)
        pages = [ipywidgets.HTML(table.html()) for table in tables]
        return ipywidgets.Tab(pages, titles=[clean(table.title).partition(":")[0] for table in tables])

    def __repr__(self) -> str:
        return self.plain()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.bundle()


def facts_report(
    facts: SandboxFacts | None, selection: ProviderSelection | None = None, *, about: str = "this session's sandbox",
    every: bool = False,
) -> Report:
    """Return what was observed of a sandbox: provider, axes with evidence, network, limits, and who was skipped.

    Each axis names four of its observations; with *every* all of them follow, one a line.
    """
    if facts is None:
        tables = [Table("Facts: no sandbox is open", note="Run a cell; it opens one.")]
        return Report((*tables, *_skipped(selection.skipped if selection else ())))
    safety = facts.safety_class.value
    head = [("provider", f"{facts.provider_id} ({safety})"), ("observed", when(facts.observed_at))]
    if selection is not None:
        head.append(("isolation asked for", selection.isolation))
        if selection.unsafe:
            head.append(("✗ unsafe", "this provider does not isolate; it was allowed explicitly"))
        if selection.preference_fallback:
            head.append(("✗ fallback", "the preferred isolation could not be had; a weaker provider was taken"))
    head += [(key, str(value)) for key, value in facts.mechanism.items() if isinstance(value, str | int | float)]
    tables = [Table(f"Facts of {about}", ("", ""), tuple(head)), _axes(facts), _limits(facts)]
    tools = [(name, fact.version or "present") for name, fact in facts.toolchains.items() if fact.available]
    if tools:
        tables.append(Table("Tools observed inside", ("tool", "version"), tuple(tools)))
    skipped = _skipped(selection.skipped if selection else ())
    if every:
        seen = tuple((MARKS[e.value], e.subject, e.check, e.source, e.detail) for e in facts.isolation.evidence)
        skipped = (*skipped, Table("Every observation", ("", "subject", "check", "from", "detail"), seen))
    return Report((*tables, *skipped))


def _axes(facts: SandboxFacts) -> Table:
    values = [(axis.value, facts.isolation.axis(axis)) for axis in IsolationAxis]
    values.append(("network", facts.isolation.network_blocked))
    rows = []
    for subject, value in values:
        evidence = [item for item in facts.isolation.evidence if item.subject == subject]
        label = subject
        if subject == "network":
            label = f"network ({facts.network_shown}): {'all else blocked' if facts.network_hosts else 'blocked'}"
        seen = _evidence([(item.check, item.source, item.value) for item in evidence])
        rows.append((f"{MARKS[value]} {_WORDS[value]}", label, seen))
    return Table("Isolation, as observed on this very sandbox", ("", "axis", "evidence"), tuple(rows))


def _evidence(items: Sequence[tuple[str, str, bool | None]]) -> str:
    """Return the checks, those that did not hold first, and how many are not named."""
    if not items:
        return "none"
    ordered = sorted(items, key=lambda item: item[2] is True)
    named = [f"{check} ({source}{'' if value else ', ' + _WORDS[value]})" for check, source, value in ordered[:4]]
    more = len(ordered) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def _limits(facts: SandboxFacts) -> Table:
    rows = []
    for limit in facts.limits:
        if limit.limit is None:
            rows.append((limit.name, "no limit", "", ""))
            continue
        value = amount(limit.limit, limit.name)
        if limit.mechanism == "none":
            rows.append((limit.name, "✗ not limited", limit.detail or f"nothing here can hold {value}", ""))
            continue
        seen = {True: "✓ in force", False: "✗ not in force", None: "? not observed"}[limit.observed]
        held_by = f"{limit.mechanism}: {limit.detail}" if limit.detail else limit.mechanism
        rows.append((limit.name, value, held_by, seen))
    note = "" if rows else "no limit is in force"
    return Table("Limits", ("limit", "value", "held by", "observed"), tuple(rows), note)


def _skipped(skipped: Iterable[SkipReason]) -> tuple[Table, ...]:
    rows = tuple((item.provider_id, item.code, item.message, item.remedy) for item in skipped)
    heads = ("provider", "reason", "what was seen", "remedy")
    return (Table("Providers that were skipped", heads, rows),) if rows else ()


def amount(value: float, name: str = "bytes") -> str:
    """Return a number with its unit: bytes as KiB, MiB, GiB where *name* says that it counts bytes."""
    if name not in ("memory", "file_size", "bytes") and not name.endswith("_bytes"):
        return f"{value:,.0f}" if value == int(value) else f"{value:g}"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return counted(round(value), "byte")


def when(seconds: float) -> str:
    """Return a moment, in seconds since the epoch, as the user's clock shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def outputs_table(
    outputs: Iterable[CollectedOutput], refused: Iterable[RefusedOutput] = (), *, title: str = "Outputs", note: str = ""
) -> Table:
    """Return collected outputs with size and digest, and the refused ones with the reason."""
    rows = [("✓ " + item.path, amount(item.size), item.sha256[:19] + "…", item.stored_path) for item in outputs]
    rows += [("✗ " + item.path, item.reason, "", item.message) for item in refused]
    return Table(title, ("file", "size", "digest", "kept at"), tuple(rows), note or ("" if rows else "no files"))


def trace_table(trace: Iterable[TraceStep]) -> Table:
    """Return the steps of an execution with their times."""
    rows = tuple((step.step, f"{step.seconds * 1000:,.1f} ms", step.outcome, step.detail) for step in trace)
    return Table("Steps", ("step", "time", "outcome", "detail"), rows)


def events_table(events: Iterable[ExecutionResourceEvent], last: int = 50) -> Table:
    """Return the newest events of a manager, oldest first."""
    kept = tuple(events)[-last:]
    rows = tuple(
        (
            time.strftime("%H:%M:%S", time.localtime(event.timestamp)),
            event.event_type.removeprefix("execution_resource."),
            event.provider_id,
            event.phase or event.status,
            event.error_code,
        )
        for event in kept
    )
    return Table("Events", ("time", "event", "provider", "phase or status", "error"), rows, "" if rows else "none yet")
