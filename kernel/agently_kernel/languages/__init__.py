"""Language adapters: a request becomes an immutable bundle with an argv plan. New languages come by entry point.

An outside package names its adapters (objects or classes without arguments) in the entry point group
``agently_kernel.languages``; the name of the entry point is the language id.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable

from agently_kernel.contract.bundle import normalise_tool_id
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.protocols import CodeRuntimeAdapter
from agently_kernel.languages.compiled import CppAdapter, GoAdapter
from agently_kernel.languages.scripts import BashAdapter, NodeAdapter, PythonAdapter

ENTRY_POINTS = "agently_kernel.languages"

__all__ = ["ENTRY_POINTS", "AdapterRegistry", "get_adapter", "languages", "register"]


class AdapterRegistry:
    """The adapters by language id and alias; one of an entry point is loaded when its language is first asked for."""

    def __init__(self, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> None:
        self._adapters: dict[str, CodeRuntimeAdapter] = {}
        self._names: dict[str, str] = {}
        for adapter in (PythonAdapter(), NodeAdapter(), GoAdapter(), CppAdapter(), BashAdapter()):
            self.register(adapter)
        found = importlib.metadata.entry_points(group=ENTRY_POINTS) if entry_points is None else entry_points
        self._outside = {point.name.strip().casefold(): point for point in found}

    def register(self, adapter: CodeRuntimeAdapter) -> None:
        """Add an adapter; the same object again is a no-op. Raises ConfigurationError for a taken or malformed name."""
        for part in ("language_id", "aliases", "prepare", "toolchain_requirements"):
            if not hasattr(adapter, part):
                raise ConfigurationError(f"the adapter {adapter!r} has no {part}; every language adapter must have it")
        try:
            names = [normalise_tool_id(adapter.language_id), *(alias.strip().casefold() for alias in adapter.aliases)]
        except ValueError as error:
            raise ConfigurationError(f"the adapter {adapter!r} has no usable language id: {error}") from error
        for name in names:
            holder = self._adapters.get(self._names.get(name, ""))
            if holder is not None and holder is not adapter:
                raise ConfigurationError(f"the language name {name!r} is taken by {holder!r}; choose another one")
        self._adapters[names[0]] = adapter
        self._names.update(dict.fromkeys(names, names[0]))

    def get(self, language: str) -> CodeRuntimeAdapter:
        """Return the adapter of a language (id or alias). Raises ConfigurationError that lists the languages."""
        try:
            name = normalise_tool_id(language)
        except ValueError as error:
            raise ConfigurationError(f"{error}; the languages are {', '.join(self.languages())}") from error
        plain = language.strip().casefold()
        for wanted in (name, plain):
            if wanted not in self._names and wanted in self._outside:
                self._load(wanted)
        found = self._names.get(name) or self._names.get(plain)
        if found is None:
            known = ", ".join(self.languages())
            raise ConfigurationError(f"no adapter for the language {language!r}; there are {known}")
        return self._adapters[found]

    def languages(self) -> tuple[str, ...]:
        """Return the language ids, sorted; one of an entry point that was not loaded yet by the entry point's name."""
        return tuple(sorted({*self._adapters, *(name for name in self._outside if name not in self._names)}))

    def _load(self, name: str) -> None:
        point = self._outside[name]
        try:
            loaded = point.load()
            adapter = loaded() if isinstance(loaded, type) else loaded
        except Exception as error:
            raise ConfigurationError(
                f"the adapter for {name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}; "
                "fix or uninstall the package it comes from"
            ) from error
        self.register(adapter)


@functools.cache
def _registry() -> AdapterRegistry:
    """The process's registry: languages are a property of what is installed, not of a session."""
    return AdapterRegistry()


def get_adapter(language: str) -> CodeRuntimeAdapter:
    """Return the adapter of a language (id or alias). Raises ConfigurationError that lists the languages."""
    return _registry().get(language)


def register(adapter: CodeRuntimeAdapter) -> None:
    """Add an adapter for this process. Raises ConfigurationError for a taken or malformed name."""
    _registry().register(adapter)


def languages() -> tuple[str, ...]:
    """Return the ids of all languages there are adapters for."""
    return _registry().languages()
