"""What a process that was killed had begun: the watcher or ``clean`` removes it, and never anything of a live one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agently_kernel.reaper import clean_leftovers

WORKER = """
import os, sys, time
from pathlib import Path
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.reaper import watch
from agently_kernel.sandbox.observe import Challenge
from agently_kernel.sandbox.runtime import probe_folder
from agently_kernel.workspace.task_workspace import TaskWorkspace

reaper = watch() if sys.argv[1] == "watched" else None
space = TaskWorkspace.create(
    session_id="s", limits=ResourceLimits(scratch="disk"), collection=CollectionLimits(), notebook_dir=Path.cwd()
)
challenge = Challenge("nonce", write_roots=())
challenge.__enter__()
folder = probe_folder()
(folder / "build").mkdir()
(folder / "build" / "x").write_text("x")
(space.store.files / "finished.txt").write_text("kept")
with space.store.receive() as incoming:
    os.write(incoming.descriptor, b"partial")
    (space.store.path / ".workspace.json.0011").write_text("{")
    print(challenge._folder, folder, space.runtime_path, space.store.path, space._disk_path, flush=True)
    if sys.stdin.readline() == "end one session\\n":
        reaper.close()
        print("closed", flush=True)
    time.sleep(60)
"""


class Worker:
    """A process with a bit of everything under way, and the paths of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        canary, probe, runtime, store, disk = (Path(word) for word in process.stdout.readline().split())
        self.store = store
        self.gone = [canary, probe, runtime, disk]
        self.gone += [next((store / "incoming").iterdir()), store / ".workspace.json.0011"]
        assert self.left() == self.gone

    def left(self) -> list[Path]:
        return [path for path in self.gone if path.exists()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


@contextlib.contextmanager
def worker(watched: bool) -> Iterator[Worker]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, "watched" if watched else "alone"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )
    with process:
        try:
            yield Worker(process)
        finally:
            process.kill()


def wait_until_gone(worker: Worker, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while worker.left() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert worker.left() == []


@pytest.mark.usefixtures("places")
def test_the_watcher_removes_all_that_had_begun() -> None:
    with worker(watched=True) as killed, worker(watched=True) as alive:
        killed.kill()
        wait_until_gone(killed)
        assert alive.left() == alive.gone
        assert (killed.store / "files" / "finished.txt").read_text() == "kept"


@pytest.mark.usefixtures("places")
def test_clean_removes_all_that_had_begun_when_no_watcher_did() -> None:
    with worker(watched=False) as killed, worker(watched=False) as alive:
        killed.kill()
        assert killed.left() == killed.gone
        before = set(map(str, killed.gone))
        dry = clean_leftovers(dry_run=True)
        assert {item.path for item in dry.items if item.outcome == "would_remove"} & before
        assert killed.left() == killed.gone
        report = clean_leftovers()
        assert {item.path for item in report.removed} >= before
        assert killed.left() == [] and report.failed == ()
        assert alive.left() == alive.gone
        assert (killed.store / "files" / "finished.txt").read_text() == "kept"
        assert not {item.path for item in clean_leftovers().removed} & before


@pytest.mark.usefixtures("places")
def test_the_end_of_one_session_takes_nothing_of_another_in_the_same_process() -> None:
    with worker(watched=True) as both:
        assert both.process.stdin is not None and both.process.stdout is not None
        both.process.stdin.write("end one session\n")
        both.process.stdin.flush()
        assert both.process.stdout.readline() == "closed\n"
        time.sleep(0.3)
        assert both.left() == both.gone


@pytest.mark.usefixtures("places")
def test_folders_of_other_users_namespaces_and_names_are_left_alone(places: Path) -> None:
    here = os.stat("/proc/self/ns/pid").st_ino
    here = 0 if here == 0xEFFFFFFC else here
    names = [
        f"agently-canary-{here:x}-1-0-mine",  # process 1 was not started at 0: its owner is gone
        f"agently-canary-{here + 1:x}-1-0-elsewhere",
        "agently-canary-abc",
        "agently-canary-1-1-1-",
    ]
    for name in names:
        (places / "tmp" / name).mkdir()
    (places / "tmp" / f"agently-canary-{here:x}-1-0-link").symlink_to(places / "data")
    removed = [Path(item.path) for item in clean_leftovers().removed]
    assert [path.name for path in removed if path.parent == places / "tmp"] == [names[0]]
