"""Text of the interpreter: to the cell it belongs to, in order with displays and with what child processes print.

Text of the running cell is written to descriptor 1 or 2, where the output of its child processes and C libraries goes
too. Text of another cell (its threads and tasks may print long after its end) travels as ``text`` frames that name it.
"""

from __future__ import annotations

import contextvars
import io
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from . import wire
from .channel import Channel, ChannelClosed, write_whole

FLUSH_CHARACTERS = 8192
FLUSH_SECONDS = 0.015
MOST_OWNERS = 32
SPAWNS = frozenset((
    "subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn",
))
_OWNER = "_cell_of_starter"
_current_thread = threading.current_thread
_get_ident = threading.get_ident


class Router:
    """Knows which cell runs, whose output a caller writes, and keeps the two streams and the frames in order."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.running = ""
        self.last = ""
        self.cell: "contextvars.ContextVar[str]" = contextvars.ContextVar("cell")
        self.lock = channel.lock
        self.streams: List["GuestStream"] = []
        self.written = ""  # the stream whose text went to its pipe since the last fence
        self.latest: List[Optional[GuestStream]] = [None]  # the stream that was written to last
        self._main = _get_ident()
        self._wake = threading.Event()

    def owner(self) -> str:
        """Return the cell that the calling code belongs to: of its context, of its thread's starter, or the running
        one."""
        cell = self.cell.get("")
        if cell:
            return cell
        if _get_ident() != self._main:
            cell = getattr(_current_thread(), _OWNER, "")
            if cell:
                return cell
        return self.running or self.last

    def belong_to(self, cell: str) -> "contextvars.Token[str]":
        """Let the calling context's output belong to *cell*; the token undoes it."""
        return self.cell.set(cell)

    def follow_running(self, token: "contextvars.Token[str]") -> None:
        """Undo ``belong_to``. A thread that does so follows the running cell from then on, not its starter's."""
        self.cell.reset(token)
        if _get_ident() != self._main:
            setattr(_current_thread(), _OWNER, "")

    def install(self) -> None:
        """Replace sys.stdout and sys.stderr, follow threads to their starters, and flush before processes are
        started."""
        self.streams = [GuestStream(self, "stdout", 1), GuestStream(self, "stderr", 2)]
        sys.stdout, sys.stderr = self.streams
        start = threading.Thread.start
        router = self

        def start_thread(thread: threading.Thread) -> None:
            setattr(thread, _OWNER, router.owner())
            start(thread)

        start_thread.__doc__ = start.__doc__
        flusher = threading.Thread(target=self._flush_often, name="output flusher", daemon=True)
        flusher.start()
        threading.Thread.start = start_thread  # type: ignore[method-assign,assignment]
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)
        sys.addaudithook(self._audit)

    def begin(self, cell: str) -> None:
        """*cell* runs from now on."""
        self.running = self.last = cell
        self.cell.set(cell)

    def end(self) -> None:
        """No cell runs any more."""
        self.flush()
        self.running = ""

    def send(self, header: Dict[str, Any], payload: bytes = b"", *, hold: bool = False) -> None:
        """Send a frame after all text that was written before it; *hold* as in ``Channel.send``. Does nothing in a
        forked child."""
        with self.lock:
            self.flush()
            self.written = ""  # init empties both pipes before it passes the frame on
            try:
                self.channel.send(header, payload, hold=hold)
            except ChannelClosed:
                if self.channel.open:
                    raise

    def flush(self) -> None:
        """Write out what both streams hold, in the order in which it was written."""
        for stream in self.streams:
            stream.flush_text()

    def settle(self) -> None:
        """Flush, and wait until init has passed on everything: what a child prints now comes after it."""
        with self.lock:
            self.flush()
        self.channel.fence()

    def turn_to(self, name: str) -> None:
        """Call before text of stream *name* goes to its pipe: wait for frames and for text of the other stream."""
        if self.written and self.written != name and self.channel.open:
            try:
                self.channel.send({"op": "text", "name": name, "cell": self.running})
            except ChannelClosed:
                pass
        self.channel.fence()
        self.written = name

    def wake_flusher(self) -> None:
        """Have the text that has just begun to wait flushed soon."""
        self._wake.set()

    def _flush_often(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            time.sleep(FLUSH_SECONDS)
            try:
                self.flush()
            except (OSError, ChannelClosed):
                pass  # closed by the user, or the sandbox is ending

    def _audit(self, event: str, _: Any) -> None:
        if event in SPAWNS:
            self.settle()
            self.written = "either"  # who knows where the child writes

    def _before_fork(self) -> None:
        self.lock.acquire()
        self.flush()

    def _after_fork(self) -> None:
        self.lock.release()

    def _in_child(self) -> None:
        self.lock = self.channel.lock = threading.RLock()
        for stream in self.streams:
            stream.forget()
        try:
            os.close(self.channel.fd)
        except OSError:
            pass
        self._wake = threading.Event()
        self.latest[0] = None


_WRITER, _SIZE, _DUE = 0, 1, 2
"""What a stream keeps of the moment: the cell that wrote last and what its text is appended to; the characters that
wait; whether the other thread is going to flush them."""
_NOTHING: Tuple[Any, ...] = (("", [].append), 0, False)


class GuestStream(io.TextIOBase):
    """sys.stdout or sys.stderr of the interpreter."""

    def __init__(self, router: Router, name: str, fd: int) -> None:
        super().__init__()
        self._router = router
        self._name = name
        self._fd = fd
        self._waiting: Dict[str, List[str]] = {}  # text by the cell that it belongs to
        self._now: List[Any] = list(_NOTHING)
        self.write = self._quick()  # type: ignore[method-assign]
        self._binary = _Binary(self)
        self._lock = router.lock

    @property
    def name(self) -> str:
        return "<%s>" % self._name

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "UTF-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    @property
    def buffer(self) -> "_Binary":
        return self._binary

    @property
    def line_buffering(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def _is_master_process(self) -> bool:
        """False in a forked child. Libraries ask the stream of a notebook by this name."""
        return self._router.channel.open

    def reconfigure(self, **_: Any) -> None:
        """Accepted for programs that set encoding or buffering; both stay as they are."""

    def close(self) -> None:
        """A cell cannot close the stream of the cells after it."""
        self.flush()

    def _quick(self) -> Callable[[str], int]:
        """Return ``write`` for nearly every call: a loop that prints spends its time here, so it takes no lock.

        Cell and list are read as one, so that text goes to its own cell even when another thread takes over meanwhile.
        """
        now, latest, cell, stream = self._now, self._router.latest, self._router.cell.get, self
        slowly, flush_soon = self._write, self._flush_soon

        def write(text: str) -> int:
            owner, append = now[_WRITER]
            if text.__class__ is str and cell("") == owner and latest[0] is stream:
                append(text)
                count = len(text)
                now[_SIZE] = size = now[_SIZE] + count + 1
                if size >= FLUSH_CHARACTERS or not now[_DUE]:
                    flush_soon()
                return count
            return slowly(text)

        return write

    def _write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        if text:
            owner = self._router.owner()
            with self._lock:
                if self._now[_WRITER][0] != owner or self._router.latest[0] is not self:
                    self._router.flush()  # text of the other stream, or of another cell, was written before this
                    self._turn_to(owner)
                self._now[_WRITER][1](str(text))
                self._now[_SIZE] += len(text) + 1
                self._flush_soon()
        return len(text)

    def _turn_to(self, owner: str) -> None:
        """Let text that is written from now on belong to *owner*. Needs the lock."""
        if len(self._waiting) >= MOST_OWNERS:
            for cell in [cell for cell, parts in self._waiting.items() if not parts][: MOST_OWNERS // 2]:
                del self._waiting[cell]
        self._now[_WRITER] = (owner, self._waiting.setdefault(owner, []).append)
        self._router.latest[0] = self

    def _flush_soon(self) -> None:
        """Flush when much waits, and in a forked child, which has no thread that would; else have it done soon."""
        if self._now[_SIZE] >= FLUSH_CHARACTERS or not self._router.channel.open:
            self.flush_text()
        else:
            self._now[_DUE] = True
            self._router.wake_flusher()

    def writelines(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write out what waits; bytes that are written to the descriptor after this come after it, and after
        displays."""
        self.flush_text()
        self._router.channel.fence()

    def flush_text(self) -> None:
        """Write out what waits."""
        now = self._now
        if not now[_SIZE]:
            return
        with self._lock:
            now[_SIZE], now[_DUE] = 0, False  # before the lists are read: later writers ask for a flush again
            for owner, parts in tuple(self._waiting.items()):
                count = len(parts)
                data = "".join(parts[:count]).encode("utf-8", "backslashreplace")
                progress: List[int] = []
                try:
                    if data:
                        self.emit(owner, data, progress)
                    del parts[:count]
                except BaseException:
                    if progress:
                        del parts[:count]
                    else:  # a Stop came before anything went out: the text is not lost
                        self._now[_SIZE] += len(data)
                    raise

    def emit(self, owner: str, data: bytes, progress: List[int]) -> None:
        """Write bytes that belong to cell *owner*; *progress* tells afterwards whether any went out. Needs the lock."""
        router = self._router
        if not owner or owner == router.running or not router.channel.open:
            router.turn_to(self._name)
            try:
                write_whole(self._fd, data, progress)
                return
            except OSError:  # a cell has closed the descriptor: the channel still works
                if not router.channel.open:
                    return
        header = {"op": "text", "name": self._name, "cell": owner or router.last}
        for at in range(0, len(data), wire.STREAM_CHUNK):
            router.channel.send(header, data[at : at + wire.STREAM_CHUNK])
            progress.append(1)

    def forget(self) -> None:
        """In a forked child: what the parent had not written is the parent's."""
        self._waiting, self._lock, self._now[:] = {}, self._router.lock, _NOTHING


class _Binary(io.RawIOBase):
    """``sys.stdout.buffer``: bytes straight to the descriptor, after the text before them."""

    def __init__(self, stream: GuestStream) -> None:
        super().__init__()
        self._stream = stream

    @property
    def raw(self) -> "_Binary":
        return self

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        plain = bytes(data)
        with self._stream._router.lock:
            self._stream.flush_text()
            self._stream.emit(self._stream._router.owner(), plain, [])
        return len(plain)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Stays open, like its stream."""


def text_of(value: Any, fallback: str) -> str:
    """Return str(*value*), or *fallback* when that raises, whatever it raises."""
    try:
        return str(value)
    except BaseException:
        return fallback


