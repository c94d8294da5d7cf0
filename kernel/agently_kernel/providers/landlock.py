"""Landlock, seccomp and rlimits: for hosts where no namespaces can be made (containers, hardened kernels).

It confines a process where it is. What that cannot give is said: processes of the host are visible, and so is the
metadata of files; those axes are reported false, and the class is ``constrained``.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import field_validator

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.contract.isolation import Evidence, IsolationAxis, SafetyClass
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.contract.workspace import AccessMode
from agently_kernel.providers.base import LaunchRequest, SandboxProvider, read_config, user_id
from agently_kernel.providers.candidate_config import HostConfig
from agently_kernel.providers.host_area import open_in_area
from agently_kernel.sandbox.host_facts import observe_process
from agently_kernel.sandbox.host_sandbox import HostArea, HostLaunch
from agently_kernel.sandbox.identity import UidLease
from agently_kernel.sandbox.interpreter import (
    SYSTEM_ROOTS,
    InterpreterLayout,
    describe_interpreter,
)
from agently_kernel.sandbox.launch import SeccompBoot
from agently_kernel.sandbox.resource import SandboxResource
from agently_kernel.sandbox.supervisor import landlock_version

PROVIDER_ID = "landlock"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SYSTEM_FILES = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/fonts", "/etc/localtime",
    "/etc/timezone", "/etc/mime.types", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/passwd", "/etc/group",
    "/etc/nsswitch.conf", "/etc/os-release",
)
REMEDY = (
    "use a kernel of 5.13 or newer with `landlock` in its list of security modules "
    "(/sys/kernel/security/lsm; boot parameter lsm=landlock,…)"
)


class LandlockConfig(HostConfig):
    """What a candidate's ``config`` may hold, besides :class:`HostConfig`'s.

    ``python``: absolute path of another interpreter than the kernel's own; what it needs outside of the system's
    folders goes into ``extra_read_only``.
    """

    python: str | None = None

    @field_validator("python")
    @classmethod
    def _python(cls, value: str | None) -> str | None:
        if value is not None and not (os.path.isabs(value) and os.access(value, os.X_OK)):
            raise ValueError("must be the absolute path of a program")
        return value


class LandlockPlan(Frozen):
    """The kernel's interface and the interpreter."""

    config: LandlockConfig
    version: int
    interpreter: InterpreterLayout


def _other_interpreter(path: str) -> InterpreterLayout:
    return InterpreterLayout(
        executable=path, real_executable=os.path.realpath(path), version="", prefix=sys.base_prefix, roots=(),
        path=":".join(dict.fromkeys([os.path.dirname(path), "/usr/local/bin", "/usr/bin", "/bin"])),
    )


def closed_folder(*paths: str) -> tuple[str, str] | None:
    """Return the first folder on the way to one of *paths* that other users may not enter, and that path, or None."""
    for path in paths:
        for folder in reversed(Path(path).parents):
            try:
                if not folder.stat().st_mode & 0o001:
                    return str(folder), path
            except OSError:
                return str(folder), path
    return None


def rules(area: HostArea, interpreter: InterpreterLayout, extra: Sequence[str]) -> dict[str, list[str]]:
    """Return what the guest keeps: reading the system, its interpreter and its inputs, writing its own folders."""
    return {
        "read": [
            *SYSTEM_ROOTS, *SYSTEM_FILES, "/proc", *interpreter.roots,
            *(os.path.dirname(path) for path, _ in interpreter.links), *extra, *area.readable,
        ],
        "write": area.writable,
        "devices": list(DEVICES),
    }


def observe_confined(version: int) -> Callable[[int | None], tuple[Evidence, ...]]:
    """Return the observation of a guest that shares the host's namespaces, under this version of the interface."""

    def observe(pid: int | None) -> tuple[Evidence, ...]:
        now = time.time()

        def note(axis: IsolationAxis, check: str, value: bool | None, detail: str) -> Evidence:
            return Evidence(
                subject=axis.value, check=check, value=value, source="outside", detail=detail, observed_at=now
            )

        found = [
            note(IsolationAxis.HOST_FILESYSTEM_RESTRICTED, "metadata of the host's files is hidden", False,
                 "Landlock does not mediate stat, chmod and connecting to socket files"),
        ]
        if pid is None:
            return (*found, *(note(axis, "process", None, "the guest's process is gone") for axis in IsolationAxis))
        # The mount table is the host's own; what can be reached through it is Landlock's to say.
        seen = observe_process(pid, expect_private_network=False)
        moot = {"no_writable_host_mount"}
        if any(item.check == "no_new_privs" and item.value for item in seen):
            moot.add("capbnd_is_empty")  # an ordinary user cannot empty it, and nothing can be gained from it any more
        found += [item for item in seen if item.check not in moot and item.value is not None]
        if version < 6:
            found.append(note(IsolationAxis.PROCESS_CONTAINED, "signals stay inside", False,
                              f"Landlock version {version} knows no scopes"))
        return tuple(found)

    return observe


class LandlockExecutionResourceProvider(SandboxProvider[LandlockPlan]):
    """Runs the guest under Landlock rules, behind the system call filter without sockets, under a supervisor."""

    provider_id = PROVIDER_ID
    access_modes: tuple[AccessMode, ...] = ("snapshot",)

    async def plan(self, requirement: ExecutionResourceRequirement, policy: ExecutionResourcePolicy) -> LandlockPlan:
        """Ask the kernel for its Landlock version. Raises ConfigurationError, SandboxLaunchError."""
        config = read_config(LandlockConfig, requirement, PROVIDER_ID)
        if sys.platform != "linux":
            raise SandboxLaunchError(
                f"Landlock works on Linux only; this is {platform.system() or sys.platform}.",
                details={"remedy": "use the docker provider, or on macOS the seatbelt provider"},
            )
        version = landlock_version()
        if version < 1:
            raise SandboxLaunchError("This kernel has no Landlock, or it is switched off.", details={"remedy": REMEDY})
        interpreter = describe_interpreter() if config.python is None else _other_interpreter(config.python)
        if user_id() == 0 and (closed := closed_folder(interpreter.executable, interpreter.real_executable)):
            folder, path = closed
            raise SandboxLaunchError(
                f"As root the guest takes another user id, and that one cannot enter {folder}, where the interpreter "
                f"{path} lies.",
                details={"remedy": "run Jupyter as an ordinary user, or name an interpreter that everybody may run "
                         "with the provider's `python`, such as /usr/bin/python3"},
            )
        return LandlockPlan(config=config, version=version, interpreter=interpreter)

    def plan_key(self, plan: LandlockPlan) -> Sequence[object]:
        """Version, interpreter, config."""
        return (plan.version, plan.interpreter.real_executable, plan.config.model_dump_json())

    def notes(self, plan: LandlockPlan) -> tuple[str, ...]:
        """Say what does not work, and what is not shown."""
        return (
            "multiprocessing with shared memory, local sockets and /dev/shm do not work in it",
            *(f"not readable in the sandbox: {path} (name it in extra_read_only)" for path in plan.interpreter.refused),
        )

    async def create_resource(self, plan: LandlockPlan, request: LaunchRequest) -> SandboxResource:
        """Start a confined guest. Raises SandboxLaunchError, OSError."""
        lease = UidLease.take() if user_id() == 0 else None
        try:
            area = HostArea(lease.uid if lease is not None else None)
        except BaseException:
            if lease is not None:
                lease.release()
            raise
        launch = HostLaunch(
            provider_id=PROVIDER_ID,
            evidence=observe_confined(plan.version),
            landlock=rules(area, plan.interpreter, plan.config.extra_read_only),
            processes_by_rlimit=lease is not None,
            mechanism={
                "mechanism": "landlock", "landlock_version": plan.version, "kernel": platform.release(),
                "identity": f"uid {lease.uid} of the host" if lease is not None else "the user's own",
                "metadata_visible": True, "descendants_killed": True,
            },
        )
        return await open_in_area(
            area, launch, request, plan.interpreter, env=plan.config.env, safety_class=SafetyClass.CONSTRAINED,
            network="none", lease=lease,
            seccomp=SeccompBoot(allow_inet=False, allow_unix=False, hidden_memory="none", allow_reserve=False),
        )
