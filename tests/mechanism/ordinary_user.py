"""Prepares what an ordinary user needs to run these tests: an interpreter and a checkout that everybody may read.

Root's own interpreter often lies below /root, which others may not enter. It is then linked, file by file, into a
folder that everybody may read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

UID = 65534
SETPRIV = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
REPOSITORY = Path(__file__).resolve().parents[2]
_LEFT_OUT = shutil.ignore_patterns("test", "idlelib", "tkinter", "site-packages", "node_modules", ".git", ".venv")


def readable(path: Path) -> bool:
    """True when an ordinary user may read *path*."""
    return subprocess.run([*SETPRIV, "test", "-r", str(path)], check=False).returncode == 0


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _tree(source: Path, target: Path, *, everything: bool = False) -> Path:
    """Return *source* when others may read it, else a copy of it made of links at *target*."""
    if readable(source) and readable(next(iter(source.rglob("*.py")), source)):
        return source
    ignore = None if everything else _LEFT_OUT
    shutil.copytree(source, target, symlinks=True, ignore=ignore, copy_function=_link_or_copy)
    return target


class OrdinaryUser:
    """An ordinary user's command prefix, environment and checkout."""

    def __init__(self, folder: Path) -> None:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        real = Path(sys.executable).resolve()
        base = real if readable(real) else _tree(Path(sys.base_prefix), folder / "base") / "bin" / version
        packages = _tree(Path(sysconfig.get_paths()["purelib"]), folder / "packages", everything=True)
        environment = folder / "venv"
        (environment / "bin").mkdir(parents=True)
        (environment / "lib" / version).mkdir(parents=True)
        (environment / "bin" / "python").symlink_to(base)
        (environment / "lib" / version / "site-packages").symlink_to(packages)
        (environment / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
        self.repository = _tree(REPOSITORY, folder / "repository")
        for name in ("home", "tmp"):
            (folder / name).mkdir()
            os.chown(folder / name, UID, UID)
        self.command = [*SETPRIV, str(environment / "bin" / "python")]
        self.environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": os.pathsep.join(str(self.repository / name) for name in ("kernel", "extension")),
        }


@contextlib.contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    """Yield an :class:`OrdinaryUser`; needs root. What was made is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="agently-user-"))
    folder.chmod(0o755)
    try:
        yield OrdinaryUser(folder)
    finally:
        shutil.rmtree(folder)
