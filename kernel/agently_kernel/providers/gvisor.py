"""gVisor as a runtime of a container engine: Docker's life cycle, another kernel under the guest.

It is asked for by name and observed to be what it says, from inside (the kernel's own boot messages, read before the
system call filter forbids it) and, where the engine is local, from outside (the program that holds the session). Where
either does not agree the sandbox is closed: there is no fallback to the engine's default runtime.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.contract.isolation import Evidence, IsolationAxis
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.providers.base import LaunchRequest
from agently_kernel.providers.docker import DockerExecutionResourceProvider, DockerPlan
from agently_kernel.providers.docker_engine import EngineFacts
from agently_kernel.providers.docker_sandbox import DockerSandbox
from agently_kernel.sandbox.host_facts import observe_process
from agently_kernel.sandbox.resource import SandboxResource

PROVIDER_ID = "gvisor"
DEFAULT_RUNTIME = "runsc"

_SENTRY_CHECKS = {
    "uid_is_not_root": "gVisor's kernel does not run as root", "no_new_privs": "gVisor's kernel has no_new_privs",
    "seccomp_filter": "gVisor's kernel is behind a filter", "mnt_namespace": "gVisor's kernel has its own mounts",
    "no_writable_host_mount": "gVisor's kernel has no writable mount",
    "ipc_namespace": "gVisor's kernel has its own ipc",
    "net_namespace": "gVisor's kernel has its own network",
}
"""What is demanded of the process that is the guest's kernel, by the name of the check on an ordinary guest."""


def sentry_evidence(pid: int) -> tuple[Evidence, ...]:
    """Return what the host's kernel says of gVisor's own process *pid*, and whether it is gVisor's at all.

    The guest's processes exist only in gVisor's kernel; what is seen here is how that kernel is held. Namespaces of
    process ids are its own affair, so the identity is the evidence for the axis.
    """
    name, how = "", "its program"
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        try:  # another user's program may not be looked at, its command line may
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                name, how = os.path.basename(stream.read(256).split(b"\0")[0].decode("ascii", "replace")), "its command"
        except OSError:
            name = ""
    identity = None if not name else name.split(" ")[0].startswith("runsc")
    now = time.time()
    found = [
        Evidence(
            subject=subject, check="the session's kernel is gVisor's", value=identity, source="outside",
            detail=f"{how}: {name[:60]}", observed_at=now,
        )
        for subject in (*(axis.value for axis in IsolationAxis), "network")
    ]
    for item in observe_process(pid):
        if item.check in _SENTRY_CHECKS and item.value is not None:
            found.append(item.model_copy(update={"check": _SENTRY_CHECKS[item.check]}))
    return tuple(found)


class GvisorSandbox(DockerSandbox):
    """A container whose first process is gVisor's kernel, not the guest."""

    host_evidence = False

    @classmethod
    def begins_as_superuser(cls, facts: EngineFacts, runtime: str | None) -> bool:
        """True when the engine is this machine's and the program behind the runtime is called runsc.

        The superuser inside then is one of gVisor's kernel alone; it can make the control group that limits processes.
        Where this cannot be known beforehand the container starts as an ordinary user, and that limit is not held.
        """
        program = os.path.basename(facts.runtime_programs.get(runtime or DEFAULT_RUNTIME, ""))
        return facts.local and program.startswith("runsc")

    async def observe(self) -> tuple[Evidence, ...]:
        """Return the host's view of gVisor's process, where the engine is local."""
        await super().observe()
        view = self._process.view if self._process is not None else None
        return sentry_evidence(view.pid) if view is not None and sys.platform == "linux" else ()


class GvisorExecutionResourceProvider(DockerExecutionResourceProvider):
    """Docker with the runtime ``runsc`` (or what the config calls it)."""

    provider_id = PROVIDER_ID
    output_collection = "protocol"

    async def plan(self, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy) -> DockerPlan:
        """As for Docker; without an engine the remedy is another one, for gVisor itself needs none."""
        try:
            return await super().plan(requirement, policy)
        except SandboxLaunchError as error:
            if error.code != "execution_resource.docker_unavailable":
                raise
            remedy = (
                "use the provider runsc, which is gVisor without an engine; or start the engine as for docker and "
                f"register gVisor there: `sudo runsc install --runtime={DEFAULT_RUNTIME}`"
            )
            details = {**error.details, "remedy": remedy}
            raise SandboxLaunchError(str(error), code=error.code, details=details) from error

    async def create_resource(self, plan: DockerPlan, request: LaunchRequest) -> SandboxResource:
        """Open a container under gVisor. Raises SandboxLaunchError when it is absent or not what runs."""
        runtime = plan.config.runtime or DEFAULT_RUNTIME
        if runtime not in plan.facts.runtimes:
            known = ", ".join(plan.facts.runtimes) or "none"
            raise SandboxLaunchError(
                f"The engine has no runtime {runtime!r} (it has {known}); nothing was started with another one.",
                code="execution_resource.gvisor_runtime_unavailable",
                details={"remedy": f"install runsc, then `sudo runsc install --runtime={runtime}` and restart the "
                         "daemon; without a daemon use the provider runsc"},
            )
        chosen = plan.model_copy(update={"config": plan.config.model_copy(update={"runtime": runtime})})
        resource = await self.open_container(chosen, request, GvisorSandbox)
        reason = identity_problem(resource, runtime)
        if reason:
            await resource.aclose()
            raise SandboxLaunchError(
                f"The container was asked to run under gVisor, but {reason}; it was closed.",
                code="execution_resource.gvisor_runtime_unavailable",
                details={"remedy": f"look which program the engine's runtime {runtime!r} is; it must be runsc"},
            )
        return resource


def identity_problem(resource: SandboxResource, runtime: str) -> str:
    """Return why this is not gVisor, or nothing."""
    mechanism: Mapping[str, Any] = resource.facts.mechanism
    if mechanism.get("runtime", runtime) != runtime:
        return f"the engine says that its runtime is {mechanism.get('runtime')!r}"
    stage1 = mechanism.get("stage1")
    if not isinstance(stage1, Mapping) or stage1.get("gvisor") is not True:
        return "the kernel inside does not say that it is gVisor's"
    for item in resource.facts.isolation.evidence:
        if item.check == "the session's kernel is gVisor's" and item.value is False:
            return f"the process that holds it is another program ({item.detail})"
    return ""


