"""The widget models that a guest may open, and the one view that each of them gets."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

BASE_MODULE = "@jupyter-widgets/base"
CONTROLS_MODULE = "@jupyter-widgets/controls"
OUTPUT_MODULE = "@jupyter-widgets/output"

ModelKey: TypeAlias = tuple[str, str]
"""``_model_module`` and ``_model_name``."""


class View(NamedTuple):
    """The view of a model: module, name (None: not shown by itself), and the version of both modules."""

    module: str
    name: str | None
    version: str


# Models whose view has another name than the model.
_VIEWS = {
    "BoundedFloatTextModel": "FloatTextView",
    "BoundedIntTextModel": "IntTextView",
    "FloatProgressModel": "ProgressView",
    "IntProgressModel": "ProgressView",
    "NaiveDatetimeModel": "DatetimeView",
}
_CONTROLS = """
    AccordionModel AudioModel BoundedFloatTextModel BoundedIntTextModel BoxModel ButtonModel CheckboxModel
    ColorPickerModel ColorsInputModel ComboboxModel ControllerAxisModel ControllerButtonModel ControllerModel
    DatePickerModel DatetimeModel DropdownModel FileUploadModel FloatLogSliderModel FloatProgressModel
    FloatRangeSliderModel FloatSliderModel FloatTextModel FloatsInputModel GridBoxModel HBoxModel HTMLMathModel
    HTMLModel ImageModel IntProgressModel IntRangeSliderModel IntSliderModel IntTextModel IntsInputModel LabelModel
    NaiveDatetimeModel PasswordModel PlayModel RadioButtonsModel SelectModel SelectMultipleModel
    SelectionRangeSliderModel SelectionSliderModel StackModel TabModel TagsInputModel TextModel TextareaModel
    TimeModel ToggleButtonModel ToggleButtonsModel VBoxModel ValidModel VideoModel
"""
_STYLES = """
    ButtonStyleModel CheckboxStyleModel DescriptionStyleModel HTMLMathStyleModel HTMLStyleModel LabelStyleModel
    ProgressStyleModel SliderStyleModel TextStyleModel ToggleButtonStyleModel ToggleButtonsStyleModel
"""
LINK_MODELS = frozenset({"DirectionalLinkModel", "LinkModel"})
STYLE_MODELS = frozenset({*_STYLES.split(), "LayoutModel"})

MODELS: dict[ModelKey, View] = {
    **{
        (CONTROLS_MODULE, name): View(CONTROLS_MODULE, _VIEWS.get(name, name.replace("Model", "View")), "2.0.0")
        for name in _CONTROLS.split()
    },
    **{(CONTROLS_MODULE, name): View(BASE_MODULE, "StyleView", "2.0.0") for name in _STYLES.split()},
    **{(CONTROLS_MODULE, name): View(CONTROLS_MODULE, None, "2.0.0") for name in LINK_MODELS},
    (BASE_MODULE, "LayoutModel"): View(BASE_MODULE, "LayoutView", "2.0.0"),
    (OUTPUT_MODULE, "OutputModel"): View(OUTPUT_MODULE, "OutputView", "1.0.0"),
}

# What links between widgets may couple in the page, where no filter sees the values: traits never read as HTML.
LINKABLE_TRAITS = frozenset(
    {"value", "min", "max", "step", "index", "selected_index", "disabled", "interval", "playing", "continuous_update"}
)
LINKABLE_MODELS = frozenset(_CONTROLS.split()) - {
    "HTMLModel",
    "HTMLMathModel",
    "ImageModel",
    "AudioModel",
    "VideoModel",
    "FileUploadModel",
    "ControllerModel",
}
