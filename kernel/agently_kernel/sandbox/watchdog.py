"""Watches a sandbox from outside and ends it at a limit that no kernel mechanism holds.

Memory: the resident pages of all its processes, each shared page counted once, and what lies in its tmpfs areas. Where
a control group holds the limit this part is off. Inodes, and the bytes of a scratch area on the host's disk: always.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agently_kernel.contract.result import DeathCause

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MIB = 1024 * 1024
_FAST, _SLOW = 0.05, 0.1
_IDLE = 0.25
_MAX_PROCESSES = 4096
_MAX_WALK = 50_000


def descendants(pid: int) -> list[int]:
    """Return *pid* and all processes below it, by the kernel's own list of children. Gone processes are left out."""
    found: list[int] = []
    todo = [pid]
    while todo and len(found) < _MAX_PROCESSES:
        current = todo.pop()
        found.append(current)
        try:
            threads = os.listdir(f"/proc/{current}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{current}/task/{thread}/children", "rb") as stream:
                    todo.extend(int(word) for word in stream.read().split())
            except OSError:
                continue
    return found


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process, shared and file pages included, 0 when it is gone. Cheap."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as stream:
            return int(stream.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def proportional_bytes(pid: int) -> tuple[int, int]:
    """Return (anonymous, shared-memory) bytes of a process, each page divided by how many share it.

    Falls back on :func:`resident_bytes` where the kernel does not tell. Dear: only asked near a limit.
    """
    anonymous = shared = -1
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
            for line in stream:
                if line.startswith(b"Pss_Anon:"):
                    anonymous = int(line.split()[1]) * 1024
                elif line.startswith(b"Pss_Shmem:"):
                    shared = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return (resident_bytes(pid), 0) if anonymous < 0 or shared < 0 else (anonymous, shared)


def area_usage(descriptor: int) -> tuple[int, int]:
    """Return (bytes, inodes) in use of the file system that an open folder lies on. Raises OSError."""
    status = os.fstatvfs(descriptor)
    return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree


def folder_usage(path: str) -> tuple[int, int]:
    """Return (bytes on disk, entries) below a host folder that the guest writes; stops counting at 50 000 entries."""
    size = count = 0
    todo = [path]
    while todo and count < _MAX_WALK:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    count += 1
                    with contextlib.suppress(OSError):
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            todo.append(entry.path)
        except OSError:
            continue
    return size, count


@dataclass(frozen=True)
class WatchLimits:
    """What the watchdog enforces; None switches a part off. Bytes and counts."""

    memory_bytes: int | None = None
    inodes: int | None = None
    disk_bytes: int | None = None


@dataclass
class Watchdog:
    """Polls one sandbox until it is closed or a limit is passed; then calls *kill* once and keeps the cause.

    *areas* maps names of tmpfs areas to open descriptors that the caller keeps open; *disk_folder* is the scratch area
    on the host's disk, if it lies there. Use :meth:`start` on the event loop and await :meth:`stop`.
    """

    pid: int
    limits: WatchLimits
    kill: Callable[[], None]
    areas: Mapping[str, int] = field(default_factory=dict)
    disk_folder: str | None = None
    cause: DeathCause | None = None
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to poll, when there is anything to enforce."""
        if self._task is None and any(value is not None for value in vars(self.limits).values()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sandbox-watchdog")

    async def stop(self) -> None:
        """End the polling and wait for the task. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while self.cause is None:
            share = self.check()
            if self.cause is not None:
                self.kill()
                return
            if self.disk_folder is not None:
                share = max(share, await asyncio.to_thread(self._check_disk))
                if self.cause is not None:
                    self.kill()
                    return
            idle = _IDLE if self.limits.memory_bytes is None and self.disk_folder is None else _SLOW
            await asyncio.sleep(_FAST if share > 0.5 else idle)

    def check(self) -> float:
        """Look once; return how near the nearest limit is (1.0 is reached) and set ``cause`` when one is passed."""
        share, in_areas = 0.0, 0
        for name, descriptor in self.areas.items():
            try:
                used, inodes = area_usage(descriptor)
            except OSError:
                continue
            in_areas += used
            if self.limits.inodes is not None:
                share = max(share, inodes / self.limits.inodes)
                if inodes > self.limits.inodes:
                    self._passed("inodes", f"{name} holds more than {self.limits.inodes} files and folders")
                    return 1.0
        if self.limits.memory_bytes is not None:
            share = max(share, self._check_memory(self.limits.memory_bytes, in_areas))
        return share

    def _check_memory(self, limit: int, in_areas: int) -> float:
        processes = descendants(self.pid)
        rough = sum(resident_bytes(pid) for pid in processes) + in_areas
        if rough <= limit:
            return rough / limit
        # Pages shared after a fork were counted once per process: look again, exactly.
        anonymous = shared = 0
        for pid in processes:
            own, common = proportional_bytes(pid)
            anonymous, shared = anonymous + own, shared + common
        exact = anonymous + max(shared, in_areas)  # files of an area that are mapped are in both
        if exact > limit:
            held = f"its processes and files held {exact // _MIB} MiB"
            self._passed("memory", f"{held}; the limit is {limit // _MIB} MiB")
        return max(exact / limit, 0.6)

    def _check_disk(self) -> float:
        assert self.disk_folder is not None
        size, count = folder_usage(self.disk_folder)
        share = 0.0
        if self.limits.disk_bytes is not None:
            share = size / self.limits.disk_bytes
            if size > self.limits.disk_bytes:
                self._passed("scratch_bytes", f"its scratch folder passed {self.limits.disk_bytes // _MIB} MiB on disk")
        if self.limits.inodes is not None and count > min(self.limits.inodes, _MAX_WALK - 1):
            self._passed("inodes", f"its scratch folder holds more than {count - 1} files and folders")
        return share

    def _passed(self, limit: str, what: str) -> None:
        self.cause = DeathCause(
            what="sandbox", kind="memory_limit" if limit == "memory" else "watchdog", limit=limit, signal="SIGKILL",
            message=f"The sandbox was ended because {what}.",
        )
