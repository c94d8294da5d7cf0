"""TaskWorkspace: what one kernel session owns on the host, and the only way executions get at it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from agently_kernel.contract.bundle import CodeExecutionBundle
from agently_kernel.contract.errors import GrantError, MaterializationError, WorkspaceError, os_reason
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.protocols import OutputSource
from agently_kernel.contract.workspace import (
    SANDBOX_PATHS,
    AccessMode,
    CollectionLimits,
    CollectionReport,
    GrantedInput,
    ManifestFile,
    MaterializationManifest,
    TaskWorkspaceAccessGrant,
    TaskWorkspaceAccessRequirement,
    WorkspaceRoot,
)
from agently_kernel.workspace.areas import (
    OWNER_FILE,
    current_owner,
    lock_folder,
    private_folder,
    product_data_dir,
    remove_tree,
    runtime_base,
)
from agently_kernel.workspace.builds import BuildCache
from agently_kernel.workspace.collect import Collector
from agently_kernel.workspace.given_inputs import GivenInputs
from agently_kernel.workspace.sources import DEFAULT_SOURCE_BYTES, SourceRoot
from agently_kernel.workspace.store import WorkspaceStore

DEFAULT_REQUIREMENT = TaskWorkspaceAccessRequirement()


class TaskWorkspace:
    """One per kernel session. Make it with :meth:`create`, end it with :meth:`close` (or use it as a context manager).

    The runtime area (``source/``, ``input/``, ``guest/``) goes at close; the store stays. Grants, materialisation and
    inputs may be used from any thread; ``collect`` belongs to an event loop.
    """

    def __init__(
        self,
        *,
        workspace_id: str,
        session_id: str,
        runtime_path: Path,
        store: WorkspaceStore,
        collection: CollectionLimits,
        notebook_dir: Path | None,
        disk_path: Path | None,
        source_bytes: int,
        locks: list[int],
    ) -> None:
        self.workspace_id = workspace_id
        self.session_id = session_id
        self.runtime_path = runtime_path
        self.source_path = runtime_path / "source"
        self.input_path = runtime_path / "input"
        self.notebook_dir = notebook_dir
        self.store = store
        self._disk_path = disk_path
        self._sources = SourceRoot(self.source_path, source_bytes)
        self.private_places = (runtime_path.parent, store.path.parent.parent)
        """Folders of this product on the host, which are never given to a sandbox."""
        self._given = GivenInputs(self.input_path, private=self.private_places, require_open=self._require_open)
        self._collector = Collector(store, collection)
        self.builds = BuildCache(runtime_path / "builds", shown=self.source_path)
        self._grants: dict[str, tuple[TaskWorkspaceAccessGrant, str | None]] = {}
        self._lock = threading.RLock()
        self._collecting = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._locks = locks
        self._closed = False
        self._roots = self._make_roots()

    @classmethod
    def create(
        cls,
        *,
        session_id: str,
        limits: ResourceLimits,
        collection: CollectionLimits,
        data_dir: Path | None = None,
        runtime_dir: Path | None = None,
        notebook_dir: Path | None = None,
        source_bytes: int = DEFAULT_SOURCE_BYTES,
    ) -> TaskWorkspace:
        """Make runtime area and store, owned by this process, and return the workspace.

        ``data_dir`` stands in for the Jupyter data folder, ``runtime_dir`` for the tmpfs that runtime areas lie on.
        ``source_bytes`` bounds the source root; the oldest unused bundles go when it is full. With
        ``limits.scratch == "disk"`` the ``build`` root is a folder on the disk of the data folder. Raises
        WorkspaceError; nothing is left behind then.
        """
        workspace_id = "ws-" + secrets.token_hex(8)
        runtime = private_folder(runtime_base(runtime_dir, data_dir) / workspace_id)
        product = product_data_dir(data_dir)
        disk = product / "scratch" / workspace_id if limits.scratch == "disk" else None
        locks: list[int] = []
        try:
            owner = current_owner(workspace_id, locked=_hold(runtime, locks))
            (runtime / OWNER_FILE).write_text(owner.model_dump_json(), "utf-8")
            for name in ("source", "guest", "input"):
                (runtime / name).mkdir(mode=0o755)
                (runtime / name).chmod(0o755)
            if disk is not None:
                private_folder(disk)
                record = owner.model_copy(update={"locked": _hold(disk, locks)})
                (disk / OWNER_FILE).write_text(record.model_dump_json(), "utf-8")
                (disk / "build").mkdir()
                (disk / "build").chmod(0o1777)
            private_folder(product)
            store = WorkspaceStore(product / "workspaces" / workspace_id)
            record = owner.model_copy(update={"locked": _hold(store.path, locks)})
            store.write_meta(
                **record.model_dump(), session_id=session_id, closed_at=None,
                notebook_dir=str(notebook_dir) if notebook_dir else None,
            )
        except BaseException as error:
            _release(locks)
            for left in (runtime, disk):
                if left is not None:
                    with contextlib.suppress(WorkspaceError):
                        remove_tree(left)
            if isinstance(error, OSError):
                raise WorkspaceError(
                    f"no workspace could be made in {runtime}: {os_reason(error)}"
                ) from error
            raise
        return cls(
            workspace_id=workspace_id, session_id=session_id, runtime_path=runtime, store=store, collection=collection,
            notebook_dir=notebook_dir, disk_path=disk, source_bytes=source_bytes, locks=locks,
        )

    def _make_roots(self) -> tuple[WorkspaceRoot, ...]:
        disk = self._disk_path / "build" if self._disk_path is not None else None
        return (
            WorkspaceRoot(name="source", sandbox_path=SANDBOX_PATHS["source"], access="read_only", backing="host",
                          host_path=str(self.source_path)),
            WorkspaceRoot(name="input", sandbox_path=SANDBOX_PATHS["input"], access="read_only", backing="host",
                          host_path=str(self.input_path)),
            WorkspaceRoot(name="build", sandbox_path=SANDBOX_PATHS["build"], access="read_write",
                          backing="host" if disk else "tmpfs", host_path=str(disk) if disk else None),
            WorkspaceRoot(name="output", sandbox_path=SANDBOX_PATHS["output"], access="read_write", backing="tmpfs"),
        )

    # -- grants

    @property
    def open_grants(self) -> tuple[TaskWorkspaceAccessGrant, ...]:
        """The grants that were issued and not closed yet, oldest first."""
        with self._lock:
            return tuple(grant for grant, _ in self._grants.values())

    def issue_grant(
        self, *, execution_id: str, requirement: TaskWorkspaceAccessRequirement = DEFAULT_REQUIREMENT
    ) -> TaskWorkspaceAccessGrant:
        """Return the right to use this workspace's roots, and the inputs that *requirement* names, for one execution.

        Raises GrantError for an input that was not granted here first, or whose mode is wider than the requirement's.
        """
        with self._lock:
            self._require_open()
            self._given.check(requirement)
            grant = TaskWorkspaceAccessGrant(
                grant_id="grant-" + secrets.token_hex(12),
                task_workspace_id=self.workspace_id,
                execution_id=execution_id,
                mode=requirement.mode,
                roots=self._roots,
                inputs=requirement.inputs,
                issued_at=time.time(),
            )
            self._grants[grant.grant_id] = (grant, None)
            return grant

    def close_grant(self, grant: TaskWorkspaceAccessGrant) -> None:
        """End a grant. Raises GrantError when it is not open here (closed before, or another workspace's)."""
        with self._lock:
            self._require_grant(grant)
            del self._grants[grant.grant_id]

    def _require_grant(self, grant: TaskWorkspaceAccessGrant) -> None:
        held = self._grants.get(grant.grant_id)
        if held is None or held[0] != grant:
            state = "was closed already" if grant.task_workspace_id == self.workspace_id else "is another workspace's"
            raise GrantError(f"the grant {grant.grant_id} {state}; issue a new one for this execution")

    def _require_open(self) -> None:
        if self._closed:
            raise WorkspaceError(f"the workspace {self.workspace_id} is closed; start a new session")

    # -- materialisation

    def materialize(self, bundle: CodeExecutionBundle, grant: TaskWorkspaceAccessGrant) -> MaterializationManifest:
        """Write the bundle to the read-only source root and return what was written, verified by digest.

        Raises GrantError (grant closed, foreign, or already used for another bundle) and MaterializationError.
        """
        with self._lock:
            self._require_open()
            self._require_grant(grant)
            used_for = self._grants[grant.grant_id][1]
            if used_for not in (None, bundle.bundle_id):
                raise GrantError(f"the grant {grant.grant_id} was used for {used_for} already; one bundle a grant")
            try:
                bundle.verify()
            except ValueError as error:
                raise MaterializationError(f"the bundle is not what its digest says: {error}") from error
            in_use = {used for _, used in self._grants.values() if used is not None}
            self._sources.write(bundle, in_use)
            self._grants[grant.grant_id] = (grant, bundle.bundle_id)
        folder = f"{SANDBOX_PATHS['source']}/{bundle.bundle_id}"
        return MaterializationManifest(
            grant_id=grant.grant_id,
            execution_id=grant.execution_id,
            task_workspace_id=self.workspace_id,
            bundle_id=bundle.bundle_id,
            bundle_digest=bundle.bundle_digest,
            source_dir=folder,
            entrypoint=f"{folder}/{bundle.entrypoint}",
            files=tuple(
                ManifestFile(
                    path=file.path, sandbox_path=f"{folder}/{file.path}", role=file.role, sha256=file.sha256,
                    size=len(file.content),
                )
                for file in bundle.files
            ),
            expected_outputs=bundle.expected_outputs,
        )

    # -- inputs

    @property
    def inputs(self) -> tuple[GrantedInput, ...]:
        """Everything that is given to this workspace now, by name."""
        return self._given.all

    def snapshot_input(self, host_path: Path | str, name: str, *, allow_sensitive: bool = False) -> GrantedInput:
        """Copy a host file or folder into the input area under *name*; what is there under that name is replaced.

        A file of a folder that was given before is renewed in that folder's copy, and the folder is returned.
        ``allow_sensitive``: a person was asked with words that say so. Raises WorkspaceError (see ``inputs.classify``
        and ``InputRoot.snapshot``) and ValueError for a bad name. Blocks while copying.
        """
        return self._given.snapshot(host_path, name, allow_sensitive=allow_sensitive)

    def live_input(
        self, host_path: Path | str, name: str, *, mode: AccessMode = "read_only", allow_sensitive: bool = False
    ) -> GrantedInput:
        """Grant a host file or folder as a live mount. Raises as :meth:`snapshot_input` does.

        Of a folder that was given before that folder is returned: mounted as it is, or its copy with the file renewed.
        """
        return self._given.live(host_path, name, mode=mode, allow_sensitive=allow_sensitive)

    def covering(self, host_path: Path | str, name: str) -> GrantedInput | None:
        """Return the live input that shows *host_path* under *name* already, itself or a folder around it, or None."""
        return self._given.covering(host_path, name)

    def withdraw_input(self, name: str) -> None:
        """Take back what was granted under *name*: a copy is removed, a mount goes with the sandbox that has it.

        Executions that begin from now on do not get it. Nothing happens when nothing was granted under that name.
        Raises WorkspaceError when the copy cannot be removed.
        """
        self._given.withdraw(name)

    # -- collection

    async def collect(
        self, manifest: MaterializationManifest, source: OutputSource, *, also_undeclared: bool = True
    ) -> CollectionReport:
        """Copy outputs of an execution into the store.

        Declared outputs are always read again. Of what else lies under ``output/`` only new and changed files are
        copied and reported, and each refusal once. Raises GrantError and WorkspaceError (the store cannot take a file).
        """
        with self._lock:
            self._require_open()
            if manifest.task_workspace_id != self.workspace_id or manifest.grant_id not in self._grants:
                raise GrantError(f"the outputs of {manifest.bundle_id} cannot be collected: its grant is not open here")
        return await self._collect(source, manifest.expected_outputs, also_undeclared=also_undeclared, everything=False)

    async def collect_scratch(self, source: OutputSource) -> CollectionReport:
        """Copy what the guest leaves behind: all of ``output/`` again, then its working directory.

        For the end of a sandbox. The working directory is bounded (64 MiB, 1000 files; no caches, no hidden top-level
        names, and what is no regular file is passed over). Raises WorkspaceError.
        """
        self._require_open()
        report = await self._collect(source, (), also_undeclared=True, everything=True)
        directory = source.open_directory("build")
        if directory is None:
            scratch = await self._collector.fetch_scratch(source)
        else:
            scratch = await self._in_thread(lambda stop: self._collector.collect_scratch(directory, stop), directory)
        return CollectionReport(outputs=report.outputs + scratch.outputs, refused=report.refused + scratch.refused)

    async def _collect(
        self, source: OutputSource, declared: tuple[str, ...], *, also_undeclared: bool, everything: bool
    ) -> CollectionReport:
        directory = source.open_directory("output")
        if directory is None:
            return await self._collector.fetch_output(
                source, declared, also_undeclared=also_undeclared, everything=everything
            )
        if not declared and not everything and self._collecting.acquire(blocking=False):
            try:
                unchanged = not also_undeclared or self._collector.unchanged(directory)
            finally:
                self._collecting.release()
            if unchanged:
                os.close(directory)
                return CollectionReport()
        return await self._in_thread(
            lambda stop: self._collector.collect_output(
                directory, declared, also_undeclared=also_undeclared, everything=everything, stop=stop
            ),
            directory,
        )

    async def _in_thread(self, work: Callable[[threading.Event], CollectionReport], directory: int) -> CollectionReport:
        """Run *work* in the workspace's thread, which closes *directory*; cancelling stops it at the next chunk."""
        stop = threading.Event()

        def guarded() -> CollectionReport:
            try:
                with self._collecting:
                    return work(stop)
            finally:
                os.close(directory)

        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agently-collect")
        future = asyncio.get_running_loop().run_in_executor(self._executor, guarded)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({future})
            raise

    # -- end

    def close(self) -> None:
        """Remove the runtime area (and disk scratch); the store stays. Idempotent.

        Raises WorkspaceError naming what could not be removed; calling again tries again.
        """
        with self._lock:
            self._closed = True
        with self._given.copying, self._lock:  # a copy that still runs ends first
            self._grants.clear()
            if self._executor is not None:
                self._executor.shutdown(wait=True, cancel_futures=False)
                self._executor = None
            failures = []
            for folder in (self.runtime_path, self._disk_path):
                if folder is not None:
                    try:
                        remove_tree(folder)
                    except WorkspaceError as error:
                        failures.append(str(error))
            if self._locks:
                for last in (self.store.write_off, lambda: self.store.write_meta(closed_at=time.time())):
                    try:
                        last()
                    except WorkspaceError as error:
                        failures.append(str(error))
                _release(self._locks)
            if failures:
                raise WorkspaceError(f"the workspace {self.workspace_id} is closed, but: {'; '.join(failures)}")

    def __enter__(self) -> TaskWorkspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _hold(folder: Path, locks: list[int]) -> bool:
    """Hold the owner's lock on *folder* for life; False where its file system has no locks, and the pid must tell."""
    with contextlib.suppress(OSError, ImportError):
        descriptor = lock_folder(folder, exclusive=False)
        if descriptor is not None:
            locks.append(descriptor)
            return True
    return False


def _release(locks: list[int]) -> None:
    while locks:
        os.close(locks.pop())
