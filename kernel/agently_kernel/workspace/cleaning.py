"""Finding and removing what dead sessions left behind; never anything of a live one.

A session that ends in an orderly way leaves only its store. After a crash its runtime area stays too, and is removed at
the next start. Stores hold the user's collected files, so they go only when that is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import AgentlyKernelError, WorkspaceError
from agently_kernel.contract.words import counted
from agently_kernel.workspace.areas import (
    OWNER_FILE,
    Owner,
    current_owner,
    lock_folder,
    owner_state,
    product_data_dir,
    remove_tree,
    runtime_candidates,
)
from agently_kernel.workspace.store import META_FILE, TRACE_FILE, partial_files

GRACE_SECONDS = 60.0
"""A folder without an owner's record may be one that is being made; it is left alone for this long."""

FINISHED = "it holds what a finished session collected"

CleaningHook = Callable[[], Iterable[str]]
"""Removes stale things of another kind (control groups …) and returns a sentence or path for each; may raise."""


class CleanedItem(Frozen):
    """One thing that was found, what became of it and why."""

    path: str
    kind: Literal["runtime", "scratch", "store", "other"]
    outcome: Literal["removed", "would_remove", "kept", "failed"]
    reason: str
    workspace_id: str = ""
    bytes: int = Field(default=0, description="size of its files, where it was counted (stores)")


class CleaningReport(Frozen):
    """What one cleaning found."""

    items: tuple[CleanedItem, ...] = ()

    @property
    def removed(self) -> tuple[CleanedItem, ...]:
        """What was removed."""
        return tuple(item for item in self.items if item.outcome == "removed")

    @property
    def failed(self) -> tuple[CleanedItem, ...]:
        """What should have been removed and could not be."""
        return tuple(item for item in self.items if item.outcome == "failed")

    def text(self, *, details: bool = False) -> str:
        """Return what was done, in totals; what could not be removed, and with *details* everything, has its line."""
        words = {"removed": "removed", "would_remove": "would remove", "kept": "kept", "failed": "could not remove"}
        lines = [
            f"{words[item.outcome]} {item.path}: {item.reason}" + (f" ({item.bytes:,} bytes)" if item.bytes else "")
            for item in self.items
            if details or item.outcome == "failed"
        ]
        gone = [item for item in self.items if item.outcome in ("removed", "would_remove")]
        kept = [item for item in self.items if item.outcome == "kept"]
        stores = [item for item in kept if item.reason == FINISHED]
        if not self.items:
            return "Nothing is left over from earlier sessions."
        verb = "Would remove" if any(item.outcome == "would_remove" for item in gone) else "Removed"
        lines.append(f"{verb} {_total(gone, 'leftover')} of sessions that have ended.")
        if len(kept) > len(stores):
            lines.append(f"Kept {_total([i for i in kept if i not in stores], 'folder')} in use, or used just now.")
        if stores:
            kept_of = _total(stores, "finished session")
            lines.append(f"Kept what {kept_of} collected; `agently-kernel clean --all` removes that too.")
        return "\n".join(lines)


def _total(items: Sequence[CleanedItem], noun: str) -> str:
    size = sum(item.bytes for item in items)
    return counted(len(items), noun) + (f" ({size:,} bytes)" if size else "")


def clean(
    *,
    remove_stores: bool = False,
    older_than: float = 0.0,
    dry_run: bool = False,
    hooks: Sequence[CleaningHook] = (),
    data_dir: Path | None = None,
    runtime_dir: Path | None = None,
) -> CleaningReport:
    """Remove runtime areas and disk scratch of dead sessions, and with ``remove_stores`` their stores.

    ``older_than`` keeps stores that were used within so many seconds; stores in which nothing was ever kept go in any
    case. ``hooks`` are called afterwards, not in a dry run. One thing that fails does not stop the others.
    """
    items: list[CleanedItem] = []
    product = product_data_dir(data_dir)
    for base in dict.fromkeys(runtime_candidates(runtime_dir, data_dir)):
        items += (_clean_area(folder, "runtime", dry_run) for folder in _own_folders(base))
    items += (_clean_area(folder, "scratch", dry_run) for folder in _own_folders(product / "scratch"))
    for folder in _own_folders(product / "workspaces"):
        items += _clean_partial(folder, dry_run)
        items.append(_clean_store(folder, remove_stores, older_than, dry_run))
    for hook in () if dry_run else hooks:
        try:
            for done in hook():
                items.append(CleanedItem(path=done, kind="other", outcome="removed", reason="its owner is gone"))
        except (AgentlyKernelError, OSError) as error:
            name = getattr(hook, "__name__", repr(hook))
            items.append(CleanedItem(path=name, kind="other", outcome="failed", reason=str(error)))
    return CleaningReport(items=tuple(items))


def _own_folders(base: Path) -> Iterator[Path]:
    """Yield the workspaces' folders in *base* that are real folders of this user."""
    try:
        names = sorted(entry.name for entry in os.scandir(base))
    except OSError:
        return
    for name in names:
        folder = base / name
        with contextlib.suppress(OSError):
            info = folder.lstat()
            mine = not hasattr(os, "getuid") or info.st_uid == os.getuid()
            if name.startswith("ws-") and stat.S_ISDIR(info.st_mode) and mine:
                yield folder


class _Held:
    """What holding (or not getting) the lock of a folder says about its owner."""

    def __init__(self, folder: Path) -> None:
        self.descriptor: int | None = None
        self.works = True
        try:
            self.descriptor = lock_folder(folder, exclusive=True)
        except (OSError, ImportError):
            self.works = False

    @property
    def by_owner(self) -> bool:
        """True when somebody else holds the lock: the owner lives, whatever else is known of it."""
        return self.works and self.descriptor is None

    def close(self) -> None:
        """Give the lock back."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _read_owner(path: Path) -> tuple[Owner | None, float | None]:
    """Return the owner in a record and when its workspace was closed in an orderly way."""
    try:
        record = json.loads(path.read_bytes())
        closed = record.get("closed_at")
        owner = Owner.model_validate({key: record[key] for key in Owner.model_fields if key in record})
    except (OSError, ValueError, AttributeError, ValidationError):
        return None, None
    return owner, closed if isinstance(closed, int | float) else None


def _why_kept(folder: Path, owner: Owner | None, held: _Held, closed: float | None = None) -> str | None:
    """Return why a folder must be left alone, or None when its owner is surely gone."""
    if held.by_owner:
        return "its session is running"
    if owner is None:
        young = time.time() - folder.lstat().st_mtime < GRACE_SECONDS
        return "it is just being made" if young else None
    if closed is not None:
        return None
    state = owner_state(owner)
    if state == "alive":
        return f"its session is running (process {owner.pid})"
    if state == "unknown":
        # Locks are shared by everything that runs on one kernel, so a free one is proof there; elsewhere it is not.
        if owner.locked and held.works and owner.boot_id == current_owner("").boot_id:
            return None
        return f"it belongs to a session on {owner.host}, which cannot be looked at from here"
    return None


def _clean_area(folder: Path, kind: Literal["runtime", "scratch"], dry_run: bool) -> CleanedItem:
    held = _Held(folder)
    try:
        owner, _ = _read_owner(folder / OWNER_FILE)
        kept = _why_kept(folder, owner, held)
        if kept is not None:
            return CleanedItem(path=str(folder), kind=kind, outcome="kept", reason=kept, workspace_id=folder.name)
        return _remove(folder, kind, "its session is gone", dry_run)
    except FileNotFoundError:
        return CleanedItem(path=str(folder), kind=kind, outcome="removed", reason="it went by itself meanwhile")
    finally:
        held.close()


def _clean_store(folder: Path, wanted: bool, older_than: float, dry_run: bool) -> CleanedItem:
    held = _Held(folder)
    try:
        owner, closed = _read_owner(folder / META_FILE)
        size, last, empty = _contents(folder)
        reason = _why_kept(folder, owner, held, closed)
        if reason is None and not empty:
            if not wanted:
                reason = FINISHED
            elif time.time() - last < older_than:
                reason = "it was used recently"
        if reason is not None:
            return CleanedItem(
                path=str(folder), kind="store", outcome="kept", reason=reason, workspace_id=folder.name, bytes=size
            )
        return _remove(folder, "store", "its session is gone", dry_run, size)
    except FileNotFoundError:
        return CleanedItem(path=str(folder), kind="store", outcome="removed", reason="it went by itself meanwhile")
    finally:
        held.close()


def _clean_partial(folder: Path, dry_run: bool) -> list[CleanedItem]:
    """Remove what a killed owner of a store had begun to write into it; what it had finished stays."""
    held, items = _Held(folder), []
    try:
        owner, closed = _read_owner(folder / META_FILE)
        if _why_kept(folder, owner, held, closed) is not None:
            return []
        for part in partial_files(folder):
            size, why = part.lstat().st_size, "it was being written when its session ended"
            outcome: Literal["removed", "would_remove", "failed"] = "would_remove" if dry_run else "removed"
            try:
                if not dry_run:
                    remove_tree(part)
            except WorkspaceError as error:
                outcome, why = "failed", str(error)
            items.append(CleanedItem(
                path=str(part), kind="store", outcome=outcome, reason=why, workspace_id=folder.name, bytes=size
            ))
    except FileNotFoundError:
        pass  # it went by itself meanwhile
    finally:
        held.close()
    return items


def _contents(folder: Path) -> tuple[int, float, bool]:
    """Return (bytes of all files, time of the last change, whether nothing was ever kept) of a store."""
    size, last, kept = 0, folder.lstat().st_mtime, False
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where) / name
            with contextlib.suppress(OSError):
                info = path.lstat()
                size += info.st_size
                last = max(last, info.st_mtime)
            kept = kept or path.parent != folder or name.startswith(TRACE_FILE.partition(".")[0])
    return size, last, not kept


def _remove(
    folder: Path, kind: Literal["runtime", "scratch", "store"], reason: str, dry_run: bool, size: int = 0
) -> CleanedItem:
    outcome: Literal["removed", "would_remove", "failed"] = "would_remove" if dry_run else "removed"
    if not dry_run:
        try:
            remove_tree(folder)
        except WorkspaceError as error:
            outcome, reason = "failed", str(error)
    return CleanedItem(
        path=str(folder), kind=kind, outcome=outcome, reason=reason, workspace_id=folder.name, bytes=size
    )
