"""Who a sandbox is on the host: a user id that nobody else uses, and a process that cannot be mistaken for another."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from agently_kernel.contract.errors import SandboxLaunchError

UID_RANGE = range(60000, 61000)


class UidLease:
    """An unprivileged uid that no other sandbox of this machine uses, held until :meth:`release`.

    The lock is an abstract socket: the kernel drops it with its owner, so nothing can be left behind.
    """

    def __init__(self, uid: int, holder: socket.socket | None) -> None:
        self.uid = uid
        self._holder = holder

    @classmethod
    def take(cls, candidates: Sequence[int] = UID_RANGE) -> UidLease:
        """Return a lease on the first free uid. Raises SandboxLaunchError when all are taken."""
        import pwd  # not on Windows, where nobody is root either

        offset = os.getpid() % len(candidates)
        for uid in [*candidates[offset:], *candidates[:offset]]:
            with contextlib.suppress(KeyError):
                pwd.getpwuid(uid)
                continue  # somebody's account
            holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                holder.bind(f"\0agently-kernel-uid-{uid}")
            except OSError:
                holder.close()
                continue
            return cls(uid, holder)
        raise SandboxLaunchError(
            f"All {len(candidates)} user ids for sandboxes ({candidates[0]} to {candidates[-1]}) are in use. "
            "Close some sandboxed kernels.",
        )

    def release(self) -> None:
        """Give the uid back. Idempotent."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None


class HostProcess:
    """A process of this host, held by a process descriptor so that its number cannot come to mean another. Linux."""

    def __init__(self, pid: int, parent: int | None = None) -> None:
        """*parent* is checked when given. Raises ProcessLookupError when the process is already gone."""
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
            if parent is not None and int(stat.rpartition(")")[2].split()[1]) != parent:
                raise ProcessLookupError(f"process {pid} is not the sandbox's")
        except BaseException as error:
            self.close()
            if isinstance(error, FileNotFoundError):
                raise ProcessLookupError(f"process {pid} is gone") from error
            raise

    def kill(self) -> bool:
        """SIGKILL it; return False when this user may not. Harmless when it is gone."""
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        except PermissionError:
            return False
        except OSError:
            return True
        return True

    def gone(self, timeout: float = 0.0) -> bool:
        """True when the process has ended, and, if it was the first of a pid namespace, every process of that
        namespace: the kernel ends a namespace's first process only after it has reaped all others."""
        if self._descriptor < 0:
            return True
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(timeout * 1000))

    def fileno(self) -> int:
        """Return the process descriptor, readable once the process has ended; -1 when closed."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor; the process is then taken to be gone. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
