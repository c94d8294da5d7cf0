"""TaskWorkspace terms: access requirement, grant, roots, materialization manifest, collected outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from agently_kernel.contract.base import MAX_BYTES, Frozen
from agently_kernel.contract.paths import normalise_relative_path

AccessMode = Literal["snapshot", "read_only", "read_write"]
RootName = Literal["source", "input", "build", "output"]

SANDBOX_ROOT = "/workspace"
SANDBOX_PATHS: dict[str, str] = {
    "source": "/workspace/src",
    "input": "/workspace/input",
    "build": "/workspace/build",
    "scratch": "/workspace/build",
    "output": "/workspace/output",
}
"""Where each root appears inside every sandbox. The guest's working directory is ``build``; ``build/output`` is a
symlink to ``output`` so that code can write ``output/x.csv`` from where it stands."""

WORKSPACE_URI = "workspace://"


def parse_workspace_uris(text: str) -> tuple[tuple[str, str], ...]:
    """Split ``workspace://root/relative/path`` into (root, path), the path may be empty; () for any other text.

    Several URIs joined by ``:`` make a search path. Raises ValueError for an unknown root or a path that leaves it.
    """
    if not text.startswith(WORKSPACE_URI):
        return ()
    found = []
    for part in text[len(WORKSPACE_URI) :].split(":" + WORKSPACE_URI):
        root, _, path = part.partition("/")
        if root not in SANDBOX_PATHS:
            raise ValueError(f"{text!r} names no root of a workspace; the roots are {', '.join(SANDBOX_PATHS)}")
        found.append((root, normalise_relative_path(path, what="workspace path") if path else ""))
    return tuple(found)


def resolve_workspace_uri(text: str, roots: Mapping[str, str]) -> str:
    """Return an argv entry or env value with a leading ``workspace://`` translated; other text comes back as it is.

    ``roots`` maps root names to paths where the step runs, usually ``{**SANDBOX_PATHS, "source":
    manifest.source_dir}``, for ``source`` means the bundle's own folder. Raises ValueError as
    :func:`parse_workspace_uris` does.
    """
    found = parse_workspace_uris(text)
    return ":".join(f"{roots[root]}/{path}" if path else roots[root] for root, path in found) if found else text


class GrantedInput(Frozen):
    """A host file or folder that the user granted. ``name`` is its notebook-relative name inside the sandbox.

    ``snapshot``: a private copy (digest recorded). ``read_only``: a live read-only mount of the host path.
    """

    name: str
    host_path: str
    mode: AccessMode = "snapshot"
    sha256: str | None = None
    size: int | None = None

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return normalise_relative_path(value, what="input name")


class WorkspaceRoot(Frozen):
    """One area of the workspace as a sandbox sees it.

    ``host_path`` is None for areas that exist only as size-limited tmpfs of the sandbox (``backing='tmpfs'``); with
    ``backing='host'`` a provider binds exactly this path at ``sandbox_path``, read-only unless ``access`` says so.
    """

    name: RootName
    sandbox_path: str
    access: Literal["read_only", "read_write"]
    backing: Literal["host", "tmpfs"]
    host_path: str | None = None


class TaskWorkspaceAccessRequirement(Frozen):
    """What an execution needs of the workspace."""

    mode: AccessMode = "snapshot"
    inputs: tuple[GrantedInput, ...] = ()


class TaskWorkspaceAccessGrant(Frozen):
    """The right to use exactly these roots for one execution; closed exactly once by the TaskWorkspace.

    Providers derive every mount from ``roots`` and ``inputs`` and from nothing else.
    """

    grant_id: str
    task_workspace_id: str
    execution_id: str
    mode: AccessMode
    roots: tuple[WorkspaceRoot, ...]
    inputs: tuple[GrantedInput, ...] = ()
    issued_at: float

    def root(self, name: RootName) -> WorkspaceRoot:
        """Return the root called *name*. Raises KeyError when the grant does not cover it."""
        for root in self.roots:
            if root.name == name:
                return root
        raise KeyError(name)

    def mounts_key(self) -> tuple[object, ...]:
        """Return what two grants must share for one sandbox to serve both: roots and live (read_only) inputs."""
        live = tuple(sorted((i.name, i.host_path) for i in self.inputs if i.mode != "snapshot"))
        return (self.task_workspace_id, self.roots, live)


class ManifestFile(Frozen):
    """One materialised file: its path in the sandbox, digest and size in bytes."""

    path: str
    sandbox_path: str
    role: Literal["source", "dependency", "input"]
    sha256: str
    size: int


class MaterializationManifest(Frozen):
    """What was written to the read-only source root for one bundle under one grant."""

    grant_id: str
    execution_id: str
    task_workspace_id: str
    bundle_id: str
    bundle_digest: str
    source_dir: str = Field(description="the bundle's folder inside the sandbox, e.g. /workspace/src/bundle-…")
    entrypoint: str = Field(description="the entrypoint's path inside the sandbox")
    files: tuple[ManifestFile, ...]
    expected_outputs: tuple[str, ...] = ()


class CollectionLimits(Frozen):
    """Caps on what is read back from a guest: bytes per file, bytes in all, number of files."""

    max_file_bytes: int = Field(
        default=256 * 1024**2, ge=1, le=MAX_BYTES, examples=["1G"], description="one file; a larger one is not copied"
    )
    max_total_bytes: int = Field(
        default=1024**3, ge=1, le=MAX_BYTES, examples=["4G"], description="all files of one collection together"
    )
    max_files: int = Field(default=128, ge=1, le=100_000, examples=[1000], description="files of one collection")


class CollectedOutput(Frozen):
    """A file copied out of a sandbox into the host's own store; digest and size are those of the copy."""

    path: str
    sha256: str
    size: int
    stored_path: str = Field(description="absolute path of the copy in the host's store")
    declared: bool = True


class RefusedOutput(Frozen):
    """A declared or found output that was not taken, with the reason in one word and in one sentence."""

    path: str
    reason: Literal[
        "missing", "symlink", "hard_link", "not_regular", "too_large", "total_exceeded", "too_many", "changed",
        "bad_name", "unreadable", "not_stored",
    ]
    message: str
    declared: bool = Field(default=False, description="the cell named it, so that the execution fails without it")


class CollectionReport(Frozen):
    """What one collection brought. ``refused`` of a declared output makes the execution fail; the rest is kept."""

    outputs: tuple[CollectedOutput, ...] = ()
    refused: tuple[RefusedOutput, ...] = ()
