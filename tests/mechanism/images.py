"""A container engine of the test run's own, and images for it that are made without any registry."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

PYTHON_IMAGE = "agently-test/ipython:1"
EMPTY_IMAGE = "agently-test/empty:1"
VOLUME_IMAGE = "agently-test/volume:1"
ODD_IMAGE = "agently-test/odd:1"
START_SECONDS = 60.0
API_VERSION = "1.40"
DISK_MIB = 2048


def require_tool(name: str) -> str:
    """Return the path of a program; a missing one fails in CI, and skips the test on a person's machine."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if path is None:
        sentence = f"this test needs the program {name}, which is not installed"
        pytest.fail(sentence) if os.environ.get("CI") == "true" else pytest.skip(sentence)
    return path


def cache() -> Path:
    """Return the folder that outlives a test run."""
    folder = Path(os.environ.get("AGENTLY_TEST_CACHE") or Path.home() / ".cache" / "agently-kernel-tests")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def python_rootfs() -> Path:
    """Return the tar of a Debian root with Python, IPython and time zones; made once (half a minute), then kept."""
    target = cache() / "ipython-tzdata-bookworm.tar"
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            program = require_tool("mmdebstrap")
            part = target.with_suffix(".part.tar")
            part.unlink(missing_ok=True)
            packages = "--include=python3,python3-ipython,tzdata"
            subprocess.run(
                [program, "--quiet", "--variant=apt", packages, "bookworm", str(part)], check=True, timeout=600
            )
            part.rename(target)
    return target


def empty_rootfs() -> bytes:
    """Return a tar with one empty file: an image with no program in it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    return data.getvalue()


@dataclass
class Engine:
    """A running dockerd."""

    host: str
    process: subprocess.Popen[bytes]
    client: Any
    disk: Path
    """Where its data lie: a file system of their own."""

    def containers(self) -> frozenset[str]:
        """Return the names of all containers that there are."""
        return frozenset(name for item in self.client.containers(all=True) for name in item["Names"])

    def make_odd_image(self) -> str:
        """Return an image with pip, whose Python has no other name than ``python``, made when it is first asked for."""
        import docker.errors

        with contextlib.suppress(docker.errors.ImageNotFound):
            self.client.inspect_image(ODD_IMAGE)
            return ODD_IMAGE
        import pip

        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            archive.add(Path(pip.__file__).parent, "pip", filter=lambda i: None if "__pycache__" in i.name else i)
        host = self.client.create_host_config(network_mode="none")
        rename = ["mv", "/usr/bin/python3", "/usr/bin/python"]
        made = self.client.create_container(PYTHON_IMAGE, rename, host_config=host)
        try:
            self.client.put_archive(made["Id"], "/usr/lib/python3/dist-packages", data.getvalue())
            self.client.start(made["Id"])
            assert self.client.wait(made["Id"], timeout=30)["StatusCode"] == 0
            self.client.commit(made["Id"], repository=ODD_IMAGE.partition(":")[0], tag="1")
        finally:
            self.client.remove_container(made["Id"], force=True)
        return ODD_IMAGE

    def config(self, **more: Any) -> dict[str, Any]:
        """Return a candidate's config for this engine."""
        return {"host": self.host, "image": PYTHON_IMAGE, "pull_policy": "never", **more}


@dataclass
class Dockerd(Engine):
    """One that can be ended and started again."""

    begin: Callable[[], subprocess.Popen[bytes]]
    """Starts it on the same data and returns when it answers."""

    def end(self, number: signal.Signals) -> None:
        """End it by a signal; what it started is left as it leaves it."""
        self.process.send_signal(number)
        self.process.wait(30)

    def begin_again(self) -> None:
        """Start it after :meth:`end`."""
        self.process = self.begin()


@contextlib.contextmanager
def dockerd(*, disk_mib: int = DISK_MIB, hidden: Path | None = None, tcp: bool = False) -> Iterator[Dockerd]:
    """Start an engine whose data, state and socket lie in a temporary folder, with the images in it; end it by its pid.

    Its runtimes: runc, runsc, and ``pretender``, which is runc under another name. *disk_mib*: the size of the file
    system that its data lie on (in memory: thousands of small files come and go). *hidden*: a folder that the engine
    does not see, because it lives in a mount namespace of its own. *tcp*: it listens on a port of loopback, without any
    protection, instead of a socket file.
    """
    program, runsc = require_tool("dockerd"), require_tool("runsc")
    runc = require_tool("runc")
    import docker

    folder = Path(tempfile.mkdtemp(prefix="agently-dockerd-"))
    runtimes = {
        "runsc": {"path": runsc, "runtimeArgs": ["--platform=ptrace", "--network=none"]}, "pretender": {"path": runc},
    }
    config = {
        "runtimes": runtimes,
        "bridge": "none", "iptables": False, "ip6tables": False,
    }
    data = folder / "data"
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "tmpfs", str(data)], check=True)
    (folder / "daemon.json").write_text(json.dumps(config))
    host = f"tcp://127.0.0.1:{_free_port()}" if tcp else f"unix://{folder}/docker.sock"
    command = [
        program, "--config-file", str(folder / "daemon.json"), "--data-root", str(folder / "data"), "--exec-root",
        str(folder / "exec"), "--pidfile", str(folder / "pid"), "-H", host,
    ]
    if hidden is not None:
        hide = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
        command = ["unshare", "--mount", "--propagation=private", "sh", "-c", hide, "sh", str(hidden), *command]
    client = docker.APIClient(base_url=host, timeout=60, version=API_VERSION)
    engine: Dockerd | None = None

    def begin() -> subprocess.Popen[bytes]:
        # It ended with the engine; where nobody collects the dead, an engine takes it for one that still runs.
        (folder / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait(client, process, folder)
        except BaseException:
            stop(process)
            raise
        return process

    try:
        engine = Dockerd(host, begin(), client, data, begin)
        with python_rootfs().open("rb") as tar:
            client.import_image_from_data(tar, repository=PYTHON_IMAGE.partition(":")[0], tag="1")
        client.import_image_from_data(empty_rootfs(), repository=EMPTY_IMAGE.partition(":")[0], tag="1")
        made = client.create_container(PYTHON_IMAGE, ["true"], name="agently-make-volume")["Id"]
        client.commit(made, repository=VOLUME_IMAGE.partition(":")[0], tag="1", changes=["VOLUME /data"])
        client.remove_container("agently-make-volume", force=True)
        yield engine
    finally:
        client.close()
        if engine is not None:
            stop(engine.process)
        end_keepers(folder)
        unmount(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _wait(client: Any, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            client.ping()
            return
        except Exception as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = (folder / "log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"dockerd did not start: {error}\n{tail}") from error
            time.sleep(0.1)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine and what it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)


def end_keepers(folder: Path) -> None:
    """End the keepers of containers (shims), which outlive an engine that was killed; their arguments name *folder*."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.Error):
                process.kill()


def unmount(folder: Path) -> None:
    """Let go of what an engine that has ended left mounted at and below *folder*."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    for point in sorted((line.split()[4] for line in lines), reverse=True):
        if point == str(folder) or point.startswith(str(folder) + "/"):
            subprocess.run(["umount", "-l", point], check=False, capture_output=True)
