"""macOS's Seatbelt, by ``sandbox-exec``: files and network of one process tree, and no namespaces.

Facts come from inside attempts; what cannot be observed on macOS stays unknown and never counts as restricted.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.contract.isolation import Evidence, IsolationAxis, SafetyClass
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.contract.workspace import AccessMode
from agently_kernel.providers.base import LaunchRequest, SandboxProvider, read_config
from agently_kernel.providers.candidate_config import HostConfig
from agently_kernel.providers.host_area import open_in_area
from agently_kernel.providers.seatbelt_profile import SeatbeltGrant, SeatbeltProfile, make_profile
from agently_kernel.sandbox.host_sandbox import HostArea, HostLaunch
from agently_kernel.sandbox.interpreter import InterpreterLayout, describe_interpreter
from agently_kernel.sandbox.launch import SeccompBoot
from agently_kernel.sandbox.resource import SandboxResource

PROVIDER_ID = "seatbelt"
SANDBOX_EXEC = "/usr/bin/sandbox-exec"
"""Only ever this path: a program of this name elsewhere is not the system's."""


class SeatbeltConfig(HostConfig):
    """What a candidate's ``config`` may hold: :class:`HostConfig`'s."""


class SeatbeltPlan(Frozen):
    """The interpreter and what the config adds."""

    config: SeatbeltConfig
    interpreter: InterpreterLayout


def shares_processes(_: int | None) -> tuple[Evidence, ...]:
    """Return what is known of the mechanism itself: there are no process namespaces, and calls are not filtered."""
    now = time.time()
    return tuple(
        Evidence(subject=axis.value, check=check, value=False, source="outside", observed_at=now)
        for axis, check in (
            (IsolationAxis.PROCESS_CONTAINED, "processes have a namespace of their own"),
            (IsolationAxis.SYSCALLS_RESTRICTED, "system calls are filtered"),
        )
    )


class SeatbeltExecutionResourceProvider(SandboxProvider[SeatbeltPlan]):
    """Runs the guest under a generated profile. ``policy_program`` and ``system`` are seams for tests."""

    provider_id = PROVIDER_ID
    platforms = ("darwin",)
    access_modes: tuple[AccessMode, ...] = ("snapshot",)
    policy_program = SANDBOX_EXEC
    system = sys.platform

    async def plan(self, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy) -> SeatbeltPlan:
        """Look for platform and policy program. Raises ConfigurationError, SandboxLaunchError."""
        config = read_config(SeatbeltConfig, requirement, PROVIDER_ID)
        if self.system != "darwin":
            raise SandboxLaunchError(
                f"Seatbelt is part of macOS; this is {platform.system() or sys.platform}.",
                details={"remedy": "use bubblewrap, runsc or docker here"},
            )
        if not os.access(self.policy_program, os.X_OK):
            raise SandboxLaunchError(
                f"{self.policy_program} is missing, which every macOS has had so far.",
                details={"remedy": "use the docker provider"},
            )
        if not hasattr(os, "waitid"):
            raise SandboxLaunchError(
                "This Python cannot watch over processes on macOS (os.waitid).",
                details={"remedy": "run the kernel with Python 3.13 or newer, or use the docker provider"},
            )
        return SeatbeltPlan(config=config, interpreter=describe_interpreter())

    def plan_key(self, plan: SeatbeltPlan) -> Sequence[object]:
        """Interpreter, config and the policy program."""
        return (self.policy_program, plan.interpreter.real_executable, plan.config.model_dump_json())

    async def create_resource(self, plan: SeatbeltPlan, request: LaunchRequest) -> SandboxResource:
        """Start a guest under its profile. Raises ConfigurationError, SandboxLaunchError, OSError."""
        area = HostArea()
        try:
            profile = self.profile(area, plan)
            policy_file = area.path / "policy.sb"
            policy_file.write_text(profile.text, encoding="utf-8")
            prefix = tuple(profile.arguments(self.policy_program, str(policy_file)))
        except BaseException:
            area.remove()
            raise
        launch = HostLaunch(
            provider_id=PROVIDER_ID, evidence=shares_processes, prefix=prefix,
            mechanism={"mechanism": "seatbelt", "system": platform.mac_ver()[0] or platform.system()},
        )
        return await open_in_area(
            area, launch, request, plan.interpreter, env=plan.config.env, safety_class=SafetyClass.CONSTRAINED,
            network="none", seccomp=SeccompBoot(enabled=False),
        )

    @staticmethod
    def profile(area: HostArea, plan: SeatbeltPlan) -> SeatbeltProfile:
        """Return the profile for an area and an interpreter: its roots, and nothing else of the host."""
        roots = (*plan.interpreter.roots, os.path.dirname(plan.interpreter.real_executable))
        return make_profile(SeatbeltGrant(
            read=(*roots, *plan.config.extra_read_only, *area.readable), write=tuple(area.writable)
        ))
