"""What the host plants for the attempts, and what came of a run of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any

MEMORY_MIB, FILE_MIB, AREA_MIB, PROCESSES = 384, 48, 64, 64


class Planted:
    """Things of the host that no sandbox may reach, and what was seen to be reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reached: list[str] = []
        self._old_handler = signal.signal(signal.SIGUSR1, lambda number, frame: self.reached.append("signal"))
        self._sockets: list[socket.socket] = []
        secret = "canary-" + secrets.token_hex(8)
        canary = folder / "canary.txt"
        canary.write_text(secret)
        home = folder / "home"
        home.mkdir()
        # Root can plant a set-uid program of its own; for an ordinary user it belongs to that user, and proves less.
        self.programs = folder / "programs"
        self.programs.mkdir(mode=0o755)
        program = self.programs / "id"
        shutil.copyfile("/usr/bin/id", program)
        program.chmod(0o4755)
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
            "pid": os.getpid(), "shm_key": self._shm_key, "host_name": socket.gethostname(),
            "set_uid_program": str(program),
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
        signal.signal(signal.SIGUSR1, self._old_handler)
        self._libc.shmctl(self._shm, 0, None)
        for path in self._temporary:
            path.unlink()


class Outcome:
    """The lines of one run by the attempt's name, and what the host saw."""

    def __init__(self, text: str, facts: dict[str, Any], collected: dict[str, Any]) -> None:
        self.text = text
        self.lines = {line.split()[1]: line for line in text.splitlines() if len(line.split()) > 1}
        self.nonce_echoed = text.splitlines()[-1].split()[-1] == facts["nonce"] if text else False
        self.collected = collected
