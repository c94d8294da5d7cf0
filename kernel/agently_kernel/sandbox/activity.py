"""One execution as the host sees it while it runs: a cell of the resident interpreter, or an argv plan."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Literal

from agently_kernel.contract.bundle import CodeExecutionBundle
from agently_kernel.contract.isolation import SandboxFacts
from agently_kernel.contract.outputs import NoticeOutput, OutputEvent, OutputSink, StreamOutput
from agently_kernel.contract.result import CodeExecutionResult, DeathCause, ExecutionStatus, StepResult
from agently_kernel.guest import wire
from agently_kernel.sandbox.backlog import Backlog
from agently_kernel.sandbox.bounds import BoundedText, StreamDecoders
from agently_kernel.sandbox.deaths import Stopper
from agently_kernel.sandbox.payloads import decode_json, json_object

log = logging.getLogger(__name__)

InputHandler = Callable[[str, bool], Awaitable[str]]
Send = Callable[[Mapping[str, Any], bytes], Awaitable[None]]
NO_INPUT = "input() is not available here"
MOST_REFUSED = 8
"""How many refused hosts one execution is told of."""
StreamName = Literal["stdout", "stderr"]


def deliver(sink: OutputSink | None, event: OutputEvent) -> None:
    """Hand an event to *sink*; a sink that raises costs the event and never the session."""
    if sink is None:
        return
    try:
        sink(event)
    except Exception:
        log.exception("an output sink raised; the event is dropped")


class Activity:
    """What is common to both forms: sink, bounded streams, the stop that was asked for, the death, the end."""

    def __init__(self, cell: str, sink: OutputSink | None, max_output_bytes: int) -> None:
        self.cell = cell
        self.sink = sink
        self.streams = {"stdout": BoundedText(max_output_bytes), "stderr": BoundedText(max_output_bytes)}
        self.decoders = StreamDecoders()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self.shown = False
        """Whether it has shown anything."""
        self.stopper: Stopper | None = None
        self.insisted = False
        """Whether a Stop may cost the interpreter where a first one would only ask."""
        self.ladder: asyncio.Task[None] | None = None
        self.death: DeathCause | None = None
        self._backlog: Backlog | None = None
        self.steps: list[StepResult] = []
        self._refused: set[str] = set()
        self.started_at = time.time()
        self._clock = time.monotonic()

    def stream(self, name: StreamName, data: bytes) -> None:
        """Take raw bytes of one of the streams."""
        self.streams[name].add(data)
        self.shown = True
        text = self.decoders.decode(self.cell, name, data)
        if text:
            deliver(self.sink, StreamOutput(self.cell, name, text))

    def flush(self) -> None:
        """Deliver what is left of characters that were cut at the end of a stream."""
        names: tuple[StreamName, ...] = ("stdout", "stderr")
        for name in names:
            rest = self.decoders.flush(self.cell, name)
            if rest:
                deliver(self.sink, StreamOutput(self.cell, name, rest))

    def begin_backlog(self) -> None:
        """From now on only what would still be seen is delivered, at intervals; harmless when that has begun."""
        if self.sink is not None and self._backlog is None:
            self._backlog = self.sink = Backlog(partial(deliver, self.sink))

    def end_backlog(self) -> None:
        """Deliver what is left of it; later events are delivered at once again."""
        if self._backlog is not None:
            self._backlog.close()

    def notice(self, text: str) -> None:
        """Tell the user something in our own words."""
        self.shown = True
        deliver(self.sink, NoticeOutput(self.cell, text))

    def network_refused(self, reason: str) -> None:
        """Tell the user of a host that is not granted, each once and not too many."""
        if reason not in self._refused and len(self._refused) < MOST_REFUSED:
            self._refused.add(reason)
            host = reason.partition(" ")[0]
            command = host.removesuffix(":443").removesuffix(":80")
            self.notice(f"The network: {reason}. To allow it: %agently allow network {command}")

    def finish(self) -> None:
        """Mark the end; harmless when it has come already."""
        if not self.finished.done():
            self.finished.set_result(None)
            self._over.set()

    def die(self, death: DeathCause) -> None:
        """End because interpreter or sandbox ended."""
        if not self.finished.done():
            self.death = death
            self.finish()

    async def over(self) -> None:
        """Wait for the end, one turn of the loop less than for ``finished``; cancelling ends nothing but the wait."""
        await self._over.wait()

    async def wait(self, seconds: float) -> bool:
        """Return whether the end comes within *seconds*."""
        await asyncio.wait({self.finished}, timeout=seconds)
        return self.finished.done()

    def result(
        self,
        bundle: CodeExecutionBundle,
        facts: SandboxFacts,
        *,
        execution_id: str,
        status: ExecutionStatus,
        message: str = "",
        returncode: int | None = None,
        error: Mapping[str, Any] | None = None,
        reply: Mapping[str, Any] | None = None,
    ) -> CodeExecutionResult:
        """Return the contract's result with the streams kept so far."""
        return CodeExecutionResult(
            status=status, bundle_id=bundle.bundle_id, bundle_digest=bundle.bundle_digest, execution_id=execution_id,
            returncode=returncode, error=error, message=message, death=self.death, reply=reply or {},
            stdout=self.streams["stdout"].take(), stderr=self.streams["stderr"].take(), steps=tuple(self.steps),
            facts=facts, started_at=self.started_at, seconds=time.monotonic() - self._clock,
        )


class CellRun(Activity):
    """A cell in the resident interpreter: on its main thread, or in the *subshell* of that id."""

    def __init__(
        self, cell: str, sink: OutputSink | None, max_output_bytes: int, input_handler: InputHandler | None,
        subshell: str = "",
    ) -> None:
        super().__init__(cell, sink, max_output_bytes)
        self.subshell = subshell
        self.input_handler = input_handler
        self.input_task: asyncio.Task[None] | None = None
        self.sent = False
        self.ok = False
        self.error: dict[str, Any] | None = None
        self.reply: dict[str, Any] = {}

    def drop_input(self) -> None:
        """Stop waiting for an answer to ``input()``."""
        if self.input_task is not None:
            self.input_task.cancel()
            self.input_task = None

    async def take_done(self, ok: bool, payload: bytes) -> None:
        """Take the ``done`` frame. Raises wire.WireError for content of the wrong shape."""
        content = json_object(await decode_json(payload or b"{}"), "the end of a cell")
        json_object(content.get("user_expressions") or {}, "user_expressions")
        if not isinstance(content.get("payload") or [], list):
            raise wire.WireError("the payload of a cell is not a list")
        self.reply, self.ok = content, ok
        self.finish()

    def take_input(self, header: Mapping[str, Any], send: Send) -> Coroutine[Any, Any, None] | str:
        """Take an ``input`` frame: return the work that gets and sends the answer, or why there will be none."""
        if self.input_handler is None:
            return NO_INPUT
        if self.stopper is not None:
            return "the cell was stopped"
        if self.input_task is not None and not self.input_task.done():
            return "another input() of this cell is waiting"
        return self._answer(self.input_handler, header["prompt"], header["password"], send)

    async def _answer(self, handler: InputHandler, prompt: str, password: bool, send: Send) -> None:
        try:
            line = (await handler(prompt, password)).encode("utf-8", "replace")
            most = wire.TO_INTERPRETER["input_reply"].payload
            if len(line) > most:
                raise ValueError(f"the answer is longer than {most} bytes")
        except Exception as error:
            await send({"op": "input_refused", "cell": self.cell, "reason": str(error)[:1000]}, b"")
        else:
            await send({"op": "input_reply", "cell": self.cell}, line)

    def outcome(self, timeout: float | None) -> tuple[ExecutionStatus, str]:
        """Return status and sentence of a cell that has ended."""
        if self.stopper == "time_limit":
            limit = f"The cell ran past its time limit of {timeout:g} s"
            return ExecutionStatus.TIMED_OUT, self.death.message if self.death else f"{limit} and was interrupted."
        if self.stopper == "stopped_by_user" and not self.ok:
            return ExecutionStatus.CANCELLED, self.death.message if self.death else "You stopped the cell."
        if self.death is not None:
            return ExecutionStatus.DIED, self.death.message
        if self.ok:
            return ExecutionStatus.SUCCESS, ""
        name = str((self.error or {}).get("ename", "an error"))
        return ExecutionStatus.ERROR, f"The cell raised {name}."
