"""The live resource of a handle: one sandbox with its guest, observed, ready to execute cells and argv plans."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from agently_kernel.contract.bundle import CodeExecutionBundle, ExecutionForm
from agently_kernel.contract.errors import SandboxDied, SandboxError
from agently_kernel.contract.isolation import SafetyClass, ToolchainFact
from agently_kernel.contract.outputs import OutputSink
from agently_kernel.contract.protocols import Sandbox
from agently_kernel.contract.result import CodeExecutionResult, DeathCause, ExecutionStatus
from agently_kernel.contract.workspace import SANDBOX_PATHS, MaterializationManifest, TaskWorkspaceAccessGrant
from agently_kernel.guest import wire
from agently_kernel.sandbox.activity import NO_INPUT, Activity, CellRun, InputHandler
from agently_kernel.sandbox.artefacts import Artefact
from agently_kernel.sandbox.binding import execute_header, path_inside, verify_binding
from agently_kernel.sandbox.boot import BootPlan, boot_guest, check_tools
from agently_kernel.sandbox.delivery import Delivery
from agently_kernel.sandbox.launch import GUEST_DIR, BootConfig
from agently_kernel.sandbox.life import ResourceLife
from agently_kernel.sandbox.needs import give
from agently_kernel.sandbox.network import NET_OPS
from agently_kernel.sandbox.questions import CommKind, Questions, RequestOp, comm_frame, empty_reply
from agently_kernel.sandbox.resident import Resident
from agently_kernel.sandbox.session import GuestSession
from agently_kernel.sandbox.steps import PlanRun
from agently_kernel.sandbox.stopping import KILL_DEADLINE, Stops
from agently_kernel.sandbox.wear import WORN
from agently_kernel.uninterrupted import uninterrupted

log = logging.getLogger(__name__)

_OUTPUT_OPS = frozenset(("stream", "text", "display", "clear", "error", "comm"))


class SandboxResource(ResourceLife):
    """Implements ``CodeExecutionResource`` for every provider, and what a kernel needs besides: interrupt, requests to
    the interpreter, comms, restart, back-pressure. Make it with :meth:`open`; all methods run on one event loop.

    ``background_sink`` gets output outside a running execution: of threads of finished cells, and comm messages.
    """

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
        resource._guest = (python, guest_dir)
        plan = BootPlan(
            python=python, guest_dir=guest_dir, safety_class=safety_class, network=network, local=local,
            own_kernel=own_kernel,
            write_roots=(paths["build"], paths["output"]), tools=tools or {}, deadline=deadline,
        )

        def adopt(session: GuestSession) -> None:
            resource._session = session
            resource._resident = Resident(
                session, resource._explain, resource._interpreter_exited, start_deadline=start_deadline,
                limits=resource._limits_in_force,
            )
            resource._stops = Stops(session, resource._resident, resource._tasks, interrupt_grace)
            resource._questions = Questions(session, resource._resident, resource._tasks, resource._lost_for_question)

        async def up() -> None:
            if start_interpreter:
                await resource._resident.start()

        try:
            resource.facts = await boot_guest(
                sandbox, config, plan, handler=resource._on_frame, on_end=resource._on_end, on_session=adopt,
                on_booting=on_booting, on_up=up,
            )
        except BaseException:
            await uninterrupted(resource._end())
            raise
        return resource

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
        """Run the materialised bundle and return its result; executions wait for each other, apart from session cells
        with different ``subshell`` options: those run beside each other.

        *timeout* is seconds from the moment that the code starts to run. A death while it runs is in the result. Raises
        GrantError or MaterializationError when bundle, manifest and grant do not belong together, SandboxDied when the
        sandbox had ended before. Cancelling stops what runs, up to ending the sandbox, before the cancellation returns.
        """
        verify_binding(bundle, manifest, grant, self._mounts)
        session = bundle.form is ExecutionForm.SESSION
        subshell = str(bundle.options.get("subshell") or "") if session else ""
        turn = self._turns_beside.setdefault(subshell, asyncio.Lock()) if subshell else self._turn
        async with turn:
            self._refuse_dead()
            self._listing.unchanged = False
            await self.open_network()
            if self._deliver is not None:
                self._bring = partial(self._deliver, self.put_file, manifest, grant)
                await self._bring()
            for item in grant.inputs:
                if item.mode == "snapshot":
                    await self.show_input(item.name)
            cell = cell or manifest.execution_id or bundle.bundle_id
            if session:
                run = CellRun(cell, sink, self._max_output_bytes, input_handler, subshell)
                return await self._run_cell(bundle, manifest, timeout, run)
            areas = {**self._paths, "source": path_inside(manifest.source_dir, self._paths)}
            env = self._config.interpreter.env
            plan = PlanRun(
                cell, sink, self._max_output_bytes, session=self._live, areas=areas, env=env, network=self._network,
                asks=self.need_handler is not None and bundle.language == "python", explain=self._limit_reached,
            )
            if self.builds is not None:
                plan.artefact = Artefact.of(
                    bundle, self.facts, self.builds, self.output_source, self._built, shared=self._deliver is None
                )
            return await self._run_plan(bundle, manifest, timeout, plan)

    async def _run_cell(
        self, bundle: CodeExecutionBundle, manifest: MaterializationManifest, timeout: float | None, run: CellRun
    ) -> CodeExecutionResult:
        header = execute_header(
            bundle, manifest, cell=run.cell, paths=self._paths, allow_stdin=run.input_handler is not None
        )
        if run.subshell:
            self._router.beside[run.cell] = run
        else:
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
                self._begun[run.subshell] = run.cell
                await self._live.send(header)
                await run.over()
        except SandboxDied:
            await self._explained_end(run)
        except SandboxError as error:  # the interpreter did not start, or the message is too large to send
            failure = str(error)
        except asyncio.CancelledError:
            await uninterrupted(self._stops.begin_and_wait(run))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._end_activity(run)
            run.drop_input()
        if self._wear.worn:
            run.notice(WORN)
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
            status, message, code = await plan.run(bundle, manifest, timeout)
        except SandboxDied:
            await self._explained_end(plan)
            status = ExecutionStatus.DIED
            message = plan.death.message if plan.death else "The sandbox ended."
        except asyncio.CancelledError:
            await uninterrupted(self._stops.begin_and_wait(plan))
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
        run.end_backlog()
        self._live.hurry(False)
        if run.ladder is not None:
            run.ladder.cancel()
        self._router.ended(run)

    # -- stopping ------------------------------------------------------------------------------------------------

    async def interrupt(self, cell: str | None = None) -> bool:
        """Stop the running execution, or *cell*, like the ordinary kernel does; return whether there was one.

        Idle: nothing happens. A cell that does not stop within the grace time loses its interpreter, and if that does
        not help the sandbox is ended; the user is told so in the cell. Again: the signal is sent again.

        Cells of subshells go on while another one runs, unless named. Where only such run they are all stopped.
        """
        runs = [run for run in self._router.runs if not run.finished.done() and cell in (None, run.cell)]
        if cell is None and self._router.active in runs:
            runs = runs[:1]
        for run in runs:
            if run.stopper is None:
                self._stops.begin(run, "stopped_by_user")
            elif isinstance(run, CellRun) and run.sent:
                self._tasks.add(self._stops.send_quietly(self._stops.signal(run)))
        return bool(runs)

    async def restart_interpreter(self) -> None:
        """End the interpreter with all it holds and start a fresh one in the same sandbox; wait until it is ready.

        A running cell ends with the cause ``stopped_by_user``. Raises SandboxDied or SandboxError.
        """
        self._refuse_dead()
        for run in self._router.runs:
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
        self._listing.unchanged = False
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
        return await self._questions.ask(
            op, code, cursor_pos=cursor_pos, detail_level=detail_level, query=query, timeout=timeout
        )

    def stop_questions(self) -> None:
        """Stop what the interpreter does while no cell runs: callbacks of widgets and of the event loop are
        interrupted; what was asked in vain ends within the grace time, at the cost of the interpreter if need be. The
        next cell is told so."""
        if self._resident.state == "ready":
            self._tasks.add(self._stops.send_quietly({"op": "stop_idle"}))
        self._questions.end_late(self._stops.grace)

    async def set_up_subshell(self, subshell: str, wanted: bool) -> None:
        """Make a subshell, or end it when its cells have ended; without an interpreter its first cell makes it."""
        if not wanted:
            self._begun.pop(subshell, None)
        if self._closing is None and self._resident.state == "ready":
            await self._stops.send_quietly({"op": "subshell", "id": subshell, "open": wanted})

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

    async def show_input(self, name: str, *, timeout: float = 10.0) -> str:
        """Let the working directory show the input *name*, a private copy, from now on; what stands there stays.

        Returns which names are hidden by what code wrote there (untrusted; tried again next time), "" when none is.
        Raises SandboxError.
        """
        if name in self._shown:
            return ""
        header, _ = await self._live.request({"op": "link", "path": name}, timeout=timeout)
        if not header["ok"]:
            reason = str(header.get("reason") or "no reason given")[:500]
            raise SandboxError(f"The input {name!r} could not be shown under its name: {reason}")
        hidden = str(header.get("reason") or "").removeprefix("hidden: ")[:300]
        if not hidden:
            self._shown.add(name)
        return hidden

    async def check_tools(
        self, tools: Mapping[str, Sequence[str]], *, timeout: float = 10.0
    ) -> dict[str, ToolchainFact]:
        """Observe tools inside: tool id → argv that prints its version. Raises SandboxDied, asyncio.TimeoutError."""
        return await check_tools(self._live, tools, timeout)

    async def observe_tools(self, tools: Mapping[str, Sequence[str]]) -> None:
        """Look for *tools* inside and add them to the facts (ObservesTools)."""
        found = await self.check_tools(tools)
        self.facts = self.facts.model_copy(update={"toolchains": {**self.facts.toolchains, **found}})

    # -- frames --------------------------------------------------------------------------------------------------

    def _on_frame(self, op: str, header: dict[str, Any], payload: bytes) -> Awaitable[None] | None:
        if op == "stream":
            self._resident.note_output(payload)
        if op in _OUTPUT_OPS:
            return self._router.handle(op, header, payload)
        if op in NET_OPS and self._network is not None:
            return self._network.on_frame(op, header, payload)
        if op == "done":
            return self._on_done(header, payload)
        if op == "interpreter":
            return self._resident.on_interpreter(header)
        if op == "input":
            return self._on_input(header)
        if op == "need":
            run = self._running(header)
            if run is not None:  # else of a cell that is over: nobody waits for the answer
                self._tasks.add(self._answer_need(run.cell, header["path"], header.get("writes") is True))
            return None
        if op == "step_need":
            plan = self._router.active
            if isinstance(plan, PlanRun) and plan.current_step == header["step"]:
                writes = header.get("writes") is True
                self._tasks.add(self._answer_step(plan.cell, header["step"], header["path"], writes))
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
        run = self._router.run_of(header["cell"])
        return run if isinstance(run, CellRun) and run.sent else None

    async def _on_done(self, header: Mapping[str, Any], payload: bytes) -> None:
        run = self._running(header)
        if run is not None:  # else of a cell that is over, or a forgery: it changes nothing
            self._wear.finished_cell()
            self._listing.unchanged = header.get("unchanged", False)
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

    async def _answer_need(self, cell: str, path: str, writes: bool) -> None:
        ok = await give(self.need_handler, cell, path, writes, self.show_input, self._bring)
        await self._stops.send_quietly({"op": "need_reply", "cell": cell, "path": path, "ok": ok})

    async def _answer_step(self, cell: str, step: str, path: str, writes: bool) -> None:
        ok = await give(self.need_handler, cell, path, writes, self.show_input, self._bring)
        await self._stops.send_quietly({"op": "step_need_reply", "step": step, "ok": ok})

    def _lost_for_question(self, death: DeathCause) -> None:
        if not self._router.runs:
            self._idle_death = death

    def _interpreter_exited(self, death: DeathCause, was_ready: bool) -> None:
        self._questions.forget()
        self._listing.unchanged = False
        self._wear.ended(death, was_ready)
        runs = [run for run in self._router.runs if isinstance(run, CellRun) and run.sent]
        for run in runs:
            run.die(death)
        if not runs and was_ready and death.kind != "stopped_by_user":
            self._idle_death = death
