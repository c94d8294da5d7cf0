"""Active content of a guest in a frame that can reach neither the page nor, without leave, the network.

There are two frames, one in the other, both sandboxed. A frame alone could navigate itself to any address and carry
data there: a content security policy does not govern where a document goes, only what it embeds. So the guest's
document sits in an inner frame, and the policy of the outer document, which holds nothing of the guest, governs where
the inner one may go.
"""

from __future__ import annotations

import html
import re

_CSP = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' data: blob:{net}; "
    "style-src 'unsafe-inline' data:{net}; img-src data: blob:{net}; "
    "font-src data:{net}; media-src data: blob:{net}; connect-src data: blob:{net}; "
    "worker-src blob:; child-src {frames}; frame-src {frames}; object-src 'none'; base-uri 'none'; form-action 'none'"
)
# Peer connections are the one way to the network that no policy covers in today's browsers.
_NO_PEERS = (
    "for(const n of['RTCPeerConnection','webkitRTCPeerConnection','mozRTCPeerConnection','RTCDataChannel'])"
    "try{delete window[n]}catch(e){}"
)
_REPORT = (
    "addEventListener('load',()=>{const b=document.body,say=()=>parent.postMessage({type:'agently.frame.height',"
    "height:Math.ceil(Math.max(b.scrollHeight,b.offsetHeight))},'*');say();new ResizeObserver(say).observe(b)})"
)
_RELAY = (
    "addEventListener('message',e=>{if(e.source===frames[0]&&e.data&&e.data.type==='agently.frame.height')"
    "parent.postMessage({type:'agently.frame.height',height:Number(e.data.height)||0},'*')})"
)
_OUTER_STYLE = (
    "<style>html,body{margin:0;height:100%;overflow:hidden}"
    "iframe{display:block;width:100%;height:100%;border:0}</style>"
)
_INNER_OPEN = '<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" srcdoc="'
_INNER_CLOSE = '"></iframe>'
_HEIGHT = re.compile(r"height[\"']?\s{0,4}[:=]\s{0,4}[\"']?(\d{2,4})(?:px|\b)(?!%)")
_OPEN = (
    '<iframe sandbox="allow-scripts" class="agently-frame" title="Output of sandboxed code" '
    'referrerpolicy="no-referrer" style="width: 100%; height: {}px; border: 0; resize: vertical; overflow: auto" '
    'srcdoc="'
)
_OWN_FRAME = re.compile(re.escape(_OPEN).replace(r"\{\}", r"(\d{1,4})") + '([^"<>]*)' + re.escape(_INNER_CLOSE))


def policy_meta(network_allowed: bool) -> str:
    """Return the ``<meta>`` element with the content security policy that comes first in both documents.

    With network, only https is reachable: never a server on the user's own machine that speaks plain http.
    """
    net = " https: wss:" if network_allowed else ""
    nested = "https:" if network_allowed else "'none'"
    return f'<meta http-equiv="Content-Security-Policy" content="{_CSP.format(net=net, frames=nested)}">'


def _start(network_allowed: bool, script: str, more: str = "") -> str:
    return f'<!DOCTYPE html>{policy_meta(network_allowed)}<meta charset="utf-8">{more}<script>{script}</script>'


def _inner_start(network_allowed: bool) -> str:
    return _start(network_allowed, _REPORT if network_allowed else _NO_PEERS + ";" + _REPORT)


def _outer_start(network_allowed: bool) -> str:
    return _start(network_allowed, _RELAY, _OUTER_STYLE) + _INNER_OPEN


def frame_height(markup: str) -> int:
    """Guess the height in CSS pixels that active content wants, from the sizes it names; between 120 and 700."""
    parts = markup if len(markup) < 400_000 else markup[:200_000] + markup[-200_000:]
    plausible = [height for height in map(int, _HEIGHT.findall(parts)) if 40 <= height <= 2000]
    return min(700, max(120, max(plausible, default=400) + 30))


def frame(markup: str, *, network_allowed: bool = False) -> str:
    """Return a frame that shows *markup* in an opaque origin of its own; a frame made here is returned as it is.

    What is in it may run scripts and nothing else: no access to the page, cookies or storage, no pop-ups, no
    navigation of the page, no forms, and without *network_allowed* nothing is loaded and no other address shown. It
    reports its height to a parent that listens, as a message ``{"type": "agently.frame.height", "height": pixels}``.
    """
    match = _OWN_FRAME.fullmatch(markup)
    if match:
        guest = _guest_markup(html.unescape(match[2]), network_allowed)
        if guest is not None and _build(guest, network_allowed, int(match[1])) == markup:
            return markup
    return _build(markup, network_allowed, frame_height(markup))


def _guest_markup(outer: str, network_allowed: bool) -> str | None:
    """Return what :func:`_build` was given, from the outer document that it made; None for any other document."""
    start, inner_start = _outer_start(network_allowed), _inner_start(network_allowed)
    if not outer.startswith(start) or not outer.endswith(_INNER_CLOSE):
        return None
    inner = html.unescape(outer[len(start) : -len(_INNER_CLOSE)])
    return inner[len(inner_start) :] if inner.startswith(inner_start) else None


def _build(markup: str, network_allowed: bool, height: int) -> str:
    inner = (_inner_start(network_allowed) + markup).replace("&", "&amp;").replace('"', "&quot;")
    source = html.escape(f"{_outer_start(network_allowed)}{inner}{_INNER_CLOSE}", quote=True)
    # Written as an entity, the one word that would undo a frame stands nowhere in its source.
    source = re.sub("(allow-same-origi)(n)", lambda m: f"{m[1]}&#{ord(m[2])};", source, flags=re.IGNORECASE)
    return _OPEN.format(height) + source + _INNER_CLOSE
