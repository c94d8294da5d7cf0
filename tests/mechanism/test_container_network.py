"""Only the granted hosts, in real containers of a real engine: the same as on bubblewrap, packages of programs too."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from images import Engine
from provider_support import surroundings

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "network"))

from relay_checks import (
    ELSEWHERE,
    GET,
    HERE,
    HOSTILE,
    PROXIED,
    only_the_granted_is_reached,
    run,
    there_is_no_relay,
)
from synthetic_origin import origin

from agently_kernel.contract.bundle import CodeExecutionFile, CodeExecutionRequest
from agently_kernel.contract.resource import ExecutionResourcePolicy, ProviderCandidate
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.execution import CodeExecution
from agently_kernel.providers import docker_sandbox
from agently_kernel.providers.docker import DockerExecutionResourceProvider
from agently_kernel.providers.docker_options import host_options
from agently_kernel.providers.gvisor import GvisorExecutionResourceProvider

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]
KINDS = pytest.mark.parametrize("provider", ["docker", "gvisor"])


@contextlib.asynccontextmanager
async def executing(engine: Engine, provider: str, *hosts: str, **config: Any) -> AsyncIterator[CodeExecution]:
    policy = ExecutionResourcePolicy(network_mode="hosts" if hosts else "disabled", network_hosts=hosts)
    candidate = ProviderCandidate(provider_id=provider, config=engine.config(**config))
    async with CodeExecution.async_open(policy=policy, candidates=(candidate,)) as execution:
        yield execution


@KINDS
@pytest.mark.parametrize("sources", ["bind", "protocol"])
async def test_a_granted_host_is_reached_and_nothing_else(engine: Engine, provider: str, sources: str) -> None:
    async with (
        origin(HERE) as granted, origin(ELSEWHERE) as other,
        executing(engine, provider, f"{HERE}:{granted.port}", sources=sources) as execution,
    ):
        await only_the_granted_is_reached(execution, granted, other)


@KINDS
async def test_without_a_grant_there_is_no_relay(engine: Engine, provider: str) -> None:
    async with executing(engine, provider) as execution:
        await there_is_no_relay(execution)


def synthetic_wheel() -> bytes:
    """A package of one module, ``synthetic_package``, as a wheel."""
    data, info = io.BytesIO(), "synthetic_package-1.0.dist-info"
    with zipfile.ZipFile(data, "w") as wheel:
        wheel.writestr("synthetic_package.py", "WORD = 'installed'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: synthetic-package\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return data.getvalue()


@KINDS
async def test_requirements_are_installed_and_their_hosts_are_closed_for_the_program(
    engine: Engine, provider: str
) -> None:
    """In an image whose Python is called ``python`` and nothing else."""
    wheel = synthetic_wheel()
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(wheel) + wheel
    async with origin(HERE, answer) as server:
        place = f"{HERE}:{server.port}"
        policy = ExecutionResourcePolicy(auto_allow=True, package_hosts={"python": (place,)})
        candidate = ProviderCandidate(provider_id=provider, config=engine.config(image=engine.make_odd_image()))
        program = PROXIED + (
            "import shutil, synthetic_package, urllib.request\nprint(synthetic_package.WORD, shutil.which('python3'))\n"
            "open = urllib.request.build_opener(urllib.request.ProxyHandler({'http': 'http://127.0.0.1:3128'})).open\n"
            f"try: open('http://{place}/'); print('REACHED')\nexcept OSError as e: print(e)"
        )
        request = CodeExecutionRequest(
            language="python", source_code=program, files=(CodeExecutionFile(
                path="requirements.txt",
                content=f"http://{place}/synthetic_package-1.0-py3-none-any.whl\n".encode(),
            ),),
        )
        async with CodeExecution.async_open(policy=policy, candidates=(candidate,)) as execution:
            result = await execution.async_run(request, timeout=120)
        assert result.status is ExecutionStatus.SUCCESS, (result.message, result.stdout.text, result.stderr.text)
        assert "installed None" in result.stdout.text.splitlines()
        assert "403" in result.stdout.text and "REACHED" not in result.stdout.text
        assert len(server.seen) >= 1


@KINDS
async def test_much_goes_through_in_both_directions_and_a_session_survives_what_it_does_to_the_relay(
    engine: Engine, provider: str, tmp_path: Path
) -> None:
    size = 5_000_000
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
    async with origin(HERE, answer) as down, origin(HERE) as up:
        hosts = (f"{HERE}:{down.port}", f"{HERE}:{up.port}")
        policy = ExecutionResourcePolicy(network_mode="hosts", network_hosts=hosts)
        made = DockerExecutionResourceProvider() if provider == "docker" else GvisorExecutionResourceProvider()
        async with surroundings(made, engine.config(), tmp_path, policy) as place:
            async def cell(code: str) -> str:
                result = await place.cell(code)
                assert result.status is ExecutionStatus.SUCCESS, (result.message, result.error)
                return result.stdout.text

            code = (
                f"kept = 41\nimport urllib.request\nprint(len(urllib.request.urlopen('http://{hosts[0]}/').read()))\n"
                f"r = urllib.request.Request('http://{hosts[1]}/', data=b'y' * {size})\n"
                "print(urllib.request.urlopen(r).read())"
            )
            assert await cell(PROXIED + code) == f"{size}\nb'pong'\n"
            for _ in range(200):  # the origin answers the head; the body's end may still be on its way
                body = bytes(up.seen[0]).partition(b"\r\n\r\n")[2]
                if len(body) >= size:
                    break
                await asyncio.sleep(0.05)
            assert body == b"y" * size, len(body)

            for attack in HOSTILE.values():
                await cell(attack(up.port))
                await cell("held = s = None; import gc; gc.collect()")
            assert await cell("print(kept + 1)\n" + GET.format(hosts[1])) == "42\npong\n"


async def test_a_container_in_the_host_s_network_is_never_taken_for_one_of_single_hosts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weakened twin."""
    monkeypatch.setattr(docker_sandbox, "host_options", lambda spec: {**host_options(spec), "network_mode": "host"})
    async with executing(engine, "docker", "example.org") as execution:
        result = await run(execution, "print('ran')")
    assert (result.status, result.stdout.text) == (ExecutionStatus.BLOCKED, "")
    assert "network" in result.message
