"""What is started in every sandbox: the guest's programs, their place, the argument list, and the boot message."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import py_compile
import secrets
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.workspace import SANDBOX_PATHS
from agently_kernel.guest import wire

GUEST_DIR = "/run/agently/guest"
"""Where providers bind the folder made by :func:`install_guest`, read-only, inside a sandbox."""

SUPERUSER_DIR = "/run/agently/superuser"
"""Where a sandbox with a kernel of its own shows that kernel's control groups: an empty tmpfs, 0700, of its root."""

SUPERUSER_CAPABILITIES = ("SYS_ADMIN", "DAC_OVERRIDE", "SETUID", "SETGID", "SETPCAP")
"""What stage1 needs there to mount and fill a control group, and to become another user. All are dropped again."""

FIRST_PROGRAM = "stage1.py"
_SOURCE = Path(wire.__file__).parent


def guest_argv(python: str, guest_dir: str = GUEST_DIR) -> list[str]:
    """Return the argument list of the guest's first program for the interpreter *python* of the sandbox."""
    return [python, "-I", "-S", "-u", f"{guest_dir}/{FIRST_PROGRAM}"]


def guest_files() -> dict[str, bytes]:
    """Return the guest's programs by file name, for providers that send them instead of binding a folder."""
    return {path.relative_to(_SOURCE).as_posix(): path.read_bytes() for path in _programs()}


def _programs() -> list[Path]:
    return sorted(_SOURCE.glob("*.py")) + sorted(_SOURCE.glob("site/*.py"))


def install_guest(folder: Path) -> Path:
    """Copy the guest's programs (files 0444, folders 0755) with compiled forms into *folder* and return it.

    The compiled forms are those of the running interpreter; another one ignores them. Time stamps are kept, because
    they are what makes a compiled form valid. Raises OSError when the folder cannot be written.
    """
    cache = folder / "__pycache__"
    for directory in (folder, cache, folder / "site"):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory.chmod(0o755)
    for source in _programs():
        _copy(source, folder / source.relative_to(_SOURCE))
        if source.name in (FIRST_PROGRAM, "__init__.py") or source.parent != _SOURCE:
            continue  # a program given by path is compiled on every start; nobody imports it
        compiled = cache / Path(importlib.util.cache_from_source(source.name)).name
        made = _compiled(source, compiled)
        if made != compiled:
            _copy(made, compiled)
        compiled.chmod(0o444)
    return folder


def _copy(source: Path, target: Path) -> None:
    """Copy bytes and time stamp into a new file with mode 0444; a file that is there is replaced."""
    with contextlib.suppress(FileNotFoundError):
        target.unlink()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(source, "rb") as reading, open(descriptor, "wb") as writing:
        times = os.fstat(reading.fileno())
        writing.write(reading.read())
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    target.chmod(0o444)


class SeccompBoot(Frozen):
    """How ``stage1`` installs its system-call filter; inet sockets only where the sandbox has a network of its own.

    ``hidden_memory``: kinds of memory that belong to no process; ``all`` where a control group (or a kernel of the
    sandbox's own) counts them, ``small`` under a watchdog, ``none`` under one that shares the host's IPC namespace.
    ``allow_reserve``: space of a disk may be taken without writing to it; not where a watchdog bounds that space.
    """

    enabled: bool = True
    allow_inet: bool = True
    allow_unix: bool = True
    hidden_memory: Literal["all", "small", "none"] = "all"
    allow_reserve: bool = True


class InterpreterBoot(Frozen):
    """How ``init`` starts interpreters: environment (complete), mode, working directory, and where the areas lie.

    ``links`` (path to target) are made inside at the start, where the mechanism cannot make them from outside.
    """

    env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    mode: Literal["auto", "ipython", "plain"] = "auto"
    cwd: str = SANDBOX_PATHS["build"]
    roots: Mapping[str, str] = Field(default_factory=lambda: dict(SANDBOX_PATHS))
    links: Mapping[str, str] = Field(default_factory=dict)


class SuperuserBoot(Frozen):
    """What ``stage1`` does as the superuser of a kernel that is the sandbox's own, before it becomes *uid*."""

    uid: int
    gid: int
    processes: int | None = None
    folder: str = SUPERUSER_DIR


class BootConfig(Frozen):
    """The first message to the guest. ``limits`` are rlimits for ``stage1``: nofile, fsize, core, nproc, data, as, cpu,
    data_soft, nice (numbers; bytes, counts or seconds). ``nonce`` comes back in the guest's answers as proof of life.
    ``superuser``: only where the first program starts as the superuser of a kernel of the sandbox's own."""

    limits: Mapping[str, int] = Field(default_factory=dict)
    seccomp: SeccompBoot = SeccompBoot()
    interpreter: InterpreterBoot = InterpreterBoot()
    superuser: SuperuserBoot | None = None
    nonce: str = Field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def header(self, challenge: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``boot`` frame's header with the observation *challenge* (see ``sandbox.observe``)."""
        superuser = {} if self.superuser is None else {"superuser": self.superuser.model_dump()}
        return {
            **superuser,
            "op": "boot",
            "nonce": self.nonce,
            "protocol": wire.PROTOCOL,
            "limits": dict(self.limits),
            "seccomp": self.seccomp.model_dump(),
            "challenge": dict(challenge),
            "interpreter": self.interpreter.model_dump(),
        }


def _compiled(source: Path, fallback: Path) -> Path:
    """Return a compiled form of *source*: the package's own, made fresh if need be, else one made at *fallback*."""
    own = Path(importlib.util.cache_from_source(str(source)))
    stat = source.stat()
    stamp = struct.pack("<III", 0, int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF)
    try:
        if own.exists() and own.read_bytes()[4:16] == stamp:  # flags, time and size, as importlib compares them
            return own
        return Path(py_compile.compile(str(source), cfile=str(own), doraise=True) or own)
    except OSError:  # the package's folder cannot be written, or its cache not be read
        py_compile.compile(str(source), cfile=str(fallback), dfile=f"{GUEST_DIR}/{source.name}", doraise=True)
        return fallback
