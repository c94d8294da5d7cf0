# ruff: noqa: E501 - programs of cells stand on one line
"""Init: greeting, steps, files, tools, back-pressure, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import select
import time
from pathlib import Path
from typing import Any

import pytest
from guest_driver import Guest

from agently_kernel.guest import files, wire

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A guest without an interpreter."""
    with Guest(tmp_path_factory.mktemp("init"), seccomp=True) as found:
        yield found


def run_step(guest: Guest, argv: list[str], stdin: bytes = b"", name: str = "s1", **fields: Any) -> tuple[dict[str, Any], str, str]:
    """Run a step; return its last frame, standard output and standard error."""
    header = {"op": "run_step", "step": name, "argv": argv, "env": ENV, "cwd": guest.roots["build"], **fields}
    guest.send(header, stdin)
    text = {"stdout": b"", "stderr": b""}
    while True:
        found, payload = guest.frame()
        if found["op"] == "stream":
            assert found["step"] == name and "cell" not in found
            text[found["name"]] += payload
        elif found["op"] == "step" and found["state"] != "started":
            return found, text["stdout"].decode(), text["stderr"].decode()


def test_the_greeting_echoes_the_nonce_and_tells_what_was_done(tmp_path: Path) -> None:
    with Guest(tmp_path, seccomp=True, limits={"core": 0, "nofile": 300, "fsize": 1 << 24, "nice": 1}) as guest:
        hello, _ = guest.until("hello")
        probe, payload = guest.until("probe")
        assert hello["nonce"] == probe["nonce"] == "n" * 32
        assert hello["protocol"] == wire.PROTOCOL
        assert hello["stage1"]["rlimits"]["nofile"] == 300
        assert hello["stage1"]["rlimits"]["core"] == 0
        assert hello["stage1"]["no_new_privs"] is True and hello["stage1"]["dumpable"] is False
        assert len(hello["stage1"]["seccomp_sha256"]) == 64
        assert isinstance(json.loads(payload), list)
        guest.start()
        cell = guest.run("import resource as r\nprint(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE))")
        assert cell.text() == "(300, 300) (0, 0)\n"


def test_a_step_tells_its_exit_code_and_its_output(guest: Guest) -> None:
    ended, out, err = run_step(guest, ["sh", "-c", "echo out; echo err >&2; pwd; exit 3"])
    assert (ended["state"], ended["exit_code"]) == ("exited", 3)
    assert (out, err) == (f"out\n{guest.roots['build']}\n", "err\n")
    assert 0 <= ended["milliseconds"] < 10000


def test_a_step_has_its_own_environment_only(guest: Guest) -> None:
    _, out, _ = run_step(guest, ["env"], env={"PATH": "/usr/bin:/bin", "ONLY": "this"})
    assert sorted(out.split()) == ["ONLY=this", "PATH=/usr/bin:/bin"]


def test_a_step_reads_its_standard_input_to_the_end(guest: Guest) -> None:
    data = os.urandom(3_000_000)
    _, out, _ = run_step(guest, ["sha256sum"], data)
    assert out.split()[0] == hashlib.sha256(data).hexdigest()
    assert run_step(guest, ["cat"])[1] == ""
    assert run_step(guest, ["true"], data)[0]["exit_code"] == 0


def test_a_step_killed_by_a_signal_says_so(guest: Guest) -> None:
    assert run_step(guest, ["sh", "-c", "kill -SEGV $$"])[0]["signal"] == 11


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"argv": ["no-such-program"]}, "the program no-such-program cannot be started: No such file or directory"),
        ({"argv": ["true"], "cwd": "/no/such"}, "the folder /no/such cannot be entered: No such file or directory"),
        ({"argv": []}, "argv and environment must be texts without NUL, and argv not empty"),
        ({"argv": ["a\0b"]}, "argv and environment must be texts without NUL, and argv not empty"),
        ({"argv": ["true"], "env": {"A": 1}}, "argv and environment must be texts without NUL, and argv not empty"),
    ],
)
def test_a_step_that_cannot_start_says_why(guest: Guest, fields: dict[str, Any], reason: str) -> None:
    ended, _, _ = run_step(guest, **{"argv": ["true"], **fields})
    assert (ended["state"], ended["reason"]) == ("failed", reason)


def test_python3_is_the_interpreter_at_hand_where_there_is_no_program_of_that_name(guest: Guest, tmp_path: Path) -> None:
    code = "import sys; print(sys.executable, sys.argv[1:])"
    nowhere = {"PATH": str(tmp_path)}
    ended, out, _ = run_step(guest, ["python3", "-c", code, "a"], env=nowhere)
    assert (ended["state"], ended.get("exit_code")) == ("exited", 0)
    assert out.endswith(" ['a']\n") and out.startswith("/")
    own = tmp_path / "python3"
    own.write_text("#!/bin/sh\necho of the sandbox\n")
    own.chmod(0o755)
    assert run_step(guest, ["python3", "-c", code], env=nowhere)[1] == "of the sandbox\n"
    assert run_step(guest, ["node"], env=nowhere)[0]["state"] == "failed"


def test_the_end_of_a_step_does_not_wait_for_its_children_and_they_are_ended(guest: Guest) -> None:
    started = time.monotonic()
    ended, out, _ = run_step(guest, ["sh", "-c", "sleep 63.001 & setsid sh -c 'sleep 63.002; :' & echo $!; exit 0"])
    assert (ended["exit_code"], time.monotonic() - started < 5) == (0, True)
    deadline = time.monotonic() + 3
    while os.path.exists(f"/proc/{int(out)}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{int(out)}")


def test_a_step_can_be_killed_with_its_descendants(guest: Guest) -> None:
    guest.send({"op": "run_step", "step": "k", "argv": ["sh", "-c", "trap '' TERM INT; setsid sleep 64.01 & echo $!; wait"],
                "env": ENV, "cwd": "/"})
    _, payload = guest.until("stream", step="k")
    guest.send({"op": "kill", "what": "step", "step": "k"})
    assert guest.until("step", state="exited")[0]["signal"] == 9
    assert not os.path.exists(f"/proc/{int(payload)}") or "Z" in Path(f"/proc/{int(payload)}/stat").read_text()


def test_steps_run_side_by_side(guest: Guest) -> None:
    for name in ("a", "b"):
        guest.send({"op": "run_step", "step": name, "argv": ["sh", "-c", f"sleep 0.3; echo {name}"], "env": ENV, "cwd": "/"})
    started = time.monotonic()
    assert {guest.until("step", state="exited")[0]["step"] for _ in range(2)} == {"a", "b"}
    assert time.monotonic() - started < 5


def test_tools_answer_with_their_first_words(guest: Guest) -> None:
    _, payload = guest.ask("tools", argvs=[["sh", "-c", "echo v1; echo more >&2"], ["no-such-tool"], [], "bad"])
    found = json.loads(payload)
    assert found[0] == {"argv0": "sh", "available": True, "output": "v1\nmore\n"}
    assert (found[1]["argv0"], found[1]["available"]) == ("no-such-tool", False)
    assert "No such file" in found[1]["output"]
    assert [item["available"] for item in found[2:]] == [False, False]


def test_ping(guest: Guest) -> None:
    assert guest.ask("ping")[0] == {"op": "pong", "request": guest.requests}


# -- files -------------------------------------------------------------------------------------------------------------


def fetch(guest: Guest, path: str, most: int = 1 << 20, area: str = "output") -> tuple[str, bytes]:
    """Return ("end", content) or (reason, b"")."""
    guest.requests += 1
    guest.send({"op": "fetch", "request": guest.requests, "area": area, "path": path, "max_bytes": most})
    data = b""
    while True:
        header, payload = guest.until("file", request=guest.requests)
        if header["state"] == "refused":
            return header["reason"], b""
        data += payload
        if header["state"] == "end":
            return "end", data


def test_files_are_fetched_whole(guest: Guest) -> None:
    data = os.urandom(700_001)
    folder = Path(guest.roots["output"], "sub")
    folder.mkdir()
    (folder / "données.bin").write_bytes(data)
    assert fetch(guest, "sub/données.bin") == ("end", data)
    (folder / "empty").write_bytes(b"")
    assert fetch(guest, "sub/empty") == ("end", b"")


def test_what_is_no_plain_file_is_refused(guest: Guest) -> None:
    root = Path(guest.roots["output"])
    (root / "secret").write_text("s")
    os.link(root / "secret", root / "hard")
    os.symlink("/etc/passwd", root / "leaf")
    os.symlink("/etc", root / "folder")
    os.mkfifo(root / "fifo")
    (root / "big").write_bytes(b"x" * 100)
    assert fetch(guest, "hard")[0] == "hard_link"
    assert fetch(guest, "leaf")[0] == "symlink"
    assert fetch(guest, "folder/passwd")[0] == "symlink"
    assert fetch(guest, "fifo")[0] == "not_regular"
    assert fetch(guest, "big", most=99)[0] == "too_large"
    assert fetch(guest, "nothing")[0] == "missing"
    assert fetch(guest, ".")[0] == fetch(guest, "a/../../etc/passwd")[0] == fetch(guest, "/etc/passwd")[0] == "bad_name"


def test_listing_names_plain_files_only_and_is_bounded(tmp_path: Path) -> None:
    with Guest(tmp_path) as guest:
        root = Path(guest.roots["output"])
        (root / "sub").mkdir()
        (root / "sub" / "a").write_bytes(b"12")
        (root / "b").write_bytes(b"1")
        os.symlink("/etc", root / "link")
        os.symlink("b", root / "leaf")
        os.mkfifo(root / "fifo")
        (root / os.fsdecode(b"bad-\xff")).write_bytes(b"1")
        deep = root
        for _ in range(70):
            deep = deep / "d"
            deep.mkdir()
        (deep / "too-deep").write_bytes(b"1")
        _, payload = guest.ask("list", area="output", max_files=100)
        assert sorted((item["path"], item["size"]) for item in json.loads(payload)) == [("b", 1), ("sub/a", 2)]
        _, payload = guest.ask("list", area="output", max_files=1)
        assert len(json.loads(payload)) == 1


def test_put_writes_new_files_only(guest: Guest) -> None:
    answer, _ = guest.ask("put", b"data", root="source", path="x/y.py")
    assert answer == {"op": "stored", "request": guest.requests, "ok": True}
    target = Path(guest.roots["source"], "x/y.py")
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"data", 0o444)
    assert guest.ask("put", b"again", root="source", path="x/y.py")[0]["ok"] is False
    assert guest.ask("put", b"", root="source", path="../up")[0]["reason"] == "bad_name"
    os.symlink("/tmp", Path(guest.roots["source"], "away"))
    assert guest.ask("put", b"", root="source", path="away/file")[0]["reason"] == "symlink"


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_host_that_does_not_read_holds_the_guest_back_and_loses_nothing(fresh: Guest) -> None:
    cell = fresh.submit("for i in range(300000): print('%0200d' % i)")
    time.sleep(2)
    kib = int(next(line for line in Path(f"/proc/{fresh.process.pid}/status").read_text().splitlines() if "VmRSS" in line).split()[1])
    assert kib < 40 * 1024
    assert fresh.collect(cell, timeout=60).text() == "".join(f"{i:0200d}\n" for i in range(300000))


def test_requests_are_served_while_a_flood_is_held_back(fresh: Guest) -> None:
    fresh.submit("while True: print('x' * 1000)")
    time.sleep(0.8)
    fresh.send({"op": "kill", "what": "interpreter"})
    assert fresh.until("interpreter", state="exited")[0]["signal"] == 9


def test_an_interpreter_that_does_not_read_is_ended_when_too_much_waits(fresh: Guest) -> None:
    fresh.submit("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    time.sleep(0.3)
    for number in range(40):
        fresh.send({"op": "is_complete", "request": 1000 + number}, b"x" * (1 << 20))
    header, _ = fresh.until("violation")
    assert header["reason"].startswith("it did not read 3")
    assert fresh.until("interpreter", state="exited")[0]["signal"] == 9


def test_a_guest_that_steals_from_its_own_pipe_cannot_break_the_channel(fresh: Guest) -> None:
    cell = fresh.run(
        "import os, threading, time\nfd = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)\nstop = []\ndef steal():\n"
        "    while not stop:\n        try: os.read(fd, 65536)\n        except BlockingIOError: pass\n"
        "t = threading.Thread(target=steal); t.start()\nfor i in range(300): os.write(1, b'y' * 60000)\nstop.append(1); t.join(); os.close(fd)"
    )
    assert cell.done[0] == "ok"
    assert fresh.run("print('whole')").text() == "whole\n"


def test_init_is_small(guest: Guest) -> None:
    kib = int(next(line for line in Path(f"/proc/{guest.process.pid}/status").read_text().splitlines() if "VmRSS" in line).split()[1])
    assert kib < 24 * 1024


# -- the host's side of the protocol ------------------------------------------------------------------------------------


def ends_with(guest: Guest, timeout: float = 10.0) -> tuple[int, str]:
    """Exit code and standard error of a guest that is expected to end."""
    code = guest.process.wait(timeout)
    assert guest.process.stderr
    select.select([guest.process.stderr.fileno()], [], [], 1)
    return code, (guest.stderr + (guest.process.stderr.read() or b"")).decode()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"protocol": 9}, "agently guest: the host speaks protocol 9, this guest 1.\n"),
        ({"limits": {"speed": 1}}, "agently guest: limit 'speed' is not known or its value 1 is no integer.\n"),
        ({"limits": {"nofile": "many"}}, "agently guest: limit 'nofile' is not known or its value 'many' is no integer.\n"),
        ({"extra": 1}, "agently guest: the boot message is malformed: op boot has an unknown field 'extra'.\n"),
        ({"nonce": 5}, "agently guest: the boot message is malformed: op boot: nonce is not str.\n"),
    ],
)
def test_a_boot_message_that_cannot_be_followed_is_answered_by_a_sentence(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    with Guest(tmp_path, boot=False) as guest:
        guest.send({**guest.boot_header, **change})
        assert ends_with(guest) == (3, sentence)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the first bytes from the host are no boot message of protocol version 1"),
        (b"", "the host closed the channel before the boot message was complete"),
        (wire.encode({"op": "boot"})[:-2], "the host closed the channel before the boot message was complete"),
    ],
)
def test_a_channel_that_brings_no_boot_message(tmp_path: Path, data: bytes, sentence: str) -> None:
    with Guest(tmp_path, boot=False) as guest:
        guest.raw(data)
        assert guest.process.stdin
        guest.process.stdin.close()
        assert ends_with(guest) == (3, f"agently guest: {sentence}.\n")


def test_garbage_after_the_boot_message_ends_the_guest_with_a_sentence(tmp_path: Path) -> None:
    with Guest(tmp_path) as guest:
        guest.until("probe")
        guest.raw(b"\0" * 64)
        code, text = ends_with(guest)
        assert code == 3 and "bytes on the channel that are no frame" in text


def test_messages_that_follow_the_boot_message_at_once_are_not_lost(tmp_path: Path) -> None:
    with Guest(tmp_path, boot=False) as guest:
        guest.raw(wire.encode(guest.boot_header) + wire.encode({"op": "ping", "request": 77}))
        assert guest.until("pong")[0]["request"] == 77


def test_messages_for_an_interpreter_that_is_not_there_are_dropped(tmp_path: Path) -> None:
    with Guest(tmp_path) as guest:
        guest.send({"op": "complete", "request": 1, "cursor_pos": 0}, b"x")
        guest.send({"op": "interrupt"})
        guest.send({"op": "kill", "what": "interpreter"})
        assert guest.ask("ping")[0]["op"] == "pong"
        guest.send({"op": "shutdown", "grace": 1000})
        assert guest.process.wait(5) == 0


def test_stdout_carries_frames_only_whatever_the_guest_prints(tmp_path: Path) -> None:
    with Guest(tmp_path, mode="plain") as guest:
        guest.start()
        cell = guest.run("import os, sys\nprint('a', file=sys.__stdout__)\nos.write(1, b'b\\n'); os.write(2, b'c\\n');")
        assert (cell.text(), cell.text("stderr")) == ("a\nb\n", "c\n")
        assert guest.stderr == b""


def test_only_init_says_that_outputs_are_unchanged_and_only_to_a_host_that_asks(tmp_path: Path) -> None:
    with Guest(tmp_path) as guest:
        guest.start()

        def word(code: str) -> Any:
            return guest.run(code).frames[-1][0].get("unchanged")

        assert (word("1"), word("2")) == (None, None)
        guest.ask("list", area="output", max_files=10)
        assert word("3") is True
        assert word(f"open({guest.roots['output']!r} + '/x', 'w').close()") is None
        guest.ask("list", area="build", max_files=10)
        assert word("4") is None
        guest.ask("list", area="output", max_files=10)
        assert (word("5"), word("6")) == (True, True)
    assert "unchanged" not in wire.INSIDE["done"].fields


def test_a_list_that_takes_long_is_not_made_at_the_end_of_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("1")
    listed = files.Listed(str(tmp_path))
    assert not listed.unchanged()  # nobody has asked
    assert listed.tell(10) == [{"path": "a", "size": 1}] and listed.unchanged()
    monkeypatch.setattr(files, "QUICK_SECONDS", 0.0)
    assert not listed.unchanged()  # it took too long to be sure
    listed.tell(10)
    monkeypatch.undo()
    assert not listed.unchanged()  # it took too long to be done again


def test_a_program_that_the_host_shows_is_copied_to_where_it_runs(tmp_path: Path) -> None:
    with Guest(tmp_path) as guest:
        source, build = Path(guest.roots["source"]), Path(guest.roots["build"])
        (source / ".builds").mkdir()
        program = source / ".builds" / "key"
        program.write_text("#!/bin/sh\necho ran\n" + "#" * 300_000)
        program.chmod(0o444)
        os.link(program, tmp_path / "kept")  # as the host's cache does
        assert guest.ask("copy", source=".builds/key", path=".bin/p")[0]["ok"] is True
        assert run_step(guest, [str(build / ".bin" / "p")])[1] == "ran\n"
        again, _ = guest.ask("copy", source=".builds/key", path=".bin/p")
        assert (again["ok"], again["reason"]) == (False, ".bin/p: File exists")
        (source / "link").symlink_to("/etc/hostname")
        for name, reason in (("nothing", "missing"), ("link", "symlink"), ("../up", "bad_name")):
            answer, _ = guest.ask("copy", source=name, path="q")
            assert (answer["ok"], answer["reason"]) == (False, reason)
        answer, _ = guest.ask("copy", source=".builds", path="q")  # a folder
        assert answer["ok"] is False
        assert guest.ask("copy", source=".builds/key", path="q")[0]["ok"] is True  # nothing half-made is in its way
