"""From the limits asked for to the mechanisms that hold them on a Linux host without a daemon.

Three mechanisms, from strong to weak: a cgroup (where one can be made), rlimits set inside by the guest's first
program, and a watchdog outside that ends the sandbox. Sizes of tmpfs bound what can be written.
"""

from __future__ import annotations

import math
import os

from agently_kernel.contract.isolation import LimitFact, ResourceLimits

_MIB = 1024 * 1024
STACK_BYTES = 9 * _MIB
"""What a thread takes of the limit on data: its stack of 8 MiB, and a little."""

MOST_THREADS = 4096
PENDING_SIGNALS = 4096
MESSAGE_QUEUE_BYTES = 256 * 1024
"""A third of what the kernel lets a user have by default: queues of a few dozen messages fit."""


def boot_rlimits(limits: ResourceLimits, *, processes_by_rlimit: bool) -> dict[str, int]:
    """Return the rlimits that the guest's first program sets, by the names that its ``boot`` message uses.

    ``data_soft`` is the memory limit once more, for an interpreter: an allocation beyond it then fails with MemoryError
    in the cell, where the cgroup or the watchdog would end the interpreter and lose its variables. Unlike ``as`` it
    does not count address space that is only reserved, of which numeric libraries take a great deal; but the whole
    stack of every thread, so ``data``, the limit of every process, has room for those besides.
    ``nproc`` counts per user namespace when it is set inside one, but per uid of the whole host otherwise: only used
    with a user namespace or a uid of its own (*processes_by_rlimit*), and never set before one is entered.
    ``sigpending`` (signals in queues, and timers) and ``msgqueue`` are the user's too: a sandbox must not take all that
    is there for whoever runs it.
    """
    found = {"nofile": limits.open_files, "core": 0, "sigpending": PENDING_SIGNALS, "msgqueue": MESSAGE_QUEUE_BYTES}
    if limits.file_size_bytes is not None:
        found["fsize"] = limits.file_size_bytes
    if limits.memory_bytes is not None:
        threads = min(limits.processes or MOST_THREADS, MOST_THREADS)
        found["data_soft"] = limits.memory_bytes
        found["data"] = limits.memory_bytes + threads * STACK_BYTES
    if limits.processes is not None and processes_by_rlimit:
        found["nproc"] = limits.processes
    return found


def shared_memory_bytes(limits: ResourceLimits) -> int:
    """Return the size of /dev/shm: half of the memory limit, at least 64 MiB, at most the scratch size."""
    half = (limits.memory_bytes or limits.scratch_bytes) // 2
    return max(min(half, limits.scratch_bytes), min(64 * _MIB, limits.scratch_bytes))


def cpu_choice(cpus: float | None) -> frozenset[int] | None:
    """Return the processors of a sandbox that may use *cpus* of ours (rounded up), None when it may use them all."""
    if cpus is None:
        return None
    ours = sorted(os.sched_getaffinity(0))
    wanted = math.ceil(cpus)
    return frozenset(ours[-wanted:]) if wanted < len(ours) else None


def rlimit_facts(limits: ResourceLimits, observed: dict[str, tuple[int, int]]) -> list[LimitFact]:
    """Return the facts of what rlimits hold. *observed* maps ``fsize``, ``nofile`` to (soft, hard) as the host sees
    them on the very process."""

    def seen(name: str, wanted: float | None) -> bool | None:
        if wanted is None or name not in observed:
            return None
        return 0 <= observed[name][1] <= wanted

    return [
        LimitFact(
            name="file_size", limit=limits.file_size_bytes,
            mechanism="none" if limits.file_size_bytes is None else "rlimit",
            observed=seen("fsize", limits.file_size_bytes),
        ),
        LimitFact(
            name="open_files", limit=limits.open_files, mechanism="rlimit", observed=seen("nofile", limits.open_files)
        ),
    ]


_NAMES = {
    "Max file size": "fsize", "Max open files": "nofile", "Max processes": "nproc", "Max data size": "data",
    "Max core file size": "core", "Max address space": "as",
}


def read_rlimits(pid: int) -> dict[str, tuple[int, int]]:
    """Return (soft, hard) of the rlimits of a process, -1 for unlimited; empty when it is gone."""
    found: dict[str, tuple[int, int]] = {}
    try:
        with open(f"/proc/{pid}/limits", encoding="ascii") as stream:
            lines = stream.readlines()[1:]
    except OSError:
        return found
    for line in lines:
        name = _NAMES.get(line[:26].strip())
        if name:
            soft, hard = line[26:].split()[:2]
            found[name] = (_number(soft), _number(hard))
    return found


def _number(text: str) -> int:
    return -1 if text == "unlimited" else int(text)
