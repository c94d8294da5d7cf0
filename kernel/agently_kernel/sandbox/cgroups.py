"""One control group per sandbox, version 1 or 2, wherever this process may make one.

The group is made below this process's own group, so that limits already laid on us keep holding. Its name carries the
owner (pid namespace, pid, start time), so that groups left behind by a killed owner are recognised and removed later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxCleanupError
from agently_kernel.contract.isolation import LimitFact, ResourceLimits

_PREFIX = "agently-kernel"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-(\d+)-(\d+)-[0-9a-f]{{8}}\Z")
_CPU_PERIOD = 100_000
Controller = Literal["memory", "pids", "cpu"]
CONTROLLERS: tuple[Controller, ...] = ("memory", "pids", "cpu")


class CgroupPlace(Frozen):
    """Where a group for one controller can be made: the version and our own group's folder (or a delegated parent)."""

    version: Literal[1, 2]
    parent: str


def process_start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, or None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def pid_namespace() -> int:
    """Return the number of our pid namespace (0 where there are none): pids in names mean something only within it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def group_pattern(parent: str, owner: int) -> str:
    """Return the shell pattern of the groups below *parent* that the live process *owner* has made."""
    return f"{parent}/{_PREFIX}-{pid_namespace()}-{owner}-{process_start_time(owner) or 0}-*"


def _mounts(mountinfo: str) -> tuple[dict[str, tuple[str, str]], tuple[str, str] | None]:
    """Return ({v1 controller: (mount point, root)}, (v2 mount point, root) or None) from a mountinfo text."""
    first: dict[str, tuple[str, str]] = {}
    second: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        place = (fields[4].replace("\\040", " "), fields[3])
        if kind[0] == "cgroup":
            for name in kind[2].split(","):
                first.setdefault(name, place)
        elif kind[0] == "cgroup2" and second is None:
            second = place
    return first, second


def _folder(mount: tuple[str, str], path: str) -> Path:
    point, root = mount
    relative = os.path.relpath(path, root) if path.startswith(root) else path.lstrip("/")
    return Path(os.path.normpath(os.path.join(point, relative)))


def find_places(proc: Path = Path("/proc/self")) -> dict[Controller, CgroupPlace]:
    """Return, for each controller, where a group of ours can be made by the rights we have. Nothing is changed.

    In version 2 that is the nearest group, from our own upwards, whose children have the controller; a group that holds
    processes itself cannot hand controllers down, so this is seldom our own.
    """
    try:
        first, second = _mounts((proc / "mountinfo").read_text("utf-8", "replace"))
        membership = (proc / "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    places: dict[Controller, CgroupPlace] = {}
    paths: dict[str, str] = {}
    for line in membership:
        _, names, path = line.split(":", 2)
        for name in names.split(",") if names else ("",):
            paths[name] = path
    for controller in CONTROLLERS:
        if controller in first and controller in paths:
            own = _folder(first[controller], paths[controller])
            if os.access(own, os.W_OK):
                places[controller] = CgroupPlace(version=1, parent=str(own))
        elif second is not None and "" in paths:
            top, folder = Path(second[0]), _folder(second, paths[""])
            while folder == top or top in folder.parents:
                try:
                    handed_down = (folder / "cgroup.subtree_control").read_text("ascii").split()
                except OSError:
                    handed_down = []
                if controller in handed_down and os.access(folder, os.W_OK):
                    places[controller] = CgroupPlace(version=2, parent=str(folder))
                    break
                folder = folder.parent
    return places


class SandboxCgroup:
    """The groups of one sandbox. Made by :meth:`create`, ended by :meth:`remove`."""

    def __init__(self, folders: Mapping[Controller, tuple[int, Path]], limits: ResourceLimits) -> None:
        self._folders = dict(folders)
        self._limits = limits
        self._oom_seen = 0

    @classmethod
    def create(
        cls, limits: ResourceLimits, places: Mapping[Controller, CgroupPlace] | None = None
    ) -> SandboxCgroup:
        """Make the groups that can be made and set their limits. What cannot be had is simply not there: see ``facts``.

        Raises nothing for missing rights; a group whose limit cannot be written is removed again.
        """
        pid = os.getpid()
        name = f"{_PREFIX}-{pid_namespace()}-{pid}-{process_start_time(pid) or 0}-{secrets.token_hex(4)}"
        wanted: dict[Controller, bool] = {
            "memory": limits.memory_bytes is not None,
            "pids": limits.processes is not None,
            "cpu": limits.cpus is not None,
        }
        made: dict[Controller, tuple[int, Path]] = {}
        for controller, place in (find_places() if places is None else places).items():
            if not wanted[controller]:
                continue
            folder = Path(place.parent) / name
            try:
                folder.mkdir(exist_ok=True)  # version 2: one folder for all controllers
                _write_limits(folder, controller, place.version, limits)
            except OSError:
                if all(folder != other for _, other in made.values()):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
                continue
            made[controller] = (place.version, folder)
        return cls(made, limits)

    @property
    def controllers(self) -> frozenset[Controller]:
        """The controllers in force."""
        return frozenset(self._folders)

    def procs_files(self) -> list[str]:
        """Return the files into which a process writes ``0`` to enter the groups."""
        return sorted({str(folder / "cgroup.procs") for _, folder in self._folders.values()})

    def facts(self, pid: int | None) -> list[LimitFact]:
        """Return a fact for each controller in force; *observed* when the process *pid* is seen in the group."""
        facts = []
        for controller, (version, folder) in sorted(self._folders.items()):
            observed = None if pid is None else pid in _read_pids(folder)
            value: float | None = {
                "memory": self._limits.memory_bytes, "pids": self._limits.processes, "cpu": self._limits.cpus
            }[controller]
            name: Literal["memory", "processes", "cpu"] = (
                "memory" if controller == "memory" else "processes" if controller == "pids" else "cpu"
            )
            mechanism: Literal["cgroup1", "cgroup2"] = "cgroup1" if version == 1 else "cgroup2"
            facts.append(LimitFact(name=name, limit=value, mechanism=mechanism, observed=observed))
        return facts

    def oom_kills(self) -> int:
        """Return how many processes of the sandbox the kernel has killed for memory so far."""
        if "memory" not in self._folders:
            return 0
        version, folder = self._folders["memory"]
        text = _read(folder / ("memory.oom_control" if version == 1 else "memory.events"))
        found = re.search(r"^oom_kill (\d+)$", text, re.M)
        return int(found.group(1)) if found else 0

    def new_oom_kill(self) -> bool:
        """True when there was an out-of-memory kill since this was last asked."""
        count, before = self.oom_kills(), self._oom_seen
        self._oom_seen = count
        return count > before

    def process_limit_hit(self) -> bool:
        """True when a fork was refused because of the limit on processes."""
        if "pids" not in self._folders:
            return False
        found = re.search(r"^max (\d+)$", _read(self._folders["pids"][1] / "pids.events"), re.M)
        return found is not None and int(found.group(1)) > 0

    async def remove(self, timeout: float = 2.0) -> None:
        """Kill what is left in the groups and remove them. Idempotent. Raises SandboxCleanupError when one stays."""
        deadline = time.monotonic() + timeout
        left = {folder for _, folder in self._folders.values()}
        while left:
            left = {folder for folder in left if not _remove_once(folder)}
            if left and time.monotonic() > deadline:
                raise SandboxCleanupError(
                    "Control groups of a closed sandbox could not be removed: "
                    + ", ".join(sorted(map(str, left))) + ". A process in them does not end; `agently-kernel clean` "
                    "removes the groups once it has.",
                    details={"left": sorted(map(str, left))},
                )
            if left:
                await asyncio.sleep(0.005)
        self._folders.clear()


def hierarchies(proc: Path = Path("/proc/self")) -> list[str]:
    """Return the mount points of all control group trees that groups of ours may lie in."""
    try:
        first, second = _mounts((proc / "mountinfo").read_text("utf-8", "replace"))
    except OSError:
        return []
    tops = {place[0] for name, place in first.items() if name in CONTROLLERS} | ({second[0]} if second else set())
    return sorted(tops)


def remove_stale(tops: Iterable[str] | None = None) -> list[str]:
    """Kill and remove groups whose owner is gone; return the folders removed. Groups of living owners, and of owners
    whom we cannot see, are not touched.

    The whole trees below *tops* (default: all that are mounted) are searched: the owner may have run in another group
    than we do.
    """
    removed, here = [], pid_namespace()
    for top in hierarchies() if tops is None else tops:
        for folder, names, _ in os.walk(top):
            ours = [(name, match) for name in names if (match := _NAME.match(name))]
            names[:] = [name for name in names if not name.startswith(_PREFIX)]
            for name, match in ours:
                namespace, pid, start = (int(number) for number in match.groups())
                path = Path(folder) / name
                if namespace == here and process_start_time(pid) != start and _remove_within(path, 1.0):
                    removed.append(str(path))
    return removed


def _remove_within(folder: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _remove_once(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _write_limits(folder: Path, controller: Controller, version: int, limits: ResourceLimits) -> None:
    """Write the limits of one controller. Raises OSError when one that matters is refused."""
    if controller == "pids":
        (folder / "pids.max").write_text(str(limits.processes))
    elif controller == "cpu":
        quota = max(1000, int((limits.cpus or 1) * _CPU_PERIOD))
        if version == 1:
            (folder / "cpu.cfs_period_us").write_text(str(_CPU_PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (folder / "cpu.max").write_text(f"{quota} {_CPU_PERIOD}")
    elif version == 1:
        (folder / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
        with contextlib.suppress(FileNotFoundError):  # kernels without swap accounting have no such file
            (folder / "memory.memsw.limit_in_bytes").write_text(str(limits.memory_bytes))
    else:
        (folder / "memory.max").write_text(str(limits.memory_bytes))
        with contextlib.suppress(FileNotFoundError):
            (folder / "memory.swap.max").write_text("0")


def _remove_once(folder: Path) -> bool:
    """Kill the members and try to remove the group; True when it is gone."""
    for pid in _read_pids(folder):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except OSError:
        return ""


def _read_pids(folder: Path) -> list[int]:
    return [int(word) for word in _read(folder / "cgroup.procs").split() if word.isdigit() and word != "0"]
