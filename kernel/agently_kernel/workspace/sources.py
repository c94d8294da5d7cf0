"""The read-only source root: one folder a bundle, written in one step, verified by digest, pruned when full."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path

from agently_kernel.contract.base import sha256_digest
from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionFile
from agently_kernel.contract.errors import MaterializationError, WorkspaceError, os_reason
from agently_kernel.workspace.areas import remove_tree

DEFAULT_SOURCE_BYTES = 256 * 1024**2
"""The most that bundles of running executions may take together."""

KEPT_BYTES = 32 * 1024**2
"""What bundles that nobody runs any more may take: about 2500 cells. An interpreter remembers the text of its cells."""

_SHARE = 4  # of what is free, one part in so many is used for bundles that nobody runs
_BLOCK = 4096
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_EXISTING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


def _weight(bundle: CodeExecutionBundle) -> int:
    """Bytes a bundle takes on a tmpfs, whole pages counted, with one for its folder."""
    return _BLOCK + sum(-(-len(file.content) // _BLOCK) * _BLOCK + _BLOCK for file in bundle.files)


def _write_file(path: str, file: CodeExecutionFile) -> None:
    """Write one file (mode 0444) and read it back. Raises OSError, MaterializationError when it reads differently."""
    descriptor = os.open(path, _NEW_FILE, 0o444)
    try:
        content = memoryview(file.content)
        while content:
            content = content[os.write(descriptor, content) :]
        os.fchmod(descriptor, 0o444)
        if _digest_of(descriptor, len(file.content)) != file.sha256:
            raise MaterializationError(f"{file.path} does not read back as it was written; check disk and memory")
    finally:
        os.close(descriptor)


def _digest_of(descriptor: int, size: int) -> str:
    """Return the digest of the open file, or an empty text when it has not exactly *size* bytes."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    parts, left = [], size + 1
    while left > 0 and (part := os.read(descriptor, left)):
        parts.append(part)
        left -= len(part)
    return sha256_digest(b"".join(parts)) if left == 1 else ""


def _make_folder(path: str) -> None:
    """Make a folder that the sandbox's other user can read, whatever the umask is."""
    os.mkdir(path, 0o755)  # noqa: PTH102
    os.chmod(path, 0o755)  # noqa: PTH101, S103


class SourceRoot:
    """Owns one ``source/`` folder. Not safe for several threads at once; the workspace serialises the calls."""

    def __init__(self, path: Path, limit_bytes: int = DEFAULT_SOURCE_BYTES) -> None:
        self.path = path
        self._limit = limit_bytes
        self._kept: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    def write(self, bundle: CodeExecutionBundle, in_use: Collection[str]) -> None:
        """Make ``<source>/<bundle id>/`` hold exactly the bundle's files.

        A folder that is already there is used again only after every file in it was verified. ``in_use``: ids of
        bundles that must not be pruned. Raises MaterializationError.
        """
        target = f"{self.path}/{bundle.bundle_id}"
        if bundle.bundle_id in self._kept:
            self._verify(bundle, target)
            self._kept.move_to_end(bundle.bundle_id)
            return
        try:
            self._write(bundle, in_use)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not set(self._kept) - set(in_use):
                raise self._explain(error, bundle) from error
            self._make_room(self._limit, in_use, keep=0)  # others have filled the file system: give up all that we can
            try:
                self._write(bundle, in_use)
            except OSError as again:
                raise self._explain(again, bundle) from again

    def _write(self, bundle: CodeExecutionBundle, in_use: Collection[str]) -> None:
        """Write a new folder. Raises OSError; nothing is left then."""
        target, weight = f"{self.path}/{bundle.bundle_id}", _weight(bundle)
        self._make_room(weight, in_use, keep=self._keep())
        fresh = f"{self.path}/.new-{secrets.token_hex(6)}"
        try:
            _make_folder(fresh)
            folders = {""}
            for file in bundle.files:
                self._folders_for(fresh, file.path, folders)
                _write_file(f"{fresh}/{file.path}", file)
            os.rename(fresh, target)  # noqa: PTH104 - plain text paths, this is on the path of every cell
        except (OSError, MaterializationError):
            with contextlib.suppress(WorkspaceError):
                remove_tree(Path(fresh))
            raise
        self._kept[bundle.bundle_id] = weight
        self._total += weight

    @staticmethod
    def _folders_for(root: str, path: str, made: set[str]) -> None:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            if folder not in made:
                _make_folder(f"{root}/{folder}")
                made.add(folder)

    def _verify(self, bundle: CodeExecutionBundle, target: str) -> None:
        for file in bundle.files:
            try:
                descriptor = os.open(f"{target}/{file.path}", _EXISTING)
                try:
                    info = os.fstat(descriptor)
                    same = stat.S_ISREG(info.st_mode) and _digest_of(descriptor, len(file.content)) == file.sha256
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise self._explain(error, bundle) from error
            if not same:
                raise MaterializationError(
                    f"{file.path} of {bundle.bundle_id} is no longer what was written to {target}: something on this "
                    "machine changed it. Restart the kernel to get a fresh workspace"
                )

    def _keep(self) -> int:
        """Return how many bytes may be taken in all while something of it can be pruned."""
        try:
            free = shutil.disk_usage(self.path).free
        except OSError:
            free = 0
        return min(KEPT_BYTES, self._limit, (free + self._total) // _SHARE)

    def _make_room(self, weight: int, in_use: Collection[str], *, keep: int) -> None:
        """Prune the oldest that nobody runs until *keep* bytes hold all (0: prune every one of them).

        Raises MaterializationError when the limit does not hold all even so.
        """
        if keep and weight > self._limit:
            raise MaterializationError(
                f"the program and its files have {weight:,} bytes together; a sandbox can be given at most "
                f"{self._limit:,} bytes. Give large data with --input instead"
            )
        if self._total + weight <= keep:
            return  # before anything that takes longer the more cells have run
        for old in [name for name in self._kept if name not in in_use]:
            if self._total + weight <= keep:
                return
            try:
                remove_tree(self.path / old)
            except WorkspaceError as error:
                raise MaterializationError(f"there is no room for a new program: {error}") from error
            self._total -= self._kept.pop(old)
        if keep and self._total + weight > self._limit:
            raise MaterializationError(
                f"the programs that run now take all the room there is for programs ({self._limit:,} bytes); wait for "
                "one to end"
            )

    def _explain(self, error: OSError, bundle: CodeExecutionBundle) -> MaterializationError:
        return MaterializationError(f"{bundle.bundle_id} could not be written below {self.path}: {os_reason(error)}")
