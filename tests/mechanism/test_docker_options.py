"""What a container engine is asked for, and how its answers are taken apart: pure functions."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import os
import struct
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.providers.docker_engine import _facts
from agently_kernel.providers.docker_images import split_name
from agently_kernel.providers.docker_options import (
    ContainerSpec,
    container_options,
    guest_argv,
    host_options,
    tmpfs_options,
)
from agently_kernel.providers.docker_orphans import PREFIX, is_orphan, owner_labels
from agently_kernel.providers.docker_stream import MAX_CHUNK, Demultiplexer
from agently_kernel.sandbox.launch import SUPERUSER_CAPABILITIES, SUPERUSER_DIR

LIMITS = ResourceLimits(
    memory_bytes=512 << 20, processes=64, cpus=1.5, scratch_bytes=32 << 20, output_bytes=16 << 20, inodes=5000
)
SPEC = ContainerSpec(
    name="agently-kernel-test", image="sha256:0", uid=60001, gid=60001, limits=LIMITS, volumes=("/data",),
    binds=(("/host/source", "/workspace/src"),), labels={"a": "b"},
)


def test_the_container_is_locked_down() -> None:
    assert host_options(SPEC) == {
        "network_mode": "none", "read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"],
        "ipc_mode": "private", "shm_size": 32 << 20, "tmpfs": tmpfs_options(SPEC),
        "log_config": {"Type": "none", "Config": {}},
        "mounts": [{"Type": "bind", "Source": "/host/source", "Target": "/workspace/src", "ReadOnly": True,
                    "BindOptions": {"Propagation": "rprivate"}}],
        "auto_remove": True, "init": False, "oom_score_adj": 500, "pids_limit": 64, "mem_limit": 512 << 20,
        "memswap_limit": 512 << 20, "nano_cpus": 1_500_000_000,
        "ulimits": [{"Name": "nofile", "Soft": 1024, "Hard": 1024}],
    }


def test_nothing_is_asked_for_that_the_engine_cannot_hold() -> None:
    weak = host_options(SPEC.model_copy(update={"engine_limits": ()}))
    assert set(host_options(SPEC)) - set(weak) == {"pids_limit", "mem_limit", "memswap_limit", "nano_cpus"}


def test_podman_is_spoken_to_in_its_own_words() -> None:
    spec = SPEC.model_copy(update={"podman": True, "count_inodes": False})
    areas = tmpfs_options(spec)
    assert areas["/workspace/build"] == "rw,nosuid,nodev,exec,size=33554432,mode=0755,U"
    assert areas["/dev/shm"] == "rw,nosuid,nodev,exec,size=33554432,mode=1777"
    assert "shm_size" not in host_options(spec)


def test_the_first_program_begins_as_superuser_only_where_that_is_said() -> None:
    spec = SPEC.model_copy(update={"begin_as_superuser": True})
    assert host_options(spec)["cap_add"] == list(SUPERUSER_CAPABILITIES) and "cap_add" not in host_options(SPEC)
    assert "mode=0700" in tmpfs_options(spec)[SUPERUSER_DIR] and SUPERUSER_DIR not in tmpfs_options(SPEC)
    assert container_options(spec, ["python3"], {}, "/")["user"] == "0:0"


@pytest.mark.parametrize(
    ("info", "limits"),
    [
        ({}, ("memory", "processes", "cpu")),
        ({"MemoryLimit": True, "PidsLimit": False, "CpuCfsQuota": True, "CgroupDriver": "systemd"}, ("memory", "cpu")),
        ({"MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True, "CgroupDriver": "none"}, ()),
        ({"MemoryLimit": True, "PidsLimit": True, "Rootless": True, "CgroupVersion": "1"}, ()),
        ({"SecurityOptions": ["name=rootless"], "CgroupVersion": "1"}, ()),
        ({"CpuCfsQuota": False, "SecurityOptions": ["name=rootless"], "CgroupVersion": "2"}, ("memory", "processes")),
    ],
)
def test_what_an_engine_can_hold_is_asked_of_it(info: dict[str, object], limits: tuple[str, ...]) -> None:
    """SYNTHETIC: answers of engines; rootless ones have no rights on control groups of version 1."""
    assert _facts("http+docker://localhost", dict(info), {}).limits == limits


def test_everything_writable_is_a_tmpfs_of_a_size_and_a_volume_of_the_image_is_hidden() -> None:
    assert tmpfs_options(SPEC) == {
        "/tmp": "rw,nosuid,nodev,exec,nr_inodes=5000,size=33554432,mode=1777",
        "/workspace/build": "rw,nosuid,nodev,exec,nr_inodes=5000,size=33554432,mode=0755,uid=60001,gid=60001",
        "/workspace/output": "rw,nosuid,nodev,exec,nr_inodes=5000,size=16777216,mode=0755,uid=60001,gid=60001",
        "/data": "ro,nosuid,nodev,noexec,size=4096",
    }
    sent = tmpfs_options(SPEC.model_copy(update={"sources": "protocol"}))
    assert set(sent) - set(tmpfs_options(SPEC)) == {"/workspace/src", "/workspace/input", "/run/agently/guest"}


def test_the_command_replaces_the_image_s_own_and_no_health_check_runs_inside() -> None:
    options = container_options(SPEC, ["python3", "-I", "x.py"], {"A": "1"}, "/workspace/build")
    assert (options["entrypoint"], options["command"]) == (["python3"], ["-I", "x.py"])
    assert options["healthcheck"] == {"test": ["NONE"]}
    assert (options["user"], options["tty"], options["stdin_open"]) == ("60001:60001", False, True)


def test_a_guest_that_is_sent_along_fits_arguments_and_holds_every_program() -> None:
    argv = guest_argv("python3", ["python3", "-I", "/run/agently/guest/stage1.py"], "protocol")
    assert argv[:5] == ["python3", "-I", "-S", "-u", "-c"] and argv[6] == "/run/agently/guest"
    assert max(map(len, argv)) < 128 * 1024  # the kernel's bound for one argument
    names = zipfile.ZipFile(io.BytesIO(base64.b64decode("".join(argv[7:])))).namelist()
    assert {"stage1.py", "init.py", "wire.py", "seccomp.py", "probe.py"} <= set(names)
    assert guest_argv("/opt/python", ["python3", "-I", "x"], "bind") == ["/opt/python", "-I", "x"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("python", ("python", "latest")), ("python:3.12-slim", ("python", "3.12-slim")),
        ("localhost:5000/a/b", ("localhost:5000/a/b", "latest")), ("localhost:5000/a/b:1", ("localhost:5000/a/b", "1")),
        ("a/b@sha256:00", ("a/b", "sha256:00")),
    ],
)
def test_an_image_name_is_split(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts


# -- the stream


class _Transport(asyncio.Transport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


pieces = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(pieces=pieces, cuts=st.lists(st.integers(0, 600), max_size=8))
def test_a_stream_cut_anywhere_comes_apart_the_same(pieces: list[tuple[int, bytes]], cuts: list[int]) -> None:
    async def main() -> tuple[bytes, bytes]:
        protocol = Demultiplexer(asyncio.get_running_loop())
        protocol.connection_made(_Transport())
        data = b"".join(struct.pack(">BxxxI", kind, len(part)) + part for kind, part in pieces)
        edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        for start, end in itertools.pairwise(edges):
            protocol.data_received(data[start:end])
        protocol.connection_lost(None)
        return await protocol.stdout.read(), await protocol.stderr.read()

    out, err = asyncio.run(main())
    assert out == b"".join(part for kind, part in pieces if kind == 1)
    assert err == b"".join(part for kind, part in pieces if kind == 2)


@pytest.mark.parametrize("header", [struct.pack(">BxxxI", 3, 1), struct.pack(">BxxxI", 1, MAX_CHUNK + 1)])
async def test_a_stream_that_is_none_is_dropped(header: bytes) -> None:
    protocol, transport = Demultiplexer(asyncio.get_running_loop()), _Transport()
    protocol.connection_made(transport)
    protocol.data_received(header)
    assert transport.aborted


# -- orphans


def test_only_containers_of_this_machine_whose_owner_is_gone_are_orphans() -> None:
    mine = owner_labels("s")
    assert not is_orphan(mine)
    assert is_orphan({**mine, PREFIX + "owner-pid": str(2**22 - 1)})
    assert is_orphan({**mine, PREFIX + "owner-start": "1.0"})
    assert is_orphan({**mine, PREFIX + "boot": "another start of this machine"})
    assert not is_orphan({**mine, PREFIX + "machine": "another machine", PREFIX + "boot": "x"})
    assert not is_orphan({**mine, PREFIX + "pid-namespace": "1", PREFIX + "owner-pid": str(2**22 - 1)})
    assert not is_orphan({key: value for key, value in mine.items() if not key.endswith("owner-pid")})
    assert mine[PREFIX + "owner-pid"] == str(os.getpid())
