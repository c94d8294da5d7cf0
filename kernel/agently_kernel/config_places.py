"""Where in the user's own files a setting is made: looked up only when there is something wrong with it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

MOST_READ = 1024**2
"""Bytes of a file that are looked at."""


class ConfigPlaces:
    """Finds settings in the configuration *files* (the least important first) and on the command line."""

    def __init__(self, files: Sequence[Path], arguments: Sequence[str], section: str) -> None:
        self._files, self._arguments, self._section = tuple(files), tuple(arguments), section

    def of(self, names: Iterable[Sequence[str]]) -> str:
        """Return ``FILE, line N`` for the first of *names* that is found, "" when nothing is known.

        A name is a path such as ``("limits", "memory")``. What is on the command line wins over files, as it does when
        settings are read; where a name stands in no file by itself, the files that hold the section are named.
        """
        wanted = [tuple(name) for name in names if name]
        for name in wanted:
            if any(argument.startswith(f"--{self._section}.{name[0]}=") for argument in self._arguments):
                return "The command line"
        texts = [(path, text) for path in reversed(self._files) if (text := _text(path))]
        for name in wanted:
            for path, text in texts:
                line = (_line_in_json if path.suffix == ".json" else _line_in_python)(text, name, self._section)
                if line:
                    return f"{path}, line {line}"
        return " and ".join(str(path) for path, text in texts if self._section in text)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MOST_READ).decode("utf-8", "replace")
    except OSError:
        return ""


def _line_in_python(text: str, name: Sequence[str], section: str) -> int:
    """Return the line of the last statement about *name*, or of the part of it that the name's end stands in."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return 0
    own = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _is_setting(node, name[0], section)]
    if not own:  # by a detour: s = c.AgentlyKernel; s.limits = …, or c.AgentlyKernel.update({"limits": …})
        return max(_mentions(tree, name[0]), default=0)
    last = max(own, key=lambda node: node.lineno)
    for part in reversed(name[1:]):
        for statement in sorted(own, key=lambda node: -node.lineno):
            lines = list(_mentions(statement, part))
            if lines:
                return max(lines)
    return last.lineno


def _is_setting(statement: ast.stmt, name: str, section: str) -> bool:
    """True for a plain statement (no loop, no function) in which ``….section.name`` stands."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.If | ast.For | ast.While | ast.With | ast.Try):
        return False
    return any(
        isinstance(node, ast.Attribute) and node.attr == name
        and isinstance(node.value, ast.Attribute | ast.Name)
        and (node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id) == section
        for node in ast.walk(statement)
    )


def _mentions(tree: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(tree):
        named = node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.keyword):
            named = node.arg
        if named == name and isinstance(node, ast.expr | ast.keyword):
            yield node.lineno


def _line_in_json(text: str, name: Sequence[str], section: str) -> int:
    """Return the line of the last key of *name* that is found, each looked for behind the one before it."""
    at, line = -1, 0
    for key in (section, *name):
        found = re.search(rf'"{re.escape(key)}"\s*:', text[at + 1 :])
        if found is None:
            continue
        at += 1 + found.start()
        line = 0 if key == section else text.count("\n", 0, at) + 1
    return line
