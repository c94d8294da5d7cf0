"""Where earlier sessions of a notebook's folder left their files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agently_kernel.workspace.earlier import MOST_NAMED, earlier_files
from agently_kernel.workspace.store import WorkspaceStore


def stored(base: Path, name: str, folder: Path, *files: str) -> WorkspaceStore:
    store = WorkspaceStore(base / name)
    store.write_meta(notebook_dir=str(folder))
    for file in files:
        (store.files / file).parent.mkdir(parents=True, exist_ok=True)
        (store.files / file).write_text("x")
    return store


def test_only_stores_of_this_folder_with_files_are_named(tmp_path: Path) -> None:
    mine, base = tmp_path / "mine", tmp_path / "workspaces"
    now = stored(base, "ws-now", mine, "output/now.txt")
    old = stored(base, "ws-old", mine, "output/a.txt", "b.txt")
    stored(base, "ws-empty", mine)
    stored(base, "ws-other", tmp_path / "other", "output/c.txt")
    assert [(count, files) for _, count, files in earlier_files(now, mine)] == [(2, old.files)]


@pytest.mark.parametrize("broken", ["", "[]", "{", "null", '{"notebook_dir": 3}'])
def test_a_broken_record_is_passed_over(tmp_path: Path, broken: str) -> None:
    now, old = stored(tmp_path, "ws-now", tmp_path), stored(tmp_path, "ws-old", tmp_path, "a.txt")
    (old.path / "workspace.json").write_text(broken)
    assert earlier_files(now, tmp_path) == []


def test_the_newest_few_are_named(tmp_path: Path) -> None:
    now = stored(tmp_path, "ws-now", tmp_path)
    for number in range(MOST_NAMED + 2):
        os.utime(stored(tmp_path, f"ws-{number}", tmp_path, "a.txt").path, (number, number))
    found = [files.parent.name for _, _, files in earlier_files(now, tmp_path)]
    assert found == [f"ws-{number}" for number in range(MOST_NAMED + 1, 1, -1)]
