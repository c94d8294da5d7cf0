"""The host's end of the channel to a guest: one reader, bounded, checked, and the only owner of the process's streams.

Everything that arrives is hostile. A frame outside the protocol, half a frame that stays half, or a closed channel ends
the sandbox with a named reason; nothing that a guest sends can stop the reader, fill the memory or starve the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from agently_kernel.contract.errors import SandboxDied, SandboxError
from agently_kernel.contract.protocols import SandboxProcess
from agently_kernel.guest import wire

Frame: TypeAlias = tuple[dict[str, Any], bytes]
FrameHandler: TypeAlias = Callable[[str, dict[str, Any], bytes], Awaitable[None] | None]
"""Called for every frame that is no answer to a request. An awaitable that it returns is awaited before the next frame
(back-pressure). Raising WireError ends the sandbox."""

READ_SIZE = 256 * 1024
SLICE_FRAMES = 256
SLICE_SECONDS = 0.005
STDERR_KEPT = 64 * 1024
WRITE_BUFFER = 256 * 1024

_ANSWERS = frozenset(("reply", "file", "listing", "stored", "tools", "pong"))


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended: the first program's exit code, and the violation when we ended it for one."""

    returncode: int | None
    violation: str | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Deadlines of a session, in seconds."""

    half_frame: float = 10.0
    write: float = 10.0
    drain_after_death: float = 0.5
    death: float = 5.0


class GuestSession:
    """Owns one guest process's streams from :meth:`start` to :meth:`close`.

    *handler* gets the frames, *on_end* is called once, on the loop, after the last frame has been handled.
    """

    def __init__(
        self,
        process: SandboxProcess,
        handler: FrameHandler,
        on_end: Callable[[SessionEnd], None],
        *,
        timing: Timing = Timing(),
    ) -> None:
        self._process = process
        self._handler = handler
        self._on_end = on_end
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._decoder = wire.Decoder(wire.FROM_GUEST)
        self._stderr = bytearray()
        self._violation: str | None = None
        self._end: asyncio.Future[SessionEnd] = self._loop.create_future()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._held = self._hurried = False
        self.on_late_answer: Callable[[int], None] = lambda number: None
        """Called with the number of a request whose answer came after nobody waited for it any more."""
        self._drain_lock = asyncio.Lock()
        self._next_request = 1
        self._requests: dict[int, asyncio.Queue[Frame | None]] = {}
        self._last_bytes = self._listening_since = 0.0
        self._waiting_for_bytes = False
        self._half_timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to read. Call once."""
        self._tasks = [
            self._loop.create_task(self._read_frames(), name="guest-frames"),
            self._loop.create_task(self._read_stderr(), name="guest-stderr"),
        ]
        self._tasks.append(self._loop.create_task(self._supervise(), name="guest-supervisor"))

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> SessionEnd | None:
        """How the session ended, or None while it lives."""
        return self._end.result() if self._end.done() else None

    @property
    def alive(self) -> bool:
        """True while the guest's first program lives and has kept to the protocol."""
        return not self._end.done() and self._violation is None and self._process.returncode is None

    @property
    def silent(self) -> float:
        """Seconds for which the guest has sent nothing although it was listened to; 0 while it is not."""
        return self._loop.time() - self._listening_since if self._waiting_for_bytes else 0.0

    @property
    def diagnostics(self) -> str:
        """The last 64 KiB of the guest's standard error: untrusted text for people."""
        return bytes(self._stderr).decode("utf-8", "replace")

    async def wait_ended(self, timeout: float | None = None) -> SessionEnd | None:
        """Return how the session ended, or None when it still lives after *timeout* seconds."""
        await asyncio.wait({self._end}, timeout=timeout)
        return self.ended

    def pause(self) -> None:
        """Stop reading frames, so that the guest feels the back-pressure; :meth:`resume` goes on."""
        self._held = True
        self._flow()

    def resume(self) -> None:
        """Read frames again."""
        self._held = False
        self._flow()

    def hurry(self, on: bool) -> None:
        """Read on although :meth:`pause` holds back (*on*), or obey it again: the end of something is waited for."""
        self._hurried = on
        self._flow()

    def _flow(self) -> None:
        if self._held and not self._hurried and self.alive:  # what a dead guest has left is read to its end
            self._flowing.clear()
        else:
            self._flowing.set()

    def kill(self, violation: str | None = None) -> None:
        """End the guest at once; *violation* names the broken rule when that is why. Harmless when it is gone."""
        if violation is not None and self._violation is None and not self._end.done():
            self._violation = violation
        self._flowing.set()
        self._process.kill()

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send one frame, whole or not at all; wait while the guest is slow to read.

        Raises SandboxDied when the session has ended or the guest does not read within the deadline (it is then
        killed), SandboxError when the frame is larger than the protocol allows.
        """
        try:
            frame = wire.encode(dict(header), payload)
        except (wire.WireError, ValueError) as error:
            raise SandboxError(f"The message {header.get('op')} cannot be sent to the guest: {error}.") from error
        if not self.alive:
            raise self.died()
        writer = self._process.stdin
        writer.write(frame)
        if writer.transport.get_write_buffer_size() <= WRITE_BUFFER:
            return
        try:
            await asyncio.wait_for(self._drain(writer), self._timing.write)
        except asyncio.TimeoutError:
            self.kill("the guest did not read what was sent to it")
            raise self.died() from None
        except ConnectionError:
            raise self.died() from None

    async def _drain(self, writer: asyncio.StreamWriter) -> None:
        async with self._drain_lock:  # Python 3.10's drain allows one waiter only
            await writer.drain()

    def died(self) -> SandboxDied:
        """Return the error that says that this session has ended."""
        reason = self._violation or "its first program has ended"
        tail = self.diagnostics.strip()[-2000:]
        return SandboxDied(
            f"The sandbox has ended: {reason}." + (f" Its last words: {tail}" if tail else ""),
            details={"violation": self._violation, "diagnostics": tail},
        )

    @contextlib.asynccontextmanager
    async def requesting(
        self, header: Mapping[str, Any], payload: bytes = b"", *, depth: int = 1
    ) -> AsyncIterator[tuple[int, asyncio.Queue[Frame | None]]]:
        """Send a request; yield its number and where its answers (at most *depth* unread ones) come, None at the end.

        Raises SandboxDied.
        """
        number = self._next_request
        self._next_request += 1
        answers: asyncio.Queue[Frame | None] = asyncio.Queue(depth)
        self._requests[number] = answers
        try:
            await self.send({**header, "request": number}, payload)
            yield number, answers
        finally:
            del self._requests[number]
            while not answers.empty():  # frees a reader that waits to put the next part
                answers.get_nowait()

    async def request(self, header: Mapping[str, Any], payload: bytes = b"", *, timeout: float) -> Frame:
        """Send a request and return its one answer as (header, payload).

        Raises asyncio.TimeoutError after *timeout* seconds (a late answer is dropped), SandboxDied when it ends.
        """
        async with self.requesting(header, payload) as (_, answers):
            frame: Frame | None = await asyncio.wait_for(answers.get(), timeout)
            if frame is None:
                raise self.died()
            return frame

    @contextlib.asynccontextmanager
    async def stream_request(self, header: Mapping[str, Any], *, timeout: float) -> Any:
        """Send a request with many answers; yields an async function that returns the next one.

        Not reading on holds the whole channel back. Each wait raises asyncio.TimeoutError after *timeout* seconds.
        """
        async with self.requesting(header, depth=8) as (_, answers):

            async def following() -> Frame:
                frame: Frame | None = await asyncio.wait_for(answers.get(), timeout)
                if frame is None:
                    raise self.died()
                return frame

            yield following

    # -- receiving -----------------------------------------------------------------------------------------------

    async def _read_frames(self) -> None:
        reader = self._process.stdout
        try:
            while True:
                if not self._flowing.is_set():
                    await self._flowing.wait()
                self._waiting_for_bytes = True
                self._listening_since = self._loop.time()
                data = await reader.read(READ_SIZE)
                self._waiting_for_bytes = False
                if not data:
                    break
                self._last_bytes = self._loop.time()
                await self._handle(data)
        except wire.WireError as error:
            self.kill(f"the guest broke the protocol ({error})")
        except Exception as error:
            # A fault of ours while handling a guest's frame must end this sandbox and not leave a deaf session behind.
            self.kill(f"the host could not handle a message of the guest ({type(error).__name__}: {error})")
        finally:
            self._waiting_for_bytes = False

    async def _handle(self, data: bytes) -> None:
        frames = self._decoder.feed(data, SLICE_FRAMES)
        started = time.monotonic()
        while frames:
            for header, payload in frames:
                if not self._flowing.is_set():
                    await self._flowing.wait()
                    started = time.monotonic()
                waiting = self._dispatch(header, payload)
                if waiting is not None:
                    await waiting
                if time.monotonic() - started > SLICE_SECONDS:
                    await asyncio.sleep(0)
                    started = time.monotonic()
            if len(frames) < SLICE_FRAMES:
                break
            await asyncio.sleep(0)
            started = time.monotonic()
            frames = self._decoder.feed(b"", SLICE_FRAMES)
        if self._decoder.pending and self._half_timer is None:
            self._half_timer = self._loop.call_later(self._timing.half_frame, self._check_half_frame)

    def _check_half_frame(self) -> None:
        self._half_timer = None
        if not self._decoder.pending or self._end.done():
            return
        silent = self._loop.time() - self._last_bytes
        if self._waiting_for_bytes and silent >= self._timing.half_frame:
            self.kill(f"the guest left half a message for {silent:.0f} seconds")
            return
        # Still flowing, or it is we who do not read: look again when the silence could be long enough.
        wait = max(0.01, self._timing.half_frame - silent if self._waiting_for_bytes else self._timing.half_frame)
        self._half_timer = self._loop.call_later(wait, self._check_half_frame)

    def _dispatch(self, header: dict[str, Any], payload: bytes) -> Awaitable[None] | None:
        op: str = header["op"]
        if op not in _ANSWERS:
            return self._handler(op, header, payload)
        number = header["request"]
        answers = self._requests.get(number)
        if answers is None:
            if not 0 < number < self._next_request:
                raise wire.WireError(f"op {op} answers request {number}, which was never made")
            self.on_late_answer(number)
            return None
        if not answers.full():
            answers.put_nowait((header, payload))
            return None
        if op != "file":
            raise wire.WireError(f"request {number} was answered more than once")
        return answers.put((header, payload))

    async def _read_stderr(self) -> None:
        with contextlib.suppress(Exception):
            while data := await self._process.stderr.read(STDERR_KEPT):
                self._stderr += data
                del self._stderr[:-STDERR_KEPT]
                await asyncio.sleep(0)

    # -- the end -------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        frames, errors, _ = self._tasks
        ended = self._loop.create_task(self._process.wait(), name="guest-wait")
        try:
            await asyncio.wait({ended, frames}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                # The channel is closed: a guest that is really ending is gone in a moment.
                await asyncio.wait({ended}, timeout=self._timing.drain_after_death)
                if not ended.done():
                    self.kill(None if self._violation else "the guest closed its channel")
                    await asyncio.wait({ended}, timeout=self._timing.death)
            self._flowing.set()
            # What was written before the end is still in the pipes; a grandchild that holds them is not waited for.
            await asyncio.wait({frames, errors}, timeout=self._timing.drain_after_death)
        finally:
            for task in (frames, errors, ended):
                task.cancel()
            if self._half_timer is not None:
                self._half_timer.cancel()
            code = ended.result() if ended.done() and not ended.cancelled() and ended.exception() is None else None
            end = SessionEnd(code, self._violation)
            if not self._end.done():
                self._end.set_result(end)
            for answers in list(self._requests.values()):
                while answers.full():
                    answers.get_nowait()
                answers.put_nowait(None)
            self._on_end(end)

    async def close(self) -> None:
        """Kill the guest if it lives, and end all tasks and streams. Idempotent."""
        self.kill()
        await self.wait_ended(self._timing.death + 2 * self._timing.drain_after_death)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            self._process.stdin.close()
