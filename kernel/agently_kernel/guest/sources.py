"""Where the source of cells is found by tools: inspect.getsource for classes too, linecache, open(co_filename)."""

from __future__ import annotations

import inspect
import linecache
import re
from collections import OrderedDict
from typing import Any

REMEMBERED_CHARACTERS = 64 * 1024 * 1024


class Sources:
    """Remembers the cells that ran, newest last, with their text: the host prunes files of cells that are long over."""

    def __init__(self) -> None:
        self._sizes: "OrderedDict[str, int]" = OrderedDict()
        self._total = 0

    def add(self, path: str, source: str) -> None:
        """The cell at *path* is about to run. Its text is given to ``linecache`` for good, not to be checked."""
        self._total += len(source) - self._sizes.pop(path, 0)
        self._sizes[path] = len(source)
        linecache.cache[path] = (len(source), None, source.splitlines(True), path)
        while self._total > REMEMBERED_CHARACTERS and len(self._sizes) > 1:
            old, size = self._sizes.popitem(last=False)
            self._total -= size
            linecache.cache.pop(old, None)

    def install(self) -> None:
        """Let ``inspect.getfile`` answer for classes that a cell defined: ``__main__`` has no file of its own."""
        original = inspect.getfile

        def getfile(object: Any) -> str:
            try:
                return original(object)
            except (TypeError, OSError):
                path = self.file_of_class(object) if inspect.isclass(object) else ""
                if not path:
                    raise
                return path

        getfile.__doc__ = original.__doc__
        inspect.getfile = getfile

    def file_of_class(self, cls: type) -> str:
        """Return the file of the cell that defined *cls*, or nothing."""
        if getattr(cls, "__module__", "") != "__main__":
            return ""
        for member in vars(cls).values():
            member = getattr(member, "__func__", getattr(member, "fget", member))
            code = getattr(member, "__code__", None)
            if code is not None and code.co_filename in self._sizes and _is_inside(member, cls):
                return str(code.co_filename)
        pattern = re.compile(r"^\s*class\s+%s\b" % re.escape(cls.__name__))
        for path in reversed(self._sizes):
            if any(pattern.match(line) for line in linecache.getlines(path)):
                return path
        return ""


def _is_inside(member: Any, cls: type) -> bool:
    return str(getattr(member, "__qualname__", "")).startswith(cls.__qualname__ + ".")
