"""What the two sides share stays shared: the generated TypeScript, the catalogue, the fixed wording."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agently_kernel
from agently_kernel.panel_typescript import typescript
from agently_kernel.panel_views import clean, media_of
from agently_kernel.policy_text import WORDING

REPO = Path(__file__).resolve().parents[3]
SOURCES = REPO / "labextension" / "src"
CATALOGUE = Path(agently_kernel.__file__).parent / "locale" / "zh_CN" / "LC_MESSAGES" / "agently_kernel_panel.json"
STRING = r"'((?:[^'\\\\]|\\\\.)*)'"


def messages() -> set[str]:
    """Every message that the extension's sources ask to be translated."""
    found: set[str] = set()
    for path in SOURCES.rglob("*.ts*"):
        if "__tests__" not in path.parts:
            text = path.read_text()
            for call in (rf"trans\s*\.__\(\s*{STRING}", rf"trans\s*\._n\(\s*{STRING}"):
                found |= {m.replace("\\'", "'") for m in re.findall(call, text)}
    return found


def schema_texts() -> set[str]:
    """Every title and description of the settings."""
    found: set[str] = set()

    def walk(node: object) -> None:
        if isinstance(node, dict):
            found.update(v for k, v in node.items() if k in ("title", "description") and isinstance(v, str))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    for path in (REPO / "labextension" / "schema").glob("*.json"):
        walk(json.loads(path.read_text()))
    return found


def test_the_committed_typescript_is_that_of_the_schema() -> None:
    committed = (SOURCES / "protocol.ts").read_text()
    assert committed == typescript(), "run: python -m agently_kernel.panel_typescript > labextension/src/protocol.ts"


def test_every_message_is_in_the_catalogue_and_nothing_else() -> None:
    catalogue = json.loads(CATALOGUE.read_text())
    header = catalogue.pop("")
    assert (header["domain"], header["language"]) == ("agently_kernel_panel", "zh-CN")
    wording = {w.title for w in WORDING.values()} | {w.meaning for w in WORDING.values()}
    wording |= {w.what.replace("{subject}", "%1") for w in WORDING.values()}
    settings = {f"schema\x04{text}" for text in schema_texts()}
    wanted = messages() | wording | settings
    assert sorted(wanted - set(catalogue)) == []
    # The reasons of questions are constants of the kernel, and looked up as they are.
    kernel = "".join(path.read_text() for name in ("kernel", "extension") for path in (REPO / name).rglob("*.py"))
    assert sorted(key for key in set(catalogue) - wanted if f'"{key}"' not in kernel) == []
    source = "".join(path.read_text() for path in SOURCES.rglob("*.ts*"))
    plural = set(re.findall(rf"trans\s*\._n\(\s*{STRING}", source))
    for key, value in catalogue.items():
        assert value[0], f"{key!r} is not translated"
        # JupyterLab falls back to English, silently, for any other number of forms.
        assert len(value) == (2 if key in plural else 1), f"{key!r} has {len(value)} forms"
        assert sorted(re.findall(r"%\d", key)) == sorted(re.findall(r"%\d", value[0])), key


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain", "plain"), ("two\nlines\tand a tab", "two\nlines\tand a tab"), ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"), ("a\u200bb", "a\\u200bb"), ("单元格 ✓", "单元格 ✓"), ("\ud800", "\\ud800"),
    ],
)
def test_unprintable_characters_are_shown_as_escapes(given_text: str, shown: str) -> None:
    assert clean(given_text) == shown


@given(st.text(max_size=300))
def test_cleaned_text_is_printable_and_bounded(text: str) -> None:
    shown = clean(text, 50)
    assert all(ch.isprintable() or ch in "\n\t" for ch in shown)
    assert len(shown) <= 50 * len("\\U0010ffff")
    assert shown.encode("utf-8").decode("utf-8") == shown


def test_media_goes_by_the_name() -> None:
    names = ("a.CSV", "b.tsv", "c.PNG", "d.md", "e.bin", "f")
    assert [media_of(name) for name in names] == ["csv", "csv", "image", "text", "other", "other"]
