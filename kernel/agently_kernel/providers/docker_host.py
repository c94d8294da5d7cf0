"""The host's own view of a container: its first process, held fast, its control groups, its folders."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from agently_kernel.sandbox.host_facts import parse_mountinfo
from agently_kernel.sandbox.identity import HostProcess

_POLL = 0.02


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


class HostView:
    """A container's first process as the host's kernel has it. Close it with :meth:`close`."""

    def __init__(self, process: HostProcess, groups: dict[str, str]) -> None:
        self.process = process
        self.pid = process.pid
        self._groups = groups

    @property
    def readable(self) -> bool:
        """True when this user may look at the namespaces and the mounts of the process."""
        try:
            os.stat(f"/proc/{self.pid}/ns/pid")
            return True
        except OSError:
            return False

    async def wait_gone(self) -> None:
        """Return when the process has ended."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        descriptor = self.process.fileno()
        if descriptor < 0:
            return
        loop.add_reader(descriptor, _set, ended)
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)

    def open_folder(self, path: str) -> int | None:
        """Return a descriptor of a folder inside, or None where this user may not reach in.

        Only a file system of the container's own is given out, never one that the host has mounted itself.
        """
        try:
            descriptor = os.open(
                f"/proc/{self.pid}/root{path}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
            )
        except OSError:
            return None
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            host = {mount.device for mount in parse_mountinfo(stream.read())}
        device = os.fstat(descriptor).st_dev
        if f"{os.major(device)}:{os.minor(device)}" in host:
            os.close(descriptor)
            return None
        return descriptor

    def _number(self, controller: str, *names: str) -> float | None:
        folder = self._groups.get(controller) or self._groups.get("")
        for name in names if folder is not None else ():
            with contextlib.suppress(OSError, ValueError):
                return float(Path(folder or "", name).read_text("ascii").split()[0])
        return None

    def group_limits(self) -> dict[str, float]:
        """Return the limits in force by name (memory in bytes, pids, cpu in processors), as far as they can be read."""
        found = {
            "memory": self._number("memory", "memory.limit_in_bytes", "memory.max"),
            "pids": self._number("pids", "pids.max"),
            "cpu": self._cpus(),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _cpus(self) -> float | None:
        folder = self._groups.get("cpu") or self._groups.get("") or ""
        with contextlib.suppress(OSError, ValueError, IndexError):
            quota, period = Path(folder, "cpu.max").read_text("ascii").split()
            return float(quota) / float(period)
        quota_us, period_us = self._number("cpu", "cpu.cfs_quota_us"), self._number("cpu", "cpu.cfs_period_us")
        return quota_us / period_us if quota_us and quota_us > 0 and period_us else None

    def oom_kills(self) -> int | None:
        """Return how many processes of the container the kernel has ended for want of memory, None when unknown."""
        folder = self._groups.get("memory") or self._groups.get("")
        for name in ("memory.oom_control", "memory.events") if folder is not None else ():
            with contextlib.suppress(OSError, ValueError):
                for line in Path(folder or "", name).read_text("ascii").splitlines():
                    word, _, count = line.partition(" ")
                    if word == "oom_kill":
                        return int(count)
        return None

    def close(self) -> None:
        """Let the process go. Idempotent."""
        self.process.close()


def find_host_view(pid: int, container: str) -> HostView | None:
    """Return the view of process *pid* when it certainly is the container's; None else.

    The engine's number means nothing in another pid namespace; the container's id in the process's control groups,
    which everybody may read, says that it is the one.
    """
    if pid <= 0 or len(container) < 12:
        return None
    try:
        process = HostProcess(pid)
    except (OSError, AttributeError):
        return None
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace")
    except OSError:
        text = ""
    if container not in text:
        process.close()
        return None
    return HostView(process, _groups(text))


def _groups(text: str) -> dict[str, str]:
    """Return controller → folder from a ``/proc/<pid>/cgroup`` text; the key "" is version 2."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found[""] = "/sys/fs/cgroup" + path
        for name in controllers.split(",") if controllers else ():
            found[name] = f"/sys/fs/cgroup/{controllers}{path}"
            if not os.path.isdir(found[name]):
                found[name] = f"/sys/fs/cgroup/{name}{path}"
    return found
