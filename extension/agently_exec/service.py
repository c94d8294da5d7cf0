"""An event loop of its own for an IPython whose main thread runs the user's code, and perhaps a loop already.

The main thread waits for the work without touching any loop. While it waits it reads from the input box when the work
asks for that, and passes Stop on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Read = Callable[[str, bool], str]
"""``read(prompt, password) -> line``: the front end's input box, on the main thread; raises when there is none."""
JOIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Question:
    prompt: str
    password: bool
    answer: asyncio.Future[str]


class LoopThread:
    """One thread with one loop. It lives as long as the service: the system ends a sandbox whose parent thread is gone.

    ``read`` is called on the thread that waits in :meth:`call`.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self.loop = asyncio.new_event_loop()
        self._questions: queue.SimpleQueue[_Question | None] | None = None
        self._thread = threading.Thread(target=self._serve, name="agently-exec", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], *, stop: Callable[[], Awaitable[bool]]) -> T:
        """Run ``work()`` on the loop, wait for its end, and return its result or raise its error.

        At KeyboardInterrupt ``stop()`` is awaited there; False from it, and every further interrupt, cancels the work.
        Whatever it comes to, KeyboardInterrupt is raised when it has ended.
        """
        questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        ended: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[Any]] = []
        stopped = 0

        def begin() -> None:
            task = self.loop.create_task(work())
            tasks.append(task)
            task.add_done_callback(finish)

        def finish(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                ended.set_exception(concurrent.futures.CancelledError())
            elif (error := task.exception()) is not None:
                ended.set_exception(error)
            else:
                ended.set_result(task.result())
            questions.put(None)

        async def end(hard: bool) -> None:
            if hard or not await stop():
                tasks[0].cancel()

        def halt(hard: bool) -> None:
            tasks.append(self.loop.create_task(end(hard)))

        outer, self._questions = self._questions, questions
        try:
            self.loop.call_soon_threadsafe(begin)
            while True:
                try:
                    question = questions.get()
                    if question is None:
                        break
                    self._answer(question)
                except KeyboardInterrupt:
                    stopped += 1
                    self.loop.call_soon_threadsafe(halt, stopped > 1)
        finally:
            self._questions = outer
        if stopped:
            raise KeyboardInterrupt
        return ended.result()

    def _answer(self, question: _Question) -> None:
        line, failure = "", None
        try:
            line = self._read(question.prompt, question.password)
        except KeyboardInterrupt:
            self.loop.call_soon_threadsafe(question.answer.cancel)
            raise
        except BaseException as error:
            failure = error if isinstance(error, Exception) else EOFError(type(error).__name__)

        def settle() -> None:
            if not question.answer.done():
                question.answer.set_exception(failure) if failure else question.answer.set_result(line)

        self.loop.call_soon_threadsafe(settle)

    async def ask(self, prompt: str, password: bool) -> str:
        """Read a line on the thread that waits. On the loop; raises EOFError when none waits, else what *read* does."""
        questions = self._questions
        if questions is None:
            raise EOFError("no cell is running that could be asked")
        answer: asyncio.Future[str] = self.loop.create_future()
        questions.put(_Question(prompt, password, answer))
        return await answer

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run *work* on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Stop the loop and its thread. Idempotent."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(JOIN_SECONDS)
