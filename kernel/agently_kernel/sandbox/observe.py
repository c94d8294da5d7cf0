"""The inside observations: what the host plants for the guest to try, and how the guest's word becomes evidence.

The challenge is a JSON object; the guest's ``probe`` module makes one attempt for each key that is there:

``nonce``          echoed, as proof that the attempts were made; sent to ``tcp_port`` when it is reached
``write_roots``    folders where writing is allowed; writing anywhere else must fail
``host_pid``       a live process of the host; it must not be reachable
``namespaces``     inode numbers of the host's namespaces by name (pid, net, ipc, mnt, uts, user, cgroup)
``canary_file``    a file of the host that everybody may read; it must not be readable
``canary_dir``     a folder of the host that everybody may write; it must stay empty but for its canary
``tcp_port``       a listener on the host's 127.0.0.1; it must not be reachable
``abstract_name``  a listener on the host's abstract socket of this name (without the leading NUL)
``unix_sockets``   paths of listeners on the host's file system; they must not be reachable

With ``local=False`` (the sandbox is on another machine) only the first two are given.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from agently_kernel.contract.isolation import Evidence, IsolationAxis
from agently_kernel.guest.wire import WireError, loads
from agently_kernel.sandbox.runtime import canary_folder

_SUBJECTS = frozenset(axis.value for axis in IsolationAxis) | {"network"}
_NAMESPACES = ("pid", "net", "ipc", "mnt", "uts", "user", "cgroup")
_MAX_OBSERVATIONS = 256
_MAX_CONNECTIONS = 64


class Challenge:
    """Plants the things that a sandbox must not reach, and tells afterwards what was reached. A context manager."""

    def __init__(
        self, nonce: str, *, write_roots: Sequence[str], local: bool = True, own_kernel: bool = False,
        folder: Path | None = None,
    ) -> None:
        """*folder* is where the canary is planted (default: the temporary folder). *own_kernel*: the sandbox has a
        kernel of its own, whose numbers of namespaces mean nothing to this one's."""
        self._own_kernel = own_kernel
        self._nonce = nonce
        self._write_roots = list(write_roots)
        self._local = local
        self._parent = folder
        self._folder: Path | None = None
        self._listeners: dict[str, socket.socket] = {}
        self.keys: Mapping[str, Any] = {}

    def __enter__(self) -> Challenge:
        keys: dict[str, Any] = {"nonce": self._nonce, "write_roots": self._write_roots}
        try:
            if self._local:
                keys.update(self._plant())
        except BaseException:
            self._remove()
            raise
        self.keys = keys
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def evaluate(self, payload: bytes, nonce: str) -> tuple[Evidence, ...]:
        """Turn the guest's ``probe`` payload into evidence and add what the host saw of the attempts.

        An axis on which the guest reports nothing becomes None (not observed). Raises WireError for a wrong nonce or a
        malformed payload.
        """
        if nonce != self._nonce:
            raise WireError("the observations do not echo the nonce")
        now = time.time()
        inside = [self._one(item, now) for item in self._items(payload)]
        seen = {item.subject for item in inside}
        for subject in sorted(_SUBJECTS - seen):
            inside.append(_evidence(subject, "inside attempts", None, "inside", "the guest reported none", now))
        return (*inside, *self._seen_by_host(now))

    @staticmethod
    def _items(payload: bytes) -> list[Any]:
        items = loads(payload)
        if not isinstance(items, list) or len(items) > _MAX_OBSERVATIONS:
            raise WireError(f"the observations are not a list of at most {_MAX_OBSERVATIONS}")
        return items

    @staticmethod
    def _one(item: Any, now: float) -> Evidence:
        if not isinstance(item, dict):
            raise WireError("an observation is not an object")
        subject, check, value = item.get("subject"), item.get("check"), item.get("value")
        detail = item.get("detail") or ""
        if subject not in _SUBJECTS or not isinstance(check, str) or not isinstance(detail, str):
            raise WireError(f"an observation has no such subject or check: {str(subject)[:40]!r}")
        if value is not None and not isinstance(value, bool):
            raise WireError(f"observation {check[:40]!r} is neither true, false nor null")
        return _evidence(subject, check[:200], value, "inside", detail[:500], now)

    def _plant(self) -> dict[str, Any]:
        folder = canary_folder(self._parent)
        self._folder = folder
        # Open to everybody on purpose: when it cannot be reached, isolation is the reason and not file permissions.
        writable = folder / "writable"
        writable.mkdir()
        canary = folder / "canary"
        canary.write_text(secrets.token_hex(8))
        canary.chmod(0o644)
        folder.chmod(0o755)
        writable.chmod(0o777)
        keys: dict[str, Any] = {
            "host_pid": os.getpid(),
            "canary_file": str(canary),
            "canary_dir": str(writable),
            "namespaces": _own_namespaces(("pid",) if self._own_kernel else _NAMESPACES),
        }
        tcp = self._listen("network", socket.AF_INET, ("127.0.0.1", 0))
        keys["tcp_port"] = tcp.getsockname()[1]
        if sys.platform == "linux":
            name = "agently-" + secrets.token_hex(8)
            self._listen("abstract", socket.AF_UNIX, "\0" + name)
            keys["abstract_name"] = name
        if hasattr(socket, "AF_UNIX"):
            path = folder / "s"  # short: an address is 108 bytes at the most
            with contextlib.suppress(OSError):  # a temporary folder whose name is too long for a socket's address
                self._listen("unix", socket.AF_UNIX, str(path))
                path.chmod(0o777)
                keys["unix_sockets"] = [str(path)]
        return keys

    def _listen(self, key: str, family: int, address: Any) -> socket.socket:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(16)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._listeners[key] = listener
        return listener

    def _seen_by_host(self, now: float) -> list[Evidence]:
        """Whatever the guest says of its attempts, a connection or a file that arrived here tells against it.

        A TCP connection counts when it brought the nonce: programs of the host may try any port. The names of the
        other listeners cannot be guessed, so whoever comes there counts.
        """
        subjects = {
            "network": ("network", "host's loopback listener saw no connection"),
            "abstract": (IsolationAxis.PROCESS_CONTAINED.value, "host's abstract socket saw no connection"),
            "unix": (IsolationAxis.HOST_FILESYSTEM_RESTRICTED.value, "host's socket file saw no connection"),
        }
        found = []
        for key, listener in self._listeners.items():
            reached = self._was_reached(listener, anybody=key != "network")
            subject, check = subjects[key]
            found.append(_evidence(subject, check, not reached, "outside", "", now))
        if self._folder is not None:
            left = os.listdir(self._folder / "writable")
            found.append(
                _evidence(
                    IsolationAxis.HOST_FILESYSTEM_RESTRICTED.value, "host's writable canary folder is unchanged",
                    not left, "outside", f"{len(left)} new entries" if left else "", now,
                )
            )
        return found

    def _was_reached(self, listener: socket.socket, *, anybody: bool) -> bool:
        for _ in range(_MAX_CONNECTIONS):
            try:
                connection, _ = listener.accept()
            except OSError:
                return False
            with connection:
                if anybody:
                    return True
                connection.setblocking(False)
                with contextlib.suppress(OSError):
                    if connection.recv(256).decode("ascii", "replace") == self._nonce:
                        return True
        return True  # a flood: what is behind it is not known

    def _remove(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def read_observations(payload: bytes, *, allowed: Sequence[str]) -> tuple[Evidence, ...]:
    """Return the guest's list of observations as evidence. Raises WireError for another subject, or another shape."""
    now = time.time()
    found = tuple(Challenge._one(item, now) for item in Challenge._items(payload))
    if not found or any(item.subject not in allowed for item in found):
        raise WireError("there are no observations, or of something else")
    return found


def _own_namespaces(names: Sequence[str]) -> dict[str, int]:
    found = {}
    for name in names:
        with contextlib.suppress(OSError):  # not Linux, or a kernel without this namespace
            found[name] = os.stat(f"/proc/self/ns/{name}").st_ino
    return found


def _evidence(
    subject: str, check: str, value: bool | None, source: Literal["inside", "outside"], detail: str, now: float
) -> Evidence:
    return Evidence(subject=subject, check=check, value=value, source=source, detail=detail, observed_at=now)
