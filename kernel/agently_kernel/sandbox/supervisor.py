"""Starts a program that has no namespaces of its own, and ends everything that comes of it. Run as a program, on Linux.

``python -I -S supervisor.py CONTROL`` reads one line of JSON from the descriptor CONTROL and then watches it: when its
other end is closed, in whichever way, all descendants are killed. Orphans come to this process (it is their subreaper),
so none gets away by a new session or a double fork. It ends when the last one is gone, with the program's exit code.

The order: ``argv``, ``env``, ``cwd``, ``uid`` (null: stay who we are), ``landlock`` (null, or ``read``, ``write`` and
``devices``: lists of paths). A program that cannot be started is told on standard error, with exit code 125.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import struct
import sys
import time

PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
# Access rights by the version of the interface that brought them.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
CHANGES = sum(1 << bit for bit in range(4, 13))
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
TCP = 3  # bind and connect
SCOPES = 3  # abstract sockets and signals
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV


def _syscall(number: int, *args: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = int(libc.syscall(ctypes.c_long(number), *args))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface, 0 when it has none or it is switched off."""
    try:
        return _syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def handled_access(version: int) -> int:
    """Return all rights to files that an interface of this version can take away."""
    rights = EXECUTE | WRITE_FILE | READ_FILE | READ_DIR | CHANGES
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        rights |= right if version >= since else 0
    return rights


def ruleset_attributes(version: int) -> bytes:
    """Return the ``struct landlock_ruleset_attr`` that takes away everything this version can."""
    data = struct.pack("=Q", handled_access(version))
    if version >= 4:
        data += struct.pack("=Q", TCP)
    if version >= 6:
        data += struct.pack("=Q", SCOPES)
    return data


def restrict(read: list[str], write: list[str], devices: list[str]) -> None:
    """Take away all access to files but these, for this thread and what comes of it. Raises OSError."""
    version = landlock_version()
    if version < 1:
        raise OSError(errno.EOPNOTSUPP, "the kernel has no Landlock")
    handled = handled_access(version)
    attributes = ruleset_attributes(version)
    ruleset = _syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for paths, rights in (
            (read, EXECUTE | READ_FILE | READ_DIR),
            (write, handled & ~IOCTL_DEV),
            (devices, READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV),
        ):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs was refused")
        _syscall(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # what is not there cannot be needed
    try:
        if not os.path.isdir(path):
            rights &= ON_FILES
        rule = struct.pack("=Qi", rights, beneath)
        _syscall(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(beneath)


def descendants() -> list[int]:
    """Return all processes below this one."""
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as stream:
                    children = [int(word) for word in stream.read().split()]
                found += children
                todo += children
        except OSError:
            continue
    return found


def end_all() -> None:
    """Kill descendants until there are none; a killed one's children come to us and are killed in the next round."""
    while True:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def start(order: dict[str, object]) -> int:
    """Fork the program and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        uid = order.get("uid")
        if isinstance(uid, int):
            libc = ctypes.CDLL(None, use_errno=True)
            for capability in range(64):
                libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.chdir(str(order["cwd"]))
        rules = order.get("landlock")
        if isinstance(rules, dict):
            restrict(rules["read"], rules["write"], rules["devices"])
        argv, env = order["argv"], order["env"]
        assert isinstance(argv, list) and isinstance(env, dict)
        os.execve(argv[0], argv, env)  # noqa: S606
    except BaseException as error:
        os.write(2, f"the program could not be started: {error}\n".encode("utf-8", "replace"))
    os._exit(125)


def main(control: int) -> int:
    """Run the order that comes over *control*; return the exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
            stream.write("500")
    except OSError:
        pass
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(control, 65536)
        if not more:
            return 125
        data += more
    os.set_inheritable(control, False)
    wake, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    program = start(json.loads(data))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the program's streams are its own: their ends must be seen by those who read them
        os.dup2(null, descriptor)
    code = None
    while code is None:
        ready, _, _ = select.select([control, wake], [], [])
        if control in ready:
            break
        os.read(wake, 4096)
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == program:
                    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        except ChildProcessError:
            pass
    end_all()
    return 137 if code is None else code


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1])))
