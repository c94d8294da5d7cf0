"""What IPython and plot libraries keep for the one cell that runs, kept apart for cells that run beside each other."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from IPython.core.payload import PayloadManager

MOST_CELLS = 100_000
"""How far a cell's number may be ahead of what this interpreter has run."""


class OfThread(threading.local):
    """What belongs to the cell that a thread runs: the main thread's, and those of subshells beside it."""

    source: Optional[str] = None
    path = ""
    count: Optional[int] = None
    next_count: Optional[int] = None  # as IPython counts on in the cell
    stopped = False
    formatting = failed = False  # of the value of a cell
    bundle: Optional[Tuple[Any, Any]] = None
    shown_error: Optional[List[str]] = None
    coroutine: Any = None
    transformed: Optional[Tuple[str, str]] = None  # a cell's source and what IPython made of it, until it asks again
    awaits: Optional[Tuple[str, bool]] = None  # what it made, and whether that has to be awaited, until it asks again

    def begin(self, source: str, path: str, count: Optional[int]) -> None:
        """A cell begins on the calling thread."""
        self.source, self.path, self.count, self.next_count = source, path, count, count
        self.stopped = self.formatting = self.failed = False
        self.bundle = self.shown_error = self.coroutine = self.transformed = self.awaits = None


HERE = OfThread()


class Payloads(PayloadManager):  # type: ignore[misc]
    """What a cell adds to its reply; that of a cell in a subshell apart from the others'."""

    def __init__(self, subshell: Callable[[], str]) -> None:
        super().__init__()
        self._subshell = subshell
        self._of: Dict[str, List[Dict[str, Any]]] = {}

    @property
    def _payload(self) -> List[Dict[str, Any]]:
        return self._of.setdefault(self._subshell(), [])

    @_payload.setter
    def _payload(self, _: Any) -> None:
        self._of.pop(self._subshell(), None)


class Figures:
    """``Gcf.figs`` of pyplot, its figures by number: each subshell has figures, and a current one, of its own.

    The inline backend shows and closes all that there are at the end of each cell, and a cell of a console would take
    what the notebook's cell has half drawn.
    """

    def __init__(self, subshell: Callable[[], str]) -> None:
        self._subshell = subshell
        self._of: "Dict[str, OrderedDict[Any, Any]]" = {}

    @property
    def _here(self) -> "OrderedDict[Any, Any]":
        return self._of.setdefault(self._subshell(), OrderedDict())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here, name)

    def __getitem__(self, number: Any) -> Any:
        return self._here[number]

    def __setitem__(self, number: Any, manager: Any) -> None:
        self._here[number] = manager

    def __delitem__(self, number: Any) -> None:
        del self._here[number]

    def __contains__(self, number: Any) -> bool:
        return number in self._here

    def __iter__(self) -> Iterator[Any]:
        return iter(self._here)

    def __reversed__(self) -> Iterator[Any]:
        yield from reversed(self._here)

    def __len__(self) -> int:
        return len(self._here)


class Show:
    """``show`` of the inline backend, which keeps on it what is to be shown at the cell's end."""

    _draw_called = property(lambda self: bool(self._marks[0]), lambda self, drawn: self._mark(0, drawn))
    _to_draw = property(lambda self: self._marks[1], lambda self, figures: self._mark(1, figures))

    def __init__(self, plain: Callable[..., None], subshell: Callable[[], str]) -> None:
        self._plain = plain
        self._subshell = subshell
        self._of: Dict[str, List[Any]] = {}
        self.__doc__ = plain.__doc__

    def __call__(self, close: Any = None, block: Any = None) -> None:
        self._plain(close, block)

    @property
    def _marks(self) -> List[Any]:
        return self._of.setdefault(self._subshell(), [False, []])

    def _mark(self, which: int, value: Any) -> None:
        self._marks[which] = value


def keep_hooks_set(shell: Any) -> None:
    """Let ``sys.displayhook`` and the built-in names of IPython stay as they are in a cell.

    It sets and resets them around each cell, by a count that cells beside each other would get wrong.
    """
    shell.builtin_trap.__enter__()
    shell.display_trap.__enter__()


def store_in_place(manager: Any) -> None:
    """Let each cell's source be ``In[n]`` of its own number, whatever ran beside it, or in an interpreter before."""
    plain, lock = manager.store_inputs, threading.Lock()

    def store_inputs(line_num: int, source: str, source_raw: Optional[str] = None) -> None:
        with lock:
            lists = (manager.input_hist_parsed, manager.input_hist_raw)
            for inputs in lists:
                inputs.extend([""] * max(0, min(line_num + 1 - len(inputs), MOST_CELLS)))
            end = len(lists[0])
            plain(line_num, source, source_raw)
            for inputs in lists:
                if len(inputs) > end > line_num and not inputs[line_num]:
                    inputs[line_num] = inputs.pop()

    manager.store_inputs = store_inputs
