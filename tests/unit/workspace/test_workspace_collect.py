"""Collection: what is brought, what is refused and why, what a plain cell costs, and the way without a descriptor."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time

import pytest
from workspace_support import WireSource, make_workspace, materialized

from agently_kernel.contract.errors import GrantError, SandboxError
from agently_kernel.contract.workspace import CollectionLimits, CollectionReport
from agently_kernel.workspace import collect as collect_module
from agently_kernel.workspace.readback import BeneathOpener

SMALL = CollectionLimits(max_file_bytes=100, max_total_bytes=250, max_files=4)


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def brought(report):
    return {item.path: item.declared for item in report.outputs}


def refused(report):
    return {item.path: item.reason for item in report.refused}


def settle():
    time.sleep(collect_module.SETTLED_NS / 1e9 + 0.02)


async def test_declared_and_found_files_are_copied_with_digests(workspace, source):
    (source.output / "sub").mkdir()
    (source.output / "sub" / "a.csv").write_bytes(b"k,v\n")
    (source.output / "empty").write_bytes(b"")
    (source.output / "found.bin").write_bytes(bytes(3_000_000))
    manifest = materialized(workspace, ("output/sub/a.csv", "output/empty"))
    report = await workspace.collect(manifest, source)
    assert [(o.path, o.sha256, o.size, o.declared) for o in report.outputs] == [
        ("output/sub/a.csv", digest(b"k,v\n"), 4, True),
        ("output/empty", digest(b""), 0, True),
        ("output/found.bin", digest(bytes(3_000_000)), 3_000_000, False),
    ]
    assert report.refused == ()
    for output in report.outputs:
        path = workspace.store.files / output.path
        assert output.stored_path == str(path)
        assert digest(path.read_bytes()) == output.sha256
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (0o600, os.getuid())


async def test_missing_declared_outputs_are_refused_and_others_kept(workspace, source):
    (source.output / "a").write_text("1")
    report = await workspace.collect(materialized(workspace, ("output/a", "output/b", "output/a/c")[:2]), source)
    assert (brought(report), refused(report)) == ({"output/a": True}, {"output/b": "missing"})
    assert report.refused[0].message == "output/b was not taken: there is no such file"


async def test_undeclared_files_are_left_when_not_wanted(workspace, source):
    (source.output / "a").write_text("1")
    manifest = materialized(workspace)
    assert (await workspace.collect(manifest, source, also_undeclared=False)).outputs == ()
    assert brought(await workspace.collect(manifest, source)) == {"output/a": False}


async def test_only_new_and_changed_files_are_reported_again(workspace, source):
    manifest = materialized(workspace)
    (source.output / "a").write_text("1")
    (source.output / "b").write_text("1")
    assert brought(await workspace.collect(manifest, source)) == {"output/a": False, "output/b": False}
    assert (await workspace.collect(manifest, source)).outputs == ()
    (source.output / "b").write_text("2")
    (source.output / "c").write_text("3")
    assert brought(await workspace.collect(manifest, source)) == {"output/b": False, "output/c": False}
    assert (workspace.store.files / "output" / "b").read_text() == "2"


async def test_same_size_rewrite_within_one_clock_tick_is_seen(workspace, source):
    manifest = materialized(workspace)
    for number in range(20):
        (source.output / "a").write_text(str(number % 10))
        await workspace.collect(manifest, source)
        assert (workspace.store.files / "output" / "a").read_text() == str(number % 10)


async def test_same_size_rewrite_with_its_time_set_back_is_seen(workspace, source):
    manifest = materialized(workspace)
    path = source.output / "a"
    path.write_text("1")
    settle()
    await workspace.collect(manifest, source)
    await workspace.collect(manifest, source)
    before = path.stat()
    path.write_text("2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert brought(await workspace.collect(manifest, source)) == {"output/a": False}
    assert (workspace.store.files / "output" / "a").read_text() == "2"


async def test_nothing_is_read_when_nothing_changed(workspace, source, monkeypatch):
    manifest = materialized(workspace)
    (source.output / "a").write_text("1")
    settle()
    await workspace.collect(manifest, source)

    def never(*_, **__):
        raise AssertionError("the files were looked at again")

    monkeypatch.setattr(workspace, "_in_thread", never)
    assert (await workspace.collect(manifest, source)).outputs == ()
    monkeypatch.undo()
    (source.output / "b").write_text("1")
    assert brought(await workspace.collect(manifest, source)) == {"output/b": False}


@pytest.mark.parametrize("change", ["content", "new file", "new folder", "swapped for a link"])
async def test_the_quick_look_sees_into_folders(workspace, source, monkeypatch, change):
    manifest = materialized(workspace)
    folder = source.output / "d" / "e"
    folder.mkdir(parents=True)
    (folder / "f").write_text("1")
    settle()
    await workspace.collect(manifest, source)
    real = workspace._in_thread
    looked = []

    def counting(*args):
        looked.append(1)
        return real(*args)

    monkeypatch.setattr(workspace, "_in_thread", counting)
    assert (await workspace.collect(manifest, source), looked) == (CollectionReport(), [])
    if change == "content":
        (folder / "f").write_text("2")
    elif change == "new file":
        (folder / "g").write_text("2")
    elif change == "new folder":
        (folder / "h").mkdir()
        (folder / "h" / "i").write_text("2")
    else:
        folder.rename(source.build / "moved")
        folder.symlink_to(source.build / "moved")
    report = await workspace.collect(manifest, source)
    assert looked == [1]
    assert (set(brought(report)), refused(report)) == {
        "content": ({"output/d/e/f"}, {}),
        "new file": ({"output/d/e/g"}, {}),
        "new folder": ({"output/d/e/h/i"}, {}),
        "swapped for a link": (set(), {"output/d/e": "symlink"}),
    }[change]


async def test_a_file_that_was_refused_while_it_changed_is_looked_at_again(tmp_path, source):
    with make_workspace(tmp_path, collection=SMALL) as workspace:
        manifest = materialized(workspace)
        path = source.output / "a"
        path.write_bytes(bytes(101))
        settle()
        assert refused(await workspace.collect(manifest, source)) == {"output/a": "too_large"}
        with path.open("r+b") as file:
            file.truncate(5)  # the folder's own times do not change
        assert brought(await workspace.collect(manifest, source)) == {"output/a": False}


async def test_an_undeclared_refusal_is_told_once(workspace, source):
    manifest = materialized(workspace)
    (source.output / "link").symlink_to("/etc/passwd")
    assert refused(await workspace.collect(manifest, source)) == {"output/link": "symlink"}
    (source.output / "new").write_text("")
    report = await workspace.collect(manifest, source)
    assert (brought(report), refused(report)) == ({"output/new": False}, {})


async def test_caps_of_size_total_and_count(tmp_path, source):
    with make_workspace(tmp_path, collection=SMALL) as workspace:
        for name, size in [("a", 100), ("b", 101), ("c", 100), ("d", 60), ("e", 50), ("f", 0), ("g", 0), ("h", 0)]:
            (source.output / name).write_bytes(bytes(size))
        report = await workspace.collect(materialized(workspace), source)
        assert set(brought(report)) == {"output/a", "output/c", "output/e", "output/f"}
        assert refused(report) == {"output/b": "too_large", "output/d": "total_exceeded", "output": "too_many"}


async def test_files_without_room_are_named_once_with_what_makes_room(tmp_path, source):
    with make_workspace(tmp_path, collection=SMALL) as workspace:
        manifest = materialized(workspace)

        async def told(files: int) -> list[str]:
            for number in range(files):
                (source.output / f"f{number:02}").write_bytes(b"")
            report = await workspace.collect(manifest, source)
            assert not any(item.declared for item in report.refused)
            return [item.message for item in report.refused]

        limit = "output was not taken: 4 files lie there already, the most that are kept at a time; left out: "
        room = "; to make room remove files there or pack them into one archive, or raise max_files in "
        room += "c.AgentlyKernel.collection"
        assert await told(6) == [f"{limit}output/f04, output/f05{room}"]
        assert await told(6) == []
        assert await told(7) == [f"{limit}output/f06{room}"]
        assert await told(12) == [f"{limit}output/f07, output/f08, output/f09 and 2 more{room}"]
        for number in range(3, 12):
            (source.output / f"f{number:02}").unlink()
        assert await told(0) == []


async def test_caps_hold_for_declared_outputs(tmp_path, source):
    with make_workspace(tmp_path, collection=SMALL) as workspace:
        for name in "abcde":
            (source.output / name).write_bytes(bytes(1))
        (source.output / "e").write_bytes(bytes(101))
        report = await workspace.collect(materialized(workspace, tuple(f"output/{n}" for n in "eabcd")), source)
        assert list(brought(report)) == ["output/a", "output/b", "output/c", "output/d"]
        assert refused(report) == {"output/e": "too_large"}
        assert [item.declared for item in report.refused] == [True]


async def test_a_new_sandbox_is_looked_at_afresh(workspace, source, tmp_path):
    manifest = materialized(workspace)
    (source.output / "a").write_text("1")
    await workspace.collect(manifest, source)
    second = type(source)(tmp_path / "second")
    (second.output / "a").write_text("1")
    assert brought(await workspace.collect(manifest, second)) == {"output/a": False}


async def test_collect_needs_an_open_grant(workspace, source, tmp_path):
    grant = workspace.issue_grant(execution_id="e")
    manifest = materialized(workspace).model_copy(update={"grant_id": grant.grant_id})
    workspace.close_grant(grant)
    with pytest.raises(GrantError, match="its grant is not open here"):
        await workspace.collect(manifest, source)
    with make_workspace(tmp_path) as other, pytest.raises(GrantError):
        await workspace.collect(materialized(other), source)


async def test_scratch_at_the_end(workspace, source):
    (source.build / "output").symlink_to("../output")
    (source.build / "notes.txt").write_text("n")
    (source.build / "data").mkdir()
    (source.build / "data" / "x.csv").write_text("x")
    for cache in (".cache", "__pycache__", ".app-0123", "data/__pycache__"):
        (source.build / cache).mkdir(parents=True)
        (source.build / cache / "junk").write_text("junk")
    os.mkfifo(source.build / "fifo")
    (source.output / "late.csv").write_text("written by an exit handler")
    report = await workspace.collect_scratch(source)
    assert set(brought(report)) == {"output/late.csv", "notes.txt", "data/x.csv"}
    assert report.refused == ()
    assert (workspace.store.files / "notes.txt").read_text() == "n"


async def test_caches_do_not_use_up_the_walk(workspace, source, monkeypatch):
    monkeypatch.setattr(collect_module, "MAX_ENTRIES", 50)
    (source.build / ".cache").mkdir()
    for number in range(100):
        (source.build / ".cache" / str(number)).touch()
    (source.build / "zz").write_text("mine")
    assert set(brought(await workspace.collect_scratch(source))) == {"zz"}


async def test_scratch_reads_all_outputs_again(workspace, source):
    manifest = materialized(workspace)
    (source.output / "a").write_text("1")
    settle()
    await workspace.collect(manifest, source)
    stored = workspace.store.files / "output" / "a"
    stored.write_text("damaged")
    assert brought(await workspace.collect_scratch(source)) == {}
    assert stored.read_text() == "1"


async def test_over_the_protocol(workspace):
    source = WireSource({"a": b"12345678", "found": b"f", "bad\nname": b"x", "../up": b"x"})
    report = await workspace.collect(materialized(workspace, ("output/a", "output/none")), source)
    assert [(o.path, o.sha256, o.size, o.declared) for o in report.outputs] == [
        ("output/a", digest(b"12345678"), 8, True),
        ("output/found", digest(b"f"), 1, False),
    ]
    assert refused(report) == {"output/none": "missing", "output/bad\\nname": "bad_name", "output/../up": "bad_name"}
    assert source.fetched == ["output/a", "output/none", "output/found"]
    assert sorted(p.name for p in workspace.store.files.rglob("*") if p.is_file()) == ["a", "found"]


async def test_over_the_protocol_a_liar_is_bounded(tmp_path):
    with make_workspace(tmp_path, collection=SMALL) as workspace:
        source = WireSource(
            {
                "big": bytes(101),
                "odd": SandboxError("what", code="no such reason"),
                "link": SandboxError("l", code="symlink"),
            }
        )
        report = await workspace.collect(materialized(workspace, ("output/big", "output/odd", "output/link")), source)
        assert refused(report) == {"output/big": "too_large", "output/odd": "unreadable", "output/link": "symlink"}
        assert os.listdir(workspace.store.incoming) == []


async def test_over_the_protocol_silence_ends(workspace, monkeypatch):
    monkeypatch.setattr(collect_module, "DEADLINE_SECONDS", 0.2)
    started = time.monotonic()
    report = await workspace.collect(
        materialized(workspace, ("output/a", "output/b")), WireSource({"a": b"123", "b": b"1"}, delay=30)
    )
    assert refused(report) == {"output/a": "unreadable", "output/b": "unreadable"}
    assert time.monotonic() - started < 5


async def test_over_the_protocol_scratch(workspace):
    source = WireSource({"a": b"1"}, build={"n.txt": b"n", ".cache/x": b"x"})
    assert set(brought(await workspace.collect_scratch(source))) == {"output/a", "n.txt"}
    assert brought(await workspace.collect_scratch(source)) == {}


async def test_cancelling_stops_the_copy_and_leaves_nothing(workspace, source):
    with (source.output / "big").open("wb") as file:
        file.truncate(200 * 1024**2)
    task = asyncio.create_task(workspace.collect(materialized(workspace, ("output/big",)), source))
    while not os.listdir(workspace.store.incoming):
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(workspace.store.incoming) == [] == os.listdir(workspace.store.files)


async def test_the_loop_runs_on_while_files_are_copied(workspace, source):
    (source.output / "big").write_bytes(os.urandom(1 << 20) * 100)
    manifest = materialized(workspace, ("output/big",))
    longest, last, done = 0.0, time.monotonic(), asyncio.Event()

    async def tick():
        nonlocal longest, last
        while not done.is_set():
            await asyncio.sleep(0)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    ticking = asyncio.create_task(tick())
    started = time.monotonic()
    await workspace.collect(manifest, source)
    took = time.monotonic() - started
    done.set()
    await ticking
    assert longest < max(0.05, took / 2)


async def test_descriptors_are_given_back(workspace, source):
    manifest = materialized(workspace, ("output/none",))
    (source.output / "d").mkdir()
    (source.output / "d" / "f").write_text("1")
    (source.output / "l").symlink_to("d")
    await workspace.collect(manifest, source)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await workspace.collect(manifest, source)
        await workspace.collect_scratch(source)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_full_store_costs_the_files_that_it_cannot_take_and_nothing_else(workspace, source, monkeypatch):
    (source.output / "a").write_text("1")

    def full(*_):
        raise OSError(28, "No space left on device")

    rounds = ((("output/a",), True), ((), True), ((), False))  # what no cell named is told once
    manifests = [materialized(workspace, declared) for declared, _ in rounds]
    monkeypatch.setattr("agently_kernel.workspace.store.os.write", full)
    for (declared, told), manifest in zip(rounds, manifests, strict=True):
        report = await workspace.collect(manifest, source)
        assert report.outputs == () and [item.declared for item in report.refused] == [bool(declared)] * told
        for item in report.refused:
            assert (item.path, item.reason) == ("output/a", "not_stored")
            assert "could not take a file: No space left on device; make room on" in item.message
    monkeypatch.undo()
    assert brought(await workspace.collect(materialized(workspace), source)) == {"output/a": False}


def test_this_kernel_has_openat2_or_says_so():
    assert BeneathOpener(strict=False).strict is False
    assert BeneathOpener().strict is (os.uname().release >= "5.6" or os.uname().release[0] in "6789")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("output/a b.csv", "output/a b.csv"),
        ("output/é", "output/é"),
        ("a\nb", "a\\nb"),
        ("a\x1b[31m", "a\\x1b[31m"),
        ("x\u202etxt", "x\\u202etxt"),
        ("\udcff", "\\udcff"),
        ("n" * 400, "n" * 299 + "…"),
    ],
)
def test_hostile_names_are_shown_harmlessly(path, shown):
    assert collect_module.show_path(path) == shown
