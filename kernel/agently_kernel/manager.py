"""ExecutionResourceManager: declares, ensures, reuses, checks and releases managed resources for their owners."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from agently_kernel.contract.approval import ApprovalDecision, Gate
from agently_kernel.contract.errors import (
    ConfigurationError,
    ExecutionResourceError,
    ExecutionResourceReleaseError,
)
from agently_kernel.contract.events import EventHook, EventType
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.resource import (
    ExecutionResourceHandleView,
    ExecutionResourceRequirement,
    HandleStatus,
    ReuseDigests,
    Scope,
)
from agently_kernel.deadlines import Overdue, SyncBridge, bounded
from agently_kernel.handles import Declared, Handle, HandleBook, Key, ReleaseReport
from agently_kernel.hooks import EventHub
from agently_kernel.opening import ManagerDeadlines, Opener, ProbeEntries
from agently_kernel.policy import PolicyApproval
from agently_kernel.registry import ProviderRegistry
from agently_kernel.spares import Spares
from agently_kernel.uninterrupted import uninterrupted

T = TypeVar("T")


class ExecutionResourceManager:
    """The one owner of managed resources. An explicit object: make one a process, end it with :meth:`aclose`.

    Every ``async_`` operation has a synchronous form for callers without an event loop, which runs on a private loop
    (:class:`~agently_kernel.deadlines.SyncBridge`). A resource belongs to the loop that it was ensured on.
    ``session_id`` is the id under which approvals "for this session" are remembered. ``spare_seconds`` is how long a
    sandbox that was opened ahead for the next run in a fresh one is kept; 0: none is (:mod:`agently_kernel.spares`).
    """

    def __init__(
        self,
        *,
        approval: PolicyApproval | None = None,
        registry: ProviderRegistry | None = None,
        deadlines: ManagerDeadlines | None = None,
        session_id: str = "",
        spare_seconds: float = 0.0,
        probe_memory: ProbeEntries | None = None,
    ) -> None:
        self.approval = approval or PolicyApproval()
        self.registry = registry or ProviderRegistry()
        self.deadlines = deadlines or ManagerDeadlines()
        self.session_id = session_id
        self.bridge = SyncBridge()
        self._events = EventHub()
        self._book = HandleBook()
        self._digests = ReuseDigests()
        self._opener = Opener(
            self.registry, self._events, self._book, self.deadlines, self, self._gate, probe_memory=probe_memory
        )
        self._spares = Spares(self._opener, spare_seconds, healthy=self._healthy, release=self._end)
        self._opener.spare = self._spares.take
        self._closed = False

    # -- providers and hooks ------------------------------------------------------------------------------------------

    def register_provider(self, provider: ExecutionResourceProvider) -> None:
        """Add a provider; the same object again is a no-op. Raises ValueError when another object has its id."""
        self.registry.register(provider)

    def add_hook(self, hook: EventHook, types: Iterable[EventType] | None = None) -> Callable[[], None]:
        """Call *hook* synchronously with every event (of these *types*); return a function that removes it."""
        return self._events.add_hook(hook, types)

    # -- declaring and looking ----------------------------------------------------------------------------------------

    def declare(self, requirement: ExecutionResourceRequirement) -> ExecutionResourceRequirement:
        """Record a requirement without starting anything and return it with its id.

        Raises ConfigurationError when its id is already taken by a different requirement.
        """
        named = requirement if requirement.requirement_id else _with_id(requirement)
        known = self._book.declared.get(named.requirement_id)
        if known is not None and known.requirement != named:
            raise ConfigurationError(
                f"requirement_id: {named.requirement_id!r} is declared already with other contents; "
                "leave the id empty to get a new one."
            )
        if known is None or not known.kept:
            self._book.declared[named.requirement_id] = Declared(named, True, time.time())
            self._events.emit("execution_resource.declared", named, status=HandleStatus.DECLARED.value)
        return named

    def inspect(self, identifier: str) -> ExecutionResourceHandleView | None:
        """Return an immutable view of a handle, or of a requirement (its newest handle, else itself); else None."""
        handle = self._find(identifier)
        if handle is not None:
            return handle.view()
        entry = self._book.declared.get(identifier)
        return entry.view() if entry is not None else None

    def handle(self, handle_id: str) -> Handle | None:
        """Return the live handle, for who executes on it; others use :meth:`inspect`."""
        return self._book.handles.get(handle_id)

    def list(
        self, *, scope: Scope | None = None, owner_id: str | None = None, status: HandleStatus | str | None = None
    ) -> tuple[ExecutionResourceHandleView, ...]:
        """Return immutable views of all handles and of declared requirements that have none, filtered."""
        return tuple(
            view
            for view in self._book.views()
            if scope in (None, view.scope)
            and owner_id in (None, view.owner_id)
            and (status is None or view.status == HandleStatus(status))
        )

    # -- ensuring -----------------------------------------------------------------------------------------------------

    async def async_ensure(
        self, requirement_or_id: ExecutionResourceRequirement | str, *, hold: bool = False
    ) -> Handle:
        """Return a ready handle for a requirement: a healthy one of the same owner and key, else a new one.

        Each call counts one reference, given back by :meth:`async_release`. *hold* adds, once for each handle, a
        reference of the owner's scope that :meth:`async_release_scope` gives back, so that a session outlives its
        cells. Raises ApprovalDenied, ExecutionResourceUnavailable (each candidate with its reason), ConfigurationError
        for an unknown id or handler, ExecutionResourceError when the manager is closed or the scope is released
        meanwhile.
        """
        self._refuse_when_closed()
        requirement = self._requirement(requirement_or_id)
        loop = asyncio.get_running_loop()
        if requirement.approval_required or requirement.policy.approval_mode == "always":
            await self._approve_ensure(requirement)
        key: Key = (self._digests.of(requirement), id(loop))
        async with self._book.locked(key):
            handle = self._book.by_key.get(key)
            if handle is not None and handle.loop is not loop:
                handle = None  # a dead loop's id was given out again; the old handle stays listed until its scope ends
            if handle is None or not await self._healthy(handle):
                await self._retry_quarantined(key)
                self._refuse_when_closed()
                handle = await self._open(requirement, key, loop)
            handle.ref_count += 1
            if hold and not handle.held:
                handle.held = True
                handle.ref_count += 1
            return handle

    def ensure(self, requirement_or_id: ExecutionResourceRequirement | str, *, hold: bool = False) -> Handle:
        """Synchronous form of :meth:`async_ensure`; refused on a running event loop."""
        return self.bridge.run(lambda: self.async_ensure(requirement_or_id, hold=hold))

    # -- releasing ----------------------------------------------------------------------------------------------------

    async def async_release(self, handle_or_id: Handle | str) -> ExecutionResourceHandleView | None:
        """Give one reference back; the last one closes the resource. Return the view afterwards, None if unknown.

        Closing a quarantined handle is tried again. Raises ExecutionResourceReleaseError when the provider cannot close
        the resource; the handle is then quarantined. A cancelled release is carried out to its end first.
        """
        handle = self._find(handle_or_id) if isinstance(handle_or_id, str) else handle_or_id
        if handle is None:
            return None
        view = await self._at_home(handle, lambda: self._release(handle, force=False))
        if view.status is HandleStatus.QUARANTINED:
            raise _release_error([view])
        return view

    def give_back(self, handle: Handle) -> bool:
        """Give one reference back at once where that closes nothing; False leaves it to :meth:`async_release`."""
        shared = handle.status is HandleStatus.READY and handle.ref_count > 1
        if not shared or handle.loop is not asyncio.get_running_loop() or self._book.is_locked(handle.key):
            return False
        handle.ref_count -= 1
        return True

    def release(self, handle_or_id: Handle | str) -> ExecutionResourceHandleView | None:
        """Synchronous form of :meth:`async_release`; refused on a running event loop."""
        return self.bridge.run(lambda: self.async_release(handle_or_id))

    async def async_release_scope(self, scope: Scope, owner_id: str, *, raise_on_failure: bool = True) -> ReleaseReport:
        """Close everything that an owner has in a scope, whatever the counts, and withdraw its declarations.

        What is being ensured is stopped. A failure does not keep the others from being released; all failures are in
        the report, and in the ExecutionResourceReleaseError (``details['report']``) that *raise_on_failure* asks for.
        """
        self._spares.forget(scope, owner_id)
        for entry in tuple(self._book.declared.values()):
            if entry.requirement.scope == scope and entry.requirement.owner_id == owner_id:
                entry.kept = False
                if not self._book.of_requirement(entry.requirement.requirement_id):
                    self._book.declared.pop(entry.requirement.requirement_id, None)
        report = await uninterrupted(self._release_all(self._book.of_scope(scope, owner_id)))
        if report.failed and raise_on_failure:
            raise _release_error(report.failed, report=report.model_dump(mode="json"))
        return report

    def release_scope(self, scope: Scope, owner_id: str, *, raise_on_failure: bool = True) -> ReleaseReport:
        """Synchronous form of :meth:`async_release_scope`; refused on a running event loop."""
        return self.bridge.run(lambda: self.async_release_scope(scope, owner_id, raise_on_failure=raise_on_failure))

    async def aclose(self) -> ReleaseReport:
        """Refuse new work, release every handle, stop the private loop, and return the report. Idempotent."""
        report = await self._shut_down()
        await asyncio.to_thread(self.bridge.close)
        return report

    def close(self) -> ReleaseReport:
        """Synchronous form of :meth:`aclose`; refused on a running event loop."""
        report = self.bridge.run(self._shut_down)
        self.bridge.close()
        return report

    # -- what providers may ask of us (contract.protocols.ProviderHost) -----------------------------------------------

    async def approve(
        self,
        requirement: ExecutionResourceRequirement,
        gate: Gate,
        subject: str,
        *,
        facts: Mapping[str, str | int] | None = None,
        why: str = "",
    ) -> ApprovalDecision:
        """Pass a gate in the course of an ensure; see ProviderHost."""
        deadline = self._opener.running.get(requirement.requirement_id)
        if deadline is not None:
            deadline.pause()
        try:
            return await self._gate(requirement, gate, subject, facts=facts, why=why)
        finally:
            if deadline is not None:
                deadline.renew()

    def progress(
        self, requirement: ExecutionResourceRequirement, phase: str, **details: str | int | float | bool
    ) -> None:
        """Report progress of an ensure and renew its deadline; see ProviderHost."""
        deadline = self._opener.running.get(requirement.requirement_id)
        if deadline is not None:
            deadline.renew()
        self._events.emit("execution_resource.progress", requirement, phase=phase, details=details)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _requirement(self, wanted: ExecutionResourceRequirement | str) -> ExecutionResourceRequirement:
        if not isinstance(wanted, str):
            return wanted
        entry = self._book.declared.get(wanted)
        if entry is None:
            raise ConfigurationError(f"requirement id {wanted!r} is not declared; declare the requirement first.")
        return entry.requirement

    def _find(self, identifier: str) -> Handle | None:
        found = self._book.handles.get(identifier)
        if found is None and identifier:
            found = next(reversed(self._book.of_requirement(identifier)), None)
        return found

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ExecutionResourceError("This ExecutionResourceManager is closed; make a new one.")

    def _emit(
        self,
        event_type: EventType,
        handle: Handle,
        *,
        phase: str = "",
        error_code: str = "",
        details: dict[str, str | int | float | bool] | None = None,
    ) -> None:
        self._events.emit(
            event_type,
            handle.requirement,
            handle_id=handle.handle_id,
            provider_id=handle.provider_id or "",
            status=handle.status.value,
            phase=phase,
            error_code=error_code,
            details=details,
        )

    async def _gate(
        self,
        requirement: ExecutionResourceRequirement,
        gate: Gate,
        subject: str,
        *,
        facts: Mapping[str, str | int] | None = None,
        why: str = "",
    ) -> ApprovalDecision:
        def asking() -> None:
            self._events.emit(
                "execution_resource.approval_required",
                requirement,
                status=HandleStatus.PENDING_APPROVAL.value,
                details={"gate": gate},
            )

        return await self.approval.gate(
            gate,
            subject,
            policy=requirement.policy,
            facts=facts,
            why=why,
            session_id=self.session_id or f"{requirement.scope}/{requirement.owner_id}",
            before_asking=asking,
        )

    async def _approve_ensure(self, requirement: ExecutionResourceRequirement) -> None:
        entry = self._book.declared.get(requirement.requirement_id)
        if entry is not None:
            entry.status = HandleStatus.PENDING_APPROVAL
        chain = ", ".join(candidate.provider_id for candidate in requirement.provider_candidates)
        provider = requirement.provider_id or chain or "the default providers"
        try:
            await self._gate(requirement, "ensure", f"{requirement.language} with {provider}")
        finally:
            if entry is not None:
                entry.status = HandleStatus.DECLARED

    async def _healthy(self, handle: Handle) -> bool:
        """Check a ready handle before reuse; one that fails is released (or quarantined) here."""
        reason = "its provider reported it as unhealthy"
        if handle.provider is not None:
            try:
                seen_ready = getattr(handle.provider, "seen_ready", None)
                if seen_ready is not None and seen_ready(handle) is True:
                    return True  # a task and a deadline are only for what has to be waited for
                check = handle.provider.async_health_check(handle)
                if await bounded(check, self.deadlines.health, strays=self._opener.strays) == "ready":
                    return True
            except Overdue as overdue:
                reason = f"the health check did not answer within {overdue.seconds:g} s"
            except Exception as error:
                reason = f"the health check raised {type(error).__name__}"
        handle.status, handle.error = HandleStatus.UNHEALTHY, reason
        self._emit("execution_resource.unhealthy", handle)
        await uninterrupted(self._close(handle))
        return False

    async def _retry_quarantined(self, key: Key) -> None:
        again = [h for h in tuple(self._book.handles.values()) if h.key == key and h.status is HandleStatus.QUARANTINED]
        if again:
            await uninterrupted(asyncio.gather(*(self._close(handle) for handle in again)))

    async def _open(
        self, requirement: ExecutionResourceRequirement, key: Key, loop: asyncio.AbstractEventLoop
    ) -> Handle:
        if not requirement.requirement_id:
            requirement = _with_id(requirement)
        self._book.declared.setdefault(requirement.requirement_id, Declared(requirement, False, time.time()))
        handle = Handle(requirement, key, loop)
        self._book.handles[handle.handle_id] = handle
        self._emit("execution_resource.ensuring", handle, phase="provider_probe")
        opening = handle.opening = loop.create_task(self._opener.open(handle))
        try:
            await asyncio.wait((opening,))
        except asyncio.CancelledError:
            opening.cancel()  # bounded by its own deadlines, and undoes what it began
            await uninterrupted(asyncio.wait((opening,)))
            if not opening.cancelled() and opening.exception() is None:
                opened = opening.result()
                await uninterrupted(self._opener.discard(handle, opened.provider, opened.resource))
            self._not_opened(handle, "cancelled")
            raise
        if opening.cancelled():
            self._not_opened(handle, "cancelled")
            raise ExecutionResourceError(
                "The sandbox was closed while it was being opened; nothing of it is left. Run the cell again.",
                code="execution_resource.released",
            )
        error = opening.exception()
        if error is not None:
            self._not_opened(handle, getattr(error, "code", ExecutionResourceError.code))
            raise error
        opened = opening.result()
        handle.provider, handle.resource, handle.selection = opened.provider, opened.resource, opened.selection
        handle.status, handle.opening, handle.opened_as = HandleStatus.READY, None, opened.requirement
        self._book.by_key[key] = handle
        self._emit(
            "execution_resource.ready",
            handle,
            phase="provider_selected",
            details={
                "preference_fallback": opened.selection.preference_fallback,
                "unsafe": opened.selection.unsafe,
                "skipped": len(opened.selection.skipped),
            },
        )
        return handle

    def _not_opened(self, handle: Handle, error_code: str) -> None:
        handle.status = HandleStatus.FAILED
        self._book.drop(handle)
        self._emit("execution_resource.failed", handle, error_code=error_code)

    async def _release(self, handle: Handle, *, force: bool) -> ExecutionResourceHandleView:
        """Give back one reference, or all with *force*, under the key's lock, on the handle's loop; never raises."""
        if force and handle.opening is not None:
            handle.opening.cancel()
        async with self._book.locked(handle.key):
            if handle.status is HandleStatus.READY and handle.ref_count > 1 and not force:
                handle.ref_count -= 1
            elif handle.status in (HandleStatus.READY, HandleStatus.UNHEALTHY, HandleStatus.QUARANTINED):
                used = handle.status is HandleStatus.READY and not force
                await uninterrupted(self._close(handle))
                if used and not handle.error:
                    self._spares.refill(handle)
            return handle.view()

    async def _close(self, handle: Handle) -> None:
        """Let the provider close the resource; a failure quarantines the handle. Bounded, never raises."""
        handle.status, handle.ref_count, handle.held = HandleStatus.RELEASING, 0, False
        self._book.unlink(handle)
        self._emit("execution_resource.releasing", handle)
        reason = await self._opener.dispose(handle)
        if reason:
            self._opener.quarantine(handle, reason)
            return
        handle.status, handle.error = HandleStatus.RELEASED, ""
        self._book.drop(handle)
        self._emit("execution_resource.released", handle)

    async def _release_all(self, handles: tuple[Handle, ...]) -> ReleaseReport:
        views = await asyncio.gather(*(self._end(handle) for handle in handles))
        return ReleaseReport(
            released=tuple(view for view in views if view.status is HandleStatus.RELEASED),
            failed=tuple(view for view in views if view.status is HandleStatus.QUARANTINED),
        )

    async def _end(self, handle: Handle) -> ExecutionResourceHandleView:
        return await self._at_home(handle, lambda: self._release(handle, force=True))

    async def _shut_down(self) -> ReleaseReport:
        self._closed = True
        self._spares.close()
        report = await uninterrupted(self._release_all(tuple(self._book.handles.values())))
        await uninterrupted(self._opener.strays.wait(self.deadlines.cleanup))
        return report

    async def _at_home(self, handle: Handle, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run *work* on the loop that the handle's pipes belong to, or here when that loop is gone."""
        home = handle.loop
        if home is asyncio.get_running_loop() or not home.is_running():
            return await uninterrupted(work())
        return await uninterrupted(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), home)))


def _with_id(requirement: ExecutionResourceRequirement) -> ExecutionResourceRequirement:
    return requirement.model_copy(update={"requirement_id": f"requirement-{os.urandom(8).hex()}"})


def _release_error(failed: Iterable[ExecutionResourceHandleView], **details: object) -> ExecutionResourceReleaseError:
    named = tuple(failed)
    lines = "; ".join(f"{view.handle_id} ({view.provider_id}): {view.error.rstrip('.')}" for view in named)
    return ExecutionResourceReleaseError(
        f"The sandbox could not be closed and is quarantined, which means listed and never used again: {lines}. "
        "Closing it is tried again when the next one is opened or this one is released again; `agently-kernel clean` "
        "removes what a dead kernel left.",
        details={"handle_ids": [view.handle_id for view in named], **details},
    )
