"""From the contract's objects to what travels to a panel: bounded, with nothing in it that could deceive a reader."""

from __future__ import annotations

from typing import Literal

from agently_kernel.contract.isolation import Evidence, IsolationAxis, SandboxFacts
from agently_kernel.contract.resource import ProviderSelection
from agently_kernel.contract.words import in_words
from agently_kernel.contract.workspace import CollectedOutput
from agently_kernel.panel_schema import (
    MAX_TEXT,
    AxisView,
    EvidenceView,
    LimitView,
    NamedText,
    OutputView,
    SandboxView,
    SelectionView,
    SkippedView,
    ToolView,
)

MAX_EVIDENCE = 24
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_TEXTS = (".txt", ".md", ".log", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".py", ".xml", ".html", ".svg")


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Return *text* cut to *limit* characters, with everything unprintable (control, zero-width, direction-changing
    characters) written as escapes; line feeds and tabs stay."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    if cut.isprintable():
        return cut
    return "".join(
        ch if ch.isprintable() or ch in "\n\t" else ch.encode("unicode_escape", "surrogatepass").decode() for ch in cut
    )


def media_of(path: str) -> Literal["text", "csv", "image", "other"]:
    """Return how a file may be previewed, by its name alone; the content is checked again when it is read."""
    name = path.lower()
    if name.endswith((".csv", ".tsv")):
        return "csv"
    if name.endswith(_IMAGES):
        return "image"
    return "text" if name.endswith(_TEXTS) else "other"


def output_view(output: CollectedOutput, execution_id: str, cell_id: str) -> OutputView:
    return OutputView(
        path=output.path, state="collected", declared=output.declared, execution_id=execution_id, cell_id=cell_id,
        size=output.size, sha256=output.sha256, media=media_of(output.path),
    )


def _axis_view(
    axis: IsolationAxis | Literal["network"], value: bool | None, evidence: tuple[Evidence, ...]
) -> AxisView:
    subject = axis.value if isinstance(axis, IsolationAxis) else axis
    mine = [item for item in evidence if item.subject == subject]
    mine.sort(key=lambda item: {False: 0, None: 1, True: 2}[item.value])
    return AxisView(axis=axis, value=value, evidence=tuple(
        EvidenceView(
            check=clean(item.check, 200), value=item.value, source=item.source, detail=clean(item.detail, 300),
            observed_at=item.observed_at,
        )
        for item in mine[:MAX_EVIDENCE]
    ))


def sandbox_view(facts: SandboxFacts) -> SandboxView:
    """Return the bounded view of a sandbox's facts."""
    isolation = facts.isolation
    return SandboxView(
        provider_id=facts.provider_id, safety_class=facts.safety_class, network=facts.network,
        network_hosts=facts.network_hosts,
        axes=tuple(_axis_view(axis, isolation.axis(axis), isolation.evidence) for axis in IsolationAxis),
        network_axis=_axis_view("network", isolation.network_blocked, isolation.evidence),
        limits=tuple(
            LimitView(
                name=f.name, limit=f.limit, mechanism=f.mechanism, observed=f.observed, detail=clean(f.detail, 300)
            )
            for f in facts.limits[:32]
        ),
        toolchains=tuple(
            ToolView(tool=t.tool, available=t.available, version=t.version, detail=clean(t.detail, 300))
            for t in list(facts.toolchains.values())[:64]
        ),
        mechanism=tuple(
            NamedText(name=clean(str(k), 80), value=clean(in_words(v), 300))
            for k, v in list(facts.mechanism.items())[:64]
        ),
        observed_at=facts.observed_at,
    )


def selection_view(selection: ProviderSelection) -> SelectionView:
    """Return the bounded view of a selection."""
    return SelectionView(
        provider_id=selection.provider_id, index=selection.index, isolation=selection.isolation,
        preference_fallback=selection.preference_fallback, unsafe=selection.unsafe,
        skipped=tuple(
            SkippedView(
                provider_id=s.provider_id, index=s.index, code=s.code, subject=clean(s.subject, 200),
                message=clean(s.message), remedy=clean(s.remedy),
            )
            for s in selection.skipped[:64]
        ),
    )


