"""What can be observed from inside a sandbox before any code of the user runs: attempts, each with its outcome.

``observe(challenge)`` makes one observation for each thing that can be tried; keys of the challenge that are missing
are not tried. An observation is ``{"subject", "check", "value", "detail"}``: subject an isolation axis or ``network``,
value true when the restriction held, false when it did not, null when it could not be told.

Challenge: ``nonce`` (sent to the loopback listener when it is reached), ``write_roots`` (folders where writing is
right), ``host_pid``, ``namespaces`` (inode numbers of the host's, by name), ``canary_file`` (a readable file of the
host), ``canary_dir`` (a writable folder of the host), ``tcp_port`` (a listener on the host's loopback),
``abstract_name`` (a listener on an abstract socket), ``unix_sockets`` (paths of listeners).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import socket
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import seccomp

CONTAINED, FILES, PRIVILEGE, SYSCALLS, NETWORK = (
    "process_contained", "host_filesystem_restricted", "privilege_escalation_blocked", "syscalls_restricted", "network",
)
FEW_PROCESSES = 8
CONNECT_SECONDS = 0.2
CHILD_SECONDS = 2.0
CLONE_NEWUSER = 0x10000000
PR_GET_NO_NEW_PRIVS = 39
AF_VSOCK, AF_ALG, AF_PACKET = 40, 38, 17
REFUSALS = (errno.EPERM, errno.ENOSYS)
# File systems that live in memory or in the kernel: being able to write there touches no file of the host.
PRIVATE_FILE_SYSTEMS = (
    "tmpfs", "overlay", "proc", "sysfs", "devpts", "devtmpfs", "mqueue", "ramfs", "cgroup", "cgroup2",
)
ENGINE_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
LINUX = os.uname().sysname == "Linux"
Outcome = Tuple[Optional[bool], str]

# name, x86_64 number, aarch64 number, arguments that do no harm where the call is allowed
_HARMLESS: Tuple[Tuple[str, int, Optional[int], Tuple[int, ...]], ...] = (
    ("ptrace", 101, 117, (16, 0)),
    ("process_vm_readv", 310, 270, (0, 0, 0, 0, 0, 0)),
    ("kcmp", 312, 272, (0, 0, 0, 0, 0)),
    ("keyctl", 250, 219, (0, -3, 0)),
    ("bpf", 321, 280, (9999, 0, 0)),
    ("perf_event_open", 298, 241, (0, 0, -1, -1, 0)),
    ("io_uring_setup", 425, 425, (0, 0)),
    ("userfaultfd", 323, 282, (-1,)),
    ("clone3", 435, 435, (0, 0)),
    ("unshare", 272, 97, (0,)),
    ("setns", 308, 268, (-1, 0)),
    ("mount", 165, 40, (0, 0, 0, 0, 0)),
    ("open_by_handle_at", 304, 265, (-1, 0, 0)),
    ("fanotify_init", 300, 262, (-1, 0)),
    ("syslog", 103, 116, (10, 0, 0)),
    ("move_pages", 279, 239, (0, 0, 0, 0, 0, 0)),
    ("modify_ldt", 154, None, (0, 0, 0)),
    ("ioctl TIOCSTI", 16, 29, (-1, seccomp.TIOCSTI, 0)),
)


class _Observer:
    """Collects observations; a check that itself fails becomes null, never true."""

    def __init__(self, challenge: Dict[str, Any]) -> None:
        self.challenge = challenge
        self.found: List[Dict[str, Any]] = []
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long

    def note(self, subject: str, check: str, value: Optional[bool], detail: str = "") -> None:
        self.found.append({"subject": subject, "check": check, "value": value, "detail": detail[:300]})

    def attempt(self, subject: str, check: str, action: Callable[[], Outcome]) -> None:
        try:
            value, detail = action()
        except Exception as error:
            value, detail = None, "could not be tried: %s: %s" % (type(error).__name__, error)
        self.note(subject, check, value, detail)

    def syscall(self, number: int, *args: int) -> int:
        """Return 0 for success or the errno."""
        plain = [ctypes.c_long(arg) for arg in args]
        return 0 if self._libc.syscall(ctypes.c_long(number), *plain) != -1 else ctypes.get_errno()

    # -- processes -----------------------------------------------------------------------------------------------------

    def processes(self) -> None:
        for name in ("pid", "ipc"):
            if name in self.challenge.get("namespaces", {}):
                self.attempt(CONTAINED, "own %s namespace" % name, partial(self._own_namespace, name))
        self.attempt(CONTAINED, "few processes are visible", self._visible)
        if "host_pid" in self.challenge:
            self.attempt(CONTAINED, "a process of the host cannot be signalled", self._signal_host)
        if "abstract_name" in self.challenge:
            address = "\0" + str(self.challenge["abstract_name"])
            self.attempt(CONTAINED, "an abstract socket of the host cannot be reached", partial(self._unix, address))

    def _own_namespace(self, name: str) -> Outcome:
        own = os.stat("/proc/self/ns/" + name).st_ino
        return own != self.challenge["namespaces"][name], "inode %d" % own

    @staticmethod
    def _visible() -> Outcome:
        count = sum(name.isdigit() for name in os.listdir("/proc"))
        return (None if not count else count <= FEW_PROCESSES), "%d processes" % count

    def _signal_host(self) -> Outcome:
        pid = int(self.challenge["host_pid"])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True, "no such process"
        except PermissionError:
            return True, "refused"
        host = self.challenge.get("namespaces", {}).get("pid")
        if host is not None and os.stat("/proc/self/ns/pid").st_ino != host:
            return True, "the number belongs to a process of this sandbox"
        return False, "process %d accepts signals" % pid

    def _unix(self, address: str) -> Outcome:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(CONNECT_SECONDS)
                connection.connect(address)
        except OSError as error:
            return True, _reason(error)
        return False, "connected"

    # -- files ---------------------------------------------------------------------------------------------------------

    def files(self) -> None:
        if "mnt" in self.challenge.get("namespaces", {}):
            self.attempt(FILES, "own mnt namespace", partial(self._own_namespace, "mnt"))
            self.attempt(FILES, "the host's keys are not shown", self._keys)
        if "canary_file" in self.challenge:
            self.attempt(FILES, "a file of the host cannot be read", self._read_canary)
        if "canary_dir" in self.challenge:
            self.attempt(FILES, "a folder of the host cannot be written", self._write_canary)
        for path in self.challenge.get("unix_sockets", ()):
            self.attempt(FILES, "a socket file of the host cannot be reached", partial(self._unix, path))
        self.attempt(FILES, "no folder of the host is writable", self._mounts)

    @staticmethod
    def _keys() -> Outcome:
        try:
            with open("/proc/keys", "rb") as stream:
                count = sum(1 for _ in stream)
        except OSError as error:
            return True, _reason(error)
        return not count, "%d keys" % count

    def _read_canary(self) -> Outcome:
        try:
            os.close(os.open(self.challenge["canary_file"], os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return True, _reason(error)
        return False, "opened"

    def _write_canary(self) -> Outcome:
        path = os.path.join(self.challenge["canary_dir"], "written-from-inside")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as error:
            return True, _reason(error)
        return False, "a file was made"

    def _mounts(self) -> Outcome:
        roots = [str(root).rstrip("/") for root in self.challenge.get("write_roots", ())]
        writable = []
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            for line in stream:
                fields, _, rest = line.partition(" - ")
                root, point, options = fields.split()[3:6]
                kind = rest.split()[0]
                point = _unescape(point)
                own = kind in PRIVATE_FILE_SYSTEMS and (kind != "tmpfs" or root in ("/", "/newroot"))
                granted = any(point == item or point.startswith(item + "/") for item in roots)
                if own or granted or point in ENGINE_FILES or "rw" not in options.split(","):
                    continue
                if (os.path.isdir(point) or os.path.isfile(point)) and os.access(point, os.W_OK):
                    writable.append("%s (%s)" % (point, kind))
        return not writable, ", ".join(writable[:5])

    # -- privileges ----------------------------------------------------------------------------------------------------

    def privileges(self, filtered: bool) -> None:
        self.attempt(PRIVILEGE, "no capabilities", self._capabilities)
        self.attempt(PRIVILEGE, "no new privileges by exec", self._no_new_privs)
        self.note(PRIVILEGE, "not the superuser", 0 not in (os.geteuid(), os.getuid()), "uid %d" % os.getuid())
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"):
            self.attempt(PRIVILEGE, "%s cannot be written" % path, partial(self._open_for_writing, path))
        dangerous = (
            ("becoming uid 0 is refused", self._become_root), ("a user namespace is refused", self._user_namespace),
        )
        if filtered:
            for check, action in dangerous:
                self.attempt(PRIVILEGE, check, action)
        elif not LINUX:
            self.attempt(PRIVILEGE, *dangerous[0])
        else:  # what is not filtered may succeed, and would change this process for good
            self._in_child(dangerous)

    def _capabilities(self) -> Outcome:
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if self._libc.capget(header, data) != 0:
            return None, "capget: " + os.strerror(ctypes.get_errno())
        effective, permitted = data[0] | data[3] << 32, data[1] | data[4] << 32
        return effective == 0 and permitted == 0, "effective %x, permitted %x" % (effective, permitted)

    def _no_new_privs(self) -> Outcome:
        value = self._libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
        return (None if value < 0 else value == 1), str(value)

    @staticmethod
    def _open_for_writing(path: str) -> Outcome:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            return True, _reason(error)
        return False, "opened"

    @staticmethod
    def _become_root() -> Outcome:
        try:
            os.setresuid(0, 0, 0)
        except OSError as error:
            return True, _reason(error)
        return False, "uid is 0 now"

    def _user_namespace(self) -> Outcome:
        code = self.syscall(_number(272, 97), CLONE_NEWUSER)
        return code != 0, os.strerror(code) if code else "made"

    def _in_child(self, actions: Tuple[Tuple[str, Callable[[], Outcome]], ...]) -> None:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                child = _Observer(self.challenge)
                for check, action in actions:
                    child.attempt(PRIVILEGE, check, action)
                os.write(write, json.dumps(child.found).encode("ascii"))
            finally:
                os._exit(0)
        os.close(write)
        try:
            ready, _, _ = select.select([read], [], [], CHILD_SECONDS)
            data = os.read(read, 65536) if ready else b""
        finally:
            os.close(read)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if data:
            self.found += json.loads(data)
        for check, _ in () if data else actions:
            self.note(PRIVILEGE, check, None, "the trying process did not answer")

    # -- system calls --------------------------------------------------------------------------------------------------

    def calls(self, mode: int) -> None:
        self.note(SYSCALLS, "a filter is in force", mode == 2, "seccomp mode %d" % mode)
        for name, x86, arm, args in _HARMLESS:
            if os.uname().machine == "aarch64" and arm is None:
                continue
            self.attempt(SYSCALLS, "%s is refused" % name, partial(self._refused, x86, arm, args))
        for family, name in ((AF_VSOCK, "vsock"), (AF_ALG, "alg"), (AF_PACKET, "packet")):
            self.attempt(SYSCALLS, "a socket of family %s is refused" % name, partial(self._socket, family))

    def _refused(self, x86: int, arm: Optional[int], args: Tuple[int, ...]) -> Outcome:
        code = self.syscall(_number(x86, arm), *args)
        return code in REFUSALS, errno.errorcode.get(code, str(code)) if code else "it succeeded"

    @staticmethod
    def _socket(family: int) -> Outcome:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
            try:
                socket.socket(family, kind).close()
                return False, "made"
            except OSError as error:
                reason = _reason(error)
        return True, reason

    # -- network -------------------------------------------------------------------------------------------------------

    def network(self) -> None:
        if "tcp_port" in self.challenge:
            self.attempt(NETWORK, "the host's loopback cannot be reached", self._tcp)
        self.attempt(NETWORK, "there is no route to anywhere", self._route)
        self.attempt(NETWORK, "there are no interfaces but loopback", self._interfaces)
        self.attempt(NETWORK, "a socket of family vsock is refused", partial(self._socket, AF_VSOCK))

    def _tcp(self) -> Outcome:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
                connection.settimeout(CONNECT_SECONDS)
                connection.connect(("127.0.0.1", int(self.challenge["tcp_port"])))
                # tells the host's listener that it was reached by this attempt, and not by some program of the host
                connection.sendall(str(self.challenge.get("nonce", "")).encode("ascii", "replace"))
        except OSError as error:
            return True, _reason(error)
        return False, "connected"

    @staticmethod
    def _route() -> Outcome:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
                # An address reserved for documentation; connecting a datagram socket sends nothing.
                connection.connect(("192.0.2.1", 9))
        except OSError as error:
            return True, _reason(error)
        return False, "a route exists"

    @staticmethod
    def _interfaces() -> Outcome:
        try:
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
        except OSError as error:
            return True, "Internet sockets are refused: " + _reason(error)
        with open("/proc/net/dev", encoding="ascii", errors="replace") as stream:
            names = [line.partition(":")[0].strip() for line in stream if ":" in line]
        # Tunnels that the kernel makes by itself in every network namespace lead nowhere while they are down.
        others = [name for name in names if name != "lo" and _is_up(name)]
        return not others, ", ".join(others)


def _is_up(name: str) -> bool:
    try:
        with open("/sys/class/net/%s/flags" % name, encoding="ascii") as stream:
            return bool(int(stream.read(), 16) & 1)
    except (OSError, ValueError):
        return True  # not to be told: it counts as up


def _number(x86: int, arm: Optional[int]) -> int:
    return arm if os.uname().machine == "aarch64" and arm is not None else x86


def _reason(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def observe(challenge: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Try everything and return the observations; must run before any code of the user."""
    observer = _Observer(challenge)
    try:
        mode = seccomp.mode()
    except (OSError, AttributeError):
        mode = 0
    observer.processes()
    observer.files()
    observer.privileges(mode == 2)
    if LINUX:  # the numbers mean other calls elsewhere
        observer.calls(mode)
    observer.network()
    return observer.found
