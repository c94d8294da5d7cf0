"""What the host kernel says of a sandbox's first process: the outside half of the observed facts.

Everything is read from /proc of the very process, by its host pid; no guest and no image can forge it. A file that
cannot be read gives a value of None, never True.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.isolation import Evidence, IsolationAxis

_CONTAINED = IsolationAxis.PROCESS_CONTAINED.value
_FILES = IsolationAxis.HOST_FILESYSTEM_RESTRICTED.value
_PRIVILEGE = IsolationAxis.PRIVILEGE_ESCALATION_BLOCKED.value
_SYSCALLS = IsolationAxis.SYSCALLS_RESTRICTED.value
_DEVICE_NODES = frozenset({"null", "zero", "full", "random", "urandom", "tty"})


class Mount(Frozen):
    """One line of mountinfo: device as ``major:minor``, the folder of that file system that is mounted, where, how."""

    device: str
    root: str
    point: str
    writable: bool
    kind: str


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Read a mountinfo text. Raises ValueError for a line of another form, because a line not understood proves
    nothing."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(tail) < 3:
            raise ValueError(f"not a line of mountinfo: {line[:200]!r}")
        # Read-only is either a flag of this mount or one of the whole file system.
        writable = "ro" not in fields[5].split(",") and "ro" not in tail[2].split(",")
        mounts.append(Mount(
            device=fields[2], root=_plain(fields[3]), point=_plain(fields[4]), writable=writable, kind=tail[0]
        ))
    return tuple(mounts)


def _plain(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def writable_host_mounts(inside: Collection[Mount], host: Collection[Mount]) -> tuple[str, ...]:
    """Return the mount points of *inside* through which the guest could write to a file system that the host has
    mounted.

    A file system is the host's when its device is in the host's own table. The handful of device nodes that every
    sandbox needs (/dev/null …) are mounted one by one and are not counted.
    """
    devices = {mount.device for mount in host}
    return tuple(sorted(
        mount.point for mount in inside
        if mount.writable and mount.device in devices
        and not (mount.point == f"/dev/{mount.root.lstrip('/')}" and mount.root.lstrip("/") in _DEVICE_NODES)
    ))


class _Observer:
    """Collects evidence on one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._now = time.time()
        self.evidence: list[Evidence] = []

    def add(self, subject: str, check: str, value: bool | None, detail: str) -> None:
        self.evidence.append(Evidence(
            subject=subject, check=check, value=value, source="outside", detail=detail, observed_at=self._now
        ))

    def read(self, name: str) -> str | None:
        try:
            with open(f"/proc/{self._pid}/{name}", encoding="utf-8", errors="surrogateescape") as stream:
                return stream.read()
        except OSError:
            return None

    def namespace(self, subject: str, name: str) -> None:
        """Compare a namespace of the process with our own."""
        try:
            theirs = os.stat(f"/proc/{self._pid}/ns/{name}").st_ino
            ours = os.stat(f"/proc/self/ns/{name}").st_ino
        except OSError as error:
            self.add(subject, f"{name}_namespace", None, f"could not be read: {error.strerror}")
            return
        self.add(subject, f"{name}_namespace", theirs != ours, "its own" if theirs != ours else "the host's")

    def status(self, fields: dict[str, str]) -> None:
        def value(name: str) -> str | None:
            return fields.get(name)

        uids = (value("Uid") or "").split()
        self.add(_PRIVILEGE, "uid_is_not_root", None if len(uids) != 4 else "0" not in uids, f"uids {' '.join(uids)}")
        for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
            text = value(name)
            self.add(_PRIVILEGE, f"{name.lower()}_is_empty", None if text is None else int(text, 16) == 0, text or "")
        flag = value("NoNewPrivs")
        self.add(_PRIVILEGE, "no_new_privs", None if flag is None else flag == "1", flag or "")
        mode, filters = value("Seccomp"), value("Seccomp_filters")
        self.add(
            _SYSCALLS, "seccomp_filter", None if mode is None else mode == "2",
            f"mode {mode}" + (f", {filters} filter(s)" if filters is not None else ""),
        )

    def mounts(self, allowed: Collection[str]) -> None:
        text = self.read("mountinfo")
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
                host = parse_mountinfo(stream.read())
            inside = parse_mountinfo(text) if text else ()
        except (OSError, ValueError):
            inside = ()
        if not inside:
            self.add(_FILES, "no_writable_host_mount", None, "the mount table could not be read")
            return
        found = writable_host_mounts(inside, host)
        beyond = [point for point in found if point not in allowed]
        granted = [point for point in found if point in allowed]
        detail = f"writable: {', '.join(beyond)}" if beyond else f"{len(inside)} mounts"
        self.add(
            _FILES, "no_writable_host_mount", not beyond,
            detail + (f"; granted on the host's disk: {', '.join(granted)}" if granted else ""),
        )


def observe_process(
    pid: int, *, allowed_writable: Collection[str] = (), expect_private_network: bool = True
) -> tuple[Evidence, ...]:
    """Return evidence on all four axes and the network for the process with the host pid *pid*.

    *allowed_writable* are mount points that a grant makes writable on the host's disk. Costs about 0.4 ms.
    """
    observer = _Observer(pid)
    for name in ("pid", "ipc", "uts"):
        observer.namespace(_CONTAINED, name)
    observer.namespace(_FILES, "mnt")
    observer.mounts(allowed_writable)
    text = observer.read("status")
    fields = dict(line.split(":", 1) for line in (text or "").splitlines() if ":" in line)
    observer.status({name: value.strip() for name, value in fields.items()})
    if expect_private_network:
        observer.namespace("network", "net")
    return tuple(observer.evidence)
