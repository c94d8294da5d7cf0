"""Comm messages of a guest: which widgets it may open, and what of their state reaches the page.

A widget is a second way into the page, past every MIME type: its state is rendered by code of the page. So the models
that may be opened, the view each of them gets, and the treatment of each kind of trait are listed here; the rest is
withheld.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agently_kernel.contract.outputs import CommOutput
from agently_kernel.outputs import css, markup, text
from agently_kernel.outputs.models import (
    CONTROLS_MODULE,
    LINK_MODELS,
    LINKABLE_MODELS,
    LINKABLE_TRAITS,
    MODELS,
    STYLE_MODELS,
    ModelKey,
)
from agently_kernel.outputs.policy import FilteredComm, OutputLimits, OutputPolicy, Withheld, withheld

WIDGET_TARGET = "jupyter.widget"
CONTROL_TARGET = "jupyter.widget.control"
_COMM_ID = re.compile(r"(?!agently)[A-Za-z0-9_.-]{1,128}\Z")
_REFERENCE = "IPY_MODEL_"
_WORD = re.compile(r"[\w -]{0,100}\Z")
_FORMAT = re.compile(r"[\w.+-]{1,40}\Z")
_WORD_TRAITS = frozenset({"icon", "button_style", "box_style", "bar_style", "tag_style", "orientation", "behavior"})
_IDENTITY = frozenset(
    {"_model_module", "_model_module_version", "_model_name", "_view_module", "_view_module_version", "_view_name"}
)
_PRIVATE_KEPT = frozenset({"_dom_classes", "_view_count", "_options_labels", "_titles"})
_BITMAP_URL = re.compile(rb"data:image/(?:png|jpe?g|gif|webp);base64,", re.IGNORECASE)
_MEDIA_HEADS: dict[str, tuple[bytes, ...]] = {
    "ImageModel": (
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF8",
        b"RIFF",
        b"BM",
        b"<svg",
        b"<?xml",
        b"II*\x00",
        b"MM\x00*",
    ),
    "AudioModel": (
        b"RIFF",
        b"OggS",
        b"fLaC",
        b"ID3",
        b"\xff\xfb",
        b"\xff\xf3",
        b"\xff\xf2",
        b"\xff\xf1",
        b"\xff\xf9",
        b"\x1aE\xdf\xa3",
    ),
    "VideoModel": (b"RIFF", b"OggS", b"\x1aE\xdf\xa3"),
}


@dataclass(slots=True)
class _Model:
    """An open comm: the model it holds, or the kind for which it was withheld, or nothing for a control comm."""

    target: str
    key: ModelKey | None = None
    withheld_kind: str = ""
    trusted: bool = False
    format: str = ""


def _kind_of(model: _Model) -> str:
    """Return what an approval of *model* is called (``Withheld.kind``)."""
    if model.target == WIDGET_TARGET:
        return f"widget:{model.key[0]}" if model.key is not None else ""
    return f"comm:{model.target}"


class WidgetFilter:
    """Keeps the comms of one guest and filters what goes through them. *clean_html*, *clean_output*: the owner's
    filters."""

    def __init__(
        self,
        policy: OutputPolicy,
        granted: set[str],
        limits: OutputLimits,
        clean_html: Callable[[str], str],
        clean_output: Callable[[dict[str, Any]], dict[str, Any] | None],
    ) -> None:
        self._policy = policy
        self._granted = granted
        self._limits = limits
        self._clean_html = clean_html
        self._clean_output = clean_output
        self._comms: dict[str, _Model] = {}

    def reset(self) -> list[str]:
        """Forget every comm of a guest that ended; return their ids, to be closed at the front end."""
        ids = list(self._comms)
        self._comms.clear()
        return ids

    def withdraw(self, kind: str) -> list[str]:
        """Forget the comms that an approval of *kind* opened; return their ids, to be closed at both ends."""
        if self._policy is OutputPolicy.TRUSTED:
            return []
        ids = [comm_id for comm_id, model in self._comms.items() if model.trusted and _kind_of(model) == kind]
        for comm_id in ids:
            del self._comms[comm_id]
        return ids

    def targets(self) -> dict[str, str]:
        """Return the open comms and their targets, as ``comm_info_reply`` wants them."""
        return {comm_id: model.target for comm_id, model in self._comms.items()}

    def is_shown(self, comm_id: str) -> bool:
        """True when *comm_id* is a widget that the front end knows (a placeholder counts)."""
        model = self._comms.get(comm_id)
        return model is not None and model.target == WIDGET_TARGET

    def from_front_end(self, event: CommOutput) -> CommOutput | None:
        """Return the message if it may go to the guest: of a widget target, or a comm that was not withheld."""
        if event.kind == "comm_open":
            free = event.comm_id not in self._comms and len(self._comms) < self._limits.comms
            if event.target_name not in (WIDGET_TARGET, CONTROL_TARGET) or not free:
                return None
            self._comms[event.comm_id] = _Model(event.target_name, trusted=False)
            return event
        model = self._comms.get(event.comm_id)
        if event.kind == "comm_close":
            self._comms.pop(event.comm_id, None)
            return event if model is not None else None
        return event if model is not None and not model.withheld_kind else None

    def from_guest(self, event: CommOutput) -> FilteredComm:
        """Return what of a guest's message may go to the front end."""
        if event.kind == "comm_open":
            return self._open(event)
        model = self._comms.get(event.comm_id)
        if model is None:
            return FilteredComm(None)
        if event.kind == "comm_close":
            del self._comms[event.comm_id]
            return FilteredComm(replace(event, data={}, metadata={}, target_name="", buffers=()))
        if model.withheld_kind:
            return FilteredComm(None)
        event = replace(event, target_name="", metadata={})
        if model.trusted:
            return FilteredComm(event)
        return FilteredComm(self._message(event, model))

    def _open(self, event: CommOutput) -> FilteredComm:
        if event.target_name != WIDGET_TARGET:
            return self._open_other(event)
        if not _COMM_ID.match(event.comm_id) or event.comm_id in self._comms:
            return FilteredComm(
                None, (Withheld("", "", "A widget with an id that is in use or not allowed was refused."),)
            )
        if len(self._comms) >= self._limits.comms:
            reason = f"A widget was refused: {self._limits.comms} are open. Close some with widget.close() or restart."
            return FilteredComm(None, (Withheld("", "", reason),))
        state = event.data.get("state")
        if not isinstance(state, dict):
            return FilteredComm(None, (Withheld("", "", "A widget without a state was refused."),))
        key = (str(state.get("_model_module")), str(state.get("_model_name")))
        metadata = {"version": "2.1.0"}
        if self._policy is OutputPolicy.TRUSTED or f"widget:{key[0]}" in self._granted:
            self._comms[event.comm_id] = _Model(WIDGET_TARGET, key, trusted=True)
            return FilteredComm(replace(event, metadata=metadata))
        if key not in MODELS:
            return self._placeholder(event, key)
        model = self._comms[event.comm_id] = _Model(WIDGET_TARGET, key)
        cleaned, paths, buffers = self._state(model, state, event, "state")
        view = MODELS[key]
        cleaned.update(_model_module=key[0], _model_name=key[1], _model_module_version=view.version)
        cleaned.update(_view_module=view.module, _view_module_version=view.version, _view_name=view.name)
        data = {"state": cleaned, "buffer_paths": paths}
        return FilteredComm(replace(event, data=data, metadata=metadata, buffers=tuple(buffers)))

    def _open_other(self, event: CommOutput) -> FilteredComm:
        """A comm to a script of the page that is no widget manager: once the person allowed this very target."""
        target = text.one_line(event.target_name, 80)
        kind = f"comm:{event.target_name}"
        if not self._is_free(event):
            reason = f"A comm to {target!r} was refused: the target or the id belongs to the kernel or to another comm."
            return FilteredComm(None, (Withheld("", "", reason),))
        if self._policy is OutputPolicy.TRUSTED or kind in self._granted:
            self._comms[event.comm_id] = _Model(event.target_name, trusted=True)
            return FilteredComm(event)
        reason = f"A comm to {target!r} was refused: code of the page that nobody has looked at would take it."
        return FilteredComm(None, (withheld(kind, "", reason),))

    def _is_free(self, event: CommOutput) -> bool:
        """True when a comm to a page's own script may be opened: not a target of the kernel's, an id of no other."""
        own = not event.target_name or event.target_name.casefold().startswith(("agently", "jupyter.widget"))
        known = event.comm_id in self._comms or not _COMM_ID.match(event.comm_id)
        return not (own or known or len(self._comms) >= self._limits.comms)

    def _placeholder(self, event: CommOutput, key: ModelKey) -> FilteredComm:
        module = text.one_line(key[0], 80)
        kind = f"widget:{key[0]}"
        lost = withheld(kind, "", f"A widget of {module} was withheld: it brings code of its own into the page.")
        self._comms[event.comm_id] = _Model(WIDGET_TARGET, None, withheld_kind=kind)
        layout = event.data["state"].get("layout")
        state = {
            "_model_module": CONTROLS_MODULE,
            "_model_module_version": "2.0.0",
            "_model_name": "LabelModel",
            "_view_module": CONTROLS_MODULE,
            "_view_module_version": "2.0.0",
            "_view_name": "LabelView",
            "value": lost.line,
        }
        if isinstance(layout, str) and self._reference(layout):
            state["layout"] = layout
        data = {"state": state, "buffer_paths": []}
        message = replace(event, data=data, metadata={"version": "2.1.0"}, buffers=())
        return FilteredComm(message, (lost,))

    def _message(self, event: CommOutput, model: _Model) -> CommOutput | None:
        method = event.data.get("method")
        if method == "custom":
            content = event.data.get("content")
            wish = content.get("do") if isinstance(content, dict) else None
            if wish not in ("focus", "blur"):
                return None
            return replace(event, data={"method": "custom", "content": {"do": wish}}, buffers=())
        if method == "update_states" and model.target == CONTROL_TARGET:
            return self._update_states(event)
        state = event.data.get("state")
        if method not in ("update", "echo_update") or not isinstance(state, dict) or model.key is None:
            return None
        cleaned, paths, buffers = self._state(model, state, event, "state")
        if not cleaned and not paths:
            return None
        data = {"method": method, "state": cleaned, "buffer_paths": paths}
        return replace(event, data=data, buffers=tuple(buffers))

    def _update_states(self, event: CommOutput) -> CommOutput | None:
        """Answer to a front end that (re)loads: the states of all widgets at once."""
        states = event.data.get("states")
        if not isinstance(states, dict):
            return None
        kept: dict[str, Any] = {}
        paths: list[list[Any]] = []
        buffers: list[bytes] = []
        for comm_id, entry in states.items():
            model = self._comms.get(comm_id)
            state = entry.get("state") if isinstance(entry, dict) else None
            if model is None or model.key is None or model.withheld_kind or not isinstance(state, dict):
                continue
            if model.trusted:
                cleaned, own, data = state, *_buffers_below(event, (comm_id, "state"))
            else:
                cleaned, own, data = self._state(model, state, event, comm_id, "state")
            view = MODELS.get(model.key)
            version = view.version if view else str(entry.get("model_module_version"))
            kept[comm_id] = {
                "model_module": model.key[0],
                "model_name": model.key[1],
                "model_module_version": version,
                "state": cleaned,
            }
            paths += [[comm_id, "state", *path] for path in own]
            buffers += data
        data_out = {"method": "update_states", "states": kept, "buffer_paths": paths}
        return replace(event, data=data_out, buffers=tuple(buffers))

    def _state(
        self, model: _Model, state: Mapping[str, Any], event: CommOutput, *root: str
    ) -> tuple[dict[str, Any], list[list[Any]], list[bytes]]:
        """Return the state that may be shown, with the buffers below *root* that may go with it."""
        if model.key is None:  # not known what it is, so nothing of it is shown
            return {}, [], []
        name = model.key[1]
        root = root if len(root) > 1 else ()
        paths, buffers = self._media(model, state, event, root)
        cleaned: dict[str, Any] = {}
        for trait, value in state.items():
            if trait in _IDENTITY or (trait.startswith("_") and trait not in _PRIVATE_KEPT) or trait == "target_module":
                continue
            if name == "OutputModel" and trait == "msg_id" and value != event.cell:
                value = ""  # the page moves that request's output into the widget: only the cell's own may go there
            kept, value = self._trait(name, model, trait, value)
            if kept:
                cleaned[trait] = value
        return cleaned, paths, buffers

    def _trait(self, name: str, model: _Model, trait: str, value: Any) -> tuple[bool, Any]:
        """Return whether a trait is kept, and its value."""
        if trait == "description_allow_html":
            return True, False
        if name in STYLE_MODELS:
            if isinstance(value, str):
                return not value or css.clean_value(value) is not None, value
            return value is None or isinstance(value, int | float), value
        if name in LINK_MODELS:
            return (trait not in ("source", "target") or self._linkable(value)), value
        if name in ("HTMLModel", "HTMLMathModel") and trait == "value":
            return True, self._clean_html(value) if isinstance(value, str) else ""
        if name == "OutputModel" and trait == "outputs":
            outputs = value if isinstance(value, list) else []
            return True, [o for o in (self._clean_output(o) for o in outputs if isinstance(o, dict)) if o is not None]
        if trait == "_dom_classes":
            classes = value if isinstance(value, list) else []
            return True, [c for c in classes if isinstance(c, str) and markup.own_class(c)]
        if trait in _WORD_TRAITS:
            return (value is None or (isinstance(value, str) and bool(_WORD.match(value)))), value
        if trait == "format" and name in _MEDIA_HEADS:
            return value == model.format, value
        return True, self._plain(value)

    def _plain(self, value: Any) -> Any:
        """Return a value in which strings are text and references point to widgets that the front end knows."""
        if isinstance(value, str):
            if value.startswith(_REFERENCE):
                return value if self._reference(value) else None
            return text.clean_text(text.defuse_macros(value))
        if isinstance(value, list):
            items = [self._plain(item) for item in value]
            return [new for new, old in zip(items, value, strict=True) if new is not None or old is None]
        if isinstance(value, dict):
            return {key: self._plain(item) for key, item in value.items()}
        return value

    def _reference(self, value: str) -> bool:
        return value.startswith(_REFERENCE) and self.is_shown(value[len(_REFERENCE) :])

    def _linkable(self, value: Any) -> bool:
        """True for [model, trait] that may be one end of a link in the page."""
        if not isinstance(value, list) or len(value) != 2 or not all(isinstance(v, str) for v in value):
            return False
        model = self._comms.get(value[0][len(_REFERENCE) :]) if value[0].startswith(_REFERENCE) else None
        return (
            model is not None
            and model.key is not None
            and model.key[0] == CONTROLS_MODULE
            and model.key[1] in LINKABLE_MODELS
            and value[1] in LINKABLE_TRAITS
        )

    def _media(
        self, model: _Model, state: Mapping[str, Any], event: CommOutput, root: tuple[str, ...]
    ) -> tuple[list[list[Any]], list[bytes]]:
        """Return the binary traits that may be shown. A medium given as an address must be a bitmap in a data URL."""
        if model.key is None:
            return [], []
        name = model.key[1]
        paths, buffers = _buffers_below(event, root)
        wanted = state.get("format")
        new_format = wanted if isinstance(wanted, str) and _FORMAT.match(wanted) else model.format
        if new_format == "url" != model.format and ["value"] not in paths:
            new_format = model.format
        model.format = new_format
        kept_paths, kept = [], []
        for path, data in zip(paths, buffers, strict=True):
            if name == "FileUploadModel" and len(path) == 3 and path[0] == "value" and path[2] == "content":
                kept_paths.append(path)
                kept.append(data)
            elif name in _MEDIA_HEADS and path == ["value"]:
                kept_paths.append(path)
                kept.append(data if _medium_ok(name, new_format, data) else b"")
        return kept_paths, kept


def _medium_ok(name: str, form: str, data: bytes) -> bool:
    if form == "url":
        return name == "ImageModel" and _BITMAP_URL.match(data) is not None
    return (
        not data or data[:64].lstrip().startswith(_MEDIA_HEADS[name]) or (name != "ImageModel" and data[4:8] == b"ftyp")
    )


def _buffers_below(event: CommOutput, root: tuple[str, ...]) -> tuple[list[list[Any]], list[bytes]]:
    """Return the buffer paths below *root*, without it, and their buffers; malformed paths are left out."""
    paths = event.data.get("buffer_paths")
    kept_paths, kept = [], []
    for path, data in zip(paths if isinstance(paths, list) else [], event.buffers, strict=False):
        if isinstance(path, list) and all(isinstance(p, str | int) for p in path) and path[: len(root)] == list(root):
            kept_paths.append(path[len(root) :])
            kept.append(bytes(data))
    return kept_paths, kept
