"""HTML of a guest: recognise what is active and clean what is not."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agently_kernel.outputs import css, text
from agently_kernel.outputs.shape import SMALL, can_be_parsed

if TYPE_CHECKING:
    import nh3

ID_PREFIX = "agently-out-"
WRAPPER_STYLE = "contain: paint; overflow: auto"

_HTML_NAMES = """
    a abbr article aside audio b bdi bdo blockquote br caption center cite code col colgroup data dd del details dfn
    div dl dt em figcaption figure font footer h1 h2 h3 h4 h5 h6 header hr i img input ins kbd label legend li main
    mark meter nav ol optgroup p pre progress q rp rt ruby s samp section small source span strike strong sub summary
    sup table tbody td tfoot th thead time tr tt u ul var video wbr
"""
_HTML_TAGS = frozenset(_HTML_NAMES.split())
_SVG_NAMES = """
    svg g path rect circle ellipse line polyline polygon text tspan defs linearGradient radialGradient stop clipPath
    symbol use
"""
_SVG_TAGS = frozenset(_SVG_NAMES.split())
_DROPPED_NAMES = """
    script style template noscript iframe object embed title textarea select xmp plaintext noembed noframes math
    foreignObject
"""
_DROP_WITH_CONTENT = frozenset(_DROPPED_NAMES.split())
_COMMON = frozenset({"id", "class", "style", "title", "lang", "dir", "role", "hidden", "data-testid"})
_SIZES = frozenset({"width", "height", "align", "valign", "border", "bgcolor", "color"})
_SVG_ATTRIBUTE_NAMES = """
    viewBox preserveAspectRatio xmlns d x y x1 y1 x2 y2 cx cy r rx ry fx fy dx dy width height points transform fill
    fill-opacity fill-rule stroke stroke-width stroke-opacity stroke-linecap stroke-linejoin stroke-miterlimit
    stroke-dasharray stroke-dashoffset opacity offset stop-color stop-opacity gradientUnits gradientTransform
    spreadMethod clip-path clip-rule clipPathUnits font-family font-size font-weight font-style text-anchor
    dominant-baseline href xlink:href focusable
"""
_SVG_ATTRIBUTES = frozenset(_SVG_ATTRIBUTE_NAMES.split())
_ATTRIBUTES: dict[str, set[str]] = {
    "*": {*_COMMON},
    "a": {"href", "name"},
    "img": {"src", "alt", *_SIZES},
    "audio": {"src", "controls", "loop", "preload"},
    "video": {"src", "controls", "loop", "preload", "width", "height", "poster"},
    "source": {"src", "type"},
    "input": {"checked", "disabled", "name"},
    "label": {"for"},
    "progress": {"value", "max"},
    "meter": {"value", "min", "max", "low", "high", "optimum"},
    "details": {"open"},
    "ol": {"start", "type", "reversed"},
    "li": {"value"},
    "td": {"colspan", "rowspan", "headers", *_SIZES},
    "th": {"colspan", "rowspan", "headers", "scope", *_SIZES},
    "tr": {"align", "valign", "bgcolor"},
    "table": {"cellpadding", "cellspacing", "summary", *_SIZES},
    "col": {"span", "width"},
    "colgroup": {"span", "width"},
    "hr": {"width", "size", "align"},
    "p": {"align"},
    "div": {"align"},
    "font": {"color", "face", "size"},
    "time": {"datetime"},
    "data": {"value"},
    "abbr": {"title"},
    **{tag: set(_SVG_ATTRIBUTES) for tag in _SVG_TAGS},
}
_SCHEMES = {"http", "https", "mailto", "data"}

_ACTIVE_TAGS = (
    "<script",
    "<iframe",
    "<object",
    "<embed",
    "<form",
    "<link",
    "<meta",
    "<base",
    "<applet",
    "<frameset",
    "<foreignobject",
    "<animate",
    "<set",
    "<canvas",
    "<math",
    "<button",
    "<select",
    "<textarea",
    "<portal",
    "<feimage",
    "<image",
    "<pattern",
    "<marker",
    "<mask",
    "<filter",
)
_EVENT = re.compile(r"[\s\"'/]on[a-z]{3,30}\s{0,20}=")
_DATA_MEDIA = re.compile(
    r"data:(?:image/(?:png|jpe?g|gif|webp|bmp|avif|svg\+xml|x-icon)|(?:audio|video)/[\w.+-]{1,40})[;,]", re.I
)
# A file beside the notebook: a name with an ending, so that no address of the server is meant.
_FILE = re.compile(
    r"(?!/)(?!.*(?:^|/)\.\.?(?:/|$))(?!.*%2[eE])[^:\\\x00-\x1f?#]{1,2000}\.\w{1,10}(?:#[\w.-]{0,200})?\Z"
)
_BITMAP_FILE = re.compile(r".*\.(?:png|jpe?g|gif|webp|svg|bmp|avif)\Z", re.IGNORECASE)
# Classes that front ends style by themselves, e.g. as a dialogue over the page.
_FOREIGN_CLASS = re.compile(
    r"(?:^|\s)(?:jp-|lm-|p-|cm-|agently|jupyter-|widget-|modal|navbar|fixed-|sticky-|monaco-|notebook_app)"
)
_STYLE_OPEN = re.compile(r"<style\b[^>]{0,500}>", re.IGNORECASE)
_STYLE_CLOSE = re.compile(r"</style\s{0,100}>", re.IGNORECASE)
_NOT_A_ROW = re.compile(r"<(?!/?(?:tr|th|td)>)|\0")
_FRAGMENT_URL = re.compile(r"url\(\s*#([\w:.-]{1,200})\s*\)\Z")


def is_active(markup: str) -> bool:
    """True when *markup* looks as if it needs scripts or embedded content to work.

    This chooses between cleaning and framing; safety does not rest on it, since what is not framed is always cleaned.
    """
    lower = markup.lower()
    return (
        any(tag in lower for tag in _ACTIVE_TAGS)
        or "javascript:" in lower
        or ("on" in lower and _EVENT.search(lower) is not None)
    )


@dataclass(slots=True)
class Cleaned:
    """Cleaned markup; ``lost_style``: part of a style sheet was dropped; ``remote``: content from other hosts was
    dropped."""

    markup: str
    lost_style: bool = False
    remote: bool = False


def own_class(name: str) -> bool:
    """True for a class name that no front end styles by itself."""
    return re.fullmatch(r"[\w-]{1,100}", name) is not None and not _FOREIGN_CLASS.match(name)


def _own_id(name: str) -> str:
    return name if name.startswith(ID_PREFIX) else ID_PREFIX + name


class _Attributes:
    """The attribute filter; sees decoded values and returns None to drop one. Holds the state of one document."""

    def __init__(self) -> None:
        self.begin(False, Cleaned(""))

    def begin(self, network_allowed: bool, result: Cleaned) -> None:
        """Start a document; what is lost of it is noted in *result*."""
        self.network_allowed = network_allowed
        self.result = result
        self.styles: dict[str, str | None] = {}
        self.contained = False  # some class or style is there that needs the wrapper

    def __call__(self, tag: str, name: str, value: str) -> str | None:
        if name == "class":
            self.contained = True
            if _FOREIGN_CLASS.search(value):
                value = " ".join(c for c in value.split() if not _FOREIGN_CLASS.match(c))
            return value or None
        if name == "style":
            self.contained = True
            if value not in self.styles:
                self.styles[value] = css.clean_declarations(value)[0] or None
            return self.styles[value]
        if name in ("href", "xlink:href", "src", "poster"):
            return self._url(tag, name, value.strip())
        if name in ("for", "headers", "name"):
            return " ".join(_own_id(part) for part in value.split()) or None
        if tag in _SVG_TAGS and name not in ("id", "class", "title", "d", "points") and "(" in value:
            if match := _FRAGMENT_URL.match(value):
                return f"url(#{_own_id(match[1])})"
            return value if name.lower().endswith("transform") else css.clean_value(value)
        return value

    def _url(self, tag: str, name: str, value: str) -> str | None:
        if value.startswith("#"):
            return f"#{_own_id(value[1:])}" if len(value) > 1 else value
        if tag in _SVG_TAGS:
            return None
        scheme = value[:8].lower()
        if scheme.startswith(("http:", "https:")):
            if tag == "a" or self.network_allowed:
                return value
            self.result.remote = True
            return None
        if tag == "a":
            return value if scheme.startswith("mailto:") or _FILE.match(value) else None
        if scheme.startswith("data:"):
            return value if _DATA_MEDIA.match(value) else None
        return value if tag == "img" and _FILE.match(value) and _BITMAP_FILE.match(value) else None


def _take_styles(markup: str) -> tuple[str, list[str]]:
    """Return the markup without its style elements, and their texts. What is left of odd cases, the cleaner drops."""
    rest, sheets, at = [], [], 0
    while (start := _STYLE_OPEN.search(markup, at)) and (end := _STYLE_CLOSE.search(markup, start.end())):
        rest.append(markup[at : start.start()])
        sheets.append(markup[start.end() : end.start()])
        at = end.end()
    return "".join([*rest, markup[at:]]) if sheets else markup, sheets


def set_rows_aside(markup: str) -> tuple[str, str, str]:
    """Return a placeholder row, the rows of a large plain table, and the markup with the one in place of the others.

    Rows made of nothing but text and bare tr, th and td tags are safe as they are, and inside a tbody they can close
    nothing around them; so they need not be parsed, nor searched for what is active. The first two are empty for other
    markup.
    """
    start, end = markup.find("<tbody>") + 7, markup.rfind("</tbody>")
    if end - start < SMALL or start < 7 or _NOT_A_ROW.search(markup, start, end):
        return "", "", markup
    place = f"<tr><td>{secrets.token_hex(16)}</td></tr>"
    return place, markup[start:end], markup[:start] + place + markup[end:]


class HtmlCleaner:
    """Cleans HTML; the parser's tables are built once, when the first document comes."""

    def __init__(self) -> None:
        self._attributes = _Attributes()
        self._cleaner: nh3.Cleaner | None = None

    def clean(
        self, markup: str, *, network_allowed: bool = False, aside: tuple[str, str, str] | None = None
    ) -> Cleaned | None:
        """Return HTML in which nothing runs, loads from elsewhere (unless *network_allowed*) or leaves its place.

        Style sheets are cleaned and scoped to the output; ids get a prefix, so that they cannot stand for elements of
        the page. Markup with styles or classes gets a wrapper that contains whatever is positioned in it. Returns None
        for markup of a shape that would take too long (see :mod:`agently_kernel.outputs.shape`). *aside* is what
        :func:`set_rows_aside` returned for it, when that is known.
        """
        result = Cleaned("")
        place, rows, markup = aside or set_rows_aside(markup)
        markup, sheets = _take_styles(markup)
        self._attributes.begin(network_allowed, result)
        if not can_be_parsed(markup):
            return None
        body = self._tables().clean(markup)
        if place:
            if place not in body:
                return None
            body = body.replace(place, rows, 1)
        body = text.defuse_macros(body)
        if sheets:
            result.markup = _with_styles(body, sheets, result)
        elif self._attributes.contained:
            result.markup = f'<div style="{WRAPPER_STYLE}">{body}</div>'
        else:
            result.markup = body
        return result

    def _tables(self) -> nh3.Cleaner:
        if self._cleaner is None:
            import nh3

            self._cleaner = nh3.Cleaner(
                tags=set(_HTML_TAGS | _SVG_TAGS),
                clean_content_tags=set(_DROP_WITH_CONTENT),
                attributes={tag: set(names) for tag, names in _ATTRIBUTES.items()},
                tag_attribute_values={"input": {"type": {"checkbox", "radio"}}},
                attribute_filter=self._attributes,
                url_schemes=_SCHEMES,
                id_prefix=ID_PREFIX,
            )
        return self._cleaner


def _with_styles(body: str, sheets: list[str], result: Cleaned) -> str:
    """Return *body* in an element with an id of its own, with the style sheets cleaned and scoped to that id."""
    scope = "agently-scope-" + hashlib.sha256(body.encode("utf-8", "replace")).hexdigest()[:12]
    rules = []
    for sheet in sheets:
        safe, lost = css.clean_stylesheet(sheet, scope, ID_PREFIX)
        result.lost_style = result.lost_style or lost
        if safe:
            rules.append(safe)
    style = "<style>" + "\n".join(rules) + "</style>" if rules else ""
    return f'<div id="{scope}" style="{WRAPPER_STYLE}">{style}{body}</div>'
