"""Containers of Docker, rootless Docker or Podman: one locked-down container a session, through the engine's API."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, field_validator

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.contract.isolation import SafetyClass
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.contract.workspace import SANDBOX_PATHS
from agently_kernel.providers.base import LaunchRequest, SandboxProvider, read_config, user_id
from agently_kernel.providers.docker_engine import DockerEngine, EngineFacts
from agently_kernel.providers.docker_images import ImageFacts, PullPolicy, find_image, missing, pull_image
from agently_kernel.providers.docker_options import ContainerSpec
from agently_kernel.providers.docker_orphans import owner_labels, remove_orphans
from agently_kernel.providers.docker_sandbox import FOLDERS_UNSEEN, DockerSandbox
from agently_kernel.sandbox.delivery import ProtocolDelivery
from agently_kernel.sandbox.identity import UidLease
from agently_kernel.sandbox.interpreter import InterpreterLayout, sandbox_environment
from agently_kernel.sandbox.launch import GUEST_DIR, BootConfig, InterpreterBoot, SeccompBoot, SuperuserBoot
from agently_kernel.sandbox.limits import boot_rlimits
from agently_kernel.sandbox.resource import SandboxResource

PROVIDER_ID = "docker"
DEFAULT_IMAGE = "python:3.12-slim"
UNPRIVILEGED = 1000


class DockerConfig(Frozen):
    """What a candidate's ``config`` may hold.

    ``host``: URL of the engine; ``context``: a Docker context; neither: as the docker command chooses. ``image``: where
    Python code runs; ``images``: image by language. ``python``: the interpreter in the image. ``runtime``: a
    container runtime that the engine knows, instead of its own. ``pull_policy``: whether
    a missing image may be pulled, after you were asked. ``network``: ``bridge`` takes effect only where the policy
    enables the network. ``sources``: ``bind`` shows the workspace's folders, ``protocol`` sends the files (engines on
    other machines); ``auto`` chooses. ``env``: further variables of the guest. ``seconds``: deadline of each call.
    """

    host: str | None = None
    context: str | None = None
    image: str = DEFAULT_IMAGE
    images: Mapping[str, str] = Field(default_factory=dict)
    python: str | None = None
    runtime: str | None = None
    pull_policy: PullPolicy = "if_missing"
    network: Literal["none", "bridge"] = "none"
    sources: Literal["auto", "bind", "protocol"] = "auto"
    env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    seconds: float = Field(default=10.0, gt=0, le=600)

    @field_validator("image")
    @classmethod
    def _image(cls, value: str) -> str:
        if not value or value.startswith("-") or any(character.isspace() for character in value):
            raise ValueError("must be the name of an image such as python:3.12-slim")
        return value


class DockerPlan(Frozen):
    """Engine and image as they were found; ``config`` says the rest."""

    config: DockerConfig
    facts: EngineFacts
    image: ImageFacts


class DockerExecutionResourceProvider(SandboxProvider[DockerPlan]):
    """Opens containers. Variants of the runtime override :meth:`create_resource` only."""

    provider_id = PROVIDER_ID
    network_modes = ("disabled", "hosts")

    def __init__(self) -> None:
        super().__init__()
        self._swept: set[str] = set()
        self._unseeing: set[tuple[str | None, str | None]] = set()

    # -- plan

    async def plan(self, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy) -> DockerPlan:
        """Ask the engine what it is and whether it has the image; pull it where that is allowed.

        Raises ConfigurationError, SandboxLaunchError, ApprovalDenied.
        """
        config = read_config(DockerConfig, requirement, self.provider_id)
        engine = await DockerEngine.connect(config.host, config.context, seconds=config.seconds)
        try:
            if engine.facts.kind != "linux":
                raise SandboxLaunchError(
                    f"The engine runs {engine.facts.kind} containers, and cells need Linux ones.",
                    details={"remedy": "switch Docker Desktop to Linux containers"},
                )
            if engine.url not in self._swept:
                await remove_orphans(engine)
                self._swept.add(engine.url)
            name = config.images.get(requirement.language, config.image)
            image = await self._image(engine, requirement, config, name)
            return DockerPlan(config=config, facts=engine.facts, image=image)
        finally:
            engine.close()

    async def _image(
        self, engine: DockerEngine, requirement: ExecutionResourceRequirement, config: DockerConfig, name: str
    ) -> ImageFacts:
        found = await find_image(engine, name)
        if found is not None and config.pull_policy != "always":
            return found
        if config.pull_policy == "never":
            raise missing(engine, name, ", and pull_policy is never")
        host = self.host
        if host is None:
            if found is not None:
                return found
            raise missing(engine, name, " and nobody can be asked whether to pull it")
        await host.approve(
            requirement, "image_pull", name, facts={"image": name, "engine": engine.facts.product},
            why="The image is not on the engine yet." if found is None else "pull_policy is always.",
        )
        puller = await DockerEngine.connect(config.host, config.context, seconds=max(config.seconds, 120.0))
        try:
            await pull_image(puller, name, lambda phase, details: host.progress(requirement, phase, **details))
        finally:
            puller.close()
        pulled = await find_image(engine, name)
        if pulled is None:
            raise missing(engine, name, " although it was pulled")
        host.progress(requirement, "image_ready", image=name)
        return pulled

    def plan_key(self, plan: DockerPlan) -> Sequence[object]:
        """Engine, image digest, runtime and config."""
        return (self.provider_id, plan.model_dump_json())

    def notes(self, plan: DockerPlan) -> tuple[str, ...]:
        """Say where the host's kernel cannot be asked."""
        if plan.facts.local:
            return ()
        return ("the engine's containers are not processes of this machine: facts are observed from inside only",)

    # -- open

    async def create_resource(self, plan: DockerPlan, request: LaunchRequest) -> SandboxResource:
        """Open one container and return its resource. Raises SandboxLaunchError."""
        return await self.open_container(plan, request, DockerSandbox)

    async def open_container(
        self, plan: DockerPlan, request: LaunchRequest, kind: type[DockerSandbox]
    ) -> SandboxResource:
        """Open a container as a sandbox of this *kind*, for variants. Raises SandboxLaunchError.

        An engine of this machine need not see our folders: the kernel may itself run in a container that was given the
        engine's socket. Where it says so the files are sent, now and from then on.
        """
        sources, place = plan.config.sources, (plan.config.host, plan.config.context)
        if sources != "auto":
            return await self._open(plan, request, kind, sources)
        if plan.facts.local and place not in self._unseeing:
            try:
                return await self._open(plan, request, kind, "bind")
            except SandboxLaunchError as error:
                if error.code != FOLDERS_UNSEEN:
                    raise
                self._unseeing.add(place)
        return await self._open(plan, request, kind, "protocol")

    async def _open(
        self, plan: DockerPlan, request: LaunchRequest, kind: type[DockerSandbox], sources: Literal["bind", "protocol"]
    ) -> SandboxResource:
        engine = await DockerEngine.connect(plan.config.host, plan.config.context, seconds=plan.config.seconds)
        lease: UidLease | None = None
        try:
            uid, gid = user_id(), os.getgid() if hasattr(os, "getgid") else -1
            if uid <= 0:
                lease = UidLease.take() if uid == 0 and sys.platform == "linux" else None
                uid = gid = lease.uid if lease is not None else UNPRIVILEGED
            spec = self.specification(plan, request, kind, sources, uid, gid)
            sandbox = kind(
                self.provider_id, engine, plan.image, spec,
                (plan.config.python,) if plan.config.python else ("python3", "python"), lease=lease,
            )
        except BaseException:
            engine.close()
            if lease is not None:
                lease.release()
            raise
        return await SandboxResource.open(
            sandbox,
            safety_class=SafetyClass.ISOLATED,
            python="python3",
            boot=self._boot(plan, request, spec),
            grant=request.grant,
            network="none" if spec.network == "none" else "inherited",
            tools=request.tools,
            local=plan.facts.local,
            own_kernel=not kind.host_evidence,
            start_interpreter=request.resident,
            max_output_bytes=request.policy.max_output_bytes,
            deliver=ProtocolDelivery() if sources == "protocol" else None,
            deadline=max(30.0, 3 * plan.config.seconds),
        )

    def specification(
        self, plan: DockerPlan, request: LaunchRequest, kind: type[DockerSandbox],
        sources: Literal["bind", "protocol"], uid: int, gid: int,
    ) -> ContainerSpec:
        """Return what the engine is asked for: mounts from the grant, everything else from policy and config."""
        mounts = request.mounts
        binds: list[tuple[str, str]] = []
        if sources == "bind":
            binds = [(str(mounts.source), SANDBOX_PATHS["source"]), (str(mounts.guest), GUEST_DIR)]
            if mounts.input is not None:
                binds.append((str(mounts.input), SANDBOX_PATHS["input"]))
            binds += [(host, f"{SANDBOX_PATHS['build']}/{name}") for name, host in mounts.live]
            binds += [(os.devnull, f"{SANDBOX_PATHS['build']}/{name}") for name in mounts.masked]
        elif mounts.live:
            raise SandboxLaunchError(
                "Live read-only inputs cannot be shown on an engine that does not see this machine's folders.",
                details={"remedy": "grant the inputs as snapshot"},
            )
        granted = request.policy.network_mode == "enabled" and plan.config.network == "bridge"
        # The threads of a kernel that is not the host's are many more than the tasks of the guest.
        held = tuple(name for name in plan.facts.limits if kind.host_evidence or name != "processes")
        return ContainerSpec(
            name=f"agently-kernel-{secrets.token_hex(8)}",
            image=plan.image.image_id or plan.image.name,
            uid=uid,
            gid=gid,
            limits=request.policy.limits,
            network="bridge" if granted else "none",
            runtime=plan.config.runtime,
            sources=sources,
            binds=tuple(binds),
            volumes=plan.image.volumes,
            count_inodes=kind.host_evidence and plan.facts.product != "Podman",
            podman=plan.facts.product == "Podman",
            engine_limits=held,
            # Without control groups: a rootless engine's users are none of the host's, so the count is their own.
            processes_by_rlimit="processes" not in held and kind.host_evidence and plan.facts.rootless,
            begin_as_superuser=kind.begins_as_superuser(plan.facts, plan.config.runtime),
            labels=owner_labels(request.grant.task_workspace_id if request.grant is not None else "probe"),
        )

    def _boot(self, plan: DockerPlan, request: LaunchRequest, spec: ContainerSpec) -> BootConfig:
        inside = InterpreterLayout(
            executable="python3", real_executable="python3", version="", prefix=sys.base_prefix, roots=(),
            path=plan.image.path,
        )
        own = sandbox_environment(
            inside, cpus=request.policy.limits.cpus, passed=request.policy.pass_environment, extra=plan.config.env
        )
        return BootConfig(
            limits=boot_rlimits(request.policy.limits, processes_by_rlimit=spec.processes_by_rlimit),
            seccomp=SeccompBoot(enabled=True, allow_inet=True, allow_unix=True),
            interpreter=InterpreterBoot(env={**plan.image.environment, **own}, links=request.mounts.links()),
            superuser=SuperuserBoot(uid=spec.uid, gid=spec.gid, processes=request.policy.limits.processes)
            if spec.begin_as_superuser else None,
        )


