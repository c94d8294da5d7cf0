"""One function for each treatment of the MIME table."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from agently_kernel.outputs import frames, markup, specs, svg, text
from agently_kernel.outputs.policy import MIME_TABLE, OutputPolicy, Treatment, Withheld, withheld
from agently_kernel.outputs.shape import is_too_large

_HEADERS: dict[str, tuple[bytes, ...]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


def image_header_ok(mime: str, head: bytes) -> bool:
    """True when *head*, the first 16 or more bytes of a file, is the signature of the bitmap type *mime*."""
    return head.startswith(_HEADERS[mime]) and (mime != "image/webp" or head[8:12] == b"WEBP")


class _Bundle:
    """A bundle on its way through the table: what came, what is shown, what was withheld."""

    __slots__ = ("data", "framing", "lost", "shown")

    def __init__(self, data: Mapping[str, Any], framing: bool) -> None:
        self.data = data
        self.framing = framing
        self.shown: dict[str, Any] = {}
        self.lost: list[Withheld] = []


class BundleFilter:
    """Filters MIME bundles by the table. ``granted`` is the set of kinds that were approved; shared with its owner."""

    def __init__(
        self,
        policy: OutputPolicy,
        network_allowed: bool,
        granted: set[str],
        widget_ok: Callable[[str], bool],
        most_chars: int,
    ) -> None:
        self.policy = policy
        self.network_allowed = network_allowed
        self.granted = granted
        self._widget_ok = widget_ok
        self._most_chars = most_chars
        self._cleaner = markup.HtmlCleaner()
        self._treatments: dict[Treatment, Callable[[_Bundle, str, Any], None]] = {
            Treatment.TEXT: self._text,
            Treatment.HTML: self._html,
            Treatment.SVG: self._svg,
            Treatment.MARKDOWN: self._markdown,
            Treatment.LATEX: self._latex,
            Treatment.IMAGE: self._image,
            Treatment.JSON: self._json,
            Treatment.GEOJSON: self._geojson,
            Treatment.VEGA: self._vega,
            Treatment.PLOTLY: self._plotly,
            Treatment.WIDGET: self._widget,
            Treatment.SCRIPT: self._script,
        }

    def filter(self, data: Mapping[str, Any], *, framing: bool = True) -> tuple[dict[str, Any], list[Withheld]]:
        """Return the forms of *data* that may be shown, and what was withheld. *framing* False: clean instead."""
        bundle = _Bundle(data, framing and self.policy is OutputPolicy.FRAMED)
        for mime, value in data.items():
            treatment = MIME_TABLE.get(mime)
            if treatment is None:
                self._unknown(bundle, mime, value)
            elif self.policy is OutputPolicy.TRUSTED and treatment is not Treatment.TEXT:
                bundle.shown[mime] = value
            else:
                self._treatments[treatment](bundle, mime, value)
        return bundle.shown, bundle.lost

    def html(self, source: str, *, framing: bool = True) -> tuple[str, bool]:
        """Return HTML that may be shown, and whether remote content was dropped from it."""
        if self.policy is OutputPolicy.TRUSTED:
            return source, False
        framed = framing and self.policy is OutputPolicy.FRAMED
        aside = markup.set_rows_aside(source)
        if framed and (is_too_large(aside[2]) or markup.is_active(aside[2])):
            return self._frame(source), False
        cleaned = self._cleaner.clean(source, network_allowed=self.network_allowed, aside=aside)
        if cleaned is None:
            if framed:
                return self._frame(source), False
            return "<p>[withheld] An HTML output is too large and irregular to be cleaned.</p>", False
        if framed and cleaned.lost_style:
            return self._frame(source), False
        return cleaned.markup, cleaned.remote

    def _frame(self, source: str) -> str:
        """Return *source* in a frame. What does not fit into an output once it is framed is not framed at all."""
        if frames.framed_size(source) > self._most_chars:
            most = self._most_chars // 1024**2
            return f"<p>[withheld] An HTML output is larger than {most} MiB in its frame. Write it below output/.</p>"
        return frames.frame(source, network_allowed=self.network_allowed)

    def _text(self, bundle: _Bundle, mime: str, value: Any) -> None:
        bundle.shown[mime] = text.clean_display(_joined(value))

    def _html(self, bundle: _Bundle, mime: str, value: Any) -> None:
        bundle.shown[mime], remote = self.html(_joined(value), framing=bundle.framing)
        if remote:
            bundle.lost.append(
                Withheld(
                    "", mime, "The output refers to images or media of other hosts, and the sandbox has no network."
                )
            )

    def _svg(self, bundle: _Bundle, mime: str, value: Any) -> None:
        source = _joined(value)
        try:
            bundle.shown[mime] = svg.clean_svg(source)
        except svg.NotSafe as error:
            if "text/html" in bundle.data:
                return
            if bundle.framing:
                bundle.shown["text/html"] = self._frame(source)
                return
            bundle.shown["text/html"] = self.html(source, framing=False)[0]
            bundle.lost.append(Withheld("", mime, f"An SVG drawing is shown without its active parts: {error}."))

    def _markdown(self, bundle: _Bundle, mime: str, value: Any) -> None:
        if (source := self._typeset(bundle, mime, value)) is not None:
            bundle.shown[mime] = text.clean_markdown(source, network_allowed=self.network_allowed)

    def _latex(self, bundle: _Bundle, mime: str, value: Any) -> None:
        if (source := self._typeset(bundle, mime, value)) is not None:
            bundle.shown[mime] = text.clean_latex(source)

    def _typeset(self, bundle: _Bundle, mime: str, value: Any) -> str | None:
        """Return the text of Markdown or LaTeX, or None, noted as withheld, when it is too much to be cleaned."""
        source = _joined(value)
        if not text.too_costly(source):
            return text.clean_text(source)
        most = f"{text.MOST_CLEANED // 1024**2} MiB and {text.MOST_SIGNS:,} tags, links or macros are the most"
        reason = f"A {mime} of {len(source) / 1024**2:.1f} MiB was withheld: {most}. Write it below output/."
        bundle.lost.append(Withheld("", mime, reason))
        return None

    def _image(self, bundle: _Bundle, mime: str, value: Any) -> None:
        encoded = _joined(value).replace("\n", "").replace("\r", "")
        try:
            good = image_header_ok(mime, base64.b64decode(encoded, validate=True)[:16])
        except (binascii.Error, ValueError):
            good = False
        if good:
            bundle.shown[mime] = encoded
        else:
            bundle.lost.append(Withheld("", mime, f"The data given as {mime} are not such an image."))

    def _json(self, bundle: _Bundle, mime: str, value: Any) -> None:
        bundle.shown[mime] = value

    def _geojson(self, bundle: _Bundle, mime: str, value: Any) -> None:
        bundle.shown[mime] = specs.clean_geojson(value)

    def _vega(self, bundle: _Bundle, mime: str, value: Any) -> None:
        if "chart" in self.granted:
            bundle.shown[mime] = value
            return
        try:
            bundle.shown[mime] = specs.clean_vega(value)
        except specs.NeedsApproval as error:
            bundle.lost.append(withheld("chart", mime, f"A chart was withheld: {error}."))

    def _plotly(self, bundle: _Bundle, mime: str, value: Any) -> None:
        bundle.shown[mime] = specs.clean_plotly(value, network_allowed=self.network_allowed)

    def _widget(self, bundle: _Bundle, mime: str, value: Any) -> None:
        model = value.get("model_id") if isinstance(value, dict) else None
        if isinstance(model, str) and self._widget_ok(model):
            bundle.shown[mime] = {"version_major": 2, "version_minor": 0, "model_id": model}
        else:
            bundle.lost.append(Withheld("", mime, "A widget that is not open in this session cannot be shown."))

    def _script(self, bundle: _Bundle, mime: str, value: Any) -> None:
        if "javascript" in self.granted:
            bundle.shown[mime] = _joined(value)
        else:
            bundle.lost.append(withheld("javascript", mime, "JavaScript that wanted to run in the page was withheld."))

    def _unknown(self, bundle: _Bundle, mime: str, value: Any) -> None:
        name = text.one_line(str(mime), 80)
        if self.policy is OutputPolicy.TRUSTED or f"mime:{mime}" in self.granted:
            bundle.shown[mime] = value
        else:
            bundle.lost.append(
                withheld(
                    f"mime:{name}", name, f"Output of type {name} was withheld: its renderer may run code in the page."
                )
            )


def _joined(value: Any) -> str:
    """Return text that a guest gave as one string or as a list of lines; anything else as its JSON-like repr."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return repr(value)
