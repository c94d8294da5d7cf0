"""Built-in names that the interpreter cannot do without, kept so that a cell cannot disable it for good."""

from __future__ import annotations

import builtins
from typing import Any, Dict, List

FREE = frozenset(
    ("print", "open", "input", "help", "exit", "quit", "breakpoint", "display", "get_ipython", "__import__", "_")
)
"""Names that programs replace on purpose (a rich ``print``, an ``open`` that knows other places, import hooks)."""
_ABSENT = object()


class VitalBuiltins:
    """Remembers the built-in names of now; :meth:`restore` puts back those that were replaced or deleted since."""

    def __init__(self) -> None:
        self._names = builtins.__dict__
        self._kept: Dict[str, Any] = {name: value for name, value in self._names.items() if name not in FREE}

    def restore(self) -> List[str]:
        """Return the names that had to be put back. Calls nothing that a cell could have replaced."""
        names = self._names
        changed = [name for name, value in self._kept.items() if names.get(name, _ABSENT) is not value]
        for name in changed:
            names[name] = self._kept[name]
        return changed
