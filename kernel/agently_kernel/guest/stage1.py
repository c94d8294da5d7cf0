"""The first program in every sandbox: ``python -I -S -u <folder>/stage1.py``.

Standard input and output are the channel to the host; they are moved out of everybody's way at once, standard error
stays the third pipe for diagnostics. The program reads the ``boot`` frame and then, in this order: rlimits, umask, not
dumpable, no_new_privs, the system call filter, the inside observations; then it becomes init in the same process.
Whatever fails is told in one sentence on standard error, and the exit code is 3.

``boot.limits``: integers by name: nofile, fsize, core, nproc, data, as, cpu, sigpending, msgqueue (rlimits: counts,
bytes, seconds), nice, and data_soft: what an interpreter has of ``data`` at first (see ``threads``).
``boot.seccomp``: ``enabled``, ``allow_inet``, ``allow_unix``, ``hidden_memory``, ``allow_reserve``.
``boot.challenge``: see ``probe``.
``boot.interpreter``:
``env`` (complete), ``mode`` (auto, ipython, plain), ``cwd``, ``roots`` (paths of source, input, build, output),
``links`` (path to target: made where nothing is, for mechanisms that cannot make links from outside).
``boot.superuser``: see ``own_kernel``; comes before everything else.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import resource
import select
import sys
import time
import types
from typing import Any, Dict, NoReturn, Tuple

PACKAGE = "_agently"
BOOT_SECONDS = 60.0
PRIVATE_FD = 100
"""Where private descriptors begin, if the limit of open files allows it: out of the low numbers that programs
expect."""

RLIMITS = ("nofile", "fsize", "core", "nproc", "data", "as", "cpu")
PER_USER = ("sigpending", "msgqueue")
"""Rlimits on what the kernel counts by user. A kernel of the sandbox's own counts nobody else, and may refuse them."""
PR_SET_DUMPABLE = 4


class BootError(Exception):
    """Why the sandbox cannot start, as a sentence for the host."""


def take_channel() -> Tuple[int, int]:
    """Move the channel away from descriptors 0 and 1 and return its (input, output); 0 reads nothing, 1 is 2."""
    lowest = min(PRIVATE_FD, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    channel = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest) for fd in (0, 1))
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return channel[0], channel[1]


def make_package() -> None:
    """Let the modules beside this file be imported as one package, whatever their folder is called."""
    package = types.ModuleType(PACKAGE)
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules[PACKAGE] = package
    sys.dont_write_bytecode = True


def module(name: str) -> Any:
    """Return the module *name* from beside this file."""
    return importlib.import_module("%s.%s" % (PACKAGE, name))


def read_boot(fd: int, seconds: float) -> Dict[str, Any]:
    """Read exactly the boot frame, so that what follows stays for init. Raises BootError."""
    wire = module("wire")
    deadline = time.monotonic() + seconds

    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BootError("the host sent no boot message within %d seconds" % seconds)
            more = os.read(fd, size - len(data))
            if not more:
                raise BootError("the host closed the channel before the boot message was complete")
            data += more
        return data

    prefix = exactly(wire.PREFIX.size)
    magic, version, _, head, payload = wire.PREFIX.unpack(prefix)
    if magic != wire.MAGIC or version != wire.VERSION or head > wire.MAX_HEADER or payload:
        raise BootError("the first bytes from the host are no boot message of protocol version %d" % wire.VERSION)
    try:
        ((header, _),) = wire.Decoder({"boot": wire.BOOT}).feed(prefix + exactly(head))
    except wire.WireError as error:
        raise BootError("the boot message is malformed: %s" % error)
    if header["protocol"] != wire.PROTOCOL:
        raise BootError("the host speaks protocol %s, this guest %d" % (header["protocol"], wire.PROTOCOL))
    return dict(header)


def set_limits(limits: Dict[str, Any]) -> Dict[str, Any]:
    """Set soft and hard limits, never above the hard limit that is in force; return what then holds."""
    report: Dict[str, Any] = {}
    for name, value in limits.items():
        if name == "data_soft":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or name not in (*RLIMITS, *PER_USER, "nice"):
            raise BootError("limit %r is not known or its value %r is no integer" % (name, value))
        if name == "nice":
            report[name] = os.nice(value)
            continue
        kind: Any = getattr(resource, "RLIMIT_" + name.upper(), None)
        if kind is None and name in PER_USER:
            continue  # this system has no such thing
        hard = resource.getrlimit(kind)[1]
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (wanted, wanted))
        except (OSError, ValueError) as error:
            if name in PER_USER:
                continue
            raise BootError("limit %s could not be set to %d: %s" % (name, wanted, error))
        report[name] = resource.getrlimit(kind)[1]
    return report


def is_gvisor() -> bool:
    """True when the kernel that answers here says in its boot messages that it is gVisor's."""
    import ctypes

    text = ctypes.create_string_buffer(4096)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        size = libc.klogctl(3, text, len(text))  # on an ordinary kernel refused to ordinary users
    except AttributeError:
        return False
    return size > 0 and b"Starting gVisor" in text.raw[:size]


def give_up_superuser(wish: Dict[str, Any], gvisor: bool) -> Dict[str, Any]:
    """Use the rights of a superuser for what the host asks, then give them up. Raises BootError."""
    if not gvisor:
        raise BootError("it was started as the superuser, but the kernel here does not say that it is gVisor's")
    try:
        return dict(module("own_kernel").enter(wish))
    except (OSError, KeyError, ValueError) as error:
        raise BootError("the superuser could not be given up: %s" % error)


def confine(boot: Dict[str, Any]) -> Dict[str, Any]:
    """Apply everything that restricts this process and its descendants; return the report of ``hello``."""
    seccomp = module("seccomp")
    report: Dict[str, Any] = {"gvisor": is_gvisor()}
    if boot.get("superuser"):
        report["superuser"] = give_up_superuser(boot["superuser"], report["gvisor"])
    report["rlimits"] = set_limits(boot["limits"])
    os.umask(0o022)
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    linux = hasattr(libc, "prctl")
    report["dumpable"] = not linux or libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0
    try:
        if linux:
            seccomp.set_no_new_privs()
        report["no_new_privs"] = linux
    except OSError as error:
        raise BootError(str(error))
    wish = boot["seccomp"]
    report["machine"] = os.uname().machine
    report["seccomp_sha256"] = ""
    if wish.get("enabled", True):
        try:
            program = seccomp.build(
                os.uname().machine, allow_inet=wish.get("allow_inet", True), allow_unix=wish.get("allow_unix", True),
                hidden_memory=wish.get("hidden_memory", "all"), allow_reserve=wish.get("allow_reserve", True),
            )
            seccomp.install(program)
        except (OSError, ValueError) as error:
            raise BootError("the system call filter could not be installed: %s" % error)
        report["seccomp_sha256"] = seccomp.digest(program)
    return report


def fail(reason: str) -> NoReturn:
    """Say *reason* on standard error and end with code 3."""
    os.write(2, ("agently guest: %s.\n" % reason.rstrip(".")).encode("utf-8", "replace"))
    os._exit(3)


def make_home(interpreter: Dict[str, Any]) -> None:
    """Make the home folder that programs are told of; where that cannot be done they are on their own."""
    home = (interpreter.get("env") or {}).get("HOME")
    if isinstance(home, str) and home.startswith("/"):
        try:
            os.makedirs(home, 0o700, exist_ok=True)
        except OSError:
            pass


def make_links(interpreter: Dict[str, Any]) -> None:
    """Make the links that the host asks for, and their folders; what is there already stays."""
    for path, target in (interpreter.get("links") or {}).items():
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(target, path)
        except OSError:
            pass


def main() -> None:
    """Boot, then be init; in the processes that init forks, be the interpreter."""
    become: Any = None
    try:
        channel_in, channel_out = take_channel()
        make_package()
        boot = read_boot(channel_in, BOOT_SECONDS)
        report = confine(boot)
        boot["interpreter"]["data_soft"] = boot["limits"].get("data_soft")
        make_home(boot["interpreter"])
        make_links(boot["interpreter"])
        observations = module("probe").observe(boot["challenge"])
        init = module("init")
        try:
            code = init.Init(channel_in, channel_out, boot, report).run(observations)
        except module("resident").BecomeInterpreter as request:
            become = request.start  # out of here with init's frames, so that nothing of its state stays referenced
    except BootError as error:
        fail(str(error))
    except Exception as error:
        fail("the guest could not start or go on: %s: %s" % (type(error).__name__, error))
    if become is None:
        os._exit(code)
    del boot, report, observations
    module("interpreter").main(become)


if __name__ == "__main__":
    main()
