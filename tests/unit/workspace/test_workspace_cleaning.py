"""Cleaning: what dead sessions left goes, what lives or may live stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from workspace_support import make_bundle, make_workspace

from agently_kernel.contract.errors import SandboxCleanupError
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.workspace.areas import current_owner, owner_state, process_start, remove_tree
from agently_kernel.workspace.cleaning import clean


@pytest.fixture
def places(tmp_path):
    (tmp_path / "run").mkdir()
    return {"data_dir": tmp_path / "data", "runtime_dir": tmp_path / "run"}


def outcomes(report):
    return {(item.kind, item.outcome) for item in report.items}


def base(tmp_path):
    return tmp_path / "run" / f"agently-kernel-{os.getuid()}"


def plant(tmp_path, name="ws-0000000000000000", *, age=3600, **changes):
    """SYNTHETIC: a runtime area as another process would have left it."""
    folder = base(tmp_path) / name
    (folder / "source" / "bundle-x").mkdir(parents=True)
    (folder / "source" / "bundle-x" / "cell.py").write_text("1")
    owner = current_owner(name, locked=True).model_copy(update=changes)
    (folder / "owner.json").write_text(owner.model_dump_json())
    then = time.time() - age
    os.utime(folder, (then, then))
    return folder


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_live_workspace_is_never_touched(tmp_path, places):
    with make_workspace(tmp_path, limits=ResourceLimits(scratch="disk")) as workspace:
        workspace.materialize(make_bundle(), workspace.issue_grant(execution_id="e"))
        report = clean(remove_stores=True, **places)
        assert outcomes(report) == {("runtime", "kept"), ("scratch", "kept"), ("store", "kept")}
        assert {item.reason for item in report.items} == {"its session is running"}
        assert workspace.source_path.exists() and workspace.store.files.exists()
        with workspace.store.log_writer("e") as log:
            log.write(b"still works")


def test_after_kill_9_only_the_store_stays(tmp_path, places):
    script = (
        "import sys, time, pathlib\nfrom workspace_support import *\n"
        "w = make_workspace(pathlib.Path(sys.argv[1]), limits=ResourceLimits(scratch='disk'))\n"
        "w.materialize(make_bundle(), w.issue_grant(execution_id='e'))\nw.store.append_trace({'n': 1})\n"
        "print(w.workspace_id, flush=True)\ntime.sleep(60)\n"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    name = process.stdout.readline().decode().strip()
    assert name.startswith("ws-")
    assert outcomes(clean(remove_stores=True, **places)) == {
        ("runtime", "kept"),
        ("scratch", "kept"),
        ("store", "kept"),
    }
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert outcomes(clean(dry_run=True, **places)) == {
        ("runtime", "would_remove"),
        ("scratch", "would_remove"),
        ("store", "kept"),
    }
    assert os.listdir(base(tmp_path)) == [name]
    assert outcomes(clean(**places)) == {("runtime", "removed"), ("scratch", "removed"), ("store", "kept")}
    assert os.listdir(base(tmp_path)) == [] == os.listdir(tmp_path / "data" / "agently-kernel" / "scratch")
    assert outcomes(clean(remove_stores=True, **places)) == {("store", "removed")}
    assert clean(**places).text() == "Nothing is left over from earlier sessions."


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": "dead"},
        {"start_time": 1},
        {"boot_id": "another boot"},
        {"pid": "dead", "pid_namespace": "pid:[1]"},
    ],
)
def test_areas_of_dead_owners_go(tmp_path, places, changes):
    folder = plant(tmp_path, **{key: dead_pid() if value == "dead" else value for key, value in changes.items()})
    assert [(item.path, item.outcome) for item in clean(**places).items] == [(str(folder), "removed")]
    assert not folder.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "its session is running (process {pid})"),
        (
            {"boot_id": "x", "host": "elsewhere"},
            "it belongs to a session on elsewhere, which cannot be looked at from here",
        ),
        (
            {"pid_namespace": "pid:[1]", "locked": False},
            "it belongs to a session on {host}, which cannot be looked at from here",
        ),
    ],
)
def test_areas_of_owners_that_may_live_stay(tmp_path, places, changes, reason):
    folder = plant(tmp_path, **changes)
    report = clean(remove_stores=True, **places)
    here = current_owner("")
    assert [item.reason for item in report.items] == [reason.format(pid=os.getpid(), host=here.host)]
    assert (folder / "source" / "bundle-x" / "cell.py").exists()


def test_areas_without_a_record_go_only_when_they_are_old(tmp_path, places):
    old, young, damaged = (plant(tmp_path, f"ws-{n}", age=age) for n, age in enumerate((3600, 0, 3600)))
    for folder in (old, young):
        (folder / "owner.json").unlink()
    (damaged / "owner.json").write_text('{"pid": 1')
    for folder, age in ((old, 3600), (young, 0), (damaged, 3600)):
        os.utime(folder, (time.time() - age,) * 2)
    report = clean(**places)
    assert {item.workspace_id: item.outcome for item in report.items} == {
        "ws-0": "removed",
        "ws-1": "kept",
        "ws-2": "removed",
    }


def test_only_workspaces_are_looked_at_and_links_never_followed(tmp_path, places):
    target = tmp_path / "mine"
    target.mkdir()
    (target / "precious").write_text("x")
    base(tmp_path).mkdir()
    (base(tmp_path) / "ws-link").symlink_to(target)
    (base(tmp_path) / "something-else").mkdir()
    assert clean(**places).items == ()
    folder = plant(tmp_path, pid=dead_pid())
    (folder / "source" / "link").symlink_to(target)
    clean(**places)
    assert not folder.exists() and (target / "precious").read_text() == "x"


def test_stores_of_finished_sessions(tmp_path, places):
    with make_workspace(tmp_path) as empty, make_workspace(tmp_path) as used:
        (used.store.files / "a").write_text("12345")
    (kept,) = [item for item in clean(older_than=3600, remove_stores=True, **places).items if item.outcome == "kept"]
    assert (kept.workspace_id, kept.reason) == (used.workspace_id, "it was used recently")
    assert not empty.store.path.exists()
    report = clean(**places)
    assert [(item.outcome, item.bytes > 5) for item in report.items] == [("kept", True)]
    size = report.items[0].bytes
    assert report.text().splitlines() == [
        "Removed 0 leftovers of sessions that have ended.",
        f"Kept what 1 finished session ({size:,} bytes) collected; `agently-kernel clean --all` removes that too.",
    ]
    assert report.text(details=True).startswith(f"kept {used.store.path}: it holds what a finished session collected (")
    assert [item.outcome for item in clean(remove_stores=True, **places).items] == ["removed"]


def test_what_cannot_be_removed_is_told_and_does_not_stop_the_rest(tmp_path, places, monkeypatch):
    stuck, other = (plant(tmp_path, f"ws-{name}", pid=dead_pid()) for name in ("a", "b"))
    real = os.unlink

    def unlink(path, *args, **more):
        if path == "owner.json" and not unlink.done:
            unlink.done = True
            raise PermissionError(1, "Operation not permitted", path)
        return real(path, *args, **more)

    unlink.done = False
    monkeypatch.setattr(os, "unlink", unlink)
    report = clean(**places)
    assert [item.outcome for item in report.items] == ["failed", "removed"]
    assert (
        report.failed[0].reason == f"{stuck} could not be removed: Operation not permitted (owner.json); do it by hand"
    )
    assert report.text().startswith(f"could not remove {stuck}: ") and not other.exists()
    assert json.loads(report.model_dump_json())["items"][0]["outcome"] == "failed"


def test_hooks_report_and_one_that_fails_does_not_stop_the_next(places):
    def failing():
        raise SandboxCleanupError("a group is stuck")

    report = clean(hooks=(failing, lambda: ["/sys/fs/cgroup/x"]), **places)
    assert [(item.path, item.kind, item.outcome) for item in report.items] == [
        ("failing", "other", "failed"),
        ("/sys/fs/cgroup/x", "other", "removed"),
    ]
    assert clean(hooks=(failing,), dry_run=True, **places).items == ()


def test_processes_are_told_apart_by_their_start():
    assert process_start(os.getpid()) == current_owner("x").start_time
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    time.sleep(0.3)
    assert process_start(process.pid) is None  # a zombie is not alive
    process.wait()
    assert owner_state(current_owner("x").model_copy(update={"pid": process.pid})) == "dead"
    assert owner_state(current_owner("x")) == "alive"


def test_trees_of_any_shape_can_be_removed(tmp_path):
    top = tmp_path / "tree"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    (top / "closed").mkdir()
    (top / "closed" / "inner").mkdir()
    (top / "closed" / "inner" / "f").write_text("x")
    (top / "closed" / "inner").chmod(0)
    (top / "closed").chmod(0)
    os.mkfifo(top / "fifo")
    (top / "link").symlink_to(tmp_path)
    remove_tree(top)
    remove_tree(top)
    assert os.listdir(tmp_path) == []


def test_a_cleaning_is_told_in_totals_and_each_thing_on_request(tmp_path, places):
    for name in "abc":
        plant(tmp_path, f"ws-{name}", pid=dead_pid())
    would, did = clean(dry_run=True, **places), clean(**places)
    assert would.text() == "Would remove 3 leftovers of sessions that have ended."
    assert did.text() == "Removed 3 leftovers of sessions that have ended."
    assert len(did.text(details=True).splitlines()) == 4
    with make_workspace(tmp_path):
        assert "in use, or used just now" in clean(**places).text()
