"""Opens real bubblewrap sandboxes for the tests, plain or with one protection taken away (a weakened twin)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.providers.bubblewrap_args import BubblewrapLayout, hidden_files, system_layout
from agently_kernel.providers.bubblewrap_binary import BwrapBinary, describe_bwrap, find_bwrap
from agently_kernel.providers.bubblewrap_sandbox import BubblewrapProcess, BubblewrapSandbox, UidLease
from agently_kernel.sandbox.interpreter import describe_interpreter, sandbox_environment
from agently_kernel.sandbox.launch import install_guest
from agently_kernel.sandbox.limits import shared_memory_bytes
from agently_kernel.sandbox.system_files import bound_folders, write_system_files

ROOT = os.geteuid() == 0


def bwrap() -> BwrapBinary:
    """Return the bwrap under test; a missing one fails the test."""
    found = find_bwrap()
    assert found is not None, "bubblewrap is not installed"
    return describe_bwrap(*found)


@contextlib.contextmanager
def runtime_area() -> Iterator[Path]:
    """Yield a private runtime area with source, input and guest folders."""
    folder = Path(tempfile.mkdtemp(prefix="agently-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        for name in ("source", "input"):
            (folder / name).mkdir()
            (folder / name).chmod(0o755)
        install_guest(folder / "guest")
        yield folder
    finally:
        shutil.rmtree(folder)


class WeakenedSandbox(BubblewrapSandbox):
    """SYNTHETIC: a sandbox whose argument list has been tampered with, to see that observation notices."""

    edit: Callable[[list[str]], list[str]] = staticmethod(list)
    edit_drop: Callable[[list[str]], list[str]] = staticmethod(list)

    def options(self) -> list[str]:
        return self.edit(super().options())

    def privilege_drop(self) -> list[str]:
        return self.edit_drop(super().privilege_drop())


def without(*words: str) -> Callable[[list[str]], list[str]]:
    """Return an edit that removes these options (and nothing that belongs to them)."""
    return lambda options: [option for option in options if option not in words]


def replace(old: Sequence[str], new: Sequence[str]) -> Callable[[list[str]], list[str]]:
    """Return an edit that replaces one run of options; it must be there."""

    def edit(options: list[str]) -> list[str]:
        for index in range(len(options)):
            if options[index : index + len(old)] == list(old):
                return [*options[:index], *new, *options[index + len(old) :]]
        raise AssertionError(f"{old} is not among the options")

    return edit


def make_sandbox(
    folder: Path, *, limits: ResourceLimits | None = None, kind: type[BubblewrapSandbox] = BubblewrapSandbox,
    **changes: Any,
) -> BubblewrapSandbox:
    """Return a sandbox that has not been started, in the mode of the user who runs the tests."""
    limits = limits or ResourceLimits()
    lease = UidLease.take() if ROOT else None
    uid = lease.uid if lease is not None else 1000
    interpreter = describe_interpreter()
    system, links = system_layout()
    values: dict[str, Any] = {
        "mode": "root" if ROOT else "user", "uid": uid, "gid": uid, "system": system, "system_links": links,
        "hidden": hidden_files(),
        "etc_dir": str(write_system_files(folder / f"etc-{uid}", uid=uid, gid=uid)), "etc_folders": bound_folders(),
        "read_only": interpreter.roots, "links": interpreter.links, "guest_dir": str(folder / "guest"),
        "source_dir": str(folder / "source"), "input_dir": str(folder / "input"),
        "scratch_bytes": limits.scratch_bytes, "output_bytes": limits.output_bytes,
        "shm_bytes": shared_memory_bytes(limits), "env": sandbox_environment(interpreter, cpus=limits.cpus),
    }
    return kind(bwrap(), BubblewrapLayout(**{**values, **changes}), limits, lease=lease)


FILTERED = """
import os, sys
sys.path.insert(0, "/run/agently/guest")
import seccomp
seccomp.set_no_new_privs()
seccomp.install(seccomp.build(os.uname().machine))
"""
"""Code that installs the system call filter, as the guest's first program does."""

READY_AND_WAIT = """
import sys
print("ready", flush=True)
sys.stdin.read()
"""


def processes_in_namespace(inode: int, *, zombies: bool = True) -> list[int]:
    """Return the host pids of all processes in a pid namespace; *zombies*: also those that nobody has collected yet."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}/ns/pid").st_ino == inode:
                    state = Path(f"/proc/{name}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
                    if zombies or state != "Z":
                        found.append(int(name))
    return found


def python_argv(code: str) -> list[str]:
    """Return an argument list that runs *code* in the sandbox's interpreter, with the site-packages of ours."""
    return [describe_interpreter().executable, "-I", "-u", "-c", code]


@contextlib.asynccontextmanager
async def running(
    sandbox: BubblewrapSandbox, code: str, *, ready: str | None = "ready"
) -> AsyncIterator[BubblewrapProcess]:
    """Start *code* as the sandbox's first process and close the sandbox at the end.

    The code says *ready* in a line of its own when the sandbox may be observed.
    """
    try:
        process = await sandbox.spawn(python_argv(code), env={}, cwd="/workspace/build")
        if ready is not None:
            line = await process.stdout.readline()
            if line.decode().strip() != ready:
                process.kill()
                raise AssertionError((line, await process.stderr.read()))
        yield process
    finally:
        await sandbox.close()


async def output_of(sandbox: BubblewrapSandbox, code: str) -> str:
    """Run *code* to its end and return what it wrote to standard output; what it wrote to standard error fails."""
    async with running(sandbox, code, ready=None) as process:
        text = (await process.stdout.read()).decode()
        errors = (await process.stderr.read()).decode()
        assert await process.wait() == 0, errors
        assert errors == ""
        return text
