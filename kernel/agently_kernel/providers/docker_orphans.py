"""Whose a container is, written in its labels; and the removal of those whose owner is gone.

Several machines may share one daemon: only containers of this very machine are ever judged.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from agently_kernel.providers.docker_engine import DockerEngine, EngineCallError

PREFIX = "io.agently-kernel."
OWNED = PREFIX + "machine"


def _first_line(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text("ascii", "replace").strip()
    return ""


def machine() -> str:
    """Return a name of this machine that shows nothing of it."""
    text = (_first_line("/etc/machine-id") or platform.node()) + "\0" + platform.node()
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def boot() -> str:
    """Return what changes with every start of the machine."""
    return _first_line("/proc/sys/kernel/random/boot_id") or str(int(psutil.boot_time()))


def _pid_namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def owner_labels(session: str | None = None) -> dict[str, str]:
    """Return the labels that name this process as the owner."""
    pid = os.getpid()
    return {
        OWNED: machine(), PREFIX + "boot": boot(), PREFIX + "pid-namespace": _pid_namespace(),
        PREFIX + "owner-pid": str(pid), PREFIX + "owner-start": _start_time(pid),
        PREFIX + "session": session or secrets.token_hex(8),
    }


def _start_time(pid: int) -> str:
    try:
        return str(round(psutil.Process(pid).create_time(), 2))
    except psutil.Error:
        return ""


def is_orphan(labels: Mapping[str, str]) -> bool:
    """True when the owner named by *labels* was a process of this machine and is gone for certain."""
    if labels.get(OWNED) != machine():
        return False
    if labels.get(PREFIX + "boot") != boot():
        return True
    if labels.get(PREFIX + "pid-namespace") != _pid_namespace():
        return False  # pids of another namespace say nothing here
    try:
        pid = int(labels[PREFIX + "owner-pid"])
        start = float(labels[PREFIX + "owner-start"])
    except (KeyError, ValueError):
        return False
    current = _start_time(pid)
    return not current or abs(float(current) - start) > 1.0


def _remove(client: Any, identity: str) -> None:
    client.remove_container(identity, v=True, force=True)


async def remove_orphans(engine: DockerEngine) -> list[str]:
    """Remove containers of dead owners of this machine and return their names. Raises EngineCallError."""
    found: list[dict[str, Any]] = await engine.call(
        "listing containers", lambda client: client.containers(all=True, filters={"label": f"{OWNED}={machine()}"})
    )
    removed = []
    for item in found:
        if not is_orphan(item.get("Labels") or {}):
            continue
        identity = str(item["Id"])
        try:
            await engine.call("removing an orphan", functools.partial(_remove, identity=identity))
        except EngineCallError as error:
            if error.status not in (404, 409):
                raise
        removed.append(str((item.get("Names") or [identity[:12]])[0]).lstrip("/"))
    return removed
