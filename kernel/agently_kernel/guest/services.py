"""What the two kinds of interpreter have in common: requests, outcomes, and the way out for what a cell shows."""

from __future__ import annotations

import queue
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import bundles, wire
from .sources import Sources
from .streams import Router, text_of
from .tracebacks import shortened_error

MAX_PROMPT = 4096
SMALL_RESULT = 65536


class Request(NamedTuple):
    """A cell to run: its id, its file, and the options of the ``execute`` message."""

    cell: str
    path: str
    digest: str
    silent: bool
    store_history: bool
    allow_stdin: bool
    user_expressions: Dict[str, str]
    execution_count: Optional[int]
    subshell: str = ""  # the one that it runs in, empty for the main thread
    told: Dict[str, Any] = {}  # what the host tells of the requests behind it, by channel: header and metadata

    @classmethod
    def of(cls, header: Dict[str, Any]) -> "Request":
        """Read an ``execute`` header; missing options have the defaults of Jupyter's execute_request."""
        options = header["options"]
        count = options.get("execution_count")
        silent = bool(options.get("silent", False))
        return cls(
            header["cell"], header["path"], header["digest"], silent,
            bool(options.get("store_history", not silent)) and not silent, bool(options.get("allow_stdin", False)),
            dict(options.get("user_expressions") or {}), count if isinstance(count, int) else None,
            str(options.get("subshell") or ""), dict(options.get("request") or {}),
        )


class Outcome(NamedTuple):
    """How a cell ended; ``reply`` is the payload of ``done``, ``error`` what ended its code early."""

    ok: bool
    reply: Dict[str, Any]
    error: Optional[BaseException] = None


class InputRefused(Exception):
    """Nobody can be asked; the message is for the user."""


class Services:
    """Displays, errors, input and comms of the interpreter, as frames. Used from any thread."""

    def __init__(self, router: Router, sources: Sources) -> None:
        self.router = router
        self.sources = sources
        self.allow_stdin = False
        self.look_for: Callable[[Any], None] = lambda path: None  # asks for a file that a cell is going to look for
        self.repair: Callable[[], None] = lambda: None  # undoes what a cell did to built-in names that we need
        self.result_is_last: Callable[[], bool] = lambda: False  # whether nothing runs between a result and the end
        self.not_allowed: Callable[[str], BaseException] = InputRefused
        self._answers: "queue.SimpleQueue[Tuple[Optional[str], str]]" = queue.SimpleQueue()
        self._asking = False
        self.beside: Dict[str, str] = {}  # the subshells of the cells that run in them

    def subshell(self) -> str:
        """Return the subshell whose running cell the calling code belongs to, empty elsewhere."""
        return self.beside.get(self.router.owner(), "")

    def send(self, header: Dict[str, Any], payload: bytes = b"", *, hold: bool = False) -> bool:
        """Send a frame after the text before it. What is too large is not sent but told on stderr; returns whether
        sent."""
        try:
            self.router.send(header, payload, hold=hold)
            return True
        except wire.WireError:
            megabytes = len(payload) / 1048576
            sys.stderr.write(
                "An output of %.0f MiB was not shown: at most %d MiB fit into one output.\n"
                % (megabytes, wire.MAX_PAYLOAD >> 20)
            )
            return False

    def display(
        self, kind: str, data: Any, metadata: Any = None, display_id: Optional[str] = None, cell: Optional[str] = None
    ) -> None:
        """Show a MIME bundle; *kind* is display_data, update_display_data or execute_result."""
        if not self.router.channel.open:
            if isinstance(data, dict):  # a forked child: its text is all that can be shown
                sys.stdout.write(text_of(data.get("text/plain", ""), "") + "\n")
            return
        header = {"op": "display", "kind": kind, "cell": cell or self.router.owner()}
        if display_id is not None:
            header["display_id"] = text_of(display_id, "")[:256]
        payload = bundles.bundle(data, metadata)
        if kind == "execute_result" and len(payload) <= SMALL_RESULT and self.result_is_last():
            self.send(header, payload, hold=True)  # the cell's end follows at once and takes it along
        else:
            self._show(header, payload)

    def _show(self, header: Dict[str, Any], payload: bytes = b"") -> None:
        """Send what is seen, and wait until init has passed it on: a C library that prints next prints after it."""
        self.send(header, payload)
        self.router.channel.fence()

    def clear(self, wait: bool) -> None:
        """Clear the output of the calling code's cell."""
        self._show({"op": "clear", "cell": self.router.owner(), "wait": bool(wait)})

    def error(self, name: str, value: str, traceback: List[str]) -> None:
        """Show an exception as the cell's error; in a forked child, whose cell goes on, as text. What ends a child in
        the ordinary way, or by a Stop that its parent shows, is not shown."""
        content = shortened_error(name, value, traceback)
        if not self.router.channel.open:
            if name not in ("KeyboardInterrupt", "SystemExit"):
                sys.stderr.write("\n".join(content["traceback"]) + "\n")
            return
        self._show({"op": "error", "cell": self.router.owner()}, bundles.dumps(content))

    # -- input ---------------------------------------------------------------------------------------------------------

    def ask(self, prompt: Any = "", password: bool = False) -> str:
        """Ask the user for a line. Raises what ``not_allowed`` makes when nobody can be asked; can be interrupted."""
        cell = self.router.running
        if self.subshell():
            raise self.not_allowed("A cell of a subshell cannot ask for input; ask in a cell of the notebook.")
        if not self.allow_stdin or not cell or not self.router.channel.open:
            raise self.not_allowed(
                "raw_input was called, but this frontend does not support input requests."
                if self.router.channel.open else "A forked child process cannot ask for input."
            )
        while not self._answers.empty():
            self._answers.get()  # an answer to a question that was interrupted
        self._asking = True
        try:
            self.send({"op": "input", "cell": cell, "prompt": text_of(prompt, "")[:MAX_PROMPT], "password": password})
            line, reason = self._answers.get()
        finally:
            self._asking = False
        if line is None:
            raise self.not_allowed(reason)
        return line

    def input(self, prompt: object = "", /) -> str:
        """Read a line from the user, as the built-in ``input``."""
        return self.ask(prompt)

    def getpass(self, prompt: str = "Password: ", stream: Any = None, **_: Any) -> str:
        """Read a line from the user without showing it, as ``getpass.getpass``."""
        return self.ask(prompt, password=True)

    def answer(self, line: Optional[str], reason: str = "") -> None:
        """Deliver the user's line, or None with the reason of the refusal. Called by the reader thread."""
        self._answers.put((line, reason))
