"""``asyncio.run`` inside a cell, although the interpreter's own event loop is running.

Cells run while that loop counts as running, so that ``asyncio.create_task`` works in them. ``asyncio.run`` refuses to
start in such a place; here it is let believe that no loop runs for as long as it runs its own, and the loop is set back
after.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from typing import Any, Callable, Dict, Iterator, Optional

_HOMES: Dict[int, asyncio.AbstractEventLoop] = {}
"""The loops that cells run in, by the thread of each."""
_set_event_loop = asyncio.set_event_loop  # bound here: cells replace what modules offer


def at_home(loop: asyncio.AbstractEventLoop) -> None:
    """Say that cells run on the calling thread while *loop* is running; see :func:`allow_nested_run`."""
    _set_event_loop(loop)
    _HOMES[threading.get_ident()] = loop


def home() -> Optional[asyncio.AbstractEventLoop]:
    """Return the loop that cells run in on the calling thread, None when none do."""
    return _HOMES.get(threading.get_ident())


def leave_home() -> None:
    """Take back ``at_home``: the calling thread ends."""
    _HOMES.pop(threading.get_ident(), None)


def allow_nested_run() -> None:
    """Make ``asyncio.run`` and ``asyncio.Runner.run`` work in threads where the loop that cells run in is running."""

    @contextlib.contextmanager
    def outside() -> Iterator[None]:
        running = asyncio._get_running_loop()
        if running is None or running is not home():
            yield
            return
        asyncio._set_running_loop(None)
        try:
            yield
        finally:
            asyncio._set_running_loop(running)
            asyncio.set_event_loop(running)

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with outside():
                return function(*args, **kwargs)

        return run

    asyncio.run = asyncio.runners.run = wrapped(asyncio.run)
    runner = getattr(asyncio, "Runner", None)  # Python 3.11
    if runner is not None:
        for name in ("run", "close"):
            setattr(runner, name, wrapped(getattr(runner, name)))
