"""Honesty of the outside observation: for each axis a weakened twin must flip exactly that axis."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from bubblewrap_support import (
    FILTERED,
    READY_AND_WAIT,
    ROOT,
    WeakenedSandbox,
    make_sandbox,
    replace,
    running,
    without,
)
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.contract.isolation import Evidence, IsolationFacts
from agently_kernel.sandbox.host_facts import Mount, observe_process, parse_mountinfo, writable_host_mounts

AXES = ("process_contained", "host_filesystem_restricted", "privilege_escalation_blocked", "syscalls_restricted",
        "network_blocked")
Edit = Callable[[list[str]], list[str]]


def concluded(evidence: tuple[Evidence, ...]) -> dict[str, bool | None]:
    facts = IsolationFacts.from_evidence(evidence)
    return {axis: getattr(facts, axis) for axis in AXES}


async def observe(
    runtime: Path, *, edit: Edit | None = None, edit_drop: Edit | None = None, filtered: bool = True
) -> tuple[Evidence, ...]:
    sandbox = make_sandbox(runtime, kind=WeakenedSandbox)
    assert isinstance(sandbox, WeakenedSandbox)
    sandbox.edit, sandbox.edit_drop = edit or list, edit_drop or list
    async with running(sandbox, (FILTERED if filtered else "") + READY_AND_WAIT):
        return await sandbox.observe()


def failed(evidence: tuple[Evidence, ...]) -> set[str]:
    return {item.check for item in evidence if item.value is not True}


async def test_the_real_list_holds_on_every_axis(runtime: Path) -> None:
    evidence = await observe(runtime)
    assert concluded(evidence) == dict.fromkeys(AXES, True)
    assert {item.check for item in evidence} == {
        "pid_namespace", "ipc_namespace", "uts_namespace", "mnt_namespace", "net_namespace", "no_writable_host_mount",
        "uid_is_not_root", "capeff_is_empty", "capprm_is_empty", "capinh_is_empty", "capamb_is_empty",
        "capbnd_is_empty", "no_new_privs", "seccomp_filter",
    }
    assert {item.source for item in evidence} == {"outside"}


TWINS: dict[str, tuple[Edit, str, set[str]]] = {
    "shared ipc": (without("--unshare-ipc"), "process_contained", {"ipc_namespace"}),
    "shared network": (without("--unshare-net"), "network_blocked", {"net_namespace"}),
    "writable host folder": (
        replace(["--proc", "/proc"], ["--bind", "/var/tmp", "/borrowed", "--proc", "/proc"]),
        "host_filesystem_restricted", {"no_writable_host_mount"},
    ),
}


@pytest.mark.parametrize("name", sorted(TWINS))
async def test_a_weakened_twin_flips_exactly_its_axis(runtime: Path, name: str) -> None:
    edit, axis, checks = TWINS[name]
    evidence = await observe(runtime, edit=edit)
    assert concluded(evidence) == {**dict.fromkeys(AXES, True), axis: False}
    assert failed(evidence) == checks


async def test_a_shared_pid_namespace_flips_containment(runtime: Path) -> None:
    def edit(options: list[str]) -> list[str]:
        shared = replace(["--proc", "/proc"], ["--ro-bind", "/proc", "/proc"])(options)
        return without("--unshare-pid", "--as-pid-1")(shared)

    evidence = await observe(runtime, edit=edit)
    assert concluded(evidence) == {**dict.fromkeys(AXES, True), "process_contained": False}
    assert failed(evidence) == {"pid_namespace"}


async def test_kept_capabilities_flip_privilege(runtime: Path) -> None:
    if ROOT:  # the bounding set is what setpriv would have emptied
        evidence = await observe(runtime, edit_drop=without("--bounding-set=-all"))
        expected = {"capbnd_is_empty"}
    else:
        evidence = await observe(runtime, edit=replace(["--cap-drop", "ALL"], ["--cap-add", "CAP_NET_BIND_SERVICE"]))
        expected = {"capeff_is_empty", "capprm_is_empty", "capinh_is_empty", "capamb_is_empty", "capbnd_is_empty"}
    assert concluded(evidence) == {**dict.fromkeys(AXES, True), "privilege_escalation_blocked": False}
    assert failed(evidence) <= expected and failed(evidence)


@pytest.mark.skipif(not ROOT, reason="only root can keep being root")
async def test_root_without_a_dropped_uid_flips_privilege(runtime: Path) -> None:
    evidence = await observe(runtime, edit_drop=lambda words: [])
    assert concluded(evidence)["privilege_escalation_blocked"] is False
    assert "uid_is_not_root" in failed(evidence)


@pytest.mark.skipif(not ROOT, reason="only root can be root in a user namespace")
async def test_root_in_a_user_namespace_is_seen_to_be_root(runtime: Path) -> None:
    def edit(options: list[str]) -> list[str]:
        at = options.index("--cap-drop")
        return ["--unshare-user", "--uid", "1000", "--gid", "1000", *options[:at], *options[at + 8 :]]

    evidence = await observe(runtime, edit=edit, edit_drop=lambda words: [])
    assert concluded(evidence)["privilege_escalation_blocked"] is False
    assert "uid_is_not_root" in failed(evidence)  # inside it reads as 1000


async def test_no_filter_flips_system_calls(runtime: Path) -> None:
    evidence = await observe(runtime, filtered=False)
    assert concluded(evidence) == {**dict.fromkeys(AXES, True), "syscalls_restricted": False}
    assert failed(evidence) == {"seccomp_filter"}


def test_a_process_of_the_host_holds_on_no_axis() -> None:
    axes = concluded(observe_process(os.getpid()))
    assert axes == dict.fromkeys(AXES, False)


def test_a_process_that_is_gone_proves_nothing() -> None:
    axes = concluded(observe_process(2**22 - 1))
    assert axes == dict.fromkeys(AXES, None)


words = st.text("abcdefghijklmnopqrstuvwxyz/ \\\t", min_size=1, max_size=12)


def escape(text: str) -> str:
    return text.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")


@given(root=words, point=words, flag=st.sampled_from(["ro", "rw"]), whole=st.sampled_from(["ro", "rw"]))
def test_a_line_of_mountinfo_is_read_back(root: str, point: str, flag: str, whole: str) -> None:
    line = f"36 35 98:0 {escape(root)} {escape(point)} {flag},noatime master:1 - ext3 /dev/root {whole},errors=go\n"
    assert parse_mountinfo(line) == (
        Mount(device="98:0", root=root, point=point, writable=flag == whole == "rw", kind="ext3"),
    )


@pytest.mark.parametrize("line", ["36 35 98:0 / /x rw,noatime ext3 /dev/root rw", "36 35 - a b", "nonsense"])
def test_a_line_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="mountinfo"):
        parse_mountinfo(line)


def test_which_writable_mounts_count() -> None:
    host = (
        Mount(device="254:0", root="/", point="/", writable=True, kind="ext4"),
        Mount(device="0:6", root="/", point="/dev", writable=True, kind="devtmpfs"),
        Mount(device="0:27", root="/", point="/dev/shm", writable=True, kind="tmpfs"),
    )
    inside = (
        Mount(device="0:40", root="/", point="/tmp", writable=True, kind="tmpfs"),
        Mount(device="0:6", root="/null", point="/dev/null", writable=True, kind="devtmpfs"),
        Mount(device="0:6", root="/sda", point="/dev/null", writable=True, kind="devtmpfs"),
        Mount(device="0:6", root="/kvm", point="/dev/kvm", writable=True, kind="devtmpfs"),
        Mount(device="0:27", root="/ws/source", point="/workspace/src", writable=False, kind="tmpfs"),
        Mount(device="0:27", root="/ws/output", point="/workspace/output", writable=True, kind="tmpfs"),
        Mount(device="254:0", root="/home", point="/home", writable=True, kind="ext4"),
    )
    assert writable_host_mounts(inside, host) == ("/dev/kvm", "/dev/null", "/home", "/workspace/output")
