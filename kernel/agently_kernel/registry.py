"""Where providers come from: objects that were registered, and entry points that are imported when first asked for."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Iterable, Iterator

from agently_kernel.contract.errors import ConfigurationError, ExecutionResourceUnavailable
from agently_kernel.contract.protocols import ExecutionResourceProvider

GROUP = "agently_kernel.providers"
DISTRIBUTION = "agently-kernel"
DEFAULT_ORDER = ("bubblewrap", "runsc", "gvisor", "docker", "landlock", "seatbelt", "remote", "trusted_local")
"""The chain where none is configured: what isolates and starts fastest first. Other installed ids follow by name."""


class ProviderRegistry:
    """Finds providers by id. Nothing is imported before its id is asked for; a failed import is kept as a reason."""

    def __init__(self, *, entry_points: bool = True) -> None:
        self._use_entry_points = entry_points
        self._guard = threading.RLock()
        self._registered: dict[str, ExecutionResourceProvider] = {}
        self._loaded: dict[str, ExecutionResourceProvider | ExecutionResourceUnavailable] = {}
        self._own: dict[str, importlib.metadata.EntryPoint] | None = None
        self._all: dict[str, importlib.metadata.EntryPoint] | None = None

    def register(self, provider: ExecutionResourceProvider) -> None:
        """Add *provider*; the same object again is a no-op.

        Raises ValueError when another object has this id or an attribute of a provider is missing.
        """
        _check(provider)
        name = provider.provider_id
        with self._guard:
            known = self._registered.get(name)
            if known is provider:
                return
            if known is not None or name in self._entry_points():
                raise ValueError(f"a provider with the id {name!r} is registered already; give yours an id of its own")
            self._registered[name] = provider

    def ids(self) -> tuple[str, ...]:
        """Return all known ids in the default order."""
        return tuple(self.in_order())

    def in_order(self) -> Iterator[str]:
        """Yield all known ids in the default order: registered objects, then our own, then other installed ones.

        What is installed is only looked for when the ones before it have been taken.
        """
        with self._guard:
            registered, own = tuple(self._registered), self._own_entry_points()
        yield from registered
        ours = [name for name in DEFAULT_ORDER if name in own]
        yield from ours
        with self._guard:
            installed = set(self._entry_points())
        yield from sorted(installed.difference(ours))

    def get(self, provider_id: str) -> ExecutionResourceProvider | None:
        """Return the provider, or None for an unknown id.

        Raises ExecutionResourceUnavailable (with ``details['remedy']``) when it is installed but cannot be imported.
        """
        found = self._registered.get(provider_id) or self._loaded.get(provider_id)
        if found is None:
            with self._guard:
                entry = self._own_entry_points().get(provider_id) or self._entry_points().get(provider_id)
                if entry is None:
                    return None
                found = self._loaded.setdefault(provider_id, _load(entry))
        if isinstance(found, ExecutionResourceUnavailable):
            raise found
        return found

    def _own_entry_points(self) -> dict[str, importlib.metadata.EntryPoint]:
        """Our own distribution's entry points: found without reading the metadata of everything that is installed."""
        if self._own is None:
            self._own = {}
            if self._use_entry_points:
                try:
                    ours: Iterable[importlib.metadata.EntryPoint] = importlib.metadata.distribution(
                        DISTRIBUTION
                    ).entry_points
                except importlib.metadata.PackageNotFoundError:
                    ours = ()
                self._own = {entry.name: entry for entry in ours if entry.group == GROUP}
        return self._own

    def _entry_points(self) -> dict[str, importlib.metadata.EntryPoint]:
        if self._all is None:
            self._all = {}
            if self._use_entry_points:
                for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
                    self._all.setdefault(entry.name, entry)
                self._all.update(self._own_entry_points())  # nobody replaces one of ours by installing a package
        return self._all


def _check(provider: object) -> None:
    missing = [
        name
        for name in (
            "provider_id",
            "supported_kinds",
            "async_probe",
            "async_ensure",
            "async_health_check",
            "async_release",
        )
        if not hasattr(provider, name)
    ]
    if missing:
        raise ValueError(f"{type(provider).__name__} is not a provider: it lacks {', '.join(missing)}")


def _load(entry: importlib.metadata.EntryPoint) -> ExecutionResourceProvider | ExecutionResourceUnavailable:
    try:
        made = entry.load()
        provider: ExecutionResourceProvider = made() if isinstance(made, type) else made
        _check(provider)
        if provider.provider_id != entry.name:
            raise ConfigurationError(
                f"the entry point {entry.name!r} gives a provider that calls itself {provider.provider_id!r}"
            )
        return provider
    except ModuleNotFoundError as error:
        remedy = f"install the module {error.name!r} into the environment of the kernel"
        reason = f"the provider {entry.name!r} needs the module {error.name!r}, which is not installed"
    except Exception as error:
        remedy = f"repair or uninstall the package that brings {entry.value}"
        reason = f"the provider {entry.name!r} could not be imported from {entry.value}: {type(error).__name__}"
        if isinstance(error, ConfigurationError | ValueError):
            reason += f": {error}"
    return ExecutionResourceUnavailable(reason + ".", details={"remedy": remedy})
