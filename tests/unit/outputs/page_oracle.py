"""What a page would run: an independent reading of HTML with the standard library's parser."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

_RUNNING = """
    script style iframe frame frameset object embed applet base meta link form button textarea select template
    foreignobject animate set math portal noscript title xmp plaintext
"""
_RUNS = frozenset(_RUNNING.split())
_URLS = frozenset(
    {"href", "src", "xlink:href", "poster", "action", "formaction", "data", "srcset", "background", "cite"}
)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.sheets: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "style":
            self._in_style = True
        elif tag in _RUNS:
            self.faults.append(f"<{tag}>")
        for name, value in attrs:
            text = value or ""
            if name.startswith("on") or name in ("srcdoc", "sandbox", "ping", "target", "srcset"):
                self.faults.append(f"{tag}@{name}")
            if name in _URLS:
                scheme = re.sub(r"[\x00-\x20]", "", text).lower()
                if scheme.startswith("data:") and re.match(r"data:(image|audio|video)/", scheme):
                    continue
                if re.match(r"[a-z][a-z0-9+.-]*:", scheme) and not scheme.startswith(("http:", "https:", "mailto:")):
                    self.faults.append(f"{tag}@{name}={scheme[:30]}")
                if (
                    tag != "a"
                    and scheme
                    and ":" not in scheme
                    and not re.search(r"^#|\.(png|jpe?g|gif|webp|svg)$", scheme)
                ):
                    self.faults.append(f"{tag}@{name}={scheme[:30]}")
                if scheme.startswith(("//", "\\", "/")) or (tag != "a" and scheme.startswith("http")):
                    self.faults.append(f"{tag}@{name}={scheme[:30]}")
            if name == "style" and re.search(
                r"url|expression|fixed|absolute|sticky|@|\\|behaviou?r|-moz-binding", text, re.I
            ):
                self.faults.append(f"style={text[:60]}")
            if name == "id" and not text.startswith(("agently-out-", "agently-scope-")):
                self.faults.append(f"id={text[:30]}")

    def handle_endtag(self, tag: str) -> None:
        if tag == "style":
            self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.sheets.append(data)


def faults(markup: str) -> list[str]:
    """Return everything in *markup* that could run, load or cover something, in the page that shows it."""
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    found = reader.faults
    for sheet in reader.sheets:
        if re.search(r"url\(|@import|expression|fixed|absolute|sticky|\\|<", sheet, re.I):
            found.append(f"sheet={sheet[:80]}")
        for rule in re.findall(r"([^{}]+)\{[^{}]*\}", sheet):
            for selector in re.split(r",(?![^()\[\]]*[)\]])", rule):
                if not selector.strip().startswith(("#agently-scope-", "@media")):
                    found.append(f"selector={selector.strip()[:60]}")
    return found


FRAME = re.compile(r'<iframe sandbox="allow-scripts" [^<>]*srcdoc="([^"<>]*)"></iframe>')


def framed(markup: str) -> tuple[str, str] | None:
    """Return the outer and the inner document of an output that is one frame in a frame, else None.

    What the inner document writes into itself stands in it as the markup that it is.
    """
    match = FRAME.fullmatch(markup)
    if match is None:
        return None
    outer = html.unescape(match[1])
    start = '<!DOCTYPE html><meta http-equiv="Content-Security-Policy" content="'
    inside = re.fullmatch(
        r".*?<iframe sandbox=\"allow-scripts\" referrerpolicy=\"no-referrer\" srcdoc=\"([^\"]*)\"></iframe>",
        outer,
        re.S,
    )
    if not outer.startswith(start) or inside is None:
        return None
    inner = html.unescape(inside[1])
    written = re.fullmatch(r"(.*</script>)<script>document\.write\((\"[^<]*\")\)</script>", inner, re.S)
    if written is not None:
        inner = written[1] + json.loads(written[2])
    return (outer, inner) if inner.startswith(start) else None
