"""What only the superuser of a sandbox with a kernel of its own can do, before that user is given up for good.

gVisor's kernel does not hold RLIMIT_NPROC, but it has a control group of its own that counts tasks. The superuser
inside is nobody outside; still only stage1 is ever that user, and only where the kernel says that it is gVisor's.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict

PR_CAPBSET_DROP = 24
LAST_CAPABILITY = 63
_VERSION_3 = 0x20080522


def _mount(folder: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs(folder, exist_ok=True)
    if libc.mount(b"cgroup", folder.encode(), b"cgroup", 0, b"pids") != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def limit_processes(folder: str, processes: int) -> int:
    """Enter a group that holds at most *processes* tasks; return the limit as the kernel tells it. Raises OSError.

    The group's files stay below *folder*, which nobody but the superuser may enter.
    """
    top = os.path.join(folder, "pids")
    _mount(top)
    group = os.path.join(top, "sandbox")
    os.mkdir(group)
    for name, value in (("pids.max", processes), ("cgroup.procs", os.getpid())):
        with open(os.path.join(group, name), "w") as stream:
            stream.write(str(value))
    with open("/proc/self/cgroup") as stream:
        if ":pids:/sandbox" not in stream.read():
            raise OSError("the kernel does not say that this process is in the group")
    with open(os.path.join(group, "pids.max")) as stream:
        return int(stream.read())


def become(uid: int, gid: int) -> None:
    """Give up the superuser and every capability, the bounding set included. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # those that the kernel does not know fail
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header, data = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def enter(wish: Dict[str, Any]) -> Dict[str, Any]:
    """Do what ``boot.superuser`` asks for (``uid``, ``gid``, ``folder``, ``processes`` or nothing) and return a report.

    ``processes``: the limit in force, 0 when there is none; ``reason``: why. Raises OSError when the superuser could
    not be given up: nothing else may run then.
    """
    report: Dict[str, Any] = {"processes": 0, "reason": ""}
    if wish.get("processes"):
        try:
            report["processes"] = limit_processes(str(wish["folder"]), int(wish["processes"]))
        except (OSError, ValueError) as error:
            report["reason"] = str(error)[:300]
    become(int(wish["uid"]), int(wish["gid"]))
    return report
