"""The package imports, and the doctor answers, where the modules and calls of Linux do not exist.

SYNTHETIC: a Linux interpreter that is told it is another platform, after the standard library has settled. It shows
that nothing Linux-only is imported at start; what the mechanisms do there can only be seen on such a machine.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PRETEND = """
import asyncio, ipykernel.kernelapp, dateutil.tz, psutil, subprocess, sys, sysconfig
sysconfig.get_config_vars()
sys.platform = {platform!r}
MISSING = {missing!r}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
for name in MISSING:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
import os
for name in {calls!r}:
    if hasattr(os, name):
        delattr(os, name)
import agently_kernel.app, agently_kernel.kernel, agently_exec
from agently_kernel.cli import main
sys.exit(main(["doctor"]))
"""


@pytest.mark.parametrize(
    ("platform", "missing", "calls"),
    [
        ("darwin", ["spwd"], ["pidfd_open", "splice", "memfd_create", "setresuid", "sched_getaffinity"]),
        ("win32", ["fcntl", "resource", "pwd", "grp", "termios"], ["pidfd_open", "splice", "memfd_create"]),
    ],
)
def test_doctor_answers_on_synthetic_platforms(platform: str, missing: list[str], calls: list[str]) -> None:
    program = PRETEND.format(platform=platform, missing=missing, calls=calls)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "bubblewrap works on Linux only" in ended.stdout, ended.stderr
    assert "No provider meets isolation='required'" in ended.stdout
    assert ended.returncode == 1
