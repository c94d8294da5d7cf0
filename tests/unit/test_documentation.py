"""The pages of the documentation: all are found from the README, links lead somewhere, remedies work."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agently_kernel.providers.bubblewrap_binary import INSTALL, PIN
from agently_kernel.providers.docker_engine import SDK

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def links(page: Path) -> Iterator[Path]:
    """Yield the files of this repository that *page* links to."""
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if not re.match(r"[a-z]+:", target):
            yield (page.parent / target).resolve()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [str(target) for target in links(page) if not target.exists()] == []


def test_every_page_and_notebook_is_found_from_the_readme() -> None:
    direct = set(links(ROOT / "README.md"))
    ours = [*(ROOT / "docs").glob("*.md"), ROOT / "docs" / "providers" / "README.md", *NOTEBOOKS]
    assert sorted(str(page) for page in ours if page not in direct) == []
    found, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in found and page.suffix == ".md" and page.is_relative_to(ROOT):
            found.add(page)
            waiting += links(page)
    assert sorted(str(page) for page in PAGES if page not in found) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 100


def test_what_a_remedy_installs_is_what_the_extras_install() -> None:
    """By the packages' own names: these can be had wherever this one was installed from."""
    extras = {
        name: requirement.partition(";")[0].strip()
        for requirement in importlib.metadata.requires("agently-kernel") or ()
        for name in re.findall(r"extra == ['\"](bubblewrap|docker)['\"]", requirement)
    }
    assert extras == {"bubblewrap": PIN, "docker": SDK}
    assert PIN in INSTALL


def test_no_page_and_no_remedy_asks_an_index_for_this_package() -> None:
    sources = [*PAGES, *(ROOT / "kernel").rglob("*.py"), *(ROOT / "extension").rglob("*.py")]
    asked = re.compile(r"pip install\b[^`\n]*['\" ]agently-kernel\b")
    assert [str(path) for path in sources if asked.search(path.read_text("utf-8"))] == []


def test_every_test_that_a_page_names_is_there() -> None:
    """A name may be cut off with an ellipsis; one without a file is of the file named before it in the section."""
    section = (ROOT / "docs" / "compatibility.md").read_text("utf-8").partition("## Traps")[2].partition("\n## ")[0]
    own = (ROOT / "tests" / "fidelity" / "test_known_traps.py").read_text("utf-8")
    named = re.findall(r"`(?:(tests/[\w/]+\.py|…)(?:::)?)?(test_\w+)?…?`", section)
    lost, file = [], ""
    for path, name in named:
        file = file if path == "…" else path
        place = ROOT / file if file else None
        text = own if place is None else place.read_text("utf-8") if place.exists() else ""
        if not text or (name and f"def {name}" not in text):
            lost.append(f"{file}::{name}")
    assert len(named) > 25
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_tests_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`(tests/\w+/(?:\w+\.py)?)", page.read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []
