"""Files and the folders around them, given in any order and in any way."""

from __future__ import annotations

import itertools

import pytest
from workspace_support import make_workspace

from agently_kernel.contract.workspace import TaskWorkspaceAccessRequirement

PLACES = ("data", "data/deep", "data/deep/x.csv")


@pytest.fixture
def workspace(tmp_path):
    with make_workspace(tmp_path) as made:
        yield made


@pytest.fixture
def host(tmp_path):
    folder = tmp_path / "notebook"
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "data" / "deep" / "x.csv").write_text("x")
    (folder / "data" / "y.csv").write_text("y")
    return folder


@pytest.mark.parametrize("order", list(itertools.permutations(PLACES)))
@pytest.mark.parametrize("modes", list(itertools.product(("snapshot", "read_only"), repeat=3)))
def test_every_order_and_mode_ends_in_inputs_that_do_not_overlap(workspace, host, order, modes):
    for name, mode in zip(order, modes, strict=True):
        granted = workspace.live_input(host / name, name, mode=mode)
        assert name == granted.name or name.startswith(granted.name + "/")
        assert granted in workspace.inputs
    names = [item.name for item in workspace.inputs]
    assert names == ["data"]
    mode = workspace.inputs[0].mode
    grant = workspace.issue_grant(
        execution_id="e", requirement=TaskWorkspaceAccessRequirement(mode=mode, inputs=workspace.inputs)
    )
    assert grant.inputs == workspace.inputs


def test_a_file_of_a_given_folder_is_renewed_with_the_folders_digest(workspace, host):
    before = workspace.snapshot_input(host / "data", "data")
    (host / "data" / "deep" / "x.csv").write_text("changed")
    (host / "data" / "new.csv").write_text("new")
    after = workspace.snapshot_input(host / "data" / "deep" / "x.csv", "data/deep/x.csv")
    assert (workspace.input_path / "data" / "deep" / "x.csv").read_text() == "changed"
    assert not (workspace.input_path / "data" / "new.csv").exists()
    assert (after.name, after.size) == ("data", 8)
    assert after.sha256 != before.sha256
    (host / "data" / "new.csv").unlink()
    assert workspace.snapshot_input(host / "data", "data").sha256 == after.sha256


def test_what_comes_from_elsewhere_is_refused_in_words_that_are_true(workspace, host, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "y.csv").write_text("far")
    workspace.snapshot_input(host / "data", "data")
    with pytest.raises(ValueError, match="another") as refused:
        workspace.snapshot_input(tmp_path / "far" / "y.csv", "data/y.csv")
    assert str(host / "data") in str(refused.value)
    assert "is a file" not in str(refused.value)
    workspace.snapshot_input(tmp_path / "far" / "y.csv", "other/y.csv")
    with pytest.raises(ValueError, match="another"):
        workspace.snapshot_input(host / "data", "other")


def test_a_mount_that_was_replaced_still_serves_the_sandbox_that_has_it(workspace, host):
    mounted = workspace.live_input(host / "data" / "y.csv", "data/y.csv")
    workspace.live_input(host / "data", "data")
    assert [item.name for item in workspace.inputs] == ["data"]
    workspace.issue_grant(
        execution_id="e", requirement=TaskWorkspaceAccessRequirement(mode="read_only", inputs=(mounted,))
    )


@pytest.mark.parametrize("first", ["data", "data/deep", "data/y.csv"])
def test_no_copy_is_left_of_what_was_given_in_two_ways_and_taken_back(workspace, host, first):
    workspace.snapshot_input(host / first, first)
    workspace.live_input(host / "data", "data")
    workspace.withdraw_input("data")
    assert workspace.inputs == ()
    assert list(workspace.input_path.iterdir()) == []
