"""No isolation: it is said everywhere, and it is only given at the host's explicit word."""

from __future__ import annotations

from pathlib import Path

import pytest
from provider_support import AXES, concluded, probe, surroundings

from agently_kernel.contract.errors import ExecutionResourceError, GrantError
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.contract.workspace import GrantedInput
from agently_kernel.providers.trusted_local import WARNING, TrustedLocalExecutionResourceProvider
from agently_kernel.testing.provider_contract import ProviderContract

ALLOWED = ExecutionResourcePolicy(
    isolation="none", unsafe_fallback=True, trusted_local_authorized=True, network_mode="enabled"
)


class TestTrustedLocalContract(ProviderContract):
    """All of the contract, with the expectations of its class."""

    def make_provider(self) -> ExecutionResourceProvider:
        return TrustedLocalExecutionResourceProvider()


async def test_every_axis_is_false_and_every_fact_says_so(tmp_path: Path) -> None:
    provider = TrustedLocalExecutionResourceProvider()
    found = await probe(provider, {})
    assert found.capability is not None
    assert concluded(found.capability.isolation) == dict.fromkeys(AXES, False)
    assert found.diagnostics == (WARNING,)
    async with surroundings(provider, {}, tmp_path, ALLOWED) as place:
        result = await place.cell("1 + 1")
    assert result.status is ExecutionStatus.SUCCESS and result.facts is not None and result.selection is not None
    assert concluded(result.facts.isolation) == dict.fromkeys(AXES, False)
    assert result.facts.mechanism["unsafe"] is True and result.selection.unsafe is True
    assert result.facts.network == "inherited"


@pytest.mark.parametrize(
    "policy",
    [ExecutionResourcePolicy(isolation=isolation) for isolation in ("required", "preferred", "none")],
)
async def test_without_the_hosts_word_nothing_starts(tmp_path: Path, policy: ExecutionResourcePolicy) -> None:
    provider = TrustedLocalExecutionResourceProvider()
    async with surroundings(provider, {}, tmp_path, policy) as place:
        result = await place.script("print(1)")
        assert result.status is ExecutionStatus.BLOCKED and result.stdout.text == ""
        with place.granted() as grant, pytest.raises(ExecutionResourceError) as raised:  # not even asked directly
            await provider.async_ensure(requirement=place.requirement(task_workspace_access_grant=grant), policy=policy)
    assert raised.value.code == "execution_resource.trusted_local_not_allowed"


async def test_only_snapshots_are_given(tmp_path: Path) -> None:
    provider = TrustedLocalExecutionResourceProvider()
    async with surroundings(provider, {}, tmp_path, ALLOWED) as place:
        with place.granted() as grant:
            live = GrantedInput(name="data", host_path=str(tmp_path), mode="read_only")
            wider = grant.model_copy(update={"mode": "read_only", "inputs": (live,)})
            with pytest.raises(GrantError, match="only snapshot grants"):
                await provider.async_ensure(
                    requirement=place.requirement(task_workspace_access_grant=wider), policy=ALLOWED
                )
