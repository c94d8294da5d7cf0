"""The host's own keeping of one workspace: collected files, logs and the trace, under the Jupyter data folder.

No guest can reach it. Every name below ``files/`` was checked before it comes here; folders are walked by descriptor.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from agently_kernel.contract.errors import WorkspaceError, os_reason
from agently_kernel.contract.paths import normalise_relative_path
from agently_kernel.workspace.areas import private_folder

MAX_LOG_BYTES = 64 * 1024**2
MAX_LOGS_BYTES = 512 * 1024**2
LOG_BUFFER = 256 * 1024
MAX_TRACE_BYTES = 16 * 1024**2
TRACE_FILE = "trace.jsonl"
META_FILE = "workspace.json"
INCOMING = "incoming"

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}\Z")


def _file_stem(identifier: str) -> str:
    """Return *identifier* when it is a plain file name, else a digest of it."""
    if _PLAIN_NAME.match(identifier):
        return identifier
    return hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def partial_files(store: Path) -> list[Path]:
    """Return what is only half written in the store at *store*, when nobody writes to it: copies, and its record."""
    found = list((store / INCOMING).iterdir()) if (store / INCOMING).is_dir() else []
    return sorted([*found, *store.glob(f".{META_FILE}.*")])


class LogWriter:
    """An append-only file for output that was too long to show; bounded, and says how much it could not take, and why.

    ``written`` and ``dropped`` count bytes; ``reason`` says in words what ended the writing, "" while nothing has.
    *limit* is the most bytes it takes, *limit_name* what a person calls that limit.
    """

    def __init__(self, path: Path, limit: int, limit_name: str = "the limit of one log") -> None:
        """Open the file for appending. Raises OSError."""
        self.path = path
        self.written = 0
        self.dropped = 0
        self.reason = ""
        self._limit = limit
        self._limit_name = limit_name
        self._waiting = bytearray()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        self._file: int | None = os.open(path, flags, 0o600)

    def write(self, data: bytes) -> None:
        """Append *data*; what is beyond the limit, or does not fit on the disk, is counted in ``dropped``."""
        taken = data[: max(0, self._limit - self.written)]
        if len(taken) < len(data) and not self.reason:
            self.reason = f"{self._limit_name}, {self._limit:,} bytes, is used up"
        self.written += len(taken)
        self.dropped += len(data) - len(taken)
        self._waiting += taken
        if len(self._waiting) >= LOG_BUFFER:
            self.flush()

    def flush(self) -> None:
        """Put on the disk what waits; a disk that does not take it loses the rest, never the execution."""
        try:
            while self._waiting and self._file is not None:
                del self._waiting[: os.write(self._file, self._waiting)]
        except OSError as error:
            self.reason = error.strerror or str(error)
            self.written -= len(self._waiting)
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._limit = 0

    def close(self) -> None:
        """Flush and close; harmless when closed."""
        self.flush()
        descriptor, self._file = self._file, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Incoming:
    """A copy that is being written; it becomes visible under its name only with :meth:`commit`."""

    def __init__(self, store: WorkspaceStore, name: str) -> None:
        self._store, self._temporary, self._folder = store, name, store.incoming
        self.descriptor = os.open(self._folder / name, _NEW_FILE, 0o600)

    def write(self, data: bytes | memoryview) -> None:
        """Append *data*. Raises WorkspaceError: the store's fault, never that of what is being read."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.descriptor, view) :]
        except OSError as error:
            raise self._store.failed(error) from error

    def commit(self, relative: str) -> Path:
        """Move the finished copy to ``files/<relative>``, replacing an older one, and return its path.

        Raises WorkspaceError.
        """
        try:
            self._move(relative)
        except OSError as error:
            raise self._store.failed(error) from error
        return self._store.files / relative

    def _move(self, relative: str) -> None:
        with self._store.parent_of(relative) as (parent, name):
            source = self._folder / self._temporary
            try:
                os.replace(source, name, dst_dir_fd=parent)
            except IsADirectoryError:
                self._store.make_way(parent, name)
                os.replace(source, name, dst_dir_fd=parent)
        self._temporary = ""

    def close(self) -> None:
        """Close the copy, and remove it when it was not committed."""
        os.close(self.descriptor)
        if self._temporary:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / self._temporary).unlink()


class WorkspaceStore:
    """``files/``, ``logs/``, ``trace.jsonl`` and ``workspace.json`` of one workspace; folders 0700, files 0600."""

    def __init__(self, path: Path) -> None:
        """Make (or reuse) the store's folders at *path*. Raises WorkspaceError."""
        self.path = private_folder(path)
        self.files = private_folder(path / "files")
        self.logs = private_folder(path / "logs")
        self.incoming = private_folder(path / INCOMING)
        self._lock = threading.Lock()
        self._meta: dict[str, Any] = {}
        self._waiting: deque[Mapping[str, Any]] = deque()

    # -- collected files

    @contextlib.contextmanager
    def receive(self) -> Iterator[Incoming]:
        """Yield a new private file to copy into; it is removed unless it was committed. Raises WorkspaceError."""
        try:
            private_folder(self.incoming)
            incoming = Incoming(self, secrets.token_hex(8))
        except OSError as error:
            raise self.failed(error) from error
        try:
            yield incoming
        finally:
            incoming.close()

    def failed(self, error: OSError) -> WorkspaceError:
        """Return what the store could not do as a sentence that blames what was in the way."""
        return WorkspaceError(
            f"the store {self.path} could not take a file: {os_reason(error)}"
        )

    @contextlib.contextmanager
    def parent_of(self, relative: str) -> Iterator[tuple[int, str]]:
        """Yield (descriptor of the folder, last name) for ``files/<relative>``, making the folders that are missing.

        Raises ValueError for a path that is not in its accepted spelling.
        """
        if normalise_relative_path(relative, what="stored file") != relative:
            raise ValueError(f"stored file {relative!r} is not in its accepted spelling")
        *folders, name = relative.split("/")
        descriptor = os.open(private_folder(self.files), _DIRECTORY)
        try:
            for folder in folders:
                inner = self._enter(descriptor, folder)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _enter(self, parent: int, name: str) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            os.mkdir(name, 0o700, dir_fd=parent)
        except NotADirectoryError:
            self.make_way(parent, name)
            os.mkdir(name, 0o700, dir_fd=parent)
        return os.open(name, _DIRECTORY, dir_fd=parent)

    @staticmethod
    def make_way(parent: int, name: str) -> None:
        """Rename what stands at *name* to ``name~1`` (or the next free number): a collected file is never lost."""
        taken = set(os.listdir(parent))
        stem = name.encode("utf-8")[:240].decode("utf-8", "ignore")
        number = next(n for n in range(1, len(taken) + 2) if f"{stem}~{n}" not in taken)
        os.rename(name, f"{stem}~{number}", src_dir_fd=parent, dst_dir_fd=parent)

    # -- logs and trace

    def log_writer(self, execution_id: str) -> LogWriter:
        """Open the spill file of one execution for appending. Raises WorkspaceError when it cannot be made.

        A file takes at most 64 MiB, all logs of a workspace 512 MiB together; the rest is counted, not kept.
        """
        try:
            used = sum(entry.stat().st_size for entry in os.scandir(private_folder(self.logs)))
            path, left = self.logs / f"{_file_stem(execution_id)}.log", max(0, MAX_LOGS_BYTES - used)
            if left < MAX_LOG_BYTES:
                return LogWriter(path, left, "what was left of the limit of all logs of this session")
            return LogWriter(path, MAX_LOG_BYTES)
        except OSError as error:
            raise WorkspaceError(f"no log can be written in {self.logs}: {os_reason(error)}") from error

    def append_trace(self, record: Mapping[str, Any]) -> None:
        """Append one JSON record to the trace. At 16 MiB the file is set aside once (``trace.1.jsonl``) and begun anew.

        Records that were put off are written before it. Raises WorkspaceError when it cannot be written.
        """
        self.put_off(record)
        self.write_off()

    def put_off(self, record: Mapping[str, Any]) -> bool:
        """Keep one record for the next :meth:`write_off`; True when none waited, so that the caller has to see to
        one."""
        self._waiting.append(record)
        return len(self._waiting) == 1

    def write_off(self) -> None:
        """Append what was put off to the trace. Raises WorkspaceError when it cannot be written; it is dropped then."""
        lines = []
        while self._waiting:
            record = self._waiting.popleft()
            lines.append(json.dumps(record, separators=(",", ":"), default=str).encode("utf-8") + b"\n")
        if not lines:
            return
        path = self.path / TRACE_FILE
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        try:
            with self._lock:
                descriptor = os.open(path, flags, 0o600)
                try:
                    os.write(descriptor, b"".join(lines))
                    full = os.fstat(descriptor).st_size > MAX_TRACE_BYTES
                finally:
                    os.close(descriptor)
                if full:
                    path.replace(self.path / "trace.1.jsonl")
        except OSError as error:
            raise WorkspaceError(f"the trace {path} cannot be written: {os_reason(error)}") from error

    def read_trace(self, last: int = 1000) -> list[dict[str, Any]]:
        """Return the last records of the trace, oldest first; a damaged line (a crash while writing) is left out.

        Raises WorkspaceError when records that were put off cannot be written.
        """
        self.write_off()
        try:
            lines = (self.path / TRACE_FILE).read_bytes().splitlines()[-last:]
        except FileNotFoundError:
            return []
        records = []
        for line in lines:
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        return records

    # -- what the workspace is

    def write_meta(self, **fields: Any) -> None:
        """Merge *fields* into ``workspace.json``, replaced in one step. Raises WorkspaceError."""
        with self._lock:
            self._meta.update(fields)
            temporary = self.path / f".{META_FILE}.{secrets.token_hex(4)}"
            try:
                descriptor = os.open(temporary, _NEW_FILE, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump(self._meta, file, indent=1, sort_keys=True)
                temporary.replace(self.path / META_FILE)
            except OSError as error:
                temporary.unlink(missing_ok=True)
                raise WorkspaceError(f"{self.path / META_FILE} cannot be written: {os_reason(error)}") from error
