"""IPython's completions: with jedi as soon as jedi has read its own files, without it until then.

Reading them takes a second at best, and many where files are dear or the machine is busy; what the namespace itself
tells is there at once. Afterwards each completion with jedi takes some hundredths of a second.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, List, Optional

FIRST_SECONDS = 1.5
AGAIN_SECONDS = 0.2


class Completions:
    """Answers from IPython's *completer*; the user's own ``use_jedi = False`` stays as it is."""

    def __init__(self, completer: Any) -> None:
        self._completer = completer
        self._reader: Optional[threading.Thread] = None

    def find(self, code: str, cursor: int) -> List[Any]:
        """Return the completions at *cursor*, with the common start and end that the protocol wants."""
        from IPython.core.completer import provisionalcompleter, rectify_completions

        completer = self._completer
        wanted = completer.use_jedi
        if wanted:
            completer.use_jedi = self._jedi_is_ready()
        try:
            with provisionalcompleter():
                return list(rectify_completions(code, completer.completions(code, cursor)))
        finally:
            completer.use_jedi = wanted

    def _jedi_is_ready(self) -> bool:
        wait = AGAIN_SECONDS
        if self._reader is None:
            wait = FIRST_SECONDS
            reader = threading.Thread(target=_read, name="jedi", daemon=True)
            try:
                reader.start()
            except RuntimeError:  # no more threads
                return False
            self._reader = reader
        self._reader.join(wait)
        return not self._reader.is_alive()


def _read() -> None:
    with contextlib.suppress(Exception):
        import jedi

        _keep_no_parse_trees()
        jedi.Interpreter("in", [{}]).complete(1, 2)


def _keep_no_parse_trees() -> None:
    """Let jedi not write what it has parsed into a home folder that ends with the sandbox: a quarter of the time that
    its first completion takes."""
    with contextlib.suppress(ImportError):
        import parso.cache

        if hasattr(parso.cache, "_save_to_file_system"):
            parso.cache._save_to_file_system = lambda *_, **__: None
