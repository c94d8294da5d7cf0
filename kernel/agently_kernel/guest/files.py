"""Files of a sandbox for the host: walked by descriptor, no links followed, regular files with one link only."""

from __future__ import annotations

import os
import stat
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import wire

MAX_DEPTH = 64
WALK_SECONDS = 2.0
QUICK_SECONDS = 0.02
COPY_BYTES = 1 << 30
MAX_LINKS = 10000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Refused(Exception):
    """Why a file is not given or taken; the first word is one of the reasons that hosts know."""


def parts_of(path: str) -> List[str]:
    """Split a relative path. Raises Refused for anything that is not plainly below its root."""
    parts = path.split("/")
    if not path or len(path) > 4096 or len(parts) > MAX_DEPTH or any(p in ("", ".", "..") or "\0" in p for p in parts):
        raise Refused("bad_name")
    return parts


def open_folder(root: str, parts: List[str], make: bool = False) -> int:
    """Return a descriptor of the folder *parts* below *root*; no component may be a link. Raises Refused."""
    try:
        fd = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    except OSError as error:
        raise Refused("missing" if isinstance(error, FileNotFoundError) else "unreadable")
    try:
        for part in parts:
            if make:
                try:
                    os.mkdir(part, 0o755, dir_fd=fd)
                except FileExistsError:
                    pass
            deeper = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = deeper
    except OSError as error:
        os.close(fd)
        raise _refusal(error)
    return fd


def _refusal(error: OSError) -> Refused:
    if isinstance(error, FileNotFoundError):
        return Refused("missing")
    if isinstance(error, (NotADirectoryError,)) or error.errno == 40:  # ELOOP: a link where none may be
        return Refused("symlink")
    return Refused("unreadable")


def open_file(root: str, path: str, max_bytes: int) -> Tuple[int, int]:
    """Open one regular file for reading and return (descriptor, size). Raises Refused."""
    parts = parts_of(path)
    folder = open_folder(root, parts[:-1])
    try:
        fd = os.open(parts[-1], _FILE, dir_fd=folder)
    except OSError as error:
        raise Refused("not_regular") if error.errno == 6 else _refusal(error)  # ENXIO: a socket
    finally:
        os.close(folder)
    facts = os.fstat(fd)
    reason = ""
    if not stat.S_ISREG(facts.st_mode):
        reason = "not_regular"
    elif facts.st_nlink != 1:
        reason = "hard_link"
    elif facts.st_size > max_bytes:
        reason = "too_large"
    if reason:
        os.close(fd)
        raise Refused(reason)
    return fd, facts.st_size


def read_frames(request: int, fd: int, size: int) -> Iterator[Tuple[Dict[str, Any], bytes]]:
    """Yield the ``file`` frames of an open file: data, then end; refused when it changed meanwhile. Closes *fd*."""
    try:
        left = size
        while left:
            data = os.read(fd, min(left, wire.STREAM_CHUNK))
            if not data:
                break
            left -= len(data)
            yield {"op": "file", "request": request, "state": "data"}, data
        if left or os.fstat(fd).st_size != size:
            yield {"op": "file", "request": request, "state": "refused", "reason": "changed"}, b""
        else:
            yield {"op": "file", "request": request, "state": "end"}, b""
    except OSError:
        yield {"op": "file", "request": request, "state": "refused", "reason": "unreadable"}, b""
    finally:
        os.close(fd)


class Listed:
    """What the host was told last of the files below *root*: while that is so, it need not ask again.

    A question costs a round trip, which after a short cell is as dear as half of the cell. Nothing is done before the
    host has asked once, for where it sees the folder itself it never does.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._most = 0
        self._told: Optional[List[Dict[str, Any]]] = None

    def tell(self, max_files: int) -> List[Dict[str, Any]]:
        """Return the list, and remember it if it can be made again in no time."""
        started = time.monotonic()
        found = list_files(self._root, max_files)
        quick = time.monotonic() - started < QUICK_SECONDS
        self._most, self._told = max_files, found if quick else None
        return found

    def unchanged(self) -> bool:
        """True when the list is what it was."""
        if self._told is None:
            return False
        deadline = time.monotonic() + QUICK_SECONDS
        same = list_files(self._root, self._most, QUICK_SECONDS) == self._told
        return same and time.monotonic() < deadline


def list_files(root: str, max_files: int, seconds: float = WALK_SECONDS) -> List[Dict[str, Any]]:
    """Return {"path", "size"} of the regular files with one link below *root*: at most *max_files*, and those that are
    found within so many seconds."""
    found: List[Dict[str, Any]] = []
    deadline = time.monotonic() + seconds
    try:
        start = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    except OSError:
        return found
    _walk(start, "", 0, max_files, deadline, found)
    return found


def _walk(fd: int, prefix: str, depth: int, most: int, deadline: float, found: List[Dict[str, Any]]) -> None:
    folders: List[str] = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if len(found) >= most or time.monotonic() > deadline:
                    return
                try:
                    facts = entry.stat(follow_symlinks=False)
                    entry.name.encode("utf-8")
                except (OSError, UnicodeEncodeError):
                    continue
                if stat.S_ISDIR(facts.st_mode):
                    folders.append(entry.name)
                elif stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1:
                    found.append({"path": prefix + entry.name, "size": facts.st_size})
        for name in sorted(folders) if depth < MAX_DEPTH else []:
            try:
                deeper = os.open(name, _FOLDER, dir_fd=fd)
            except OSError:
                continue
            _walk(deeper, prefix + name + "/", depth + 1, most, deadline, found)
    finally:
        os.close(fd)


def store(root: str, path: str, data: bytes, mode: int) -> None:
    """Write a new file below *root*, making folders, replacing nothing. Raises Refused."""

    def fill(fd: int) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    _create(root, path, mode, fill)


def copy(source_root: str, source: str, root: str, path: str) -> None:
    """Make a new program below *root* from a file that the host shows below *source_root*. Raises Refused."""
    parts = parts_of(source)
    folder = open_folder(source_root, parts[:-1])
    try:
        original = os.open(parts[-1], _FILE, dir_fd=folder)
    except OSError as error:
        raise _refusal(error)
    finally:
        os.close(folder)

    def fill(fd: int) -> None:
        while os.sendfile(fd, original, None, COPY_BYTES):
            pass

    try:
        _create(root, path, 0o755, fill)
    finally:
        os.close(original)


def _create(root: str, path: str, mode: int, fill: Callable[[int], None]) -> None:
    parts = parts_of(path)
    folder = open_folder(root, parts[:-1], make=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(parts[-1], flags, mode, dir_fd=folder)
        try:
            try:
                fill(fd)
            except OSError:
                os.unlink(parts[-1], dir_fd=folder)  # half a file would stand in the way of the next attempt
                raise
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
    except OSError as error:
        raise Refused("%s: %s" % (path, error.strerror))
    finally:
        os.close(folder)


def link(root: str, path: str, target_root: str) -> List[str]:
    """Make ``root/path`` a link to ``target_root/path``, and its folders; return the names that something else hides.

    What is there stays. Where that is a folder, what the target holds is linked into it. Raises Refused.
    """
    parts = parts_of(path)
    hidden: List[str] = []
    folder = open_folder(root, parts[:-1], make=True)
    try:
        left = _link(folder, parts, target_root, MAX_LINKS, hidden)
    finally:
        os.close(folder)
    if left < 0:
        raise Refused("%s: more than %d names would have to be linked one by one" % (path, MAX_LINKS))
    return hidden


def _link(folder: int, parts: List[str], target_root: str, left: int, hidden: List[str]) -> int:
    """Link *parts* below *target_root* into *folder* and return how many more links may be made, negative: too many."""
    name, target = parts[-1], "/".join([target_root, *parts])
    if left <= 0 or len(parts) > MAX_DEPTH:
        return -1
    try:
        os.symlink(target, name, dir_fd=folder)
        return left - 1
    except FileExistsError:
        pass
    except OSError as error:
        raise Refused("%s: %s" % ("/".join(parts), error.strerror))
    try:
        if os.readlink(name, dir_fd=folder) == target:
            return left - 1
    except OSError:
        pass  # no link
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        inner = -1
    if inner < 0 or not os.path.isdir(target):
        if inner >= 0:
            os.close(inner)
        if len(hidden) < 16:
            hidden.append("/".join(parts))
        return left - 1
    try:
        for entry in sorted(os.listdir(target)):
            left = _link(inner, [*parts, entry], target_root, left, hidden)
            if left < 0:
                break
    except OSError as error:
        raise Refused("%s: %s" % ("/".join(parts), error.strerror))
    finally:
        os.close(inner)
    return left
