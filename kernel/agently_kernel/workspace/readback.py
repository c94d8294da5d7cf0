"""Opening files inside a directory that a hostile guest writes to, without ever being led out of it or made to wait.

Everything starts at a directory descriptor. On Linux ``openat2`` resolves beneath it and refuses every link and mount.
The file is first opened as a bare handle (O_PATH), looked at, and only a regular file is then opened for reading, by
that handle, so that a FIFO or a device is never opened at all. Elsewhere each component is opened with O_NOFOLLOW.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

RefusalReason = Literal[
    "missing", "symlink", "hard_link", "not_regular", "too_large", "total_exceeded", "too_many", "changed", "bad_name",
    "unreadable", "not_stored",
]

_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_O_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_O_PATH = getattr(os, "O_PATH", 0)
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | _CLOEXEC
_FOLDER = os.O_RDONLY | _O_DIRECTORY | getattr(os, "O_NONBLOCK", 0) | _CLOEXEC

_OPENAT2 = 437  # the same number on every architecture
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_ATTEMPTS = 8


class Refusal(Exception):
    """A file is not taken; ``reason`` is a RefusedOutput reason, the text a sentence for people."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason: RefusalReason = reason


@dataclass(frozen=True, slots=True)
class Signature:
    """What tells one state of a file from another without reading it."""

    device: int
    inode: int
    size: int
    blocks: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, info: os.stat_result) -> Signature:
        """Return the signature in a stat result."""
        return cls(
            info.st_dev, info.st_ino, info.st_size, getattr(info, "st_blocks", 0), info.st_mtime_ns, info.st_ctime_ns
        )


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_SIZE = ctypes.sizeof(_OpenHow)


class BeneathOpener:
    """Opens paths beneath a directory descriptor. ``strict`` False forces the way of systems without ``openat2``."""

    def __init__(self, strict: bool | None = None) -> None:
        self._libc = None
        if strict is not False and sys.platform == "linux" and platform.machine() != "alpha":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._libc.syscall.restype = ctypes.c_long
            if not self._works():
                self._libc = None

    @property
    def strict(self) -> bool:
        """True when ``openat2`` is in use."""
        return self._libc is not None

    def _works(self) -> bool:
        """Old kernels lack the call and some filters forbid it; the root folder is always there to try it on."""
        root = os.open("/", _FOLDER)
        try:
            os.close(self._openat2(root, ".", _FOLDER))
            return True
        except OSError:
            return False
        finally:
            os.close(root)

    def _openat2(self, directory: int, path: str, flags: int) -> int:
        libc = self._libc
        if libc is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)
        how = _OpenHow(flags, 0, _RESOLVE)
        name = ctypes.c_char_p(os.fsencode(path))
        for _ in range(_ATTEMPTS):
            descriptor = libc.syscall(
                ctypes.c_long(_OPENAT2), ctypes.c_int(directory), name, ctypes.byref(how), ctypes.c_size_t(_HOW_SIZE)
            )
            if descriptor >= 0:
                return int(descriptor)
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: a rename raced with the walk
                raise OSError(code, os.strerror(code), path)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)

    def _open(self, directory: int, path: str, flags: int) -> int:
        """Open *path* (relative, no ``..``) beneath *directory*. Raises OSError."""
        if self._libc is not None:
            return self._openat2(directory, path, flags | _NOFOLLOW)
        *folders, name = path.split("/")
        device, current = os.fstat(directory).st_dev, directory
        try:
            for folder in folders:
                inner = os.open(folder, _FOLDER | _NOFOLLOW, dir_fd=current)
                if current != directory:
                    os.close(current)
                current = inner
                if os.fstat(current).st_dev != device:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            return os.open(name, flags | _NOFOLLOW, dir_fd=current)
        finally:
            if current != directory:
                os.close(current)

    def folder(self, directory: int, path: str) -> int:
        """Open the folder at *path* ("" or ".": the directory itself) for listing. Raises Refusal."""
        try:
            return self._open(directory, path or ".", _FOLDER)
        except OSError as error:
            raise refusal_of(error) from error

    def regular(self, directory: int, path: str, max_bytes: int) -> tuple[int, os.stat_result]:
        """Open the regular file at *path* for reading; return its descriptor and status.

        Raises Refusal: a link, more than one hard link, something that is no file, more than *max_bytes*.
        """
        try:
            if self._libc is None:
                descriptor = self._open(directory, path, _READ)
                try:
                    return descriptor, _acceptable(os.fstat(descriptor), max_bytes)
                except BaseException:
                    os.close(descriptor)
                    raise
            handle = self._open(directory, path, _O_PATH | _CLOEXEC)
            try:
                info = _acceptable(os.fstat(handle), max_bytes)
                return os.open(f"/proc/self/fd/{handle}", _READ), info
            finally:
                os.close(handle)
        except OSError as error:
            raise refusal_of(error) from error


def _acceptable(info: os.stat_result, max_bytes: int) -> os.stat_result:
    if stat.S_ISLNK(info.st_mode):
        raise Refusal("symlink", "it is a symbolic link; links are not followed out of a sandbox")
    if not stat.S_ISREG(info.st_mode):
        raise Refusal("not_regular", f"it is {_kind(info.st_mode)}, not a regular file")
    if info.st_nlink != 1:
        raise Refusal("hard_link", f"it has {info.st_nlink} hard links; copy the file instead of linking it")
    if info.st_size > max_bytes:
        raise Refusal("too_large", f"it has {info.st_size:,} bytes; the limit for one file is {max_bytes:,} bytes")
    return info


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def refusal_of(error: OSError) -> Refusal:
    """Return the refusal that an OSError of opening means."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Refusal("missing", "there is no such file")
    if error.errno == errno.ELOOP:
        return Refusal("symlink", "a symbolic link stands in its path; links are not followed out of a sandbox")
    if error.errno in (errno.EAGAIN, errno.ESTALE):
        return Refusal("changed", "its folders were renamed while it was being read")
    if error.errno == errno.EXDEV:
        return Refusal("not_regular", "another file system is mounted in its path")
    if error.errno in (errno.ENXIO, errno.ENODEV):
        return Refusal("not_regular", "it is a pipe, socket or device, not a regular file")
    if error.errno == errno.ENAMETOOLONG:
        return Refusal("bad_name", "its path is too long")
    return Refusal("unreadable", f"it cannot be read: {error.strerror or error}")


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of a walk: raw path relative to the start, and status."""

    path: str
    info: os.stat_result


def walk(
    opener: BeneathOpener,
    directory: int,
    folders: dict[str, Signature],
    *,
    max_entries: int,
    max_depth: int,
    skip: Callable[[str], bool],
) -> Iterator[Found | tuple[str, Refusal]]:
    """Yield what lies beneath *directory*, folder by folder, names sorted; at most *max_entries* are looked at.

    Fills *folders* with the signature of every folder that was listed ("" is the start). A folder that cannot be
    listed, lies too deep, or whose entries exceed the budget is yielded as (path, Refusal). Paths that *skip* says True
    for are passed over with all below them.
    """
    pending, budget = [""], max_entries
    while pending:
        prefix = pending.pop()
        try:
            descriptor = opener.folder(directory, prefix)
        except Refusal as refusal:
            yield prefix, refusal
            continue
        entries: list[Found] = []
        try:
            before = Signature.of(os.fstat(descriptor))
            full = False
            with os.scandir(descriptor) as listing:
                for entry in listing:
                    if budget <= 0:
                        full = True
                        break
                    budget -= 1
                    try:
                        path = f"{prefix}/{entry.name}" if prefix else entry.name
                        if not skip(path):
                            entries.append(Found(path, entry.stat(follow_symlinks=False)))
                    except OSError:
                        continue  # removed between listing and looking
            folders[prefix] = before
        except OSError as error:
            yield prefix, refusal_of(error)
            continue
        finally:
            os.close(descriptor)
        inner = []
        for found in sorted(entries, key=lambda item: item.path):
            if not stat.S_ISDIR(found.info.st_mode):
                yield found
            elif found.path.count("/") + 1 >= max_depth:
                yield found.path, Refusal("too_many", f"folders nested deeper than {max_depth} are not searched")
            else:
                inner.append(found.path)
        if full:
            yield prefix, Refusal("too_many", f"it holds more than {max_entries} entries; the rest was not looked at")
        pending.extend(reversed(inner))
