"""What the host plants for the attempts, and the one run of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "mechanism")]

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]

MEMORY_MIB, FILE_MIB, AREA_MIB, PROCESSES = 384, 48, 64, 64


class Planted:
    """Things of the host that no sandbox may reach, and what was seen to be reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reached: list[str] = []
        self.victim = subprocess.Popen(["sleep", "600"])
        self._sockets: list[socket.socket] = []
        secret = "canary-" + secrets.token_hex(8)
        canary = folder / "canary.txt"
        canary.write_text(secret)
        home = folder / "home"
        home.mkdir()
        temporary = [Path(place) / f"agently-planted-{os.getpid()}" for place in ("/tmp", "/dev/shm")]
        for path in temporary:
            path.write_text("planted")
        self._temporary = temporary
        libc = ctypes.CDLL(None, use_errno=True)
        self._shm_key = 0x41470000 | (os.getpid() & 0xFFFF)
        self._shm = libc.shmget(self._shm_key, 4096, 0o1666)
        self._libc = libc
        self.facts: dict[str, Any] = {
            "secret": secret, "canary": str(canary), "home": str(home), "temporary": [str(path) for path in temporary],
            "pid": self.victim.pid, "shm_key": self._shm_key, "host_name": socket.gethostname(),
            "set_uid_program": "/usr/bin/chfn" if not shutil.which("su") else "/bin/su",
            "disk": [254, 0], "nonce": secrets.token_hex(8), "processes": PROCESSES, "memory_mib": MEMORY_MIB,
            "file_mib": FILE_MIB, "output_mib": AREA_MIB, "scratch_mib": AREA_MIB,
            "abstract": "planted-" + secrets.token_hex(8), "other_session": "/nowhere", "workspace": "/nowhere",
        }
        self.facts["tcp_port"] = self._listen("tcp", socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1]
        self._listen("abstract", socket.AF_UNIX, "\0" + self.facts["abstract"])
        path = str(folder / "engine.sock")
        self._listen("socket file", socket.AF_UNIX, path)
        os.chmod(path, 0o777)
        self.facts["sockets"] = [path, "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"]
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        self._sockets.append(udp)
        self.facts["udp_port"] = udp.getsockname()[1]
        threading.Thread(target=self._answer, args=(udp, secret.encode()), daemon=True).start()

    def _listen(self, name: str, family: int, address: Any) -> socket.socket:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind(address)
        listener.listen(8)
        self._sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener, name), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()
                self.reached.append(name)

    def _answer(self, udp: socket.socket, secret: bytes) -> None:
        with contextlib.suppress(OSError):
            while (sender := udp.recvfrom(100)[1]) is not None:  # None: the socket was shut down
                udp.sendto(secret, sender)
                self.reached.append("udp")

    def close(self) -> None:
        for item in self._sockets:
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()
        self.victim.kill()
        self.victim.wait()
        self._libc.shmctl(self._shm, 0, None)
        for path in self._temporary:
            path.unlink()


@pytest.fixture(scope="session")
def planted() -> Iterator[Planted]:
    folder = Path(tempfile.mkdtemp(prefix="agently-planted-"))
    folder.chmod(0o755)
    things = Planted(folder)
    try:
        yield things
    finally:
        things.close()
        shutil.rmtree(folder)


class Outcome:
    """The lines of one run by the attempt's name, and what the host saw."""

    def __init__(self, text: str, facts: dict[str, Any], collected: dict[str, Any]) -> None:
        self.text = text
        self.lines = {line.split()[1]: line for line in text.splitlines() if len(line.split()) > 1}
        self.nonce_echoed = text.splitlines()[-1].split()[-1] == facts["nonce"] if text else False
        self.collected = collected


@pytest.fixture(scope="session")
def outcome(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Run all attempts once in one real sandbox, while a second session is open beside it."""
    from bubblewrap_session import opened

    from agently_kernel.contract.isolation import ResourceLimits

    limits = ResourceLimits(
        memory_bytes=MEMORY_MIB << 20, processes=PROCESSES, file_size_bytes=FILE_MIB << 20, open_files=256,
        scratch_bytes=AREA_MIB << 20, output_bytes=AREA_MIB << 20,
    )
    store = tmp_path_factory.mktemp("store")

    async def run() -> Outcome:
        async with opened(store / "other") as other, opened(store / "own", limits=limits) as session:
            await other.run(f"open('/workspace/output/secret', 'w').write({planted.facts['secret']!r})")
            facts = {
                **planted.facts, "workspace": str(session.workspace.runtime_path),
                "other_session": f"/proc/{other.resource.sandbox.pid}/root/workspace/output/secret",  # type: ignore[attr-defined]
            }
            files = {
                "attempts.py": (Path(__file__).parent / "attempts.py").read_bytes(),
                "facts.json": json.dumps(facts).encode(),
            }
            result = await session.run_program(
                files, ("python3", "workspace://source/attempts.py", "workspace://source/facts.json"), timeout=90
            )
            text = result.stdout.text
            assert result.returncode == 0, (text, result.stderr.text, result.message)
            modes = {
                item.path: os.stat(item.stored_path).st_mode & 0o7777 for item in session.report.outputs
            }
            return Outcome(text, facts, modes)

    # The secret also lies in the environment of this process, which a sandbox must not be able to look at.
    os.environ["AGENTLY_TEST_SECRET"] = planted.facts["secret"]
    try:
        return asyncio.run(run())
    finally:
        del os.environ["AGENTLY_TEST_SECRET"]
