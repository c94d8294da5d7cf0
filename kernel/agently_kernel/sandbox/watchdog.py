"""Watches a sandbox from outside and ends it at a limit that no kernel mechanism holds.

Memory: the pages of all its processes, each shared page counted once, what lies in its tmpfs areas, and what the kernel
holds for its descriptors (see ``memory``).
Where a control group holds the limit this part is off. Processors: by affinity, where no group holds them. Inodes,
and the bytes of a scratch area on the host's disk: always.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from agently_kernel.contract.result import DeathCause
from agently_kernel.sandbox.deaths import LOST_SANDBOX
from agently_kernel.sandbox.memory import (
    HeldMemory,
    held_by_descriptors,
    proportional_bytes,
    resident_bytes,
    unnamed_shared_bytes,
)

_MIB = 1024 * 1024
_AFTER_KILL, _FAST, _SLOW, _IDLE = 0.01, 0.05, 0.1, 0.25  # seconds between looks
_MAX_KILLS = 64
_RECENT = 2.0
_UNNAMED_EVERY = 1.0  # seconds
_MAX_ESCAPES = 20
_DESCRIPTORS_EVERY = 2
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


def kill_inside(pid: int, namespace: int) -> bool:
    """Kill *pid* if it still is a process of the pid namespace with inode *namespace*; True when that was done."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if os.stat(f"/proc/{pid}/ns/pid").st_ino != namespace:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class WatchLimits:
    """What the watchdog enforces; None switches a part off. Bytes, counts, and the numbers of the allowed CPUs."""

    memory_bytes: int | None = None
    inodes: int | None = None
    disk_bytes: int | None = None
    cpus: frozenset[int] | None = None


@dataclass
class Watchdog:
    """Polls one sandbox until it is closed or a limit is passed for good; then calls *kill* once and keeps the cause.

    Past the memory limit it first kills the largest process other than the first, again and again, as the kernel
    would: the sandbox and its files live on. *areas* maps names of tmpfs areas to open descriptors that the caller
    keeps open; *disk_folder* is the scratch area on the host's disk, if it lies there. Use :meth:`start` on the event
    loop and await :meth:`stop`.
    """

    pid: int
    limits: WatchLimits
    kill: Callable[[], None]
    areas: Mapping[str, int] = field(default_factory=dict)
    disk_folder: str | None = None
    cause: DeathCause | None = None
    killed_by_group: Callable[[], bool] | None = None
    """Asks the control group, where there is one, whether it has killed for memory since it was last asked."""
    whole: bool = False
    """The processes are parts of one program (a kernel of the sandbox's own), so that none can be ended for itself."""
    _memory: str = ""
    _memory_at: float = 0.0
    _unnamed_share: float = 0.0
    _unnamed_at: float = -_UNNAMED_EVERY
    _task: asyncio.Task[None] | None = None
    _namespace: int = 0
    _kills: int = 0
    _escapes: int = 0
    _looks: int = 0
    _share: float = 0.0
    _share_at: float = field(default_factory=time.monotonic)
    _held: HeldMemory = field(default_factory=HeldMemory)

    def start(self) -> None:
        """Begin to poll, when there is anything to enforce. Raises OSError when the process is gone."""
        if self._task is None and any(value is not None for value in vars(self.limits).values()):
            self._namespace = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
            self._hold_cpus(descendants(self.pid))
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
            limit = self.limits.memory_bytes
            if limit is not None:
                busy = self._held.in_buffers + self._held.files > limit // 16
                if busy or self._looks % _DESCRIPTORS_EVERY == 0:  # many descriptors take their time
                    self._held = await asyncio.to_thread(held_by_descriptors, descendants(self.pid))
                self._looks += 1
            share = self.check()
            if self.disk_folder is not None and self.cause is None:
                share = max(share, await asyncio.to_thread(self._check_disk, self.disk_folder))
            if self.cause is not None:
                self.kill()
                return
            await asyncio.sleep(self._pause(share))

    def _pause(self, share: float) -> float:
        """Return the seconds until the next look: half of the time in which the limit is reached at this pace."""
        now = time.monotonic()
        grown, since = share - self._share, now - self._share_at
        self._share, self._share_at = share, now
        ahead = 0.5 * (1.0 - share) * since / grown if grown > 0 else _IDLE
        return max(_AFTER_KILL, min(self._usual_pause(share), ahead))

    def _usual_pause(self, share: float) -> float:
        if share > 1.0:
            return _AFTER_KILL
        if share > 0.5:
            return _FAST
        light = self.limits.memory_bytes is None and self.limits.cpus is None and self.disk_folder is None
        return _IDLE if light else _SLOW

    def check(self) -> float:
        """Look once; return how near the nearest limit is (1.0 is reached); set ``cause`` when the sandbox must end."""
        share, in_areas = 0.0, 0
        self._ask_group()
        for name, descriptor in self.areas.items():
            try:
                used, inodes = area_usage(descriptor)
            except OSError:
                continue
            in_areas += used
            if self.limits.inodes is not None:
                share = max(share, inodes / self.limits.inodes)
                if inodes > self.limits.inodes:
                    self._end("inodes", f"{name} holds more than {self.limits.inodes} files and folders")
                    return 1.0
        if self.limits.memory_bytes is not None or self.limits.cpus is not None:
            processes = descendants(self.pid)
            self._hold_cpus(processes)
            if self.limits.memory_bytes is not None:
                share = max(share, self._check_memory(processes, self.limits.memory_bytes, in_areas))
        return share

    def files_bytes(self) -> int:
        """Return how many bytes of memory the files in the sandbox's areas hold."""
        used = {os.fstat(descriptor).st_dev: area_usage(descriptor)[0] for descriptor in self.areas.values()}
        return sum(used.values())

    def recent_memory_kill(self) -> str:
        """Say why a process has been killed for memory in the last seconds; empty when none was.

        Older kills do not count: they were of other processes than the one whose end is to be explained now.
        """
        self._ask_group()
        return self._memory if time.monotonic() - self._memory_at < _RECENT else ""

    def _ask_group(self) -> None:
        if self.killed_by_group is not None and self.killed_by_group():
            self._memory_seen("the kernel ended a process there")

    def _memory_seen(self, what: str) -> None:
        self._memory, self._memory_at = what, time.monotonic()

    def _check_memory(self, processes: list[int], limit: int, in_areas: int) -> float:
        outside = in_areas + self._held.files
        rough = sum(resident_bytes(pid) for pid in processes) + outside + self._held.in_buffers
        if rough <= limit:
            self._kills = 0
            return rough / limit
        # Pages shared after a fork were counted once per process: look again, exactly.
        sizes = {pid: proportional_bytes(pid) for pid in processes}
        anonymous, shared = (sum(size[part] for size in sizes.values()) for part in (0, 1))
        # Files that are mapped are in both; shared memory without a name is in no file.
        unnamed = self._unnamed(processes, shared) if min(shared, outside) > limit // 16 else 0
        exact = anonymous + unnamed + max(shared - unnamed, outside) + self._held.in_buffers
        if exact <= limit:
            self._kills = 0
            return max(exact / limit, 0.6)
        self._memory_seen(f"its processes and files held {exact // _MIB} MiB; the limit is {limit // _MIB} MiB")
        sizes.pop(self.pid, None)
        buffers = self._held.buffers
        victim = max(sizes, key=lambda pid: sum(sizes[pid]) + buffers.get(pid, 0), default=None)
        self._kills += 1
        if self.whole or victim is None or in_areas > limit or self._kills > _MAX_KILLS:
            self._end("memory", self._memory)
        else:
            kill_inside(victim, self._namespace)
            self._looks = 0
        return 1.1

    def _unnamed(self, processes: list[int], shared: int) -> int:
        """Return how much of *shared* no file holds, as it was at most a second ago; all where that is long to tell."""
        if time.monotonic() - self._unnamed_at > _UNNAMED_EVERY:
            found = unnamed_shared_bytes(processes)
            self._unnamed_share = 1.0 if found is None else min(1.0, found / max(shared, 1))
            self._unnamed_at = time.monotonic()
        return int(shared * self._unnamed_share)

    def _hold_cpus(self, processes: list[int]) -> None:
        """Keep every process on the allowed CPUs; a sandbox that keeps leaving them is ended."""
        allowed = self.limits.cpus
        if allowed is None:
            return
        left = False
        for pid in processes:
            for thread in _threads(pid):
                with contextlib.suppress(OSError):
                    if not os.sched_getaffinity(thread) <= allowed:
                        os.sched_setaffinity(thread, allowed)
                        left = True
        if left and self._task is not None:
            self._escapes += 1
            if self._escapes > _MAX_ESCAPES:
                self._end("cpu", f"it kept leaving the {len(allowed)} processor(s) it may use")

    def _check_disk(self, folder: str) -> float:
        size, count = folder_usage(folder)
        share = 0.0
        if self.limits.disk_bytes is not None:
            share = size / self.limits.disk_bytes
            if size > self.limits.disk_bytes:
                self._end("scratch_bytes", f"its scratch folder passed {self.limits.disk_bytes // _MIB} MiB")
        if self.limits.inodes is not None and count > min(self.limits.inodes, _MAX_WALK - 1):
            self._end("inodes", f"its scratch folder holds more than {count - 1} files and folders")
        return share

    def _end(self, limit: str, what: str) -> None:
        kinds: dict[str, Literal["memory_limit", "cpu_limit"]] = {"memory": "memory_limit", "cpu": "cpu_limit"}
        self.cause = DeathCause(
            what="sandbox", kind=kinds.get(limit, "watchdog"), limit=limit, signal="SIGKILL",
            message=f"The sandbox was ended because {what}. {LOST_SANDBOX}",
        )


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
