"""The page about settings says what the settings are, and its examples work as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.settings import KernelSettings, public_name, read_settings
from agently_kernel.settings_page import settings_page
from agently_kernel.user_config import config_places, read_config, section_of

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
FIELDS = [
    (part, name, model)
    for part, model in (("", KernelSettings), ("limits", ResourceLimits), ("collection", CollectionLimits))
    for name in model.model_fields
]


def test_the_page_is_what_the_settings_are() -> None:
    text = PAGE.read_text("utf-8")
    assert text == settings_page(), "make it again: python -m agently_kernel.settings_page > docs/settings.md"


@pytest.mark.parametrize(("part", "name", "model"), FIELDS, ids=[f"{part}.{name}" for part, name, _ in FIELDS])
def test_every_setting_has_a_meaning_and_an_example_that_changes_it(part: str, name: str, model: Any) -> None:
    field = model.model_fields[name]
    assert field.description and field.examples
    written: dict[str, Any] = {public_name(model, name): field.examples[0]}
    if name == "unsafe_fallback":
        written["isolation"] = "none"  # which its description says
    settings, faults = read_settings({part: written} if part else written)
    assert faults == ()
    found = getattr(getattr(settings, part) if part else settings, name)
    assert found != field.get_default(call_default_factory=True)


def test_the_page_shows_range_default_and_example() -> None:
    rows = {line.split(" | ")[0].strip("| `"): line for line in PAGE.read_text("utf-8").splitlines() if "| `" in line}
    assert "number, at least 0.01 and at most 8,192, or `None` | `None` |" in rows["cpus"]
    assert "size, at least 64 MiB and at most 1 PiB, or `None` | 2 GiB |" in rows["memory"]
    assert "| 120 |" in rows["approval_timeout"]
    assert "`c.AgentlyKernel.approval_timeout = 30`" in rows["approval_timeout"]
    assert '`"auto"`, `"always"`, `"never"` | `"auto"` |' in rows["approval_mode"]


def test_the_example_file_is_read_without_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = PAGE.read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    (tmp_path / "agently_kernel_config.py").write_text(block, "utf-8")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    settings, faults = read_settings(section_of(read_config(())[0]), config_places(()).of)
    assert faults == ()
    assert (settings.limits.cpus, settings.limits.memory_bytes, settings.timeout) == (2.0, 4 * 2**30, 600.0)


def test_a_limit_that_is_none_cannot_be_required() -> None:
    _, (fault,) = read_settings({"required_limits": ["memry"]})
    assert "required_limits.0 = 'memry' is not valid" in fault and "'memory'" in fault
