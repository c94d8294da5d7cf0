"""What earlier sessions of a notebook's folder left in their stores."""

from __future__ import annotations

import heapq
import json
from pathlib import Path

from agently_kernel.workspace.store import META_FILE, WorkspaceStore

MOST_LOOKED_AT = 500
MOST_NAMED = 5
MOST_COUNTED = 1000


def earlier_files(store: WorkspaceStore, folder: Path) -> list[tuple[float, int, Path]]:
    """Return (when it began in seconds since the epoch, number of files, where they are) of at most five earlier
    sessions in the notebook's *folder* that collected files, the newest first. Blocks; raises nothing."""
    found: list[tuple[float, int, Path]] = []
    try:
        stores = [path for path in store.path.parent.iterdir() if path != store.path]
        recent = heapq.nlargest(MOST_LOOKED_AT, stores, key=lambda path: path.lstat().st_mtime)
    except OSError:
        return []
    for path in recent:
        try:
            meta = json.loads((path / META_FILE).read_text("utf-8"))
            if meta.get("notebook_dir") != str(folder):
                continue
            files = path / "files"
            count = sum(1 for _, item in zip(range(MOST_COUNTED), files.rglob("*"), strict=False) if item.is_file())
            if count:
                found.append((float(meta.get("created_at") or path.lstat().st_mtime), count, files))
        except (OSError, ValueError, AttributeError, TypeError):
            continue
    return sorted(found, reverse=True)[:MOST_NAMED]
