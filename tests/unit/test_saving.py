"""Saving collected files: every one gets a place of its own, and nothing of the user's is overwritten unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from agently_kernel.contract.errors import WorkspaceError
from agently_kernel.saving import SavedRecord, plan_saving, targets, write


def collected(store: Path, **contents: str) -> list[tuple[str, Path]]:
    """Return files of a synthetic store; ``__`` in a name stands for a slash."""
    found = []
    for key, text in contents.items():
        name = key.replace("__", "/") + ".txt"
        path = store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        found.append((name, path))
    return found


@pytest.fixture
def record(tmp_path: Path) -> SavedRecord:
    return SavedRecord(tmp_path / "saved.json")


@pytest.mark.parametrize(("names", "places"), [
    (["output/a", "b"], ["a", "b"]),
    (["output/a", "a"], ["output/a", "a"]),
    (["a", "output/a", "output/b"], ["a", "output/a", "output/b"]),
    (["output/A", "a"], ["output/A", "a"]),
    (["output/a/b", "a"], ["output/a/b", "a"]),
    (["output/output/a", "output/a"], ["output/a", "a"]),
    (["output/a"], ["a"]),
])
def test_no_two_files_end_in_one(names: list[str], places: list[str]) -> None:
    found = targets(Path("/far"), [(name, Path("/store") / name) for name in names])
    assert [target.relative_to("/far").as_posix() for _, _, target in found] == places


def test_a_file_of_the_users_is_named_and_stays_unless_it_may_be_replaced(tmp_path: Path, record: SavedRecord) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "marks.txt").write_text("my own")
    files = collected(tmp_path / "store", output__marks="new", output__other="other")
    plan = plan_saving(folder, files, record)
    assert plan.replaces == (folder / "marks.txt",)
    assert write(plan, record, replace=False) == (folder / "other.txt",)
    assert (folder / "marks.txt").read_text() == "my own"
    write(plan_saving(folder, files, record), record, replace=True)
    assert (folder / "marks.txt").read_text() == "new"


def test_what_was_saved_before_and_not_touched_since_is_replaced_by_a_rerun(
    tmp_path: Path, record: SavedRecord
) -> None:
    folder, store = tmp_path / "results", tmp_path / "store"
    write(plan_saving(folder, collected(store, output__a="1"), record), record, replace=False)
    again = SavedRecord(tmp_path / "saved.json")  # another session of the same user
    plan = plan_saving(folder, collected(store, output__a="2"), again)
    assert plan.replaces == ()
    write(plan, again, replace=False)
    assert (folder / "a.txt").read_text() == "2"
    (folder / "a.txt").write_text("edited")
    assert plan_saving(folder, collected(store, output__a="3"), again).replaces == (folder / "a.txt",)


def test_another_collected_file_does_not_take_the_place_of_a_saved_one(tmp_path: Path, record: SavedRecord) -> None:
    folder, store = tmp_path / "results", tmp_path / "store"
    write(plan_saving(folder, collected(store, output__a="from output"), record), record, replace=False)
    assert plan_saving(folder, collected(store, a="from the folder"), record).replaces == (folder / "a.txt",)


def test_what_appears_after_the_question_is_not_overwritten(tmp_path: Path, record: SavedRecord) -> None:
    folder = tmp_path / "results"
    plan = plan_saving(folder, collected(tmp_path / "store", output__a="new"), record)
    folder.mkdir()
    (folder / "a.txt").write_text("came meanwhile")
    with pytest.raises(WorkspaceError, match=r"a\.txt could not be written: File exists"):
        write(plan, record, replace=True)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("a.txt", "came meanwhile")]


def test_links_and_folders_in_the_way_are_refused(tmp_path: Path, record: SavedRecord) -> None:
    folder, far = tmp_path / "results", tmp_path / "far"
    folder.mkdir()
    far.mkdir()
    files = collected(tmp_path / "store", output__sub__a="new", output__b="new")
    (folder / "sub").symlink_to(far)
    with pytest.raises(WorkspaceError, match="is a link"):
        plan_saving(folder, files, record)
    (folder / "sub").unlink()
    (folder / "b.txt").mkdir()
    with pytest.raises(WorkspaceError, match="is a folder"):
        plan_saving(folder, files, record)


@pytest.mark.parametrize("broken", ["", "[]", "{", '{"x": 3}'])
def test_a_broken_record_makes_every_file_the_users(tmp_path: Path, broken: str) -> None:
    (tmp_path / "saved.json").write_text(broken)
    record = SavedRecord(tmp_path / "saved.json")
    (tmp_path / "a.txt").write_text("mine")
    assert plan_saving(tmp_path, collected(tmp_path / "store", output__a="new"), record).replaces
