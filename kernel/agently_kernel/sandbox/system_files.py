"""The small ``/etc`` that a Linux sandbox shows: made once per workspace and user id, then only read."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

HOSTNAME = "sandbox"
BOUND_FOLDERS = ("alternatives", "fonts")
"""Folders of the host's /etc that hold links into /usr and are shown as they are, where they exist."""

_COPIED = (
    "ld.so.cache", "ld.so.conf", "mime.types", "localtime", "timezone", "os-release", "protocols", "services",
    "ssl/openssl.cnf", "ssl/certs/ca-certificates.crt", "ssl/cert.pem", "pki/tls/certs/ca-bundle.crt", "nanorc",
)
_CERTIFICATES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
)
_MAX_COPY = 4 * 1024 * 1024


def write_system_files(folder: Path, *, uid: int, gid: int) -> Path:
    """Make *folder* (unless it is there, then it is complete) with what programs look up in /etc, and return it.

    Nothing in it names the host: no users, no host name, no machine id, no resolver. Raises OSError.
    """
    if folder.exists():
        return folder
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        _fill(work, uid, gid)
        work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return folder


def _fill(folder: Path, uid: int, gid: int) -> None:
    texts = {
        "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:{uid}:{gid}::/tmp/home:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
        "group": f"root:x:0:\nsandbox:x:{gid}:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
        "hostname": f"{HOSTNAME}\n",
        "resolv.conf": "",
        "shells": "/bin/sh\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="ascii")
    for name in _COPIED:
        source = Path("/etc") / name
        try:
            if source.is_file() and source.stat().st_size <= _MAX_COPY:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / name)
        except OSError:
            continue  # not readable for this user: programs inside do without, as they do where it is missing
    for name in bound_folders():
        (folder / name).mkdir(exist_ok=True)  # where the host's folder is mounted
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the umask: another user reads it


def certificate_variables() -> dict[str, str]:
    """Return those of the user's variables for certificate authorities that name a file which sandboxes show too."""
    shown = {f"/etc/{name}" for name in _COPIED}
    return {name: os.environ[name] for name in _CERTIFICATES if os.environ.get(name) in shown}


def bound_folders() -> tuple[str, ...]:
    """Return those of BOUND_FOLDERS that this host has."""
    return tuple(name for name in BOUND_FOLDERS if (Path("/etc") / name).is_dir())
