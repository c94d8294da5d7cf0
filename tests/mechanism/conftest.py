"""Fixtures of the tests that run real mechanisms."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

_LINUX_ONLY = ["test_bubblewrap*.py", "test_docker.py", "test_gvisor.py", "test_runsc.py", "test_landlock.py",
               "test_container_network.py"]
collect_ignore_glob = [] if sys.platform == "linux" else _LINUX_ONLY

if sys.platform == "linux":
    from bubblewrap_support import runtime_area
    from images import Engine, dockerd

    @pytest.fixture
    def runtime() -> Iterator[Path]:
        """A private runtime area with source, input and guest folders."""
        with runtime_area() as folder:
            yield folder

    @pytest.fixture(scope="session")
    def engine() -> Iterator[Engine]:
        """A container engine of the test run's own; only root can start one."""
        if os.geteuid() != 0:
            pytest.skip("only root can start a container engine of its own")
        with dockerd() as running:
            yield running
