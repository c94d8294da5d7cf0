"""Init's care of the interpreter: forks it, relays its frames in order, interrupts and ends it, tells how it ended."""

from __future__ import annotations

import os
import selectors
import signal
import struct
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Set

from . import children, wire
from .turns import Turns, how_it_ended

INBOX_BYTES = 32 * 1024 * 1024
HALF_FRAME_SECONDS = 10.0
READ_BYTES = 64 * 1024  # as in init
_COUNTER = struct.Struct("=Q")
_QUESTIONS = frozenset(("complete", "inspect", "is_complete", "history"))


class BecomeInterpreter(BaseException):
    """Raised in a forked child: whoever started init must now run the interpreter with ``start``."""

    def __init__(self, start: "Start") -> None:
        super().__init__("forked")
        self.start = start


class Start:
    """What a new interpreter is given: its channel's descriptor, the shared counter and ``boot.interpreter``."""

    def __init__(self, ends: children.ChildEnds, config: Dict[str, Any]) -> None:
        self.sock = ends.sock
        self.counter = ends.counter
        self.config = config


class Interpreter:
    """What init knows of one interpreter."""

    def __init__(self, generation: int, ends: children.InterpreterEnds) -> None:
        self.generation = generation
        self.pid = ends.pid
        self.sock = ends.sock
        self.out = ends.out
        self.err = ends.err
        self.counter = ends.counter
        self.decoder = wire.Decoder(wire.INSIDE)
        self.relayed = 0
        self.inbox: Deque[memoryview] = deque()
        self.inbox_size = 0
        self.cells: Deque[str] = deque()  # cells passed on whose `done` has not come, the next one first
        self.beside: Set[str] = set()  # cells of subshells passed on whose `done` has not come
        self.questions: Set[int] = set()  # requests passed on whose `reply` has not come
        self.busy = False
        self.cell = ""  # the cell that bytes on descriptors 1 and 2 belong to
        self.interrupt = False  # Stop came between `execute` and `busy`
        self.last_bytes = 0.0  # when the last bytes of an unfinished frame came
        self.condemned = False  # broke the protocol, or closed its channel: it is being killed


class Resident:
    """Keeps at most one interpreter."""

    def __init__(self, turns: Turns, config: Dict[str, Any], unchanged: Callable[[], bool]) -> None:
        """*unchanged* tells at a cell's end whether the host knows the list of its outputs already."""
        self._turns = turns
        self._unchanged = unchanged
        self._config = config
        self._now: Optional[Interpreter] = None
        turns.on_pause.append(self._watch)

    @property
    def pid(self) -> Optional[int]:
        """The interpreter's pid, or None."""
        return self._now.pid if self._now is not None else None

    def set_environment(self, variables: Dict[str, str]) -> None:
        """Give the interpreter that lives, and those that follow, these variables too."""
        self._config = dict(self._config, env=dict(self._config.get("env") or {}, **variables))
        self.forward({"op": "environ", "set": variables}, b"")

    def start(self, generation: int) -> None:
        """Fork a new interpreter; there must be none. Raises BecomeInterpreter in the child."""
        frame = {"op": "interpreter", "generation": generation}
        try:
            ends = children.fork_interpreter(self._turns.selector.close)
        except children.StartError as error:
            self._turns.writer.frame(dict(frame, state="exited", reason=str(error)))
            return
        if isinstance(ends, children.ChildEnds):
            raise BecomeInterpreter(Start(ends, self._config))
        self._now = Interpreter(generation, ends)
        self._watch()
        for fd in (ends.out, ends.err):
            self._turns.add_source(fd, lambda: self.drain(told=True))
        self._turns.writer.frame(dict(frame, state="started", pid=ends.pid))

    # -- to the interpreter --------------------------------------------------------------------------------------------

    def forward(self, header: Dict[str, Any], payload: bytes) -> None:
        """Pass a frame on to the interpreter; without one it is dropped, for the host has been told of its end."""
        now = self._now
        if now is None or now.condemned:
            return
        if header["op"] == "execute":
            if not now.cells:
                self.drain()  # what anybody writes to 1 and 2 from here on belongs to this cell
                now.cell = header["cell"]
            if header["options"].get("subshell"):
                now.beside.add(header["cell"])
            else:
                now.cells.append(header["cell"])
        elif header["op"] in _QUESTIONS:
            now.questions.add(header["request"])
        frame = wire.encode(header, payload)
        now.inbox.append(memoryview(frame))
        now.inbox_size += len(frame)
        if now.inbox_size > INBOX_BYTES + len(frame):
            self._violated("it did not read %d MiB of messages" % (now.inbox_size >> 20))
        else:
            self._pump()

    def _pump(self) -> None:
        now = self._now
        if now is None:
            return
        while now.inbox:
            view = now.inbox[0]
            try:
                sent = now.sock.send(view)
            except BlockingIOError:
                break
            except OSError:
                now.inbox.clear()  # it is dying; its end comes with SIGCHLD
                now.inbox_size = 0
                break
            now.inbox_size -= sent
            if sent == len(view):
                now.inbox.popleft()
            else:
                now.inbox[0] = view[sent:]
        self._watch()

    def interrupt(self) -> None:
        """SIGINT to the interpreter and all its children if a cell runs; remembered while one is about to. What else
        the interpreter may be doing for the user is ended too: the cell may be waiting for that."""
        now = self._now
        if now is None:
            return
        if now.busy:
            self._signal(now)
        else:
            now.interrupt = bool(now.cells)
            self.forward({"op": "stop_idle"}, b"")

    @staticmethod
    def _signal(now: Interpreter) -> None:
        try:
            os.killpg(now.pid, signal.SIGINT)
        except OSError:
            pass  # it has just ended

    def kill(self) -> None:
        """SIGKILL the interpreter and all its descendants. Its end is told when it is reaped."""
        if self._now is not None:
            children.kill_tree([self._now.pid])

    # -- from the interpreter ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        now = self._now
        if now is None:
            return
        events = selectors.EVENT_WRITE if now.inbox else 0
        events |= 0 if self._turns.paused else selectors.EVENT_READ
        self._turns.watch(now.sock, 0 if now.condemned else events, self._ready)

    def _ready(self) -> None:
        if not self._turns.paused:
            self._receive()
        self._pump()

    def _receive(self) -> None:
        now = self._now
        if now is None or now.condemned:
            return
        try:
            data = now.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # it closed its end: if it is not dead, it is of no use any more
            self._condemn(now)
            return
        self._take(now, data)
        if now.decoder.pending and not now.last_bytes:
            self._turns.later(HALF_FRAME_SECONDS, lambda: self._check_half_frame(now))
        now.last_bytes = time.monotonic() if now.decoder.pending else 0.0

    def _check_half_frame(self, now: Interpreter) -> None:
        if now is not self._now or now.condemned or not now.last_bytes:
            return
        silent = time.monotonic() - now.last_bytes
        if silent >= HALF_FRAME_SECONDS and not self._turns.paused:
            self._violated("it left half a message for %d seconds" % silent)
        else:
            self._turns.later(HALF_FRAME_SECONDS, lambda: self._check_half_frame(now))

    def _take(self, now: Interpreter, data: bytes) -> None:
        """Pass on the frames in *data*, each after the text that was written before it.

        Text that the interpreter writes after a frame waits until that has been passed on, so that none was written
        between two that came together.
        """
        try:
            frames = now.decoder.feed(data)
        except wire.WireError as error:
            self._violated(str(error))
            return
        drained = False
        for header, payload in frames:
            op = header["op"]
            if not drained and not (op == "busy" and header["cell"] == now.cell):  # that is passed on to nobody
                self.drain()
                drained = True
            reason = self._out_of_turn(now, header)
            if reason:
                self._violated(reason)
                return
            now.relayed += 1
            _COUNTER.pack_into(now.counter, 0, now.relayed)
            if op == "ready":
                header = {
                    "op": "interpreter", "generation": now.generation, "state": "ready", "pid": now.pid,
                    "mode": header["mode"], "info": header["info"],
                }
            elif op == "busy":
                now.busy, now.cell = True, header["cell"]
                if now.interrupt:
                    now.interrupt = False
                    self._signal(now)
                continue
            elif op == "done":
                if header["cell"] in now.beside:
                    now.beside.discard(header["cell"])
                else:
                    now.busy = False
                    now.cells.popleft()
                if self._unchanged():
                    header["unchanged"] = True
            elif op == "reply":
                now.questions.discard(header["request"])
            elif op == "text" and not payload:
                continue  # only there to have the pipes emptied
            self._turns.writer.frame(header, payload)

    @staticmethod
    def _out_of_turn(now: Interpreter, header: Dict[str, Any]) -> str:
        """Take the frame's number off, and return why an honest interpreter would not send it now, else nothing."""
        op, number = header["op"], header.pop("n")
        if number != now.relayed + 1:
            return "message %d came where %d was due: something else wrote to the interpreter's channel" % (
                number, now.relayed + 1
            )
        main = bool(now.cells) and header.get("cell") == now.cells[0]
        if op == "busy" and not main or op == "done" and not main and header["cell"] not in now.beside:
            return "it said that a cell %s which was not to run now" % ("began" if op == "busy" else "ended")
        if op == "busy" and now.busy:
            return "it said twice that a cell began"
        if op == "reply" and header["request"] not in now.questions:
            return "it answered a question that was not put, or not any more"
        return ""

    def drain(self, *, told: bool = False) -> None:
        """Pass on what the interpreter's pipes hold at this moment, standard output first; *told* as for ``Turns``."""
        now = self._now
        if now is None:
            return
        header = {"op": "stream", "name": "stdout"}
        if now.cell:
            header["cell"] = now.cell
        now.out = self._turns.drain(now.out, header, told=told)
        header["name"] = "stderr"
        now.err = self._turns.drain(now.err, header, told=told)

    def _violated(self, reason: str) -> None:
        if self._now is not None and not self._now.condemned:
            self._turns.writer.frame({"op": "violation", "reason": reason[:2000]})
            self._condemn(self._now)

    def _condemn(self, now: Interpreter) -> None:
        now.condemned = True
        self._watch()
        children.kill_tree([now.pid])

    def ended(self, status: int) -> None:
        """The interpreter was reaped: pass on what is whole of its last words, tell its end. Half a frame is
        dropped."""
        now = self._now
        if now is None:
            return
        while not now.condemned:
            try:
                data = now.sock.recv(READ_BYTES)
            except OSError:
                break
            if not data:
                break
            self._take(now, data)
        self.drain()
        now.condemned = True
        self._watch()
        now.sock.close()
        for fd in (now.out, now.err):
            if fd >= 0:
                self._turns.drop_source(fd)
        now.counter.close()
        self._now = None
        header = {"op": "interpreter", "generation": now.generation, "state": "exited", "pid": now.pid}
        self._turns.writer.frame(dict(header, **how_it_ended(status)))
