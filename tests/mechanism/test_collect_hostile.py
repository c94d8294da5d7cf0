"""Reading back from a folder that a hostile guest fills and changes: nothing leaks, nothing stalls, all is said.

The guest here is another process of the same user (or this one) writing to a real tmpfs folder: what it can do to a
directory descriptor is what a sandboxed guest can do, and more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionFile, ExecutionForm
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.paths import normalise_relative_path
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.workspace import TaskWorkspace
from agently_kernel.workspace.areas import remove_tree
from agently_kernel.workspace.collect import Collector
from agently_kernel.workspace.readback import BeneathOpener
from agently_kernel.workspace.store import WorkspaceStore

CANARY = "the canary of the host"
LIMITS = CollectionLimits(max_file_bytes=1024**2, max_total_bytes=8 * 1024**2, max_files=32)


class Guest:
    """SYNTHETIC: a guest's output folder, next to host things that must not be readable through it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.output = root / "guest" / "output"
        self.build = root / "guest" / "build"
        self.output.mkdir(parents=True)
        self.build.mkdir()
        self.secret = root / "secret.txt"
        self.secret.write_text(CANARY)

    def open_directory(self, area):
        return os.open(getattr(self, area), os.O_PATH | os.O_DIRECTORY)

    async def fetch_file(self, area, path, max_bytes):
        raise AssertionError("files are read by descriptor here")
        yield b""


@pytest.fixture(params=["openat2", "component by component"])
def opener(request):
    return BeneathOpener(strict=None if request.param == "openat2" else False)


@pytest.fixture
def guest():
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="agently-test-") as folder:
        yield Guest(Path(folder))
        remove_tree(Path(folder) / "guest")


def collect(guest, opener, declared=(), limits=LIMITS, store=None):
    """Run one collection in this thread; return (report, stored contents by path)."""
    store = store or WorkspaceStore(guest.root / "store")
    directory = guest.open_directory("output")
    try:
        report = Collector(store, limits, opener).collect_output(
            directory, declared, also_undeclared=True, everything=False, stop=threading.Event()
        )
    finally:
        os.close(directory)
    stored = {str(p.relative_to(store.files)): p.read_bytes() for p in store.files.rglob("*") if p.is_file()}
    assert all(CANARY.encode() not in content for content in stored.values())
    assert os.listdir(store.incoming) == []
    return report, stored


def reasons(report):
    return {item.path: item.reason for item in report.refused}


def test_links_of_every_kind(guest, opener):
    (guest.output / "absolute").symlink_to(guest.secret)
    (guest.output / "climbing").symlink_to("../" * 20 + str(guest.secret).lstrip("/"))
    (guest.output / "zero").symlink_to("/dev/zero")
    (guest.output / "magic").symlink_to("/proc/self/fd/0")
    (guest.output / "folder").symlink_to(guest.root)
    (guest.output / "self").symlink_to("self")
    (guest.output / "good").write_text("fine")
    (guest.output / "inner").symlink_to("good")
    os.link(guest.secret, guest.output / "hard")
    names = ("absolute", "climbing", "zero", "magic", "self", "inner", "hard", "folder/secret.txt")
    report, stored = collect(guest, opener, tuple(f"output/{name}" for name in names))
    assert stored == {"output/good": b"fine"}
    found = reasons(report)
    assert found.pop("output/hard") == "hard_link"
    assert found.pop("output/folder") == "symlink"
    assert found.pop("output/folder/secret.txt") in ("symlink", "missing")  # ENOTDIR where openat2 is not there
    assert set(found.values()) == {"symlink"} and len(found) == 6


def test_things_that_are_no_files(guest, opener):
    os.mkfifo(guest.output / "fifo")
    (guest.output / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(guest.output)  # a socket's path is short
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        started = time.monotonic()
        report, stored = collect(guest, opener, ("output/fifo", "output/dir", "output/socket"))
    assert time.monotonic() - started < 2
    assert (stored, reasons(report)) == (
        {},
        dict.fromkeys(("output/fifo", "output/dir", "output/socket"), "not_regular"),
    )


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
def test_devices_are_never_opened(guest, opener):
    os.mknod(guest.output / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(guest.output / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    report, stored = collect(guest, opener, ("output/zero", "output/disk"))
    assert stored == {}
    # a tmpfs of the host may itself forbid devices; then they cannot even be looked at by opening
    assert set(reasons(report)) == {"output/zero", "output/disk"}
    assert set(reasons(report).values()) <= {"not_regular", "unreadable"}


def test_giants(guest, opener):
    with (guest.output / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (guest.output / "big").write_bytes(bytes(1024**2 + 1))
    (guest.output / "fits").write_bytes(bytes(1024**2))
    started = time.monotonic()
    report, stored = collect(guest, opener, ("output/sparse",))
    assert time.monotonic() - started < 2
    assert reasons(report) == {"output/sparse": "too_large", "output/big": "too_large"}
    assert set(stored) == {"output/fits"}


def test_deep_and_wide_trees_are_bounded(guest, opener):
    here = os.open(guest.output, os.O_RDONLY)
    try:
        for _ in range(1500):
            os.mkdir("d", dir_fd=here)
            inner = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    finally:
        os.close(here)
    (guest.output / "wide").mkdir()
    for number in range(10_000):
        os.close(os.open(guest.output / "wide" / f"{number:05}", os.O_CREAT | os.O_WRONLY))
    (guest.output / "a").write_text("found first")
    started = time.monotonic()
    report, stored = collect(guest, opener)
    assert time.monotonic() - started < 10
    assert stored["output/a"] == b"found first" and len(stored) == LIMITS.max_files
    assert set(reasons(report).values()) == {"too_many"}


def test_names_that_deceive(guest, opener):
    folder = os.fsencode(guest.output) + b"/"
    hostile = [b"a\nBLOCKED x", b"\x1b[31mred", b"x\xe2\x80\xaetxt.exe", b"\xff\xfe", "e\u0301".encode(), b" ", b"a\\b"]
    harmless = [b"n" * 255, "é".encode(), b"-rf", b"..hidden", b"con", b"<img src=x onerror=1>"]
    for name in hostile + harmless:
        with open(folder + name, "wb") as file:
            file.write(b"x")
    report, stored = collect(guest, opener)
    assert set(stored) == {"output/" + name.decode() for name in harmless}
    assert set(reasons(report).values()) == {"bad_name"} and len(report.refused) == len(hostile)
    for item in report.refused:
        item.path.encode("utf-8")
        assert item.path.replace("é", "e").isprintable() and "\n" not in item.message


def test_a_file_without_permission(guest, opener):
    (guest.output / "closed").write_text("x")
    (guest.output / "closed").chmod(0)
    report, stored = collect(guest, opener)
    if os.geteuid() == 0:
        assert stored == {"output/closed": b"x"}
    else:
        assert (stored, reasons(report)) == ({}, {"output/closed": "unreadable"})


def _swapping(guest, script):
    return subprocess.Popen([sys.executable, "-S", "-c", script, str(guest.output), str(guest.secret)])


def test_a_file_swapped_for_links_in_a_loop_never_leaks(guest, opener):
    script = (
        "import os, sys\nos.chdir(sys.argv[1])\nopen('a', 'w').write('fine')\nos.symlink(sys.argv[2], 'b')\n"
        "while True:\n"
        "    for name in ('a', 'b'):\n"
        "        try: os.link(name, 't', follow_symlinks=False); os.rename('t', 'out.txt')\n"
        "        except OSError: pass\n"
        "    try: os.unlink('out.txt'); open('out.txt', 'w').write('fine')\n"
        "    except OSError: pass\n"
    )
    process = _swapping(guest, script)
    try:
        store, seen = WorkspaceStore(guest.root / "store"), set()
        deadline = time.monotonic() + 20
        while len(seen) < 2 and time.monotonic() < deadline:
            report, stored = collect(guest, opener, ("output/out.txt",), store=store)
            seen |= {item.reason for item in report.refused if item.path == "output/out.txt"}
            assert set(stored.get("output/out.txt", b"fine").decode()) <= set("fine")
        assert seen <= {"symlink", "hard_link", "missing", "changed"} and len(seen) >= 2
    finally:
        process.kill()
        process.wait()


def test_a_folder_swapped_for_a_link_in_a_loop_never_leaks(guest, opener):
    (guest.root / "victim").mkdir()
    (guest.root / "victim" / "f").write_text(CANARY)
    script = (
        "import os, sys\nos.chdir(sys.argv[1])\nos.mkdir('real')\nopen('real/f', 'w').write('fine')\n"
        "os.symlink(os.path.dirname(sys.argv[2]) + '/victim', 'evil')\n"
        "while True:\n"
        "    for name in ('real', 'evil'):\n"
        "        try: os.rename(name, 'd'); os.rename('d', name)\n"
        "        except OSError: pass\n"
    )
    process = _swapping(guest, script)
    try:
        store = WorkspaceStore(guest.root / "store")
        for _ in range(150):
            _, stored = collect(guest, opener, ("output/d/f",), store=store)
            assert stored.get("output/d/f", b"fine") == b"fine"
    finally:
        process.kill()
        process.wait()


def test_a_file_that_grows_while_it_is_read(guest, opener):
    script = (
        "import os, sys\nf = open(sys.argv[1] + '/log', 'ab', buffering=0)\nf.write(b'x' * 500000)\n"
        "open(sys.argv[1] + '/ready', 'w').close()\n"
        "while True:\n"
        "    f.write(b'y')\n"
        "    if f.tell() > 900000: f.truncate(500000); f.seek(500000)\n"
    )
    process = _swapping(guest, script)
    try:
        while not (guest.output / "ready").exists():
            time.sleep(0.01)
        seen, store = set(), WorkspaceStore(guest.root / "store")
        for _ in range(20):
            report, _ = collect(guest, opener, ("output/log",), store=store)
            seen |= {item.reason for item in report.refused if item.path == "output/log"}
        assert seen == {"changed"}
    finally:
        process.kill()
        process.wait()


async def test_it_all_again_through_the_workspace_after_the_guest_is_gone(guest, tmp_path):
    (guest.output / "good").write_text("fine")
    (guest.output / "leak").symlink_to(guest.secret)
    kept = guest.open_directory("output")
    shutil.rmtree(guest.build)
    (guest.root / "guest").rename(guest.root / "gone")  # the folder is reachable by the descriptor alone

    class Pinned:
        """SYNTHETIC: a sandbox that has ended, of which one descriptor is held."""

        def open_directory(self, area):
            return os.dup(kept)

        async def fetch_file(self, area, path, max_bytes):
            raise AssertionError
            yield b""

    (tmp_path / "run").mkdir()
    bundle = CodeExecutionBundle.create(
        language="python",
        form=ExecutionForm.SESSION,
        entrypoint="c.py",
        expected_outputs=("output/good", "output/leak"),
        files=(CodeExecutionFile(path="c.py", content=b""),),
    )
    with TaskWorkspace.create(
        session_id="s", limits=ResourceLimits(), collection=LIMITS, data_dir=tmp_path, runtime_dir=tmp_path / "run"
    ) as workspace:
        manifest = workspace.materialize(bundle, workspace.issue_grant(execution_id="e"))
        report = await workspace.collect(manifest, Pinned())
    os.close(kept)
    shutil.rmtree(guest.root / "gone")
    assert ([o.path for o in report.outputs], reasons(report)) == (["output/good"], {"output/leak": "symlink"})


_NAMES = st.one_of(
    st.sampled_from(
        [b"a", b"b", b"c.csv", b"-x", b"A", b"..c", b" ", b"a\nb", b"\xff", "\u202e".encode(), b"e\xcc\x81"]
    ),
    st.binary(min_size=1, max_size=12).map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_")),
).filter(lambda name: name not in (b".", b".."))
_NODE = st.deferred(
    lambda: st.one_of(
        st.binary(max_size=40),
        st.tuples(st.just("symlink"), st.sampled_from(["a", "..", "/", "/dev/zero", "SECRET", "a/b", "."])),
        st.just(("fifo",)),
        st.just(("hard",)),
        st.just(("sparse",)),
        st.dictionaries(_NAMES, _NODE, max_size=3),
    )
)


def _plant(folder: bytes, tree, secret: Path) -> None:
    for name, node in tree.items():
        path = folder + b"/" + name
        if isinstance(node, bytes):
            Path(os.fsdecode(path)).write_bytes(node)
        elif isinstance(node, dict):
            os.mkdir(path)
            _plant(path, node, secret)
        elif node[0] == "symlink":
            os.symlink(os.fsencode(secret) if node[1] == "SECRET" else node[1].encode(), path)
        elif node[0] == "fifo":
            os.mkfifo(path)
        elif node[0] == "hard":
            os.link(secret, path)
        else:
            with open(path, "wb") as file:
                file.truncate(1 << 42)


def _expected(tree, prefix="output"):
    """Return what must be stored: regular files under names in the accepted spelling."""
    found = {}
    for name, node in tree.items():
        path = f"{prefix}/{os.fsdecode(name)}"
        if isinstance(node, dict):
            found |= _expected(node, path)
        elif isinstance(node, bytes):
            with contextlib.suppress(ValueError):
                if normalise_relative_path(path) == path:
                    found[path] = node
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.dictionaries(_NAMES, _NODE, max_size=5))
@pytest.mark.parametrize("strict", [None, False])
def test_any_tree_gives_exactly_its_plain_files(tree, strict):
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="agently-test-") as folder:
        guest = Guest(Path(folder))
        _plant(os.fsencode(guest.output), tree, guest.secret)
        limits = CollectionLimits(max_file_bytes=1024**2, max_files=1000)
        report, stored = collect(guest, BeneathOpener(strict=strict), limits=limits)
        assert stored == _expected(tree)
        assert {item.path: item.size for item in report.outputs} == {path: len(data) for path, data in stored.items()}
        remove_tree(guest.root / "guest")
        assert not (guest.root / "guest").exists() and guest.secret.read_text() == CANARY
