"""Folders of a workspace's runtime area that local providers need besides the grant's roots, and a throw-away area."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from agently_kernel.contract.base import Frozen
from agently_kernel.sandbox.cgroups import pid_namespace, process_start_time


class RuntimeFolders(Frozen):
    """``guest``: our guest programs. ``etc``: the /etc of sandboxes with one uid. Both are only read inside."""

    guest: Path
    etc: Path


def runtime_folders(source: Path, uid: int) -> RuntimeFolders:
    """Return the folders beside a grant's source root: in the same private area, which ends with the workspace."""
    return RuntimeFolders(guest=source.parent / "guest", etc=source.parent / f"etc-{uid}")


_MEMORY_PLACE = "/dev/shm"  # noqa: S108
_FIRST_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO
_OWNED = re.compile(r"agently-(?:probe|canary)-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-[^/]+\Z")


def _place() -> str:
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), _MEMORY_PLACE]
    usable = (p for p in places if p and os.path.isdir(p) and os.access(p, os.W_OK | os.X_OK))
    return next(usable, None) or tempfile.gettempdir()


def _namespace() -> int:
    """Return the number of our pid namespace, 0 for the machine's first, which always has the same number."""
    number = pid_namespace()
    return 0 if number == _FIRST_NAMESPACE else number


def _prefix(kind: Literal["probe", "canary"], pid: int) -> str:
    """Names are short: a socket's address must fit behind them."""
    return f"agently-{kind}-{_namespace():x}-{pid:x}-{process_start_time(pid) or 0:x}-"


def owned_patterns(pid: int) -> tuple[str, str]:
    """Return the shell patterns of the folders that the process *pid* makes here."""
    return f"{_place()}/{_prefix('probe', pid)}*", f"{tempfile.gettempdir()}/{_prefix('canary', pid)}*"


def probe_folder() -> Path:
    """Make a private folder, on a tmpfs where one is; its name tells its owner, should that be killed."""
    return Path(tempfile.mkdtemp(prefix=_prefix("probe", os.getpid()), dir=_place()))


def canary_folder(parent: Path | None = None) -> Path:
    """Make a private folder on the host's own disk (the temporary folder, or *parent*); its name tells its owner."""
    return Path(tempfile.mkdtemp(prefix=_prefix("canary", os.getpid()), dir=parent))


def stale_folders() -> Iterator[Path]:
    """Yield the folders of this user whose owner is gone. Those of living owners, and of owners in other process
    namespaces, of which nothing can be known here, are left out."""
    here = _namespace()
    places = (os.environ.get("XDG_RUNTIME_DIR", ""), _MEMORY_PLACE, tempfile.gettempdir())
    for place in dict.fromkeys(filter(os.path.isdir, places)):
        for name in sorted(os.listdir(place)) if os.access(place, os.R_OK | os.X_OK) else ():
            found = _OWNED.match(name)
            folder = Path(place, name)
            if found is None or folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
                continue
            namespace, pid, start = (int(number, 16) for number in found.groups())
            if namespace == here and process_start_time(pid) != start:
                yield folder


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
