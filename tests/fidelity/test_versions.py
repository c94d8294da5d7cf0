"""The kernel with the oldest releases that ``pyproject.toml`` allows; every other test runs with the newest ones.

A virtual environment of its own is made from the lower bounds, and the kernel's behaviour tests run in it: client,
kernel and the interpreter in the sandbox are all old ones.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import agently_exec
import agently_kernel

REPO = Path(__file__).parents[2]
RUNNERS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "tqdm")
SUITES = (
    "tests/kernel/test_behaviour.py", "tests/kernel/test_subshells.py", "tests/fidelity/test_widgets_on_the_wire.py",
    "tests/unit/outputs", "tests/unit/contract", "tests/unit/manager", "tests/unit/panel",
)
# They need libraries of the newest kind: plots, a browser.
ELSEWHERE = ("test_markup.py", "test_in_browser.py", "test_peer_connections.py")
STACK = ("ipykernel", "ipython", "jupyter-client", "ipywidgets", "traitlets", "pydantic")


def oldest() -> dict[str, str]:
    """The lower bound of each requirement of the installed distribution, extras left out."""
    bounds = {}
    for text in importlib.metadata.requires("agently-kernel") or ():
        requirement = Requirement(text)
        if requirement.marker is None:
            (bound,) = (item.version for item in requirement.specifier if item.operator == ">=")
            bounds[requirement.name] = bound
    return bounds


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the oldest versions and this very product."""
    folder = tmp_path_factory.mktemp("oldest") / "venv"
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    pins = [f"{name}=={bound}" for name, bound in oldest().items()]
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins, *RUNNERS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    library = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for package in (agently_kernel, agently_exec):
        (library / package.__name__).symlink_to(Path(package.__file__).parent)
    metadata = library / "agently_kernel-0.dist-info"  # entry points and version, without the files
    metadata.mkdir()
    installed = importlib.metadata.distribution("agently-kernel")
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(installed.read_text(name) or "")
    spec = folder / "share" / "jupyter" / "kernels" / "agently"
    spec.mkdir(parents=True)
    description = json.loads((REPO / "kernel" / "kernelspec" / "kernel.json").read_text())
    description["argv"][0] = str(python)
    (spec / "kernel.json").write_text(json.dumps(description))
    return python


def test_every_requirement_has_a_lower_bound() -> None:
    assert set(STACK) <= oldest().keys()
    assert all(Version(bound) for bound in oldest().values())


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the oldest releases were not built for so new a Python")
def test_the_kernels_tests_pass_with_the_oldest_versions(old_python: Path, tmp_path: Path) -> None:
    show = "import importlib.metadata as m, sys; print(*(m.version(name) for name in sys.argv[1:]))"
    listed = subprocess.run([str(old_python), "-c", show, *STACK], capture_output=True, text=True, check=True)
    bounds = oldest()
    assert [Version(text) for text in listed.stdout.split()] == [Version(bounds[name]) for name in STACK]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [
            str(old_python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES,
            *(f"--ignore=tests/unit/outputs/{name}" for name in ELSEWHERE),
        ],
        cwd=REPO,
        env={**environment, "PATH": f"{old_python.parent}:{environment['PATH']}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 700 and " skipped" not in done.stdout
