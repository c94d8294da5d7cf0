"""Declarative charts and maps of a guest (Vega, Vega-Lite, Plotly, GeoJSON): JSON that a renderer of the page
interprets.

What a renderer would load, execute or insert as HTML is taken out.
"""

from __future__ import annotations

import html
import re
from typing import Any

_POLLUTING = frozenset({"__proto__", "constructor", "prototype"})
_STRING_LIMIT = 1024 * 1024
_BITMAP = re.compile(r"data:image/(?:png|jpe?g|gif|webp);base64,", re.IGNORECASE)
_EXPRESSION = re.compile(
    r"constructor|__proto__|prototype|toString|valueOf|\.\s*view\b|\beval\b|\bFunction\b|\[\s*[\"']view"
)
_STYLE = re.compile(r"[\w-]{1,40}")
_PLOTLY_ADDRESSES = frozenset({"source", "style", "url", "href"})
_PLOTLY_CONFIG_NAMES = """
    responsive displayModeBar displaylogo scrollZoom staticPlot editable doubleClick showTips showAxisDragHandles
    showAxisRangeEntryBoxes autosizable fillFrame frameMargins modeBarButtonsToRemove typesetMath
"""
_PLOTLY_CONFIG = frozenset(_PLOTLY_CONFIG_NAMES.split())


class NeedsApproval(ValueError):
    """The chart wants to load data from an address or to call something outside of itself; the message says which."""


def clean_vega(spec: Any) -> Any:
    """Return a Vega or Vega-Lite specification that loads nothing.

    Options for the embedding page (``usermeta``) are dropped. Raises NeedsApproval for data or images from an address
    and for expressions that reach for the inside of objects.
    """
    return _vega(spec)


def _vega(value: Any) -> Any:
    if isinstance(value, str):
        if _EXPRESSION.search(value):
            raise NeedsApproval("the chart holds an expression that reaches outside of the chart")
        return value[:_STRING_LIMIT]
    if isinstance(value, list):
        return [_vega(v) if isinstance(v, str | list | dict) else v for v in value]
    if isinstance(value, dict):
        result = {}
        for key, item in value.items():
            if key in _POLLUTING or key == "usermeta":
                continue
            if key == "url" and not (isinstance(item, str) and _BITMAP.match(item)):
                raise NeedsApproval("the chart loads data or images from an address")
            result[key] = _vega(item)
        return result
    return value


def clean_plotly(figure: Any, *, network_allowed: bool = False) -> Any:
    """Return a Plotly figure without foreign mode bar buttons, upload links and (unless *network_allowed*) remote
    images."""
    if not isinstance(figure, dict):
        return {}
    result = {k: _plotly(v, network_allowed, k) for k, v in figure.items() if k in ("data", "layout", "frames")}
    config = figure.get("config")
    if isinstance(config, dict):
        result["config"] = {k: _plotly(v, network_allowed, k) for k, v in config.items() if k in _PLOTLY_CONFIG}
    return result


def _plotly(value: Any, network_allowed: bool, key: str) -> Any:
    if isinstance(value, str):
        if key in ("bdata", "shape"):
            return value
        if key == "sourceattribution":
            return html.escape(value[:_STRING_LIMIT])  # maps put it into the page as HTML
        if key in _PLOTLY_ADDRESSES:
            if _BITMAP.match(value):
                return value
            remote = network_allowed and value.lower().startswith("https://")
            # an address of the notebook's own server, too, would be asked with the user's cookie
            return value[:_STRING_LIMIT] if remote or (key == "style" and _STYLE.fullmatch(value)) else ""
        return value[:_STRING_LIMIT]
    if isinstance(value, list):
        return [_plotly(v, network_allowed, key) if isinstance(v, str | list | dict) else v for v in value]
    if isinstance(value, dict):
        return {k: _plotly(v, network_allowed, k) for k, v in value.items() if k not in _POLLUTING}
    return value


def clean_geojson(value: Any) -> Any:
    """Return GeoJSON in which no string is HTML: map viewers put property names and values into pop-ups."""
    if isinstance(value, str):
        return html.escape(value) if "<" in value else value
    if isinstance(value, list):
        return [clean_geojson(v) for v in value]
    if isinstance(value, dict):
        return {html.escape(k) if "<" in k else k: clean_geojson(v) for k, v in value.items() if k not in _POLLUTING}
    return value
