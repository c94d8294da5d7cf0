"""The live resource of a handle: one sandbox with its guest, observed, ready to execute cells and argv plans."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from agently_kernel.contract.bundle import CodeExecutionBundle, ExecutionForm
from agently_kernel.contract.errors import SandboxCleanupError, SandboxDied, SandboxError
from agently_kernel.contract.isolation import SafetyClass, SandboxFacts, ToolchainFact
from agently_kernel.contract.outputs import OutputSink
from agently_kernel.contract.protocols import BuildStore, Sandbox
from agently_kernel.contract.result import CodeExecutionResult, DeathCause, ExecutionStatus
from agently_kernel.contract.workspace import SANDBOX_PATHS, MaterializationManifest, TaskWorkspaceAccessGrant
from agently_kernel.guest import wire
from agently_kernel.sandbox.activity import NO_INPUT, Activity, CellRun, InputHandler
from agently_kernel.sandbox.artefacts import Artefact
from agently_kernel.sandbox.binding import execute_header, path_inside, verify_binding
from agently_kernel.sandbox.boot import BootPlan, boot_guest, check_tools
from agently_kernel.sandbox.deaths import Stopper, sandbox_death, with_loss
from agently_kernel.sandbox.delivery import Delivery
from agently_kernel.sandbox.launch import GUEST_DIR, BootConfig
from agently_kernel.sandbox.needs import NeedHandler, give
from agently_kernel.sandbox.questions import CommKind, RequestOp, ask, comm_frame, empty_reply
from agently_kernel.sandbox.resident import Resident
from agently_kernel.sandbox.router import OutputRouter
from agently_kernel.sandbox.session import GuestSession, SessionEnd
from agently_kernel.sandbox.source import GuestOutputSource
from agently_kernel.sandbox.steps import PlanRun
from agently_kernel.sandbox.stopping import KILL_DEADLINE, Stops, TaskKeeper, complete_despite_cancel

log = logging.getLogger(__name__)

InterpreterState = Literal["none", "starting", "idle", "busy", "exited"]

EXPLAIN_DEADLINE = 1.0
CLOSE_DEADLINE = 10.0

_OUTPUT_OPS = frozenset(("stream", "text", "display", "clear", "error", "comm"))


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
        own_kernel: bool = False,
        start_interpreter: bool = True,
        max_output_bytes: int = 8 * 1024**2,
        interrupt_grace: float = 5.0,
        start_deadline: float = 60.0,
        deadline: float = 20.0,
        deliver: Delivery | None = None,
        on_booting: Callable[[], None] = lambda: None,
    ) -> SandboxResource:
        """Spawn the guest in *sandbox*, boot and observe it, and return the resource, which then owns the sandbox.

        *python*: the interpreter's path in the sandbox. *grant*: the one whose mounts the sandbox was opened with;
        later executions must bring one with the same mounts. *network*: what the provider gave; ``none`` is reported
        only when it was observed. *tools*: tool id → argv that prints its version, checked at once. *guest_dir* and
        *paths*: where guest programs and workspace areas lie inside. *local*: False when the sandbox is on another
        machine. *own_kernel*: True when the sandbox has a kernel of its own. *start_interpreter*: start the resident
        interpreter at once (do not wait for it). Seconds: *interrupt_grace* from a Stop to the kill, *start_deadline*
        for an interpreter, *deadline* for all done here. *deliver* brings a bundle's files into a sandbox that does
        not share the source root with the host. *on_booting* is called when the guest has got all it needs to boot.

        Raises SandboxLaunchError (details: ``remedy``, ``diagnostics``). The sandbox is closed whenever this raises.
        """
        config = boot or BootConfig()
        resource = cls(sandbox, config, grant, paths, max_output_bytes, deliver)
        plan = BootPlan(
            python=python, guest_dir=guest_dir, safety_class=safety_class, network=network, local=local,
            own_kernel=own_kernel,
            write_roots=(paths["build"], paths["output"]), tools=tools or {}, deadline=deadline,
        )

        def adopt(session: GuestSession) -> None:
            resource._session = session
            resource._resident = Resident(
                session, resource._explain, resource._interpreter_exited, start_deadline=start_deadline
            )
            resource._stops = Stops(session, resource._resident, resource._tasks, interrupt_grace)

        async def up() -> None:
            if start_interpreter:
                await resource._resident.start()

        try:
            resource.facts = await boot_guest(
                sandbox, config, plan, handler=resource._on_frame, on_end=resource._on_end, on_session=adopt,
                on_booting=on_booting, on_up=up,
            )
        except BaseException:
            await complete_despite_cancel(resource._end())
            raise
        return resource

    def __init__(
        self,
        sandbox: Sandbox,
        config: BootConfig,
        grant: TaskWorkspaceAccessGrant | None,
        paths: Mapping[str, str],
        max_output_bytes: int,
        deliver: Delivery | None = None,
    ) -> None:
        """Use :meth:`open`."""
        self.builds: BuildStore | None = None
        self._built: set[str] = set()
        self.need_handler: NeedHandler | None = None
        self._bring: Callable[[], Awaitable[None]] | None = None
        self._deliver = deliver
        self._sandbox = sandbox
        self._config = config
        self._mounts = grant.mounts_key() if grant is not None else None
        self._shown = {item.name for item in grant.inputs} if grant is not None else set()
        self._paths = dict(paths)
        self._max_output_bytes = max_output_bytes
        self._router = OutputRouter()
        self._turn = asyncio.Lock()
        self._tasks = TaskKeeper()
        self._session: GuestSession | None = None  # until the guest has been spawned
        self._resident: Resident
        self._stops: Stops
        self._closing: asyncio.Task[None] | None = None
        self._death: DeathCause | None = None
        self._death_known = asyncio.Event()
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
    def interrupt_grace(self) -> float:
        """Seconds from a Stop or a time limit to the kill of an interpreter that goes on; may be set at any time."""
        return self._stops.grace

    @interrupt_grace.setter
    def interrupt_grace(self, seconds: float) -> None:
        self._stops.grace = seconds

    @property
    def healthy(self) -> bool:
        """True while the sandbox can serve another execution, as far as the host knows without asking."""
        return self._closing is None and self._death is None and self._live.alive

    async def health(self) -> Literal["ready", "unhealthy"]:
        """Ask the mechanism too; for ``ExecutionResourceProvider.async_health_check``."""
        return "ready" if self.healthy and await self._sandbox.is_alive() else "unhealthy"

    @property
    def _live(self) -> GuestSession:
        if self._session is None:
            raise SandboxDied("The sandbox has not been opened.")
        return self._session

    @property
    def sandbox(self) -> Sandbox:
        """The provider's sandbox."""
        return self._sandbox

    @property
    def interpreter_state(self) -> InterpreterState:
        """State of the resident interpreter; ``none`` before the first start."""
        run = self._router.active
        if isinstance(run, CellRun) and run.sent:
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
        return self._live.diagnostics

    @property
    def output_source(self) -> GuestOutputSource:
        """Where ``TaskWorkspace.collect`` reads from."""
        return GuestOutputSource(self._sandbox, self._live)

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
        verify_binding(bundle, manifest, grant, self._mounts)
        async with self._turn:
            self._refuse_dead()
            if self._deliver is not None:
                self._bring = partial(self._deliver, self.put_file, manifest, grant)
                await self._bring()
            for item in grant.inputs:
                if item.mode == "snapshot":
                    await self.show_input(item.name)
            cell = cell or manifest.execution_id or bundle.bundle_id
            if bundle.form is ExecutionForm.SESSION:
                run = CellRun(cell, sink, self._max_output_bytes, input_handler)
                return await self._run_cell(bundle, manifest, timeout, run)
            areas = {**self._paths, "source": path_inside(manifest.source_dir, self._paths)}
            env = self._config.interpreter.env
            plan = PlanRun(cell, sink, self._max_output_bytes, session=self._live, areas=areas, env=env)
            if self.builds is not None:
                plan.artefact = Artefact.of(bundle, self.facts, self.builds, self.output_source, self._built)
            return await self._run_plan(bundle, manifest, timeout, plan)

    def _refuse_dead(self) -> None:
        if self._closing is not None:
            raise SandboxDied("The sandbox has been closed.")
        if self._death is not None:
            details = {"cause": self._death.model_dump(mode="json"), "lost": "sandbox"}
            raise SandboxDied(self._death.message, details=details)
        if not self._live.alive:
            raise self._live.died()

    async def _run_cell(
        self, bundle: CodeExecutionBundle, manifest: MaterializationManifest, timeout: float | None, run: CellRun
    ) -> CodeExecutionResult:
        header = execute_header(
            bundle, manifest, cell=run.cell, paths=self._paths, allow_stdin=run.input_handler is not None
        )
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
                    timer = asyncio.get_running_loop().call_later(timeout, self._stops.begin, run, "time_limit")
                run.sent = True
                await self._live.send(header)
                await asyncio.wait({run.finished})  # unlike a plain await this does not cancel the future with us
        except SandboxDied:
            await self._explained_end(run)
        except SandboxError as error:  # the interpreter did not start, or the message is too large to send
            failure = str(error)
        except asyncio.CancelledError:
            await complete_despite_cancel(self._stops.begin_and_wait(run))
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
        timer = loop.call_later(timeout, self._stops.begin, plan, "time_limit") if timeout is not None else None
        code: int | None = None
        try:
            status, message, code = await plan.run(bundle, manifest)
        except SandboxDied:
            await self._explained_end(plan)
            status = ExecutionStatus.DIED
            message = plan.death.message if plan.death else "The sandbox ended."
        except asyncio.CancelledError:
            await complete_despite_cancel(self._stops.begin_and_wait(plan))
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

    # -- stopping ------------------------------------------------------------------------------------------------

    async def interrupt(self) -> bool:
        """Stop the running execution like the ordinary kernel does; return whether one was running.

        Idle: nothing happens. A cell that does not stop within the grace time loses its interpreter, and if that does
        not help the sandbox is ended; the user is told so in the cell. Again: the signal is sent again.
        """
        run = self._router.active
        if run is None or run.finished.done():
            return False
        if run.stopper is None:
            self._stops.begin(run, "stopped_by_user")
        elif isinstance(run, CellRun) and run.sent:
            self._tasks.add(self._stops.send_quietly({"op": "interrupt"}))
        return True

    async def restart_interpreter(self) -> None:
        """End the interpreter with all it holds and start a fresh one in the same sandbox; wait until it is ready.

        A running cell ends with the cause ``stopped_by_user``. Raises SandboxDied or SandboxError.
        """
        self._refuse_dead()
        run = self._router.active
        if isinstance(run, CellRun) and run.stopper is None:
            run.stopper = "stopped_by_user"
        if not await self._resident.kill("stopped_by_user", KILL_DEADLINE):
            self._stops.end_sandbox("stopped_by_user")
        self._idle_death = None
        await self._resident.ready()

    async def finish(self, grace: float = 2.0) -> None:
        """End the interpreter as at a shutdown, exit handlers included; the sandbox stays, and gives out its files.

        Returns after *grace* seconds and a little more at the latest. Raises SandboxDied.
        """
        self._refuse_dead()
        await self._resident.finish(grace)

    async def ready(self) -> None:
        """Wait until the interpreter is ready, starting one if none lives. Raises SandboxDied or SandboxError."""
        self._refuse_dead()
        await self._resident.ready()

    def pause(self) -> None:
        """Stop taking output, so that the guest blocks when its pipes are full; for a consumer that cannot keep up."""
        self._live.pause()

    def resume(self) -> None:
        """Take output again."""
        self._live.resume()

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
        if self._closing or self._router.active or self._resident.state in ("none", "exited"):
            return empty_reply(op, cursor_pos)
        return await ask(
            self._live, self._resident, op, code, cursor_pos=cursor_pos, detail_level=detail_level, query=query,
            timeout=timeout,
        )

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
        header, payload = comm_frame(kind, comm_id, data or {}, metadata or {}, buffers, target_name)
        try:
            await self._live.send(header, payload)
        except SandboxDied:
            return False
        return True

    async def put_file(
        self, root: Literal["source", "input", "build"], path: str, data: bytes, *, timeout: float = 30.0
    ) -> None:
        """Store a file in the sandbox over the protocol, where there are no shared folders. Raises SandboxError."""
        header, _ = await self._live.request({"op": "put", "root": root, "path": path}, data, timeout=timeout)
        if not header["ok"]:
            reason = str(header.get("reason") or "no reason given")[:500]
            raise SandboxError(f"The sandbox did not take {path!r}: {reason}")

    async def show_input(self, name: str, *, timeout: float = 10.0) -> None:
        """Let the working directory show the input *name*, a private copy, from now on; what stands there stays.

        Raises SandboxError.
        """
        if name in self._shown:
            return
        header, _ = await self._live.request({"op": "link", "path": name}, timeout=timeout)
        if not header["ok"]:
            reason = str(header.get("reason") or "no reason given")[:500]
            raise SandboxError(f"The input {name!r} could not be shown under its name: {reason}")
        self._shown.add(name)

    async def check_tools(
        self, tools: Mapping[str, Sequence[str]], *, timeout: float = 10.0
    ) -> dict[str, ToolchainFact]:
        """Observe tools inside: tool id → argv that prints its version. Raises SandboxDied, asyncio.TimeoutError."""
        return await check_tools(self._live, tools, timeout)

    # -- frames --------------------------------------------------------------------------------------------------

    def _on_frame(self, op: str, header: dict[str, Any], payload: bytes) -> Awaitable[None] | None:
        if op == "stream":
            self._resident.note_output(payload)
        if op in _OUTPUT_OPS:
            return self._router.handle(op, header, payload)
        if op == "done":
            return self._on_done(header, payload)
        if op == "interpreter":
            return self._resident.on_interpreter(header)
        if op == "input":
            return self._on_input(header)
        if op == "need":
            run = self._running(header)
            if run is not None:  # else of a cell that is over: nobody waits for the answer
                self._tasks.add(self._answer_need(run.cell, header["path"]))
            return None
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

    async def _on_done(self, header: Mapping[str, Any], payload: bytes) -> None:
        run = self._running(header)
        if run is not None:  # else of a cell that is over, or a forgery: it changes nothing
            await run.take_done(header["status"] == "ok", payload)
            self._end_activity(run)  # at once: what follows in the same read is late output

    def _on_input(self, header: Mapping[str, Any]) -> Awaitable[None] | None:
        run = self._running(header)
        answer = run.take_input(header, self._stops.send_quietly) if run is not None else NO_INPUT
        if isinstance(answer, str):
            return self._stops.send_quietly({"op": "input_refused", "cell": header["cell"], "reason": answer})
        if run is not None:
            run.input_task = self._tasks.add(answer)
        return None

    async def _answer_need(self, cell: str, path: str) -> None:
        ok = await give(self.need_handler, cell, path, self.show_input, self._bring)
        await self._stops.send_quietly({"op": "need_reply", "cell": cell, "path": path, "ok": ok})

    # -- the end -------------------------------------------------------------------------------------------------

    def _interpreter_exited(self, death: DeathCause, was_ready: bool) -> None:
        run = self._router.active
        if isinstance(run, CellRun) and run.sent:
            run.die(death)
        elif was_ready and death.kind != "stopped_by_user":
            self._idle_death = death

    async def _explain(self, returncode: int | None) -> DeathCause | None:
        try:
            return await asyncio.wait_for(self._sandbox.explain_death(returncode), EXPLAIN_DEADLINE)
        except Exception as error:
            log.debug("the mechanism could not explain a death: %s", error)
            return None

    def _on_end(self, end: SessionEnd) -> None:
        self._tasks.add(self._record_end(end))

    async def _record_end(self, end: SessionEnd) -> None:
        stopper: Stopper | None = "stopped_by_user" if self._closing is not None else self._stops.sandbox_stopper
        death = await self._explain(end.returncode) if end.violation is None and stopper is None else None
        own = sandbox_death(end.returncode, stopper=stopper, violation=end.violation)
        self._set_death(with_loss(death) if death is not None else own)

    def _set_death(self, death: DeathCause) -> None:
        if self._death is not None:
            return
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
        failed = self._closing is not None and self._closing.done() and self._closing.exception() is not None
        if self._closing is None or failed:  # what could not be removed is tried again
            self._closing = asyncio.ensure_future(self._close(grace))
        closing = self._closing

        async def closed() -> None:
            await asyncio.shield(closing)

        await complete_despite_cancel(closed())

    async def _close(self, grace: float) -> None:
        session = self._live
        if session.alive:
            session.resume()
            with contextlib.suppress(SandboxError):
                await session.send({"op": "shutdown", "grace": int(grace * 1000)})
                await session.wait_ended(grace + 0.5)
        await self._end()

    async def _end(self) -> None:
        try:
            if self._session is not None:
                await self._session.close()
        finally:
            try:
                await asyncio.wait_for(self._sandbox.close(), CLOSE_DEADLINE)
            except asyncio.TimeoutError:
                raise SandboxCleanupError(
                    f"The {self._sandbox.provider_id} sandbox was not removed within {CLOSE_DEADLINE:g} s; what is "
                    "left of it is found by `agently-kernel clean`."
                ) from None
            finally:
                await self._tasks.end()
                if self._session is not None:
                    self._set_death(sandbox_death(None, stopper="stopped_by_user"))
