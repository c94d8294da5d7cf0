"""The OCI bundle of a gVisor sandbox without a container engine: the host's interpreter, read-only, and no image."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.workspace import SANDBOX_PATHS
from agently_kernel.sandbox.interpreter import is_inside
from agently_kernel.sandbox.launch import GUEST_DIR, SUPERUSER_CAPABILITIES, SUPERUSER_DIR
from agently_kernel.sandbox.limits import shared_memory_bytes
from agently_kernel.sandbox.system_files import HOSTNAME

TMP, SHM = "/tmp", "/dev/shm"  # noqa: S108 - the sandbox's own
_SMALL = 64 * 1024
_CAPABILITIES = [f"CAP_{name}" for name in SUPERUSER_CAPABILITIES]


class RunscLayout(Frozen):
    """Everything that decides the bundle. Paths are absolute.

    ``system`` are host folders of the operating system that are real, ``system_links`` those that are links, as
    (path, target). ``read_only`` are host paths shown at their own places; ``binds`` are (host path, path inside).
    ``links`` are (path, target) made in the root.
    """

    uid: int
    limits: ResourceLimits
    system: tuple[str, ...]
    system_links: tuple[tuple[str, str], ...] = ()
    etc_dir: str
    etc_folders: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    binds: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] = Field(default_factory=dict, repr=False)


def mounts(layout: RunscLayout) -> list[dict[str, Any]]:
    """Return the mounts in the order in which they are made."""
    limits = layout.limits

    def tmpfs(path: str, size: int, mode: str = "1777") -> dict[str, Any]:
        options = ["nosuid", "nodev", f"mode={mode}", f"size={size}"]
        return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": options}

    def bind(source: str, path: str) -> dict[str, Any]:
        options = ["rbind", "ro", "nosuid", "nodev"]
        return {"destination": path, "type": "bind", "source": source, "options": options}

    found = [{"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}]
    found += [bind(path, path) for path in layout.system]
    found.append(bind(layout.etc_dir, "/etc"))
    found += [bind(f"/etc/{name}", f"/etc/{name}") for name in layout.etc_folders]
    found += [tmpfs(SHM, shared_memory_bytes(limits)), tmpfs(TMP, limits.scratch_bytes)]
    found += [
        tmpfs(SANDBOX_PATHS["build"], limits.scratch_bytes), tmpfs(SANDBOX_PATHS["output"], limits.output_bytes)
    ]
    found.append(tmpfs(SUPERUSER_DIR, _SMALL, mode="0700"))
    covered = (*layout.system, *(path for path, _ in layout.system_links))
    found += [bind(path, path) for path in layout.read_only if not is_inside(path, covered)]
    found += [bind(source, path) for source, path in layout.binds]
    return found


def config(layout: RunscLayout, argv: Sequence[str], cwd: str) -> dict[str, Any]:
    """Return the ``config.json`` of the bundle.

    The first program begins as the superuser of gVisor's kernel, who is nobody outside: see ``guest.own_kernel``.
    """
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in sorted(layout.environment.items())],
            "cwd": cwd,
            "capabilities": {
                **dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
                "inheritable": [],
                "ambient": [],
            },
            "noNewPrivileges": True,
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": layout.limits.open_files, "soft": layout.limits.open_files}],
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": HOSTNAME,
        "mounts": mounts(layout),
        "linux": {"namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount", "network")]},
    }


def write_bundle(folder: Path, layout: RunscLayout, argv: Sequence[str], cwd: str) -> None:
    """Write the bundle into the empty *folder*: the root's skeleton of folders and links, and its config.

    Raises OSError.
    """
    root = folder / "rootfs"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    for mount in mounts(layout):
        target = root / mount["destination"].lstrip("/")
        place = target.parent if mount["type"] == "bind" and not os.path.isdir(mount["source"]) else target
        place.mkdir(parents=True, exist_ok=True)
        if place is not target:
            target.touch()
    for path in (SANDBOX_PATHS["input"], SANDBOX_PATHS["source"], GUEST_DIR, "/var"):
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path, aim in (*layout.system_links, *layout.links, ("/var/tmp", TMP)):  # noqa: S108
        link = root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(link):
            link.symlink_to(aim)
    for top, folders, _ in os.walk(root):
        for name in folders:
            if not os.path.islink(os.path.join(top, name)):
                os.chmod(os.path.join(top, name), 0o755)  # whatever the umask
    (folder / "config.json").write_text(json.dumps(config(layout, argv, cwd)), encoding="utf-8")
