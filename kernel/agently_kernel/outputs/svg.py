"""SVG of a guest: rewritten from an XML parse with an allow list, so that it stays well-formed and holds no
script."""

from __future__ import annotations

import hashlib
import html
import re
from xml.parsers import expat

from agently_kernel.outputs import css

_MAX_CHARS = 16 * 1024**2
_MOST_PARTS = 400_000
"""Elements, ends and attributes of one drawing, which is rewritten while the kernel does nothing else."""
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_ELEMENT_NAMES = """
    svg g path rect circle ellipse line polyline polygon text tspan textPath title desc defs symbol use image marker
    linearGradient radialGradient stop pattern clipPath mask filter feBlend feColorMatrix feComponentTransfer
    feComposite feFlood feFuncA feFuncB feFuncG feFuncR feGaussianBlur feMerge feMergeNode feMorphology feOffset
    feTurbulence feDropShadow style a
"""
_ELEMENTS = frozenset(_ELEMENT_NAMES.split())
_REFUSED_ATTRIBUTES = ("on", "xml:base", "xmlns", "formaction", "action", "ping", "target", "attributename")
_BITMAPS = (
    "data:image/png;base64,",
    "data:image/jpeg;base64,",
    "data:image/jpg;base64,",
    "data:image/gif;base64,",
    "data:image/webp;base64,",
)
_ACTIVE = (
    "script",
    "foreignObject",
    "iframe",
    "animate",
    "animateTransform",
    "animateMotion",
    "set",
    "handler",
    "listener",
)


_ROOT = "\0"  # stands for the root's own attributes, which are known at the end; no XML document holds it


class NotSafe(ValueError):
    """The document cannot be reduced to a still image; the message says why."""


def _quoted(value: str) -> str:
    """Return *value* as a quoted attribute; line breaks are kept as references, as XML wants them."""
    escaped = html.escape(value, quote=True)
    return f'"{escaped}"' if escaped.isprintable() else '"' + escaped.replace("\n", "&#10;").replace("\t", "&#9;") + '"'


class _Writer:
    def __init__(self, scope: str) -> None:
        self.out: list[str] = []
        self.skipping = 0
        self.depth = 0
        self.style: list[str] | None = None
        self.active = False
        self.scope = scope
        self.scoped = False
        self.xlink = False
        self.namespace = ""
        self.root_id: str | None = None
        self.styles: dict[str, str] = {}

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > 200:
            raise NotSafe("the drawing nests too deep")
        namespace, _, tag = name.rpartition(" ")
        if self.depth == 1 and tag != "svg":
            raise NotSafe("the document is not an SVG drawing")
        if self.skipping or namespace not in (_SVG, "") or tag not in _ELEMENTS:
            self.active = self.active or tag in _ACTIVE
            self.skipping += 1
            return
        if tag == "style":
            self.style = []
            self.scoped = True
            self.out.append("<style>")
            return
        parts = [f"<{tag}"]
        if self.depth == 1:
            self.namespace = namespace
            self.root_id = attributes.pop("id", None)
            parts.append(_ROOT)
        for key, value in attributes.items():
            if (safe := self._attribute(tag, key, value)) is not None:
                parts.append(safe)
        self.out.append("".join(parts) + ">")

    def _attribute(self, tag: str, key: str, value: str) -> str | None:
        namespace, _, name = key.rpartition(" ")
        lower = name.lower()
        if lower.startswith(_REFUSED_ATTRIBUTES) or ":" in name:
            self.active = self.active or lower.startswith("on")
            return None
        if lower in ("href", "src"):
            value = value.strip()
            allowed = value.startswith("#") or (tag == "image" and value.lower().startswith(_BITMAPS))
            allowed = allowed or (tag == "a" and value.lower().startswith(("https://", "http://")))
            if not allowed or lower != "href":
                return None
            self.xlink = self.xlink or namespace == _XLINK
            return f" {'xlink:' if namespace == _XLINK else ''}{name}={_quoted(value)}"
        if namespace == "http://www.w3.org/XML/1998/namespace":
            return f" xml:{name}={_quoted(value)}" if name in ("space", "lang") else None
        if namespace:
            return None
        if lower == "style":
            if value not in self.styles:
                self.styles[value] = _style(value)
            value = self.styles[value]
        elif ("(" in value or "\\" in value) and not _plain_functions_only(value):
            return None
        return f" {name}={_quoted(value)}" if value else None

    def end(self, name: str) -> None:
        self.depth -= 1
        if self.skipping:
            self.skipping -= 1
            return
        tag = name.rpartition(" ")[2]
        if tag == "style":
            self.out.append(
                html.escape(css.clean_stylesheet("".join(self.style or ()), self.scope, "")[0], quote=False)
            )
            self.style = None
        self.out.append(f"</{tag}>")

    def text(self, data: str) -> None:
        if self.skipping:
            return
        if self.style is not None:
            self.style.append(data)
        else:
            self.out.append(html.escape(data, quote=False))

    def document(self) -> str:
        """Return the whole drawing. Its root gets what the drawing needs and no more: one without style sheets and
        namespaces stays as it was."""
        root = f' xmlns="{_SVG}"' if self.namespace else ""
        if self.xlink:
            root += f' xmlns:xlink="{_XLINK}"'
        name = self.scope if self.scoped else self.root_id  # style sheets are scoped to the root's own id
        if name is not None:
            root += f" id={_quoted(name)}"
        return "".join(self.out).replace(_ROOT, root, 1)

    def doctype(self, name: str, system: str | None, public: str | None, internal: int) -> None:
        if internal:
            raise NotSafe("the drawing declares entities of its own")


_LOCAL_URL = re.compile(r"url\(\s*[\"']?#[\w:.-]{1,200}[\"']?\s*\)")
_URL_PROPERTIES = frozenset(
    {"clip-path", "mask", "filter", "fill", "stroke", "marker-start", "marker-mid", "marker-end"}
)
_PLAIN_FUNCTION = re.compile(r"(?:matrix|translate|scale|rotate|skewX|skewY|rgba?|hsla?)\([\d\s.,%+eE-]*\)")


def _plain_functions_only(value: str) -> bool:
    """True when a presentation value calls nothing but transforms, colours and ``url(#…)`` of the same document."""
    rest = _PLAIN_FUNCTION.sub("", _LOCAL_URL.sub("", value))
    return "(" not in rest and "\\" not in rest


def _style(value: str) -> str:
    """Return the declarations of a style attribute that stay inside the drawing."""
    kept = []
    for declaration in value.split(";"):
        name, _, content = declaration.partition(":")
        if name.strip().lower() in _URL_PROPERTIES and _LOCAL_URL.fullmatch(content.strip()):
            kept.append(f"{name.strip().lower()}: {content.strip()}")
        elif safe := css.clean_declarations(declaration)[0]:
            kept.append(safe)
    return "; ".join(kept)


def clean_svg(source: str) -> str:
    """Return *source* as a still SVG drawing: no script, no animation, nothing loaded from elsewhere, well-formed XML.

    Raises NotSafe when it is active, malformed or declares entities; it can then be shown in a frame.
    """
    if len(source) > _MAX_CHARS:
        raise NotSafe("the drawing is larger than 16 MiB")
    if source.count("<") + source.count("=") > _MOST_PARTS:
        raise NotSafe("the drawing has more than 400,000 elements and attributes")
    writer = _Writer("agently-svg-" + hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:12])
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = writer.start
    parser.EndElementHandler = writer.end
    parser.CharacterDataHandler = writer.text
    parser.StartDoctypeDeclHandler = writer.doctype
    parser.buffer_text = True
    try:
        parser.Parse(source, True)
    except expat.ExpatError as error:
        raise NotSafe(f"the drawing is not well-formed XML ({error})") from error
    if writer.active:
        raise NotSafe("the drawing holds scripts, animation or embedded HTML")
    return writer.document()
