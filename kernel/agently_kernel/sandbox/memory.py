"""How much memory processes hold, seen from outside, where no control group counts it. Linux.

Three kinds: pages of processes with their page tables, files without a name (memfd), and what the kernel keeps for
open sockets and pipes. Kinds that belong to no open descriptor and no process are refused by the system call filter
(``guest.seccomp.HIDDEN_MEMORY``), except descriptors on their way between processes, of which a user has as many as
the limit on open files says.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

_PIDFD_GETFD = 438
_F_GETPIPE_SZ = 1032
_SO_MEMINFO = 55
_RMEM_ALLOC, _WMEM_ALLOC, _FORWARD_ALLOC, _WMEM_QUEUED, _BACKLOG = 0, 2, 4, 5, 7
USUAL_BUFFER = 212_992
"""The kernel's default for the buffer of a socket (net.core.wmem_default)."""

WAITING_SENDERS = 11
"""How many messages may wait at a datagram socket of this machine, each held by another sender's buffer."""

MOST_EXAMINED = 16_384
MOST_LISTED = 8 * 1024**2
"""Bytes of lists of mappings that are read at once: some ten thousand mappings."""
_UNSEEN_FREE = 256


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process, shared and file pages and its page tables included, 0 when it is gone.

    Cheap. Page tables: a program that reads memory it never wrote has hardly any pages, but a table for each 2 MiB.
    """
    resident = tables = 0
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/status", "rb") as stream:
        for line in stream:
            if line.startswith(b"VmRSS:"):
                resident = int(line.split()[1]) * 1024
            elif line.startswith(b"VmPTE:"):
                tables = int(line.split()[1]) * 1024
                break
    return resident + tables


def table_bytes(pid: int) -> int:
    """Return the bytes of a process's page tables, 0 when it is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/status", "rb") as stream:
        for line in stream:
            if line.startswith(b"VmPTE:"):
                return int(line.split()[1]) * 1024
    return 0


def proportional_bytes(pid: int) -> tuple[int, int]:
    """Return (private, shared-memory) bytes of a process, each page divided by how many share it; its page tables are
    private.

    Falls back on :func:`resident_bytes` where the kernel does not tell. Dear: only asked near a limit.
    """
    anonymous = shared = -1
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
        for line in stream:
            if line.startswith(b"Pss_Anon:"):
                anonymous = int(line.split()[1]) * 1024
            elif line.startswith(b"Pss_Shmem:"):
                shared = int(line.split()[1]) * 1024
    if anonymous < 0 or shared < 0:
        return resident_bytes(pid), 0
    return anonymous + table_bytes(pid), shared


def unnamed_shared_bytes(pids: Iterable[int]) -> int | None:
    """Return the shared memory of processes that no file with a name holds, each page divided by how many share it.

    None when they have so many mappings that looking at all would take long. Dear: only asked near a limit.
    """
    total, left = 0, MOST_LISTED
    for pid in pids:
        unnamed = False
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps", "rb") as stream:
            for line in stream:
                left -= len(line)
                if left < 0:
                    return None
                if not line[:1].isupper():  # the first line of a mapping: its addresses and its file
                    unnamed = line.endswith(b" /dev/zero (deleted)\n")
                elif unnamed and line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


@dataclass
class HeldMemory:
    """What open descriptors hold: bytes in files without a name, and by process in buffers of sockets and pipes.

    ``unseen`` counts sockets and pipes that could not be looked into.
    """

    files: int = 0
    buffers: dict[int, int] = field(default_factory=dict)
    unseen: int = 0

    @property
    def in_buffers(self) -> int:
        """Bytes in all buffers."""
        return sum(self.buffers.values())


def held_by_descriptors(pids: Iterable[int]) -> HeldMemory:
    """Look at every open descriptor of the processes once, whoever shares it. Blocks: for a thread of its own.

    Many descriptors are charged with a usual buffer each instead of being looked into.
    """
    held, seen, examined = HeldMemory(), set[str](), 0
    for pid in pids:
        with contextlib.ExitStack() as stack:
            try:
                names = os.listdir(f"/proc/{pid}/fd")
                process = os.pidfd_open(pid)
            except OSError:
                continue
            stack.callback(os.close, process)
            for name in names:
                try:
                    link = os.readlink(f"/proc/{pid}/fd/{name}")
                    if link.startswith("/memfd:"):
                        status = os.stat(f"/proc/{pid}/fd/{name}")
                        link = f"memfd {status.st_dev} {status.st_ino}"
                        held.files += 0 if link in seen else status.st_blocks * 512
                        seen.add(link)
                        continue
                except OSError:
                    continue
                if not link.startswith(("socket:", "pipe:")) or link in seen:
                    continue
                seen.add(link)
                examined += 1
                size = None if examined > MOST_EXAMINED else _buffer_of(process, int(name), link.startswith("pipe:"))
                if size is None:
                    held.unseen += 1
                    size = USUAL_BUFFER if held.unseen > _UNSEEN_FREE else 0
                held.buffers[pid] = held.buffers.get(pid, 0) + size
    return held


def _buffer_of(process: int, number: int, is_pipe: bool) -> int | None:
    """Return the bytes behind a descriptor of another process: at least what is there; None when it cannot be seen."""
    import fcntl  # neither is there on Windows, where nothing is watched
    import termios

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(_PIDFD_GETFD, process, number, 0)
    if descriptor < 0:
        return 0 if ctypes.get_errno() in (errno.EBADF, errno.ESRCH) else None
    try:
        waiting = array.array("i", [0])
        with contextlib.suppress(OSError):  # a listening socket has nothing to read
            fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
        if is_pipe:
            size: int = fcntl.fcntl(descriptor, _F_GETPIPE_SZ)
            return size if waiting[0] else 0
        return _socket_bytes(descriptor, waiting[0])
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _socket_bytes(descriptor: int, waiting: int) -> int:
    """Return the memory behind a socket. Raises OSError."""
    view = socket.socket(fileno=os.dup(descriptor))
    with view:
        told: tuple[int, ...] = struct.unpack("=9I", view.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))
        sending = max(told[_WMEM_ALLOC], told[_WMEM_QUEUED])  # TCP counts in the second what it has not had confirmed
        used = told[_RMEM_ALLOC] + sending + told[_FORWARD_ALLOC] + told[_BACKLOG]
        if waiting and view.family == socket.AF_UNIX:
            # What waits at a local socket is charged to its sender, who may have closed its end.
            used = max(used, 2 * USUAL_BUFFER * (1 if view.type == socket.SOCK_STREAM else WAITING_SENDERS))
        return used
