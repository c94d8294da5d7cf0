"""Deferred packages: a submodule comes without the package's own imports, and nothing of the package is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def ask(tmp_path: Path):
    """Run statements in a fresh interpreter beside a SYNTHETIC package; return what the last one prints as JSON."""
    package = tmp_path / "synthetic_package"
    (package / "heavy").mkdir(parents=True)
    (package / "__init__.py").write_text("from .heavy import weight\n__version__ = '1.2'\nname = 'ours'\n")
    (package / "heavy" / "__init__.py").write_text("weight = 7\n")
    (package / "light.py").write_text("value = 3\n")

    def run(statements: str) -> Any:
        program = "import json, sys\nfrom agently_kernel.deferred import defer\n" + statements
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True
        )
        return json.loads(ended.stdout)

    return run


def test_a_submodule_is_imported_without_the_package(ask) -> None:
    loaded = "print(json.dumps([value, 'synthetic_package.heavy' in sys.modules]))"
    assert ask("defer('synthetic_package')\nfrom synthetic_package.light import value\n" + loaded) == [3, False]


@pytest.mark.parametrize(
    ("statement", "seen"),
    [
        ("import synthetic_package as p; print(json.dumps(p.name))", "ours"),
        ("import synthetic_package as p; print(json.dumps(p.__version__))", "1.2"),
        ("from synthetic_package import weight; print(json.dumps(weight))", 7),
        ("import synthetic_package.light as l, synthetic_package as p; print(json.dumps([l.value, p.weight]))", [3, 7]),
        ("import synthetic_package as p; print(json.dumps([hasattr(p, 'no'), p.name, hasattr(p, 'no')]))",
         [False, "ours", False]),
    ],
)
def test_what_the_package_itself_holds_is_there_when_asked_for(ask, statement: str, seen: Any) -> None:
    assert ask("defer('synthetic_package')\n" + statement) == seen


def test_looking_through_all_modules_loads_nothing(ask) -> None:
    look = "[getattr(m, '__wrapped__', None) for m in list(sys.modules.values())]\n"
    assert ask(
        "defer('synthetic_package')\n" + look + "print(json.dumps('synthetic_package.heavy' in sys.modules))"
    ) is False


def test_a_package_that_is_loaded_or_missing_is_left_alone(ask) -> None:
    assert ask(
        "import synthetic_package\ndefer('synthetic_package', 'no_such_package_anywhere')\n"
        "print(json.dumps([synthetic_package.weight, sys.modules['synthetic_package'] is synthetic_package]))"
    ) == [7, True]


def test_the_kernel_loads_no_ipython(ask) -> None:
    loaded = ask(
        "defer('IPython', 'ipykernel', 'jupyter_client')\nimport agently_kernel.app\n"
        "heavy = {'IPython.core.interactiveshell', 'jupyter_client.manager'}\n"
        "print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    assert loaded == []
