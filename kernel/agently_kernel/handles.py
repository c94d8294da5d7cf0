"""Live handles and the book in which the manager keeps them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.isolation import SandboxFacts
from agently_kernel.contract.network import NetworkMode
from agently_kernel.contract.protocols import CodeExecutionResource, ExecutionResourceProvider
from agently_kernel.contract.resource import (
    ExecutionResourceHandleView,
    ExecutionResourceRequirement,
    HandleStatus,
    ProviderSelection,
    Scope,
)

Key = tuple[str, int]
"""Reuse digest and the event loop that the resource's pipes belong to."""


class ReleaseReport(Frozen):
    """What a release of many handles came to; ``failed`` handles stay listed as quarantined."""

    released: tuple[ExecutionResourceHandleView, ...] = ()
    failed: tuple[ExecutionResourceHandleView, ...] = ()


class Handle:
    """A live resource and who uses it. Only the manager changes it; give :meth:`view` to others."""

    __slots__ = (
        "created_at",
        "error",
        "handle_id",
        "held",
        "key",
        "loop",
        "opened_as",
        "opening",
        "provider",
        "ref_count",
        "requirement",
        "resource",
        "selection",
        "status",
        "stray",
    )

    def __init__(self, requirement: ExecutionResourceRequirement, key: Key, loop: asyncio.AbstractEventLoop) -> None:
        self.handle_id = f"handle-{os.urandom(8).hex()}"
        self.requirement = requirement
        self.key = key
        self.loop = loop
        self.created_at = time.time()
        self.status = HandleStatus.ENSURING
        self.ref_count = 0
        self.held = False
        self.error = ""
        self.resource: CodeExecutionResource | None = None
        self.provider: ExecutionResourceProvider | None = None
        self.selection: ProviderSelection | None = None
        self.opening: asyncio.Task[Any] | None = None
        self.opened_as: ExecutionResourceRequirement | None = None  # the requirement as its provider saw it
        self.stray = False  # what a provider began for it has neither come to a resource nor ended

    @property
    def requirement_id(self) -> str:
        """Id of the requirement that this was made for."""
        return self.requirement.requirement_id

    @property
    def provider_id(self) -> str | None:
        """Id of the provider that was selected, None before."""
        return self.provider.provider_id if self.provider is not None else None

    @property
    def facts(self) -> SandboxFacts | None:
        """The facts observed of the resource, None before it was opened."""
        return getattr(self.resource, "facts", None)

    @property
    def network_modes(self) -> tuple[NetworkMode, ...]:
        """What its provider's sandboxes can be opened with, as probed."""
        probe = self.selection.probe if self.selection is not None else None
        return probe.capability.network_modes if probe is not None and probe.capability is not None else ()

    def view(self) -> ExecutionResourceHandleView:
        """Return an immutable picture of now."""
        return ExecutionResourceHandleView(
            handle_id=self.handle_id,
            requirement_id=self.requirement_id,
            kind=self.requirement.kind,
            scope=self.requirement.scope,
            owner_id=self.requirement.owner_id,
            resource_key=self.requirement.resource_key,
            provider_id=self.provider_id,
            status=self.status,
            ref_count=self.ref_count,
            created_at=self.created_at,
            facts=self.facts,
            selection=self.selection,
            error=self.error,
        )

    def __repr__(self) -> str:
        return f"<Handle {self.handle_id} {self.provider_id} {self.status.value} refs={self.ref_count}>"


@dataclass(slots=True)
class Declared:
    """A requirement in the book. ``kept``: declared by name, so it outlives its handles."""

    requirement: ExecutionResourceRequirement
    kept: bool
    declared_at: float
    status: HandleStatus = HandleStatus.DECLARED

    def view(self) -> ExecutionResourceHandleView:
        """Return the picture of a requirement that has no handle yet."""
        wanted = self.requirement
        return ExecutionResourceHandleView(
            handle_id="",
            requirement_id=wanted.requirement_id,
            kind=wanted.kind,
            scope=wanted.scope,
            owner_id=wanted.owner_id,
            resource_key=wanted.resource_key,
            provider_id=wanted.provider_id,
            status=self.status,
            ref_count=0,
            created_at=self.declared_at,
        )


class HandleBook:
    """Requirements, handles by id and by key, and one lock a key. Nothing stays in it that has ended well."""

    def __init__(self) -> None:
        self.declared: dict[str, Declared] = {}
        self.handles: dict[str, Handle] = {}
        self.by_key: dict[Key, Handle] = {}
        self._locks: dict[Key, tuple[asyncio.Lock, list[None]]] = {}

    @contextlib.asynccontextmanager
    async def locked(self, key: Key) -> AsyncIterator[None]:
        """Hold the lock of *key*; it exists only while somebody holds it or waits for it."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                self._locks.pop(key, None)

    def is_locked(self, key: Key) -> bool:
        """True while somebody holds the lock of *key* or waits for it."""
        return key in self._locks

    def drop(self, handle: Handle) -> None:
        """Forget a handle that was released, or that never became one."""
        self.handles.pop(handle.handle_id, None)
        self.unlink(handle)
        handle.opening = None
        entry = self.declared.get(handle.requirement_id)
        if entry is not None:
            entry.status = HandleStatus.DECLARED
            if not entry.kept and not self.of_requirement(handle.requirement_id):
                del self.declared[handle.requirement_id]

    def unlink(self, handle: Handle) -> None:
        """Take a handle off its key, so that the next ensure of the key makes a new one."""
        if self.by_key.get(handle.key) is handle:
            del self.by_key[handle.key]

    def of_requirement(self, requirement_id: str) -> tuple[Handle, ...]:
        """Return the handles that were made for a requirement."""
        return tuple(h for h in tuple(self.handles.values()) if h.requirement_id == requirement_id)

    def of_scope(self, scope: Scope, owner_id: str) -> tuple[Handle, ...]:
        """Return the handles that an owner has in a scope."""
        return tuple(
            h
            for h in tuple(self.handles.values())
            if h.requirement.scope == scope and h.requirement.owner_id == owner_id
        )

    def views(self) -> Iterator[ExecutionResourceHandleView]:
        """Yield a picture of every handle, then of every requirement without one, each in the order of making."""
        handles = tuple(self.handles.values())
        yield from (handle.view() for handle in handles)
        busy = {handle.requirement_id for handle in handles}
        for entry in tuple(self.declared.values()):
            if entry.requirement.requirement_id not in busy:
                yield entry.view()
