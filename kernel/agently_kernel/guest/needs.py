"""Asking for files at the moment of need: a cell opens a file that is not here, and the host may have it to give.

An audit hook sees every ``open`` of Python before it happens. It asks for plain relative names that are missing, waits
for the answer, and lets the very same call go on, which then finds the file or fails as it would have. A call that adds
to a file, or changes it in place, is only told of: nothing that is given can be written to. A module that no other
finder knows is asked for in the same way.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import queue
import sys
import threading
import time
from typing import Any, Optional, Set, Tuple

from .streams import Router

MOST_QUESTIONS = 1000
"""How many missing names one cell may ask for: the host, which asks a person about few of them, bounds that itself."""
ANSWER_SECONDS = 3600.0
"""How long a file is waited for: longer than any person is asked, so that a host which never answers holds no cell for
ever. The call then goes on as if nobody had the file."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ANEW = os.O_TRUNC | os.O_EXCL
"""What is opened so has no content that would be missed."""


class Needs:
    """The hook and the way to the host. ``root`` is the working folder that notebook-relative names start from."""

    def __init__(self, router: Router, root: str) -> None:
        self._router = router
        self._root = root.rstrip("/") + "/"
        self._answers: "queue.SimpleQueue[Tuple[str, bool]]" = queue.SimpleQueue()
        self._cell = ""
        self._asked: Set[Tuple[str, bool]] = set()

    def install(self) -> None:
        """Begin to watch. A hook cannot be taken away again; between cells it does nothing."""
        main = threading.main_thread()

        def hook(event: str, arguments: Tuple[Any, ...]) -> None:
            if event == "open" and threading.current_thread() is main:
                self._opening(arguments[0], arguments[2])
            elif event == "sqlite3.connect" and threading.current_thread() is main:
                self._opening(arguments[0], os.O_RDONLY)  # it would make an empty database

        sys.addaudithook(hook)
        sys.meta_path.append(self)  # asked last, and only for what it has

    def look_for(self, path: Any) -> None:
        """Ask for *path* before a library looks whether it exists, which no hook sees; whatever it is, if not a name,
        is left alone."""
        if threading.current_thread() is threading.main_thread():
            self._opening(path, os.O_RDONLY)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module that nobody else finds and that the host gives, else None."""
        if threading.current_thread() is not threading.main_thread() or not self._router.running:
            return None
        for folder in [""] if path is None else path:
            if path is not None and not (isinstance(folder, str) and folder.startswith(self._root)):
                continue  # a package of the interpreter
            place = os.path.join(folder, name.rpartition(".")[2])
            for file in (place + ".py", place + "/__init__.py"):
                self._opening(file, os.O_RDONLY)
                if os.path.isfile(file):
                    importlib.invalidate_caches()
                    return importlib.machinery.PathFinder.find_spec(name, path, target)
        return None

    def answer(self, path: str, ok: bool) -> None:
        """Deliver the host's answer. Called by the reader thread."""
        self._answers.put((path, ok))

    def _opening(self, path: Any, flags: Any) -> None:
        cell = self._router.running
        if not cell or not isinstance(path, str) or not isinstance(flags, int):
            return
        writes = bool(flags & _WRITES)
        if writes and flags & _ANEW:
            return
        name = self._name(path)
        if name is None or not self._router.channel.open:
            return
        if cell != self._cell:
            self._cell, self._asked = cell, set()
        if (name, writes) in self._asked or len(self._asked) >= MOST_QUESTIONS:
            return
        self._asked.add((name, writes))
        self._router.send({"op": "need", "cell": cell, "path": name, "writes": writes})
        end = time.monotonic() + ANSWER_SECONDS
        try:  # a Stop breaks in here as it does in any other wait
            while self._answers.get(timeout=max(0.0, end - time.monotonic()))[0] != name:
                continue  # the answer to a question that a Stop has ended
        except queue.Empty:
            pass

    def _name(self, path: str) -> Optional[str]:
        """Return the name below the working folder that *path* means and that is missing, else None."""
        if "\0" in path or len(path) > 4000 or (path.startswith("/") and not path.startswith(self._root)):
            return None
        try:
            full = os.path.normpath(os.path.join(os.getcwd(), path))
            full.encode("utf-8")
        except (OSError, UnicodeEncodeError):
            return None
        if not full.startswith(self._root) or os.path.exists(full):  # a link that leads nowhere is missing too
            return None
        return full[len(self._root) :]
