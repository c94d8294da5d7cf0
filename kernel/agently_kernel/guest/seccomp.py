"""The system call filter of every sandbox: a BPF program assembled by hand, the same bytes on every host.

``build`` makes the program, ``digest`` names it, ``install`` puts it in force for all threads of this process. The
filter only takes away: it is stacked on whatever the provider's mechanism already filters.

What it does: a call through another architecture's entry kills the process; numbers this table does not know answer
ENOSYS, so that libraries take their older path; calls that reach outside a sandbox answer EPERM; some calls are looked
into (``clone``, ``ioctl``, ``socket``, scheduling, limits: process 1, which is init, keeps its own); memory that no
process shows is refused where nothing counts it. Sockets and terminals are told apart by protocol too, because the
kernel of the host loads a module for one that it has not got. Arguments are compared on the low 32 bits, as the kernel
reads them.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import struct
from typing import Dict, List, Optional, Tuple, Union

KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
EPERM = ERRNO | errno.EPERM
ENOSYS = ERRNO | errno.ENOSYS
UNSUPPORTED = ERRNO | errno.EOPNOTSUPP
NO_PROTOCOL = ERRNO | errno.EPROTONOSUPPORT

AUDIT_ARCH: Dict[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
LAST_KNOWN = 469
"""The newest number that was judged; anything above (x86's x32 numbers too) answers ENOSYS."""

# name -> (x86_64 number, aarch64 number); None where the architecture has no such call.
DENIED: Dict[str, Tuple[Optional[int], Optional[int]]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    # key rings are not namespaced
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # programs and counters inside the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241),
    # mounts, roots, namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "unshare": (272, 97), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    # the machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116), "sethostname": (170, 161),
    "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "vhangup": (153, 58),
    # memory placement of other processes and nodes
    "migrate_pages": (256, 238), "move_pages": (279, 239), "mbind": (237, 235), "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    # real-time scheduling by a structure that a filter cannot look into
    "sched_setattr": (314, 274),
    # museum pieces
    "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "uselib": (134, None), "ustat": (136, None),
    "sysfs": (139, None), "_sysctl": (156, None), "create_module": (174, None), "get_kernel_syms": (177, None),
    "query_module": (178, None),
}
# Denied with ENOSYS: libraries probe for these and fall back.
ABSENT: Dict[str, Tuple[Optional[int], Optional[int]]] = {
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_setup": (206, 0),  # its places are one number for all of the host
    "userfaultfd": (323, 282), "memfd_secret": (447, 447), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "statmount": (457, 457), "listmount": (458, 458), "open_tree_attr": (467, 467),
    "lsm_get_self_attr": (459, 459), "lsm_set_self_attr": (460, 460), "lsm_list_modules": (461, 461),
}
# Memory that belongs to no process, so that only a control group counts it: files and queues without a name, pages in
# pipes. Refused, with ENOSYS as by a kernel that has them not, where a watchdog holds the memory limit.
HIDDEN_MEMORY: Dict[str, Tuple[int, int]] = {
    "memfd_create": (319, 279), "semget": (64, 190), "msgget": (68, 186), "vmsplice": (278, 75),
}
SHMGET: Tuple[int, int] = (29, 194)
SMALL_SEGMENT = 4096
"""What databases use a System V segment for, a mark that they run, fits in one page; there are 4096 at the most."""
FALLOCATE: Tuple[int, int] = (285, 47)
"""Takes gigabytes of a disk in milliseconds, faster than a watchdog looks. Refused as by a file system that cannot do
it: programs, and the C library's ``posix_fallocate``, write instead."""

# Looked into argument by argument.
GUARDED: Dict[str, Tuple[int, int]] = {
    "clone": (56, 220), "ioctl": (16, 29), "socket": (41, 198), "socketpair": (53, 199), "personality": (135, 92),
    "setpriority": (141, 140), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setaffinity": (203, 122), "prlimit64": (302, 261), "ioprio_set": (251, 30),
}
INIT = 1
"""Init's process number where a sandbox numbers its own processes. It names itself 0: so whoever says 1 is another, and
would let init fail or starve."""
ONE_OR_GROUP: Dict[str, Tuple[int, int]] = {"setpriority": (0, 1), "ioprio_set": (1, 2)}
"""By these words a call means one process or a group; by a third one all of a user's, init among them."""
NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCKET_TYPES, TYPE_MASK = (1, 2, 3), 0xF
"""Of the Internet families: stream, datagram, raw. Any other is of a protocol that is not below."""
CONNECTED_TYPES = (1, 5)
"""Of AF_UNIX: stream and sequenced packets. A datagram socket of a pair can send to any address, to programs of the
host too."""
PROTOCOLS = (0, 1, 6, 17, 58)
"""Of the Internet families: the type's own, ICMP, TCP, UDP, ICMPv6."""
NETLINK_ROUTE = 0
"""What programs ask for addresses and interfaces; the others are of firewalls, audit, devices."""
PERSONALITY_QUERY = 0xFFFFFFFF
ORDINARY_SCHEDULERS = (0, 3, 5)  # OTHER, BATCH, IDLE

_LOAD, _AND, _JEQ, _JGE, _JSET, _RET = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 21, 22, 38
_Line = Tuple[int, int, Optional[str], Optional[str]]  # code, k, label if true, label if false (None: next line)


class _Assembler:
    """Lines with labels; every jump goes forward, as BPF demands."""

    def __init__(self) -> None:
        self.lines: List[Union[_Line, str]] = []

    def label(self, name: str) -> None:
        self.lines.append(name)

    def emit(self, code: int, k: int, then: Optional[str] = None, otherwise: Optional[str] = None) -> None:
        self.lines.append((code, k, then, otherwise))

    def assemble(self) -> bytes:
        places: Dict[str, int] = {}
        at = 0
        for line in self.lines:
            if isinstance(line, str):
                places[line] = at
            else:
                at += 1
        program, at = b"", 0
        for line in self.lines:
            if isinstance(line, str):
                continue
            code, k, then, otherwise = line
            jumps = [0 if name is None else places[name] - at - 1 for name in (then, otherwise)]
            program += struct.pack("=HBBI", code, jumps[0], jumps[1], k)
            at += 1
        return program


def _argument(index: int) -> int:
    return 16 + 8 * index  # the low half comes first: both architectures are little-endian


def build(
    arch: str, *, allow_inet: bool = True, allow_unix: bool = True, hidden_memory: str = "all",
    allow_reserve: bool = True,
) -> bytes:
    """Return the filter for *arch* (``x86_64`` or ``aarch64``) as an array of ``struct sock_filter``.

    ``allow_inet``: Internet and route netlink sockets may be made (right where the network is a private namespace or
    granted). ``allow_unix``: AF_UNIX sockets of all kinds may be made; without it only pairs that stay connected.
    ``hidden_memory``: ``all``; ``small``, none of HIDDEN_MEMORY and System V segments of at most a page; ``none``, not
    those either.
    ``allow_reserve``: space of a disk may be taken without writing to it. Raises ValueError for another *arch* or word.
    """
    if hidden_memory not in ("all", "small", "none"):
        raise ValueError("hidden_memory is %r, not all, small or none" % hidden_memory)
    if arch not in AUDIT_ARCH:
        raise ValueError("no system call table for %r; known are %s" % (arch, ", ".join(sorted(AUDIT_ARCH))))
    column = list(AUDIT_ARCH).index(arch)
    asm = _Assembler()
    asm.emit(_LOAD, 4)
    asm.emit(_JEQ, AUDIT_ARCH[arch], None, "kill")
    asm.emit(_LOAD, 0)
    asm.emit(_JGE, LAST_KNOWN + 1, "enosys")
    absent = dict(ABSENT) if hidden_memory == "all" else dict(ABSENT, **HIDDEN_MEMORY)
    for table, target in ((DENIED, "eperm"), (absent, "enosys")):
        for number in sorted(number for number in (pair[column] for pair in table.values()) if number is not None):
            asm.emit(_JEQ, number, target)
    for name, numbers in GUARDED.items():
        asm.emit(_JEQ, numbers[column], name)
    if hidden_memory != "all":
        asm.emit(_JEQ, SHMGET[column], "shmget" if hidden_memory == "small" else "enosys")
    if not allow_reserve:
        asm.emit(_JEQ, FALLOCATE[column], "unsupported")
    asm.label("allow")
    asm.emit(_RET, ALLOW)
    # A guarded call is judged after its label; "pass" is a second way out because jumps go forward only.
    asm.label("clone")
    asm.emit(_LOAD, _argument(0))
    asm.emit(_JSET, NEW_NAMESPACES, "eperm", "pass")
    asm.label("ioctl")
    asm.emit(_LOAD, _argument(1))
    asm.emit(_JEQ, TIOCSTI, "eperm")
    asm.emit(_JEQ, TIOCSETD, "eperm")
    asm.emit(_JEQ, TIOCLINUX, "eperm", "pass")
    asm.label("socket")
    asm.emit(_LOAD, _argument(0))
    if allow_unix:
        asm.emit(_JEQ, AF_UNIX, "pass")
    if allow_inet:
        asm.emit(_JEQ, AF_NETLINK, "netlink")
        asm.emit(_JEQ, AF_INET, "inet")
        asm.emit(_JEQ, AF_INET6, "inet")
    asm.emit(_RET, EPERM)
    asm.label("inet")
    asm.emit(_LOAD, _argument(1))
    asm.emit(_AND, TYPE_MASK)
    for kind in SOCKET_TYPES:
        asm.emit(_JEQ, kind, "protocol")
    asm.emit(_RET, NO_PROTOCOL)
    asm.label("protocol")
    asm.emit(_LOAD, _argument(2))
    for protocol in PROTOCOLS:
        asm.emit(_JEQ, protocol, "pass")
    asm.emit(_RET, NO_PROTOCOL)
    asm.label("netlink")
    asm.emit(_LOAD, _argument(2))
    asm.emit(_JEQ, NETLINK_ROUTE, "pass")
    asm.emit(_RET, NO_PROTOCOL)
    asm.label("socketpair")
    asm.emit(_LOAD, _argument(0))
    if allow_unix:
        asm.emit(_JEQ, AF_UNIX, "pass", "eperm")
    else:
        asm.emit(_JEQ, AF_UNIX, None, "eperm")
        asm.emit(_LOAD, _argument(1))
        asm.emit(_AND, TYPE_MASK)
        for kind in CONNECTED_TYPES:
            asm.emit(_JEQ, kind, "pass")
        asm.emit(_RET, EPERM)
    asm.label("personality")
    asm.emit(_LOAD, _argument(0))
    asm.emit(_JEQ, PERSONALITY_QUERY, "pass", "eperm")
    asm.label("setpriority")
    asm.emit(_LOAD, _argument(2))
    asm.emit(_JGE, 0x80000000, "eperm")  # a negative nice value
    asm.emit(_LOAD, _argument(0))
    for word in ONE_OR_GROUP["setpriority"]:
        asm.emit(_JEQ, word, "whom")
    asm.emit(_RET, EPERM)
    asm.label("ioprio_set")
    asm.emit(_LOAD, _argument(0))
    for word in ONE_OR_GROUP["ioprio_set"]:
        asm.emit(_JEQ, word, "whom")
    asm.emit(_RET, EPERM)
    asm.label("whom")
    asm.emit(_LOAD, _argument(1))
    asm.emit(_JEQ, INIT, "eperm", "pass")
    for name in ("prlimit64", "sched_setparam", "sched_setaffinity"):
        asm.label(name)
    asm.emit(_LOAD, _argument(0))
    asm.emit(_JEQ, INIT, "eperm", "pass")
    if hidden_memory == "small":
        asm.label("shmget")
        asm.emit(_LOAD, _argument(1) + 4)  # the high half of the size
        asm.emit(_JEQ, 0, None, "enosys")
        asm.emit(_LOAD, _argument(1))
        asm.emit(_JGE, SMALL_SEGMENT + 1, "enosys", "pass")
    asm.label("sched_setscheduler")
    asm.emit(_LOAD, _argument(0))
    asm.emit(_JEQ, INIT, "eperm")
    asm.emit(_LOAD, _argument(1))
    for scheduler in ORDINARY_SCHEDULERS:
        asm.emit(_JEQ, scheduler, "pass")
    asm.label("eperm")
    asm.emit(_RET, EPERM)
    asm.label("pass")
    asm.emit(_RET, ALLOW)
    asm.label("enosys")
    asm.emit(_RET, ENOSYS)
    asm.label("unsupported")
    asm.emit(_RET, UNSUPPORTED)
    asm.label("kill")
    asm.emit(_RET, KILL_PROCESS)
    return asm.assemble()


def digest(program: bytes) -> str:
    """Return the hex sha256 under which a filter is reported."""
    for name in ("_sha2", "_sha256", "hashlib"):  # the last would load OpenSSL into init, for this one sum
        try:
            return str(importlib.import_module(name).sha256(program).hexdigest())
        except ImportError:
            continue
    return ""


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def set_no_new_privs() -> None:
    """Give up every later gain of privileges by exec. Raises OSError when the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, "no_new_privs could not be set: %s" % os.strerror(code))


def mode() -> int:
    """Return the seccomp mode of this thread: 0 none, 2 filtered. Raises OSError when the kernel has no seccomp."""
    libc = ctypes.CDLL(None, use_errno=True)
    value = int(libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0))
    if value < 0:
        code = ctypes.get_errno()
        raise OSError(code, "the kernel does not tell a seccomp mode: %s" % os.strerror(code))
    return value


def install(program: bytes) -> None:
    """Put *program* in force for every thread of this process, for good; sets no_new_privs first.

    Raises OSError with the kernel's reason when either is refused.
    """
    set_no_new_privs()
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))
    block = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), ctypes.c_long(1), ctypes.c_long(1), ctypes.byref(block))
    if result == -1 and ctypes.get_errno() == errno.ENOSYS:  # seccomp(2) is missing: the older door, this thread only
        result = libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(block), 0, 0)
    if result > 0:
        raise OSError(errno.EBUSY, "thread %d could not take the seccomp filter" % result)
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, "the seccomp filter was refused: %s" % os.strerror(code))
