"""A workspace of the test's own, and SYNTHETIC sources of outputs that stand for a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from workspace_support import FolderSource, make_workspace


@pytest.fixture
def workspace(tmp_path):
    with make_workspace(tmp_path) as space:
        yield space


@pytest.fixture
def source(tmp_path):
    return FolderSource(tmp_path / "guest")
