"""SYNTHETIC: runs an adapter's argv plan as plain processes in a temporary folder, with no isolation at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from agently_kernel.contract.bundle import CodeExecutionBundle
from agently_kernel.contract.workspace import SANDBOX_PATHS, resolve_workspace_uri


def tool(name: str) -> str:
    """Return the path of a program the test needs; a missing one fails in CI and skips, with words, elsewhere."""
    path = shutil.which(name)
    if path is None:
        sentence = f"this test needs the program {name}, which is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return path


@dataclass(frozen=True)
class Ran:
    """How the last step that ran ended."""

    role: str
    code: int
    out: str
    err: str


class PlanRunner:
    """Lays a bundle out as a sandbox would and runs its steps in order, up to the first that fails."""

    def __init__(self, root: Path, tools: str = "") -> None:
        self.roots = {name: str(root / Path(path).name) for name, path in SANDBOX_PATHS.items()}
        self.root = root
        self.path = f"{tools}{os.pathsep}{os.environ['PATH']}" if tools else os.environ["PATH"]
        for name in ("build", "output"):
            Path(self.roots[name]).mkdir()
        (Path(self.roots["build"]) / "output").symlink_to("../output")

    def run(self, bundle: CodeExecutionBundle) -> Ran:
        """Write the bundle's files read-only and run its plan."""
        source = self.root / "src" / bundle.bundle_id
        for file in bundle.files:
            (source / file.path).parent.mkdir(parents=True, exist_ok=True)
            (source / file.path).write_bytes(file.content)
        roots = {**self.roots, "source": str(source)}
        assert bundle.run_step is not None
        for step in (*bundle.build_steps, bundle.run_step):
            done = subprocess.run(
                [resolve_workspace_uri(item, roots) for item in step.argv],
                cwd=roots[step.cwd],
                env={
                    "PATH": self.path,
                    "HOME": str(self.root),
                    **{key: resolve_workspace_uri(value, roots) for key, value in step.env.items()},
                },
                input=bundle.stdin or b"",
                capture_output=True,
                timeout=60,
                check=False,
            )
            ran = Ran(step.role, done.returncode, done.stdout.decode(), done.stderr.decode())
            if done.returncode != 0:
                break
        return ran
