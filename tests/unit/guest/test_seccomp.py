# ruff: noqa: E501 - programs of children stand on one line
"""The filter: judged by an interpreter of BPF over every system call, then by the kernel in a child."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.guest import seccomp

ARCHES = sorted(seccomp.AUDIT_ARCH)
ALLOW, EPERM, ENOSYS = seccomp.ALLOW, seccomp.EPERM, seccomp.ENOSYS


def judge(program: bytes, arch: int, number: int, args: tuple[int, ...] = ()) -> int:
    """Run a filter over one system call and return its verdict."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(list(args) + [0] * (6 - len(args))))
    lines = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    value, at = 0, 0
    while True:
        code, then, otherwise, k = lines[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, k)
        elif code == 0x54:
            value &= k
        elif code == 0x06:
            return int(k)
        else:
            hit = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
            at += then if hit else otherwise


def number(name: str, arch: str) -> int:
    tables = {**seccomp.DENIED, **seccomp.ABSENT, **seccomp.HIDDEN_MEMORY, **seccomp.GUARDED, "shmget": seccomp.SHMGET}
    found = tables[name][ARCHES_IN_TABLE.index(arch)]
    assert found is not None
    return found


ARCHES_IN_TABLE = list(seccomp.AUDIT_ARCH)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("hidden", ["all", "small", "none"])
def test_every_number_has_the_verdict_of_its_table(arch: str, hidden: str) -> None:
    program, code, column = seccomp.build(arch, hidden_memory=hidden), seccomp.AUDIT_ARCH[arch], ARCHES_IN_TABLE.index(arch)
    denied = {pair[column] for pair in seccomp.DENIED.values()} - {None}
    absent = {pair[column] for pair in seccomp.ABSENT.values()} - {None}
    guarded = {pair[column] for pair in seccomp.GUARDED.values()}
    if hidden != "all":
        absent |= {pair[column] for pair in seccomp.HIDDEN_MEMORY.values()}
    if hidden == "none":
        absent.add(seccomp.SHMGET[column])
    bounded = seccomp.build(arch, hidden_memory=hidden, allow_reserve=False)
    assert judge(bounded, code, seccomp.FALLOCATE[column]) == seccomp.UNSUPPORTED
    assert judge(bounded, code, seccomp.FALLOCATE[column] + 1) == ALLOW
    for nr in range(0, 600):
        if nr in guarded:
            continue
        wanted = EPERM if nr in denied else ENOSYS if nr in absent or nr > seccomp.LAST_KNOWN else ALLOW
        assert judge(program, code, nr) == wanted, nr


def test_the_tables_agree_with_the_headers_of_the_kernel() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("this test compares with the kernel's headers (package linux-libc-dev), which are not installed")
    known = dict(
        line.split()[1:3] for line in header.read_text().splitlines() if line.startswith("#define __NR_")  # type: ignore[misc]
    )
    tables = {**seccomp.DENIED, **seccomp.ABSENT, **seccomp.HIDDEN_MEMORY, **seccomp.GUARDED, "shmget": seccomp.SHMGET}
    tables["fallocate"] = seccomp.FALLOCATE
    for name, pair in tables.items():
        if "__NR_" + name in known:
            assert int(known["__NR_" + name]) == pair[0], name


@pytest.mark.parametrize("arch", ARCHES)
def test_another_architecture_is_killed(arch: str) -> None:
    program = seccomp.build(arch)
    for other in (0x40000003, 0x40000028, *(set(seccomp.AUDIT_ARCH.values()) - {seccomp.AUDIT_ARCH[arch]})):
        assert judge(program, other, 20) == seccomp.KILL_PROCESS


@given(st.integers(0x40000000, 0xFFFFFFFF))
def test_x32_numbers_are_absent(nr: int) -> None:
    assert judge(seccomp.build("x86_64"), seccomp.AUDIT_ARCH["x86_64"], nr) == ENOSYS


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("inet", "unix"), [(True, True), (False, True), (True, False), (False, False)])
def test_socket_families(arch: str, inet: bool, unix: bool) -> None:
    program = seccomp.build(arch, allow_inet=inet, allow_unix=unix)
    allowed = ({1} if unix else set()) | ({2, 10, 16} if inet else set())
    for family in range(64):
        wanted = ALLOW if family in allowed else EPERM
        assert judge(program, seccomp.AUDIT_ARCH[arch], number("socket", arch), (family, 1, 0)) == wanted, family
        wanted = ALLOW if family == 1 else EPERM
        assert judge(program, seccomp.AUDIT_ARCH[arch], number("socketpair", arch), (family, 1, 0)) == wanted, family


@pytest.mark.parametrize("arch", ARCHES)
@given(
    st.sampled_from([2, 10, 16]), st.integers(0, 15), st.sampled_from([0, 0o4000, 0o2000000, 0o2004000]),
    st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1)),
)
def test_sockets_of_protocols_for_which_the_host_would_load_a_module(
    arch: str, family: int, kind: int, flags: int, protocol: int
) -> None:
    """Non-blocking and close-on-exec are flags in the same word as the type."""
    if family == 16:
        wanted = ALLOW if protocol == 0 else seccomp.NO_PROTOCOL
    else:
        wanted = ALLOW if kind in (1, 2, 3) and protocol in (0, 1, 6, 17, 58) else seccomp.NO_PROTOCOL
    verdict = judge(
        seccomp.build(arch), seccomp.AUDIT_ARCH[arch], number("socket", arch), (family, kind | flags, protocol)
    )
    assert verdict == wanted


@pytest.mark.parametrize("arch", ARCHES)
@given(st.integers(0, 15), st.sampled_from([0, 0o4000, 0o2000000, 0o2004000]))
def test_pairs_of_sockets_that_can_send_elsewhere_are_sockets_as_well(arch: str, kind: int, flags: int) -> None:
    call = number("socketpair", arch)
    for unix in (True, False):
        verdict = judge(seccomp.build(arch, allow_unix=unix), seccomp.AUDIT_ARCH[arch], call, (1, kind | flags, 0))
        assert verdict == (ALLOW if unix or kind in (1, 5) else EPERM)


SENDS = """
import os, socket, sys
from agently_kernel.guest import seccomp
seccomp.install(seccomp.build(os.uname().machine, allow_unix=False))
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    try:
        one, other = socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:
        print("no pair", error.errno)
        continue
    one.send(b"x")
    print(other.recv(1))
    for act in (lambda: one.sendto(b"out", sys.argv[1]), lambda: (one.connect(sys.argv[1]), one.send(b"out"))):
        for closed in (False, True):
            if closed:
                other.close()
            try:
                act()
                print("sent")
            except OSError:
                pass
"""


def test_a_pair_reaches_nobody_else(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as host:
        host.bind(str(tmp_path / "host"))
        host.setblocking(False)
        answer = subprocess.run(
            [sys.executable, "-c", SENDS, str(tmp_path / "host")], capture_output=True, text=True, check=True
        )
        with pytest.raises(BlockingIOError):
            host.recv(10)
    assert answer.stdout.replace("sent\n", "") == "no pair 1\nb'x'\nb'x'\n"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_arguments_are_compared_on_their_low_halves(high: int, low: int) -> None:
    program, code = seccomp.build("x86_64"), seccomp.AUDIT_ARCH["x86_64"]

    def verdict(name: str, index: int) -> int:
        args = [0] * 6
        args[index] = high << 32 | low
        return judge(program, code, number(name, "x86_64"), tuple(args))

    terminals = (seccomp.TIOCSTI, seccomp.TIOCLINUX, seccomp.TIOCSETD)
    assert verdict("ioctl", 1) == (EPERM if low in terminals else ALLOW)
    assert verdict("clone", 0) == (EPERM if low & seccomp.NEW_NAMESPACES else ALLOW)
    whom = EPERM if low == 1 else ALLOW
    assert [verdict(name, 0) for name in ("prlimit64", "sched_setparam", "sched_setaffinity")] == [whom] * 3
    assert verdict("setpriority", 1) == whom
    assert verdict("setpriority", 0) == (ALLOW if low < 2 else EPERM)
    assert verdict("ioprio_set", 0) == (ALLOW if low in (1, 2) else EPERM)
    assert verdict("setpriority", 2) == (EPERM if low >= 1 << 31 else ALLOW)
    assert verdict("sched_setscheduler", 1) == (ALLOW if low in (0, 3, 5) else EPERM)
    assert verdict("personality", 0) == (ALLOW if low == 0xFFFFFFFF else EPERM)


@pytest.mark.parametrize("arch", ARCHES)
@given(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 8192), st.sampled_from([4096, 4097, 2**32, 2**32 + 1])))
def test_segments_of_system_v_are_at_most_a_page_where_nothing_counts_them(arch: str, size: int) -> None:
    code, call = seccomp.AUDIT_ARCH[arch], number("shmget", arch)
    wanted = {"all": ALLOW, "small": ALLOW if size <= 4096 else ENOSYS, "none": ENOSYS}
    for hidden, verdict in wanted.items():
        assert judge(seccomp.build(arch, hidden_memory=hidden), code, call, (0, size, 0o600)) == verdict


INITS_OWN = {
    "prlimit64": [(resource, pointer, 0) for resource in range(16) for pointer in (0, 2**40)],
    "sched_setscheduler": [(policy, 2**40) for policy in range(8)],
    "sched_setparam": [(2**40,)],
    "sched_setaffinity": [(8, 2**40)],
}


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", [0, 1, 0xFFFFFFFF])
def test_limits_processors_and_priority_of_init_are_inits_own(arch: str, high: int) -> None:
    program, code, init = seccomp.build(arch), seccomp.AUDIT_ARCH[arch], high << 32 | 1
    for name, rest in INITS_OWN.items():
        for args in rest:
            assert judge(program, code, number(name, arch), (init, *args)) == EPERM, (name, args)
    for name, words in seccomp.ONE_OR_GROUP.items():
        for word in words:
            assert judge(program, code, number(name, arch), (word, init, 19)) == EPERM, name
            assert judge(program, code, number(name, arch), (word, 0, 19)) == ALLOW, name
            assert judge(program, code, number(name, arch), (word, 77, 19)) == ALLOW, name
        everybody = words[-1] + 1
        assert judge(program, code, number(name, arch), (everybody, 0, 19)) == EPERM, name


@pytest.mark.parametrize("arch", ARCHES)
def test_a_process_sets_its_own_limits_processors_and_priority(arch: str) -> None:
    for name, rest in INITS_OWN.items():
        for pid in (0, 2, 4711):
            wanted = [ALLOW if name != "sched_setscheduler" or args[0] in (0, 3, 5) else EPERM for args in rest]
            found = [judge(seccomp.build(arch), seccomp.AUDIT_ARCH[arch], number(name, arch), (pid, *args)) for args in rest]
            assert found == wanted, name


def test_an_unknown_word_for_memory_is_named() -> None:
    with pytest.raises(ValueError, match="'some', not all, small or none"):
        seccomp.build("x86_64", hidden_memory="some")


@pytest.mark.parametrize("high", [0, 1, 0xFFFFFFFF])
def test_a_terminal_cannot_be_typed_into_whatever_the_high_half_says(high: int) -> None:
    program = seccomp.build("x86_64")
    assert judge(program, seccomp.AUDIT_ARCH["x86_64"], 16, (0, high << 32 | 0x5412)) == EPERM


def test_the_bytes_are_the_same_every_time() -> None:
    assert {seccomp.digest(seccomp.build("x86_64")) for _ in range(3)} == {seccomp.digest(seccomp.build("x86_64"))}
    assert len({seccomp.build(a, allow_inet=i, allow_unix=u) for a in ARCHES for i in (0, 1) for u in (0, 1)}) == 8
    assert len(seccomp.build("x86_64")) % 8 == 0


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(ValueError, match="no system call table for 'riscv64'; known are aarch64, x86_64"):
        seccomp.build("riscv64")


_IN_CHILD = """
import ctypes, errno, json, os, socket, subprocess, sys, threading
sys.path.insert(0, %r)
import seccomp
seccomp.install(seccomp.build(os.uname().machine, allow_inet=False))
libc = ctypes.CDLL(None, use_errno=True)
def code(number, *args):
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)) == -1 else 0
def family(number):
    try:
        socket.socket(number, socket.SOCK_STREAM).close()
    except OSError as error:
        return error.errno
    return 0
arm = os.uname().machine == "aarch64"
worked = []
thread = threading.Thread(target=worked.append, args=(1,)); thread.start(); thread.join()
print(json.dumps({
    "mode": seccomp.mode(), "unshare": code(97 if arm else 272, 0x10000000), "keyctl": code(219 if arm else 250, 0, -3, 0),
    "io_uring": code(425, 0, 0), "inet": family(2), "vsock": family(40), "unix": family(1), "thread": worked,
    "init": code(261 if arm else 302, 1, 7, 0, 0), "own limits": code(261 if arm else 302, 0, 7, 0, 0),
    "child": subprocess.run(["echo", "ran"], stdout=subprocess.PIPE).stdout.decode(),
}))
"""


def test_the_kernel_takes_it_and_ordinary_programs_run_under_it() -> None:
    folder = str(Path(seccomp.__file__).parent)
    ended = subprocess.run([sys.executable, "-c", _IN_CHILD % folder], stdout=subprocess.PIPE, timeout=30, check=True)
    assert json.loads(ended.stdout) == {
        "mode": 2, "unshare": errno.EPERM, "keyctl": errno.EPERM, "io_uring": errno.ENOSYS, "inet": errno.EPERM,
        "vsock": errno.EPERM, "unix": 0, "thread": [1], "init": errno.EPERM, "own limits": 0, "child": "ran\n",
    }


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the entry of another architecture exists on x86_64 only")
def test_the_entry_for_32_bit_calls_kills_the_process() -> None:
    code = (
        "import ctypes, mmap, sys; sys.path.insert(0, %r); import seccomp; seccomp.install(seccomp.build('x86_64'))\n"
        "m = mmap.mmap(-1, 4096, prot=7); m.write(b'\\x53\\xb8\\x14\\0\\0\\0\\xcd\\x80\\x5b\\xc3')\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())"
    )
    ended = subprocess.run([sys.executable, "-c", code % str(Path(seccomp.__file__).parent)], stdout=subprocess.PIPE, timeout=30)
    assert (ended.returncode, ended.stdout) == (-31, b"")
