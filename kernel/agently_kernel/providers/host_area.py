"""Opening a sandbox in a host area, the same for every mechanism that confines a process where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from agently_kernel.contract.isolation import SafetyClass
from agently_kernel.providers.base import LaunchRequest
from agently_kernel.sandbox.host_sandbox import HostArea, HostLaunch, HostSandbox, host_environment
from agently_kernel.sandbox.identity import UidLease
from agently_kernel.sandbox.interpreter import InterpreterLayout, sandbox_environment
from agently_kernel.sandbox.launch import BootConfig, InterpreterBoot, SeccompBoot
from agently_kernel.sandbox.limits import boot_rlimits
from agently_kernel.sandbox.resource import SandboxResource


async def open_in_area(
    area: HostArea,
    launch: HostLaunch,
    request: LaunchRequest,
    interpreter: InterpreterLayout,
    *,
    env: Mapping[str, str],
    safety_class: SafetyClass,
    network: Literal["none", "inherited"],
    seccomp: SeccompBoot,
    lease: UidLease | None = None,
) -> SandboxResource:
    """Start the guest in *area* and return its resource, which then owns area and *lease*.

    *env*: variables besides the fixed ones. Raises SandboxLaunchError; area and lease are gone then.
    """
    limits = request.policy.limits
    environment = sandbox_environment(
        interpreter, cpus=limits.cpus, passed=request.policy.pass_environment, extra=env
    )
    return await SandboxResource.open(
        HostSandbox(launch, area, limits, lease=lease),
        safety_class=safety_class,
        python=interpreter.executable,
        boot=BootConfig(
            limits=boot_rlimits(limits, processes_by_rlimit=launch.processes_by_rlimit),
            seccomp=seccomp,
            interpreter=InterpreterBoot(
                env=host_environment(area, environment), cwd=area.paths["build"], roots=area.paths,
                links=request.mounts.links(area.paths),
            ),
        ),
        grant=request.grant, network=network, tools=request.tools, guest_dir=str(area.path / "guest"),
        paths=area.paths, start_interpreter=request.resident, max_output_bytes=request.policy.max_output_bytes,
        deliver=area.delivery,
    )
