"""Speed of container engines by ratio, in one run on one machine; starts an engine of its own, so only for root.

``python tests/bench/containers.py [--quick] [--json FILE] [--only NAME]`` prints a table like ``run.py``; the exit
status is always 0. Pairs are taken in turn, for the machine's speed drifts.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil

sys.path[:0] = [str(Path(__file__).parents[1] / "mechanism"), str(Path(__file__).parent)]

from images import PYTHON_IMAGE, Engine, dockerd  # noqa: E402
from provider_support import surroundings  # noqa: E402
from run import Figure, asked, compared, report  # noqa: E402

from agently_kernel.contract.resource import (  # noqa: E402
    ExecutionResourcePolicy,
    ExecutionResourceRequirement,
    ProviderCandidate,
)
from agently_kernel.doctor import examine  # noqa: E402
from agently_kernel.providers.base import LaunchRequest, Mounts  # noqa: E402
from agently_kernel.providers.bubblewrap import BubblewrapExecutionResourceProvider  # noqa: E402
from agently_kernel.providers.docker import DockerExecutionResourceProvider  # noqa: E402
from agently_kernel.providers.gvisor import GvisorExecutionResourceProvider  # noqa: E402
from agently_kernel.registry import ProviderRegistry  # noqa: E402
from agently_kernel.sandbox.runtime import temporary_runtime  # noqa: E402

Measure = Callable[[Engine, int], Awaitable[list[Figure]]]
CELL_WARM_UP = 10


def most(name: str, unit: str, value: float, bar: float) -> Figure:
    """Return a figure that is compared with nothing but its bar."""
    return Figure(name, unit, value, 0.0, value, bar, value <= bar)


async def container_start(engine: Engine, count: int) -> list[Figure]:
    """A session container, observed and ready, against ``docker run`` of the same image."""
    provider, policy = DockerExecutionResourceProvider(), ExecutionResourcePolicy()
    requirement = ExecutionResourceRequirement(
        requirement_id="bench", provider_id=provider.provider_id, config=engine.config(), policy=policy
    )
    bare = ["docker", "-H", engine.host, "run", "--rm", "--network", "none", PYTHON_IMAGE, "python3", "-c", "print(1)"]
    pairs = []
    with temporary_runtime() as folder:
        mounts = Mounts(guest=folder / "guest", source=folder / "source")
        mounts.install()
        for _ in range(count + 1):
            started = time.perf_counter()
            plan = await provider.plan(requirement, policy)
            resource = await provider.create_resource(plan, LaunchRequest(mounts=mounts, policy=policy, tools={}))
            ours = time.perf_counter() - started
            await resource.aclose(0.1)
            started = time.perf_counter()
            await asyncio.to_thread(subprocess.run, bare, check=True, capture_output=True, timeout=60)
            pairs.append((ours, time.perf_counter() - started))
    return [compared("container to docker run", "s", 1.3, pairs[1:])]


async def cells(engine: Engine, count: int) -> list[Figure]:
    """The cell ``1+1`` on Docker and on gVisor against bubblewrap, and what a session takes of the engine."""
    providers = (
        (BubblewrapExecutionResourceProvider(), {}), (DockerExecutionResourceProvider(), engine.config()),
        (GvisorExecutionResourceProvider(), engine.config()),
    )
    async with AsyncExitStack() as stack:
        places = []
        for provider, config in providers:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            places.append(await stack.enter_async_context(surroundings(provider, config, folder)))
        rows: list[list[float]] = []
        for number in range(CELL_WARM_UP + count):
            row = []
            for place in places:
                started = time.perf_counter()
                await place.cell("1+1")
                row.append((time.perf_counter() - started) * 1e3)
            if number >= CELL_WARM_UP:
                rows.append(row)
        containers = len(engine.containers()) / (len(places) - 1)
        clients = sum(child.name() == "docker" for child in psutil.Process().children(recursive=True))
    return [
        compared("cell on docker", "ms", 1.5, [(row[1], row[0]) for row in rows]),
        compared("cell on gvisor", "ms", 3.0, [(row[2], row[0]) for row in rows]),
        most("containers a session", "", containers, 1.0),
        most("docker programs started", "", clients, 0.0),
    ]


async def chain(engine: Engine, count: int) -> list[Figure]:
    """All probes of the chain, the first time and when they are remembered."""
    cold, warm = [], []
    for _ in range(count):
        registry = ProviderRegistry()
        configs: dict[str, dict[str, Any]] = {name: engine.config() for name in ("docker", "gvisor")}
        candidates = tuple(
            ProviderCandidate(provider_id=name, config=configs.get(name, {})) for name in registry.ids()
        )
        for times in (cold, warm):
            started = time.perf_counter()
            await examine(registry, candidates)
            times.append(time.perf_counter() - started)
    return [
        most("probes of the chain, cold", "s", statistics.median(cold), 3.0),
        most("the same, warm", "ms", statistics.median(warm) * 1e3, 50.0),
    ]


MEASURES: dict[str, tuple[Measure, int, int]] = {
    "container_start": (container_start, 10, 1), "cells": (cells, 60, 2), "chain": (chain, 5, 1),
}


def main() -> None:
    """Start an engine and measure with it."""
    options = asked(MEASURES, __doc__ or "")

    def measured(measure: Measure, engine: Engine) -> Callable[[int], list[Figure]]:
        return lambda count: asyncio.run(measure(engine, count))

    with dockerd() as engine:
        report({name: (measured(row[0], engine), *row[1:]) for name, row in MEASURES.items()}, options)


if __name__ == "__main__":
    main()
