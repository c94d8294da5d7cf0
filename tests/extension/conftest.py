"""Kernels of both homes for the tests of the magics."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "kernel"))

from kernel_session import KernelSession, Run

HOMES = ("agently", "python3")


def environment(base: Path) -> dict[str, str]:
    """Return the environment that keeps a kernel away from the user's own data and settings."""
    folders = {
        "JUPYTER_DATA_DIR": base / "jupyter-data", "JUPYTER_CONFIG_DIR": base / "jupyter-config",
        "IPYTHONDIR": base / "ipython",
    }
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    return {name: str(folder) for name, folder in folders.items()}


def answering(session: KernelSession, word: str) -> Callable[[Run], None]:
    """Return what answers every question of the product with *word* and the code that it shows."""
    answered = 0

    def during(run: Run) -> None:
        nonlocal answered
        while len(run.prompts) > answered:
            found = re.search(r"'allow (\d{4})'", run.prompts[answered][0])
            answered += 1
            session.client.input(f"{word} {found.group(1)}" if found else word)

    return during


@pytest.fixture(scope="module", params=HOMES)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelSession]:
    """A kernel in which the magics are known, its folder in ``home.log.parent``; one for all tests of a module."""
    folder = tmp_path_factory.mktemp("notebook")
    env = environment(tmp_path_factory.getbasetemp())
    with KernelSession(folder, kernel=request.param, env=env) as session:
        if request.param != "agently":
            assert session.run("%load_ext agently_exec").status == "ok"
        yield session
