"""What one kernel session may use of the host besides its configuration: granted hosts and granted inputs.

Grants outlive a sandbox: what is given once is there in the next one, too, until it is taken back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from agently_kernel.contract.errors import AgentlyKernelError, ApprovalDenied, ConfigurationError
from agently_kernel.contract.network import HostPattern, normalise_hosts
from agently_kernel.contract.outputs import NoticeOutput, OutputSink
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.workspace import GrantedInput, TaskWorkspaceAccessRequirement
from agently_kernel.handles import Handle
from agently_kernel.inputs_gate import InputGate, not_mounted, not_written
from agently_kernel.manager import ExecutionResourceManager
from agently_kernel.policy import PolicyApproval
from agently_kernel.providers.network import grant_hosts, relayed_hosts, withdraw_hosts
from agently_kernel.sandbox.resource import SandboxResource
from agently_kernel.workspace.task_workspace import TaskWorkspace


def resource_of(handle: Handle | None) -> SandboxResource | None:
    """Return the live resource of *handle*, None where there is none of ours."""
    resource = handle.resource if handle is not None else None
    return resource if isinstance(resource, SandboxResource) else None


class SessionGrants:
    """Keeps the hosts and inputs of one session and gives them to its sandboxes.

    *workspace* makes the session's workspace when it is first needed; *handle* returns that of the session's sandbox,
    None while there is none; *changed* is called after every change. *gives*: as of :class:`InputGate`.
    """

    def __init__(
        self,
        approval: PolicyApproval,
        manager: ExecutionResourceManager,
        policy: ExecutionResourcePolicy,
        session_id: str,
        *,
        workspace: Callable[[], TaskWorkspace],
        handle: Callable[[], Handle | None],
        changed: Callable[[], None],
        gives: bool = False,
    ) -> None:
        self._approval = approval
        self._manager = manager
        self._policy = policy
        self._session_id = session_id
        self._workspace = workspace
        self._session_handle = handle
        self._changed = changed
        self._gives = gives
        self._gate: InputGate | None = None
        self._hosts: tuple[str, ...] = ()
        self._mounted: tuple[GrantedInput, ...] = ()
        self._own_handles: dict[str, Handle] = {}  # by the cell whose program each runs
        self.sink: OutputSink | None = None
        """Who hears what is said of files that a cell of the session misses."""

    # -- the sandboxes that get them -----------------------------------------------------------------------------------

    def serve(self, handle: Handle) -> None:
        """Give what was granted to a new sandbox of the session."""
        resource = resource_of(handle)
        if resource is not None:
            resource.need_handler = self._need
        with contextlib.suppress(ConfigurationError):  # another provider than the one that they were granted to
            self._open_hosts(handle)

    def serve_own(self, cell: str, handle: Handle, sink: OutputSink) -> None:
        """Let the program of *cell* in a sandbox of its own ask for files, as cells do, and know what it may reach."""
        self._own_handles[cell] = handle
        resource = resource_of(handle)
        if resource is not None:
            resource.need_handler = partial(self._need, sink=sink)

    def program_ended(self, cell: str) -> None:
        """Forget the sandbox of a program: it has ended."""
        self._own_handles.pop(cell, None)

    def follow(self, policy: ExecutionResourcePolicy) -> None:
        """Ask as *policy* wants it, and count its hosts as configured, from now on."""
        self._policy = policy
        if self._gate is not None:
            self._gate.policy = policy

    # -- hosts ---------------------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that were granted, besides those of the configuration."""
        return self._hosts

    @property
    def reachable(self) -> tuple[str, ...]:
        """The hosts that the session's sandbox may reach: configured, or granted since."""
        return normalise_hosts((*self._policy.network_hosts, *self._hosts))

    async def allow_network(self, hosts: Sequence[str]) -> None:
        """Let the session's sandbox reach *hosts* too, this one and those that follow; variables live on.

        Raises ConfigurationError where the provider cannot do that, SandboxError when the relay does not start; nothing
        is granted then.
        """
        before = self._hosts
        self._hosts = normalise_hosts((*before, *hosts))
        handle = self._session_handle()
        resource = resource_of(handle)
        try:
            if handle is not None and resource is not None:
                self._open_hosts(handle)
                await resource.open_network()
        except AgentlyKernelError:
            self._hosts = before
            raise
        finally:
            self._changed()

    def take_back_network(self, hosts: Collection[str]) -> tuple[str, ...]:
        """Take *hosts* from every sandbox of the session at once; connections to them end, all else goes on.

        Returns those of *hosts* that can still be reached, by the configuration or another grant.
        """
        self._hosts = tuple(host for host in self._hosts if host not in hosts)
        configured = relayed_hosts(self._policy) or ()
        for handle in (self._session_handle(), *self._own_handles.values()):
            if handle is not None:
                withdraw_hosts(handle.resource, set(hosts) - set(configured))
        self._changed()
        left = tuple(HostPattern.parse(host) for host in (*configured, *self._hosts))
        return tuple(host for host in hosts if any(other.covers(HostPattern.parse(host)) for other in left))

    def _open_hosts(self, handle: Handle) -> None:
        if self._hosts:
            grant_hosts(handle.resource, self._hosts, handle.network_modes, self._manager, handle.requirement)

    # -- inputs --------------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> InputGate:
        """The gate that every file of the host passes on its way in. Raises WorkspaceError."""
        if self._gate is None:
            space = self._workspace()
            folder = space.notebook_dir or Path.cwd()
            self._gate = InputGate(
                self._approval, space, self._policy, self._session_id, folder, changed=self._changed, gives=self._gives
            )
        return self._gate

    def access(self, *, fresh: bool = False) -> TaskWorkspaceAccessRequirement:
        """Return what the session's sandbox sees of the host: copies at once, mounts since it was opened.

        A *fresh* one sees everything that was given. Raises WorkspaceError.
        """
        given = self._workspace().inputs
        copies = tuple(item for item in given if item.mode == "snapshot")
        mounts = tuple(item for item in given if item.mode != "snapshot") if fresh else self._mounted
        return TaskWorkspaceAccessRequirement(mode="read_only" if mounts else "snapshot", inputs=(*copies, *mounts))

    def mount_all(self) -> None:
        """The next sandbox of the session is opened with all mounts that are given now. Raises WorkspaceError."""
        self._mounted = tuple(item for item in self._workspace().inputs if item.mode != "snapshot")

    def shown(self, granted: GrantedInput) -> bool:
        """Return whether the session's sandbox, the one that is open or the next, shows *granted*."""
        return granted.mode == "snapshot" or granted in self._mounted

    async def take_back_input(self, name: str) -> bool:
        """Take an input from the session; return whether it is gone from the sandbox that is open, too.

        A private copy is removed at once. A mount, and a copy in a sandbox that shares no folder with this machine,
        stay there until that sandbox ends; no other gets them. Raises WorkspaceError.
        """
        item = next((item for item in self._workspace().inputs if item.name == name), None)
        if item is None:
            return True
        handle = self._session_handle()
        resource = resource_of(handle)
        stays = item in self._mounted if item.mode != "snapshot" else resource is not None and resource.takes_copies
        await self.inputs.take_back(name)
        self._changed()
        return not (stays and handle is not None)

    async def _need(self, cell: str, path: str, writes: bool, sink: OutputSink | None = None) -> str | None:
        """Give a file that a running cell misses, when a person allows it; say in the cell how it could be given."""
        said = ""
        if not self._gives:
            path = path.removesuffix("/__init__.py")  # a person is asked for a package as a whole
        mount = self.inputs.mount_of(path) if self.inputs.lies_beside(path) else None
        if writes or mount is not None:
            if self.inputs.may_say(path, cell=cell):
                said = not_written(path) if mount is None else not_mounted(mount.name)
        else:
            try:
                granted = await self.inputs.needed(path, cell=cell)
                return granted.name if granted is not None else None
            except ApprovalDenied as denied:
                said = await self.inputs.refused(path, denied)
        sink = sink or self.sink
        if said and sink is not None:
            sink(NoticeOutput(cell, said))
        return None
