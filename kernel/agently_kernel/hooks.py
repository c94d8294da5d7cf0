"""Delivery of the manager's events to whoever listens. Events carry ids and status only."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable

from agently_kernel.contract.events import EventHook, EventType, ExecutionResourceEvent
from agently_kernel.contract.resource import ExecutionResourceRequirement

log = logging.getLogger("agently_kernel.events")


class EventHub:
    """Makes events and calls the hooks, in the order in which the hooks were added, on the emitting thread."""

    def __init__(self) -> None:
        self._hooks: dict[int, tuple[EventHook, frozenset[str] | None]] = {}
        self._numbers = itertools.count(1)
        self._prefix = os.urandom(6).hex()

    def add_hook(self, hook: EventHook, types: Iterable[EventType] | None = None) -> Callable[[], None]:
        """Call *hook* for every event, or only for the *types* given; return a function that removes it again."""
        number = next(self._numbers)
        self._hooks[number] = (hook, None if types is None else frozenset(types))

        def remove() -> None:
            self._hooks.pop(number, None)

        return remove

    def emit(
        self,
        event_type: EventType,
        requirement: ExecutionResourceRequirement,
        *,
        handle_id: str = "",
        provider_id: str = "",
        status: str = "",
        error_code: str = "",
        phase: str = "",
        details: dict[str, str | int | float | bool] | None = None,
    ) -> None:
        """Tell the hooks. *details* hold our own words, numbers and booleans, never a value out of a config."""
        if not self._hooks:
            return
        event = ExecutionResourceEvent(
            event_id=f"event-{self._prefix}-{next(self._numbers)}",
            event_type=event_type,
            timestamp=time.time(),
            requirement_id=requirement.requirement_id,
            handle_id=handle_id,
            kind=requirement.kind,
            scope=requirement.scope,
            owner_id=requirement.owner_id,
            resource_key=requirement.resource_key,
            provider_id=provider_id or requirement.provider_id or "",
            status=status,
            error_code=error_code,
            phase=phase,
            details=details or {},
        )
        for hook, types in tuple(self._hooks.values()):
            if types is not None and event_type not in types:
                continue
            try:
                hook(event)
            except Exception as error:
                # Only the class: the text of a foreign exception may quote what it was given.
                log.warning("an event hook raised %s on %s and was passed over", type(error).__name__, event_type)
