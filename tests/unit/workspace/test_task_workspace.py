"""Areas, grants, materialisation and the end of a TaskWorkspace."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading

import pytest
from workspace_support import make_bundle, make_workspace

from agently_kernel.contract.errors import GrantError, MaterializationError, WorkspaceError
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.workspace import GrantedInput, TaskWorkspaceAccessRequirement
from agently_kernel.workspace import sources as sources_module


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_areas_are_private_and_what_a_sandbox_reads_is_readable(workspace, tmp_path):
    assert workspace.runtime_path.parent == tmp_path / "run" / f"agently-kernel-{os.getuid()}"
    assert mode(workspace.runtime_path) == mode(workspace.runtime_path.parent) == 0o700
    assert {path.name: mode(path) for path in workspace.runtime_path.iterdir() if path.is_dir()} == {
        "source": 0o755,
        "guest": 0o755,
        "input": 0o755,
    }
    store = tmp_path / "data" / "agently-kernel" / "workspaces" / workspace.workspace_id
    assert (workspace.store.path, mode(store), mode(store / "files"), mode(store / "logs")) == (store, *[0o700] * 3)
    record = json.loads((store / "workspace.json").read_text())
    assert (record["pid"], record["session_id"], record["closed_at"]) == (os.getpid(), "test", None)
    assert mode(store / "workspace.json") == 0o600


def test_two_workspaces_share_nothing(tmp_path):
    with make_workspace(tmp_path) as one, make_workspace(tmp_path) as two:
        assert one.workspace_id != two.workspace_id
        assert one.runtime_path != two.runtime_path and one.store.path != two.store.path


def test_grant_names_exact_roots(workspace):
    grant = workspace.issue_grant(execution_id="e1")
    assert [(r.name, r.sandbox_path, r.access, r.backing, r.host_path) for r in grant.roots] == [
        ("source", "/workspace/src", "read_only", "host", str(workspace.source_path)),
        ("input", "/workspace/input", "read_only", "host", str(workspace.input_path)),
        ("build", "/workspace/build", "read_write", "tmpfs", None),
        ("output", "/workspace/output", "read_write", "tmpfs", None),
    ]
    assert (grant.mode, grant.execution_id, grant.task_workspace_id) == ("snapshot", "e1", workspace.workspace_id)


def test_grants_close_exactly_once(workspace):
    first, second = (workspace.issue_grant(execution_id=name) for name in ("a", "b"))
    assert workspace.open_grants == (first, second)
    workspace.close_grant(first)
    assert workspace.open_grants == (second,)
    with pytest.raises(GrantError, match="was closed already"):
        workspace.close_grant(first)


def test_grants_of_others_and_forged_ones_are_refused(workspace, tmp_path):
    with make_workspace(tmp_path) as other:
        foreign = other.issue_grant(execution_id="x")
        with pytest.raises(GrantError, match="another workspace"):
            workspace.close_grant(foreign)
        with pytest.raises(GrantError, match="another workspace"):
            workspace.materialize(make_bundle(), foreign)
        assert other.open_grants == (foreign,)
    own = workspace.issue_grant(execution_id="x")
    forged = own.model_copy(update={"mode": "read_write"})
    with pytest.raises(GrantError):
        workspace.materialize(make_bundle(), forged)
    assert workspace.open_grants == (own,)


def test_grant_covers_only_inputs_that_were_granted(workspace, tmp_path):
    data = tmp_path / "d.csv"
    data.write_text("1")
    live = workspace.live_input(data, "d.csv")
    with pytest.raises(GrantError, match="granted as read_only, but this execution asks for access mode snapshot only"):
        workspace.issue_grant(execution_id="x", requirement=TaskWorkspaceAccessRequirement(inputs=(live,)))
    grant = workspace.issue_grant(
        execution_id="x", requirement=TaskWorkspaceAccessRequirement(mode="read_only", inputs=(live,))
    )
    assert grant.inputs == (live,)
    invented = GrantedInput(name="passwd", host_path="/etc/passwd", mode="read_only")
    with pytest.raises(GrantError, match="'passwd' was not granted in this workspace"):
        workspace.issue_grant(
            execution_id="x", requirement=TaskWorkspaceAccessRequirement(mode="read_only", inputs=(invented,))
        )


def test_materialized_files_are_exact_and_read_only(workspace):
    bundle = make_bundle({"pkg/sub/m.py": b"x = 1\n", "data.bin": bytes(range(256)) * 300, "empty": b""}, ("output/a",))
    old = os.umask(0o077)
    try:
        manifest = workspace.materialize(bundle, workspace.issue_grant(execution_id="e"))
    finally:
        os.umask(old)
    folder = workspace.source_path / bundle.bundle_id
    assert {str(p.relative_to(folder)): (p.read_bytes(), mode(p)) for p in folder.rglob("*") if p.is_file()} == {
        file.path: (file.content, 0o444) for file in bundle.files
    }
    assert {mode(p) for p in (folder, folder / "pkg", folder / "pkg" / "sub")} == {0o755}
    assert manifest.source_dir == f"/workspace/src/{bundle.bundle_id}"
    assert manifest.entrypoint == f"/workspace/src/{bundle.bundle_id}/pkg/sub/m.py"
    assert [(f.path, f.sandbox_path, f.sha256, f.size) for f in manifest.files] == [
        (f.path, f"{manifest.source_dir}/{f.path}", f.sha256, len(f.content)) for f in bundle.files
    ]
    assert (manifest.bundle_digest, manifest.expected_outputs) == (bundle.bundle_digest, ("output/a",))
    assert os.listdir(workspace.source_path) == [bundle.bundle_id]


def test_the_same_bundle_is_used_again_only_when_unchanged(workspace):
    bundle = make_bundle({"a.py": b"12345"})
    first, second, third = (workspace.issue_grant(execution_id=str(n)) for n in range(3))
    workspace.materialize(bundle, first)
    path = workspace.source_path / bundle.bundle_id / "a.py"
    inode = path.stat().st_ino
    workspace.materialize(bundle, second)
    assert path.stat().st_ino == inode
    for content in (b"1234X", b"1234", b"123456"):
        path.chmod(0o600)
        path.write_bytes(content)
        with pytest.raises(MaterializationError, match="no longer what was written"):
            workspace.materialize(bundle, third)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(MaterializationError):
        workspace.materialize(bundle, third)


def test_one_bundle_a_grant(workspace):
    grant = workspace.issue_grant(execution_id="e")
    first, second = make_bundle({"a.py": b"1"}), make_bundle({"a.py": b"2"})
    workspace.materialize(first, grant)
    workspace.materialize(first, grant)
    with pytest.raises(GrantError, match=f"was used for {first.bundle_id} already"):
        workspace.materialize(second, grant)
    workspace.close_grant(grant)
    with pytest.raises(GrantError, match="was closed already"):
        workspace.materialize(first, grant)


@pytest.mark.parametrize("path", ["../evil.py", "/etc/evil", "a/../../evil", "a\0b", ""])
def test_traversal_is_refused_even_in_a_bundle_that_was_never_checked(workspace, path):
    bundle = make_bundle({"a.py": b"1"})
    bad = bundle.model_copy(update={"files": (bundle.files[0], bundle.files[0].model_copy(update={"path": path}))})
    with pytest.raises(MaterializationError, match="not what its digest says"):
        workspace.materialize(bad, workspace.issue_grant(execution_id="e"))
    assert os.listdir(workspace.source_path) == []


def test_content_that_does_not_match_its_digest_is_refused_and_leaves_nothing(workspace):
    bundle = make_bundle({"a.py": b"1"})
    lying = bundle.model_copy(update={"files": (bundle.files[0].model_copy(update={"content": b"2"}),)})
    with pytest.raises(MaterializationError, match="does not read back as it was written"):
        workspace.materialize(lying, workspace.issue_grant(execution_id="e"))
    assert os.listdir(workspace.source_path) == []


def test_oldest_unused_bundles_make_room(tmp_path):
    with make_workspace(tmp_path, source_bytes=64 * 1024) as workspace:
        kept = workspace.issue_grant(execution_id="running")
        first = make_bundle({"a.py": b"running"})
        workspace.materialize(first, kept)
        names = []
        for number in range(10):
            grant = workspace.issue_grant(execution_id=str(number))
            bundle = make_bundle({"a.py": b"%d" % number + bytes(8000)})
            workspace.materialize(bundle, grant)
            workspace.close_grant(grant)
            names.append(bundle.bundle_id)
        # a bundle weighs whole pages: 2 for its folder and file's own, 2 for 8001 bytes
        assert set(os.listdir(workspace.source_path)) == {first.bundle_id, *names[-3:]}
        with pytest.raises(MaterializationError, match="can be given at most 65,536 bytes"):
            workspace.materialize(make_bundle({"a.py": bytes(65536)}), workspace.issue_grant(execution_id="big"))


def test_running_bundles_are_never_pruned(tmp_path):
    with make_workspace(tmp_path, source_bytes=40 * 1024) as workspace:
        for number in range(3):
            workspace.materialize(
                make_bundle({"a.py": b"%d" % number}), workspace.issue_grant(execution_id=str(number))
            )
        before = set(os.listdir(workspace.source_path))
        with pytest.raises(MaterializationError, match="the programs that run now take all the room"):
            workspace.materialize(make_bundle({"a.py": bytes(20000)}), workspace.issue_grant(execution_id="late"))
        assert set(os.listdir(workspace.source_path)) == before


def test_a_source_root_deleted_underneath_is_told(workspace):
    workspace.source_path.rmdir()
    with pytest.raises(MaterializationError, match="the folder has gone; restart the kernel"):
        workspace.materialize(make_bundle(), workspace.issue_grant(execution_id="e"))


def test_close_removes_the_area_keeps_the_store_and_is_idempotent(tmp_path):
    workspace = make_workspace(tmp_path)
    workspace.materialize(make_bundle({"deep/er/a.py": b"1"}), workspace.issue_grant(execution_id="e"))
    workspace.close()
    workspace.close()
    assert not workspace.runtime_path.exists()
    assert json.loads((workspace.store.path / "workspace.json").read_text())["closed_at"] > 0
    assert workspace.open_grants == ()
    with pytest.raises(WorkspaceError, match="is closed"):
        workspace.issue_grant(execution_id="late")


def test_close_names_what_it_could_not_remove(tmp_path, monkeypatch):
    workspace = make_workspace(tmp_path)
    real = os.rmdir

    def rmdir(path, *args, **more):
        if str(path) == "source":
            raise PermissionError(1, "Operation not permitted", "source")
        return real(path, *args, **more)

    monkeypatch.setattr(os, "rmdir", rmdir)
    with pytest.raises(WorkspaceError, match=f"{workspace.runtime_path} could not be removed: Operation not permitted"):
        workspace.close()
    monkeypatch.undo()
    workspace.close()
    assert not workspace.runtime_path.exists()


def test_disk_scratch_is_a_root_on_the_disk_and_goes_with_the_workspace(tmp_path):
    workspace = make_workspace(tmp_path, limits=ResourceLimits(scratch="disk"))
    root = workspace.issue_grant(execution_id="e").root("build")
    folder = tmp_path / "data" / "agently-kernel" / "scratch" / workspace.workspace_id
    assert (root.backing, root.access, root.host_path) == ("host", "read_write", str(folder / "build"))
    assert (mode(folder), mode(folder / "build")) == (0o700, 0o1777)
    (folder / "build" / "big.bin").write_bytes(b"x")
    workspace.close()
    assert not folder.exists()


def test_a_runtime_place_that_is_a_link_or_a_file_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / "run" / f"agently-kernel-{os.getuid()}"
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError, match="is not a folder"):
        make_workspace(tmp_path)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_data_folder_that_cannot_be_made_leaves_nothing(tmp_path):
    (tmp_path / "data").write_text("a file where a folder should be")
    with pytest.raises(WorkspaceError, match="cannot be made"):
        make_workspace(tmp_path)
    assert os.listdir(tmp_path / "run" / f"agently-kernel-{os.getuid()}") == []


def test_grants_from_many_threads(workspace):
    seen = []

    def work(number):
        grant = workspace.issue_grant(execution_id=str(number))
        workspace.materialize(make_bundle({"a.py": b"%d" % (number % 3)}), grant)
        workspace.close_grant(grant)
        seen.append(grant.grant_id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 24 and workspace.open_grants == ()
    assert len(os.listdir(workspace.source_path)) == 3


def test_while_there_is_room_a_cell_costs_the_same_however_many_ran_before(tmp_path):
    class Uncounted(dict):
        def __iter__(self):
            raise AssertionError("all cells before were looked at")

        keys = items = values = __iter__

    with make_workspace(tmp_path) as workspace:
        workspace._sources._kept = Uncounted()
        for number in range(3):
            grant = workspace.issue_grant(execution_id=f"e{number}")
            workspace.materialize(make_bundle({"cell.py": b"%d" % number}), grant)
            workspace.close_grant(grant)


def test_thousands_of_cells_do_not_fill_the_runtime_area(tmp_path, monkeypatch):
    monkeypatch.setattr(sources_module, "KEPT_BYTES", 2**20)
    most = 0
    with make_workspace(tmp_path) as workspace:
        running = workspace.issue_grant(execution_id="running")
        kept = make_bundle({"a.py": b"running"})
        workspace.materialize(kept, running)
        for number in range(3000):
            grant = workspace.issue_grant(execution_id=str(number))
            bundle = make_bundle({"a.py": b"%d" % number})
            workspace.materialize(bundle, grant)
            workspace.close_grant(grant)
            most = max(most, workspace._sources._total)
        names = set(os.listdir(workspace.source_path))
        assert most <= 2**20 and 50 < len(names) < 100
        assert {kept.bundle_id, bundle.bundle_id} <= names


@pytest.mark.parametrize("free", [0, 2**20, 2**24, 2**40])
def test_what_is_kept_is_a_share_of_what_is_free(tmp_path, monkeypatch, free):
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(sources_module.shutil, "disk_usage", lambda _: usage)
    with make_workspace(tmp_path) as workspace:
        for number in range(60):
            grant = workspace.issue_grant(execution_id=str(number))
            workspace.materialize(make_bundle({"a.py": b"%d" % number + bytes(100_000)}), grant)
            workspace.close_grant(grant)
        total = workspace._sources._total
        assert len(os.listdir(workspace.source_path)) == {0: 1, 2**20: 2, 2**24: 50, 2**40: 60}[free], total


def test_a_file_system_that_others_have_filled_gets_room_from_old_cells(tmp_path, monkeypatch):
    real, failures = os.write, [OSError(errno.ENOSPC, "No space left on device")]

    def write(descriptor, data):
        if failures and len(os.listdir(workspace.source_path)) > 1:
            raise failures.pop()
        return real(descriptor, data)

    with make_workspace(tmp_path) as workspace:
        for number in range(3):
            grant = workspace.issue_grant(execution_id=str(number))
            workspace.materialize(make_bundle({"a.py": b"%d" % number}), grant)
            workspace.close_grant(grant)
        monkeypatch.setattr(os, "write", write)
        last = make_bundle({"a.py": b"last"})
        workspace.materialize(last, workspace.issue_grant(execution_id="e"))
        assert os.listdir(workspace.source_path) == [last.bundle_id]
