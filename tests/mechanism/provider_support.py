"""Opens resources of providers for the tests, and tampers with what is asked for (weakened twins)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from agently_kernel.contract.isolation import IsolationFacts
from agently_kernel.contract.resource import (
    ExecutionResourcePolicy,
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
)
from agently_kernel.providers.base import SandboxProvider
from agently_kernel.testing.surroundings import Surroundings

AXES = ("process_contained", "host_filesystem_restricted", "privilege_escalation_blocked", "syscalls_restricted",
        "network_blocked")


def concluded(facts: IsolationFacts) -> dict[str, bool | None]:
    """Return every axis and the network."""
    return {axis: getattr(facts, axis) for axis in AXES}


def failed(facts: IsolationFacts) -> set[str]:
    """Return the checks that did not hold."""
    return {item.check for item in facts.evidence if item.value is not True}


async def probe(
    provider: SandboxProvider[Any], config: Mapping[str, Any], policy: ExecutionResourcePolicy | None = None
) -> ExecutionResourceProbe:
    """Probe *provider* with *config*."""
    policy = policy or ExecutionResourcePolicy()
    requirement = ExecutionResourceRequirement(
        requirement_id="test", provider_id=provider.provider_id, config=dict(config), policy=policy
    )
    return await provider.async_probe(requirement=requirement, policy=policy)


@contextlib.asynccontextmanager
async def surroundings(
    provider: SandboxProvider[Any], config: Mapping[str, Any], folder: Path,
    policy: ExecutionResourcePolicy | None = None,
) -> AsyncIterator[Surroundings]:
    """Yield a manager with this one provider and a workspace."""
    async with Surroundings(provider, config, policy or ExecutionResourcePolicy(), folder) as place:
        yield place
