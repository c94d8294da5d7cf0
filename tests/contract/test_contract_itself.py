"""The contract tests find what they are made to find: SYNTHETIC providers that lie or leak are not let through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic_plain_provider import LyingProvider, PlainProvider

from agently_kernel.contract.isolation import IsolationAxis, IsolationFacts
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.testing.provider_contract import ProviderContract


class TestHonestPlainProvider(ProviderContract):
    """All of the contract, with the expectations of the class trusted_local."""

    def make_provider(self) -> ExecutionResourceProvider:
        return PlainProvider()


def against(provider: Any, name: str, folder: Path, **arguments: Any) -> None:
    """Run one contract test for *provider*."""

    class Contract(ProviderContract):
        settle_seconds = 1.0

        def make_provider(self) -> ExecutionResourceProvider:
            return provider  # type: ignore[no-any-return]

    contract = Contract()
    getattr(contract, name)(lambda scenario: contract.run_scenario(scenario, folder), **arguments)


AXES = [axis.value for axis in IsolationAxis]


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        ("host_filesystem_restricted", "the host's file or environment was read"),
        ("process_contained", "the host's process could be signalled"),
        ("privilege_escalation_blocked", "no_new_privileges flag is not set|the code has capabilities"),
        ("syscalls_restricted", "no seccomp filter is in force"),
        ("network", "the host's port was reached"),
    ],
)
def test_each_false_claim_is_found(tmp_path: Path, claim: str, found: str) -> None:
    class OneLie(LyingProvider):
        def isolation(self) -> IsolationFacts:
            facts = super().isolation()
            return IsolationFacts.from_evidence(
                tuple(e if e.subject == claim else e.model_copy(update={"value": False}) for e in facts.evidence)
            )

        async def async_probe(self, *, requirement: Any, policy: Any) -> Any:
            probe = await super().async_probe(requirement=requirement, policy=policy)
            network = "none" if claim == "network" else "inherited"
            capability = probe.capability.model_copy(update={"network": network})
            return probe.model_copy(update={"capability": capability})

        async def async_ensure(self, **arguments: Any) -> Any:
            resource = await super().async_ensure(**arguments)
            network = "none" if claim == "network" else "inherited"
            resource.facts = resource.facts.model_copy(update={"network": network})
            return resource

    with pytest.raises(AssertionError, match=found):
        against(OneLie(), "test_claims_hold_against_attempts", tmp_path)


def test_a_claim_without_evidence_is_found(tmp_path: Path) -> None:
    class Bare(LyingProvider):
        def isolation(self) -> IsolationFacts:
            return IsolationFacts(**dict.fromkeys(AXES, True), network_blocked=True)

    with pytest.raises(AssertionError, match="no evidence"):
        against(Bare(), "test_the_probe_is_complete", tmp_path)


def test_a_release_that_forgets_is_found(tmp_path: Path) -> None:
    forgotten: list[Any] = []

    class Forgetful(PlainProvider):
        async def async_release(self, handle: Any) -> None:
            forgotten.append(handle.resource)

    try:
        with pytest.raises(AssertionError, match=r"left on the machine.*process"):
            against(Forgetful(), "test_output_is_bounded_with_head_and_tail", tmp_path)
    finally:
        for resource in forgotten:
            resource.sandbox.process.kill()
            resource.sandbox.process._popen.wait()


def test_a_config_that_is_not_read_is_found(tmp_path: Path) -> None:
    class Careless(PlainProvider):
        async def async_probe(self, *, requirement: Any, policy: Any) -> Any:
            plain = requirement.model_copy(update={"config": {}})
            return await super().async_probe(requirement=plain, policy=policy)

    with pytest.raises(AssertionError):
        against(Careless(), "test_an_unknown_config_key_is_an_error_that_names_it", tmp_path)


def test_the_option_runs_the_suite_and_names_an_unknown_provider(tmp_path: Path) -> None:
    def pytest_in_folder(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *arguments,
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    unknown = pytest_in_folder("--agently-provider=nowhere", "-k", "probe_is_complete")
    assert unknown.returncode == 1 and "no provider is called 'nowhere'" in unknown.stdout
    listed = pytest_in_folder("--agently-provider=nowhere", "--collect-only", "-q")
    names = {name for name in dir(ProviderContract) if name.startswith("test_")}
    assert {line.split("::")[-1] for line in listed.stdout.splitlines() if "::" in line} == names
    broken = pytest_in_folder("--agently-provider=x", "--agently-provider-config=[]")
    assert broken.returncode == 4 and "must be a JSON object" in broken.stderr
