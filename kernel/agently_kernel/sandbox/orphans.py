"""Processes that a killed kernel left behind in the instant of starting a sandbox.

A mechanism arms the signal for the death of its parent only after it has forked; when it is killed between the two, its
child waits for ever to be told to go on. Such a child is known by a mark in its environment, which the guest's first
program does not inherit.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from agently_kernel.sandbox.cgroups import pid_namespace, process_start_time
from agently_kernel.sandbox.identity import HostProcess

_VARIABLE = "AGENTLY_KERNEL_OWNER"


def owner_mark() -> dict[str, str]:
    """Return the environment entry by which a process started now is known to be this process's."""
    pid = os.getpid()
    return {_VARIABLE: f"{pid_namespace()}-{pid}-{process_start_time(pid) or 0}"}


def remove_orphans() -> list[str]:
    """Kill marked processes whose owner is gone; return a sentence for each. Those of living owners are not touched."""
    killed, here, prefix = [], pid_namespace(), f"{_VARIABLE}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):  # gone, another user's, or another mark
            process = HostProcess(int(name))
            try:
                entries = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                mark = next((entry[len(prefix) :] for entry in entries if entry.startswith(prefix)), None)
                if mark is None:
                    continue
                namespace, pid, start = (int(part) for part in mark.split(b"-"))
                if namespace == here and process_start_time(pid) != start and process.kill():
                    killed.append(f"process {name}, left by a kernel that is gone")
            finally:
                process.close()
    return killed
