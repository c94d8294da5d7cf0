"""The gallery notebook, executed headless: what each of its cells leaves in the notebook."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

GALLERY = Path(__file__).parents[2] / "notebooks" / "gallery.ipynb"
VIEW = "application/vnd.jupyter.widget-view+json"
PLAIN = "text/plain"


@pytest.fixture(scope="module")
def executed(own_folders: dict[str, str]) -> list[nbformat.NotebookNode]:
    """The outputs of each code cell."""
    book = nbformat.read(GALLERY, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own_folders.items():
            patch.setenv(name, value)
        NotebookClient(book, timeout=90, coalesce_streams=True).execute()
    assert "widgets" in book.metadata
    return [cell.outputs for cell in book.cells if cell.cell_type == "code"]


def test_no_output_is_kept_in_the_repository() -> None:
    book = nbformat.read(GALLERY, as_version=4)
    nbformat.validate(book)
    assert [cell.outputs for cell in book.cells if cell.get("outputs")] == []


def test_each_cell_leaves_its_forms(executed: list[nbformat.NotebookNode]) -> None:
    forms = [[sorted(o.data) if "data" in o else [o.get("name", "")] for o in outputs] for outputs in executed]
    assert forms == [
        [["image/png", PLAIN]],
        [["image/svg+xml", PLAIN]],
        [["text/html", PLAIN]],
        [["text/html", PLAIN]],
        [["text/markdown", PLAIN], ["text/latex", PLAIN], ["image/jpeg", "image/png", PLAIN]],
        [["text/html", PLAIN], ["image/svg+xml", PLAIN]],
        [[PLAIN], ["stdout"]],
        [[PLAIN, VIEW][::-1]],
        [[PLAIN, VIEW][::-1]],
        [[PLAIN, VIEW][::-1]],
        [["text/html", PLAIN]],
        [["text/html", PLAIN]],
        [["application/vnd.vegalite.v5+json", PLAIN]],
        [[PLAIN], ["stderr"]],
    ]


def test_updates_and_returns_end_in_their_last_state(executed: list[nbformat.NotebookNode]) -> None:
    display, stream = executed[6]
    assert display.data[PLAIN] == "'100 % done'"
    assert stream.text.split("\r")[-1] == "step 20 of 20 " + "█" * 20 + "\n"


def test_scripts_are_framed_or_withheld(executed: list[nbformat.NotebookNode]) -> None:
    for (output,) in executed[10:12]:
        assert re.match(r"<iframe [^>]*sandbox=\"allow-scripts\"", output.data["text/html"].lstrip())
    shown = [o for outputs in executed for o in outputs if "data" in o]
    assert not any("<script" in str(o.data.get("text/html", "")) for o in shown)
    assert "%agently allow javascript" in executed[13][1].text


def test_tables_keep_their_look(executed: list[nbformat.NotebookNode]) -> None:
    styled = executed[3][0].data["text/html"]
    assert "Styled by pandas" in styled and "background-color" in styled and "linear-gradient" in styled
    assert "<iframe" not in styled
