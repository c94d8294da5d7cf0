"""A Podman of the test run's own behind its Docker-compatible socket."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from images import API_VERSION, DISK_MIB, START_SECONDS, Engine, python_rootfs, require_tool, stop, unmount

IMAGE = "localhost/agently-test/ipython:1"
_SYS_RESOURCE = 24
# Podman raises the limits of each container to the highest possible; root of a machine that may not do so (a container,
# a small virtual machine) cannot start any then. What the guest gets is set by its first program in any case.
_WITHOUT_RLIMITS = """#!/usr/bin/env python3
import json, os, sys
for at, word in enumerate(sys.argv):
    if word.startswith("--bundle"):
        path = (word.partition("=")[2] or sys.argv[at + 1]) + "/config.json"
        with open(path) as stream:
            config = json.load(stream)
        config["process"]["rlimits"] = []
        with open(path, "w") as stream:
            json.dump(config, stream)
os.execv({runc!r}, ["runc", *sys.argv[1:]])
"""


def _may_raise_limits() -> bool:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> _SYS_RESOURCE & 1)


def _environment(folder: Path) -> dict[str, str]:
    runtime = require_tool("runc")
    if not _may_raise_limits():
        wrapper = folder / "runc-without-rlimits"
        wrapper.write_text(_WITHOUT_RLIMITS.format(runc=runtime))
        wrapper.chmod(0o755)
        runtime = str(wrapper)
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    (folder / "containers.conf").write_text(
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\nruntime = "own"\ntmp_dir = "{folder}/tmp"\n'
        f'[engine.runtimes]\nown = ["{runtime}"]\n'
    )
    return {
        **os.environ, "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
    }


@contextlib.contextmanager
def podman() -> Iterator[Engine]:
    """Start Podman's service with the image in its store, everything in a temporary folder; end it by its pid."""
    program = require_tool("podman")
    import docker

    folder = Path(tempfile.mkdtemp(prefix="agently-podman-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0755", "tmpfs", str(folder)], check=True)
    environment = _environment(folder)
    host = f"unix://{folder}/podman.sock"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "system", "service", "--time=0", host], stdout=log, stderr=log, env=environment,
            start_new_session=True,
        )
    client = docker.APIClient(base_url=host, timeout=120, version=API_VERSION)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                client.ping()
                break
            except Exception as error:
                tail = (folder / "log").read_text(errors="replace")[-2000:]
                assert process.poll() is None and time.monotonic() < deadline, f"Podman did not start: {error}\n{tail}"
                time.sleep(0.1)
        subprocess.run(
            [program, "import", "--quiet", str(python_rootfs()), IMAGE], env=environment, check=True, timeout=120,
            capture_output=True,
        )
        yield Engine(host, process, client, folder)
    finally:
        client.close()
        stop(process)
        unmount(folder)
        shutil.rmtree(folder, ignore_errors=True)


def config(engine: Engine, **more: Any) -> dict[str, Any]:
    """Return a candidate's config for this engine; its calls may take their time on a loaded machine."""
    return {"host": engine.host, "image": IMAGE, "pull_policy": "never", "seconds": 60, **json.loads(json.dumps(more))}
