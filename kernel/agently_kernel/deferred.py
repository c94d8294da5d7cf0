"""Packages whose submodules are wanted, but not all that the package itself loads when it is imported."""

from __future__ import annotations

import importlib.util
import sys
import threading
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def defer(*names: str) -> None:
    """Let submodules of the packages *names* be imported without what ``__init__`` would load beside them.

    A package's own ``__init__`` runs when anything of it is asked for that is not a submodule, so nothing is missing;
    it is only not loaded in vain. A package that is loaded already, or is not installed, is left alone.
    """
    for name in names:
        spec = None if name in sys.modules else importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None and spec.submodule_search_locations is not None:
            sys.modules[name] = _deferred(spec, spec.loader)


def _deferred(spec: ModuleSpec, loader: Loader) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    guard = threading.RLock()
    begun = False

    def load(attribute: str) -> Any:
        nonlocal begun
        special = attribute.startswith("__") and attribute not in ("__version__", "__all__")
        if special:  # asked for by whoever looks through all modules
            raise AttributeError(f"module {spec.name!r} has no attribute {attribute!r}")
        with guard:
            if not begun:
                begun = True
                del module.__dict__["__getattr__"]
                loader.exec_module(module)
        return getattr(module, attribute)

    module.__dict__["__getattr__"] = load
    return module
