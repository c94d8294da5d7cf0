"""The argument lists as pure functions: what may never be missing, and what may never be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.providers.bubblewrap_args import (
    BubblewrapLayout,
    bwrap_options,
    encode_options,
    hidden_files,
    privilege_drop,
    system_layout,
)

letters = st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=("Cs",))
names = st.text(letters, min_size=1, max_size=9)
names = names.filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


def layout(**changes: object) -> BubblewrapLayout:
    values: dict[str, object] = {
        "mode": "user", "uid": 1000, "gid": 1000, "system": ("/usr",), "system_links": (("/bin", "usr/bin"),),
        "etc_dir": "/run/ws/etc", "guest_dir": "/run/ws/guest", "source_dir": "/run/ws/source",
        "scratch_bytes": 4096, "output_bytes": 8192, "shm_bytes": 1024,
    }
    return BubblewrapLayout(**{**values, **changes})  # type: ignore[arg-type]


def mounts(options: list[str]) -> list[tuple[str, str]]:
    """Return (kind, place) of every mount in order."""
    width = {"--ro-bind": 2, "--bind": 2, "--tmpfs": 1, "--proc": 1, "--dev": 1, "--remount-ro": 1, "--symlink": 2}
    return [(word, options[i + width[word]]) for i, word in enumerate(options) if word in width]


def test_user_list_has_a_user_namespace_and_forbids_further_ones() -> None:
    options = bwrap_options(layout())
    assert options[options.index("--uid") + 1] == "1000"
    assert "--unshare-user" in options and "--disable-userns" in options
    assert privilege_drop(layout()) == []


def test_root_list_has_no_user_namespace_and_drops_to_the_uid() -> None:
    root = layout(mode="root", uid=60001, gid=60001)
    options = bwrap_options(root)
    assert "--unshare-user" not in options and "--uid" not in options
    kept = [options[i + 1] for i, word in enumerate(options) if word == "--cap-add"]
    assert kept == ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"]
    assert options[options.index("--cap-drop") + 1] == "ALL"
    assert privilege_drop(root) == [
        "/usr/bin/setpriv", "--reuid=60001", "--regid=60001", "--clear-groups", "--bounding-set=-all",
        "--inh-caps=-all", "--no-new-privs", "--",
    ]


@pytest.mark.parametrize("mode", ["user", "root"])
@pytest.mark.parametrize(
    "option",
    ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-net", "--as-pid-1", "--die-with-parent",
     "--new-session", "--clearenv"],
)
def test_both_lists_have(mode: str, option: str) -> None:
    assert bwrap_options(layout(mode=mode)).count(option) == 1


def test_no_host_folder_is_writable_and_the_root_is_sealed_last() -> None:
    options = bwrap_options(layout(inputs=(("data/a.csv", "/home/u/a.csv"),)))
    assert "--bind" not in options
    assert mounts(options)[-1] == ("--remount-ro", "/")
    assert ("--remount-ro", "/dev") in mounts(options)
    assert ("--ro-bind", "/workspace/build/data/a.csv") in mounts(options)
    at = options.index("/workspace/build/data")
    assert options[at - 3 : at] == ["--perms", "1777", "--dir"]


def test_disk_mode_binds_exactly_the_scratch_folder() -> None:
    links = (("/workspace/build/copy.csv", "/workspace/input/copy.csv"), ("/x/python", "/usr/bin/python3"))
    disk = layout(build_dir="/data/scratch", inputs=(("data/a.csv", "/home/u/a.csv"),), links=links)
    options = bwrap_options(disk)
    touched = [place for _, place in mounts(options) if place.startswith("/workspace/build/")]
    assert touched == []  # the guest may have put links there
    assert ("--ro-bind", "/workspace/live/data/a.csv") in mounts(options)
    assert ("--symlink", "/x/python") in mounts(options)
    at = options.index("--bind")
    assert options[at : at + 3] == ["--bind", "/data/scratch", "/workspace/build"]
    assert options.count("--bind") == 1
    assert ("--tmpfs", "/workspace/output") in mounts(options)


def test_sizes_stand_directly_before_their_tmpfs() -> None:
    options = bwrap_options(layout())
    sizes = {options[i + 1]: options[i - 1] for i, word in enumerate(options) if word == "--tmpfs"}
    assert sizes == {
        "/dev/shm": "1024", "/tmp": "4096", "/workspace/build": "4096", "/workspace/output": "8192",
    }
    assert all(options[i - 2] == "--size" for i, word in enumerate(options) if word == "--tmpfs")


def test_an_interpreter_below_tmp_is_bound_after_tmp() -> None:
    order = mounts(bwrap_options(layout(read_only=("/tmp/venv", "/usr/lib/python3"))))
    assert order.index(("--ro-bind", "/tmp/venv")) > order.index(("--tmpfs", "/tmp"))
    assert ("--ro-bind", "/usr/lib/python3") not in order  # part of /usr already


@given(st.lists(paths, max_size=5, unique=True))
def test_every_parent_of_a_mount_is_made_open_first(read_only: list[str]) -> None:
    options = bwrap_options(layout(read_only=tuple(read_only)))
    there = {"/"}
    for index, word in enumerate(options):
        if word == "--dir":
            assert options[index - 2 : index] == ["--perms", "0755"]
            assert os.path.dirname(options[index + 1]) in there
            there.add(options[index + 1])
        elif word in ("--ro-bind", "--tmpfs"):
            place = options[index + (2 if word == "--ro-bind" else 1)]
            inside_bound = any(place.startswith(bound + "/") for bound in [*read_only, "/etc"])
            assert os.path.dirname(place) in there or os.path.dirname(place) in ("/dev", "/proc") or inside_bound
            there.add(place)


@given(st.dictionaries(names.filter(lambda n: "=" not in n), names, max_size=5))
def test_the_environment_is_exactly_what_was_given(env: dict[str, str]) -> None:
    options = bwrap_options(layout(env=env))
    at, found = options.index("--clearenv") + 1, {}
    while options[at] == "--setenv":
        found[options[at + 1]] = options[at + 2]
        at += 3
    assert found == env
    if "--setenv" not in [*env, *env.values()]:
        assert "--setenv" not in options[at:]


@given(st.lists(names, max_size=6))
def test_encoded_options_can_be_told_apart_again(options: list[str]) -> None:
    assert encode_options(options).split(b"\0")[:-1] == [os.fsencode(option) for option in options]


def test_an_option_with_a_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        encode_options(["--setenv", "A", "b\0--bind"])


def test_system_folders_of_merged_and_unmerged_hosts(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").mkdir()
    assert system_layout(str(tmp_path)) == (("/usr", "/lib"), (("/bin", "usr/bin"),))


def test_hidden_files_are_covered_after_proc_and_only_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    options = bwrap_options(layout(hidden=("/proc/keys", "/proc/key-users")))
    found = mounts(options)
    for path in ("/proc/keys", "/proc/key-users"):
        assert options[options.index(path) - 2 : options.index(path)] == ["--ro-bind", "/dev/null"]
        assert found.index(("--ro-bind", path)) > found.index(("--proc", "/proc"))
    monkeypatch.setattr("os.path.exists", lambda path: path == "/proc/timer_list")
    assert hidden_files() == ("/proc/timer_list",)
