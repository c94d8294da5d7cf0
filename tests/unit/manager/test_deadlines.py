"""Bounded waits, clean-up despite cancellation, and the private loop of the synchronous forms."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from agently_kernel.deadlines import Deadline, Overdue, SyncBridge, bounded
from agently_kernel.uninterrupted import uninterrupted


def test_the_bridge_raises_what_the_work_raises_and_can_be_closed_twice():
    bridge = SyncBridge()

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        bridge.run(fail)
    bridge.close()
    bridge.close()


async def test_bounded_gives_up_and_undoes_late_results():
    undone: list[int] = []

    async def late() -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return 7
        return 0

    async def undo(value: int) -> None:
        undone.append(value)

    with pytest.raises(Overdue) as caught:
        await bounded(late(), 0.01, undo=undo)
    assert undone == [7] and caught.value.stopped is True


async def test_uninterrupted_finishes_before_the_cancellation_is_raised():
    done: list[int] = []

    async def work() -> None:
        await asyncio.sleep(0.02)
        done.append(1)

    task = asyncio.create_task(uninterrupted(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]


async def test_a_renewed_or_paused_deadline_waits_on(monkeypatch):
    monkeypatch.setattr(Deadline, "POLL", 0.01)
    deadline = Deadline(0.5)

    async def work() -> str:
        deadline.pause()
        await asyncio.sleep(0.8)
        deadline.renew()
        await asyncio.sleep(0.1)
        return "done"

    assert await bounded(work(), deadline) == "done"
    started = time.monotonic()
    with pytest.raises(Overdue, match=r"0\.05 s"):
        await bounded(asyncio.sleep(60), Deadline(0.05))
    assert time.monotonic() - started < 2


def test_an_interrupt_cancels_the_work_and_waits_for_its_cleanup(monkeypatch):
    bridge = SyncBridge()
    started, ended = threading.Event(), []

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)
            ended.append(1)

    def interrupt() -> None:
        started.wait(5)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        bridge.run(work)
    assert ended == [1]
    bridge.close()
