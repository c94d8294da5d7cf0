"""What binds an execution to its sandbox: bundle, manifest and grant belong together, and paths are those inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agently_kernel.contract.bundle import CodeExecutionBundle
from agently_kernel.contract.errors import GrantError, MaterializationError
from agently_kernel.contract.workspace import SANDBOX_PATHS, MaterializationManifest, TaskWorkspaceAccessGrant


def verify_binding(
    bundle: CodeExecutionBundle,
    manifest: MaterializationManifest,
    grant: TaskWorkspaceAccessGrant,
    mounts: tuple[object, ...] | None,
) -> None:
    """Check that *manifest* is of *bundle* under *grant*, and that the grant has the *mounts* of the open sandbox.

    Raises MaterializationError or GrantError; nothing has been executed then.
    """
    if (manifest.bundle_digest, manifest.bundle_id) != (bundle.bundle_digest, bundle.bundle_id):
        raise MaterializationError(
            f"The manifest is of {manifest.bundle_id}, but {bundle.bundle_id} was to run; nothing was executed. "
            "Materialise the bundle under this grant first."
        )
    if manifest.grant_id != grant.grant_id or manifest.task_workspace_id != grant.task_workspace_id:
        raise GrantError(
            f"The bundle was materialised under grant {manifest.grant_id}, not under {grant.grant_id}; nothing was "
            "executed. Materialise it under the grant that it is to run with."
        )
    if mounts is not None and grant.mounts_key() != mounts:
        raise GrantError(
            f"Grant {grant.grant_id} has other roots or live inputs than this sandbox was opened with; nothing was "
            "executed. Release the sandbox, so that the next execution opens one with the new grant."
        )


def path_inside(path: str, paths: Mapping[str, str]) -> str:
    """Return a path of the standard layout where a sandbox with *paths* has it."""
    for name, standard in SANDBOX_PATHS.items():
        if path == standard or path.startswith(standard + "/"):
            return paths[name] + path[len(standard) :]
    return path


def execute_header(
    bundle: CodeExecutionBundle,
    manifest: MaterializationManifest,
    *,
    cell: str,
    paths: Mapping[str, str],
    allow_stdin: bool,
) -> dict[str, Any]:
    """Return the header of the ``execute`` frame: no source, only the entrypoint's path and digest, and options."""
    digests = {file.sandbox_path: file.sha256 for file in manifest.files}
    if manifest.entrypoint not in digests:
        raise MaterializationError(f"The manifest does not list its own entrypoint {manifest.entrypoint!r}.")
    options = {**bundle.options, "allow_stdin": bool(bundle.options.get("allow_stdin", True)) and allow_stdin}
    return {
        "op": "execute", "cell": cell, "path": path_inside(manifest.entrypoint, paths),
        "digest": digests[manifest.entrypoint], "options": options,
    }
