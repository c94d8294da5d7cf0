"""Kernels for the tests: one that a whole module shares, and a way to start others with settings of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel_session import KernelSession


def data_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment that keeps kernels away from the user's own data and settings."""
    base = tmp_path_factory.getbasetemp()
    folders = {"JUPYTER_DATA_DIR": base / "jupyter-data", "JUPYTER_CONFIG_DIR": base / "jupyter-config"}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    return {name: str(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelSession]:
    """One kernel for all tests of a module; a test that spoils it must use ``start`` instead."""
    with KernelSession(tmp_path_factory.mktemp("notebook"), env=data_env(tmp_path_factory)) as session:
        yield session


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[Callable[..., KernelSession]]:
    """Start kernels with settings of their own; all are shut down at the end of the test."""
    sessions: list[KernelSession] = []

    def begin(**options: Any) -> KernelSession:
        options["env"] = {**data_env(tmp_path_factory), **options.get("env", {})}
        folder = options.pop("folder", tmp_path)
        sessions.append(KernelSession(folder, **options))
        return sessions[-1]

    yield begin
    for session in sessions:
        session.close()
