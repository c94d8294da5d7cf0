"""Active content of a guest in a frame that can reach neither the page nor, without leave, the network.

There are two frames, one in the other, both sandboxed. A frame alone could navigate itself to any address and carry
data there: a content security policy does not govern where a document goes, only what it embeds. So the guest's
document sits in an inner frame, and the policy of the outer document, which holds nothing of the guest, governs where
the inner one may go.

Peer connections (WebRTC) are the other way to the network that no content security policy covers. The interface is
taken out of the inner document's window before the guest's markup is parsed. To get it back, script would need another
window that it may run in, and the only one it could make is a frame with a ``srcdoc``: that attribute is a sink of
Trusted Types, and so is every way of parsing HTML. The one policy that the document allows is ours, which spells the
attribute differently.
"""

from __future__ import annotations

import html
import json
import re

_CSP = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' data: blob:{net}; "
    "style-src 'unsafe-inline' data:{net}; img-src data: blob:{net}; "
    "font-src data:{net}; media-src data: blob:{net}; connect-src data: blob:{net}; "
    "worker-src blob:; child-src {frames}; frame-src {frames}; object-src 'none'; base-uri 'none'; form-action 'none'"
)
_TRUSTED_TYPES = "; require-trusted-types-for 'script'; trusted-types default"
# What is called later is taken from the objects now, and hung on ours, because the guest may change the originals.
_NO_PEERS = """
(() => {
  for (const name of ['RTCPeerConnection', 'webkitRTCPeerConnection', 'mozRTCPeerConnection', 'RTCDataChannel',
      'XSLTProcessor']) try { delete window[name] } catch (e) {}
  const types = window.trustedTypes, call = Reflect.apply, own = (object, key, value) =>
    Object.defineProperty(object, key, {value});
  if (!types) return;
  const plain = (source, flags) => {
    const pattern = new RegExp(source, flags);
    for (const key of ['exec', 'test', Symbol.replace]) own(pattern, key, RegExp.prototype[key]);
    for (const key of ['flags', 'global', 'unicode', 'unicodeSets', 'sticky']) own(pattern, key, pattern[key]);
    return pattern;
  };
  const word = plain('srcdoc', 'gi'), start = plain('s(?:r(?:c(?:do?)?)?)?$', 'i');
  const replace = String.prototype.replace;
  types.createPolicy('default', {
    createHTML: (markup, type, sink) => {
      if (sink === 'HTMLIFrameElement srcdoc') return '';
      const renamed = call(replace, markup, [word, '$&_']);
      const cut = sink === 'Document write' || sink === 'Document writeln';
      return cut && call(start.exec, start, [renamed]) ? renamed + '<!---->' : renamed;  // the next call may go on
    },
    createScript: (script, type, sink) => sink === 'Location href' ? null : script,
    createScriptURL: address => address,
  });
  delete window.trustedTypes;
  const request = XMLHttpRequest.prototype, kind = Object.getOwnPropertyDescriptor(request, 'responseType');
  Object.defineProperty(request, 'responseXML', {get: () => null});
  Object.defineProperty(request, 'responseType', {get: kind.get, set(value) {
    value = '' + value;
    if (value !== 'document') call(kind.set, this, [value]);
  }});
})()
"""
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
_CONTROLS = "".join(map(chr, range(32))).translate({9: None, 10: None, 13: None}) + "\x7f"
_MOST_LONE = 64 * 1024**2
_HEIGHT = re.compile(r"height[\"']?\s{0,4}[:=]\s{0,4}[\"']?(\d{2,4})(?:px|\b)(?!%)")
_OPEN = (
    '<iframe sandbox="allow-scripts" class="agently-frame" title="Output of sandboxed code" '
    'referrerpolicy="no-referrer" style="width: 100%; height: {}px; border: 0; resize: vertical; overflow: auto" '
    'srcdoc="'
)
_OWN_FRAME = re.compile(re.escape(_OPEN).replace(r"\{\}", r"(\d{1,4})") + '([^"<>]*)' + re.escape(_INNER_CLOSE))


_LONE_FRAME = re.compile(
    r"(?:\s*<(?:div|span)\b[^<>]*>)*[^<>]*(?:</span>)?\s*"
    r"<iframe\b[^<>]*?\ssrcdoc=(?:\"([^\"]*)\"|'([^']*)')[^<>]*>[^<>]*</iframe>(?:\s*</(?:div|span)>)*\s*",
    re.IGNORECASE,
)


def policy_meta(network_allowed: bool, more: str = "") -> str:
    """Return the ``<meta>`` element with the content security policy that comes first in both documents.

    With network, only https is reachable: never a server on the user's own machine that speaks plain http.
    """
    net = " https: wss:" if network_allowed else ""
    nested = "https:" if network_allowed else "'none'"
    return f'<meta http-equiv="Content-Security-Policy" content="{_CSP.format(net=net, frames=nested)}{more}">'


def _start(policy: str, script: str, more: str = "") -> str:
    return f'<!DOCTYPE html>{policy}<meta charset="utf-8">{more}<script>{script}</script>'


_GUARDED_START = _start(policy_meta(False, _TRUSTED_TYPES), _NO_PEERS + ";" + _REPORT) + "<script>document.write("
_GUARDED_END = ")</script>"
_NETWORK_START = _start(policy_meta(True), _REPORT)


def _inner(markup: str, network_allowed: bool) -> str:
    """Return the inner document. Without network the markup, too, passes the policy on what may be parsed."""
    if network_allowed:
        return _NETWORK_START + markup
    return _GUARDED_START + json.dumps(markup).replace("<", "\\u003c") + _GUARDED_END


def _markup_of(inner: str, network_allowed: bool) -> str | None:
    """Undo :func:`_inner`; None for what it did not make."""
    if network_allowed:
        return inner[len(_NETWORK_START) :] if inner.startswith(_NETWORK_START) else None
    if not inner.startswith(_GUARDED_START) or not inner.endswith(_GUARDED_END):
        return None
    try:
        markup = json.loads(inner[len(_GUARDED_START) : -len(_GUARDED_END)])
    except ValueError:
        return None
    return markup if isinstance(markup, str) else None


def _outer_start(network_allowed: bool) -> str:
    return _start(policy_meta(network_allowed), _RELAY, _OUTER_STYLE) + _INNER_OPEN


def frame_height(markup: str) -> int:
    """Guess the height in CSS pixels that active content wants, from the sizes it names; between 120 and 700."""
    parts = markup if len(markup) < 400_000 else markup[:200_000] + markup[-200_000:]
    plausible = [height for height in map(int, _HEIGHT.findall(parts)) if 40 <= height <= 2000]
    return min(700, max(120, max(plausible, default=400) + 30))


def framed_size(markup: str) -> int:
    """Return at least the length that *markup* takes up in a frame: it is written as a string in a document within an
    attribute within an attribute, so a quotation mark becomes eleven characters."""
    size = len(markup) + 10 * markup.count('"') + 8 * markup.count("&") + 5 * markup.count("'") + 5 * markup.count("<")
    size += 3 * markup.count(">") + sum(map(markup.count, "\\\n\r\t")) + 5 * sum(map(markup.count, _CONTROLS))
    if not markup.isascii():  # six characters for each UTF-16 unit
        plain = len(markup.encode("ascii", "ignore"))
        size += 6 * (len(markup.encode("utf-16-le", "surrogatepass")) // 2 - plain) - (len(markup) - plain)
    return size


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
    height = frame_height(markup)
    lone = _LONE_FRAME.fullmatch(markup) if len(markup) < _MOST_LONE else None
    if lone is not None:  # a page in a frame of its own (maps, reports): it gets ours instead
        markup = html.unescape(lone[1] or lone[2] or "")
    return _build(markup, network_allowed, height)


def _guest_markup(outer: str, network_allowed: bool) -> str | None:
    """Return what :func:`_build` was given, from the outer document that it made; None for any other document."""
    start = _outer_start(network_allowed)
    if not outer.startswith(start) or not outer.endswith(_INNER_CLOSE):
        return None
    return _markup_of(html.unescape(outer[len(start) : -len(_INNER_CLOSE)]), network_allowed)


def _build(markup: str, network_allowed: bool, height: int) -> str:
    inner = _inner(markup, network_allowed).replace("&", "&amp;").replace('"', "&quot;")
    source = html.escape(f"{_outer_start(network_allowed)}{inner}{_INNER_CLOSE}", quote=True)
    # Written as an entity, the one word that would undo a frame stands nowhere in its source.
    source = re.sub("(allow-same-origi)(n)", lambda m: f"{m[1]}&#{ord(m[2])};", source, flags=re.IGNORECASE)
    return _OPEN.format(height) + source + _INNER_CLOSE
