"""Where the source of cells is found by tools: inspect.getsource for classes too, linecache, open(co_filename)."""

from __future__ import annotations

import inspect
import linecache
import re
from typing import Any, List


class Sources:
    """Remembers the files of the cells that ran, newest last."""

    def __init__(self) -> None:
        self.paths: List[str] = []

    def add(self, path: str) -> None:
        """A cell whose source is at *path* is about to run."""
        self.paths.append(path)

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
        known = set(self.paths)
        for member in vars(cls).values():
            member = getattr(member, "__func__", getattr(member, "fget", member))
            code = getattr(member, "__code__", None)
            if code is not None and code.co_filename in known and _is_inside(member, cls):
                return str(code.co_filename)
        pattern = re.compile(r"^\s*class\s+%s\b" % re.escape(cls.__name__))
        for path in reversed(self.paths):
            if any(pattern.match(line) for line in linecache.getlines(path)):
                return path
        return ""


def _is_inside(member: Any, cls: type) -> bool:
    return str(getattr(member, "__qualname__", "")).startswith(cls.__qualname__ + ".")
