"""CodeExecution: the one place that knows the order in which a cell, or a script, is executed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionRequest, ExecutionForm
from agently_kernel.contract.errors import (
    AgentlyKernelError,
    ExecutionResourceError,
    ExecutionResourceUnavailable,
    SandboxDied,
)
from agently_kernel.contract.outputs import OutputSink
from agently_kernel.contract.protocols import CodeExecutionResource, CodeRuntimeAdapter, UsesBuilds
from agently_kernel.contract.resource import (
    ExecutionResourcePolicy,
    ExecutionResourceRequirement,
    ProviderCandidate,
)
from agently_kernel.contract.result import CodeExecutionResult
from agently_kernel.contract.workspace import (
    MaterializationManifest,
    TaskWorkspaceAccessGrant,
    TaskWorkspaceAccessRequirement,
)
from agently_kernel.deadlines import Overdue, bounded
from agently_kernel.execution_run import ExecutionRun
from agently_kernel.handles import Handle
from agently_kernel.manager import ExecutionResourceManager
from agently_kernel.own_parts import OwnParts
from agently_kernel.policy import PolicyApproval
from agently_kernel.policy_text import MAX_FACT
from agently_kernel.providers.network import grant_hosts
from agently_kernel.serving import serving_problem
from agently_kernel.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from agently_kernel.workspace.task_workspace import TaskWorkspace

log = logging.getLogger("agently_kernel.execution")

InputHandler = Callable[[str, bool], Awaitable[str]]
OVERTIME = 30.0
"""Seconds beyond its own timeout after which a resource that did not stop the code is stopped from here."""
COLLECT_SECONDS = 300.0


class CodeExecution:
    """Executes requests through grant, bundle, managed resource, materialisation, run, collection and release.

    In the scope ``action_call`` (the default) every run has a fresh sandbox that is closed when it ends. In a longer
    scope an owner's runs share a resident one, which the owner ends with ``manager.async_release_scope(scope,
    owner_id)``.

    *policy*, *candidates* and *config* (of all candidates) are the defaults for runs that bring no requirement;
    *workspace* is the default for runs that bring none. Nothing is started before the first run.
    """

    def __init__(
        self,
        manager: ExecutionResourceManager,
        *,
        workspace: TaskWorkspace | None = None,
        policy: ExecutionResourcePolicy | None = None,
        candidates: tuple[ProviderCandidate | str, ...] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.manager = manager
        self.workspace = workspace
        self.policy = policy or ExecutionResourcePolicy()
        self.candidates = tuple(ProviderCandidate.model_validate(candidate) for candidate in candidates)
        self.config = dict(config or {})

    @classmethod
    @contextlib.asynccontextmanager
    async def async_open(
        cls,
        *,
        policy: ExecutionResourcePolicy | None = None,
        candidates: tuple[ProviderCandidate | str, ...] = (),
        config: Mapping[str, Any] | None = None,
        approval: PolicyApproval | None = None,
        folder: Path | None = None,
    ) -> AsyncIterator[CodeExecution]:
        """Yield one with a manager and a workspace of its own, both closed at the end.

        *folder* is where granted inputs' names start from (default: the current folder). Without *approval* every gate
        is denied, because there is nobody who could be asked.
        """
        own = await asyncio.to_thread(OwnParts.make, policy, approval, folder)
        try:
            yield cls(own.manager, workspace=own.workspace, policy=policy, candidates=candidates, config=config)
        finally:
            await uninterrupted(own.async_close())

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        *,
        policy: ExecutionResourcePolicy | None = None,
        candidates: tuple[ProviderCandidate | str, ...] = (),
        config: Mapping[str, Any] | None = None,
        approval: PolicyApproval | None = None,
        folder: Path | None = None,
    ) -> Iterator[CodeExecution]:
        """Synchronous form of :meth:`async_open`, for :meth:`run`."""
        own = OwnParts.make(policy, approval, folder)
        try:
            yield cls(own.manager, workspace=own.workspace, policy=policy, candidates=candidates, config=config)
        finally:
            own.close()

    async def async_run(
        self,
        request: CodeExecutionRequest,
        *,
        requirement: ExecutionResourceRequirement | None = None,
        policy: ExecutionResourcePolicy | None = None,
        candidates: tuple[ProviderCandidate | str, ...] | None = None,
        workspace: TaskWorkspace | None = None,
        access: TaskWorkspaceAccessRequirement | None = None,
        sink: OutputSink | None = None,
        cell: str = "",
        input_handler: InputHandler | None = None,
        timeout: float | None = None,
        execution_id: str = "",
        on_handle: Callable[[Handle], None] | None = None,
    ) -> CodeExecutionResult:
        """Execute *request* in the eight steps and return what came of it, with outputs, facts, selection and trace.

        *requirement* says scope, owner, providers and policy (default: a fresh sandbox from *policy* and *candidates*);
        the grant is filled in, and for a fresh sandbox language and toolchains too. *timeout* (seconds) can only
        shorten the policy's. *on_handle* learns the handle before the code runs.

        Every failure is a result with its status and a sentence: ``blocked`` when an approval or an eligible provider
        is missing, ``died`` when the sandbox ended, ``error`` else. Cancelling stops the code, releases, closes the
        grant, and raises CancelledError. Raises TypeError without a workspace, TypeError and ValueError for arguments
        that are none; nothing has been begun then.
        """
        space = workspace or self.workspace
        if space is None:
            raise TypeError("CodeExecution needs a TaskWorkspace: give one to it or to the call")
        _check_arguments(request, requirement, policy, access, timeout)
        wanted = self._requirement(requirement, policy, candidates)
        run = ExecutionRun(execution_id=execution_id or f"execution-{os.urandom(8).hex()}")
        failure: BaseException | None = None
        try:
            await self._until_run(
                run,
                space,
                request,
                wanted,
                access,
                sink,
                cell,
                input_handler,
                timeout,
                on_handle,
            )
        except (Exception, asyncio.CancelledError) as error:
            failure = error
        late = self._give_back(run, space)
        if late is None:
            late = await uninterrupted(self._wind_up(run, space))
        trace = run.finished_trace()
        run.keep_trace(space, trace)
        if isinstance(failure, asyncio.CancelledError):
            raise failure
        return run.finish(trace, failure, late)

    def run(
        self,
        request: CodeExecutionRequest,
        *,
        requirement: ExecutionResourceRequirement | None = None,
        policy: ExecutionResourcePolicy | None = None,
        candidates: tuple[ProviderCandidate | str, ...] | None = None,
        workspace: TaskWorkspace | None = None,
        access: TaskWorkspaceAccessRequirement | None = None,
        sink: OutputSink | None = None,
        cell: str = "",
        input_handler: InputHandler | None = None,
        timeout: float | None = None,
        execution_id: str = "",
        on_handle: Callable[[Handle], None] | None = None,
    ) -> CodeExecutionResult:
        """Synchronous form of :meth:`async_run`, with the same arguments and errors; refused on a running event loop.

        *timeout*: seconds.
        """
        return self.manager.bridge.run(
            lambda: self.async_run(
                request, requirement=requirement, policy=policy, candidates=candidates, workspace=workspace,
                access=access, sink=sink, cell=cell, input_handler=input_handler, timeout=timeout,
                execution_id=execution_id, on_handle=on_handle,
            )
        )

    def _requirement(
        self,
        requirement: ExecutionResourceRequirement | None,
        policy: ExecutionResourcePolicy | None,
        candidates: tuple[ProviderCandidate | str, ...] | None,
    ) -> ExecutionResourceRequirement:
        if requirement is None:
            chain = self.candidates if candidates is None else tuple(map(ProviderCandidate.model_validate, candidates))
            return ExecutionResourceRequirement(
                provider_candidates=chain, policy=policy or self.policy, config=self.config
            )
        changes: dict[str, Any] = {}
        if policy is not None:
            changes["policy"] = policy
        if candidates is not None:
            changes["provider_candidates"] = tuple(map(ProviderCandidate.model_validate, candidates))
        return requirement.model_copy(update=changes) if changes else requirement

    async def _until_run(
        self,
        run: ExecutionRun,
        space: TaskWorkspace,
        request: CodeExecutionRequest,
        requirement: ExecutionResourceRequirement,
        access: TaskWorkspaceAccessRequirement | None,
        sink: OutputSink | None,
        cell: str,
        input_handler: InputHandler | None,
        timeout: float | None,
        on_handle: Callable[[Handle], None] | None,
    ) -> None:
        from agently_kernel.languages import get_adapter

        with run.step("issue_grant"):
            grant = run.grant = space.issue_grant(
                execution_id=run.execution_id, requirement=access or TaskWorkspaceAccessRequirement()
            )
        with run.step("prepare"):
            bundle = run.bundle = await _prepared(get_adapter(request.language), request, requirement.policy)
            policy = await self._approve_network(bundle, requirement, cell)
        with run.step("ensure"):
            handle = run.handle = await self._ensure(requirement, policy, bundle, grant, run)
            run.selection = handle.selection
            resource = _resource(handle)
            if on_handle is not None:
                on_handle(handle)
            if policy.network_mode == "hosts" and handle.requirement.policy.network_mode == "disabled":
                # a resident sandbox, opened for its owner's policy
                grant_hosts(resource, (), handle.network_modes, self.manager, handle.requirement)
        with run.step("materialize"):
            manifest = space.materialize(bundle, grant)
        if bundle.build_steps and isinstance(resource, UsesBuilds):
            resource.builds = space.builds
        seconds = min((s for s in (timeout, policy.timeout_seconds) if s is not None), default=None)
        try:
            with run.step("execute"):
                run.result = await _execute(resource, bundle, manifest, grant, seconds, sink, cell, input_handler)
        except SandboxDied:
            # The files of a dead sandbox can still be read; its death is told after they are safe.
            with contextlib.suppress(AgentlyKernelError):
                await self._collect(run, space, manifest, resource)
            raise
        await self._collect(run, space, manifest, resource)

    async def _ensure(
        self,
        requirement: ExecutionResourceRequirement,
        policy: ExecutionResourcePolicy,
        bundle: CodeExecutionBundle,
        grant: TaskWorkspaceAccessGrant,
        run: ExecutionRun,
    ) -> Handle:
        changes: dict[str, Any] = {
            "policy": policy,
            "workspace_access_mode": grant.mode,
            "task_workspace_access_grant": grant,
        }
        once = requirement.scope == "action_call"
        if once:
            changes["language"] = bundle.language
            changes["resident"] = bundle.form is ExecutionForm.SESSION
            changes["toolchains"] = bundle.toolchains or requirement.toolchains
            changes["reuse_key"] = run.execution_id  # never shared, not even with a run of the same owner
        else:
            changes["policy"] = requirement.policy  # what one bundle's steps may reach makes no other sandbox of it
        handle = await self.manager.async_ensure(requirement.model_copy(update=changes), hold=not once)
        if not once:
            # The resident sandbox was chosen for its owner's requirement, not for this bundle.
            run.handle = handle
            problem = await serving_problem(handle, bundle)
            if problem is not None:
                raise ExecutionResourceUnavailable(problem)
        return handle

    async def _approve_network(
        self, bundle: CodeExecutionBundle, requirement: ExecutionResourceRequirement, cell: str
    ) -> ExecutionResourcePolicy:
        """Return the policy, with a relay when steps name hosts and a person allowed that for exactly these steps."""
        policy = requirement.policy
        steps = [step for step in (*bundle.build_steps, bundle.run_step) if step is not None and step.network]
        hosts = dict.fromkeys(host for step in steps for host in step.reach)
        if not steps or policy.network_mode == "enabled" or set(hosts) <= set(policy.network_hosts):
            return policy
        await self.manager.approval.gate(
            "dependencies",
            "; ".join(" ".join(step.argv) for step in steps),
            policy=policy,
            facts={
                "language": bundle.language, "bundle": bundle.bundle_id, "only from": ", ".join(hosts)[:MAX_FACT],
            },
            cell_id=cell,
            session_id=self.manager.session_id or f"{requirement.scope}/{requirement.owner_id}",
        )
        return policy.model_copy(update={"network_mode": "hosts"})

    async def _collect(
        self,
        run: ExecutionRun,
        space: TaskWorkspace,
        manifest: MaterializationManifest,
        resource: CodeExecutionResource,
    ) -> None:
        with run.step("collect"):
            run.report = await space.collect(manifest, resource.output_source)

    def _give_back(self, run: ExecutionRun, space: TaskWorkspace) -> list[Exception] | None:
        """Wind up at once where the resource lives on, as after the cells of a session; None where it has to close."""
        if run.handle is None or not self.manager.give_back(run.handle):
            return None
        with run.step("release"):
            pass
        return self._close_grant(run, space)

    async def _wind_up(self, run: ExecutionRun, space: TaskWorkspace) -> list[Exception]:
        """Release the handle and close the grant, both always; return what went wrong in that."""
        wrong: list[Exception] = []
        if run.handle is not None:
            try:
                with run.step("release"):
                    await self.manager.async_release(run.handle)
            except Exception as error:
                wrong.append(error)
        return wrong + self._close_grant(run, space)

    @staticmethod
    def _close_grant(run: ExecutionRun, space: TaskWorkspace) -> list[Exception]:
        if run.grant is None:
            return []
        try:
            with run.step("close_grant"):
                space.close_grant(run.grant)
        except Exception as error:
            return [error]
        return []


def _check_arguments(
    request: object, requirement: object, policy: object, access: object, timeout: object
) -> None:
    """Raise TypeError or ValueError for an argument of a run that is none, with what it must be."""
    for name, value, kind, optional in (
        ("request", request, CodeExecutionRequest, False),
        ("requirement", requirement, ExecutionResourceRequirement, True),
        ("policy", policy, ExecutionResourcePolicy, True),
        ("access", access, TaskWorkspaceAccessRequirement, True),
    ):
        if not (isinstance(value, kind) or (optional and value is None)):
            raise TypeError(f"{name} must be {'None or ' if optional else ''}a {kind.__name__}, not {value!r:.80}")
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be None or a number of seconds, not {timeout!r:.80}")
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be more than 0 seconds and finite, not {timeout!r}; None sets no limit")


def _resource(handle: Handle) -> CodeExecutionResource:
    if handle.resource is None:
        raise ExecutionResourceError("The resource was released before the code could run; run it again.")
    return handle.resource


async def _prepared(
    adapter: CodeRuntimeAdapter, request: CodeExecutionRequest, policy: ExecutionResourcePolicy
) -> CodeExecutionBundle:
    """Plan a request; in a thread where it brings files, for an adapter may then ask a tool of this machine."""
    if request.files:
        return await asyncio.to_thread(adapter.prepare, request, policy)
    return adapter.prepare(request, policy)


async def _execute(
    resource: CodeExecutionResource,
    bundle: CodeExecutionBundle,
    manifest: MaterializationManifest,
    grant: TaskWorkspaceAccessGrant,
    seconds: float | None,
    sink: OutputSink | None,
    cell: str,
    input_handler: InputHandler | None,
) -> CodeExecutionResult:
    work = resource.async_execute_code(
        bundle, manifest, grant, seconds, sink=sink, cell=cell, input_handler=input_handler
    )
    if seconds is None:
        return await work
    try:
        return await bounded(_coroutine(work), seconds + OVERTIME, grace=OVERTIME)
    except Overdue:
        raise ExecutionResourceError(
            f"The provider did not stop the code at its time limit of {seconds:g} s, nor within {OVERTIME:g} s more; "
            "the wait was ended.",
            code="execution_resource.timed_out",
        ) from None


async def _coroutine(work: Awaitable[CodeExecutionResult]) -> CodeExecutionResult:
    return await work
