"""Drives the guest as a plain process over pipes: what a host does, without any isolation around it."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agently_kernel.guest import wire

GUEST = Path(wire.__file__).parent
Frame = tuple[dict[str, Any], bytes]


class Cell:
    """What one execution brought: frames in order, and what they come to."""

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.frames: list[Frame] = []

    def ops(self) -> list[str]:
        return [header["op"] for header, _ in self.frames]

    def text(self, name: str = "stdout") -> str:
        """All text of a stream that belongs to this cell."""
        return b"".join(
            payload for header, payload in self.frames
            if header["op"] in ("stream", "text") and header["name"] == name and header.get("cell") == self.cell
        ).decode("utf-8", "replace")

    def script(self) -> list[tuple[str, Any]]:
        """Texts and displays in the order of their arrival, neighbouring texts of one stream joined."""
        found: list[tuple[str, Any]] = []
        for header, payload in self.frames:
            if header["op"] in ("stream", "text"):
                if found and found[-1][0] == header["name"]:
                    found[-1] = (header["name"], found[-1][1] + payload.decode())
                else:
                    found.append((header["name"], payload.decode()))
            elif header["op"] == "display":
                found.append((header["kind"], json.loads(payload)["data"]))
            elif header["op"] in ("clear", "error"):
                found.append((header["op"], json.loads(payload or b"null")))
        return found

    def displays(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [
            {**json.loads(payload), "display_id": header.get("display_id"), "kind": header["kind"]}
            for header, payload in self.frames if header["op"] == "display" and kind in (None, header["kind"])
        ]

    def result(self) -> dict[str, Any]:
        (only,) = self.displays("execute_result")
        data: dict[str, Any] = only["data"]
        return data

    def error(self) -> dict[str, Any]:
        (only,) = [json.loads(payload) for header, payload in self.frames if header["op"] == "error"]
        found: dict[str, Any] = only
        return found

    @property
    def done(self) -> tuple[str, dict[str, Any]]:
        """Status and reply."""
        for header, payload in self.frames:
            if header["op"] == "done" and header["cell"] == self.cell:
                return header["status"], json.loads(payload)
        raise AssertionError("no done frame")


class Guest:
    """One guest process. A context manager; leaving it kills the process."""

    def __init__(
        self, folder: Path, *, mode: str = "auto", seccomp: bool = False, python: str = sys.executable,
        limits: dict[str, int] | None = None, challenge: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        boot: bool = True,
    ) -> None:
        self.folder = folder
        self.roots = {name: str(folder / name) for name in ("source", "input", "build", "output")}
        for path in self.roots.values():
            Path(path).mkdir(exist_ok=True)
        home = folder / "home"
        home.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [python, "-I", "-S", "-u", str(GUEST / "stage1.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, bufsize=0,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        os.set_blocking(self.process.stderr.fileno(), False)
        self.decoder = wire.Decoder(wire.FROM_GUEST)
        self.pending: list[Frame] = []
        self.stderr = b""
        self.needed: list[str] = []
        self.requests = 0
        self.cells = 0
        self.generation = 0
        plain = {
            "PATH": "/usr/bin:/bin", "HOME": str(home), "IPYTHONDIR": str(home / "ipython"), "LANG": "C.UTF-8",
            "MPLBACKEND": "module://matplotlib_inline.backend_inline", "MPLCONFIGDIR": str(home),
        }
        self.boot_header = {
            "op": "boot", "nonce": "n" * 32, "protocol": wire.PROTOCOL, "limits": limits or {"core": 0},
            "seccomp": {"enabled": seccomp, "allow_inet": True, "allow_unix": True},
            "challenge": challenge or {"nonce": "n" * 32, "write_roots": [str(folder)]},
            "interpreter": {
                "env": {**plain, **(env or {})}, "mode": mode, "cwd": self.roots["build"], "roots": self.roots,
            },
        }
        if boot:
            self.send(self.boot_header)

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe
            pipe.close()

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        assert self.process.stdin
        self.raw(wire.encode(header, payload))

    def raw(self, data: bytes) -> None:
        assert self.process.stdin
        view = memoryview(data)
        while view:
            view = view[os.write(self.process.stdin.fileno(), view):]

    def frame(self, timeout: float = 20.0) -> Frame:
        """The next frame. AssertionError when none comes."""
        deadline = time.monotonic() + timeout
        assert self.process.stdout and self.process.stderr
        while not self.pending:
            fds = [self.process.stdout.fileno(), self.process.stderr.fileno()]
            ready, _, _ = select.select(fds, [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no frame within {timeout} s; diagnostics: {self.stderr.decode()[-3000:]}"
            if fds[1] in ready:
                self.stderr += os.read(fds[1], 65536)
            if fds[0] in ready:
                data = os.read(fds[0], 262144)
                if not data:
                    time.sleep(0.05)
                    self.stderr += os.read(fds[1], 65536)
                    raise AssertionError(f"the channel is closed; diagnostics: {self.stderr.decode()[-3000:]}")
                self.pending += self.decoder.feed(data)
        header, payload = self.pending.pop(0)
        if header["op"] == "need":  # this host has no files to give
            self.needed.append(header["path"])
            self.send({"op": "need_reply", "cell": header["cell"], "path": header["path"], "ok": False})
            return self.frame(max(0.0, deadline - time.monotonic()))
        return header, payload

    def until(self, op: str, timeout: float = 20.0, **fields: Any) -> Frame:
        """The next frame of this op and these fields; others are skipped."""
        while True:
            header, payload = self.frame(timeout)
            if header["op"] == op and all(header.get(key) == value for key, value in fields.items()):
                return header, payload

    def start(self) -> dict[str, Any]:
        """Fork an interpreter and wait for it; returns the header of ``ready``."""
        self.generation += 1
        self.send({"op": "start", "generation": self.generation})
        while True:
            header, _ = self.until("interpreter")
            assert header["state"] != "exited", self.stderr
            if header["state"] == "ready":
                return header

    def submit(self, code: str, **options: Any) -> str:
        """Send a cell for execution and return its id."""
        self.cells += 1
        cell = f"cell-{self.cells}"
        data = code.encode("utf-8", "surrogatepass")
        path = Path(self.roots["source"]) / f"bundle-{self.cells}" / "main.py"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        digest = options.pop("digest", digest)
        options.setdefault("store_history", not options.get("silent"))
        self.send({"op": "execute", "cell": cell, "path": str(path), "digest": digest, "options": options})
        return cell

    def collect(self, cell: str, timeout: float = 30.0) -> Cell:
        """Frames until the cell is done."""
        found = Cell(cell)
        while True:
            header, payload = self.frame(timeout)
            found.frames.append((header, payload))
            if header["op"] == "done" and header["cell"] == cell:
                return found
            assert header["op"] != "interpreter", (header, self.stderr)

    def run(self, code: str, timeout: float = 30.0, **options: Any) -> Cell:
        return self.collect(self.submit(code, **options), timeout)

    def ask(self, op: str, payload: bytes = b"", **fields: Any) -> Frame:
        """A request and its answer."""
        self.requests += 1
        self.send({"op": op, "request": self.requests, **fields}, payload)
        while True:
            header, answer = self.frame()
            if header.get("request") == self.requests:
                return header, answer

    def query(self, op: str, code: str = "", **fields: Any) -> dict[str, Any]:
        """A question to the interpreter; returns the content of the reply."""
        _, payload = self.ask(op, code.encode(), **fields)
        found: dict[str, Any] = json.loads(payload)
        return found
