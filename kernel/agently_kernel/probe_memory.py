"""What probes found, kept beside the runtime areas so that the next kernel of this user need not find it again.

A remembered probe only saves time: what was opened is observed anew in any case, and one that does not hold is refused.
The files lie in a private folder of ours on a tmpfs; one that is not ours alone is not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from agently_kernel.contract.errors import WorkspaceError
from agently_kernel.contract.resource import ExecutionResourceProbe
from agently_kernel.workspace.areas import runtime_base

MAX_BYTES = 1024**2
KEPT_SECONDS = 3600.0
"""Older files are of no use to any provider."""
_PREFIX = "probe-"

def _room(name: str) -> list[os.DirEntry[str]]:
    with os.scandir(Path(__file__).parent / name) as entries:
        return sorted((entry for entry in entries if entry.name.endswith(".py")), key=lambda entry: entry.name)


def _stamp(entry: os.DirEntry[str]) -> tuple[str, int, int]:
    info = entry.stat()
    return entry.name, info.st_mtime_ns, info.st_size


Entry = tuple[float, ExecutionResourceProbe]


class ProbeMemory(MutableMapping[str, Entry]):
    """Maps a key that covers everything a probe depends on (the boot included) to (monotonic time, probe).

    Every failure of the file system is as if nothing were remembered.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """*folder* stands in for the runtime folder in tests."""
        self._folder = folder
        # what a probe sees also depends on our own code
        self._code = [_stamp(path) for room in ("providers", "sandbox", "guest") for path in _room(room)]
        self._known: dict[str, Entry] = {}

    def __getitem__(self, key: str) -> Entry:
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def __setitem__(self, key: str, entry: Entry) -> None:
        self._known[key] = entry
        with contextlib.suppress(OSError, WorkspaceError):
            self._forget_old()
            path = self._path(key)
            fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump({"key": key, "at": entry[0], "probe": entry[1].model_dump(mode="json")}, file)
                fresh.replace(path)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise

    def __delitem__(self, key: str) -> None:
        found = self._known.pop(key, None)
        with contextlib.suppress(OSError, WorkspaceError):
            self._path(key).unlink()
            return
        if found is None:
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._known))

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget everything, on the disk too."""
        self._known.clear()
        with contextlib.suppress(OSError, WorkspaceError):
            for path in self._base().glob(f"{_PREFIX}*.json"):
                path.unlink(missing_ok=True)

    def _forget_old(self) -> None:
        for path in self._base().glob(f"{_PREFIX}*.json"):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink(missing_ok=True)

    def _base(self) -> Path:
        return self._folder or runtime_base()

    def _path(self, key: str) -> Path:
        digest = hashlib.sha256(repr((key, self._code, sys.version)).encode()).hexdigest()
        return self._base() / f"{_PREFIX}{digest[:32]}.json"

    def _read(self, key: str) -> Entry:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            with os.fdopen(descriptor, "rb") as file:
                info = os.fstat(file.fileno())
                private = stat.S_ISREG(info.st_mode) and not info.st_mode & 0o077
                if not private or (hasattr(os, "getuid") and info.st_uid != os.getuid()) or info.st_size > MAX_BYTES:
                    raise KeyError(key)
                record = json.loads(file.read())
            at, probe = float(record["at"]), ExecutionResourceProbe.model_validate(record["probe"])
            if record["key"] != key or at > time.monotonic():
                raise KeyError(key)
        except (OSError, ValueError, TypeError, WorkspaceError) as error:
            raise KeyError(key) from error
        return at, probe
