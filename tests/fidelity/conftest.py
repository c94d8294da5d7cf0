"""Real kernels for the tests of fidelity, driven by the client of the kernel's own tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "kernel"))

from kernel_session import KernelSession


@pytest.fixture(scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment that keeps kernels away from the user's own data and settings."""
    base = tmp_path_factory.mktemp("fidelity")
    folders = {name: base / name.lower() for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    for folder in folders.values():
        folder.mkdir()
    return {name: str(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, own_folders: dict[str, str]) -> Iterator[KernelSession]:
    """One kernel for all tests of a module; a test that spoils it must use ``start`` instead."""
    with KernelSession(tmp_path_factory.mktemp("notebook"), env=own_folders) as session:
        yield session


@pytest.fixture
def start(own_folders: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., KernelSession]]:
    """Start kernels with settings of their own; all are shut down at the end of the test."""
    sessions: list[KernelSession] = []

    def begin(**options: Any) -> KernelSession:
        sessions.append(KernelSession(tmp_path, env={**own_folders, **options.pop("env", {})}, **options))
        return sessions[-1]

    yield begin
    for session in sessions:
        session.close()
