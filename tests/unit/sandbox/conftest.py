from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sandbox_support import Harness

from agently_kernel.sandbox.launch import install_guest


@pytest.fixture(scope="session")
def guest_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_guest(tmp_path_factory.mktemp("guest"))


@pytest.fixture
async def harness(tmp_path: Path, guest_folder: Path) -> AsyncIterator[Harness]:
    harness = Harness(tmp_path, guest_folder)
    yield harness
    await harness.close()
    if harness.__dict__.get("sandbox") is not None:
        process = harness.sandbox.process
        assert process is None or process.returncode is not None
