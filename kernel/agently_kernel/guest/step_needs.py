"""Init's side of a program that asks for files: one question at a time, passed on, answered when the host does."""

from __future__ import annotations

import os
import selectors
import socket
from typing import Dict

from .turns import Turns

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
"""The folder whose ``sitecustomize`` lets a program's Python ask."""


class StepNeeds:
    """The socket between init and the Python of one step, which asks for files below *root* that it misses."""

    def __init__(self, turns: Turns, step: str, root: str) -> None:
        self._turns = turns
        self._step = step
        self._root = root
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._theirs.set_inheritable(True)
        self._open = True

    def environment(self, env: Dict[str, str]) -> Dict[str, str]:
        """Return *env* with what the program's Python needs to ask."""
        path = [SITE, *filter(None, [env.get("PYTHONPATH")])]
        needs = "%d:%s" % (self._theirs.fileno(), self._root)
        return dict(env, PYTHONPATH=os.pathsep.join(path), AGENTLY_NEEDS=needs)

    def begin(self) -> None:
        """Listen: the program has been started, and holds the other end."""
        self._theirs.close()
        self._turns.watch(self._ours, selectors.EVENT_READ, self._ask)

    def _ask(self) -> None:
        try:
            path = self._ours.recv(4096).decode("utf-8")
        except BlockingIOError:
            return
        except (OSError, UnicodeDecodeError):
            path = ""
        if not path:  # nobody is left to ask
            self.close()
            return
        self._turns.watch(self._ours, 0, self._ask)  # until this one has been answered
        self._turns.writer.frame({
            "op": "step_need", "step": self._step, "path": path.lstrip("\0"), "writes": path.startswith("\0"),
        })

    def answer(self, ok: bool) -> None:
        """Let the program go on; *ok* says whether the file is there now."""
        if not self._open:
            return
        try:
            self._ours.send(b"1" if ok else b"0")
        except OSError:
            self.close()
        else:
            self._turns.watch(self._ours, selectors.EVENT_READ, self._ask)

    def close(self) -> None:
        """End it. Idempotent."""
        if self._open:
            self._open = False
            self._turns.watch(self._ours, 0, self._ask)
            self._ours.close()
            self._theirs.close()
