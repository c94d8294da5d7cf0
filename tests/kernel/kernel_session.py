"""A client of a real kernel process, for tests: runs cells, keeps every message, answers input."""

from __future__ import annotations

import os
import queue
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.manager import KernelManager

CHANNELS = ("iopub", "shell", "stdin", "control")


class Run:
    """Everything seen for one execute_request."""

    def __init__(self, message_id: str, answers: Sequence[str]) -> None:
        self.message_id = message_id
        self.answers = list(answers)
        self.messages: list[dict[str, Any]] = []
        self.reply: dict[str, Any] = {}
        self.prompts: list[tuple[str, bool]] = []
        self.input_requests: list[dict[str, Any]] = []
        self.idle = False
        self.started = time.monotonic()
        self.seconds = 0.0

    def text(self, name: str = "stdout") -> str:
        """Return the stream's text."""
        return "".join(m["content"]["text"] for m in self.of("stream") if m["content"]["name"] == name)

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the iopub messages of these kinds."""
        return [message for message in self.messages if message["msg_type"] in kinds]

    @property
    def kinds(self) -> list[str]:
        """The kinds of iopub messages without status and execute_input, in order."""
        return [m["msg_type"] for m in self.messages if m["msg_type"] not in ("status", "execute_input")]

    @property
    def result(self) -> str:
        """The plain text of the result, empty when there is none."""
        return "".join(str(m["content"]["data"].get("text/plain", "")) for m in self.of("execute_result"))

    @property
    def error(self) -> tuple[str, str]:
        """Name and value of the last error shown; empty when there is none."""
        shown = self.of("error")
        return (shown[-1]["content"]["ename"], shown[-1]["content"]["evalue"]) if shown else ("", "")

    @property
    def status(self) -> str:
        """The reply's status."""
        return str(self.reply.get("status", ""))


class KernelSession:
    """One kernel process and its client. Use it as a context manager."""

    def __init__(
        self,
        folder: Path,
        *,
        kernel: str = "agently",
        settings: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> None:
        self.manager = KernelManager(kernel_name=kernel)
        self.log = folder / "kernel.log"
        self.runs: dict[str, Run] = {}
        self.other: list[dict[str, Any]] = []
        self.replies: dict[str, dict[str, Any]] = {}
        arguments = [f"--AgentlyKernel.{name}={value}" for name, value in (settings or {}).items()]
        self._log_file = self.log.open("wb")  # a restart uses it again
        self.manager.start_kernel(
            cwd=str(folder),
            env={**os.environ, **(env or {})},
            extra_arguments=arguments,
            stdout=subprocess.DEVNULL,
            stderr=self._log_file,
        )
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.poller = zmq.Poller()
        for name in CHANNELS:
            self.poller.register(getattr(self.client, f"{name}_channel").socket, zmq.POLLIN)
        if ready:
            self.client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        return int(self.manager.provisioner.pid)

    def __enter__(self) -> KernelSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut the kernel down as a front end does."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=False)
        self._log_file.close()

    # -- cells

    def send(
        self, code: str, *, answers: Sequence[str] = (), subshell: str | None = None,
        metadata: Mapping[str, Any] | None = None, **options: Any,
    ) -> Run:
        """Send a cell without waiting. ``answers`` go to its input prompts in order and allow stdin."""
        options.setdefault("allow_stdin", bool(answers))
        if subshell is None and metadata is None:
            run = Run(self.client.execute(code, **options), answers)
        else:
            content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, **options}
            message = self.client.session.msg("execute_request", content, metadata=dict(metadata or {}))
            if subshell is not None:
                message["header"]["subshell_id"] = subshell
            self.client.shell_channel.send(message)
            run = Run(message["header"]["msg_id"], answers)
        self.runs[run.message_id] = run
        return run

    def run(
        self, code: str, *, within: float = 60.0, during: Callable[[Run], None] | None = None, **options: Any
    ) -> Run:
        """Run a cell to its end; ``during`` is called after each look at the channels."""
        return self.wait(self.send(code, **options), within=within, during=during)

    def wait(self, run: Run, *, within: float = 60.0, during: Callable[[Run], None] | None = None) -> Run:
        """Wait for reply and idle of *run*."""
        end = time.monotonic() + within
        while not (run.reply and run.idle):
            self.look()
            if during is not None:
                during(run)
            assert time.monotonic() < end, f"no answer within {within} s; seen: {run.kinds} {run.reply}"
        run.seconds = time.monotonic() - run.started
        return run

    def settle(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Keep looking for some time, or until something is so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            self.look()

    # -- other requests

    def ask(
        self, kind: str, content: Mapping[str, Any], *, channel: str = "shell", within: float = 20.0,
        subshell: str | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the content of its reply."""
        message = self.client.session.msg(kind, dict(content))
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        getattr(self.client, f"{channel}_channel").send(message)
        end = time.monotonic() + within
        while message["header"]["msg_id"] not in self.replies:
            self.look()
            assert time.monotonic() < end, f"{kind} was not answered within {within} s"
        return dict(self.replies[message["header"]["msg_id"]]["content"])

    def interrupt(self) -> None:
        """Press Stop."""
        self.manager.interrupt_kernel()

    def look(self, milliseconds: int = 20) -> None:
        """Take what is there on all channels."""
        ready = dict(self.poller.poll(milliseconds))
        for name in CHANNELS:
            channel = getattr(self.client, f"{name}_channel")
            if channel.socket in ready:
                for _ in range(500):
                    try:
                        self._take(name, channel.get_msg(timeout=0))
                    except queue.Empty:
                        break

    def _take(self, channel: str, message: dict[str, Any]) -> None:
        parent = message["parent_header"].get("msg_id", "")
        run = self.runs.get(parent)
        if channel == "stdin" and run is not None:
            run.input_requests.append(message)
            run.prompts.append((message["content"]["prompt"], message["content"]["password"]))
            if len(run.prompts) <= len(run.answers):
                self.client.input(run.answers[len(run.prompts) - 1])
        elif channel in ("shell", "control"):
            self.replies[parent] = message
            if run is not None and message["msg_type"] == "execute_reply":
                run.reply = message["content"]
        elif run is not None:
            run.messages.append(message)
            run.idle |= message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
        else:
            self.other.append(message)
