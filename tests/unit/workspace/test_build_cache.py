"""What compilers made: kept under a key, shown to sandboxes, gone from both places when there is no room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agently_kernel.workspace.builds import BuildCache

KEYS = [f"{number:064x}" for number in range(3)]


def made(folder: Path, most: int = 100) -> BuildCache:
    (folder / "source").mkdir()
    return BuildCache(folder / "builds", most, shown=folder / "source")


def test_what_is_shown_is_the_kept_file_itself_and_readable_for_other_users(tmp_path: Path) -> None:
    cache, umask = made(tmp_path), os.umask(0o077)
    try:
        assert cache.show(KEYS[0]) is None
        cache.put(KEYS[0], b"program")
        name = cache.show(KEYS[0])
        assert name is not None and cache.show(KEYS[0]) == name
    finally:
        os.umask(umask)
    shown = tmp_path / "source" / name
    assert shown.read_bytes() == b"program" and shown.samefile(tmp_path / "builds" / KEYS[0])
    assert (shown.stat().st_mode & 0o777, shown.parent.stat().st_mode & 0o777) == (0o444, 0o755)


def test_what_makes_room_is_not_shown_any_more(tmp_path: Path) -> None:
    cache = made(tmp_path)
    for number, key in enumerate(KEYS):
        cache.put(key, b"x" * 40)
        os.utime(tmp_path / "builds" / key, ns=(number, number))
        assert cache.show(key) is not None
        os.utime(tmp_path / "builds" / key, ns=(number, number))
    assert (cache.get(KEYS[0]), cache.show(KEYS[0])) == (None, None)
    assert sorted(path.name for path in (tmp_path / "source" / ".builds").iterdir()) == KEYS[1:]


def test_what_is_kept_anew_is_shown_anew(tmp_path: Path) -> None:
    cache = made(tmp_path)
    cache.put(KEYS[0], b"old")
    cache.show(KEYS[0])
    cache.put(KEYS[0], b"new")
    name = cache.show(KEYS[0])
    assert name is not None and (tmp_path / "source" / name).read_bytes() == b"new"


def test_where_links_are_not_possible_nothing_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = made(tmp_path)
    cache.put(KEYS[0], b"program")

    def refused(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert cache.show(KEYS[0]) is None and cache.get(KEYS[0]) == b"program"
    assert BuildCache(tmp_path / "builds").show(KEYS[0]) is None
