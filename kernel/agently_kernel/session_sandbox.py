"""The sandbox that a kernel session lives in: opened early, kept between cells, replaced when it dies, closed last.

This is the kernel's only way to the rooms below it: the workspace of the session, the manager's handle, the executions
and the live resource that Stop, completion and comms are sent to. Everything runs on the kernel's main loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agently_kernel.contract.bundle import CodeExecutionRequest
from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.contract.events import EventHook, ExecutionResourceEvent
from agently_kernel.contract.isolation import SafetyClass, SandboxFacts
from agently_kernel.contract.outputs import NoticeOutput, OutputSink
from agently_kernel.contract.protocols import OutputSource
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement, ProviderSelection
from agently_kernel.contract.result import CodeExecutionResult
from agently_kernel.contract.workspace import CollectedOutput, GrantedInput, TaskWorkspaceAccessRequirement
from agently_kernel.execution import CodeExecution
from agently_kernel.handles import Handle
from agently_kernel.kept_source import KeptSource
from agently_kernel.manager import ExecutionResourceManager
from agently_kernel.policy import PolicyApproval
from agently_kernel.probe_memory import ProbeMemory
from agently_kernel.reaper import Reaper, watch
from agently_kernel.sandbox.resource import SandboxResource
from agently_kernel.session_grants import SessionGrants, resource_of
from agently_kernel.settings import KernelSettings
from agently_kernel.workspace.task_workspace import TaskWorkspace

log = logging.getLogger("agently_kernel.session_sandbox")

InputHandler = Callable[[str, bool], Awaitable[str]]
RELEASE_SECONDS = 4.0
"""Seconds that closing the sandbox may take, exit handlers included: front ends kill a kernel after five."""
COLLECT_SECONDS = 5.0
KEPT_EVENTS = 200
SPARE_SECONDS = 120.0
"""Seconds that a sandbox which was opened ahead for a run of its own waits for one."""


@dataclass(frozen=True, slots=True)
class ClosingReport:
    """What was collected at the end, and what could not be released, in sentences."""

    collected: tuple[CollectedOutput, ...] = ()
    problems: tuple[str, ...] = ()


class SessionSandbox:
    """Owns workspace, manager and sandbox of one kernel session. ``close`` exactly once; it is idempotent.

    It can be started before there is a kernel; :meth:`attach` then tells who listens.
    """

    def __init__(self, settings: KernelSettings, approval: PolicyApproval, *, session_id: str) -> None:
        self.settings = settings
        self.policy = settings.policy()
        self.session_id = session_id
        self.manager = ExecutionResourceManager(
            approval=approval, session_id=session_id, spare_seconds=SPARE_SECONDS if settings.warm_spare else 0.0,
            probe_memory=ProbeMemory(),
        )
        self.grants = SessionGrants(
            approval, self.manager, self.policy, session_id, workspace=lambda: self.workspace,
            handle=lambda: self._handle, changed=lambda: self.on_grants(), gives=settings.notebook_files == "give",
        )
        self.on_grants: Callable[[], None] = lambda: None
        """Called after every change of what the session's sandbox may use: hosts, inputs, and the facts about them."""
        self.events: deque[ExecutionResourceEvent] = deque(maxlen=KEPT_EVENTS)
        self.manager.add_hook(self.events.append)
        self._workspace: TaskWorkspace | None = None
        self.execution = CodeExecution(self.manager)
        self._early_events: list[ExecutionResourceEvent] = []
        self._remove_hook = self.manager.add_hook(self._early_events.append)
        self._sink: OutputSink | None = None
        self._on_handle: Callable[[Handle], None] = lambda handle: None
        self._reaper: Reaper | None = None
        self._handle: Handle | None = None
        self._warm: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[ClosingReport] | None = None
        self._used = False
        self._told_of: Handle | None = None  # the sandbox whose end was told in a cell

    def attach(self, *, sink: OutputSink, on_handle: Callable[[Handle], None], on_event: EventHook) -> None:
        """Say who gets what the guest shows outside of a running cell, each new handle, and the manager's events."""
        self._remove_hook()
        for event in self._early_events:
            on_event(event)
        self._early_events.clear()
        self.manager.add_hook(on_event)
        self._sink = self.grants.sink = sink
        self._on_handle = on_handle
        handle, self._handle = self._handle, None
        if handle is not None:
            self._took(handle)

    @property
    def workspace(self) -> TaskWorkspace:
        """The session's workspace, made when it is first needed. Raises WorkspaceError."""
        if self._workspace is None:
            self._reaper = self._reaper or watch()
            self._workspace = TaskWorkspace.create(
                session_id=self.session_id, limits=self.settings.limits, collection=self.settings.collection,
                notebook_dir=Path.cwd(),
            )
        return self._workspace

    # -- the sandbox ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to open the sandbox, so that it is ready when the first cell comes. Failures are told by that cell."""
        if self.policy.approval_mode != "always" and self._warm is None and self._handle is None:
            self._warm = asyncio.get_running_loop().create_task(self._open_early(), name="agently-early-start")

    def will_show(self, granted: GrantedInput) -> bool:
        """Return whether the next cell finds a new input; a mount needs a fresh sandbox when one is open."""
        if granted.mode != "snapshot" and self._handle is None and self._warm is None:
            self.grants.mount_all()
        return self.grants.shown(granted)

    async def _open_early(self) -> None:
        try:
            grant = self.workspace.issue_grant(
                execution_id=f"{self.session_id}-early", requirement=self.grants.access()
            )
            try:
                # the same wish as a cell's, so that the cell finds this very sandbox
                wanted = self.requirement().model_copy(
                    update={"workspace_access_mode": grant.mode, "task_workspace_access_grant": grant}
                )
                handle = await self.manager.async_ensure(wanted, hold=True)
                self._took(handle)
                await self.manager.async_release(handle)
            finally:
                self.workspace.close_grant(grant)
        except AgentlyKernelError as error:
            log.info("the sandbox could not be opened early: %s", error.code)

    async def launched(self, seconds: float) -> None:
        """Wait until the sandbox that :meth:`start` opens boots by itself (or could not be opened), at most *seconds*.

        Until then its start needs this process, and whatever else it does holds that up.
        """
        if self._warm is None:
            return
        booting = asyncio.get_running_loop().create_future()

        def tell(event: ExecutionResourceEvent) -> None:
            if event.phase == "booting" and not booting.done():
                booting.set_result(None)

        remove = self.manager.add_hook(tell, ("execution_resource.progress",))
        try:
            await asyncio.wait((booting, self._warm), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            remove()

    def requirement(self) -> ExecutionResourceRequirement:
        """Return what this session needs; the rest is filled in for each cell."""
        live = self._handle if self.resource is not None and self.resource.healthy else None
        return ExecutionResourceRequirement(
            requirement_id=f"kernel-{self.session_id}", scope="session", owner_id=self.session_id,
            provider_candidates=self.settings.providers,
            policy=live.requirement.policy if live is not None else self.policy,
        )

    async def set_policy(self, policy: ExecutionResourcePolicy) -> bool:
        """Open sandboxes under *policy* from now on; return whether the open one, if any, is as that policy wants it.

        A sandbox that has run no cell yet is opened anew; one that has keeps its variables until it is restarted or
        ends. Raises ExecutionResourceReleaseError.
        """
        if policy != self.policy:
            self.policy = policy
            self.grants.follow(policy)
            if not self._used and (self._warm is not None or self._handle is not None):
                if self._warm is not None:
                    self._warm.cancel()
                    await asyncio.wait((self._warm,), timeout=RELEASE_SECONDS)
                    self._warm = None
                await self.restart_sandbox()
                self.start()
        live = self._handle
        return live is None or live.requirement.policy == policy or _satisfies(live.facts, policy)

    def _took(self, handle: Handle) -> None:
        """Remember the handle that serves the session from now on."""
        if handle is self._handle:
            return
        self._handle = handle
        resource = self.resource
        if resource is not None:
            resource.background_sink = self._sink
            resource.interrupt_grace = self.settings.interrupt_grace
        self.grants.serve(handle)
        self._on_handle(handle)

    @property
    def given(self) -> tuple[GrantedInput, ...]:
        """The inputs that are given now."""
        return self._workspace.inputs if self._workspace is not None else ()

    @property
    def resource(self) -> SandboxResource | None:
        """The live resource, or None while there is none."""
        return resource_of(self._handle)

    @property
    def facts(self) -> SandboxFacts | None:
        """The facts observed of the live sandbox."""
        return self._handle.facts if self._handle is not None else None

    @property
    def selection(self) -> ProviderSelection | None:
        """How its provider was selected."""
        return self._handle.selection if self._handle is not None else None

    @property
    def interpreter_lost(self) -> bool:
        """True when the interpreter ended while no cell ran."""
        resource = self.resource
        return resource is not None and resource.interpreter_state == "exited"

    async def ready(self) -> SandboxResource | None:
        """Return the resource once the early start has ended, None when there is none: never starts anything itself."""
        if self._warm is not None:
            await asyncio.wait((self._warm,))
        return self.resource

    async def show(self, granted: GrantedInput) -> str:
        """Show a new private copy in the open sandbox at once; return what hides it there (untrusted), "" if nothing.

        Raises SandboxError.
        """
        resource = await self.ready()
        if granted.mode != "snapshot" or resource is None or not resource.healthy:
            return ""
        return await resource.show_input(granted.name)

    # -- cells ---------------------------------------------------------------------------------------------------------

    async def run(
        self,
        request: CodeExecutionRequest,
        *,
        cell: str,
        execution_id: str,
        sink: OutputSink,
        input_handler: InputHandler | None,
        timeout: float | None,
        requirement: ExecutionResourceRequirement | None = None,
        access: TaskWorkspaceAccessRequirement | None = None,
    ) -> CodeExecutionResult:
        """Run one cell and return its result: in the session's sandbox, or as *requirement* says in one of its own.

        Every failure is a result. Cancelling stops the cell and raises CancelledError.
        """
        session = requirement is None
        if session and self._used:
            await self._tell_loss(cell, sink)
        self._used = self._used or session
        if session and self._warm is not None:
            await asyncio.wait((self._warm,))
            self._warm = None
        if session and self.resource is not None and self.resource.worn:
            try:  # here rather than by the health check: this way what it holds is collected
                await self.restart_sandbox()
            except AgentlyKernelError as error:
                log.error("a worn-out sandbox could not be closed: %s", error)
        try:
            result = await self.execution.async_run(
                request, requirement=requirement or self.requirement(), workspace=self.workspace,
                access=access or self.grants.access(), sink=sink, cell=cell, execution_id=execution_id,
                input_handler=input_handler, timeout=timeout,
                on_handle=self._took if session else lambda handle: self.grants.serve_own(cell, handle, sink),
            )
            if session and result.death is not None and result.death.what == "sandbox":
                self._told_of = self._handle
            return result
        finally:
            if not session:
                self.grants.program_ended(cell)

    async def _tell_loss(self, cell: str, sink: OutputSink) -> None:
        """Say in *cell* that the session's sandbox has ended since its last cell; once for each sandbox."""
        handle, resource = self._handle, self.resource
        if resource is None or handle is self._told_of:
            return
        death = await resource.ended_by_itself()
        if death is not None:
            self._told_of = handle
            sink(NoticeOutput(cell, f"Since the last cell: {death.message}"))

    async def interrupt(self, cell: str | None = None) -> bool:
        """Interrupt what runs in the sandbox, or *cell* there; True when it was running there."""
        resource = self.resource
        return resource is not None and await resource.interrupt(cell)

    async def set_up_subshell(self, name: str, wanted: bool) -> None:
        """Make a subshell in the open sandbox, or end it; one that opens later makes it with its first cell."""
        resource = self.resource
        if resource is not None:
            await resource.set_up_subshell(name, wanted)

    def stop_questions(self) -> None:
        """End what the interpreter was asked and nobody waits for any more. Raises nothing."""
        resource = self.resource
        if resource is not None:
            resource.stop_questions()

    def began(self, cell: str) -> bool:
        """True when *cell* was handed to the session's interpreter."""
        resource = self.resource
        return resource is not None and resource.began(cell)

    async def send_comm(
        self,
        kind: Literal["comm_open", "comm_msg", "comm_close"],
        comm_id: str,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any],
        buffers: Sequence[bytes],
        target_name: str = "",
    ) -> None:
        """Pass a comm message of the front end on; dropped when no sandbox lives. Raises nothing."""
        resource = self.resource
        if resource is None:
            return
        try:
            await resource.send_comm(kind, comm_id, data, metadata, buffers, target_name)
        except AgentlyKernelError as error:
            log.info("a comm message was dropped: %s", error)

    def hold(self, paused: bool) -> None:
        """Stop or go on reading what the guest shows (back-pressure)."""
        resource = self.resource
        if resource is not None:
            resource.pause() if paused else resource.resume()

    async def restart_sandbox(self) -> None:
        """Close the sandbox; the next cell gets a fresh one. Raises ExecutionResourceReleaseError."""
        resource = self.resource
        with KeptSource.of(resource) as kept:
            await self._collect_before_the_end(resource, kept)
            self._handle = None
            self._used = False
            await self.manager.async_release_scope("session", self.session_id)
            self.grants.mount_all()
            await self._collect(kept)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self) -> ClosingReport:
        """Let exit handlers run, release everything, collect what was left behind. Bounded; idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="agently-close")
        return await asyncio.shield(self._closing)

    async def _close(self) -> ClosingReport:
        problems: list[str] = []
        if self._warm is not None and not self._warm.done():
            self._warm.cancel()
            await asyncio.wait((self._warm,), timeout=RELEASE_SECONDS)
        collected: tuple[CollectedOutput, ...] = ()
        resource = self.resource
        with KeptSource.of(resource) as kept:
            collected += await self._collect_before_the_end(resource, kept)
            self._handle = None
            try:
                released = await asyncio.wait_for(self.manager.aclose(), RELEASE_SECONDS)
                problems += [f"{view.handle_id} ({view.provider_id}): {view.error}" for view in released.failed]
            except (AgentlyKernelError, asyncio.TimeoutError) as error:
                problems.append(f"the sandbox could not be released: {error or 'it did not answer in time'}")
            collected += await self._collect(kept)
        try:
            if self._workspace is not None:
                self._workspace.close()
        except AgentlyKernelError as error:
            problems.append(str(error))
        if self._reaper is not None:
            await asyncio.to_thread(self._reaper.close)
        for problem in problems:
            log.error("%s", problem)
        return ClosingReport(collected, tuple(problems))

    async def _collect_before_the_end(
        self, resource: SandboxResource | None, kept: KeptSource | None
    ) -> tuple[CollectedOutput, ...]:
        """Where the folders end with the sandbox: end the interpreter first, and collect while init can send files."""
        if resource is None or kept is None or kept.reachable or not resource.healthy:
            return ()
        try:
            await resource.finish()
        except AgentlyKernelError as error:
            log.warning("exit handlers could not be run: %s", error)
            return ()
        return await self._collect(resource.output_source)

    async def _collect(self, source: OutputSource | None) -> tuple[CollectedOutput, ...]:
        """Copy what the guest left in its folders, exit handlers' work included."""
        if source is None:
            return ()
        try:
            report = await asyncio.wait_for(self.workspace.collect_scratch(source), COLLECT_SECONDS)
        except (AgentlyKernelError, asyncio.TimeoutError) as error:
            log.warning("files in the sandbox's folders could not be collected: %s", error or "it took too long")
            return ()
        return report.outputs


def _satisfies(facts: SandboxFacts | None, policy: ExecutionResourcePolicy) -> bool:
    """True when the sandbox was observed to be what *policy* would have opened."""
    if facts is None or facts.safety_class is SafetyClass.TRUSTED_LOCAL:
        return False
    return all(facts.isolation.axis(axis) is True for axis in policy.required_axes)
