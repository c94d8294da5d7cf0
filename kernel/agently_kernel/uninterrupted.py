"""Work that a cancellation cannot cut short: undoing what was begun, and calls in threads that nothing can stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


async def uninterrupted(work: Awaitable[T]) -> T:
    """Await *work* to its end even when the caller is cancelled; the cancellation is raised afterwards.

    The work must be bounded by deadlines of its own, because nothing else stops it. Returns and raises what it does;
    an error that a cancelled caller cannot hear any more is logged.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what went on after a cancellation failed: %s", error)
        raise asyncio.CancelledError
    return task.result()
