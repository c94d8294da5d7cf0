"""Kernels of both homes for the tests of the magics."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "kernel"))

from kernel_session import KernelSession
from magic_homes import environment

HOMES = ("agently", "python3")


@pytest.fixture(scope="module", params=HOMES)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelSession]:
    """A kernel in which the magics are known, its folder in ``home.log.parent``; one for all tests of a module."""
    folder = tmp_path_factory.mktemp("notebook")
    env = environment(tmp_path_factory.getbasetemp())
    with KernelSession(folder, kernel=request.param, env=env) as session:
        if request.param != "agently":
            assert session.run("%load_ext agently_exec").status == "ok"
        yield session
