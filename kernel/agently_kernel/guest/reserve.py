"""One descriptor in reserve, so that a cell's source can be read when a cell has left no descriptors.

Otherwise a cell that leaks them could not be followed by one that closes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
from os import close as _close  # bound here: cells replace what modules offer
from os import open as _open
from os import read as _read_some
from typing import Tuple

from .loops import LOWEST_PRIVATE_FD

_READ_BYTES = 64 * 1024  # up to here no memory is mapped anew for the answer
OUT_OF_DESCRIPTORS = (
    "The source of this cell could not be opened: the interpreter may open no more files (its limit is %d, and a cell "
    "has used it up or lowered it). %%agently restart gives a new one; files in the working folder stay."
)


class Reserve:
    """Holds a descriptor, and lends it to the reading of one file."""

    def __init__(self) -> None:
        self._fd = self._kept = -1
        self._identity = (0, 0)
        self._take()

    def read(self, path: str) -> bytes:
        """Return the content of the file *path*. Raises RuntimeError when no descriptor is left even so, else
        OSError."""
        try:
            return _read(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            self._release()
            _set_limit(hard, hard)  # a cell may have lowered its own
            return _read(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise RuntimeError(OUT_OF_DESCRIPTORS % hard)
        finally:
            self._take()
            _set_limit(soft, hard)

    def _take(self) -> None:
        """Hold a copy of the kept end of a pipe of our own: no descriptor of user code can be mistaken for it."""
        try:
            if not self._is_ours(self._kept):
                fd, other = os.pipe()
                os.close(other)
                self._kept, self._identity = _moved(fd), _identity(fd)
                os.close(fd)
            if not self._is_ours(self._fd):
                self._fd = _moved(self._kept)
        except OSError:
            pass  # another thread was faster: the next cell tries again

    def _is_ours(self, fd: int) -> bool:
        try:
            return fd >= 0 and _identity(fd) == self._identity
        except OSError:
            return False

    def _release(self) -> None:
        if self._is_ours(self._fd):
            os.close(self._fd)
        self._fd = -1


def _set_limit(soft: int, hard: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # macOS allows less than it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _moved(fd: int) -> int:
    """Return a copy of *fd* that is out of the low numbers, where the limit allows such."""
    lowest = min(LOWEST_PRIVATE_FD, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)


def _identity(fd: int) -> Tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _read(path: str) -> bytes:
    """Read a file with three system calls where ``open`` makes eight: this is on the path of every cell."""
    fd = _open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while True:
            parts.append(_read_some(fd, _READ_BYTES))
            if not parts[-1]:
                return b"".join(parts)
    finally:
        _close(fd)
