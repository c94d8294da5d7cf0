"""Peer connections (WebRTC) of framed output: no way leads to one, and so no datagram to a listener on this machine.

Every way is tried twice: in an ordinary sandboxed frame, where the listener must hear of it (else the way proves
nothing), and in ours, where it must not.
"""

from __future__ import annotations

import html
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from agently_kernel.outputs import frames

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

CALL = (
    "(R=>{const c=new R({iceServers:[{urls:['stun:127.0.0.1:PORT']}]});c.createDataChannel('x');"
    "c.createOffer().then(o=>c.setLocalDescription(o));self.kept=c})(RTCPeerConnection)"
)
PAGE = f"<script>{CALL}</script>"
QUOTED = json.dumps(PAGE).replace("<", "\\x3c")
XML = json.dumps(PAGE.replace("<", "&lt;").replace("'", "&#39;").replace(">", "&gt;")).replace("<", "\\x3c")
IFRAME = f"'<iframe sr'+'cdoc=\"'+{QUOTED}+'\"></iframe>'"
XHTML = f"'<i xmlns=\"http://www.w3.org/1999/xhtml\"><iframe sr'+'cdoc=\"'+{XML}+'\"/></i>'"
PATCH = (
    "RegExp.prototype.exec=()=>null;RegExp.prototype[Symbol.replace]=s=>s;Reflect.apply=()=>'';"
    "String.prototype.replace=function(){return this};Object.defineProperty(RegExp.prototype,'flags',{get:()=>''});"
)


def _body(script: str) -> str:
    return f"<body><script>{script}</script>"


WAYS = {
    "direct": PAGE,
    "a frame in the markup": f'<p>x</p><iframe srcdoc="{PAGE}"></iframe>',
    "a frame alone": f'<iframe srcdoc="{PAGE}"></iframe>',
    "a frame in a frame": f'<iframe srcdoc="{html.escape(f"""<iframe srcdoc="{PAGE}"></iframe>""")}"></iframe>',
    "the attribute as an entity": (
        f'<p>x</p><iframe srcdoc="{html.escape(f"""<iframe srcdoc="{PAGE}"></iframe>""").replace("src", "s&#114;c")}">'
        "</iframe>"
    ),
    "closed shadow root": f'<div><template shadowrootmode=closed><iframe srcdoc="{PAGE}"></iframe></template></div>',
    "property": _body(f"let f=document.createElement('iframe');f['src'+'doc']={QUOTED};document.body.append(f)"),
    "attribute node": _body(
        "let f=document.createElement('iframe'),a=document.createAttribute('src'+'doc');f.setAttributeNode(a);"
        f"a.value={QUOTED};document.body.append(f)"
    ),
    "innerHTML": _body(f"document.body.innerHTML={IFRAME}"),
    "with patched built-ins": _body(f"{PATCH}let d=document.createElement('p');d.innerHTML={IFRAME};"
                                    "document.body.append(d)"),
    "another document": _body(f"document.body.append(Document.parseHTMLUnsafe({IFRAME}).body.firstChild)"),
    "XML": _body(
        f"document.body.append(new DOMParser().parseFromString({XHTML},'application/xhtml+xml').documentElement)"
    ),
    "document of a request": _body(
        f"let x=new XMLHttpRequest();x.open('GET',URL.createObjectURL(new Blob([{IFRAME}],{{type:'text/html'}})));"
        "x.responseType='document';x.onload=()=>document.body.append(x.response.body.firstChild);x.send()"
    ),
    "XML of a request": _body(
        f"let x=new XMLHttpRequest();x.open('GET',URL.createObjectURL(new Blob([{XHTML}],"
        "{type:'application/xhtml+xml'})));x.onload=()=>document.body.append(x.responseXML.documentElement);x.send()"
    ),
    "written in two parts": _body(f"document.write('<iframe src');document.write('doc=\"'+{QUOTED}+'\"></iframe>')"),
    "written letter by letter": _body(
        f"for(let c of '<iframe srcdoc=\"')document.write(c);document.write({QUOTED}+'\"></iframe>')"
    ),
    "half written, half there": f"<body><script>document.write('<iframe src')</script>doc=\"{PAGE}\"></iframe>",
    "script address": f'<body><iframe src="javascript:{CALL}"></iframe>',
    "data address": f'<body><iframe src="data:text/html,{PAGE}"></iframe>',
    "blob address": _body(
        "let f=document.createElement('iframe');"
        f"f.src=URL.createObjectURL(new Blob([{QUOTED}],{{type:'text/html'}}));document.body.append(f)"
    ),
    "going elsewhere": _body(f"location=URL.createObjectURL(new Blob([{QUOTED}],{{type:'text/html'}}))"),
    "a document written anew": _body(
        f"setTimeout(()=>{{document.open();document.write({QUOTED});document.close()}},200)"
    ),
    "object": f'<body><object data="data:text/html,{PAGE}" type="text/html"></object>',
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def _heard(browser: Browser, wrap: Callable[[str], str], wanted: int, seconds: float) -> set[str]:
    """Show every way in a page of its own kind of frame; return those whose listener got a datagram."""
    listeners = {name: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for name in WAYS}
    page = browser.new_page()
    try:
        shown = []
        for name, listener in listeners.items():
            listener.bind(("127.0.0.1", 0))
            listener.setblocking(False)
            shown.append(wrap(WAYS[name].replace("PORT", str(listener.getsockname()[1]))))
        page.goto("about:blank")
        page.set_content("".join(shown))
        heard: set[str] = set()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(heard) < wanted:
            page.wait_for_timeout(200)
            for name, listener in listeners.items():
                try:
                    listener.recv(2000)
                    heard.add(name)
                except BlockingIOError:
                    pass
        return heard
    finally:
        page.close()
        for listener in listeners.values():
            listener.close()


def _ordinary(markup: str) -> str:
    return f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(markup)}"></iframe>'


def test_an_ordinary_sandboxed_frame_reaches_the_listener_in_each_of_these_ways(chromium: Browser) -> None:
    assert _heard(chromium, _ordinary, len(WAYS), 40) == set(WAYS)


def test_no_way_leads_out_of_our_frame(chromium: Browser) -> None:
    assert _heard(chromium, frames.frame, 1, 8) == set()


def test_libraries_that_write_markup_and_scripts_work_as_before(chromium: Browser) -> None:
    script = (
        "const d=document.createElement('div');d.innerHTML='<b id=b>bold</b>';document.body.append(d);"
        "document.write('<i id=i>wri','tten</i>');const s=document.createElement('script');"
        "s.textContent='window.dynamic=1+1';document.head.append(s);const u=document.createElement('script');"
        "u.src='data:text/javascript,window.loaded=3';u.onload=()=>{r.textContent=[dynamic,loaded,"
        "new Function('return 4')(),eval('5'),b.textContent,i.textContent,typeof trustedTypes,"
        "document.compatMode].join()};document.head.append(u)"
    )
    page = chromium.new_page()
    try:
        page.set_content(frames.frame(f"<p id=r></p><script>{script}</script>"))
        inner = page.frame_locator("iframe").frame_locator("iframe")
        inner.locator("#r").filter(has_text="2").wait_for(timeout=20_000)
        assert inner.locator("#r").inner_text() == "2,3,4,5,bold,written,undefined,CSS1Compat"
    finally:
        page.close()
