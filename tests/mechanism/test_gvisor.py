"""gVisor as a runtime of a real engine: the contract, and that only gVisor passes for it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from gvisor_support import MEMORY, MEMORY_POLICY, gvisor_holds_processes
from images import Engine, dockerd
from provider_support import AXES, concluded, probe, surroundings

from agently_kernel.contract.isolation import conclude
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.providers.docker import DockerExecutionResourceProvider
from agently_kernel.providers.docker_engine import EngineFacts
from agently_kernel.providers.gvisor import GvisorExecutionResourceProvider, GvisorSandbox, sentry_evidence
from agently_kernel.sandbox.deaths import LOST_SANDBOX
from agently_kernel.testing.provider_contract import ProviderContract
from agently_kernel.testing.surroundings import inventory

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]


class TestGvisorContract(ProviderContract):
    """All of the contract, and no container left."""

    @pytest.fixture(autouse=True)
    def _engine(self, engine: Engine) -> None:
        self.engine = engine
        self.config = engine.config()

    def make_provider(self) -> ExecutionResourceProvider:
        return GvisorExecutionResourceProvider()

    def inventory(self) -> frozenset[str]:
        return inventory() | self.engine.containers()


async def test_it_is_observed_to_be_gvisor_from_inside_and_outside(engine: Engine) -> None:
    found = await probe(GvisorExecutionResourceProvider(), engine.config())
    assert found.capability is not None, found.reason
    assert concluded(found.capability.isolation) == dict.fromkeys(AXES, True)
    identity = [e for e in found.capability.isolation.evidence if e.check == "the session's kernel is gVisor's"]
    assert {item.subject for item in identity} == {*AXES[:-1], "network"}
    assert {(item.value, item.source, item.detail) for item in identity} == {(True, "outside", "its program: runsc")}
    assert found.capability.mechanism["runtime"] == "runsc"
    assert found.capability.mechanism["stage1"]["gvisor"] is True


async def test_an_absent_runtime_is_no_reason_to_take_another_one(engine: Engine) -> None:
    found = await probe(GvisorExecutionResourceProvider(), engine.config(runtime="runsc-nowhere"))
    assert not found.available and "has no runtime 'runsc-nowhere'" in found.reason
    assert "nothing was started with another one" in found.reason and "runsc install" in found.remedy


async def test_another_program_under_a_runtime_s_name_is_found_out(engine: Engine) -> None:
    found = await probe(GvisorExecutionResourceProvider(), engine.config(runtime="pretender"))
    assert not found.available and "does not say that it is gVisor's" in found.reason
    assert engine.containers() == frozenset()


async def test_the_plain_provider_does_not_claim_gvisor_s_axes(engine: Engine) -> None:
    found = await probe(DockerExecutionResourceProvider(), engine.config(runtime="runsc"))
    assert found.capability is not None
    assert found.capability.isolation.process_contained is False  # as the host sees it, from a plain container's view


def test_an_ordinary_process_is_no_kernel_of_gvisor() -> None:
    evidence = sentry_evidence(os.getpid())
    for axis in AXES[:-1]:
        assert conclude(evidence, axis) is False


async def test_what_holds_no_limit_says_so(engine: Engine, tmp_path: Path) -> None:
    async with surroundings(GvisorExecutionResourceProvider(), engine.config(), tmp_path) as place:
        result = await place.cell("pass")
        assert result.status is ExecutionStatus.SUCCESS and result.facts is not None
        limits = {limit.name: limit.mechanism for limit in result.facts.limits}
    assert (limits["inodes"], limits["memory"]) == ("none", "engine")


async def test_the_limit_of_processes_is_held_inside_and_the_session_lives_on(engine: Engine, tmp_path: Path) -> None:
    await gvisor_holds_processes(GvisorExecutionResourceProvider(), engine.config(), tmp_path)


@pytest.mark.parametrize("deed", MEMORY)
@pytest.mark.parametrize("answers", [True, False], ids=["the engine answers", "the engine stands still"])
async def test_the_end_at_the_memory_limit_is_told_as_that(deed: str, answers: bool, tmp_path: Path) -> None:
    with dockerd() as own:
        async with surroundings(GvisorExecutionResourceProvider(), own.config(), tmp_path, MEMORY_POLICY) as place:
            assert (await place.cell("pass")).status is ExecutionStatus.SUCCESS
            running = asyncio.ensure_future(place.cell("import time; time.sleep(2)\n" + MEMORY[deed], timeout=60))
            await asyncio.sleep(1)  # the cell itself comes by way of the engine
            try:
                if not answers:
                    own.process.send_signal(signal.SIGSTOP)
                result = await running
            finally:
                own.process.send_signal(signal.SIGCONT)
            assert result.death is not None and result.death.kind == "memory_limit", result
            assert "memory limit of 400 MiB" in result.message and LOST_SANDBOX in result.message


@pytest.mark.parametrize("change", [{"runtime_programs": {"runsc": "/usr/bin/runc"}}, {"runtime_programs": {}},
                                    {"local": False}])
def test_nothing_starts_as_superuser_where_the_runtime_may_be_another_program(change: dict[str, Any]) -> None:
    """SYNTHETIC facts of an engine."""
    known = {"runtime_programs": {"runsc": "/usr/bin/runsc"}, "local": True, **change}
    facts = EngineFacts(
        product="Docker", version="1", kind="linux", rootless=False, runtimes=("runsc",), default_runtime="runc",
        **known,
    )
    assert GvisorSandbox.begins_as_superuser(facts, "runsc") is False
