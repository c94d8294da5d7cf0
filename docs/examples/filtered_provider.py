"""An example of an outside provider: the system call filter alone, and honest about all that it does not restrict."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.contract.isolation import Evidence, SafetyClass
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.contract.workspace import AccessMode
from agently_kernel.providers.base import LaunchRequest, SandboxProvider, read_config
from agently_kernel.sandbox.host_facts import observe_process
from agently_kernel.sandbox.host_sandbox import HostArea, HostLaunch, HostSandbox, host_environment
from agently_kernel.sandbox.interpreter import InterpreterLayout, describe_interpreter, sandbox_environment
from agently_kernel.sandbox.launch import BootConfig, InterpreterBoot, SeccompBoot
from agently_kernel.sandbox.limits import boot_rlimits
from agently_kernel.sandbox.resource import SandboxResource


class FilteredConfig(Frozen):
    """This provider has no settings: any key is an error that names it."""


def observe(pid: int | None) -> tuple[Evidence, ...]:
    """What the host's kernel says of the very process; nothing is claimed that is not seen here or tried inside."""
    return () if pid is None else observe_process(pid, expect_private_network=False)


class FilteredProvider(SandboxProvider[InterpreterLayout]):
    """Runs the guest on the host behind the filter, without sockets."""

    provider_id = "filtered"
    access_modes: tuple[AccessMode, ...] = ("snapshot",)

    async def plan(
        self, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy
    ) -> InterpreterLayout:
        """Find out what a launch needs, or say what is missing and what would help."""
        read_config(FilteredConfig, requirement, self.provider_id)
        if sys.platform != "linux":
            raise SandboxLaunchError("The filter exists on Linux only.", details={"remedy": "use the docker provider"})
        return describe_interpreter()

    def plan_key(self, plan: InterpreterLayout) -> Sequence[object]:
        """Whatever could change what a probe sees."""
        return (plan.real_executable,)

    async def create_resource(self, plan: InterpreterLayout, request: LaunchRequest) -> SandboxResource:
        """Open a sandbox; sessions, steps, bounds, time-outs and collection are the product's."""
        limits, area = request.policy.limits, HostArea()
        launch = HostLaunch(provider_id=self.provider_id, mechanism={"mechanism": "seccomp"}, evidence=observe)
        env = host_environment(area, sandbox_environment(plan, cpus=limits.cpus))
        return await SandboxResource.open(
            HostSandbox(launch, area, limits),
            safety_class=SafetyClass.CONSTRAINED,
            python=plan.executable,
            boot=BootConfig(
                limits=boot_rlimits(limits, processes_by_rlimit=False),
                seccomp=SeccompBoot(allow_inet=False, allow_unix=False),
                interpreter=InterpreterBoot(
                    env=env, cwd=area.paths["build"], roots=area.paths, links=request.mounts.links(area.paths)
                ),
            ),
            grant=request.grant, network="none", tools=request.tools, guest_dir=str(area.path / "guest"),
            paths=area.paths, start_interpreter=request.resident, max_output_bytes=request.policy.max_output_bytes,
            deliver=area.delivery,
        )
