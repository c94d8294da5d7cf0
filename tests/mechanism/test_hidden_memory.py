# ruff: noqa: E501 - programs of guests stand on one line
"""Memory that no process shows, where no control group counts it: it is counted by the watchdog, or refused."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from bubblewrap_session import Opened, opened

from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.providers import bubblewrap
from agently_kernel.sandbox import cgroups
from agently_kernel.sandbox.local import WATCHED_MEMORY
from agently_kernel.sandbox.memory import USUAL_BUFFER, held_by_descriptors, resident_bytes

LIMIT = 224
BEYOND = 1024  # MiB: what may be taken between two looks on a slow machine
START = """
import array, ctypes, errno, mmap, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
keep, total = [], 0
def held(size):
    global total
    total += size
    print(total >> 20, flush=True)
    if total > 2 << 30:
        os._exit(7)
"""
COUNTED = {
    "page tables": """
size = 1 << 44
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
at = libc.mmap(None, size, 1, 0x4022, -1, 0)
libc.madvise(at, size, 15)
for n in range(size >> 21):
    ctypes.string_at(at + (n << 21), 1)
    if n % 4096 == 0: held(4096 * 4096)
""",
    "buffers of local sockets": """
while True:
    if len(keep) >= 450 and os.fork(): time.sleep(600)
    if len(keep) >= 450: keep = [each.close() for pair in keep for each in pair][:0]
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(False)
        try:
            while True: each.send(bytes(65536))
        except BlockingIOError: held(200 << 10)
    keep.append(pair)
""",
    "what waits after its sender has closed": """
while True:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    try:
        while True: theirs.send(bytes(65536))
    except BlockingIOError: held(200 << 10)
    theirs.close()
    keep.append(ours)
    if len(keep) > 900:
        if os.fork(): time.sleep(600)
        keep.clear()
""",
    "buffers of network sockets": """
server = socket.create_server(("127.0.0.1", 0))
while True:
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    client.setblocking(False)
    try:
        while True: held(client.send(bytes(1 << 20)))
    except BlockingIOError: pass
    keep.append((client, accepted))
""",
    "pipes": """
import fcntl
while True:
    reading, writing = os.pipe()
    try: fcntl.fcntl(reading, 1031, 1 << 20)
    except OSError: pass
    os.set_blocking(writing, False)
    try:
        while True: held(os.write(writing, bytes(1 << 20)))
    except BlockingIOError: pass
    keep.append((reading, writing))
    if len(keep) > 450:
        if os.fork(): time.sleep(600)
        for pair in keep: os.close(pair[0]); os.close(pair[1])
        keep.clear()
""",
}
REFUSED = {
    "segments of System V": "print(libc.shmget(0, ctypes.c_size_t(4097), 0o1600), ctypes.get_errno() == errno.ENOSYS)",
    "segments whose size has a high half": "print(libc.shmget(0, ctypes.c_size_t(1 << 32), 0o1600), ctypes.get_errno() == errno.ENOSYS)",
    "queues of System V": "print(libc.msgget(0, 0o1600), ctypes.get_errno() == errno.ENOSYS)",
    "semaphores of System V": "print(libc.semget(0, 1, 0o1600), ctypes.get_errno() == errno.ENOSYS)",
    "files without a name": "print(libc.memfd_create(b'x', 0), ctypes.get_errno() == errno.ENOSYS)",
    "pages in pipes": "print(libc.vmsplice(1, None, 0, 0), ctypes.get_errno() == errno.ENOSYS)",
}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No control group can be made, as for an ordinary user."""
    for module in (bubblewrap, cgroups):
        monkeypatch.setattr(module, "find_places", dict)
    yield


async def small(session: Opened) -> None:
    assert {fact.name: (fact.mechanism, fact.detail) for fact in session.resource.facts.limits}["memory"] == (
        "watchdog", WATCHED_MEMORY
    )


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("kind", COUNTED)
async def test_memory_of_every_kind_is_counted(tmp_path: Path, kind: str) -> None:
    limit = 80 if kind == "pipes" else LIMIT  # the kernel itself gives a user 64 MiB of them, then 8 KiB each
    async with opened(tmp_path, limits=ResourceLimits(memory_bytes=limit << 20)) as session:
        await small(session)
        result = await session.run(START + COUNTED[kind], timeout=60)
        assert result.status is ExecutionStatus.DIED, (result.stdout.text[-200:], result.stderr.text, result.error)
        assert result.death is not None and result.death.kind == "memory_limit", result.death
        last = max(map(int, filter(str.isdigit, result.stdout.text.split())), default=0)
        assert last < LIMIT + BEYOND
        if session.resource.healthy:
            assert (await session.run("print(6 * 7)")).stdout.text == "42\n"


@pytest.mark.usefixtures("watched")
async def test_what_nothing_could_count_is_refused_and_what_databases_need_is_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        for kind, code in REFUSED.items():
            assert (await session.run(START + code)).stdout.text == "-1 True\n", kind
        ok = "n = libc.shmget(0, ctypes.c_size_t(4096), 0o1600); p = libc.shmat(n, None, 0); print(n >= 0, p not in (None, 2**64 - 1))"
        assert (await session.run(START + ok)).stdout.text == "True True\n"


@pytest.mark.usefixtures("watched")
async def test_programs_that_share_memory_the_usual_way_work(tmp_path: Path) -> None:
    code = """
import multiprocessing as mp
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=1 << 20)
def fill(name):
    other = shared_memory.SharedMemory(name)
    other.buf[:3] = b"abc"
    other.close()
context = mp.get_context("fork")
array, lock, queue = context.Array("d", 8), context.Lock(), context.Queue()
child = context.Process(target=lambda: (fill(block.name), queue.put("said")))
child.start(); word = queue.get(timeout=20); child.join()
print(bytes(block.buf[:3]), word, len(array))
block.close(); block.unlink()
import socket, os
idle = [socket.socketpair() for _ in range(200)]
for pair in idle[:100]: pair[0].send(b"x")
pipes = [os.pipe() for _ in range(100)]
for reading, writing in pipes[:50]: os.write(writing, b"x")
import time; time.sleep(1.5)
print("alive")
"""
    async with opened(tmp_path, limits=ResourceLimits(memory_bytes=512 << 20)) as session:
        result = await session.run(code)
        assert result.stdout.text == "b'abc' said 8\nalive\n", (result.stderr.text, result.error, result.death)


async def test_where_a_control_group_counts_nothing_is_refused(tmp_path: Path) -> None:
    if "memory" not in cgroups.find_places():
        pytest.skip("no control group for memory can be made here")
    async with opened(tmp_path) as session:
        code = "n = libc.shmget(0, ctypes.c_size_t(1 << 20), 0o1600); print(n >= 0, os.memfd_create('x') > 0)"
        assert (await session.run(START + code)).stdout.text == "True True\n"
        assert {fact.name: fact.detail for fact in session.resource.facts.limits}["memory"] == ""


# -- the measuring, on this very process


def test_buffers_are_seen_through_descriptors_once_whoever_shares_them() -> None:
    def measure() -> int:
        return held_by_descriptors([os.getpid(), os.getpid()]).in_buffers

    before = measure()
    one, other = socket.socketpair()
    with one, other, one.dup():
        assert measure() - before < 4096
        one.setblocking(False)
        sent = 0
        try:
            while True:
                sent += one.send(bytes(4096))
        except BlockingIOError:
            pass
        full = measure() - before
        assert sent <= full <= 4 * USUAL_BUFFER
        one.close()
        assert measure() - before >= sent
    reading, writing = os.pipe()
    os.write(writing, b"x")
    assert 65536 <= measure() - before <= 65536 + 4096
    os.read(reading, 1)
    assert measure() - before < 4096
    os.close(reading)
    os.close(writing)


def test_files_without_a_name_are_counted_once() -> None:
    before = held_by_descriptors([os.getpid()]).files
    descriptor = os.memfd_create("synthetic")
    os.write(descriptor, bytes(1 << 20))
    copy = os.dup(descriptor)
    assert held_by_descriptors([os.getpid(), os.getpid()]).files - before == 1 << 20
    for each in (descriptor, copy):
        os.close(each)


def test_page_tables_count_as_resident() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.madvise.argtypes = libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = 8 << 30
    at = libc.mmap(None, size, 1, 0x4022, -1, 0)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.madvise(at, size, 15)
    before = resident_bytes(os.getpid())
    for n in range(size >> 21):
        ctypes.string_at(at + (n << 21), 1)
    assert resident_bytes(os.getpid()) - before >= (size >> 21) * 4096
    libc.munmap(at, size)


def test_processes_that_are_gone_hold_nothing() -> None:
    assert resident_bytes(2**22 - 1) == 0
    assert held_by_descriptors([2**22 - 1]).in_buffers == 0
