"""The extension's own unit tests, run by node."""

from __future__ import annotations

import subprocess
from pathlib import Path

from build_panel import HERE, environment, find_node, yarn


def test_the_typescript_unit_tests_pass() -> None:
    if not (HERE / "node_modules").exists():
        yarn("install", "--immutable", seconds=600)
    vitest = HERE / "node_modules" / "vitest" / "vitest.mjs"
    done = subprocess.run(
        [find_node() or "node", str(vitest), "run"], cwd=HERE, env=environment(), timeout=150, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_lock_file_names_no_host() -> None:
    lock = (Path(HERE) / "yarn.lock").read_text()
    assert "://" not in lock
    assert "__archiveUrl" not in lock
