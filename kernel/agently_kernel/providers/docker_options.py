"""What the engine is asked for: a pure function from what a sandbox shall show to the arguments of a container."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.workspace import SANDBOX_PATHS
from agently_kernel.providers.docker_engine import ENGINE_LIMITS, EngineLimit
from agently_kernel.sandbox.launch import GUEST_DIR, SUPERUSER_CAPABILITIES, SUPERUSER_DIR, guest_files
from agently_kernel.sandbox.limits import shared_memory_bytes
from agently_kernel.sandbox.system_files import HOSTNAME

TMP, SHM = "/tmp", "/dev/shm"  # noqa: S108 - the container's own
GUEST_BYTES = 4 * 1024 * 1024
_SUPERUSER_BYTES = 64 * 1024
_BOOTSTRAP = (
    "import base64,io,os,sys,zipfile\n"
    "zipfile.ZipFile(io.BytesIO(base64.b64decode(''.join(sys.argv[2:])))).extractall(sys.argv[1])\n"
    "os.execv(sys.executable,[sys.executable,'-I','-S','-u',sys.argv[1]+'/stage1.py'])\n"
)
ARGUMENT_CHARS = 96 * 1024
"""Of one argument; the kernel takes less than 128 KiB (MAX_ARG_STRLEN in its binfmts.h)."""


class ContainerSpec(Frozen):
    """Everything that decides a container. Paths are absolute; sizes are bytes.

    ``binds`` are (host path, path inside), always read-only. ``sources`` says whether the workspace's folders are
    bound or their files sent over the guest protocol (other machine, virtual machine). ``begin_as_superuser``: only
    where the kernel in the container is not the host's: the first program becomes ``uid`` itself. ``engine_limits``:
    what the engine's control groups are asked to hold; ``processes_by_rlimit``: what is done instead.
    """

    name: str
    image: str
    uid: int
    gid: int
    limits: ResourceLimits
    network: Literal["none", "bridge"] = "none"
    runtime: str | None = None
    sources: Literal["bind", "protocol"] = "bind"
    binds: tuple[tuple[str, str], ...] = ()
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] = Field(default_factory=dict)
    count_inodes: bool = True
    engine_limits: tuple[EngineLimit, ...] = ENGINE_LIMITS
    processes_by_rlimit: bool = False
    begin_as_superuser: bool = False
    podman: bool = False


def tmpfs_options(spec: ContainerSpec) -> dict[str, str]:
    """Return path → mount options of everything that the guest may write."""
    # Podman knows neither owners nor a number of files; its U gives a tmpfs to the container's user.
    owner = "U" if spec.podman else f"uid={spec.uid},gid={spec.gid}"
    inodes = f",nr_inodes={spec.limits.inodes}" if spec.count_inodes else ""
    common = f"rw,nosuid,nodev,exec{inodes}"
    scratch, output = spec.limits.scratch_bytes, spec.limits.output_bytes
    found = {
        TMP: f"{common},size={scratch},mode=1777",
        SANDBOX_PATHS["build"]: f"{common},size={scratch},mode=0755,{owner}",
        SANDBOX_PATHS["output"]: f"{common},size={output},mode=0755,{owner}",
    }
    if spec.sources == "protocol":
        found[SANDBOX_PATHS["source"]] = f"{common},size={scratch},mode=0755,{owner}"
        found[SANDBOX_PATHS["input"]] = f"{common},size={scratch},mode=0755,{owner}"
        found[GUEST_DIR] = f"rw,nosuid,nodev,size={GUEST_BYTES},mode=0755,{owner}"
    if spec.begin_as_superuser:
        found[SUPERUSER_DIR] = f"rw,nosuid,nodev,noexec,size={_SUPERUSER_BYTES},mode=0700"
    if spec.podman:  # its own lies on the host, where it is mounted; ours is the container's alone
        found[SHM] = f"{common},size={shared_memory_bytes(spec.limits)},mode=1777"
    # A volume that an image declares would be a writable folder of the host: an empty one of no size hides it.
    found.update({path: "ro,nosuid,nodev,noexec,size=4096" for path in spec.volumes if path not in found})
    return found


def host_options(spec: ContainerSpec) -> dict[str, Any]:
    """Return the keyword arguments of the SDK's ``create_host_config``."""
    limits = spec.limits
    options: dict[str, Any] = {
        "network_mode": spec.network,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "ipc_mode": "private",
        **({} if spec.podman else {"shm_size": shared_memory_bytes(limits)}),
        "tmpfs": tmpfs_options(spec),
        "mounts": [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True,
             "BindOptions": {"Propagation": "rprivate"}}
            for source, target in spec.binds
        ],
        "log_config": {"Type": "none", "Config": {}},
        "auto_remove": True,
        # The guest's first program is an init itself: another one would be one more program inside.
        "init": False,
        "oom_score_adj": 500,
        "ulimits": [{"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files}],
    }
    if spec.begin_as_superuser:
        options["cap_add"] = list(SUPERUSER_CAPABILITIES)
    held = spec.engine_limits
    if limits.processes is not None and "processes" in held:
        options["pids_limit"] = limits.processes
    if limits.memory_bytes is not None and "memory" in held:
        options["mem_limit"] = options["memswap_limit"] = limits.memory_bytes
    if limits.cpus is not None and "cpu" in held:
        options["nano_cpus"] = int(limits.cpus * 1_000_000_000)
    if spec.runtime is not None:
        options["runtime"] = spec.runtime
    return options


def container_options(spec: ContainerSpec, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> dict[str, Any]:
    """Return the keyword arguments of the SDK's ``create_container``, without the host config."""
    return {
        "image": spec.image,
        "name": spec.name,
        "entrypoint": [argv[0]],
        "command": list(argv[1:]),
        "user": "0:0" if spec.begin_as_superuser else f"{spec.uid}:{spec.gid}",
        "hostname": HOSTNAME,
        "working_dir": cwd,
        "environment": dict(env),
        "labels": dict(spec.labels),
        "stdin_open": True,
        "tty": False,
        "stop_signal": "SIGKILL",
        "healthcheck": {"test": ["NONE"]},
        "detach": False,
    }


def guest_argv(python: str, argv: Sequence[str], sources: Literal["bind", "protocol"]) -> list[str]:
    """Return the command that starts the guest: as given when its folder is bound, else one that brings it along."""
    if sources == "bind":
        return [python, *argv[1:]]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(guest_files().items()):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    text = base64.b64encode(data.getvalue()).decode("ascii")
    pieces = [text[at : at + ARGUMENT_CHARS] for at in range(0, len(text), ARGUMENT_CHARS)]
    return [python, "-I", "-S", "-u", "-c", _BOOTSTRAP, GUEST_DIR, *pieces]
