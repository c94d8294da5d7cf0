"""Fixtures of the tests that run real mechanisms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

collect_ignore_glob = [] if sys.platform == "linux" else ["test_bubblewrap*.py"]

if sys.platform == "linux":
    from bubblewrap_support import runtime_area

    @pytest.fixture
    def runtime() -> Iterator[Path]:
        """A private runtime area with source, input and guest folders."""
        with runtime_area() as folder:
            yield folder
