"""How an IPython shows things and asks: an ipykernel speaks messages, a terminal prints and reads."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class FrontEnd(Protocol):
    """What the service needs of the IPython it was loaded into."""

    kernel: Any

    def parent(self) -> Mapping[str, Any]:
        """Return the request that is being answered; main thread."""

    def can_ask(self) -> bool:
        """Tell whether a person can be asked for a line right now; main thread."""

    def read(self, prompt: str, password: bool) -> str:
        """Read a line; main thread. Raises an exception when that is not possible."""

    def send(
        self, kind: str, content: Mapping[str, Any], parent: Mapping[str, Any], metadata: Mapping[str, Any] | None,
        buffers: Sequence[bytes],
    ) -> None:
        """Show a message of iopub's kinds; from any thread, in order."""


class KernelFrontEnd:
    """An ipykernel kernel. Its publishing socket takes messages from any thread, while the main one waits."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def parent(self) -> Mapping[str, Any]:
        """Return the execute_request that runs now."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = self.kernel.get_parent("shell")
        return dict(parent) if parent else {}

    def can_ask(self) -> bool:
        """True when the request allows the input box."""
        return bool(getattr(self.kernel, "_allow_stdin", False))

    def read(self, prompt: str, password: bool) -> str:
        """Ask in the front end's input box."""
        ask = self.kernel.getpass if password else self.kernel.raw_input
        return str(ask(prompt))

    def send(
        self, kind: str, content: Mapping[str, Any], parent: Mapping[str, Any], metadata: Mapping[str, Any] | None,
        buffers: Sequence[bytes],
    ) -> None:
        """Send on iopub as an answer to *parent*."""
        self.kernel.session.send(
            self.kernel.iopub_socket, kind, dict(content), parent=dict(parent), ident=self.kernel._topic(kind),
            metadata=dict(metadata) if metadata else None, buffers=list(buffers) or None,
        )


class TerminalFrontEnd:
    """IPython in a terminal, or any program that embeds it."""

    kernel = None

    def parent(self) -> Mapping[str, Any]:
        """There are no requests here."""
        return {}

    def can_ask(self) -> bool:
        """True when a person sits at the terminal."""
        return sys.stdin is not None and sys.stdin.isatty()

    def read(self, prompt: str, password: bool) -> str:
        """Read from the terminal."""
        return getpass.getpass(prompt) if password else input(prompt)

    def send(
        self, kind: str, content: Mapping[str, Any], parent: Mapping[str, Any], metadata: Mapping[str, Any] | None,
        buffers: Sequence[bytes],
    ) -> None:
        """Print what can be printed."""
        stream = sys.stderr if content.get("name") == "stderr" else sys.stdout
        if kind == "stream":
            print(content["text"], end="", file=stream, flush=True)
        elif kind in ("display_data", "execute_result"):
            print(content["data"].get("text/plain", ""), flush=True)
        elif kind == "error":
            print("\n".join(content["traceback"]), file=sys.stderr, flush=True)


def front_end_of(shell: Any) -> FrontEnd:
    """Return the front end of an InteractiveShell."""
    kernel = getattr(shell, "kernel", None)
    return KernelFrontEnd(kernel) if kernel is not None else TerminalFrontEnd()
