"""Real containers of a real Podman, through the API that it shares with Docker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import podman_engine
import pytest
from images import Engine
from provider_support import AXES, concluded, failed, probe, surroundings

from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.providers.docker import DockerExecutionResourceProvider

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if os.geteuid() != 0:
        pytest.skip("only root can start a container engine of its own")
    with podman_engine.podman() as running:
        yield running


async def test_all_axes_are_observed_from_both_sides(engine: Engine) -> None:
    found = await probe(DockerExecutionResourceProvider(), podman_engine.config(engine))
    assert found.capability is not None, (found.reason, found.diagnostics)
    facts = found.capability.isolation
    assert concluded(facts) == dict.fromkeys(AXES, True), failed(facts)
    for axis in (*AXES[:-1], "network"):
        assert {item.source for item in facts.evidence if item.subject == axis} == {"outside", "inside"}
    assert (found.capability.mechanism["engine"], found.capability.mechanism["host_side_observation"]) == (
        "Podman", "full",
    )
    assert engine.containers() == frozenset()


async def test_a_session_keeps_state_holds_its_limits_gives_out_files_and_leaves_nothing(
    engine: Engine, tmp_path: Path
) -> None:
    policy = ExecutionResourcePolicy(limits=ResourceLimits(processes=48, memory_bytes=256 * 1024**2))
    async with surroundings(DockerExecutionResourceProvider(), podman_engine.config(engine), tmp_path, policy) as place:
        first = await place.cell("import multiprocessing, os\nkept = os.getuid()\nopen('output/x.txt', 'w').write('x')")
        assert first.status is ExecutionStatus.SUCCESS, first.message
        assert len(engine.containers()) == 1
        result = await place.cell(
            "import subprocess\nchildren = []\ntry:\n    for _ in range(100):\n"
            "        children.append(subprocess.Popen(['sleep', '60']))\nexcept BlockingIOError:\n"
            "    print(0 < kept, 'refused', len(children) < 48, multiprocessing.Lock())\n"
            "for child in children:\n    child.kill()"
        )
        assert result.stdout.text.startswith("True refused True <Lock"), (result.stdout.text, result.error)
        assert result.facts is not None
        limits = {limit.name: (limit.mechanism, limit.observed) for limit in result.facts.limits}
        assert (limits["memory"], limits["processes"]) == (("engine", True), ("engine", True))
        assert limits["inodes"] == ("none", None)
        program = "open('output/x.txt', 'w').write('sent back')"
        run = await place.script(program, expected_outputs=("output/x.txt",))
        assert [Path(output.stored_path).read_text() for output in run.outputs] == ["sent back"], run.message
    assert engine.containers() == frozenset()


async def test_a_missing_image_is_said_with_the_command_of_this_engine(engine: Engine) -> None:
    found = await probe(
        DockerExecutionResourceProvider(), podman_engine.config(engine, image="localhost/agently-test/nothing:1")
    )
    assert not found.available and "is not on the Podman engine" in found.reason, found.reason
    assert "podman pull" in found.remedy
