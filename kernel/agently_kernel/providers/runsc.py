"""gVisor without a container engine: ``runsc`` on the user's own interpreter, shown read-only. No daemon, no image."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.contract.isolation import SafetyClass
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.contract.workspace import SANDBOX_PATHS
from agently_kernel.providers.base import LaunchRequest, SandboxProvider, read_config, user_id
from agently_kernel.providers.bubblewrap_args import system_layout
from agently_kernel.providers.bubblewrap_binary import file_stamp
from agently_kernel.providers.candidate_config import ProgramConfig
from agently_kernel.providers.gvisor import identity_problem
from agently_kernel.sandbox.asking import ask_program, in_thread
from agently_kernel.sandbox.identity import UidLease
from agently_kernel.sandbox.interpreter import InterpreterLayout, describe_interpreter, sandbox_environment
from agently_kernel.sandbox.launch import GUEST_DIR, BootConfig, InterpreterBoot, SeccompBoot, SuperuserBoot
from agently_kernel.sandbox.limits import boot_rlimits
from agently_kernel.sandbox.resource import SandboxResource
from agently_kernel.sandbox.runtime import runtime_folders
from agently_kernel.sandbox.system_files import bound_folders, certificate_variables, write_system_files

if sys.platform == "linux":
    from agently_kernel.providers.runsc_bundle import RunscLayout
    from agently_kernel.providers.runsc_sandbox import ENVIRONMENT, RunscSandbox

PROVIDER_ID = "runsc"
GUEST_UID = 1000
SYSTRAP_SINCE = 20230501
INSTALL = "install gVisor: `apt install runsc` on Debian, else https://gvisor.dev/docs/user_guide/install/"
Platform = Literal["auto", "systrap", "ptrace"]


class RunscConfig(ProgramConfig):
    """What a candidate's ``config`` may hold, besides :class:`ProgramConfig`'s.

    ``platform``: how gVisor catches system calls; ``auto`` takes systrap where the release has it.
    """

    platform: Platform = "auto"


class RunscPlan(Frozen):
    """All that a launch needs, found out before anything is started."""

    config: RunscConfig
    binary: str
    stamp: tuple[int, ...]
    version: str
    platform: str
    interpreter: InterpreterLayout
    launcher: tuple[str, ...] = ()


def choose_platform(version: str, wanted: Platform) -> str:
    """Return the platform for this release, whose version text holds a date such as 20240807."""
    if wanted != "auto":
        return wanted
    found = re.search(r"(20\d{6})", version)
    return "systrap" if found and int(found.group(1)) >= SYSTRAP_SINCE else "ptrace"


# Rootless runsc leaves its kernel in the user's pid namespace and shows it the host's /proc: it gets its own.
OWN_PROCESSES = (
    "unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child=SIGKILL", "--mount", "--mount-proc",
    "--",
)


class RunscExecutionResourceProvider(SandboxProvider[RunscPlan]):
    """Runs gVisor itself, rootless as an ordinary user."""

    provider_id = PROVIDER_ID
    output_collection = "protocol"
    network_modes = ("disabled", "hosts")

    def __init__(self) -> None:
        super().__init__()
        self._launcher: tuple[str, ...] | None = None
        self._versions: dict[tuple[str, tuple[int, ...]], str] = {}

    def _rootless_launcher(self) -> tuple[str, ...]:
        """Return the words that come before runsc, tried once; none where the host does not allow them. Blocks."""
        if self._launcher is None:
            try:
                works = ask_program([*OWN_PROCESSES, "true"], env=ENVIRONMENT).returncode == 0
            except SandboxLaunchError:
                works = False
            self._launcher = OWN_PROCESSES if works else ()
        return self._launcher

    async def plan(self, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy) -> RunscPlan:
        """Find runsc and ask its version. Raises ConfigurationError, SandboxLaunchError."""
        config = read_config(RunscConfig, requirement, PROVIDER_ID)
        if sys.platform != "linux":
            raise SandboxLaunchError(
                "gVisor works on Linux only.", details={"remedy": "use the docker provider, or on macOS seatbelt"}
            )
        binary = config.binary or shutil.which("runsc", path=os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin")
        if binary is None or not os.access(binary, os.X_OK):
            raise SandboxLaunchError("No runsc program was found.", details={"remedy": INSTALL})
        stamp = tuple(file_stamp(binary))
        version = self._versions.get((binary, stamp))
        if version is None:  # starting the program takes longer than all else that is asked here
            version = self._versions[binary, stamp] = await in_thread(lambda: self._version(binary))
        return RunscPlan(
            config=config, binary=binary, stamp=stamp, version=version,
            platform=choose_platform(version, config.platform), interpreter=describe_interpreter(),
            launcher=() if user_id() == 0 else await asyncio.to_thread(self._rootless_launcher),
        )

    @staticmethod
    def _version(binary: str) -> str:
        try:
            answer = ask_program([binary, "--version"], env={"PATH": os.defpath})
            if answer.returncode != 0:
                raise SandboxLaunchError(f"exit code {answer.returncode}: {answer.stderr.strip()[:300]}")
        except SandboxLaunchError as error:
            raise SandboxLaunchError(f"{binary} does not run: {error}", details={"remedy": INSTALL}) from error
        lines = answer.stdout.splitlines()
        return lines[0].removeprefix("runsc version").strip()[:60] if lines else "unknown"

    def plan_key(self, plan: RunscPlan) -> Sequence[object]:
        """Program, release, platform, interpreter, config."""
        return (plan.binary, plan.stamp, plan.version, plan.platform, plan.interpreter.real_executable,
                plan.launcher, plan.config.model_dump_json())

    def notes(self, plan: RunscPlan) -> tuple[str, ...]:
        """Name what is on the import path and not shown."""
        return tuple(
            f"not shown in the sandbox: {path} (name it in extra_read_only to show it)"
            for path in plan.interpreter.refused
        )

    async def create_resource(self, plan: RunscPlan, request: LaunchRequest) -> SandboxResource:
        """Run a sandbox and return its resource. Raises SandboxLaunchError, OSError."""
        root = user_id() == 0
        lease = UidLease.take() if root else None
        try:
            layout = self._layout(plan, request, lease.uid if lease is not None else GUEST_UID)
        except BaseException:
            if lease is not None:
                lease.release()
            raise
        flags = ["--network=none", "--ignore-cgroups", f"--platform={plan.platform}"]
        if not root:
            flags.insert(0, "--rootless")
        facts = {
            "mechanism": "gvisor", "version": plan.version, "platform": plan.platform,
            "identity": f"uid {layout.uid} of gVisor's kernel" + ("" if root else ", rootless"),
        }
        sandbox = RunscSandbox(plan.binary, flags, layout, facts, lease=lease, launcher=plan.launcher)
        own = {**certificate_variables(), **plan.config.env}
        environment = sandbox_environment(
            plan.interpreter, cpus=request.policy.limits.cpus, passed=request.policy.pass_environment, extra=own
        )
        resource = await SandboxResource.open(
            sandbox,
            safety_class=SafetyClass.ISOLATED,
            python=plan.interpreter.executable,
            boot=BootConfig(
                limits=boot_rlimits(request.policy.limits, processes_by_rlimit=False),
                seccomp=SeccompBoot(enabled=True, allow_inet=True, allow_unix=True),
                interpreter=InterpreterBoot(env=environment, links=request.mounts.links()),
                superuser=SuperuserBoot(
                    uid=layout.uid, gid=layout.uid, processes=request.policy.limits.processes
                ),
            ),
            grant=request.grant, network="none", tools=request.tools, own_kernel=True,
            start_interpreter=request.resident, max_output_bytes=request.policy.max_output_bytes, deadline=30.0,
        )
        reason = identity_problem(resource, "runsc")
        if reason:
            await resource.aclose()
            raise SandboxLaunchError(
                f"{plan.binary} started something, but {reason}; it was closed.", details={"remedy": INSTALL}
            )
        return resource

    @staticmethod
    def _layout(plan: RunscPlan, request: LaunchRequest, uid: int) -> RunscLayout:
        mounts = request.mounts
        etc = write_system_files(runtime_folders(mounts.source, uid).etc, uid=uid, gid=uid)
        system, links = system_layout()
        binds = [(str(mounts.source), SANDBOX_PATHS["source"]), (str(mounts.guest), GUEST_DIR)]
        if mounts.input is not None:
            binds.append((str(mounts.input), SANDBOX_PATHS["input"]))
        binds += [(host, f"{SANDBOX_PATHS['build']}/{name}") for name, host in mounts.live]
        return RunscLayout(
            uid=uid, limits=request.policy.limits, system=system, system_links=links, etc_dir=str(Path(etc)),
            etc_folders=bound_folders(), read_only=(*plan.interpreter.roots, *plan.config.extra_read_only),
            binds=tuple(binds), links=plan.interpreter.links,
        )
