"""What every test may use: a tool that must be there, and a home of its own so that no test touches the user's data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


def require_tool(name: str) -> str:
    """Return the path of a program that the calling test needs.

    In CI (``CI=true``) a missing program fails the test; on a person's machine the test is skipped, saying what is
    missing.
    """
    path = shutil.which(name) or next((p for p in (f"/usr/bin/{name}", f"/usr/sbin/{name}") if Path(p).exists()), None)
    if path:
        return path
    sentence = f"this test needs the program {name}, which is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point the Jupyter data folder (and so the store) to a folder of the test run."""
    folder = tmp_path_factory.getbasetemp() / "jupyter-data"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder))
    yield
