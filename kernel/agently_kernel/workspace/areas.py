"""Where a workspace lies on the host: private folders, who owns them, and how they are removed.

Nothing here is ever opened by a name that a guest chose, except in :func:`remove_tree`, which runs when no guest lives.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Literal

from jupyter_core.paths import jupyter_data_dir

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import WorkspaceError, os_reason

PRODUCT = "agently-kernel"
MINIMUM_RUNTIME_BYTES = 48 * 1024**2
OWNER_FILE = "owner.json"

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.scandir in os.supports_fd


class Owner(Frozen):
    """The process that owns a workspace, told so that a later process can see whether it still lives."""

    workspace_id: str
    pid: int
    start_time: int
    boot_id: str
    pid_namespace: str
    host: str
    created_at: float
    locked: bool = False


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """Return when *pid* was started (clock ticks since boot on Linux, seconds elsewhere); None when it is not alive."""
    if sys.platform != "linux":
        import psutil  # not needed on Linux, where a kernel's start would wait for it

        try:
            return int(psutil.Process(pid).create_time())
        except psutil.Error:
            return None
    text = _read(f"/proc/{pid}/stat")
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def current_owner(workspace_id: str, *, locked: bool = False) -> Owner:
    """Return the record of this very process; ``locked``: it holds the folder's lock for life."""
    return Owner(
        workspace_id=workspace_id,
        pid=os.getpid(),
        start_time=process_start(os.getpid()) or 0,
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
        pid_namespace=_pid_namespace(),
        host=socket.gethostname(),
        created_at=time.time(),
        locked=locked,
    )


def owner_state(owner: Owner) -> Literal["alive", "dead", "unknown"]:
    """Tell whether a recorded owner lives; ``unknown`` when it belongs to another machine or process namespace."""
    here = current_owner("")
    if owner.boot_id != here.boot_id:
        return "dead" if owner.host == here.host else "unknown"
    if owner.pid_namespace != here.pid_namespace:
        return "unknown"
    return "alive" if process_start(owner.pid) == owner.start_time else "dead"


def lock_folder(path: Path, *, exclusive: bool) -> int | None:
    """Open *path* and lock it; return the descriptor that holds the lock.

    The owner holds a shared lock for life and a cleaner takes an exclusive one, so the lock also tells apart processes
    that cannot see each other's pids. None: somebody else holds it. Raises OSError where locks do not work.
    """
    import fcntl

    descriptor = os.open(path, _DIRECTORY)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def private_folder(path: Path) -> Path:
    """Make *path* (and missing parents) a folder of ours with mode 0700 and return it.

    Raises WorkspaceError when it is a link, is somebody else's, or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode):
            raise WorkspaceError(f"{path} is not a folder (a link or a file); remove it so that it can be made anew")
        if hasattr(os, "getuid"):
            if info.st_uid != os.getuid():
                raise WorkspaceError(f"{path} belongs to user {info.st_uid}, not to you; choose another place")
            if stat.S_IMODE(info.st_mode) != 0o700:
                path.chmod(0o700)
    except OSError as error:
        raise WorkspaceError(f"the private folder {path} cannot be made: {os_reason(error)}") from error
    return path


def product_data_dir(data_dir: Path | None = None) -> Path:
    """Return the product's folder below the Jupyter data folder (*data_dir* stands in for the latter in tests)."""
    return (data_dir if data_dir is not None else Path(jupyter_data_dir())) / PRODUCT


def is_tmpfs(path: Path) -> bool:
    """True when *path* lies on a tmpfs, going by this process's mount table."""
    real, best, kind = str(path.resolve()), "", ""
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split(" ", 1)[0]
    return kind == "tmpfs"


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


def runtime_candidates(runtime_dir: Path | None = None, data_dir: Path | None = None) -> tuple[Path, ...]:
    """Return the places where runtime areas of this user may lie, best first; also where a cleaner must look."""
    name = f"{PRODUCT}-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    if runtime_dir is not None:
        return (runtime_dir / name,)
    places = []
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if session.startswith("/") and hasattr(os, "getuid"):
        with contextlib.suppress(OSError):
            if Path(session).stat().st_uid == os.getuid() and is_tmpfs(Path(session)):
                places.append(Path(session))
    if Path("/dev/shm").is_dir() and is_tmpfs(Path("/dev/shm")):  # noqa: S108 - a private folder is made below it
        places.append(Path("/dev/shm"))  # noqa: S108
    return (*(place / name for place in places), product_data_dir(data_dir) / "run" / name)


def runtime_base(runtime_dir: Path | None = None, data_dir: Path | None = None) -> Path:
    """Return the private folder that runtime areas are made in: on a tmpfs with room, else below the data folder.

    Raises WorkspaceError when not even the last place can be had.
    """
    candidates = runtime_candidates(runtime_dir, data_dir)
    for folder in candidates[:-1]:
        with contextlib.suppress(WorkspaceError, OSError):
            if _free_bytes(folder.parent) >= MINIMUM_RUNTIME_BYTES:
                return private_folder(folder)
    return private_folder(candidates[-1])


def _open_folder(name: str, parent: int) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, _DIRECTORY, dir_fd=parent)


def _flatten(top: int) -> None:
    """Empty the folder behind *top*; deeper folders are moved up, so no depth exhausts descriptors or the stack."""
    prefix, moved = f".{secrets.token_hex(6)}-", 0
    while True:
        with os.scandir(top) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if not names:
            return
        for name, folder in names:
            if not folder:
                os.unlink(name, dir_fd=top)
                continue
            inner = _open_folder(name, top)
            try:
                os.fchmod(inner, 0o700)
                with os.scandir(inner) as entries:
                    inside = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
                for child, deeper in inside:
                    if deeper:
                        os.chmod(child, 0o700, dir_fd=inner)
                        moved += 1
                        os.rename(child, f"{prefix}{moved}", src_dir_fd=inner, dst_dir_fd=top)
                    else:
                        os.unlink(child, dir_fd=inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def remove_tree(path: Path) -> None:
    """Remove *path* and all below it, whatever its modes, depth or names; harmless when it is not there.

    Never follows a link. Raises WorkspaceError naming *path* and what stood in the way.
    """
    try:
        if not _BY_DESCRIPTOR:
            shutil.rmtree(path)
            return
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        path.chmod(0o700)
        top = os.open(path, _DIRECTORY)
        try:
            _flatten(top)
        finally:
            os.close(top)
        path.rmdir()
    except FileNotFoundError:
        if path.exists():
            raise WorkspaceError(f"{path} could not be removed: something else changes it") from None
    except OSError as error:
        what = f" ({error.filename})" if error.filename else ""
        raise WorkspaceError(f"{path} could not be removed: {error.strerror or error}{what}; do it by hand") from error
