"""gVisor without an engine: bundles as pure functions, and real sandboxes on the user's own interpreter."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gvisor_support import MEMORY, MEMORY_POLICY, gvisor_holds_processes
from images import require_tool
from provider_support import AXES, concluded, probe, surroundings

from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.providers.runsc import RunscExecutionResourceProvider, choose_platform
from agently_kernel.providers.runsc_bundle import RunscLayout, config, mounts, write_bundle
from agently_kernel.sandbox.deaths import LOST_SANDBOX
from agently_kernel.sandbox.launch import SUPERUSER_CAPABILITIES, SUPERUSER_DIR
from agently_kernel.testing.provider_contract import ProviderContract

LAYOUT = RunscLayout(
    uid=60001, limits=ResourceLimits(scratch_bytes=32 << 20, output_bytes=16 << 20), system=("/usr",),
    system_links=(("/bin", "usr/bin"),), etc_dir="/run/etc", read_only=("/opt/python", "/usr/lib/inside"),
    binds=(("/host/source", "/workspace/src"),), links=(("/opt/link", "/opt/python"),), environment={"A": "1"},
)


class TestRunscContract(ProviderContract):
    """All of the contract."""

    def make_provider(self) -> ExecutionResourceProvider:
        require_tool("runsc")
        return RunscExecutionResourceProvider()


async def test_all_axes_are_observed(tmp_path: Path) -> None:
    require_tool("runsc")
    found = await probe(RunscExecutionResourceProvider(), {})
    assert found.capability is not None, found.reason
    assert concluded(found.capability.isolation) == dict.fromkeys(AXES, True)
    assert found.capability.mechanism["mechanism"] == "gvisor"


async def test_the_limit_of_processes_is_held_inside_and_the_session_lives_on(tmp_path: Path) -> None:
    require_tool("runsc")
    await gvisor_holds_processes(RunscExecutionResourceProvider(), {}, tmp_path)


@pytest.mark.parametrize("deed", MEMORY)
async def test_the_end_at_the_memory_limit_is_told_as_that(deed: str, tmp_path: Path) -> None:
    """By a control group where there is one; by the watchdog for an ordinary user."""
    async with surroundings(RunscExecutionResourceProvider(), {}, tmp_path, MEMORY_POLICY) as place:
        result = await place.cell("pass")
        assert result.status is ExecutionStatus.SUCCESS, result.message
        result = await place.cell(MEMORY[deed], timeout=60)
        death = result.death
        assert death is not None and (death.what, death.kind) == ("sandbox", "memory_limit"), result
        assert LOST_SANDBOX in result.message


async def test_another_program_called_runsc_is_found_out(tmp_path: Path) -> None:
    """SYNTHETIC: a program that answers --version and then runs the guest on the host."""
    fake = tmp_path / "runsc"
    fake.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'runsc version release-20240807.0'; exit; }\n"
        "while [ $# -gt 0 ]; do [ \"$1\" = -bundle ] && bundle=$2; shift; done\nexec cat \"$bundle/config.json\"\n"
    )
    fake.chmod(0o755)
    found = await asyncio.wait_for(probe(RunscExecutionResourceProvider(), {"binary": str(fake)}), 60)
    assert not found.available and "runsc" in found.reason


async def test_a_missing_program_is_said_with_what_would_help(tmp_path: Path) -> None:
    found = await probe(RunscExecutionResourceProvider(), {"binary": str(tmp_path / "nothing")})
    assert (found.available, found.reason) == (False, "No runsc program was found.")
    assert "install gVisor" in found.remedy


@pytest.mark.parametrize(
    ("version", "wanted", "platform"),
    [
        ("0.0~20221219.0", "auto", "ptrace"), ("release-20240807.0", "auto", "systrap"), ("unknown", "auto", "ptrace"),
        ("0.0~20221219.0", "systrap", "systrap"), ("release-20240807.0", "ptrace", "ptrace"),
    ],
)
def test_the_platform_follows_the_release(version: str, wanted: str, platform: str) -> None:
    assert choose_platform(version, wanted) == platform  # type: ignore[arg-type]


def test_the_bundle_gives_no_privilege_and_nothing_writable_of_the_host() -> None:
    found = config(LAYOUT, ["python", "-I"], "/workspace/build")
    process = found["process"]
    needed = [f"CAP_{name}" for name in SUPERUSER_CAPABILITIES]  # of gVisor's kernel, until stage1 gives them up
    assert process["capabilities"] == {
        "bounding": needed, "effective": needed, "permitted": needed, "inheritable": [], "ambient": [],
    }
    assert process["noNewPrivileges"] is True
    assert (process["user"], process["env"]) == ({"uid": 0, "gid": 0}, ["A=1"])
    assert found["root"] == {"path": "rootfs", "readonly": True}
    binds = {mount["destination"]: mount["options"] for mount in found["mounts"] if mount["type"] == "bind"}
    assert set(binds) == {"/usr", "/etc", "/opt/python", "/workspace/src"}
    assert all("ro" in options for options in binds.values())
    order = [mount["destination"] for mount in mounts(LAYOUT)]
    (hidden,) = (mount for mount in found["mounts"] if mount["destination"] == SUPERUSER_DIR)
    assert hidden["type"] == "tmpfs" and "mode=0700" in hidden["options"]
    assert order.index("/tmp") < order.index("/opt/python")  # an interpreter below /tmp is not hidden


def test_the_skeleton_has_every_mount_point_and_link(tmp_path: Path) -> None:
    interpreter, bundle = tmp_path / "python", tmp_path / "bundle"
    for folder in (interpreter, bundle):
        folder.mkdir()
    real = {"etc_dir": "/etc", "read_only": (str(interpreter),), "binds": ((str(interpreter), "/workspace/src"),)}
    write_bundle(bundle, LAYOUT.model_copy(update=real), ["python"], "/")
    root = bundle / "rootfs"
    for path in ("proc", "usr", "tmp", "dev/shm", "workspace/build", "workspace/output", "workspace/src", "etc"):
        assert (root / path).is_dir(), path
    assert (root / str(interpreter).lstrip("/")).is_dir()
    assert (root / "bin").readlink() == Path("usr/bin") and (root / "opt/link").readlink() == Path("/opt/python")
    assert json.loads((bundle / "config.json").read_text())["process"]["args"] == ["python"]
