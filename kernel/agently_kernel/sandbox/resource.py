"""The live resource of a handle: one sandbox with its guest, observed, ready to execute cells and argv plans."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from typing import Any, Literal, cast

from agently_kernel.contract.bundle import CodeExecutionBundle, ExecutionForm
from agently_kernel.contract.errors import (
    GrantError,
    MaterializationError,
    SandboxDied,
    SandboxError,
)
from agently_kernel.contract.isolation import SafetyClass, SandboxFacts, ToolchainFact
from agently_kernel.contract.outputs import OutputSink
from agently_kernel.contract.protocols import Sandbox
from agently_kernel.contract.result import CodeExecutionResult, DeathCause, ExecutionStatus
from agently_kernel.contract.workspace import SANDBOX_PATHS, MaterializationManifest, TaskWorkspaceAccessGrant
from agently_kernel.guest import wire
from agently_kernel.sandbox.activity import Activity, CellRun, InputHandler
from agently_kernel.sandbox.boot import Booted, boot_guest, check_tools
from agently_kernel.sandbox.deaths import LOST_VARIABLES, Stopper, sandbox_death
from agently_kernel.sandbox.launch import GUEST_DIR, BootConfig
from agently_kernel.sandbox.resident import Resident
from agently_kernel.sandbox.router import OutputRouter, decode_json, json_object
from agently_kernel.sandbox.session import GuestSession, SessionEnd
from agently_kernel.sandbox.source import GuestOutputSource
from agently_kernel.sandbox.steps import PlanRun

log = logging.getLogger(__name__)

InterpreterState = Literal["none", "starting", "idle", "busy", "exited"]
RequestOp = Literal["complete", "inspect", "is_complete", "history"]
CommKind = Literal["comm_open", "comm_msg", "comm_close"]

KILL_DEADLINE = 2.0
EXPLAIN_DEADLINE = 1.0
CLOSE_DEADLINE = 10.0

_OUTPUT_OPS = frozenset(("stream", "text", "display", "clear", "error", "comm"))


async def complete_despite_cancel(work: Coroutine[Any, Any, None]) -> None:
    """Run *work*, which must have deadlines of its own, to its end even when cancelled; the cancellation follows after."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:
            break
    if cancelled:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("cleaning up after a cancellation failed: %s", error)
        raise asyncio.CancelledError
    task.result()


class SandboxResource:
    """Implements ``CodeExecutionResource`` for every provider, and what a kernel needs besides: interrupt, requests to
    the interpreter, comms, restart, back-pressure. Make it with :meth:`open`; all methods run on one event loop.

    ``background_sink`` gets output outside a running execution: of threads of finished cells, and comm messages.
    """

    facts: SandboxFacts

    @classmethod
    async def open(
        cls,
        sandbox: Sandbox,
        *,
        safety_class: SafetyClass,
        python: str,
        boot: BootConfig | None = None,
        grant: TaskWorkspaceAccessGrant | None = None,
        network: Literal["none", "inherited", "filtered", "unknown"] = "none",
        tools: Mapping[str, Sequence[str]] | None = None,
        guest_dir: str = GUEST_DIR,
        paths: Mapping[str, str] = SANDBOX_PATHS,
        local: bool = True,
        start_interpreter: bool = True,
        max_output_bytes: int = 8 * 1024**2,
        interrupt_grace: float = 5.0,
        start_deadline: float = 60.0,
        deadline: float = 20.0,
    ) -> SandboxResource:
        """Spawn the guest in *sandbox*, boot and observe it, and return the resource, which owns the sandbox from then on.

        *python*: the interpreter's path in the sandbox. *grant*: the one whose mounts the sandbox was opened with; later
        executions must bring one with the same mounts. *network*: what the provider gave; ``none`` is reported only when
        it was observed. *tools*: tool id → argv that prints its version, checked at once. *guest_dir* and *paths*: where
        guest programs and workspace areas lie inside. *local*: False when the sandbox is on another machine.
        *start_interpreter*: start the resident interpreter at once (do not wait for it). Seconds: *interrupt_grace* from
        a Stop to the kill, *start_deadline* for an interpreter, *deadline* for all that is done here.

        Raises SandboxLaunchError (details: ``remedy``, ``diagnostics``). The sandbox is closed whenever this raises.
        """
        config = boot or BootConfig()
        resource = cls(sandbox, config, grant, paths, max_output_bytes, interrupt_grace)
        try:
            booted = await boot_guest(
                sandbox, config, handler=resource._on_frame, on_end=resource._on_end, python=python, guest_dir=guest_dir,
                safety_class=safety_class, network=network, local=local, paths=paths, tools=tools or {}, deadline=deadline,
                on_session=lambda session: resource._adopt(session, start_deadline),
                before_observation=resource._resident_start if start_interpreter else None,
            )
        except BaseException:
            await complete_despite_cancel(resource._abandon())
            raise
        resource.facts = booted.facts
        resource._booted = booted
        return resource

    def __init__(
        self,
        sandbox: Sandbox,
        config: BootConfig,
        grant: TaskWorkspaceAccessGrant | None,
        paths: Mapping[str, str],
        max_output_bytes: int,
        interrupt_grace: float,
    ) -> None:
        """Use :meth:`open`."""
        self._sandbox = sandbox
        self._config = config
        self._mounts = grant.mounts_key() if grant is not None else None
        self._paths = dict(paths)
        self._max_output_bytes = max_output_bytes
        self._grace = interrupt_grace
        self._router = OutputRouter()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._session: GuestSession
        self._resident: Resident
        self._booted: Booted | None = None
        self._death: DeathCause | None = None
        self._death_known = asyncio.Event()
        self._stopping_sandbox: Stopper | None = None
        self._idle_death: DeathCause | None = None

    # -- what is known of it -------------------------------------------------------------------------------------

    @property
    def background_sink(self) -> OutputSink | None:
        """Where output outside a running execution goes."""
        return self._router.background_sink

    @background_sink.setter
    def background_sink(self, sink: OutputSink | None) -> None:
        self._router.background_sink = sink

    @property
    def healthy(self) -> bool:
        """True while the sandbox can serve another execution, as far as the host knows without asking."""
        return self._closing is None and self._death is None and self._session.alive

    async def health(self) -> Literal["ready", "unhealthy"]:
        """Ask the mechanism too; for ``ExecutionResourceProvider.async_health_check``."""
        return "ready" if self.healthy and await self._sandbox.is_alive() else "unhealthy"

    @property
    def sandbox(self) -> Sandbox:
        """The provider's sandbox."""
        return self._sandbox

    @property
    def interpreter_state(self) -> InterpreterState:
        """State of the resident interpreter; ``none`` before the first start."""
        if isinstance(self._router.active, CellRun):
            return "busy"
        state = self._resident.state
        return "idle" if state == "ready" else state

    @property
    def interpreter_info(self) -> Mapping[str, Any]:
        """What the interpreter said of itself when it became ready; untrusted."""
        return self._resident.info

    @property
    def generation(self) -> int:
        """How many interpreters were started here."""
        return self._resident.generation

    @property
    def last_death(self) -> DeathCause | None:
        """The last end of an interpreter or of the sandbox."""
        return self._death or self._resident.last_death

    @property
    def diagnostics(self) -> str:
        """The last of the guest's standard error: untrusted text for people."""
        return self._session.diagnostics

    @property
    def output_source(self) -> GuestOutputSource:
        """Where ``TaskWorkspace.collect`` reads from."""
        return GuestOutputSource(self._sandbox, self._session)

    # -- executing -----------------------------------------------------------------------------------------------

    async def async_execute_code(
        self,
        bundle: CodeExecutionBundle,
        manifest: MaterializationManifest,
        grant: TaskWorkspaceAccessGrant,
        timeout: float | None,
        *,
        sink: OutputSink | None = None,
        cell: str = "",
        input_handler: InputHandler | None = None,
    ) -> CodeExecutionResult:
        """Run the materialised bundle and return its result; executions wait for each other.

        *timeout* is seconds from the moment that the code starts to run. A death while it runs is in the result. Raises
        GrantError or MaterializationError when bundle, manifest and grant do not belong together, SandboxDied when the
        sandbox had ended before. Cancelling stops what runs, up to ending the sandbox, before the cancellation returns.
        """
        self._verify(bundle, manifest, grant)
        async with self._turn:
            self._refuse_dead()
            cell = cell or manifest.execution_id or bundle.bundle_id
            if bundle.form is ExecutionForm.SESSION:
                return await self._run_cell(bundle, manifest, timeout, CellRun(cell, sink, self._max_output_bytes, input_handler))
            areas = {**self._paths, "source": self._inside(manifest.source_dir)}
            plan = PlanRun(
                cell, sink, self._max_output_bytes, session=self._session, areas=areas, env=self._config.interpreter.env
            )
            return await self._run_plan(bundle, manifest, timeout, plan)

    def _verify(
        self, bundle: CodeExecutionBundle, manifest: MaterializationManifest, grant: TaskWorkspaceAccessGrant
    ) -> None:
        if (manifest.bundle_digest, manifest.bundle_id) != (bundle.bundle_digest, bundle.bundle_id):
            raise MaterializationError(
                f"The manifest is of {manifest.bundle_id}, but {bundle.bundle_id} was to run; nothing was executed. "
                "Materialise the bundle under this grant first."
            )
        if manifest.grant_id != grant.grant_id or manifest.task_workspace_id != grant.task_workspace_id:
            raise GrantError(
                f"The bundle was materialised under grant {manifest.grant_id}, not under {grant.grant_id}; nothing was "
                "executed."
            )
        if self._mounts is not None and grant.mounts_key() != self._mounts:
            raise GrantError(
                f"Grant {grant.grant_id} has other roots or live inputs than this sandbox was opened with; nothing was "
                "executed. A new sandbox is needed for it."
            )

    def _refuse_dead(self) -> None:
        if self._closing is not None:
            raise SandboxDied("The sandbox has been closed.")
        if self._death is not None:
            raise SandboxDied(self._death.message, details={"cause": self._death, "lost": "sandbox"})
        if not self._session.alive:
            raise self._session.died()

    async def _run_cell(
        self, bundle: CodeExecutionBundle, manifest: MaterializationManifest, timeout: float | None, run: CellRun
    ) -> CodeExecutionResult:
        header = self._execute_header(bundle, manifest, run)
        self._router.active = run
        self._router.remember(run.cell)
        timer: asyncio.TimerHandle | None = None
        failure = ""
        try:
            lost, self._idle_death = self._idle_death, None
            if lost is not None:
                run.notice(f"{lost.message} A new interpreter runs this cell.")
            if await self._interpreter_for(run):
                if timeout is not None:
                    timer = asyncio.get_running_loop().call_later(timeout, self._begin_stop, run, "time_limit")
                run.sent = True
                await self._session.send(header)
                await run.finished
        except SandboxDied:
            await self._explained_end(run)
        except SandboxError as error:  # the interpreter did not start, or the message is too large to send
            failure = str(error)
        except asyncio.CancelledError:
            await complete_despite_cancel(self._stop_and_wait(run))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._end_activity(run)
            run.drop_input()
        status, message = (ExecutionStatus.ERROR, failure) if failure else run.outcome(timeout)
        return run.result(
            bundle, self.facts, execution_id=manifest.execution_id, status=status, message=message, error=run.error,
            reply=run.reply,
        )

    def _execute_header(
        self, bundle: CodeExecutionBundle, manifest: MaterializationManifest, run: CellRun
    ) -> dict[str, Any]:
        digests = {file.sandbox_path: file.sha256 for file in manifest.files}
        if manifest.entrypoint not in digests:
            raise MaterializationError(f"The manifest does not list its own entrypoint {manifest.entrypoint!r}.")
        options = {**bundle.options}
        options["allow_stdin"] = bool(options.get("allow_stdin", True)) and run.input_handler is not None
        return {
            "op": "execute", "cell": run.cell, "path": self._inside(manifest.entrypoint),
            "digest": digests[manifest.entrypoint], "options": options,
        }

    async def _interpreter_for(self, run: CellRun) -> bool:
        if self._resident.state == "ready":
            return True
        if not await self._resident.ready(abandon=run.finished):
            return False
        return not run.finished.done()

    async def _run_plan(
        self, bundle: CodeExecutionBundle, manifest: MaterializationManifest, timeout: float | None, plan: PlanRun
    ) -> CodeExecutionResult:
        self._router.active = plan
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout, self._begin_stop, plan, "time_limit") if timeout is not None else None
        code: int | None = None
        try:
            status, message, code = await plan.run(bundle, manifest)
        except SandboxDied:
            await self._explained_end(plan)
            status = ExecutionStatus.DIED
            message = plan.death.message if plan.death else "The sandbox ended."
        except asyncio.CancelledError:
            await complete_despite_cancel(self._stop_and_wait(plan))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            plan.finish()
            self._end_activity(plan)
        return plan.result(
            bundle, self.facts, execution_id=manifest.execution_id, status=status, message=message, returncode=code
        )

    def _end_activity(self, run: Activity) -> None:
        run.flush()
        if run.ladder is not None:
            run.ladder.cancel()
        if self._router.active is run:
            self._router.active = None

    def _inside(self, path: str) -> str:
        """Return a path of the standard layout where this sandbox has it."""
        for name, standard in SANDBOX_PATHS.items():
            if path == standard or path.startswith(standard + "/"):
                return self._paths[name] + path[len(standard) :]
        return path

    # -- stopping ------------------------------------------------------------------------------------------------

    async def interrupt(self) -> bool:
        """Stop the running execution like the ordinary kernel does; return whether one was running.

        Idle: nothing happens. A cell that does not stop within the grace time loses its interpreter, and if that does not
        help the sandbox is ended; the user is told so in the cell. Again: the signal is sent again.
        """
        run = self._router.active
        if run is None or run.finished.done():
            return False
        if run.stopper is None:
            self._begin_stop(run, "stopped_by_user")
        elif isinstance(run, CellRun) and run.busy:
            self._keep(self._send_quietly({"op": "interrupt"}))
        return True

    def _begin_stop(self, run: Activity, stopper: Stopper) -> None:
        if run.stopper is None and not run.finished.done():
            run.stopper = stopper
            run.ladder = self._keep(self._ladder(run, stopper))

    async def _ladder(self, run: Activity, stopper: Stopper) -> None:
        with contextlib.suppress(SandboxDied):  # it has ended: that is what was wanted
            if isinstance(run, CellRun):
                run.drop_input()
                if not run.sent:
                    run.finish()  # the cell has not begun; its interpreter goes on to start
                    return
                await self._session.send({"op": "interrupt"})
                if await run.wait(self._grace):
                    return
                why = "after you stopped it" if stopper == "stopped_by_user" else "after its time limit"
                run.notice(f"The cell did not end within {self._grace:g} s {why}; its interpreter is being ended. {LOST_VARIABLES}")
                if await self._end_interpreter(run, stopper):
                    return
                run.notice("The interpreter could not be ended; the whole sandbox is being ended.")
            elif isinstance(run, PlanRun):
                step = run.current_step
                if step is not None:
                    await self._session.send({"op": "kill", "what": "step", "step": step})
                if await run.wait(KILL_DEADLINE) or step is None:
                    return
            self._stopping_sandbox = stopper
            self._session.kill()

    async def _end_interpreter(self, run: Activity, stopper: Stopper) -> bool:
        self._session.resume()  # held-back output must not hide the news that it has ended
        return await self._resident.kill(stopper, KILL_DEADLINE) and await run.wait(KILL_DEADLINE)

    async def _stop_and_wait(self, run: Activity) -> None:
        """Stop an execution whose caller has been cancelled, and wait until it is over."""
        self._begin_stop(run, "stopped_by_user")
        await run.wait(self._grace + 3 * KILL_DEADLINE)

    async def restart_interpreter(self) -> None:
        """End the interpreter with all it holds and start a fresh one in the same sandbox; wait until it is ready.

        A running cell ends with the cause ``stopped_by_user``. Raises SandboxDied or SandboxError.
        """
        self._refuse_dead()
        run = self._router.active
        if isinstance(run, CellRun) and run.stopper is None:
            run.stopper = "stopped_by_user"
        if not await self._resident.kill("stopped_by_user", KILL_DEADLINE):
            self._stopping_sandbox = "stopped_by_user"
            self._session.kill()
        self._idle_death = None
        await self._resident.ready()

    async def ready(self) -> None:
        """Wait until the interpreter is ready, starting one if none lives. Raises SandboxDied or SandboxError."""
        self._refuse_dead()
        await self._resident.ready()

    def pause(self) -> None:
        """Stop taking output from the guest (it will block when its pipes are full); for a consumer that cannot keep up."""
        self._session.pause()

    def resume(self) -> None:
        """Take output again."""
        self._session.resume()

    # -- requests and comms --------------------------------------------------------------------------------------

    async def request(
        self,
        op: RequestOp,
        code: str = "",
        *,
        cursor_pos: int = 0,
        detail_level: int = 0,
        query: Mapping[str, Any] | None = None,
        timeout: float = 5.0,
    ) -> dict[str, Any]:
        """Ask the interpreter; return the content of the Jupyter reply (untrusted), always within *timeout* seconds.

        The reply is an empty one while a cell runs, when no interpreter lives, and when it does not answer in time.
        ``query`` is the content of a history request.
        """
        empty = _empty_reply(op, cursor_pos)
        header: dict[str, Any] = {"op": op}
        if op in ("complete", "inspect"):
            header["cursor_pos"] = cursor_pos
        if op == "inspect":
            header["detail_level"] = detail_level
        if op == "history":
            header["query"] = dict(query or {})
        if self._closing is not None or self._router.active is not None or self._resident.state in ("none", "exited"):
            return empty
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        try:
            if self._resident.state != "ready":
                await asyncio.wait_for(self._resident.ready(), timeout)
            payload = b"" if op == "history" else code.encode("utf-8", "replace")
            _, answer = await self._session.request(header, payload, timeout=max(0.05, end - loop.time()))
            return json_object(await decode_json(answer), "a reply")
        except wire.WireError as error:
            self._session.kill(f"the guest broke the protocol ({error})")
            return empty
        except (asyncio.TimeoutError, SandboxError):
            return empty

    async def send_comm(
        self,
        kind: CommKind,
        comm_id: str,
        data: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        buffers: Sequence[bytes | memoryview] = (),
        target_name: str = "",
    ) -> bool:
        """Pass a comm message of the front end on to the interpreter; return False when none is there to take it."""
        if self._closing is not None or self._resident.state != "ready":
            return False
        content = json.dumps({"data": dict(data or {}), "metadata": dict(metadata or {})}).encode()
        parts = [content, *(bytes(buffer) for buffer in buffers)]
        header = {"op": "comm", "kind": kind, "comm_id": comm_id, "buffers": [len(part) for part in parts]}
        if target_name:
            header["target_name"] = target_name
        try:
            await self._session.send(header, b"".join(parts))
        except SandboxDied:
            return False
        return True

    async def put_file(self, root: Literal["source", "input", "build"], path: str, data: bytes, *, timeout: float = 30.0) -> None:
        """Store a file in the sandbox over the protocol, where there are no shared folders. Raises SandboxError."""
        header, _ = await self._session.request({"op": "put", "root": root, "path": path}, data, timeout=timeout)
        if not header["ok"]:
            raise SandboxError(f"The sandbox did not take {path!r}: {str(header.get('reason') or 'no reason given')[:500]}")

    async def check_tools(self, tools: Mapping[str, Sequence[str]], *, timeout: float = 10.0) -> dict[str, ToolchainFact]:
        """Observe tools inside: tool id → argv that prints its version. Raises SandboxDied, asyncio.TimeoutError."""
        return await check_tools(self._session, tools, timeout)

    # -- frames --------------------------------------------------------------------------------------------------

    def _on_frame(self, op: str, header: dict[str, Any], payload: bytes) -> Awaitable[None] | None:
        if op in _OUTPUT_OPS:
            return self._router.handle(op, header, payload)
        if op == "busy":
            return self._on_busy(header)
        if op == "done":
            return self._on_done(header, payload)
        if op == "interpreter":
            return self._resident.on_interpreter(header)
        if op == "input":
            return self._on_input(header)
        if op == "violation":
            self._resident.on_violation(header["reason"])
            return None
        if op == "step":
            if not isinstance(self._router.active, PlanRun):
                return None
            self._router.active.on_step(header)
            return None
        raise wire.WireError(f"op {op} came after the start")

    def _running(self, header: Mapping[str, Any]) -> CellRun | None:
        run = self._router.active
        return run if isinstance(run, CellRun) and run.sent and header["cell"] == run.cell else None

    def _on_busy(self, header: Mapping[str, Any]) -> None:
        run = self._running(header)
        if run is not None:
            run.busy = True
            if run.stopper is not None:  # stopped before the guest had begun: init let that interrupt pass
                self._keep(self._send_quietly({"op": "interrupt"}))

    async def _on_done(self, header: Mapping[str, Any], payload: bytes) -> None:
        run = self._running(header)
        if run is None:
            return  # a cell that is over, or a forgery: it changes nothing
        content = json_object(await decode_json(payload or b"{}"), "the end of a cell")
        if not isinstance(content.get("user_expressions") or {}, dict) or not isinstance(content.get("payload") or [], list):
            raise wire.WireError("the end of a cell has no such user_expressions or payload")
        run.reply = content
        run.ok = header["status"] == "ok"
        run.finish()

    def _on_input(self, header: Mapping[str, Any]) -> None:
        cell, run = header["cell"], self._running(header)
        if run is None or run.input_handler is None or run.stopper is not None:
            reason = "input() is not available here" if run is None or run.input_handler is None else "the cell was stopped"
            self._keep(self._send_quietly({"op": "input_refused", "cell": cell, "reason": reason}))
        elif run.input_task is not None and not run.input_task.done():
            reason = "another input() of this cell is waiting"
            self._keep(self._send_quietly({"op": "input_refused", "cell": cell, "reason": reason}))
        else:
            run.input_task = self._keep(self._answer_input(run, run.input_handler, header["prompt"], header["password"]))

    async def _answer_input(self, run: CellRun, handler: InputHandler, prompt: str, password: bool) -> None:
        try:
            line = (await handler(prompt, password)).encode("utf-8", "replace")
            most = wire.TO_INTERPRETER["input_reply"].payload
            if len(line) > most:
                raise SandboxError(f"the answer is longer than {most} bytes")
        except Exception as error:
            await self._send_quietly({"op": "input_refused", "cell": run.cell, "reason": str(error)[:1000]})
        else:
            await self._send_quietly({"op": "input_reply", "cell": run.cell}, line)

    async def _send_quietly(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        with contextlib.suppress(SandboxError):  # the guest is gone, and what was to be said with it
            await self._session.send(header, payload)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- the end -------------------------------------------------------------------------------------------------

    def _adopt(self, session: GuestSession, start_deadline: float) -> None:
        self._session = session
        self._resident = Resident(session, self._explain, self._interpreter_exited, start_deadline=start_deadline)

    async def _resident_start(self) -> None:
        await self._resident.start()

    def _interpreter_exited(self, death: DeathCause) -> None:
        run = self._router.active
        if isinstance(run, CellRun) and run.sent:
            run.die(death)
        elif death.kind != "stopped_by_user":
            self._idle_death = death

    async def _explain(self, returncode: int | None) -> DeathCause | None:
        try:
            return await asyncio.wait_for(self._sandbox.explain_death(returncode), EXPLAIN_DEADLINE)
        except Exception as error:
            log.debug("the mechanism could not explain a death: %s", error)
            return None

    def _on_end(self, end: SessionEnd) -> None:
        self._keep(self._record_end(end))

    async def _record_end(self, end: SessionEnd) -> None:
        death = None
        if end.violation is None and self._stopping_sandbox is None and self._closing is None:
            death = await self._explain(end.returncode)
        if death is None:
            stopper: Stopper | None = "stopped_by_user" if self._closing is not None else self._stopping_sandbox
            death = sandbox_death(end.returncode, stopper=stopper, violation=end.violation)
        self._death = death
        self._death_known.set()
        self._resident.sandbox_ended(death)
        if self._router.active is not None:
            self._router.active.die(death)

    async def _explained_end(self, run: Activity) -> None:
        """Wait until the cause of the sandbox's end is known and give it to *run*."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._death_known.wait(), CLOSE_DEADLINE)
        run.die(self._death or sandbox_death(None))

    async def aclose(self, grace: float = 2.0) -> None:
        """Let exit handlers run for at most *grace* seconds, then end everything. Idempotent; completes when cancelled.

        Raises SandboxCleanupError naming what could not be removed.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(grace))
        await complete_despite_cancel(_wait_for_task(self._closing))

    async def _close(self, grace: float) -> None:
        session = self._session
        try:
            if session.alive:
                session.resume()
                with contextlib.suppress(SandboxError):
                    await session.send({"op": "shutdown", "grace": int(grace * 1000)})
                    await session.wait_ended(grace + 0.5)
            await session.close()
        finally:
            await asyncio.wait_for(self._sandbox.close(), CLOSE_DEADLINE)
            for task in [*self._tasks]:
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._router.active is not None:
                self._router.active.die(self._death or sandbox_death(None, stopper="stopped_by_user"))

    async def _abandon(self) -> None:
        """Clean up after :meth:`open` failed."""
        self._closing = cast("asyncio.Task[None]", asyncio.current_task())
        session = getattr(self, "_session", None)
        try:
            if session is not None:
                await session.close()
        finally:
            await asyncio.wait_for(self._sandbox.close(), CLOSE_DEADLINE)
            for task in [*self._tasks]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


async def _wait_for_task(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


def _empty_reply(op: RequestOp, cursor_pos: int) -> dict[str, Any]:
    if op == "complete":
        return {"status": "ok", "matches": [], "cursor_start": cursor_pos, "cursor_end": cursor_pos, "metadata": {}}
    if op == "inspect":
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}
    return {"status": "unknown"} if op == "is_complete" else {"status": "ok", "history": []}
