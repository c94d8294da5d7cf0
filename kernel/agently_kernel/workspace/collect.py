"""Bringing files out of a sandbox into the host's own store: declared outputs, and what else lies under ``output/``.

A plain cell that wrote nothing must cost next to nothing, so what was collected is remembered by signature and looked
at again only when a signature changed. A signature counts only once it is older than the clock's grain: a file that is
written twice within one tick would otherwise look unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agently_kernel.contract.errors import AgentlyKernelError, WorkspaceError
from agently_kernel.contract.paths import normalise_relative_path
from agently_kernel.contract.protocols import ListingOutputSource, OutputSource
from agently_kernel.contract.workspace import CollectedOutput, CollectionLimits, CollectionReport, RefusedOutput
from agently_kernel.workspace.readback import BeneathOpener, Found, Refusal, RefusalReason, Signature, refusal_of, walk
from agently_kernel.workspace.store import Incoming, WorkspaceStore

CHUNK = 1024**2
MAX_ENTRIES = 8192
MAX_DEPTH = 16
MAX_REFUSED = 64
MOST_LEFT_NAMED = 3
DEADLINE_SECONDS = 60.0
QUICK_FILES = 32
QUICK_FOLDERS = 8
SETTLED_NS = 100_000_000
SCRATCH_LIMITS = CollectionLimits(max_file_bytes=64 * 1024**2, max_total_bytes=64 * 1024**2, max_files=1000)

_REASONS = frozenset(RefusalReason.__args__)  # type: ignore[attr-defined]
# Refusals that a later look may not repeat although no folder changed.
_MAY_PASS = frozenset({"changed", "too_large", "total_exceeded", "too_many", "hard_link", "unreadable", "not_stored"})
_CACHE_FOLDERS = frozenset({"__pycache__", "node_modules"})


AreaName = Literal["output", "build"]


def show_path(path: str) -> str:
    """Return a guest's path so that it can be shown: control and direction characters as escapes, at most 300 long."""
    text = "".join(ch if (ch.isascii() and ch.isprintable()) or ch.isalnum() else ascii(ch)[1:-1] for ch in path[:300])
    return text[:299] + "…" if len(text) > 300 or len(path) > 300 else text


def _shown(path: str) -> str:
    return show_path(path.rstrip("/") or "the working directory")


@dataclass(slots=True)
class _Kept:
    output: CollectedOutput
    signature: Signature
    settled: bool


@dataclass(slots=True)
class _Area:
    """What is remembered of one area of one sandbox."""

    root: tuple[int, int] | None = None
    kept: dict[str, _Kept] = field(default_factory=dict)
    folders: dict[str, Signature] = field(default_factory=dict)
    folders_settled: bool = False
    reported: set[tuple[str, str]] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    listed: dict[str, tuple[int, str]] = field(default_factory=dict)


class _Run:
    """One collection: the budget that is left, and what came of it so far."""

    def __init__(self, limits: CollectionLimits, deadline: float, stop: threading.Event) -> None:
        self.limits = limits
        self.files = 0
        self.bytes = 0
        self.deadline = deadline
        self.stop = stop
        self.outputs: list[CollectedOutput] = []
        self.refused: list[RefusedOutput] = []

    def check_time(self) -> None:
        """Raise Refusal when the collection was cancelled or has run out of time."""
        if self.stop.is_set():
            raise Refusal("unreadable", "the collection was cancelled")
        if time.monotonic() > self.deadline:
            raise Refusal("unreadable", f"the collection did not end within {DEADLINE_SECONDS:.0f} seconds")

    def admit(self, size: int) -> int:
        """Return the most bytes the next file may have. Raises Refusal when count or total is used up."""
        self.check_time()
        if self.files >= self.limits.max_files:
            most = self.limits.max_files
            raise Refusal("too_many", f"{most} files lie there already, the most that are kept at a time")
        if size > self.limits.max_file_bytes:
            most = self.limits.max_file_bytes
            raise Refusal("too_large", f"it has {size:,} bytes; the limit for one file is {most:,} bytes")
        if self.bytes + size > self.limits.max_total_bytes:
            raise Refusal(
                "total_exceeded",
                f"with its {size:,} bytes all files exceed the limit of {self.limits.max_total_bytes:,} bytes together",
            )
        return min(self.limits.max_file_bytes, self.limits.max_total_bytes - self.bytes)

    def count(self, size: int) -> None:
        """Charge one file to the budget."""
        self.files += 1
        self.bytes += size

    def refuse(self, path: str, refusal: Refusal, *, declared: bool) -> None:
        """Record that *path* (safe to show) was not taken; undeclared refusals are bounded."""
        message = f"{path} was not taken: {refusal}"
        self.refused.append(
            RefusedOutput(path=path, reason=refusal.reason, message=message, declared=declared)
        )

    def report(self) -> CollectionReport:
        """Return what was collected."""
        return CollectionReport(outputs=tuple(self.outputs), refused=tuple(self.refused))


class Collector:
    """Reads the areas of a workspace's sandboxes. Not safe for several threads at once."""

    def __init__(self, store: WorkspaceStore, limits: CollectionLimits, opener: BeneathOpener | None = None) -> None:
        self._store = store
        self._limits = limits
        self._opener = opener or BeneathOpener()
        self._areas: dict[AreaName, _Area] = {"output": _Area(), "build": _Area()}

    # -- the quick look: on the event loop, a handful of system calls

    def unchanged(self, directory: int) -> bool:
        """True when ``output/`` behind *directory* is surely as it was left by the last collection.

        Answers False (look properly) when the tree has many folders or files, or something in it was written just now.
        """
        area = self._areas["output"]
        if not area.folders_settled or len(area.folders) > QUICK_FOLDERS or len(area.kept) > QUICK_FILES:
            return False
        info = os.fstat(directory)
        if area.root != (info.st_dev, info.st_ino) or not all(kept.settled for kept in area.kept.values()):
            return False
        files: dict[str, list[tuple[str, Signature]]] = {folder: [] for folder in area.folders}
        for path, kept in area.kept.items():
            folder, _, name = path.removeprefix("output").rpartition("/")
            if folder[1:] not in files:
                return False
            files[folder[1:]].append((name, kept.signature))
        try:
            return all(self._same(directory, folder, area.folders[folder], files[folder]) for folder in files)
        except (OSError, Refusal):
            return False

    def _same(
        self, directory: int, folder: str, signature: Signature, files: list[tuple[str, Signature]]
    ) -> bool:
        """True when a folder, reached without following any link, and the known files in it are as they were."""
        inside = self._opener.folder(directory, folder) if folder else directory
        try:
            return signature == Signature.of(os.fstat(inside)) and all(
                known == Signature.of(os.stat(name, dir_fd=inside, follow_symlinks=False)) for name, known in files
            )
        finally:
            if folder:
                os.close(inside)

    # -- by descriptor: in a thread

    def collect_output(
        self,
        directory: int,
        declared: tuple[str, ...],
        *,
        also_undeclared: bool,
        everything: bool,
        stop: threading.Event,
    ) -> CollectionReport:
        """Collect ``output/`` behind *directory*. ``everything``: read all files again, whatever is remembered."""
        run = _Run(self._limits, time.monotonic() + DEADLINE_SECONDS, stop)
        area = self._fresh_area("output", directory)
        for path in declared:
            try:
                run.outputs.append(self._copy(run, area, directory, path.removeprefix("output/"), path, declared=True))
            except Refusal as refusal:
                area.kept.pop(path, None)
                run.refuse(path, refusal, declared=True)
        if also_undeclared:
            self._search(run, area, directory, "output/", frozenset(declared), everything)
        return run.report()

    def collect_scratch(self, directory: int, stop: threading.Event) -> CollectionReport:
        """Collect regular files of the guest's working directory: no caches, no hidden top-level names, no links."""
        run = _Run(SCRATCH_LIMITS, time.monotonic() + DEADLINE_SECONDS, stop)
        self._search(run, self._fresh_area("build", directory), directory, "", frozenset(), True)
        return run.report()

    def _fresh_area(self, name: AreaName, directory: int) -> _Area:
        """Return what is remembered of the area; nothing when it is that of another sandbox."""
        info = os.fstat(directory)
        if self._areas[name].root != (info.st_dev, info.st_ino):
            self._areas[name] = _Area(root=(info.st_dev, info.st_ino))
        return self._areas[name]

    def _search(
        self, run: _Run, area: _Area, directory: int, prefix: str, declared: frozenset[str], everything: bool
    ) -> None:
        folders: dict[str, Signature] = {}
        started = time.time_ns()
        alive, complete, again = set(declared), True, False
        crowded: Refusal | None = None
        left_out: list[str] = []
        found = walk(
            self._opener, directory, folders, max_entries=MAX_ENTRIES, max_depth=MAX_DEPTH,
            skip=_nothing if prefix else _is_cache,
        )
        for item in found:
            path = prefix + (item.path if isinstance(item, Found) else item[0])
            if path in declared:
                continue
            try:
                if isinstance(item, tuple):
                    complete = complete and item[1].reason == "too_many"
                    raise item[1]
                if not prefix and not stat.S_ISREG(item.info.st_mode):
                    continue  # links, pipes and sockets of a working directory are nobody's output
                _check_name(path)
                alive.add(path)
                self._found(run, area, directory, item, path, everything)
            except Refusal as refusal:
                again = again or refusal.reason in _MAY_PASS
                if refusal.reason == "too_many":
                    crowded = crowded or refusal
                    left_out += [path] if isinstance(item, Found) else []
                else:
                    self._note(run, area, path, refusal)
                if run.stop.is_set() or time.monotonic() > run.deadline:
                    complete = False
                    break
        self._note_crowded(run, area, prefix, crowded, left_out)
        if complete:
            for gone in area.kept.keys() - alive:
                del area.kept[gone]
        area.folders = folders
        area.folders_settled = complete and not again and all(_settled(item, started) for item in folders.values())

    def _found(
        self, run: _Run, area: _Area, directory: int, item: Found, path: str, everything: bool
    ) -> None:
        kept = area.kept.get(path)
        if kept and kept.settled and not everything and kept.signature == Signature.of(item.info):
            run.count(kept.output.size)
            return
        before = kept.output if kept else None
        try:
            output = self._copy(run, area, directory, item.path, path, declared=False)
        except Refusal:
            area.kept.pop(path, None)
            raise
        area.reported -= {(path, reason) for reason in _REASONS}
        if before is None or before.sha256 != output.sha256:
            run.outputs.append(output)

    @staticmethod
    def _note(run: _Run, area: _Area, path: str, refusal: Refusal) -> None:
        """Report an undeclared refusal once, and not more than a screenful of them."""
        shown = _shown(path)
        if (shown, refusal.reason) in area.reported or len(run.refused) >= MAX_REFUSED:
            return
        if len(area.reported) < 4 * MAX_REFUSED:
            area.reported.add((shown, refusal.reason))
            run.refuse(shown, refusal, declared=False)

    def _note_crowded(
        self, run: _Run, area: _Area, prefix: str, crowded: Refusal | None, left_out: Sequence[str]
    ) -> None:
        """Say once for the whole area that there was no room, and again when other files found none: which, and what
        makes room."""
        new = sorted(set(left_out) - area.left_out)
        if new:
            area.reported.discard((_shown(prefix), "too_many"))
        area.left_out = set(left_out)
        if crowded is None:
            return
        said = str(crowded)
        if new:
            named = ", ".join(_shown(path)[:80] for path in new[:MOST_LEFT_NAMED])
            more = f" and {len(new) - MOST_LEFT_NAMED:,} more" if len(new) > MOST_LEFT_NAMED else ""
            said = (
                f"{said}; left out: {named}{more}; to make room remove files there or pack them into one archive, or "
                "raise max_files in c.AgentlyKernel.collection"
            )
        self._note(run, area, prefix, Refusal("too_many", said))

    def _copy(
        self, run: _Run, area: _Area, directory: int, relative: str, path: str, *, declared: bool
    ) -> CollectedOutput:
        """Copy one file into the store, hash it, remember its signature. Raises Refusal."""
        most = run.admit(0)
        descriptor, before = self._opener.regular(directory, relative, self._limits_for(area).max_file_bytes)
        try:
            if before.st_size > most:
                run.admit(before.st_size)
            with self._store.receive() as incoming:
                digest = _copy_bytes(descriptor, incoming, before.st_size, run.check_time)
                after = os.fstat(descriptor)
                if Signature.of(after) != Signature.of(before) or after.st_nlink != 1:
                    raise Refusal("changed", "it was written to while it was being read")
                stored = incoming.commit(path)
        except WorkspaceError as error:  # the other files, and what the code showed, are not lost by that
            raise Refusal("not_stored", str(error)) from error
        finally:
            os.close(descriptor)
        run.count(before.st_size)
        output = CollectedOutput(
            path=path, sha256=digest, size=before.st_size, stored_path=str(stored), declared=declared
        )
        signature = Signature.of(before)
        area.kept[path] = _Kept(output, signature, _settled(signature, time.time_ns()))
        return output

    def _limits_for(self, area: _Area) -> CollectionLimits:
        return SCRATCH_LIMITS if area is self._areas["build"] else self._limits

    # -- over the guest protocol: where there is no descriptor

    async def fetch_output(
        self, source: OutputSource, declared: tuple[str, ...], *, also_undeclared: bool, everything: bool
    ) -> CollectionReport:
        """As :meth:`collect_output`, file by file through ``source.fetch_file``; found files where it can list.

        There are no signatures here: a found file is fetched again when its size changed, or with ``everything``.
        """
        run = _Run(self._limits, time.monotonic() + DEADLINE_SECONDS, threading.Event())
        for path in declared:
            try:
                run.outputs.append(
                    await self._fetch(run, source, "output", path.removeprefix("output/"), path, declared=True)
                )
            except Refusal as refusal:
                run.refuse(path, refusal, declared=True)
        if also_undeclared:
            await self._fetch_listed(run, source, "output", frozenset(declared), everything)
        return run.report()

    async def fetch_scratch(self, source: OutputSource) -> CollectionReport:
        """As :meth:`collect_scratch`, over the guest protocol."""
        run = _Run(SCRATCH_LIMITS, time.monotonic() + DEADLINE_SECONDS, threading.Event())
        await self._fetch_listed(run, source, "build", frozenset(), True)
        return run.report()

    async def _fetch_listed(
        self, run: _Run, source: OutputSource, name: AreaName, declared: frozenset[str], everything: bool
    ) -> None:
        if not isinstance(source, ListingOutputSource):
            return
        area, prefix = self._areas[name], "output/" if name == "output" else ""
        try:
            listing = await asyncio.wait_for(source.list_files(name, MAX_ENTRIES), _left(run))
        except (AgentlyKernelError, asyncio.TimeoutError) as error:
            self._note(run, area, prefix, Refusal("unreadable", f"its files could not be listed: {error}"))
            return
        crowded: Refusal | None = None
        left_out: list[str] = []
        for raw, size in sorted(listing)[:MAX_ENTRIES]:
            path = prefix + raw
            known = area.listed.get(path)
            if path in declared or (not prefix and _is_cache(raw)) or (known and known[0] == size and not everything):
                continue
            try:
                _check_name(path)
                output = await self._fetch(run, source, name, raw, path, declared=False)
            except Refusal as refusal:
                if refusal.reason == "too_many":
                    crowded = crowded or refusal
                    left_out.append(path)
                else:
                    self._note(run, area, path, refusal)
                continue
            area.listed[path] = (size, output.sha256)
            if known is None or known[1] != output.sha256:
                run.outputs.append(output)
        self._note_crowded(run, area, prefix, crowded, left_out)

    async def _fetch(
        self, run: _Run, source: OutputSource, name: AreaName, relative: str, path: str, *, declared: bool
    ) -> CollectedOutput:
        try:
            return await self._received(run, source, name, relative, path, declared=declared)
        except WorkspaceError as error:
            raise Refusal("not_stored", str(error)) from error

    async def _received(
        self, run: _Run, source: OutputSource, name: AreaName, relative: str, path: str, *, declared: bool
    ) -> CollectedOutput:
        most = run.admit(0)
        digest, size = hashlib.sha256(), 0
        stream = source.fetch_file(name, relative, most)
        with self._store.receive() as incoming:
            try:
                while True:
                    try:
                        chunk = await asyncio.wait_for(stream.__anext__(), _left(run))
                    except StopAsyncIteration:
                        break
                    size += len(chunk)
                    if size > most:
                        run.admit(size)
                    await asyncio.to_thread(_write_and_hash, incoming, chunk, digest.update)
            except asyncio.TimeoutError:
                raise Refusal("unreadable", f"it did not arrive within {DEADLINE_SECONDS:.0f} seconds") from None
            except WorkspaceError:
                raise
            except OSError as error:
                raise refusal_of(error) from error
            except AgentlyKernelError as error:
                known = error.code if error.code in _REASONS else "unreadable"
                raise Refusal(known, str(error)) from error  # type: ignore[arg-type]
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    with contextlib.suppress(AgentlyKernelError):
                        await close()
            stored = incoming.commit(path)
        run.count(size)
        return CollectedOutput(
            path=path, sha256="sha256:" + digest.hexdigest(), size=size, stored_path=str(stored), declared=declared
        )


def _left(run: _Run) -> float:
    return max(0.001, run.deadline - time.monotonic())


def _settled(signature: Signature, now_ns: int) -> bool:
    return signature.changed_ns < now_ns - SETTLED_NS and signature.modified_ns < now_ns - SETTLED_NS


def _nothing(path: str) -> bool:
    return False


def _is_cache(path: str) -> bool:
    parts = path.split("/")
    return parts[0].startswith(".") or any(part in _CACHE_FOLDERS for part in parts)


def _check_name(path: str) -> None:
    try:
        if normalise_relative_path(path, what="file") == path:
            return
    except ValueError:
        pass
    raise Refusal("bad_name", "its name could deceive a reader, or is not in the usual (NFC) form; rename it")


def _write_and_hash(incoming: Incoming, data: bytes | memoryview, update: Callable[[bytes | memoryview], None]) -> None:
    update(data)
    incoming.write(data)


def _copy_bytes(source: int, incoming: Incoming, size: int, check_time: Callable[[], None]) -> str:
    """Copy exactly *size* bytes and return their digest. Raises Refusal when there are more or fewer by now."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(CHUNK, size) or 1))
    left = size
    while left > 0:
        check_time()
        try:
            count = os.readv(source, [buffer[: min(len(buffer), left)]])
        except OSError as error:
            raise refusal_of(error) from error
        if count == 0:
            raise Refusal("changed", "it was shortened while it was being read")
        _write_and_hash(incoming, buffer[:count], digest.update)
        left -= count
    return "sha256:" + digest.hexdigest()
