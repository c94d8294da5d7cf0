"""What every image must be able to load: the syntax of Python 3.8, and the standard library alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from guest_driver import GUEST

FILES = sorted(GUEST.glob("*.py"))
NEEDS_IPYTHON = {"shell_ipython.py", "kept_apart.py", "kernel_magics.py", "plots.py"}
# loaded when used, and done without
TRIED = {
    "comms.py": {"comm"}, "completion.py": {"IPython", "jedi", "parso"}, "packages.py": {"IPython"},
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_3_8_can_parse_it(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", [p for p in FILES if p.name not in NEEDS_IPYTHON], ids=lambda path: path.name)
def test_it_needs_nothing_but_the_standard_library(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    allowed = TRIED.get(path.name, set())
    assert found - set(sys.stdlib_module_names) <= allowed
