"""Inputs: what may be granted, and private copies that are exact, read-only and bounded."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workspace_support import make_bundle, make_workspace

from agently_kernel.contract.errors import WorkspaceError
from agently_kernel.workspace import inputs as inputs_module
from agently_kernel.workspace.inputs import classify, is_secret_name, special_files

HOME = Path("/home/ada")


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ada/project/data.csv", "ordinary"),
        ("/home/ada/project", "ordinary"),
        ("/srv/data/x.csv", "ordinary"),
        ("/tmp/x", "ordinary"),
        ("/usr/share/dict/words", "ordinary"),
        ("/home/ada/project/environment.yml", "ordinary"),
        ("/home/ada", "sensitive"),
        ("/home", "sensitive"),
        ("/home/grace", "sensitive"),
        ("/home/ada/.ssh", "sensitive"),
        ("/home/ada/.anything/x", "sensitive"),
        ("/home/ada/project/.env", "sensitive"),
        ("/srv/.aws/credentials", "sensitive"),
        ("/home/ada/project/../.ssh/id_rsa", "sensitive"),
        ("/srv/server.PEM", "sensitive"),
        ("/etc/passwd", "sensitive"),
        ("/var/lib/x", "sensitive"),
        ("/srv/id_ed25519", "sensitive"),
        ("/home/ada/p/.env.production", "sensitive"),
        ("/", "forbidden"),
        ("/proc/1/environ", "forbidden"),
        ("/sys", "forbidden"),
        ("/dev/sda", "forbidden"),
        ("/run/docker.sock", "forbidden"),
        ("/var/run/docker.sock", "forbidden"),
        ("/private/store/x", "forbidden"),
        ("/srv/../proc/self", "forbidden"),
    ],
)
def test_classes_of_paths(path, kind):
    assert classify(Path(path), home=HOME, private=(Path("/private/store"),)) == kind


def test_a_link_counts_as_what_it_leads_to(tmp_path):
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / "innocent").symlink_to(home / ".ssh")
    (home / "root").symlink_to("/")
    (home / "loop").symlink_to(home / "loop")
    assert classify(home / "innocent", home=home) == "sensitive"
    assert classify(home / "root", home=home) == "forbidden"
    assert classify(home / "loop", home=home) == "forbidden"
    (home / "plain").mkdir()
    assert classify(home / "plain", home=home) == "ordinary"


@given(
    st.lists(st.sampled_from(["..", "a", ".", "home", "ada", ".ssh", "proc"]), max_size=6).map(
        lambda p: "/" + "/".join(p)
    )
)
def test_dots_never_change_the_class(path):
    assert classify(Path(path), home=HOME) == classify(Path(os.path.normpath(path)), home=HOME)


@pytest.mark.parametrize("name", [".env", ".ENV", ".env.local", "server.key", "Credentials", "id_rsa", ".netrc"])
def test_secret_names(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["environment.py", "key.csv", "monkey", "tokens.txt", ".gitignore", "pem"])
def test_names_that_are_no_secrets(name):
    assert not is_secret_name(name)


def test_snapshot_of_a_file(workspace, tmp_path):
    data = tmp_path / "data.csv"
    data.write_bytes(b"a,b\n")
    granted = workspace.snapshot_input(data, "in/data.csv")
    copy = workspace.input_path / "in" / "data.csv"
    assert (granted.name, granted.mode, granted.sha256, granted.size) == (
        "in/data.csv",
        "snapshot",
        digest(b"a,b\n"),
        4,
    )
    assert (copy.read_bytes(), stat.S_IMODE(copy.stat().st_mode)) == (b"a,b\n", 0o444)
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o755
    data.write_bytes(b"changed")
    assert copy.read_bytes() == b"a,b\n"
    assert workspace.snapshot_input(data, "in/data.csv").sha256 == digest(b"changed")
    assert copy.read_bytes() == b"changed"
    assert [item.size for item in workspace.inputs] == [7]
    assert sorted(os.listdir(workspace.input_path)) == ["in"]


def test_snapshot_of_a_folder(workspace, tmp_path):
    folder = tmp_path / "set"
    (folder / "inner" / "empty").mkdir(parents=True)
    (folder / "a").write_bytes(b"1")
    (folder / "inner" / "b").write_bytes(b"22")
    first = workspace.snapshot_input(folder, "set")
    copy = workspace.input_path / "set"
    assert {str(p.relative_to(copy)): p.read_bytes() for p in copy.rglob("*") if p.is_file()} == {
        "a": b"1",
        "inner/b": b"22",
    }
    assert (copy / "inner" / "empty").is_dir() and first.size == 3
    assert workspace.snapshot_input(folder, "set").sha256 == first.sha256
    (folder / "inner" / "b").rename(folder / "inner" / "c")
    assert workspace.snapshot_input(folder, "set").sha256 != first.sha256
    assert sorted(os.listdir(copy / "inner")) == ["c", "empty"]
    assert os.listdir(workspace.input_path) == ["set"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: (p / "l").symlink_to("/etc/passwd"), "is a symbolic link; links are not copied"),
        (lambda p: os.mkfifo(p / "f"), "is neither a regular file nor a folder"),
        (lambda p: (p / ".env").write_text("KEY=1"), "holds .env, which looks like a secret"),
        (lambda p: (p / "/".join("d" * 33)).mkdir(parents=True), "lies deeper than 32 folders"),
    ],
)
def test_folders_that_are_not_copied_leave_nothing(workspace, tmp_path, make, words):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a").write_text("1")
    make(folder)
    with pytest.raises(WorkspaceError, match=words):
        workspace.snapshot_input(folder, "set")
    assert os.listdir(workspace.input_path) == [] and workspace.inputs == ()


def test_bounds_of_a_snapshot(workspace, tmp_path, monkeypatch):
    folder = tmp_path / "set"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_bytes(bytes(10))
    monkeypatch.setattr(inputs_module, "MAX_SNAPSHOT_FILES", 2)
    with pytest.raises(WorkspaceError, match=r"more than 2 files .* read-only mount"):
        workspace.snapshot_input(folder, "set")
    monkeypatch.setattr(inputs_module, "MAX_SNAPSHOT_BYTES", 5)
    with pytest.raises(WorkspaceError, match="has 10 bytes, too much for a private copy"):
        workspace.snapshot_input(folder / "a", "a")
    assert os.listdir(workspace.input_path) == []


def test_what_is_no_file(workspace, tmp_path):
    with pytest.raises(WorkspaceError, match="does not exist"):
        workspace.snapshot_input(tmp_path / "none", "none")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(WorkspaceError, match="no regular file or folder"):
        workspace.snapshot_input(tmp_path / "fifo", "fifo")
    with pytest.raises(WorkspaceError, match="no regular file or folder"):
        workspace.live_input(tmp_path / "fifo", "fifo")


def test_secrets_need_a_word_that_says_so_and_the_machine_is_never_given(workspace, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    secret = tmp_path / "home" / ".ssh" / "id"
    secret.parent.mkdir(parents=True)
    secret.write_text("key")
    (tmp_path / "home" / "plain").symlink_to(secret)
    for path in (secret, tmp_path / "home", tmp_path / "home" / "plain"):
        for grant in (workspace.snapshot_input, workspace.live_input):
            with pytest.raises(WorkspaceError, match="only when you allow exactly this"):
                grant(path, "x")
    assert workspace.snapshot_input(secret, "x", allow_sensitive=True).size == 3
    for path in ("/", "/proc/self/environ", workspace.store.path, workspace.runtime_path / "source"):
        with pytest.raises(WorkspaceError, match="never given to a sandbox"):
            workspace.live_input(path, "y", allow_sensitive=True)


def test_live_inputs_are_named_by_where_they_really_are(workspace, tmp_path):
    (tmp_path / "real.csv").write_text("1")
    (tmp_path / "alias.csv").symlink_to(tmp_path / "real.csv")
    granted = workspace.live_input(tmp_path / "alias.csv", "d.csv")
    assert (granted.host_path, granted.mode, granted.sha256) == (str(tmp_path / "real.csv"), "read_only", None)
    assert workspace.live_input(tmp_path / "real.csv", "s.csv", mode="snapshot").sha256 == digest(b"1")


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", ".agently/x", "", "a\nb"])
def test_names_stay_inside(workspace, tmp_path, name):
    (tmp_path / "f").write_text("1")
    with pytest.raises(ValueError):
        workspace.snapshot_input(tmp_path / "f", name)
    assert os.listdir(workspace.input_path) == []


def test_names_do_not_collide(workspace, tmp_path):
    (tmp_path / "f").write_text("1")
    workspace.snapshot_input(tmp_path / "f", "a/b")
    for name in ("A/b", "a", "a/b/c"):
        with pytest.raises(ValueError, match="input name"):
            workspace.snapshot_input(tmp_path / "f", name)


def test_a_file_replaces_a_folder_of_the_same_name(workspace, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "x").write_text("1")
    (tmp_path / "f").write_text("2")
    workspace.snapshot_input(tmp_path / "set", "n")
    workspace.snapshot_input(tmp_path / "f", "n")
    assert (workspace.input_path / "n").read_text() == "2"
    workspace.snapshot_input(tmp_path / "set", "n")
    assert (workspace.input_path / "n" / "x").read_text() == "1"
    assert os.listdir(workspace.input_path) == ["n"]


def test_inputs_go_with_the_workspace(tmp_path):
    (tmp_path / "f").write_text("1")
    with make_workspace(tmp_path) as workspace:
        workspace.snapshot_input(tmp_path / "f", "deep/er/f")
    assert not workspace.input_path.exists()


def test_a_long_copy_does_not_hold_up_a_cell(workspace, tmp_path, monkeypatch):
    (tmp_path / "f").write_text("1")
    started, go_on = threading.Event(), threading.Event()
    real = inputs_module._copy_file

    def slow(*args):
        started.set()
        assert go_on.wait(10)
        return real(*args)

    monkeypatch.setattr(inputs_module, "_copy_file", slow)
    thread = threading.Thread(target=workspace.snapshot_input, args=(tmp_path / "f", "f"))
    thread.start()
    assert started.wait(10)
    workspace.materialize(make_bundle(), workspace.issue_grant(execution_id="e"))
    go_on.set()
    thread.join()
    assert [item.name for item in workspace.inputs] == ["f"]


def test_special_files_of_a_folder_are_found_and_those_behind_links_are_not(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("x")
    os.mkfifo(tmp_path / "a" / "b" / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        (tmp_path / "a" / "link").symlink_to(tmp_path / "socket")
        (tmp_path / "a" / "loop").symlink_to(tmp_path)
        assert sorted(special_files(str(tmp_path))) == ["a/b/pipe", "socket"]
    assert special_files(str(tmp_path / "a" / "file")) == special_files(str(tmp_path / "nowhere")) == ()


def test_a_folder_with_too_many_sockets_is_not_mounted(tmp_path: Path) -> None:
    for number in range(257):
        os.mkfifo(tmp_path / str(number))
    with pytest.raises(WorkspaceError, match="grant a smaller folder"):
        special_files(str(tmp_path))
