"""Comm messages: honest widgets of ipywidgets pass unchanged; nothing a widget renders reaches the page unfiltered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ipywidgets
import pytest
from ipywidgets.widgets.widget import _remove_buffers
from page_oracle import faults, framed

from agently_kernel.contract.outputs import CommOutput
from agently_kernel.outputs import OutputFilter, OutputLimits, OutputPolicy
from agently_kernel.outputs.models import BASE_MODULE, CONTROLS_MODULE, MODELS, OUTPUT_MODULE

IMG = "<img src=x onerror=alert(1)>"


def opening(
    comm_id: str, state: dict[str, Any], buffers: tuple[bytes, ...] = (), paths: list[Any] | None = None
) -> CommOutput:
    data = {"state": state, "buffer_paths": paths or []}
    return CommOutput("c", "comm_open", comm_id, data, {"version": "2.1.0"}, "jupyter.widget", buffers)


def update(
    comm_id: str, state: dict[str, Any], buffers: tuple[bytes, ...] = (), paths: list[Any] | None = None
) -> CommOutput:
    data = {"method": "update", "state": state, "buffer_paths": paths or []}
    return CommOutput("c", "comm_msg", comm_id, data, {}, "", buffers)


def model(name: str, module: str = CONTROLS_MODULE, **state: Any) -> dict[str, Any]:
    view = MODELS.get((module, name))
    identity = {"_model_module": module, "_model_module_version": "2.0.0", "_model_name": name}
    if view:
        identity |= {"_view_module": view.module, "_view_module_version": view.version, "_view_name": view.name}
        identity["_model_module_version"] = view.version
    return {**identity, **state}


def opened(filter_: OutputFilter, comm_id: str, name: str, **state: Any) -> dict[str, Any]:
    message = filter_.comm_from_guest(opening(comm_id, model(name, **state))).message
    assert message is not None
    return dict(message.data["state"])


def test_table_of_models_is_that_of_ipywidgets() -> None:
    known: dict[tuple[str, str], tuple[str, str | None, str]] = {}
    registry = ipywidgets.widgets.widget._registry._registry
    for module, versions in registry.items():
        for version, names in versions.items():
            for name, views in names.items():
                for view_module, view_versions in views.items():
                    for view_names in view_versions.values():
                        for view in view_names:
                            known[(module, name)] = (view_module, view, version)
    known = {k: v for k, v in known.items() if k[0] in (BASE_MODULE, CONTROLS_MODULE, OUTPUT_MODULE)}
    # A base class that no program shows.
    del known[(CONTROLS_MODULE, "DOMWidgetModel")]
    assert {key: tuple(view) for key, view in MODELS.items()} == known


HONEST = {
    "slider": lambda: ipywidgets.IntSlider(value=3, max=50, description="n"),
    "progress": lambda: ipywidgets.FloatProgress(value=0.5, max=1.0, bar_style="success"),
    "text": lambda: ipywidgets.Text("a < b", placeholder="type"),
    "dropdown": lambda: ipywidgets.Dropdown(options=["x", "y"], value="y"),
    "button": lambda: ipywidgets.Button(description="Go", icon="check", button_style="info", tooltip="t"),
    "html": lambda: ipywidgets.HTML("<b>bold</b>"),
    "label": lambda: ipywidgets.Label(r"$x^2$"),
    "boxes": lambda: ipywidgets.VBox([ipywidgets.HBox([ipywidgets.Label("a"), ipywidgets.Checkbox(True)])]),
    "tab": lambda: ipywidgets.Tab([ipywidgets.Label("a")], titles=["One"]),
    "layout": lambda: ipywidgets.Box(
        layout=ipywidgets.Layout(width="50%", border="1px solid red", grid_template_areas='"a b" "c d"')
    ),
    "output": lambda: ipywidgets.Output(),
    "image": lambda: ipywidgets.Image(value=b"\x89PNG\r\n\x1a\n0000", format="png", width=10),
    "tags": lambda: ipywidgets.TagsInput(value=["a"], tag_style="danger"),
    "date": lambda: ipywidgets.DatePicker(),
    "style": lambda: ipywidgets.Button(style={"button_color": "lightgreen", "font_weight": "bold"}),
    "range": lambda: ipywidgets.FloatRangeSlider(readout_format=".1f"),
    "play": lambda: ipywidgets.Play(interval=100),
    "upload": lambda: ipywidgets.FileUpload(accept=".csv"),
    "link": lambda: ipywidgets.jslink((ipywidgets.IntSlider(), "value"), (ipywidgets.IntText(), "value")),
}


@pytest.mark.parametrize("make", HONEST.values(), ids=HONEST.keys())
def test_honest_widgets_pass_unchanged(make: Any) -> None:
    filter_ = OutputFilter()
    before = set(ipywidgets.widgets.widget._instances)
    make()
    widgets = [w for key, w in ipywidgets.widgets.widget._instances.items() if key not in before]
    assert widgets
    for widget in widgets:
        state, paths, buffers = _remove_buffers(widget.get_state())
        state = {k: (list(v) if isinstance(v, tuple) else v) for k, v in state.items()}
        event = opening(widget.model_id, state, tuple(bytes(b) for b in buffers), paths)
        result = filter_.comm_from_guest(event)
        assert result.withheld == ()
        assert result.message == event


def test_updates_of_honest_widgets_pass_unchanged() -> None:
    filter_ = OutputFilter()
    opened(filter_, "bar", "FloatProgressModel", value=0.0)
    event = update("bar", {"value": 1.0})
    assert filter_.comm_from_guest(event).message == event
    echo = replace(event, data={"method": "echo_update", "state": {"value": 1.0}, "buffer_paths": []})
    assert filter_.comm_from_guest(echo).message == echo
    focus = replace(event, data={"method": "custom", "content": {"do": "focus"}})
    assert filter_.comm_from_guest(focus).message == focus
    close = CommOutput("c", "comm_close", "bar", {})
    assert filter_.comm_from_guest(close).message == close
    assert filter_.comm_from_guest(event).message is None


@pytest.mark.parametrize("name", ["HTMLModel", "HTMLMathModel"])
@pytest.mark.parametrize("policy", [OutputPolicy.FRAMED, OutputPolicy.STATIC])
def test_html_widgets_pass_the_filter_of_html(name: str, policy: OutputPolicy) -> None:
    filter_ = OutputFilter(policy)
    shown = [opened(filter_, "h", name, value=IMG)["value"]]
    message = filter_.comm_from_guest(update("h", {"value": "<b>x</b><script>alert(1)</script>"})).message
    assert message is not None
    shown.append(message.data["state"]["value"])
    for value in shown:
        assert framed(value) is not None if policy is OutputPolicy.FRAMED else faults(value) == []
    message = filter_.comm_from_guest(update("h", {"value": {"toString": IMG}})).message
    assert message is not None and message.data["state"]["value"] == ""


def test_descriptions_are_never_html() -> None:
    filter_ = OutputFilter()
    state = opened(filter_, "s", "IntSliderModel", description=IMG, description_allow_html=True)
    assert (state["description"], state["description_allow_html"]) == (IMG, False)
    message = filter_.comm_from_guest(update("s", {"description_allow_html": True})).message
    assert message is not None and message.data["state"] == {"description_allow_html": False}


def test_a_model_always_gets_its_own_view() -> None:
    filter_ = OutputFilter()
    state = opened(filter_, "l", "LabelModel", value=IMG, _view_name="HTMLView", _view_module="evil", _esm="alert(1)")
    assert (state["_view_name"], state["_view_module"], state["value"]) == ("LabelView", CONTROLS_MODULE, IMG)
    assert "_esm" not in state
    assert filter_.comm_from_guest(update("l", {"_view_name": "HTMLView", "_model_name": "HTMLModel"})).message is None


def test_formulas_in_labels_set_no_links() -> None:
    assert (
        opened(OutputFilter(), "l", "LabelModel", value=r"$\href{javascript:1}{x}$")["value"]
        == "$\\\u200bhref{javascript:1}{x}$"
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("anywidget", "AnyModel"),
        ("jupyter-matplotlib", "MPLCanvasModel"),
        (CONTROLS_MODULE, "Unknown"),
        ("x" * 300, "y"),
        ("a\nb", "c"),
    ],
)
def test_widgets_with_code_of_their_own_become_a_line_until_allowed(module: str, name: str) -> None:
    filter_ = OutputFilter()
    result = filter_.comm_from_guest(opening("w", model(name, module, _esm="alert(1)", layout="IPY_MODEL_none")))
    assert result.message is not None
    state = result.message.data["state"]
    assert (state["_model_name"], state["_view_name"]) == ("LabelModel", "LabelView")
    assert set(state) == {
        "_model_module",
        "_model_module_version",
        "_model_name",
        "_view_module",
        "_view_module_version",
        "_view_name",
        "value",
    }
    assert state["value"] == result.withheld[0].line == result.notice
    assert filter_.comm_from_guest(update("w", {"_esm": "alert(1)", "value": IMG})).message is None
    assert filter_.comm_from_front_end(CommOutput("", "comm_msg", "w", {})) is None
    kind = result.withheld[0].kind
    assert kind == ("" if len(module) > 100 or "\n" in module else f"widget:{module}")
    if kind:
        filter_.allow(kind)
        event = opening("again", model(name, module, _esm="alert(1)"))
        assert filter_.comm_from_guest(event).message == event
        message = update("again", {"x": 1}, (b"data",), [["x"]])
        assert filter_.comm_from_guest(message).message == message


def test_allowing_one_module_allows_no_other() -> None:
    filter_ = OutputFilter()
    filter_.allow("widget:anywidget")
    assert filter_.comm_from_guest(opening("w", model("M", "ipympl"))).withheld[0].kind == "widget:ipympl"


def test_output_widget_passes_the_filter_of_bundles() -> None:
    outputs = [
        {"output_type": "display_data", "data": {"text/html": IMG, "text/plain": "x"}, "metadata": {"isolated": True}},
        {
            "output_type": "execute_result",
            "data": {"application/javascript": "1"},
            "execution_count": 3,
            "metadata": {},
        },
        {"output_type": "stream", "name": "stdout", "text": "a\x1b]0;t\x07b"},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t"]},
        {"output_type": "update_display_data", "data": {}},
        "nonsense",
    ]
    filter_ = OutputFilter()
    state = filter_.comm_from_guest(opening("o", model("OutputModel", OUTPUT_MODULE, outputs=outputs))).message.data[
        "state"
    ]  # type: ignore[union-attr]
    shown = state["outputs"]
    assert framed(shown[0]["data"]["text/html"]) is not None
    assert shown[0]["metadata"] == {}
    assert list(shown[1]["data"]) == ["text/plain"]
    assert shown[1]["execution_count"] == 3
    assert shown[2:] == [
        {"output_type": "stream", "name": "stdout", "text": "ab"},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t"]},
    ]


def test_a_widget_captures_the_output_of_its_own_cell_only() -> None:
    filter_ = OutputFilter()
    assert filter_.comm_from_guest(opening("o", model("OutputModel", OUTPUT_MODULE, msg_id=""))).message is not None
    for msg_id, shown in (("c", "c"), ("cell-of-another", ""), ("", ""), (3, "")):
        message = filter_.comm_from_guest(update("o", {"msg_id": msg_id})).message
        assert message is not None and message.data["state"] == {"msg_id": shown}


@pytest.mark.parametrize("policy", list(OutputPolicy))
@pytest.mark.parametrize(
    ("target", "comm_id", "trusted"),
    [
        ("of-a-page", "x", True), ("agently.panel", "x", False), ("AGENTLY.x", "x", False), ("", "x", False),
        ("jupyter.widget.control", "x", False), ("of-a-page", "agently-1", False), ("of-a-page", "known", False),
    ],
)
def test_comms_to_other_targets(policy: OutputPolicy, target: str, comm_id: str, trusted: bool) -> None:
    filter_ = OutputFilter(policy)
    assert filter_.comm_from_guest(opening("known", model("LabelModel", value="x"))).message is not None
    event = CommOutput("c", "comm_open", comm_id, {"a": 1}, {}, target, (b"z",))
    passed = trusted and policy is OutputPolicy.TRUSTED
    assert filter_.comm_from_guest(event).message == (event if passed else None)
    assert filter_.open_comms().get(comm_id) == (target if passed else "jupyter.widget" if comm_id == "known" else None)


@pytest.mark.parametrize(
    ("name", "trait", "value", "kept"),
    [
        ("LayoutModel", "width", "50%", True),
        ("LayoutModel", "width", "1px;position:fixed", False),
        ("LayoutModel", "border_top", "url(https://evil.example)", False),
        ("ButtonStyleModel", "button_color", "lightgreen", True),
        ("HTMLStyleModel", "background", "url(https://evil.example)", False),
        ("ButtonModel", "icon", "check fa-spin", True),
        ("ButtonModel", "icon", "x' onload='", False),
        ("HBoxModel", "box_style", "info", True),
        ("TagsInputModel", "tag_style", 'a"b', False),
    ],
)
def test_style_and_word_traits(name: str, trait: str, value: str, kept: bool) -> None:
    module = BASE_MODULE if name == "LayoutModel" else CONTROLS_MODULE
    message = OutputFilter().comm_from_guest(opening("w", model(name, module, **{trait: value}))).message
    assert message is not None
    assert message.data["state"].get(trait) == (value if kept else None)


def test_classes_of_the_page_are_dropped() -> None:
    assert opened(OutputFilter(), "b", "BoxModel", _dom_classes=["mine", "jp-Dialog", "a b", 5])["_dom_classes"] == [
        "mine"
    ]


def test_references_to_widgets_that_are_not_there_are_dropped() -> None:
    filter_ = OutputFilter()
    opened(filter_, "a", "LabelModel", value="x")
    state = opened(filter_, "b", "BoxModel", children=["IPY_MODEL_a", "IPY_MODEL_other"], layout="IPY_MODEL_host")
    assert state["children"] == ["IPY_MODEL_a"]
    assert state["layout"] is None


def test_links_in_the_page_never_end_in_html() -> None:
    filter_ = OutputFilter()
    opened(filter_, "t", "TextareaModel", value=IMG)
    opened(filter_, "n", "IntTextModel", value=1)
    opened(filter_, "h", "HTMLModel", value="")
    text, number, page = (["IPY_MODEL_" + i, "value"] for i in "tnh")
    state = opened(filter_, "l1", "DirectionalLinkModel", source=text, target=number)
    assert (state["source"], state["target"]) == (text, number)
    for count, (source, target) in enumerate(
        [
            (text, page),
            (page, text),
            (text, ["IPY_MODEL_n", "description_allow_html"]),
            (text, ["IPY_MODEL_z", "value"]),
            (text, "x"),
        ]
    ):
        state = opened(filter_, f"bad{count}", "LinkModel", source=source, target=target)
        assert not {"source", "target"} <= set(state)
    message = filter_.comm_from_guest(update("l1", {"target": page})).message
    assert message is None


def test_binary_traits_are_media_by_their_header() -> None:
    filter_ = OutputFilter()
    png = b"\x89PNG\r\n\x1a\n0000"
    for comm_id, buffer, kept in (("a", png, png), ("b", b"<html>", b""), ("c", b"", b"")):
        event = opening(comm_id, model("ImageModel", format="png"), (buffer,), [["value"]])
        message = filter_.comm_from_guest(event).message
        assert message is not None
        assert (message.data["buffer_paths"], message.buffers) == ([["value"]], (kept,))
    event = opening("d", model("ImageModel", format="url"), (b"https://evil.example/?x",), [["value"]])
    assert filter_.comm_from_guest(event).message.buffers == (b"",)  # type: ignore[union-attr]
    event = opening("e", model("ImageModel", format="url"), (b"data:image/png;base64,AAAA",), [["value"]])
    assert filter_.comm_from_guest(event).message.buffers == (b"data:image/png;base64,AAAA",)  # type: ignore[union-attr]
    # A format that arrives alone cannot turn earlier bytes into an address.
    assert filter_.comm_from_guest(update("a", {"format": "url"})).message is None
    event = opening("f", model("LabelModel"), (b"x",), [["value"]])
    message = filter_.comm_from_guest(event).message
    assert message is not None and (message.data["buffer_paths"], message.buffers) == ([], ())
    limited = OutputFilter(limits=OutputLimits(buffer_bytes=3))
    assert (
        limited.comm_from_guest(
            event.__class__("c", "comm_open", "g", event.data, {}, "jupyter.widget", (b"xxxx",))
        ).message
        is None
    )


@pytest.mark.parametrize("target", ["agently.panel", "Agently.x", "jupyter.widget.control", "jupyter.widget ", ""])
def test_targets_of_the_kernel_can_never_be_opened(target: str) -> None:
    for policy in OutputPolicy:
        filter_ = OutputFilter(policy)
        filter_.allow(f"comm:{target}")
        result = filter_.comm_from_guest(replace(opening("x", model("LabelModel")), target_name=target))
        assert result.message is None
        assert result.withheld[0].kind == ""
        assert "the target or the id belongs to the kernel" in result.withheld[0].reason
        assert filter_.open_comms() == {}


def test_other_targets_wait_for_approval_of_just_them() -> None:
    filter_ = OutputFilter()
    opened = CommOutput("c", "comm_open", "x", {"a": 1}, {"m": 2}, "hv-extension-comm", (b"b",))
    result = filter_.comm_from_guest(opened)
    assert result.message is None
    assert result.withheld[0].kind == "comm:hv-extension-comm"
    assert result.notice.endswith("To allow it in this session: %agently allow comm:hv-extension-comm")
    assert filter_.comm_from_guest(replace(opened, kind="comm_msg")).message is None
    assert filter_.comm_from_front_end(replace(opened, kind="comm_msg")) is None
    filter_.allow("comm:hv-extension-comm")
    assert filter_.comm_from_guest(opened).message == opened
    answer = replace(opened, kind="comm_msg", cell="")
    assert filter_.comm_from_front_end(answer) == answer
    assert filter_.comm_from_guest(replace(opened, comm_id="y", target_name="another")).message is None
    assert filter_.comm_from_guest(opened).message is None  # the id is taken


def test_comms_cannot_be_taken_over() -> None:
    filter_ = OutputFilter()
    control = CommOutput("", "comm_open", "from-page", {}, {}, "jupyter.widget.control")
    assert filter_.comm_from_front_end(control) == control
    assert filter_.comm_from_front_end(control) is None
    assert filter_.comm_from_front_end(replace(control, comm_id="p", target_name="agently.panel")) is None
    for bad in ("from-page", "agently.panel", "", "a b", "x" * 200):
        assert filter_.comm_from_guest(opening(bad, model("LabelModel"))).message is None
    for kind in ("comm_msg", "comm_close"):
        unknown = CommOutput("c", kind, "unknown", {"method": "update", "state": {"value": 1}})  # type: ignore[arg-type]
        assert filter_.comm_from_guest(unknown).message is None
        assert filter_.comm_from_front_end(unknown) is None


def test_number_of_comms_is_bounded() -> None:
    filter_ = OutputFilter(limits=OutputLimits(comms=2))
    results = [filter_.comm_from_guest(opening(f"w{n}", model("LabelModel"))) for n in range(4)]
    assert [r.message is not None for r in results] == [True, True, False, False]
    assert [bool(r.notice) for r in results] == [False, False, True, False]


def test_a_page_that_reloads_gets_filtered_states() -> None:
    filter_ = OutputFilter()
    opened(filter_, "h", "HTMLModel", value="x")
    filter_.comm_from_guest(opening("any", model("M", "anywidget")))
    filter_.comm_from_front_end(CommOutput("", "comm_open", "ctl", {}, {}, "jupyter.widget.control"))
    states = {
        "h": {"model_name": "LabelModel", "model_module": "evil", "model_module_version": "9", "state": {"value": IMG}},
        "any": {"model_name": "M", "model_module": "anywidget", "state": {"_esm": "1"}},
        "other": {"model_name": "HTMLModel", "model_module": CONTROLS_MODULE, "state": {"value": IMG}},
    }
    event = CommOutput("c", "comm_msg", "ctl", {"method": "update_states", "states": states, "buffer_paths": []})
    message = filter_.comm_from_guest(event).message
    assert message is not None
    assert set(message.data["states"]) == {"h"}
    shown = message.data["states"]["h"]
    assert (shown["model_name"], shown["model_module"], shown["model_module_version"]) == (
        "HTMLModel",
        CONTROLS_MODULE,
        "2.0.0",
    )
    assert framed(shown["state"]["value"]) is not None
    # Not through an ordinary widget's comm.
    assert filter_.comm_from_guest(replace(event, comm_id="h")).message is None


def test_views_of_widgets_need_an_open_widget() -> None:
    filter_ = OutputFilter()
    mime = "application/vnd.jupyter.widget-view+json"

    def view(model_id: Any) -> dict[str, Any]:
        data = {mime: {"model_id": model_id, "version_major": 2, "version_minor": 0}, "text/plain": "w"}
        return filter_.bundle(data, {}, kind="display_data", cell="c").data

    opened(filter_, "w", "LabelModel")
    assert view("w") == {mime: {"version_major": 2, "version_minor": 0, "model_id": "w"}, "text/plain": "w"}
    assert view("other") == {"text/plain": "w"}
    assert view(["w"]) == {"text/plain": "w"}
    assert filter_.new_guest() == ["w"]
    assert view("w") == {"text/plain": "w"}
    assert filter_.open_comms() == {}


def test_messages_of_the_front_end_reach_open_widgets_only() -> None:
    filter_ = OutputFilter()
    opened(filter_, "w", "IntSliderModel", value=3)
    assert filter_.open_comms() == {"w": "jupyter.widget"}
    event = CommOutput("", "comm_msg", "w", {"method": "update", "state": {"value": 41}})
    assert filter_.comm_from_front_end(event) == event
    close = CommOutput("", "comm_close", "w", {})
    assert filter_.comm_from_front_end(close) == close
    assert filter_.comm_from_front_end(event) is None


def test_trusted_policy_opens_any_widget_but_no_other_target() -> None:
    filter_ = OutputFilter(OutputPolicy.TRUSTED)
    event = opening("w", model("M", "anywidget", _esm="1"))
    assert filter_.comm_from_guest(event).message == event
    assert filter_.comm_from_guest(replace(event, comm_id="x", target_name="agently.panel")).message is None
