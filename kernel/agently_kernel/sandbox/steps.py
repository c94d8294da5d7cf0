"""The one-shot form: the steps of an argv plan, one after the other, until one fails or the time is over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionStep
from agently_kernel.contract.outputs import OutputSink
from agently_kernel.contract.result import ExecutionStatus, StepResult
from agently_kernel.contract.workspace import MaterializationManifest, parse_workspace_uris, resolve_workspace_uri
from agently_kernel.guest import wire
from agently_kernel.sandbox.activity import Activity
from agently_kernel.sandbox.artefacts import Artefact
from agently_kernel.sandbox.deaths import signal_name
from agently_kernel.sandbox.network import NetworkLink
from agently_kernel.sandbox.session import GuestSession


class PlanRun(Activity):
    """Runs the build steps and the run step of one bundle in a guest."""

    def __init__(
        self,
        cell: str,
        sink: OutputSink | None,
        max_output_bytes: int,
        *,
        session: GuestSession,
        areas: Mapping[str, str],
        env: Mapping[str, str],
        network: NetworkLink | None = None,
        asks: bool = False,
        explain: Callable[[int], Awaitable[str]] | None = None,
    ) -> None:
        """*areas*: paths of source (the bundle's folder), input, build, scratch, output. *env*: each step's base.

        *network*: the sandbox's relay; steps that name hosts get these for as long as they run. *asks*: a Python
        program may ask for files that it misses. *explain*: asked with the signal or exit code of a step that failed,
        returns which limit of the sandbox was reached, "" when none was.
        """
        super().__init__(cell, sink, max_output_bytes)
        self._session = session
        self._areas = areas
        self._env = env
        self._network = network
        self._asks = asks
        self._explain = explain
        self._current: tuple[str, asyncio.Future[dict[str, Any] | None]] | None = None
        self._known: set[str] = set()
        self.artefact: Artefact | None = None

    @property
    def current_step(self) -> str | None:
        """The id of the step that runs now."""
        return self._current[0] if self._current else None

    async def run(
        self, bundle: CodeExecutionBundle, manifest: MaterializationManifest, timeout: float | None = None
    ) -> tuple[ExecutionStatus, str, int | None]:
        """Run the plan and return status, sentence and the exit code of the last step that ran.

        *timeout* is the limit in seconds that the caller keeps, for the sentence.

        Raises SandboxDied when the guest is gone.
        """
        plan = [*bundle.build_steps, *([bundle.run_step] if bundle.run_step else [])]
        artefact = self.artefact
        kept = artefact is not None and await artefact.bring(self._session)
        number = len(bundle.build_steps) if kept else 0
        while number < len(plan) and self.stopper is None:
            step = plan[number]
            number += 1
            stdin = bundle.stdin or b"" if step.role == "run" else b""
            async with self._granted(step):
                ended = await self._step(f"{manifest.execution_id[:32]}.{number}", step, stdin)
            program = "the program" if parse_workspace_uris(step.argv[0]) else step.argv[0]
            name = f"Step {number} of {len(plan)} ({step.role}: {program})"
            if self.death is not None or self.stopper is not None:
                break
            if isinstance(ended, str):
                if artefact is not None and kept:  # what was built before is not there any more: build it again
                    artefact.forget()
                    kept, number = False, 0
                    continue
                return ExecutionStatus.ERROR, f"{name} could not be started: {ended}.", None
            if ended.signal is not None:
                return ExecutionStatus.ERROR, await self._why(f"{name} was ended by {ended.signal}", ended), None
            if ended.exit_code != 0:
                said = f"{name} ended with exit code {ended.exit_code}"
                return ExecutionStatus.ERROR, await self._why(said, ended), ended.exit_code
            if artefact is not None and number == len(bundle.build_steps):
                await artefact.take()
        if self.stopper == "time_limit":
            limit = f" of {timeout:g} s" if timeout is not None else ""
            return ExecutionStatus.TIMED_OUT, f"The execution ran past its time limit{limit} and was ended.", None
        if self.stopper == "stopped_by_user":
            return ExecutionStatus.CANCELLED, "The execution was stopped.", None
        if self.death is not None:
            return ExecutionStatus.DIED, self.death.message, None
        return ExecutionStatus.SUCCESS, "", 0

    async def _why(self, said: str, ended: StepResult) -> str:
        """Return the sentence about a step that failed, with the limit that was reached where one was.

        Also asked for exit codes: a compiler or a shell reports the kill of a process that it had started that way.
        """
        killed = ended.signal == "SIGKILL" or ended.signal is None
        reached = await self._explain(ended.exit_code or -9) if self._explain is not None and killed else ""
        if not reached:
            return f"{said}."
        if ended.signal is not None:
            return f"{said} because {reached}."
        return f"{said}, after a process was ended because {reached}."

    @contextlib.asynccontextmanager
    async def _granted(self, step: CodeExecutionStep) -> AsyncIterator[None]:
        """Open the hosts that *step* names besides those of the sandbox; close them, and what they serve, after it."""
        network = self._network
        if network is None or not step.reach:
            yield
            return
        before = network.relay.hosts
        network.relay.hosts = (*before, *step.reach)
        try:
            yield
        finally:
            mine = set(step.reach) - set(before)  # what was taken back meanwhile stays so
            network.relay.hosts = tuple(host for host in network.relay.hosts if host not in mine)
            await network.relay.drop()

    def _message(self, step: CodeExecutionStep) -> dict[str, Any]:
        network = self._network
        proxies = network.environment if network is not None and network.relay.hosts else {}
        own = {key: resolve_workspace_uri(value, self._areas) for key, value in step.env.items()}
        env = {**self._env, **proxies, **own}
        argv = [resolve_workspace_uri(item, self._areas) for item in step.argv]
        message = {"op": "run_step", "argv": argv, "env": env, "cwd": self._areas[step.cwd]}
        return {**message, "needs": True} if self._asks and step.role == "run" else message

    async def _step(self, step_id: str, step: CodeExecutionStep, stdin: bytes) -> StepResult | str:
        future: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._current = (step_id, future)
        self._known.add(step_id)
        started = time.monotonic()
        await self._session.send({**self._message(step), "step": step_id}, stdin)
        waits: set[asyncio.Future[Any]] = {future, self.finished}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)  # when cancelled here the step stays current
        frame = future.result() if future.done() else None
        self._current = None
        self.flush()
        if frame is not None and frame["state"] == "failed":
            reason = frame.get("reason") or "no reason was given"
            self.steps.append(StepResult(role=step.role, argv=step.argv, seconds=time.monotonic() - started))
            return str(reason)[:500]
        number = frame.get("signal") if frame else None
        result = StepResult(
            role=step.role, argv=step.argv, exit_code=frame.get("exit_code") if frame else None,
            signal=signal_name(number) if number else None, timed_out=self.stopper == "time_limit",
            seconds=time.monotonic() - started,
        )
        self.steps.append(result)
        return result

    async def kill_step(self, seconds: float) -> bool:
        """SIGKILL the step that runs, and all it started; return whether it is over within *seconds*."""
        if self._current is None:
            return True
        step, future = self._current
        await self._session.send({"op": "kill", "what": "step", "step": step})
        waits: set[asyncio.Future[Any]] = {future, self.finished}
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    def on_step(self, header: Mapping[str, Any]) -> None:
        """Take a ``step`` frame. Raises wire.WireError for a step that never was."""
        if header["step"] not in self._known:
            raise wire.WireError(f"no such step: {header['step'][:64]!r}")
        if header["state"] == "started" or self._current is None or self._current[0] != header["step"]:
            return
        future = self._current[1]
        if not future.done():
            future.set_result(dict(header))
