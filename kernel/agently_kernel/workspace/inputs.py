"""Files of the host that a sandbox may see: what may be granted at all, and private copies of what was granted."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from agently_kernel.contract.base import canonical_json, sha256_digest
from agently_kernel.contract.errors import WorkspaceError
from agently_kernel.contract.paths import normalise_relative_path
from agently_kernel.contract.workspace import GrantedInput
from agently_kernel.workspace.areas import remove_tree

PathClass = Literal["ordinary", "sensitive", "forbidden"]

MAX_SNAPSHOT_BYTES = 2 * 1024**3
MAX_SNAPSHOT_FILES = 10_000
MAX_SNAPSHOT_DEPTH = 32
MAX_LIVE_ENTRIES = 2_000_000
MAX_SPECIAL_FILES = 256
CHUNK = 1024**2
_FICLONE = 0x40049409
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

# Places that are the machine itself: nothing in them is a data file, and some of them give control of it.
_MACHINE = tuple(Path(p) for p in ("/proc", "/sys", "/dev", "/run", "/var/run", "/boot"))
_SYSTEM = tuple(Path(p) for p in ("/etc", "/root", "/var/lib", "/var/log", "/var/spool", "/usr/local/etc"))
_SECRET_NAMES = frozenset({
    ".ssh", ".gnupg", ".aws", ".azure", ".gcloud", ".config", ".kube", ".docker", ".local", ".mozilla", ".thunderbird",
    ".password-store", ".jupyter", ".ipython", ".vault-token", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".pypirc",
    ".npmrc", ".yarnrc.yml", ".git-credentials", ".gitconfig", ".env", ".envrc", ".htpasswd",
    ".bash_history", ".zsh_history",
    ".python_history", ".node_repl_history", ".cargo", ".terraform.d", ".databrickscfg", ".boto", ".s3cfg", ".kaggle",
    "keychains", "credentials", "credentials.json", "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml",
    "service_account.json", "token.json", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
})
_SECRET_SUFFIXES = (".pem", ".key", ".p12", ".pfx", ".kdbx", ".keystore", ".jks", ".ovpn")


def _within(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def absolute(path: Path | str) -> Path:
    """Return *path* absolute and without ``..``, its links not followed."""
    return Path(os.path.normpath(Path(path).absolute()))


def is_secret_name(name: str) -> bool:
    """True for a file or folder name that usually holds keys, passwords or tokens."""
    plain = name.casefold()
    return plain in _SECRET_NAMES or plain.startswith(".env.") or plain.endswith(_SECRET_SUFFIXES)


def classify(path: Path, *, home: Path | None = None, private: tuple[Path, ...] = ()) -> PathClass:
    """Say whether *path* may be granted.

    ``ordinary``: like any data file, through the usual gate. ``sensitive``: a home folder or what contains it, hidden
    entries of a home folder, system settings, names that usually hold secrets; only through a gate that says so.
    ``forbidden``: never (the root folder, kernel and device trees, and ``private``: the product's own areas). Links are
    resolved first, and the name that was given counts as well as where it leads. ``home`` defaults to the user's.
    """
    own_home = home if home is not None else Path.home()
    answers = [_classify_one(absolute(path), own_home, private)]
    try:
        answers.append(_classify_one(path.resolve(), own_home.resolve(), tuple(p.resolve() for p in private)))
    except (OSError, RuntimeError):
        return "forbidden"
    worst: tuple[PathClass, ...] = ("forbidden", "sensitive", "ordinary")
    return next(answer for answer in worst if answer in answers)


def _classify_one(path: Path, home: Path, private: tuple[Path, ...]) -> PathClass:
    if path == Path(path.anchor) or any(_within(path, place) for place in (*_MACHINE, *private)):
        return "forbidden"
    if _within(home, path) or path == Path("/home") or path.parent == Path("/home"):
        return "sensitive"
    if _within(path, home):
        if path.relative_to(home).parts[0].startswith("."):
            return "sensitive"
    elif any(_within(path, place) for place in _SYSTEM):
        return "sensitive"
    return "sensitive" if any(is_secret_name(part) for part in path.parts) else "ordinary"


def is_place_of(given: GrantedInput, name: str, path: Path) -> bool:
    """True when *path* is what *given* shows under *name*, which is its own or lies below it."""
    rest = name[len(given.name) :].strip("/")
    here = Path(given.host_path) / rest if rest else Path(given.host_path)
    return here == path or here.resolve() == path.resolve()


def holds(given: GrantedInput, name: str, path: Path) -> bool:
    """True when the folder *path*, called *name*, holds what was *given* under the same name."""
    there = path / given.name[len(name) :].strip("/")
    return there == Path(given.host_path) or there.resolve() == Path(given.host_path).resolve()


class InputRoot:
    """Owns one ``input/`` folder: private, read-only copies under notebook-relative names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def snapshot(self, host: Path, name: str, *, allow_secrets: bool) -> tuple[str, int]:
        """Copy a regular file or a folder of them to ``input/<name>``, replacing an older copy in one step.

        Returns digest and size in bytes. The digest of a folder is that of the list of (path, size, digest) in it.
        Raises WorkspaceError for links inside a folder, secrets without ``allow_secrets``, and what exceeds the
        bounds (2 GiB, 10 000 files, 32 levels, the room that is left); nothing is left behind then.
        """
        target = self.path / normalise_relative_path(name, what="input name")
        fresh = self.path / f".new-{secrets.token_hex(6)}"
        try:
            info = host.stat()
            if stat.S_ISDIR(info.st_mode):
                digest, size = self._copy_folder(host, fresh, allow_secrets)
            elif stat.S_ISREG(info.st_mode):
                self._check_room(info.st_size, host)
                digest, size = _copy_file(host.resolve(), fresh)
            else:
                raise WorkspaceError(f"{host} is no regular file or folder, so it cannot be given to a sandbox")
            self._place(fresh, target)
        except OSError as error:
            remove_tree(fresh)
            raise self._explain(error, host) from error
        except BaseException:
            remove_tree(fresh)
            raise
        return digest, size

    def measure(self, name: str) -> tuple[str, int]:
        """Return digest and size in bytes of the folder that was copied to ``input/<name>``, as it is now."""
        root, entries = self.path / name, list[tuple[str, int, str]]()
        for path, info in _walk_host(root):
            if stat.S_ISREG(info.st_mode):
                digest = hashlib.sha256()
                with path.open("rb") as file:
                    while data := file.read(CHUNK):
                        digest.update(data)
                entries.append((path.relative_to(root).as_posix(), info.st_size, "sha256:" + digest.hexdigest()))
        return sha256_digest(canonical_json(sorted(entries))), sum(entry[1] for entry in entries)

    def remove(self, name: str) -> None:
        """Remove the copy called *name*, and folders that held nothing else. Raises WorkspaceError."""
        target = self.path / normalise_relative_path(name, what="input name")
        aside = self.path / f".old-{secrets.token_hex(6)}"
        try:
            target.rename(aside)
            remove_tree(aside) if aside.is_dir() and not aside.is_symlink() else aside.unlink()
            for folder in target.relative_to(self.path).parents[:-1]:
                if any((self.path / folder).iterdir()):
                    break
                (self.path / folder).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            raise WorkspaceError(f"the copy of {name} could not be removed: {error.strerror or error}") from error

    def _place(self, fresh: Path, target: Path) -> None:
        for folder in reversed(target.relative_to(self.path).parents[:-1]):
            (self.path / folder).mkdir(mode=0o755, exist_ok=True)
            (self.path / folder).chmod(0o755)
        if target.is_dir() and not target.is_symlink():
            aside = self.path / f".old-{secrets.token_hex(6)}"
            target.rename(aside)
            fresh.rename(target)
            remove_tree(aside)
        elif fresh.is_dir():
            target.unlink(missing_ok=True)
            fresh.rename(target)
        else:
            fresh.replace(target)

    def _copy_folder(self, host: Path, fresh: Path, allow_secrets: bool) -> tuple[str, int]:
        entries: list[tuple[str, int, str]] = []
        total = 0
        fresh.mkdir(mode=0o755)
        fresh.chmod(0o755)
        root = host.resolve()
        for path, info in _walk_host(root):
            relative = path.relative_to(root)
            if not allow_secrets and is_secret_name(path.name):
                raise WorkspaceError(
                    f"{host} holds {relative}, which looks like a secret; grant the files you need one by one"
                )
            normalise_relative_path(relative.as_posix(), what="input file")
            if stat.S_ISDIR(info.st_mode):
                (fresh / relative).mkdir(mode=0o755)
                (fresh / relative).chmod(0o755)
                continue
            total += info.st_size
            if total > MAX_SNAPSHOT_BYTES or len(entries) >= MAX_SNAPSHOT_FILES:
                raise WorkspaceError(
                    f"{host} has more than {MAX_SNAPSHOT_FILES} files or {MAX_SNAPSHOT_BYTES} bytes, too much to copy; "
                    "grant it as a read-only mount (mode read_only) instead"
                )
            self._check_room(info.st_size, host)
            digest, size = _copy_file(path, fresh / relative)
            entries.append((relative.as_posix(), size, digest))
        return sha256_digest(canonical_json(sorted(entries))), sum(entry[1] for entry in entries)

    def _check_room(self, size: int, host: Path) -> None:
        if size > min(MAX_SNAPSHOT_BYTES, shutil.disk_usage(self.path).free // 2):
            raise WorkspaceError(
                f"{host} has {size} bytes, too much for a private copy in {self.path}; grant it as a read-only mount "
                "(mode read_only) instead"
            )

    def _explain(self, error: OSError, host: Path) -> WorkspaceError:
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.lexists(host):
            return WorkspaceError(f"{host} does not exist, so it cannot be given to a sandbox; check the name")
        return WorkspaceError(f"{host} could not be copied to {self.path}: {error.strerror or error}")


def special_files(root: str) -> tuple[str, ...]:
    """Return the sockets, FIFOs and devices below the folder *root*, as paths relative to it; none for a file.

    A mount that is read-only does not stop anybody from connecting to a socket or from writing to a FIFO in it. Links
    are not followed; folders that cannot be read are passed over. Raises WorkspaceError when there are too many, or
    too many entries to look at.
    """
    found: list[str] = []
    pending, seen = [""], 0
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(f"{root}/{folder}") as listing:
                entries = list(listing)
        except OSError:
            continue
        seen += len(entries)
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                pending.append(path)
            elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                found.append(path)
        if seen > MAX_LIVE_ENTRIES or len(found) > MAX_SPECIAL_FILES:
            raise WorkspaceError(
                f"{root} holds more than {MAX_LIVE_ENTRIES} entries, or {MAX_SPECIAL_FILES} sockets and the like, too "
                "many to keep a sandbox from the sockets among them; grant a smaller folder"
            )
    return tuple(found)


def _walk_host(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield folders before what they hold. Raises WorkspaceError for links, special files and great depth."""
    pending = [root]
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            path, info = Path(entry.path), entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(info.st_mode):
                raise WorkspaceError(f"{path} is a symbolic link; links are not copied. Grant the file it points to")
            if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
                raise WorkspaceError(f"{path} is neither a regular file nor a folder, so its folder is not granted")
            if len(path.relative_to(root).parts) > MAX_SNAPSHOT_DEPTH:
                raise WorkspaceError(f"{path} lies deeper than {MAX_SNAPSHOT_DEPTH} folders; grant a smaller folder")
            yield path, info
            if stat.S_ISDIR(info.st_mode):
                pending.append(path)


def _copy_file(host: Path, target: Path) -> tuple[str, int]:
    """Copy one regular file (sharing blocks where it can), mode 0444; return digest and size of the copy."""
    source = os.open(host, _READ)
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise WorkspaceError(f"{host} is not a regular file, so it cannot be given to a sandbox")
        copy = os.open(target, _NEW_FILE, 0o444)
        try:
            cloned = _clone(source, copy)
            digest, size = hashlib.sha256(), 0
            while data := os.read(copy if cloned else source, CHUNK):
                digest.update(data)
                size += len(data)
                if size > MAX_SNAPSHOT_BYTES:
                    raise WorkspaceError(f"{host} grew beyond {MAX_SNAPSHOT_BYTES} bytes while it was being copied")
                if not cloned:
                    view = memoryview(data)
                    while view:
                        view = view[os.write(copy, view) :]
            os.fchmod(copy, 0o444)
        finally:
            os.close(copy)
    finally:
        os.close(source)
    return "sha256:" + digest.hexdigest(), size


def _clone(source: int, copy: int) -> bool:
    """Share the blocks of *source* with *copy*; False where the two file systems cannot."""
    try:
        import fcntl

        fcntl.ioctl(copy, _FICLONE, source)
        return True
    except (ImportError, OSError):
        return False
