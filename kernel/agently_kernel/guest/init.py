"""The first process of a sandbox: forks interpreters and steps, reaps, relays, delivers signals, survives their deaths.

One selector loop, one thread. Init is the only writer on the host's channel. Interpreters speak over a socket pair;
what anybody writes to descriptors 1 and 2 arrives over pipes that init reads. Before a frame of the interpreter is
passed on, those pipes are emptied, and a counter that the interpreter shares tells it that this has happened: so text
and displays keep their order.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Optional, Set, Tuple

from . import children, files, wire
from .network import Network
from .relay import HostGone
from .resident import BecomeInterpreter, Resident
from .steps import Steps
from .turns import IDLE_SECONDS, Turns

READ_BYTES = 64 * 1024  # up to here no memory is mapped anew, and given back, for every read
LAST_WORDS_SECONDS = 1.0
_FROM_HOST = dict(wire.TO_INIT, **wire.TO_INTERPRETER)


class Init:
    """The loop and all it owns. ``run`` returns the exit code, or raises BecomeInterpreter in a forked child."""

    def __init__(self, channel_in: int, channel_out: int, boot: Dict[str, Any], report: Dict[str, Any]) -> None:
        config: Dict[str, Any] = boot["interpreter"]
        self._in = channel_in
        self._nonce: str = boot["nonce"]
        self._roots: Dict[str, str] = config.get("roots") or {}
        self._report = report
        self._turns = Turns(channel_out)
        self._writer = self._turns.writer
        self._decoder = wire.Decoder(_FROM_HOST)
        self._listed = files.Listed(self._root("output"))
        self._resident = Resident(self._turns, config, self._listed.unchanged)
        environment = {name: value for name, value in (config.get("env") or {}).items() if isinstance(value, str)}
        self._steps = Steps(self._turns, environment)
        self._network = Network(self._turns)
        self._sending: Deque[Iterator[Tuple[Dict[str, Any], bytes]]] = deque()
        self._ending = False
        self._code: Optional[int] = None

    # -- life ----------------------------------------------------------------------------------------------------------

    def run(self, observations: List[Dict[str, Any]]) -> int:
        """Greet the host, serve until it says shutdown or goes away, end everything, and return the exit code."""
        self._take_over()
        try:
            self._greet(observations)
            while self._code is None:
                self._turns.once(0.0 if self._sending and not self._writer.full else IDLE_SECONDS)
                self._send_files()
        except HostGone:
            self._code = 0
        except BecomeInterpreter:
            raise
        except BaseException:
            self._kill_everything()
            raise
        self._kill_everything()
        try:
            self._turns.flush(LAST_WORDS_SECONDS)
        except HostGone:
            pass
        return self._code or 0

    def _take_over(self) -> None:
        os.set_blocking(self._in, False)
        for fd in (self._in, self._writer.fd):
            children.enlarge(fd)
        children.prctl(children.PR_SET_CHILD_SUBREAPER, 1)
        self._wake_r, wake_w = os.pipe()
        for fd in (self._wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # Python's handler, so that the wake-up descriptor is written
        signal.signal(signal.SIGTERM, self._terminated)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._turns.watch(self._in, selectors.EVENT_READ, self._from_host)
        self._turns.watch(self._wake_r, selectors.EVENT_READ, self._reap)
        gc.collect()
        gc.freeze()

    def _greet(self, observations: List[Dict[str, Any]]) -> None:
        self._writer.frame({
            "op": "hello", "protocol": wire.PROTOCOL, "nonce": self._nonce, "pid": os.getpid(), "stage1": self._report,
            "python": "%d.%d.%d" % sys.version_info[:3],
        })
        self._writer.frame({"op": "probe", "nonce": self._nonce}, json.dumps(observations).encode("ascii"))

    def _terminated(self, *_: Any) -> None:
        self._code = 128 + signal.SIGTERM

    def _kill_everything(self) -> None:
        """SIGKILL every descendant and wait for what can be waited for, at most a second."""
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while time.monotonic() < deadline:
            children.kill_tree(children.children_of(os.getpid()) | self._own_pids())
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.002)

    def _own_pids(self) -> Set[int]:
        resident = self._resident.pid
        return self._steps.pids() | ({resident} if resident is not None else set())

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
            self._steps.about_to_reap(pid)
            status = os.waitpid(pid, 0)[1]
            if pid == self._resident.pid:
                self._resident.ended(status)
                if self._ending:
                    self._code = 0
            else:
                self._steps.ended(pid, status, self._resident.pid)

    # -- what the host asks for ----------------------------------------------------------------------------------------

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
                self._resident.forward(header, payload)
            else:
                getattr(self, "_op_" + op)(header, payload)

    def _op_boot(self, _: Dict[str, Any], __: bytes) -> None:
        raise wire.WireError("the host sent a second boot message")

    def _op_start(self, header: Dict[str, Any], _: bytes) -> None:
        if self._resident.pid is not None:
            self._resident.kill()
            os.waitid(os.P_PID, self._resident.pid, os.WEXITED | os.WNOWAIT)
            self._reap()
        self._resident.start(header["generation"])

    def _op_interrupt(self, _: Dict[str, Any], __: bytes) -> None:
        self._resident.interrupt()

    def _op_kill(self, header: Dict[str, Any], _: bytes) -> None:
        if header["what"] == "interpreter":
            self._resident.kill()
        else:
            self._steps.kill(header.get("step"))

    def _op_run_step(self, header: Dict[str, Any], stdin: bytes) -> None:
        self._steps.run(
            header["step"], header["argv"], header["env"], header["cwd"], stdin,
            self._root("build") if header.get("needs") else "",
        )

    def _op_step_need_reply(self, header: Dict[str, Any], _: bytes) -> None:
        self._steps.answer_need(header["step"], header["ok"])

    def _op_tools(self, header: Dict[str, Any], _: bytes) -> None:
        self._steps.tools(header["request"], header["argvs"])

    def _op_ping(self, header: Dict[str, Any], _: bytes) -> None:
        self._writer.frame({"op": "pong", "request": header["request"]})

    def _op_shutdown(self, header: Dict[str, Any], _: bytes) -> None:
        stay = header.get("stay", False)
        if self._resident.pid is None:
            self._code = self._code if stay else 0
            return
        self._ending = not stay
        self._resident.forward({"op": "exit"}, b"")
        self._turns.later(header["grace"] / 1000.0, self._resident.kill if stay else self._end)

    def _end(self) -> None:
        self._code = 0

    # -- network -------------------------------------------------------------------------------------------------------

    def _op_net_listen(self, header: Dict[str, Any], _: bytes) -> None:
        answer: Dict[str, Any] = {"op": "stored", "request": header["request"], "ok": True}
        try:
            self._network.listen(header["port"])
        except OSError as error:
            answer.update(ok=False, reason=str(error)[:4000])
        else:
            variables = {name: value for name, value in header["env"].items() if isinstance(value, str)}
            self._steps.set_environment(variables)
            self._resident.set_environment(variables)
        self._writer.frame(answer)

    def _op_net_data(self, header: Dict[str, Any], payload: bytes) -> None:
        self._network.take(header, payload)

    _op_net_credit = _op_net_end = _op_net_close = _op_net_data

    # -- files ---------------------------------------------------------------------------------------------------------

    def _root(self, name: str) -> str:
        return self._roots.get(name) or "/workspace/" + {"source": "src"}.get(name, name)

    def _op_fetch(self, header: Dict[str, Any], _: bytes) -> None:
        request = header["request"]
        try:
            fd, size = files.open_file(self._root(header["area"]), header["path"], header["max_bytes"])
        except files.Refused as refusal:
            self._writer.frame({"op": "file", "request": request, "state": "refused", "reason": str(refusal)})
            return
        self._sending.append(files.read_frames(request, fd, size))

    def _send_files(self) -> None:
        """Go on with files that are being fetched, as far as the host takes them."""
        while self._sending and not self._writer.full:
            frame = next(self._sending[0], None)
            if frame is None:
                self._sending.popleft()
            else:
                self._writer.frame(*frame)

    def _op_list(self, header: Dict[str, Any], _: bytes) -> None:
        most = header["max_files"]
        output = header["area"] == "output"
        found = self._listed.tell(most) if output else files.list_files(self._root(header["area"]), most)
        data = json.dumps(found).encode("ascii")
        while len(data) > wire.FROM_INIT["listing"].payload:
            found = found[: len(found) // 2]
            data = json.dumps(found).encode("ascii")
        self._writer.frame({"op": "listing", "request": header["request"]}, data)

    def _op_link(self, header: Dict[str, Any], _: bytes) -> None:
        answer: Dict[str, Any] = {"op": "stored", "request": header["request"], "ok": True}
        try:
            hidden = files.link(self._root("build"), header["path"], self._root("input"))
            if hidden:
                answer["reason"] = "hidden: " + ", ".join(hidden)[:3000]
        except files.Refused as refusal:
            answer.update(ok=False, reason=str(refusal)[:4000])
        self._writer.frame(answer)

    def _op_copy(self, header: Dict[str, Any], _: bytes) -> None:
        answer: Dict[str, Any] = {"op": "stored", "request": header["request"], "ok": True}
        try:
            files.copy(self._root("source"), header["source"], self._root("build"), header["path"])
        except files.Refused as refusal:
            answer.update(ok=False, reason=str(refusal)[:4000])
        self._writer.frame(answer)

    def _op_put(self, header: Dict[str, Any], payload: bytes) -> None:
        answer: Dict[str, Any] = {"op": "stored", "request": header["request"], "ok": True}
        try:
            mode = 0o755 if header["root"] == "build" else 0o444
            files.store(self._root(header["root"]), header["path"], payload, mode)
        except files.Refused as refusal:
            answer.update(ok=False, reason=str(refusal)[:4000])
        self._writer.frame(answer)
