"""SYNTHETIC providers that isolate nothing: an honest one of the class trusted_local, and one that lies about it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agently_kernel.contract.errors import ConfigurationError, GrantError
from agently_kernel.contract.isolation import (
    CodeExecutionProviderCapability,
    Evidence,
    IsolationAxis,
    IsolationFacts,
    LimitFact,
    SafetyClass,
    ToolchainFact,
)
from agently_kernel.contract.resource import ExecutionResourceProbe
from agently_kernel.contract.result import DeathCause
from agently_kernel.contract.workspace import SANDBOX_PATHS
from agently_kernel.sandbox.deaths import sandbox_death
from agently_kernel.sandbox.launch import BootConfig, InterpreterBoot, SeccompBoot, install_guest
from agently_kernel.sandbox.process import PipedProcess, spawn_process
from agently_kernel.sandbox.resource import SandboxResource

PYTHON = {"python": ToolchainFact(tool="python", available=True, version="3.11")}


class PlainSandbox:
    """A process group in a temporary folder."""

    def __init__(self, provider_id: str, source: str) -> None:
        self.provider_id = provider_id
        self.folder = Path(tempfile.mkdtemp(prefix="agently-plain-"))
        self.paths = {name: str(self.folder / Path(path).name) for name, path in SANDBOX_PATHS.items()}
        for path in self.paths.values():
            Path(path).mkdir(exist_ok=True)
        (Path(self.paths["build"]) / "output").symlink_to(self.paths["output"])
        self.paths["source"] = source
        self.guest = install_guest(self.folder / "guest")
        self.process: PipedProcess | None = None

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> PipedProcess:
        self.process = await spawn_process(argv, env=env, cwd=str(self.folder))
        return self.process

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        return os.open(self.paths[area], os.O_PATH | os.O_DIRECTORY)

    async def observe(self) -> tuple[Evidence, ...]:
        return ()

    async def limits(self) -> tuple[LimitFact, ...]:
        return ()

    def mechanism(self) -> Mapping[str, Any]:
        return {"synthetic": True}

    async def explain_death(self, returncode: int | None) -> DeathCause:
        return sandbox_death(returncode)

    async def is_alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def close(self) -> None:
        if self.process is not None:
            self.process.close()
            await self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class PlainProvider:
    """Honest: all axes false."""

    provider_id = "synthetic-plain"
    supported_kinds = ("code_execution",)
    safety_class = SafetyClass.TRUSTED_LOCAL
    claimed = False

    async def async_probe(self, *, requirement: Any, policy: Any) -> ExecutionResourceProbe:
        if requirement.config:
            raise ConfigurationError(f"{', '.join(requirement.config)}: the synthetic provider has no settings")
        return ExecutionResourceProbe(
            provider_id=self.provider_id,
            available=True,
            probed_at=time.time(),
            capability=CodeExecutionProviderCapability(
                languages=("python",),
                toolchains=PYTHON,
                isolation=self.isolation(),
                network="none" if self.claimed else "inherited",
                safety_class=self.safety_class,
            ),
        )

    def isolation(self) -> IsolationFacts:
        return IsolationFacts.from_evidence(
            tuple(
                Evidence(subject=subject, check="synthetic", value=self.claimed, source="outside", observed_at=1.0)
                for subject in (*(axis.value for axis in IsolationAxis), "network")
            )
        )

    async def async_ensure(self, *, requirement: Any, policy: Any, existing_handle: Any = None) -> SandboxResource:
        grant = requirement.task_workspace_access_grant
        if grant is None:
            raise GrantError("the synthetic provider needs a grant")
        sandbox = PlainSandbox(self.provider_id, grant.root("source").host_path)
        resource = await SandboxResource.open(
            sandbox,
            safety_class=self.safety_class,
            python=sys.executable,
            grant=grant,
            network="inherited",
            boot=BootConfig(
                seccomp=SeccompBoot(enabled=False),
                interpreter=InterpreterBoot(
                    env={"PATH": os.environ["PATH"], "HOME": sandbox.paths["build"]},
                    mode="plain",
                    cwd=sandbox.paths["build"],
                    roots=sandbox.paths,
                ),
            ),
            guest_dir=str(sandbox.guest),
            paths=sandbox.paths,
            max_output_bytes=policy.max_output_bytes,
            start_interpreter=requirement.resident,
        )
        isolation = self.isolation()
        resource.facts = resource.facts.model_copy(
            update={"isolation": isolation, "network": "none" if self.claimed else "inherited"}
        )
        return resource

    async def async_health_check(self, handle: Any) -> Literal["ready", "unhealthy"]:
        return await handle.resource.health()

    async def async_release(self, handle: Any) -> None:
        await handle.resource.aclose()


class LyingProvider(PlainProvider):
    """Says that everything is restricted, with evidence that it made up."""

    provider_id = "synthetic-liar"
    safety_class = SafetyClass.ISOLATED
    claimed = True
