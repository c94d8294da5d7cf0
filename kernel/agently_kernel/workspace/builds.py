"""What compilers made, kept for the life of a workspace: an unchanged program is not built again in the next sandbox.

A result is kept under a digest of everything that it was made from, and it is taken out of the sandbox before the
program itself has run there, so that no program can leave something else for a later one.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path

from agently_kernel.workspace.areas import private_folder

MAX_BUILD_BYTES = 32 * 1024**2
MAX_BUILDS_BYTES = 128 * 1024**2
SHOWN = ".builds"
_KEY = re.compile(r"[0-9a-f]{64}\Z")


class BuildCache:
    """A folder of results by key, the least recently used removed when they are too many bytes. From any thread."""

    max_bytes = MAX_BUILD_BYTES
    """Most bytes of one result; larger ones are not kept."""

    def __init__(self, path: Path, most: int = MAX_BUILDS_BYTES, *, shown: Path | None = None) -> None:
        """*shown*: the source root that sandboxes see, on the same file system."""
        self._path = path
        self._shown = shown
        self._most = most
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """Return what is kept under *key* (64 hex digits), or None."""
        path = self._file(key)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        return data

    def show(self, key: str) -> str | None:
        """Return where sandboxes find, below the source root, what is kept under *key*; None when it is not there.

        It is one more name of the same file: nothing is copied, and a sandbox sees the source root read-only.
        """
        path = self._file(key)
        if self._shown is None:
            return None
        name = self._shown / SHOWN / key
        try:
            os.utime(path)
            if not name.exists():
                name.parent.mkdir(mode=0o755, exist_ok=True)
                name.parent.chmod(0o755)  # whatever the umask
                os.link(path, name)
        except OSError:  # it is not kept, or links are not possible here
            return None
        return f"{SHOWN}/{key}"

    def put(self, key: str, data: bytes) -> None:
        """Keep *data* under *key*. What cannot be kept is not: the program is built again then."""
        if len(data) > self.max_bytes:
            return
        path = self._file(key)
        with self._lock, contextlib.suppress(OSError):
            private_folder(self._path)
            self._make_room(len(data))
            self._hide(key)  # an older one would be another file than the one that is kept now
            fresh = path.with_suffix(".new")
            fresh.write_bytes(data)
            fresh.chmod(0o444)  # read by the sandbox's user, who may be another one
            fresh.replace(path)

    def _file(self, key: str) -> Path:
        if not _KEY.match(key):
            raise ValueError(f"{key!r} is no key of a build")
        return self._path / key

    def _make_room(self, size: int) -> None:
        kept = sorted((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path) for entry in os.scandir(self._path))
        total = sum(item[1] for item in kept) + size
        for _, bytes_kept, name in kept:
            if total <= self._most:
                return
            Path(name).unlink()
            self._hide(Path(name).name)
            total -= bytes_kept

    def _hide(self, key: str) -> None:
        if self._shown is not None:
            (self._shown / SHOWN / key).unlink(missing_ok=True)
