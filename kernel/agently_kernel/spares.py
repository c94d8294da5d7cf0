"""A warm spare: one sandbox, opened ahead, for the next run that gets a fresh one.

A run with a sandbox of its own waits for that sandbox's start. When such a run is over, the manager opens one more in
the background, exactly like it; nothing ever runs in a spare. The next run passes gates, probes and selection like any
other, and its sandbox is checked against its policy like any other; only the launch is saved. A spare is closed when
nobody has taken it for a while, when another kind is wanted, with its owner's scope, and with the manager.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from agently_kernel.contract.events import EventType
from agently_kernel.contract.protocols import CodeExecutionResource
from agently_kernel.contract.resource import ExecutionResourceRequirement, HandleStatus, Scope
from agently_kernel.handles import Handle, Key
from agently_kernel.selection import Attempt, Problem
from agently_kernel.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from agently_kernel.opening import Opener

BREATH = 0.01
"""Seconds from the end of a run to the opening of the next spare: what the run still has to say goes first."""
IN_A_ROW = 0.1
"""A run that begins so many seconds after the last one's end is one of a row: the next one is near."""
EARLY = 0.005
"""Seconds from the taking of a spare in a row of runs to the opening of the next one, beside the run that took it."""
PHASE = "spare"


def spare_key(requirement: ExecutionResourceRequirement, loop: asyncio.AbstractEventLoop) -> Key:
    """Return what a spare and a run (its requirement as merged for the provider) must share."""
    plain = requirement.model_copy(update={"reuse_key": None, "owner_id": "", "requirement_id": ""})
    return f"{PHASE}-{plain.reuse_digest()}", id(loop)


def can_be_spared(handle: Handle) -> bool:
    """True when the next run may get a sandbox that was opened like this one's.

    Only sandboxes for single runs, isolated as demanded, with nothing in them but the workspace's source root: inputs
    and folders on the host's disk are of one execution.
    """
    wanted, selection = handle.requirement, handle.selection
    grant = wanted.task_workspace_access_grant
    return (
        wanted.scope == "action_call" and not wanted.resident and handle.opened_as is not None
        and selection is not None and not selection.unsafe and not selection.preference_fallback
        and grant is not None and not grant.inputs
        and all(root.name == "source" or root.access == "read_only" or root.host_path is None for root in grant.roots)
    )


class Spares:
    """Keeps at most one spare for *seconds* (0: none at all). Its handle is in the manager's book like every other."""

    def __init__(
        self,
        opener: Opener,
        seconds: float,
        *,
        healthy: Callable[[Handle], Awaitable[bool]],
        release: Callable[[Handle], Awaitable[Any]],
    ) -> None:
        """*healthy* checks a handle and closes it when it is not; *release* closes one for good, on its own loop."""
        self._opener = opener
        self._seconds = seconds
        self._healthy = healthy
        self._release = release
        self._spare: Handle | None = None
        self._next: tuple[Handle, asyncio.TimerHandle] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._last_end = -IN_A_ROW

    def close(self) -> None:
        """Open no more spares; the one that is there is closed with all the manager's handles."""
        self._closed = True

    def forget(self, scope: Scope, owner_id: str) -> None:
        """Open no spare for an owner whose scope is being released; one that is open is released with the scope."""
        if self._next is not None:
            wanted = self._next[0].requirement
            if (wanted.scope, wanted.owner_id) == (scope, owner_id):
                self._not_now()

    async def take(self, attempt: Attempt) -> CodeExecutionResource | None:
        """Return the resource of the spare that fits *attempt* if there is a healthy one; it is the caller's then.

        Waits for one that is being opened: that is nearer to its end than a launch that has not begun.
        """
        loop = asyncio.get_running_loop()
        spare = self._spare
        if attempt.requirement.scope == "action_call":
            self._not_now()  # the run's own start comes first; its end brings the next spare
        if spare is None or spare.key != spare_key(attempt.requirement, loop) or spare.loop is not loop:
            return None
        async with self._opener.book.locked(spare.key):  # held while it is being opened, or closed
            if self._spare is not spare or spare.status is not HandleStatus.READY:
                return None
            self._spare = None
            self._keep(None)
            try:
                if not await self._healthy(spare):
                    return None
            except asyncio.CancelledError:
                self._start(self._release(spare))
                raise
            resource, spare.resource = spare.resource, None
            spare.status = HandleStatus.RELEASED
            self._opener.book.drop(spare)
            if loop.time() - self._last_end < IN_A_ROW:
                self._plan_next(spare, EARLY)
            return resource

    def refill(self, used: Handle) -> None:
        """Open a spare like *used*, whose run is over, unless there is one already. Called on the handle's loop."""
        self._last_end = used.loop.time()
        merged = used.opened_as
        if self._closed or self._seconds <= 0 or merged is None or not can_be_spared(used):
            return
        key = spare_key(merged, used.loop)
        spare = self._spare
        if spare is not None and spare.status in (HandleStatus.ENSURING, HandleStatus.READY):
            if spare.key == key and spare.loop is used.loop:
                self._keep(spare)
                return
            self._spare = None
            self._keep(None)
            self._start(self._release(spare))
        never = merged.policy.model_copy(update={"approval_mode": "never"})  # nobody is asked for a spare
        like = Handle(merged.model_copy(update={"policy": never}), key, used.loop)
        like.provider = used.provider
        self._plan_next(like, BREATH)

    def _plan_next(self, like: Handle, seconds: float) -> None:
        """Open a spare like *like* in a moment, unless the next run comes before."""
        if self._closed or self._seconds <= 0:
            return
        wanted = like.requirement.model_copy(update={"requirement_id": f"spare-{os.urandom(8).hex()}"})
        fresh = Handle(wanted, like.key, like.loop)
        fresh.provider = like.provider
        self._not_now()
        self._next = fresh, like.loop.call_later(seconds, lambda: self._start(self._fill(fresh)))

    async def _fill(self, spare: Handle) -> None:
        self._next = None
        if self._closed or spare.provider is None:
            return
        book = self._opener.book
        book.handles[spare.handle_id] = self._spare = spare
        self._emit("execution_resource.ensuring", spare)
        async with book.locked(spare.key):
            launch = self._opener.launch(spare, spare.provider, spare.requirement)
            opening = spare.opening = spare.loop.create_task(launch)
            try:
                await asyncio.wait((opening,))
            except asyncio.CancelledError:
                opening.cancel()  # bounded by its own deadlines, and undoes what it began
                await uninterrupted(asyncio.wait((opening,)))
            spare.opening = None
            failed = opening.cancelled() or opening.exception() is not None
            found = None if failed else opening.result()
            if found is None or isinstance(found, Problem):
                spare.status = HandleStatus.FAILED
                book.drop(spare)
                self._emit("execution_resource.failed", spare, error_code="" if found is None else found.code)
                return
            spare.resource, spare.status = found, HandleStatus.READY
        if self._spare is not spare or self._closed:
            await self._release(spare)
            return
        self._keep(spare)
        self._emit("execution_resource.ready", spare)

    def _keep(self, spare: Handle | None) -> None:
        """Count the time of *spare* from now, and no longer that of another."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = None
        if spare is not None:
            self._expiry = spare.loop.call_later(self._seconds, lambda: self._start(self._release(spare)))

    def _not_now(self) -> None:
        """Do not open the spare that was about to be opened."""
        if self._next is not None:
            self._next[1].cancel()
            self._next = None

    def _start(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _emit(self, event_type: EventType, spare: Handle, *, error_code: str = "") -> None:
        self._opener.events.emit(
            event_type, spare.requirement, handle_id=spare.handle_id, provider_id=spare.provider_id or "",
            status=spare.status.value, phase=PHASE, error_code=error_code,
        )
