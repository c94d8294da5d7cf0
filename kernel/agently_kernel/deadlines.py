"""Waiting that always ends, and clean-up that a cancellation cannot cut short.

Two rules are kept here for the whole manager: no await on foreign code (providers, handlers, hooks) is without a
deadline, and what was begun to be undone is undone even when the caller is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from agently_kernel.contract.errors import ExecutionResourceError
from agently_kernel.uninterrupted import uninterrupted

T = TypeVar("T")


class Overdue(Exception):
    """A bounded wait ended without a result. ``stopped`` is False when the work ignored its cancellation."""

    def __init__(self, seconds: float, *, stopped: bool) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds
        self.stopped = stopped


class Deadline:
    """A point in time on the monotonic clock that can be moved while somebody waits for it."""

    POLL = 0.5
    """Seconds after which a waiter looks again whether the deadline was moved."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until: float | None = time.monotonic() + seconds

    def renew(self) -> None:
        """Count the full time again from now: what is waited for has shown that it is making progress."""
        self._until = time.monotonic() + self.seconds

    def pause(self) -> None:
        """Let no time pass until :meth:`renew`: a person is being asked."""
        self._until = None

    def remaining(self) -> float | None:
        """Return the seconds left, never below zero; None while paused."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())


class Strays:
    """Work that did not end when it was told to. It is watched until it does, and what it made late is undone."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(
        self, task: asyncio.Task[T], undo: Callable[[T], Awaitable[None]] | None, done: Callable[[], None]
    ) -> None:
        """Await *task*; pass what it returns to *undo*; then call *done*."""
        follow = asyncio.get_running_loop().create_task(self._follow(task, undo, done))
        self._tasks.add(follow)
        follow.add_done_callback(self._tasks.discard)

    async def wait(self, seconds: float) -> int:
        """Wait at most *seconds* for all of this loop's strays; return how many are left."""
        loop = asyncio.get_running_loop()
        mine = [task for task in self._tasks if task.get_loop() is loop]
        if mine:
            await asyncio.wait(mine, timeout=seconds)
        return sum(not task.done() for task in mine)

    async def _follow(
        self, task: asyncio.Task[T], undo: Callable[[T], Awaitable[None]] | None, done: Callable[[], None]
    ) -> None:
        await asyncio.wait((task,))
        await undo_late(task, undo)
        done()


async def undo_late(task: asyncio.Task[T], undo: Callable[[T], Awaitable[None]] | None) -> None:
    """Pass the result of a finished *task* to *undo* when it has one; its error is only marked as seen."""
    if not task.cancelled() and task.exception() is None and undo is not None:
        await undo(task.result())


async def bounded(
    work: Coroutine[Any, Any, T],
    deadline: float | Deadline | None,
    *,
    grace: float = 2.0,
    undo: Callable[[T], Awaitable[None]] | None = None,
    strays: Strays | None = None,
    strayed: Callable[[], None] = lambda: None,
    ended: Callable[[], None] = lambda: None,
) -> T:
    """Await *work* until *deadline* (seconds, a :class:`Deadline`, or None) and return its result.

    At the deadline, and when the caller is cancelled, the work is cancelled and given *grace* seconds. A result that it
    returns all the same is passed to *undo* (which must be bounded and must not raise), also when it comes after the
    grace: then *strayed* is called, *strays* watches the work and calls *ended* at last. Raises :class:`Overdue` at the
    deadline, CancelledError when the caller was cancelled, else what the work raises.
    """
    task = asyncio.get_running_loop().create_task(work)

    async def give_up() -> None:
        task.cancel()
        await asyncio.wait((task,), timeout=grace)
        if task.done():
            await undo_late(task, undo)
        elif strays is not None:
            strayed()
            strays.watch(task, undo, ended)

    try:
        if isinstance(deadline, Deadline):
            while not task.done() and (left := deadline.remaining()) != 0.0:
                await asyncio.wait((task,), timeout=Deadline.POLL if left is None else min(left, Deadline.POLL))
        else:
            await asyncio.wait((task,), timeout=deadline)
    except asyncio.CancelledError:
        await uninterrupted(give_up())
        raise
    if not task.done():
        await uninterrupted(give_up())
        raise Overdue(deadline.seconds if isinstance(deadline, Deadline) else deadline or 0.0, stopped=task.done())
    return task.result()


class SyncBridge:
    """Runs coroutines for callers without an event loop, on one private loop in one thread that lives as long as this.

    One loop for all calls, because a sandbox's pipes belong to the loop that they were opened on; one thread that does
    not end between calls, because the kernel ends a child whose parent *thread* is gone (PR_SET_PDEATHSIG).
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, inside_loop: bool = False) -> T:
        """Run ``work()`` on the private loop, block until it has ended and return its result or raise its error.

        A caller on a running event loop would freeze that loop for the whole time, so that is refused with
        ExecutionResourceError unless ``inside_loop`` says that this is meant (a notebook magic). KeyboardInterrupt
        cancels the work, waits for its clean-up and is raised again.
        """
        if not inside_loop and _loop_is_running():
            raise ExecutionResourceError(
                "This synchronous call was made on a running event loop, which it would block. "
                "Await the async_ form of the same name instead.",
                code="execution_resource.sync_in_event_loop",
            )
        loop = self._start()
        ended: concurrent.futures.Future[T] = concurrent.futures.Future()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            begun.append(loop.create_task(work()))
            begun[0].add_done_callback(lambda task: _pass_on(task, ended))

        def stop() -> None:
            if begun:
                begun[0].cancel()
            else:  # interrupted before it was begun
                ended.cancel()

        try:
            loop.call_soon_threadsafe(begin)
            return ended.result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(stop)
            with contextlib.suppress(concurrent.futures.CancelledError):  # the interrupt is what is reported
                ended.exception()
            raise

    def close(self) -> None:
        """Stop the private loop and its thread; idempotent. Handles that live on it must have been released before."""
        with self._guard:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5.0)

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="agently-kernel-sync", daemon=True
                )
                self._thread.start()
            return self._loop


def _pass_on(task: asyncio.Task[T], ended: concurrent.futures.Future[T]) -> None:
    if task.cancelled():
        ended.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
