"""Init's care of one-shot programs: the steps of a plan, and the tools that are asked for their version."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from typing import Any, Callable, Dict, List, Optional, Set

from . import children
from .relay import waiting_bytes
from .step_needs import StepNeeds
from .turns import Turns, how_it_ended

TOOL_SECONDS = 5.0
TOOL_BYTES = 8 * 1024


class Step:
    """A running program. ``capture`` is set for tools: kept here instead of streamed."""

    def __init__(self, name: str, pid: int, feed: Optional[int], stdin: bytes, out: int, err: int) -> None:
        self.name = name
        self.pid = pid
        self.feed = feed
        self.stdin = memoryview(stdin)
        self.out = out
        self.err = err
        self.started = time.monotonic()
        self.capture: Optional[bytearray] = None
        self.needs: Optional[StepNeeds] = None
        self.on_end: Optional[Callable[["Step"], None]] = None


class Steps:
    """Runs programs side by side; what a program leaves behind is killed when it ends."""

    def __init__(self, turns: Turns, environment: Dict[str, str]) -> None:
        """*environment* is that of tools; a step brings its own."""
        self._turns = turns
        self._environment = environment
        self._running: Dict[str, Step] = {}
        self._known_orphans: Set[int] = set()

    def set_environment(self, variables: Dict[str, str]) -> None:
        """Give tools these variables too from now on."""
        self._environment = dict(self._environment, **variables)

    def pids(self) -> Set[int]:
        """The pids of all running programs."""
        return {step.pid for step in self._running.values()}

    def run(
        self, name: str, argv: List[Any], env: Dict[str, Any], cwd: str, stdin: bytes, needs_root: str = ""
    ) -> None:
        """Start a step and tell the host, or tell why it could not be started.

        With *needs_root* the Python that it starts asks for files below that folder which it misses.
        """
        frame = {"op": "step", "step": name}
        try:
            if not argv or not all(isinstance(item, str) and "\0" not in item for item in [*argv, *env, *env.values()]):
                raise children.StartError("argv and environment must be texts without NUL, and argv not empty")
            if name in self._running:
                raise children.StartError("a step of this name is running")
            needs = StepNeeds(self._turns, name, needs_root) if needs_root else None
            try:
                step = self._spawn(name, argv, needs.environment(env) if needs is not None else env, cwd, stdin)
            except children.StartError:
                if needs is not None:
                    needs.close()
                raise
            step.needs = needs
            if needs is not None:
                needs.begin()
        except children.StartError as error:
            self._turns.writer.frame(dict(frame, state="failed", reason=str(error)[:4000]))
            return
        self._turns.writer.frame(dict(frame, state="started"))

    def _spawn(self, name: str, argv: List[str], env: Dict[str, str], cwd: str, stdin: bytes) -> Step:
        if not self._running:
            self._known_orphans = children.children_of(os.getpid())
        out, err = children.make_pipe(), children.make_pipe()
        try:
            pid, feed = children.spawn_step(argv, env, cwd, bool(stdin), out, err)
        except children.StartError:
            children.close_all((out[0], err[0]))
            raise
        step = Step(name, pid, feed, stdin, out[0], err[0])
        self._running[name] = step
        for fd in (step.out, step.err):
            self._turns.add_source(fd, lambda: self._drain(step))
        if feed is not None:
            self._turns.watch(feed, selectors.EVENT_WRITE, lambda: self._feed(step, feed))
        return step

    def answer_need(self, name: str, ok: bool) -> None:
        """Answer the question of a step for a file."""
        step = self._running.get(name)
        if step is not None and step.needs is not None:
            step.needs.answer(ok)

    def _feed(self, step: Step, feed: int) -> None:
        try:
            step.stdin = step.stdin[os.write(feed, step.stdin) :]
        except BlockingIOError:
            return
        except OSError:
            step.stdin = memoryview(b"")  # it does not want to read the rest
        if not step.stdin:
            self._end_feed(step)

    def _end_feed(self, step: Step) -> None:
        if step.feed is not None:
            self._turns.watch(step.feed, 0, lambda: None)
            os.close(step.feed)
            step.feed = None

    def _drain(self, step: Step) -> None:
        if step.capture is not None:
            for fd in (step.out, step.err):
                count = waiting_bytes(fd) if fd >= 0 else 0
                data = os.read(fd, count) if count else b""
                step.capture += data[: max(0, TOOL_BYTES - len(step.capture))]
        header = {"op": "stream", "name": "stdout", "step": step.name}
        step.out = self._turns.drain(step.out, header)
        header["name"] = "stderr"
        step.err = self._turns.drain(step.err, header)

    def kill(self, name: Optional[str]) -> None:
        """SIGKILL one step, or all, with their descendants. Their end is told when they are reaped."""
        for step in list(self._running.values()):
            if name is None or step.name == name:
                children.kill_tree([step.pid])

    def about_to_reap(self, pid: int) -> None:
        """The leader *pid* is dead and still holds the number of its group: end the group."""
        if pid in self.pids():
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                pass

    def ended(self, pid: int, status: int, interpreter: Optional[int]) -> None:
        """*pid* was reaped; nothing happens when it is no step. *interpreter*: pid of the one that lives, or None.

        Orphans that came to init while the step ran are its leftovers. With an interpreter alive they may be those of a
        cell, so then only the step's own group is ended.
        """
        step = next((item for item in self._running.values() if item.pid == pid), None)
        if step is None:
            return
        milliseconds = int((time.monotonic() - step.started) * 1000)
        if interpreter is None:
            leftovers = children.children_of(os.getpid()) - self._known_orphans - self.pids()
            children.kill_tree(leftovers, spare=self.pids() - {pid})
        self._drain(step)
        for fd in (step.out, step.err):
            if fd >= 0:
                self._turns.drop_source(fd)
        self._end_feed(step)
        if step.needs is not None:
            step.needs.close()
        del self._running[step.name]
        if step.on_end is not None:
            step.on_end(step)
            return
        header = {"op": "step", "step": step.name, "state": "exited", "milliseconds": milliseconds}
        self._turns.writer.frame(dict(header, **how_it_ended(status)))

    def tools(self, request: int, argvs: List[Any]) -> None:
        """Run each argv for its first words, side by side, within five seconds, and answer with all of them."""
        results: List[Dict[str, Any]] = []
        running: Set[str] = set()

        def answer() -> None:
            self._turns.writer.frame({"op": "tools", "request": request}, json.dumps(results).encode("ascii"))

        def ended(step: Step) -> None:
            output = bytes(step.capture or b"").decode("utf-8", "replace")
            results[int(step.name.rpartition(".")[2])].update(available=True, output=output)
            running.discard(step.name)
            if not running:
                answer()

        def give_up() -> None:
            for name in list(running):
                self.kill(name)

        for index, argv in enumerate(argvs):
            words = [item for item in argv if isinstance(item, str)] if isinstance(argv, list) else []
            results.append({"argv0": words[0] if words else "", "available": False, "output": ""})
            try:
                if not words:
                    raise children.StartError("no program was named")
                step = self._spawn(".tools.%d.%d" % (request, index), words, self._environment, "/", b"")
            except children.StartError as error:
                results[index]["output"] = str(error)[:1000]
                continue
            step.capture, step.on_end = bytearray(), ended
            running.add(step.name)
        if running:
            self._turns.later(TOOL_SECONDS, give_up)
        else:
            answer()
