"""A room imports only from floors below its own, as the table of docs/architecture.md has them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import agently_kernel

PACKAGE = Path(agently_kernel.__file__).parent
TABLE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")


def floors() -> dict[str, tuple[int, int]]:
    """Return, by the name of a room, its floor and the number of its row: the rooms of one row are one room."""
    found = {}
    for number, (floor, names) in enumerate(re.findall(r"^\| (\d) \| (`[^|]*) \|", TABLE, re.M)):
        for name in re.findall(r"`([\w.]+)/?`", names):
            found[name.removesuffix(".py")] = (int(floor), number)
    return found


def imported(path: Path) -> set[str]:
    """Return the rooms that a file names in imports, also in those within functions."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "agently_kernel":
            modules += [f"agently_kernel.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in modules if name.startswith("agently_kernel.")}


def uses() -> dict[str, set[str]]:
    """Return what each room (folder or file of the package) imports of other rooms."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found.setdefault(room, set()).update(imported(path) - {room})
    return found


def reached(room: str, graph: dict[str, set[str]], named: set[str]) -> set[str]:
    """Return the rooms of the table that *room* comes to, itself or by files which the table does not name."""
    pending, seen = set(graph[room]), set[str]()
    while pending:
        other = pending.pop()
        if other in graph and other not in seen:
            seen.add(other)
            pending |= graph[other] if other not in named else set()
    return seen & named


FLOORS, USES = floors(), uses()
ROOMS = sorted(FLOORS.keys() - {"agently_exec"})


def test_the_table_names_what_there_is() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert folders <= set(ROOMS) <= set(USES)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_floors_below(room: str) -> None:
    floor, row = FLOORS[room]
    others = reached(room, USES, set(ROOMS))
    assert {name for name in others if FLOORS[name][1] != row and FLOORS[name][0] >= floor} == set()


def test_an_import_from_above_is_found() -> None:
    graph = {"contract": {"helper"}, "helper": {"manager"}, "manager": set[str]()}
    assert reached("contract", graph, {"contract", "manager"}) == {"manager"}
