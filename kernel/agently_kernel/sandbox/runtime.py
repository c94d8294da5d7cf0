"""Folders of a workspace's runtime area that local providers need besides the grant's roots, and a throw-away area."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agently_kernel.contract.base import Frozen


class RuntimeFolders(Frozen):
    """``guest``: our guest programs. ``etc``: the /etc of sandboxes with one uid. Both are only read inside."""

    guest: Path
    etc: Path


def runtime_folders(source: Path, uid: int) -> RuntimeFolders:
    """Return the folders beside a grant's source root: in the same private area, which ends with the workspace."""
    return RuntimeFolders(guest=source.parent / "guest", etc=source.parent / f"etc-{uid}")


def _place() -> str:
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm"]  # noqa: S108
    usable = (p for p in places if p and os.path.isdir(p) and os.access(p, os.W_OK | os.X_OK))
    return next(usable, None) or tempfile.gettempdir()


def probe_pattern(pid: int) -> str:
    """Return the shell pattern of the folders that :func:`probe_folder` makes in the process *pid*."""
    return f"{_place()}/agently-kernel-probe-{pid}-*"


def probe_folder() -> Path:
    """Make a private folder, on a tmpfs where one is; it is found by this process's id should the process be killed."""
    return Path(tempfile.mkdtemp(prefix=f"agently-kernel-probe-{os.getpid()}-", dir=_place()))


@contextlib.contextmanager
def temporary_runtime() -> Iterator[Path]:
    """Yield a private folder with empty ``source`` and ``guest`` in it, on a tmpfs where one is; then remove it."""
    folder = probe_folder()
    try:
        for name in ("source", "guest"):
            (folder / name).mkdir(mode=0o755)
            (folder / name).chmod(0o755)  # whatever the umask: another user reads it
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
