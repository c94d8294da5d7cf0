"""CSS of a guest: inline declarations and style sheets, reduced to what cannot leave its place or reach the network.

The grammar is narrow on purpose: what it does not know is dropped, never repaired. Escapes, at-rules other than
simple ``@media``, nesting, functions other than colours, gradients and arithmetic, and every property that moves a
box out of the flow are unknown to it.
"""

from __future__ import annotations

import re

_PROPERTY_NAMES = """
    background background-color background-image background-size background-position background-repeat background-clip
    border border-collapse border-color border-radius border-spacing border-style border-width box-shadow box-sizing
    caption-side clear color column-gap columns direction display empty-cells fill fill-opacity fill-rule flex
    flex-basis flex-direction flex-flow flex-grow flex-shrink flex-wrap float font font-family font-size font-style
    font-variant font-weight font-feature-settings font-variant-numeric gap grid-area grid-auto-columns grid-auto-flow
    grid-auto-rows grid-column grid-column-end grid-column-start grid-gap grid-row grid-row-end grid-row-start
    grid-template-areas grid-template-columns grid-template-rows height justify-content justify-items justify-self
    align-content align-items align-self letter-spacing line-height list-style-type margin margin-bottom margin-left
    margin-right margin-top max-height max-width min-height min-width opacity order outline overflow overflow-wrap
    overflow-x overflow-y padding padding-bottom padding-left padding-right padding-top row-gap stop-color
    stop-opacity stroke stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit
    stroke-opacity stroke-width table-layout text-align text-anchor text-decoration text-indent text-overflow
    text-shadow text-transform user-select unicode-bidi vertical-align visibility white-space width word-break
    word-spacing word-wrap writing-mode dominant-baseline alignment-baseline shape-rendering text-rendering
    image-rendering paint-order cursor content list-style accent-color text-decoration-color text-decoration-line
    text-decoration-style tab-size hyphens object-fit aspect-ratio z-index color-scheme counter-increment
    counter-reset quotes transition mix-blend-mode border-inline-start
"""
_PROPERTIES = frozenset(
    _PROPERTY_NAMES.split()
    + [f"border-{s}{p}" for s in ("top", "right", "bottom", "left") for p in ("", "-color", "-style", "-width")]
    + [f"border-{v}-{h}-radius" for v in ("top", "bottom") for h in ("left", "right")]
)
_FUNCTION_NAMES = """
    rgb rgba hsl hsla linear-gradient radial-gradient conic-gradient repeating-linear-gradient calc min max clamp
    minmax repeat fit-content var
"""
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_VALUE = re.compile(r"[\w\s#%.,()+*/'\"\u00a0-\U0010ffff-]*(?:!\s*important)?\s*\Z")
_FUNCTION = re.compile(r"([A-Za-z_-][\w-]*)?\(")
_NEGATIVE = re.compile(r"(?:^|[\s(*/+,])-\s*[\d.(a-z]|\d\s*-\s*[\d.(]|\)\s*-", re.IGNORECASE)
_VARIABLE = re.compile(r"--(?!jp-|lm-|agently-)[\w-]{1,100}\Z")
_POSITIONS = frozenset({"static", "relative"})


def _without_comments(text: str) -> str:
    """Return *text* without comments, in one pass; an unclosed comment ends the text, as in browsers."""
    if "/*" not in text:
        return text
    kept, at = [], 0
    while (start := text.find("/*", at)) >= 0:
        kept.append(text[at:start])
        end = text.find("*/", start + 2)
        if end < 0:
            return " ".join(kept)
        at = end + 2
    return " ".join([*kept, text[at:]])


def _balanced_quotes(text: str) -> bool:
    double, single = text.count('"'), text.count("'")
    return not (double and single) and double % 2 == 0 and single % 2 == 0


def clean_value(value: str) -> str | None:
    """Return a CSS value, or None when it is not words, numbers, strings, colours, gradients or arithmetic."""
    value = value.strip()
    if not value or len(value) > 2000 or not _VALUE.match(value) or value.count("(") != value.count(")"):
        return None
    if not _balanced_quotes(value) or any(
        (name or "calc").lower() not in _FUNCTIONS for name in _FUNCTION.findall(value)
    ):
        return None
    return value


def clean_declarations(text: str) -> tuple[str, bool]:
    """Return the safe declarations of a ``style`` attribute or rule body, and whether any was dropped."""
    kept, dropped = [], False
    for part in _without_comments(text).split(";"):
        name, colon, value = part.partition(":")
        name = name.strip().lower()
        if not name and not colon:
            continue
        if (safe := _clean_property(name, value)) is None:
            dropped = True
        else:
            kept.append(f"{name}: {safe}")
    return "; ".join(kept), dropped


def _clean_property(name: str, value: str) -> str | None:
    if name == "position":
        return value.strip().lower() if value.strip().lower() in _POSITIONS else None
    if name not in _PROPERTIES and not _VARIABLE.match(name):
        return None
    safe = clean_value(value)
    # Negative margins and indents would move content out of its place.
    if safe and name.startswith(("margin", "text-indent")) and ("var(" in safe or _NEGATIVE.search(safe)):
        return None
    return safe


_SELECTOR = re.compile(r"[\w\s.#:>+~*,()='\"^$|\[\]-]+\Z")
_PSEUDO = re.compile(r"::?([A-Za-z-]+)")
_PSEUDO_NAMES = """
    first-child last-child only-child nth-child nth-last-child nth-of-type nth-last-of-type first-of-type last-of-type
    only-of-type hover focus focus-visible focus-within active visited link checked disabled enabled empty not is
    where before after first-line first-letter marker placeholder
"""
_PSEUDO_OK = frozenset(_PSEUDO_NAMES.split())
_IDENT = re.compile(r"#(?=[\w-])")
_MEDIA = re.compile(r"@media\s*([\w\s():.,-]{1,200})\Z")
_BRACE = re.compile(r"[{}]")


def clean_stylesheet(text: str, scope: str, id_prefix: str) -> tuple[str, bool]:
    """Return a style sheet that can only match below the element with id *scope*, and whether anything was dropped.

    Ids in selectors get *id_prefix*, as ids in the markup do. The result holds no ``<`` and no backslash.
    """
    text = _without_comments(text).replace("<!--", " ").replace("-->", " ")
    out: list[str] = []
    dropped, media, selector, skipping, end = False, False, "", 0, 0
    for match in _BRACE.finditer(text):
        before, brace, end = text[end : match.start()], match[0], match.end()
        if skipping:
            skipping += 1 if brace == "{" else -1
            continue
        if brace == "{":
            *statements, head = before.split(";") if "@" in before else [before]
            dropped = dropped or any(s.strip() for s in statements)
            head = head.strip()
            if selector:  # nesting
                dropped, skipping, selector = True, 2, ""
            elif head.startswith("@"):
                if not media and (query := _MEDIA.match(head)):
                    media = True
                    out.append(f"@media {query[1].strip()} {{")
                else:
                    dropped, skipping = True, 1
            else:
                selector = _scoped(head, scope, id_prefix)
                if not selector:
                    dropped, skipping = True, 1
        elif selector:
            body, lost = clean_declarations(before)
            dropped = dropped or lost
            if body:
                out.append(f"{selector} {{{body}}}")
            selector = ""
        elif media:
            media = False
            out.append("}")
    if media:
        out.append("}")
    return "\n".join(out), dropped or bool(text[end:].strip()) or bool(selector)


def _scoped(selectors: str, scope: str, id_prefix: str) -> str:
    """Return a selector list with every member below *scope*, or "" when a part of it is unknown."""
    if not selectors or not _SELECTOR.match(selectors):
        return ""
    if any(name.lower() not in _PSEUDO_OK for name in _PSEUDO.findall(selectors)):
        return ""
    if any(selectors.count(o) != selectors.count(c) for o, c in ("()", "[]")) or not _balanced_quotes(selectors):
        return ""
    members = _split(selectors)
    if any(not m or m[0] in ">+~" for m in members):
        return ""
    return ", ".join(f"#{scope} {_prefixed(m, id_prefix)}" for m in members)


def _prefixed(selector: str, id_prefix: str) -> str:
    return (
        _IDENT.sub("#" + id_prefix, selector).replace("#" + id_prefix * 2, "#" + id_prefix) if id_prefix else selector
    )


def _split(selectors: str) -> list[str]:
    """Split a selector list at its outer commas."""
    if "(" not in selectors and "[" not in selectors:
        return [m.strip() for m in selectors.split(",")]
    members, depth, start = [], 0, 0
    for at, char in enumerate(selectors):
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            members.append(selectors[start:at].strip())
            start = at + 1
    return [*members, selectors[start:].strip()]
