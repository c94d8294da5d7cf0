"""The first process of a sandbox: forks interpreters and steps, reaps, relays, delivers signals, survives their deaths.

One selector loop, one thread. Init is the only writer on the host's channel. Interpreters speak over a socket pair;
what anybody writes to descriptors 1 and 2 arrives over pipes that init reads. Before a frame of the interpreter is passed
on, those pipes are emptied, and a counter that the interpreter shares tells it that this has happened: so text and
displays keep their order.
"""

from __future__ import annotations

import gc
import os
import select
import selectors
import signal
import struct
import sys
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple

from . import children, files, wire
from .relay import HostGone, HostWriter, waiting_bytes

INBOX_BYTES = 32 * 1024 * 1024
HALF_FRAME_SECONDS = 10.0
TOOL_SECONDS = 5.0
TOOL_BYTES = 8 * 1024
READ_BYTES = 256 * 1024
NO_ACTIVITY = 3600.0
_COUNTER = struct.Struct("=Q")
_INSIDE = dict(wire.FROM_INTERPRETER, ready=wire.READY)
_TO_INIT = dict(wire.TO_INIT, **wire.TO_INTERPRETER)


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
    """Init's view of one interpreter."""

    def __init__(self, generation: int, ends: children.InterpreterEnds) -> None:
        self.generation = generation
        self.pid = ends.pid
        self.sock = ends.sock
        self.out = ends.out
        self.err = ends.err
        self.counter = ends.counter
        self.decoder = wire.Decoder(_INSIDE)
        self.relayed = 0
        self.inbox: Deque[memoryview] = deque()
        self.inbox_size = 0
        self.waiting = 0  # cells passed on whose `done` has not come
        self.busy = False
        self.cell = ""  # the cell that bytes on descriptors 1 and 2 belong to
        self.interrupt = False  # Stop came between `execute` and `busy`
        self.last_bytes = 0.0
        self.violation = ""


class Step:
    """A program that init runs for the host. ``capture`` is set for tools: kept here instead of streamed."""

    def __init__(self, name: str, pid: int, feed: Optional[int], stdin: bytes, out: int, err: int) -> None:
        self.name = name
        self.pid = pid
        self.feed = feed
        self.stdin = memoryview(stdin)
        self.out = out
        self.err = err
        self.started = time.monotonic()
        self.capture: Optional[bytearray] = None
        self.on_end: Optional[Callable[["Step"], None]] = None


class Init:
    """The loop and all it owns. ``run`` returns the exit code, or raises BecomeInterpreter in a forked child."""

    def __init__(self, channel_in: int, channel_out: int, boot: Dict[str, Any], report: Dict[str, Any]) -> None:
        self._in = channel_in
        self._boot = {"nonce": boot["nonce"]}
        self._config: Dict[str, Any] = boot["interpreter"]
        self._roots: Dict[str, str] = self._config.get("roots") or {}
        self._report = report
        self._selector = selectors.DefaultSelector()
        self._writer = HostWriter(channel_out, self._watch_host)
        self._watching_host = False
        self._paused = False
        self._decoder = wire.Decoder(_TO_INIT)
        self._interpreter: Optional[Interpreter] = None
        self._steps: Dict[str, Step] = {}
        self._orphans: Set[int] = set()
        self._sending: Deque[Iterator[Tuple[Dict[str, Any], bytes]]] = deque()
        self._timers: List[Tuple[float, Callable[[], None]]] = []
        self._ending: Optional[float] = None
        self._code: Optional[int] = None

    # -- life ----------------------------------------------------------------------------------------------------------

    def run(self, observations: List[Dict[str, Any]]) -> int:
        """Greet the host, serve until it says shutdown or goes away, end everything, and return the exit code."""
        os.set_blocking(self._in, False)
        for fd in (self._in, self._writer.fd):
            children.enlarge(fd)
        children.prctl(children.PR_SET_CHILD_SUBREAPER, 1)
        self._wake_r, self._wake_w = os.pipe()
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler of Python's, so that the wake-up descriptor is written
        signal.signal(signal.SIGTERM, self._terminated)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._selector.register(self._in, selectors.EVENT_READ, self._from_host)
        self._selector.register(self._wake_r, selectors.EVENT_READ, self._reap)
        gc.collect()
        gc.freeze()
        try:
            self._greet(observations)
            while self._code is None:
                self._turn()
        except HostGone:
            self._code = 0
        except BecomeInterpreter:
            raise
        except BaseException:
            self._kill_everything()
            raise
        self._kill_everything()
        try:
            self._flush(1.0)
        except HostGone:
            pass
        return self._code or 0

    def _greet(self, observations: List[Dict[str, Any]]) -> None:
        nonce = self._boot["nonce"]
        self._writer.frame({
            "op": "hello", "protocol": wire.PROTOCOL, "nonce": nonce, "python": "%d.%d.%d" % sys.version_info[:3],
            "pid": os.getpid(), "stage1": self._report,
        })
        import json

        self._writer.frame({"op": "probe", "nonce": nonce}, json.dumps(observations).encode("ascii"))

    def _turn(self) -> None:
        """Wait for the next thing to do and do it."""
        wait = NO_ACTIVITY
        if self._timers:
            wait = min(when for when, _ in self._timers) - time.monotonic()
        if self._sending and not self._writer.full:
            wait = 0.0
        for key, _ in self._selector.select(max(0.0, wait)):
            if key.fd in self._selector.get_map() and self._selector.get_key(key.fd) is key:
                key.data()
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        if due:
            self._timers = [timer for timer in self._timers if timer[0] > now]
            for _, action in due:
                action()
        self._send_files()
        self._balance()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, action))

    def _terminated(self, *_: Any) -> None:
        self._code = 128 + signal.SIGTERM

    def _kill_everything(self) -> None:
        """SIGKILL every descendant and wait for what can be waited for, at most a second."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            children.kill_tree(children.children_of(os.getpid()) | self._own_pids())
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.002)

    def _own_pids(self) -> Set[int]:
        pids = {step.pid for step in self._steps.values()}
        if self._interpreter is not None:
            pids.add(self._interpreter.pid)
        return pids

    def _flush(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._writer.waiting and time.monotonic() < deadline:
            self._writer.pump()
            time.sleep(0.001)

    # -- the host's channel --------------------------------------------------------------------------------------------

    def _watch_host(self) -> None:
        if self._writer.waiting != self._watching_host:
            self._watching_host = self._writer.waiting
            if self._watching_host:
                self._selector.register(self._writer.fd, selectors.EVENT_WRITE, self._writer.pump)
            else:
                self._selector.unregister(self._writer.fd)

    def _balance(self) -> None:
        """Stop reading from the inside while the host does not take what is there already; go on later."""
        if self._writer.full != self._paused and (self._writer.full or self._writer.drained):
            self._paused = self._writer.full
            for fd, action in self._sources():
                if self._paused:
                    self._selector.unregister(fd)
                else:
                    self._selector.register(fd, selectors.EVENT_READ, action)
            self._watch_interpreter()

    def _sources(self) -> List[Tuple[int, Callable[[], None]]]:
        found: List[Tuple[int, Callable[[], None]]] = []
        if self._interpreter is not None:
            for fd in (self._interpreter.out, self._interpreter.err):
                if fd >= 0:
                    found.append((fd, self._drain_interpreter))
        for step in self._steps.values():
            for fd in (step.out, step.err):
                if fd >= 0:
                    found.append((fd, lambda step=step: self._drain_step(step)))  # type: ignore[misc]
        return found

    def _add_source(self, fd: int, action: Callable[[], None]) -> None:
        if not self._paused:
            self._selector.register(fd, selectors.EVENT_READ, action)

    def _drop_source(self, fd: int) -> None:
        if not self._paused:
            self._selector.unregister(fd)
        os.close(fd)

    def _from_host(self) -> None:
        try:
            data = os.read(self._in, READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise HostGone(str(error))
        if not data:
            raise HostGone("the host closed the channel")
        for header, payload in self._decoder.feed(data):
            op = header["op"]
            if op in wire.TO_INTERPRETER:
                self._to_interpreter(header, payload)
            else:
                getattr(self, "_op_" + op)(header, payload)

    # -- interpreters --------------------------------------------------------------------------------------------------

    def _op_start(self, header: Dict[str, Any], _: bytes) -> None:
        generation = header["generation"]
        if self._interpreter is not None:
            self._kill_interpreter()
            os.waitid(os.P_PID, self._interpreter.pid, os.WEXITED | os.WNOWAIT)
            self._reap()
        try:
            ends, child = children.fork_interpreter(self._selector.close)
        except children.StartError as error:
            self._writer.frame({"op": "interpreter", "generation": generation, "state": "exited", "reason": str(error)})
            return
        if child is not None:
            raise BecomeInterpreter(Start(child, self._config))
        assert ends is not None
        self._interpreter = interpreter = Interpreter(generation, ends)
        self._watch_interpreter()
        for fd in (ends.out, ends.err):
            self._add_source(fd, self._drain_interpreter)
        self._writer.frame({"op": "interpreter", "generation": generation, "state": "started", "pid": interpreter.pid})

    def _to_interpreter(self, header: Dict[str, Any], payload: bytes) -> None:
        interpreter = self._interpreter
        if interpreter is None:
            return  # the host has been told of its end
        if header["op"] == "execute":
            interpreter.waiting += 1
        frame = wire.encode(header, payload)
        interpreter.inbox.append(memoryview(frame))
        interpreter.inbox_size += len(frame)
        if interpreter.inbox_size > INBOX_BYTES:
            self._violated("it did not read %d MiB of messages" % (interpreter.inbox_size >> 20))
        else:
            self._pump_inbox()

    def _pump_inbox(self) -> None:
        interpreter = self._interpreter
        if interpreter is None:
            return
        while interpreter.inbox:
            view = interpreter.inbox[0]
            try:
                sent = interpreter.sock.send(view)
            except BlockingIOError:
                break
            except OSError:
                interpreter.inbox.clear()  # it is dying; its end comes by SIGCHLD
                interpreter.inbox_size = 0
                break
            interpreter.inbox_size -= sent
            if sent == len(view):
                interpreter.inbox.popleft()
            else:
                interpreter.inbox[0] = view[sent:]
        self._watch_interpreter()

    def _watch_interpreter(self) -> None:
        interpreter = self._interpreter
        if interpreter is None or interpreter.violation:
            return
        wanted = selectors.EVENT_WRITE if interpreter.inbox else 0
        wanted |= 0 if self._writer.full else selectors.EVENT_READ
        known = self._selector.get_map().get(interpreter.sock)
        if known is None and wanted:
            self._selector.register(interpreter.sock, wanted, self._interpreter_ready)
        elif known is not None and not wanted:
            self._selector.unregister(interpreter.sock)
        elif known is not None and (known.events != wanted or known.data != self._interpreter_ready):
            self._selector.modify(interpreter.sock, wanted, self._interpreter_ready)

    def _interpreter_ready(self) -> None:
        self._from_interpreter()
        self._pump_inbox()

    def _from_interpreter(self) -> None:
        interpreter = self._interpreter
        if interpreter is None or self._writer.full:
            self._watch_interpreter()
            return
        try:
            data = interpreter.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # it closed its end; if it is not dead, it is of no use any more
            self._selector.unregister(interpreter.sock)
            if not interpreter.violation:
                interpreter.violation = "closed"
                children.kill_tree([interpreter.pid])
            return
        self._take(interpreter, data)
        if interpreter.decoder.pending and not interpreter.last_bytes:
            self._later(HALF_FRAME_SECONDS, lambda: self._check_half_frame(interpreter))
        interpreter.last_bytes = time.monotonic() if interpreter.decoder.pending else 0.0

    def _check_half_frame(self, interpreter: Interpreter) -> None:
        if interpreter is not self._interpreter or not interpreter.last_bytes:
            return
        silent = time.monotonic() - interpreter.last_bytes
        if silent >= HALF_FRAME_SECONDS and not self._writer.full:
            self._violated("it left half a message for %d seconds" % silent)
        else:
            self._later(HALF_FRAME_SECONDS, lambda: self._check_half_frame(interpreter))

    def _take(self, interpreter: Interpreter, data: bytes) -> None:
        """Pass on the frames in *data*, each after the text that was written before it."""
        try:
            frames = interpreter.decoder.feed(data)
        except wire.WireError as error:
            self._violated(str(error))
            return
        for header, payload in frames:
            self._drain_interpreter()
            interpreter.relayed += 1
            _COUNTER.pack_into(interpreter.counter, 0, interpreter.relayed)
            op = header["op"]
            if op == "ready":
                self._writer.frame({
                    "op": "interpreter", "generation": interpreter.generation, "state": "ready", "pid": interpreter.pid,
                    "mode": header["mode"], "info": header["info"],
                })
                continue
            if op == "text" and not payload:
                continue  # only there to have the pipes emptied
            if op == "busy":
                interpreter.busy, interpreter.cell = True, header["cell"]
                if interpreter.interrupt:
                    interpreter.interrupt = False
                    self._signal_interpreter()
            elif op == "done":
                interpreter.busy = False
                interpreter.waiting = max(0, interpreter.waiting - 1)
            self._writer.frame(header, payload)

    def _drain_interpreter(self) -> None:
        """Pass on what the interpreter's pipes hold at this moment, standard output first."""
        interpreter = self._interpreter
        if interpreter is None:
            return
        header = {"op": "stream", "name": "", "cell": interpreter.cell}
        if not interpreter.cell:
            del header["cell"]
        for name in ("out", "err"):
            header["name"] = "std" + name
            setattr(interpreter, name, self._drain(getattr(interpreter, name), header))

    def _drain(self, fd: int, header: Dict[str, Any]) -> int:
        """Pass on what a pipe holds at this moment; return *fd*, or -1 when it was closed because nobody writes to it."""
        if fd < 0:
            return fd
        left = waiting_bytes(fd)
        if not left and _hung_up(fd):
            self._drop_source(fd)
            return -1
        while left > 0:
            sent = self._writer.stream(header, fd, left)
            if not sent:
                break
            left -= sent
        return fd

    def _violated(self, reason: str) -> None:
        interpreter = self._interpreter
        if interpreter is None or interpreter.violation:
            return
        interpreter.violation = reason
        if self._selector.get_map().get(interpreter.sock) is not None:
            self._selector.unregister(interpreter.sock)
        self._writer.frame({"op": "violation", "reason": reason[:2000]})
        children.kill_tree([interpreter.pid])

    def _signal_interpreter(self) -> None:
        if self._interpreter is not None:
            try:
                os.killpg(self._interpreter.pid, signal.SIGINT)
            except OSError:
                pass  # it has just ended

    def _op_interrupt(self, _: Dict[str, Any], __: bytes) -> None:
        interpreter = self._interpreter
        if interpreter is None:
            return
        if interpreter.busy:
            self._signal_interpreter()
        elif interpreter.waiting:
            interpreter.interrupt = True

    def _kill_interpreter(self) -> None:
        if self._interpreter is not None:
            children.kill_tree([self._interpreter.pid])

    def _interpreter_ended(self, interpreter: Interpreter, status: int) -> None:
        """Pass on what is whole of its last words, tell its end, and forget it. Half a frame is dropped."""
        while not interpreter.violation:
            try:
                data = interpreter.sock.recv(READ_BYTES)
            except OSError:
                break
            if not data:
                break
            self._take(interpreter, data)
        self._drain_interpreter()
        if self._selector.get_map().get(interpreter.sock) is not None:
            self._selector.unregister(interpreter.sock)
        interpreter.sock.close()
        for fd in (interpreter.out, interpreter.err):
            if fd >= 0:
                self._drop_source(fd)
        interpreter.counter.close()
        self._interpreter = None
        header = {"op": "interpreter", "generation": interpreter.generation, "state": "exited", "pid": interpreter.pid}
        header.update(_how(status))
        self._writer.frame(header)
        if self._ending is not None:
            self._code = 0

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _op_run_step(self, header: Dict[str, Any], stdin: bytes) -> None:
        name = header["step"]
        try:
            argv, env = header["argv"], header["env"]
            if not argv or not all(isinstance(item, str) and "\0" not in item for item in [*argv, *env, *env.values()]):
                raise children.StartError("argv and environment must be texts without NUL, and argv not empty")
            if name in self._steps:
                raise children.StartError("a step of this name is running")
            self._spawn(name, argv, env, header["cwd"], stdin)
        except children.StartError as error:
            self._writer.frame({"op": "step", "step": name, "state": "failed", "reason": str(error)[:4000]})
            return
        self._writer.frame({"op": "step", "step": name, "state": "started"})

    def _spawn(self, name: str, argv: List[str], env: Dict[str, str], cwd: str, stdin: bytes) -> Step:
        if not self._steps and self._interpreter is None:
            self._orphans = children.children_of(os.getpid())
        out, err = children._pipe(), children._pipe()
        try:
            pid, feed = children.spawn_step(argv, env, cwd, bool(stdin), out, err)
        except children.StartError:
            children._close((out[0], err[0]))
            raise
        step = Step(name, pid, feed, stdin, out[0], err[0])
        self._steps[name] = step
        for fd in (step.out, step.err):
            self._add_source(fd, lambda: self._drain_step(step))
        if feed is not None:
            self._selector.register(feed, selectors.EVENT_WRITE, lambda: self._feed(step))
        return step

    def _feed(self, step: Step) -> None:
        assert step.feed is not None
        try:
            step.stdin = step.stdin[os.write(step.feed, step.stdin) :]
        except BlockingIOError:
            return
        except OSError:
            step.stdin = memoryview(b"")  # it does not want to read the rest
        if not step.stdin:
            self._selector.unregister(step.feed)
            os.close(step.feed)
            step.feed = None

    def _drain_step(self, step: Step) -> None:
        if step.capture is not None:
            for fd in (step.out, step.err):
                count = waiting_bytes(fd) if fd >= 0 else 0
                data = os.read(fd, count) if count else b""
                step.capture += data[: max(0, TOOL_BYTES - len(step.capture))]
        for name in ("out", "err"):
            header = {"op": "stream", "name": "std" + name, "step": step.name}
            setattr(step, name, self._drain(getattr(step, name), header))

    def _step_ended(self, step: Step, status: int) -> None:
        milliseconds = int((time.monotonic() - step.started) * 1000)
        leftovers: Set[int] = set()
        if self._interpreter is None:
            leftovers = children.children_of(os.getpid()) - self._orphans
        leftovers -= {other.pid for other in self._steps.values()}
        children.kill_tree(leftovers, spare=self._own_pids() - {step.pid})
        self._drain_step(step)
        for fd in (step.out, step.err):
            if fd >= 0:
                self._drop_source(fd)
        if step.feed is not None:
            self._selector.unregister(step.feed)
            os.close(step.feed)
        del self._steps[step.name]
        if step.on_end is not None:
            step.on_end(step)
            return
        header = {"op": "step", "step": step.name, "state": "exited", "milliseconds": milliseconds}
        header.update(_how(status))
        self._writer.frame(header)

    def _op_kill(self, header: Dict[str, Any], _: bytes) -> None:
        if header["what"] == "interpreter":
            self._kill_interpreter()
            return
        wanted = header.get("step")
        for step in list(self._steps.values()):
            if wanted is None or step.name == wanted:
                children.kill_tree([step.pid])

    # -- ends of processes ---------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        try:
            while os.read(self._wake_r, 4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            step = next((item for item in self._steps.values() if item.pid == pid), None)
            if step is not None:
                try:
                    os.killpg(pid, signal.SIGKILL)  # while the dead leader still holds the number of its group
                except OSError:
                    pass
            status = os.waitpid(pid, 0)[1]
            if step is not None:
                self._step_ended(step, status)
            elif self._interpreter is not None and pid == self._interpreter.pid:
                self._interpreter_ended(self._interpreter, status)

    # -- files, tools, the rest ----------------------------------------------------------------------------------------

    def _root(self, name: str) -> str:
        return self._roots.get(name) or os.path.join("/workspace", {"source": "src"}.get(name, name))

    def _op_fetch(self, header: Dict[str, Any], _: bytes) -> None:
        request = header["request"]
        try:
            fd, size = files.open_file(self._root(header["area"]), header["path"], header["max_bytes"])
        except files.Refused as refusal:
            self._writer.frame({"op": "file", "request": request, "state": "refused", "reason": str(refusal)})
            return
        self._sending.append(files.read_frames(request, fd, size))

    def _send_files(self) -> None:
        while self._sending and not self._writer.full:
            frame = next(self._sending[0], None)
            if frame is None:
                self._sending.popleft()
            else:
                self._writer.frame(*frame)

    def _op_list(self, header: Dict[str, Any], _: bytes) -> None:
        import json

        found = files.list_files(self._root(header["area"]), header["max_files"])
        data = json.dumps(found).encode("ascii")
        while len(data) > wire.FROM_INIT["listing"].payload:
            found = found[: len(found) // 2]
            data = json.dumps(found).encode("ascii")
        self._writer.frame({"op": "listing", "request": header["request"]}, data)

    def _op_put(self, header: Dict[str, Any], payload: bytes) -> None:
        answer: Dict[str, Any] = {"op": "stored", "request": header["request"], "ok": True}
        try:
            mode = 0o644 if header["root"] == "build" else 0o444
            files.store(self._root(header["root"]), header["path"], payload, mode)
        except files.Refused as refusal:
            answer.update(ok=False, reason=str(refusal)[:4000])
        self._writer.frame(answer)

    def _op_tools(self, header: Dict[str, Any], _: bytes) -> None:
        request = header["request"]
        results: List[Dict[str, Any]] = []
        running: Set[str] = set()

        def ended(step: Step) -> None:
            index = int(step.name.rpartition(".")[2])
            results[index].update(available=True, output=bytes(step.capture or b"").decode("utf-8", "replace"))
            running.discard(step.name)
            if not running:
                answer()

        def answer() -> None:
            import json

            self._writer.frame({"op": "tools", "request": request}, json.dumps(results).encode("ascii"))

        env = {name: value for name, value in (self._config.get("env") or {}).items() if isinstance(value, str)}
        for index, argv in enumerate(header["argvs"]):
            argv = [item for item in argv if isinstance(item, str)] if isinstance(argv, list) else []
            results.append({"argv0": argv[0] if argv else "", "available": False, "output": ""})
            name = ".tools.%d.%d" % (request, index)
            try:
                if not argv:
                    raise children.StartError("no program was named")
                step = self._spawn(name, argv, env, "/", b"")
            except children.StartError as error:
                results[index]["output"] = str(error)[:1000]
                continue
            step.capture, step.on_end = bytearray(), ended
            running.add(name)
            self._later(TOOL_SECONDS, lambda step=step: step.name in self._steps and children.kill_tree([step.pid]))  # type: ignore[misc]
        if not running:
            answer()

    def _op_ping(self, header: Dict[str, Any], _: bytes) -> None:
        self._writer.frame({"op": "pong", "request": header["request"]})

    def _op_boot(self, _: Dict[str, Any], __: bytes) -> None:
        raise wire.WireError("a second boot message")

    def _op_shutdown(self, header: Dict[str, Any], _: bytes) -> None:
        if self._interpreter is None:
            self._code = 0
            return
        self._ending = time.monotonic()
        self._to_interpreter({"op": "exit"}, b"")
        self._later(header["grace"] / 1000.0, self._grace_is_over)

    def _grace_is_over(self) -> None:
        self._code = 0


def _how(status: int) -> Dict[str, int]:
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"exit_code": os.WEXITSTATUS(status)}


def _hung_up(fd: int) -> bool:
    """True when nobody can write to a pipe any more."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))
