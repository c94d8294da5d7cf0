"""Brings materialised files to where a sandbox sees them, when it does not share the workspace's folders with the host.

What is brought is read from the source root as it was materialised: the guest compares digests before it runs anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from agently_kernel.contract.base import sha256_digest
from agently_kernel.contract.errors import GrantError, SandboxError, os_reason
from agently_kernel.contract.workspace import MaterializationManifest, TaskWorkspaceAccessGrant

Root = Literal["source", "input", "build"]


class PutFile(Protocol):
    """``SandboxResource.put_file``."""

    async def __call__(self, root: Root, path: str, data: bytes, *, timeout: float = 30.0) -> None: ...


Delivery: TypeAlias = Callable[[PutFile, MaterializationManifest, TaskWorkspaceAccessGrant], Awaitable[None]]
"""Called before each execution. Raises SandboxError or GrantError; nothing has been executed then."""

_Stamp = tuple[int, int, int]
_PRUNE_EVERY = 64


def _files(manifest: MaterializationManifest, grant: TaskWorkspaceAccessGrant) -> Iterator[tuple[Root, str, Path]]:
    """Yield (root, path below it, host path) of all that an execution under *grant* must find."""
    roots = {root.name: root.host_path for root in grant.roots}
    source, given = roots.get("source"), roots.get("input")
    if source is None:
        raise GrantError(f"Grant {grant.grant_id} has no source folder on this host; nothing was executed.")
    for file in manifest.files:
        yield "source", f"{manifest.bundle_id}/{file.path}", Path(source) / manifest.bundle_id / file.path
    for path in sorted(Path(given).rglob("*")) if given is not None else ():
        relative = path.relative_to(given or "").as_posix()
        if not relative.startswith(".") and path.is_file() and not path.is_symlink():
            yield "input", relative, path


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


class ProtocolDelivery:
    """Sends files over the guest protocol, each once; for sandboxes on another machine or behind another kernel."""

    def __init__(self) -> None:
        self._sent: dict[tuple[Root, str], tuple[_Stamp, str]] = {}

    async def __call__(
        self, put_file: PutFile, manifest: MaterializationManifest, grant: TaskWorkspaceAccessGrant
    ) -> None:
        """Send what is new. Raises SandboxError when the guest does not take it or an input was replaced."""
        for root, relative, path in await asyncio.to_thread(lambda: list(_files(manifest, grant))):
            stamp = _stamp(path)
            known = self._sent.get((root, relative))
            if known is not None and (root != "input" or known[0] == stamp):
                continue
            data = await asyncio.to_thread(path.read_bytes)
            digest = sha256_digest(data)
            if known is None:
                await put_file(root, relative, data)
            elif known[1] != digest:  # else the same content in another copy, as when the folder around it is given
                raise SandboxError(
                    f"The input {relative!r} was granted again with other content, which this sandbox cannot take. "
                    "Run %agently restart, so that a new sandbox gets the new content."
                )
            self._sent[root, relative] = (stamp, digest)


class FolderDelivery:
    """Copies files to folders of the host that the sandbox may read and not write."""

    def __init__(self, folders: dict[Root, Path]) -> None:
        self._folders = folders
        self._copied: dict[Path, _Stamp] = {}
        self._bundles: dict[Path, Path] = {}  # copied bundle → the host's own

    async def __call__(
        self, put_file: PutFile, manifest: MaterializationManifest, grant: TaskWorkspaceAccessGrant
    ) -> None:
        """Copy what is new or changed. Raises SandboxError when there is no room."""
        try:
            await asyncio.to_thread(self._copy, list(_files(manifest, grant)))
        except OSError as error:
            raise SandboxError(
                f"The files of the cell could not be copied for the sandbox: {os_reason(error)}. Then run it again."
            ) from error

    def _prune(self) -> None:
        """Remove copies of bundles that the workspace has pruned."""
        for copy, own in list(self._bundles.items()):
            if not own.exists():
                shutil.rmtree(copy, ignore_errors=True)
                del self._bundles[copy]
                self._copied = {path: stamp for path, stamp in self._copied.items() if copy not in path.parents}

    def _copy(self, files: list[tuple[Root, str, Path]]) -> None:
        if len(self._bundles) % _PRUNE_EVERY == _PRUNE_EVERY - 1:
            self._prune()
        for root, relative, path in files:
            target = self._folders[root] / relative
            if root == "source":
                inner = relative.count("/")
                self._bundles[target.parents[inner - 1]] = path.parents[inner - 1]
            stamp = _stamp(path)
            if self._copied.get(target) == stamp:
                continue
            for folder in reversed(target.relative_to(self._folders[root]).parents[:-1]):
                (self._folders[root] / folder).mkdir(exist_ok=True)
                (self._folders[root] / folder).chmod(0o755)  # whatever the umask: another user reads it
            with contextlib.suppress(FileNotFoundError):
                target.unlink()
            shutil.copyfile(path, target)
            os.chmod(target, 0o444)
            self._copied[target] = stamp
