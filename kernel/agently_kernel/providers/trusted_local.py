"""No isolation at all: code runs as the user, on the host. Only at the host's explicit word, and every fact says so."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from pydantic import Field

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import ExecutionResourceError, GrantError
from agently_kernel.contract.isolation import Evidence, IsolationAxis, SafetyClass
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.contract.workspace import AccessMode
from agently_kernel.providers.base import LaunchRequest, SandboxProvider, read_config
from agently_kernel.providers.host_area import open_in_area
from agently_kernel.sandbox.host_sandbox import HostArea, HostLaunch
from agently_kernel.sandbox.interpreter import InterpreterLayout, describe_interpreter
from agently_kernel.sandbox.launch import SeccompBoot
from agently_kernel.sandbox.resource import SandboxResource

PROVIDER_ID = "trusted_local"
WARNING = "No isolation: the code runs with all the rights of the user who started the kernel."


class TrustedLocalConfig(Frozen):
    """``env``: variables that the code gets besides the fixed ones."""

    env: Mapping[str, str] = Field(default_factory=dict, repr=False)


class TrustedLocalPlan(Frozen):
    """The user's own interpreter and what the config adds."""

    interpreter: InterpreterLayout
    config: TrustedLocalConfig


def no_isolation(_: int | None) -> tuple[Evidence, ...]:
    """Return evidence against every axis: nothing is applied, so nothing holds, whatever attempts may show."""
    return tuple(
        Evidence(
            subject=subject, check="no isolation is applied", value=False, source="outside", detail=WARNING,
            observed_at=time.time(),
        )
        for subject in (*(axis.value for axis in IsolationAxis), "network")
    )


class TrustedLocalExecutionResourceProvider(SandboxProvider[TrustedLocalPlan]):
    """Runs code on the host. What it needs of the policy it checks itself too, besides the selection."""

    provider_id = PROVIDER_ID
    safety_class = SafetyClass.TRUSTED_LOCAL  # said before any probe, so that a chain that may not take it runs nothing
    access_modes: tuple[AccessMode, ...] = ("snapshot",)

    async def plan(
        self, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy
    ) -> TrustedLocalPlan:
        """Describe the running interpreter. Raises ConfigurationError."""
        config = read_config(TrustedLocalConfig, requirement, PROVIDER_ID)
        return TrustedLocalPlan(interpreter=describe_interpreter(), config=config)

    def plan_key(self, plan: TrustedLocalPlan) -> Sequence[object]:
        """Interpreter and variables."""
        return (plan.interpreter.real_executable, sorted(plan.config.env))

    def notes(self, plan: TrustedLocalPlan) -> tuple[str, ...]:
        """Say what it is."""
        return (WARNING,)

    async def create_resource(self, plan: TrustedLocalPlan, request: LaunchRequest) -> SandboxResource:
        """Start the guest as an ordinary process. Raises ExecutionResourceError, GrantError, SandboxLaunchError."""
        if request.grant is not None:
            _check(request.policy, request.grant.mode, [item.mode for item in request.grant.inputs])
        area = HostArea()
        launch = HostLaunch(
            provider_id=PROVIDER_ID, evidence=no_isolation,
            mechanism={"mechanism": "none", "unsafe": True, "warning": WARNING, "python": sys.version.split()[0]},
        )
        return await open_in_area(
            area, launch, request, plan.interpreter, env=plan.config.env, safety_class=SafetyClass.TRUSTED_LOCAL,
            network="inherited", seccomp=SeccompBoot(enabled=False),
        )


def _check(policy: ExecutionResourcePolicy, mode: AccessMode, inputs: Sequence[AccessMode]) -> None:
    if policy.isolation == "required" or not policy.unsafe_fallback:
        raise ExecutionResourceError(
            "trusted_local isolates nothing and was not allowed here; nothing was started. It needs "
            "unsafe_fallback=True together with isolation='preferred' or 'none' in the host's configuration.",
            code="execution_resource.trusted_local_not_allowed",
        )
    if {mode, *inputs} != {"snapshot"}:
        raise GrantError(
            "Without isolation only snapshot grants are given; nothing was started. Grant the inputs as snapshot.",
            code="execution_resource.trusted_local_snapshot_required",
        )
