"""The host's store: files that are never lost, bounded logs, a trace that survives damage."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.contract.errors import WorkspaceError
from agently_kernel.spill import StoreLog, open_spill_log
from agently_kernel.workspace import store as store_module
from agently_kernel.workspace.store import LogWriter, WorkspaceStore


@pytest.fixture
def store(tmp_path):
    return WorkspaceStore(tmp_path / "ws")


def put(store, path, content):
    with store.receive() as incoming:
        incoming.write(content)
        return incoming.commit(path)


def tree(store):
    return {str(p.relative_to(store.files)): p.read_bytes() for p in sorted(store.files.rglob("*")) if p.is_file()}


def test_files_are_replaced_in_one_step_and_private(store):
    path = put(store, "output/a/b.csv", b"one")
    assert put(store, "output/a/b.csv", b"two") == path == store.files / "output/a/b.csv"
    assert tree(store) == {"output/a/b.csv": b"two"}
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert os.listdir(store.incoming) == []


def test_what_is_not_committed_goes(store):
    with pytest.raises(RuntimeError), store.receive() as incoming:
        os.write(incoming.descriptor, b"half")
        raise RuntimeError
    assert os.listdir(store.incoming) == [] and tree(store) == {}


def test_a_file_in_the_way_of_a_folder_is_set_aside(store):
    put(store, "output/a", b"file")
    put(store, "output/a/b", b"inner")
    put(store, "output/a", b"file again")
    assert tree(store) == {"output/a~1": b"file", "output/a": b"file again", "output/a~2/b": b"inner"}


def test_unsafe_names_never_reach_the_disk(store):
    for path in ("../x", "/x", "a/../b", "a\n"):
        with store.receive() as incoming, pytest.raises(ValueError):
            incoming.commit(path)
    assert tree(store) == {}


def test_links_planted_in_the_store_are_not_followed(store, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (store.files / "output").symlink_to(tmp_path / "elsewhere")
    put(store, "output/x", b"1")
    assert os.listdir(tmp_path / "elsewhere") == []
    assert (store.files / "output" / "x").read_bytes() == b"1"


def test_a_store_deleted_underneath_is_made_again(store):
    store.incoming.rmdir()
    store.files.rmdir()
    assert put(store, "x", b"1").read_bytes() == b"1"


def test_a_full_disk_is_a_sentence(store, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "replace", full)
    with pytest.raises(WorkspaceError, match="could not take a file: No space left on device; make room on"):
        put(store, "x", b"1")
    assert os.listdir(store.incoming) == []


def test_log_is_appended_and_bounded(store):
    with store.log_writer("execution-1") as log:
        log.write(b"a" * 10)
    with store.log_writer("execution-1") as log:
        log.write(b"b")
    assert (store.logs / "execution-1.log").read_bytes() == b"a" * 10 + b"b"
    writer = LogWriter(store.logs / "small.log", 4)
    writer.write(b"123456")
    writer.write(b"7")
    writer.close()
    writer.close()
    assert ((store.logs / "small.log").read_bytes(), writer.written, writer.dropped) == (b"1234", 4, 3)
    assert (store.logs / "small.log").stat().st_mode & 0o777 == 0o600


def test_all_logs_together_are_bounded(store, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_LOGS_BYTES", 10)
    with store.log_writer("a") as log:
        log.write(b"x" * 8)
    with store.log_writer("b") as log:
        log.write(b"y" * 8)
        assert (log.written, log.dropped) == (2, 6)


def test_a_log_says_what_ended_it(store, monkeypatch):
    with LogWriter(store.logs / "one", 4) as log:
        log.write(b"x" * 10)
        assert (log.written, log.dropped, log.reason) == (4, 6, "the limit of one log, 4 bytes, is used up")
    with LogWriter(Path("/dev/full"), 2**20) as log:
        log.write(b"x" * 10)
        log.flush()
        assert (log.written, log.dropped, log.reason) == (0, 10, "No space left on device")
        log.write(b"y")
        assert (log.dropped, log.reason) == (11, "No space left on device")
    monkeypatch.setattr(store_module, "MAX_LOGS_BYTES", 10)
    with store.log_writer("a") as log:
        log.write(b"x" * 11)
        assert log.reason == "what was left of the limit of all logs of this session, 6 bytes, is used up"


def test_the_account_of_a_log_is_true(store, tmp_path):
    whole = StoreLog(LogWriter(store.logs / "a", 100))
    whole.write("text")
    assert whole.account(4) == f"They are in {store.logs / 'a'}."
    assert (store.logs / "a").read_bytes() == b"text"
    part = StoreLog(LogWriter(store.logs / "b", 3))
    part.write("text and a tail that is shown")
    assert part.account(4) == (
        f"The first 3 bytes of them are in {store.logs / 'b'}; the rest could not be kept "
        "(the limit of one log, 3 bytes, is used up)."
    )
    assert part.account(3) == f"They are in {store.logs / 'b'}."  # what is lost is the tail, which is shown
    full = StoreLog(LogWriter(Path("/dev/full"), 100))
    full.write("text")
    assert full.account(4) == "They could not be kept (No space left on device)."
    for log in (whole, part, full):
        log.close()
    (tmp_path / "gone").write_text("a file where the store should be")
    store.logs = tmp_path / "gone"
    closed = open_spill_log(store, "c")
    closed.write("text")
    assert closed.account(4).startswith("They could not be kept: ")


@given(name=st.text(max_size=90))
def test_any_execution_id_makes_one_safe_file(tmp_path_factory, name):
    stem = store_module._file_stem(name)
    assert stem == name or (len(stem) == 24 and set(stem) <= set("0123456789abcdef"))
    assert "/" not in stem and stem not in ("", ".", "..") and len(stem) <= 80
    assert not stem.startswith((".", "-"))


def test_trace_keeps_records_and_turns_over_once(store, monkeypatch):
    for number in range(3):
        store.append_trace({"n": number, "path": store.path})
    assert [record["n"] for record in store.read_trace()] == [0, 1, 2]
    assert [record["n"] for record in store.read_trace(last=1)] == [2]
    with (store.path / "trace.jsonl").open("ab") as file:
        file.write(b'{"n": 3, "half')
    assert [record["n"] for record in store.read_trace()] == [0, 1, 2]
    monkeypatch.setattr(store_module, "MAX_TRACE_BYTES", 10)
    store.append_trace({"n": 4})
    assert store.read_trace() == []
    assert b'"n":0' in (store.path / "trace.1.jsonl").read_bytes()


def test_meta_is_merged(store):
    store.write_meta(a=1, b=2)
    store.write_meta(b=3)
    assert json.loads((store.path / "workspace.json").read_text()) == {"a": 1, "b": 3}
    assert sorted(os.listdir(store.path)) == ["files", "incoming", "logs", "workspace.json"]


@pytest.mark.parametrize("code", [*sorted(errno.errorcode.keys() - {errno.EISDIR}), 0, 9999])
@pytest.mark.parametrize("call", ["open", "write", "replace", "mkdir"])
def test_whatever_is_in_the_way_is_blamed_and_nothing_else(store, monkeypatch, code, call):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store_module.os, call, fail)
    try:
        with pytest.raises(WorkspaceError) as raised:
            put(store, "fresh/x", b"1")
    except FileExistsError:  # a failing mkdir or open of a folder that is there already says nothing
        assert code == errno.EEXIST
        return
    finally:
        monkeypatch.undo()
    text = str(raised.value)
    assert ("make room" in text) == (code in (errno.ENOSPC, errno.EDQUOT))
    assert ("restart the kernel" in text) == (code in (errno.ENOENT, errno.ENOTDIR))
    assert str(store.path) in text and os.strerror(code) in text
    assert os.listdir(store.incoming) == []


def test_an_error_of_what_is_read_is_not_the_stores(store):
    with pytest.raises(OSError, match="the source") as raised, store.receive():
        raise OSError(errno.EIO, "the source")
    assert not isinstance(raised.value, WorkspaceError)
    assert os.listdir(store.incoming) == []
