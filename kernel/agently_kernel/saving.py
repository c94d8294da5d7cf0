"""Copies of collected files beside the notebook: under names of their own, and over no file of the user's unasked."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agently_kernel.contract.errors import WorkspaceError
from agently_kernel.contract.paths import OUTPUT_ROOT
from agently_kernel.contract.words import counted
from agently_kernel.policy import PolicyApproval
from agently_kernel.session_sandbox import SessionSandbox

MOST_REMEMBERED = 20_000
_CHUNK = 1024**2
Files = Sequence[tuple[str, Path]]
"""Collected files: the name relative to the guest's working directory, and where our copy of it lies."""


class SavingHome(Protocol):
    """What is used of a kernel, or of a session in another one."""

    session_id: str

    @property
    def approval(self) -> PolicyApproval: ...
    @property
    def sandbox(self) -> SessionSandbox: ...


class SavedRecord:
    """Which collected file was saved where, and with what content, so that a rerun may replace its own work.

    Kept in *path*, for all sessions of the user; a record that cannot be read or written makes every file the user's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def ours(self, target: Path, name: str) -> bool:
        """Return whether *target* is as we saved it, from the collected file *name*."""
        known = self._read().get(str(target))
        return known is not None and known == f"{_digest(target)} {name}"

    def add(self, saved: Sequence[tuple[Path, str]]) -> None:
        """Remember what was *saved*: targets as they are now, and the collected files that they come from."""
        known = self._read()
        for target, name in saved:
            known.pop(str(target), None)
            known[str(target)] = f"{_digest(target)} {name}"
        kept = dict(list(known.items())[-MOST_REMEMBERED:])
        fresh = self._path.with_name(f".{self._path.name}-{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(kept), "utf-8")
            fresh.replace(self._path)


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What would be written: (collected file, our copy, target); ``replaces`` are targets that hold something else."""

    folder: Path
    files: tuple[tuple[str, Path, Path], ...]
    replaces: tuple[Path, ...]

    def shown(self, target: Path) -> str:
        """Return *target* as seen from the folder."""
        return target.relative_to(self.folder).as_posix()


def targets(folder: Path, files: Files) -> tuple[tuple[str, Path, Path], ...]:
    """Give every file a place of its own below *folder*: ``output/x`` lies at ``x``, unless another file needs that."""
    names = [name for name, _ in files]
    short = {name: name.removeprefix(f"{OUTPUT_ROOT}/") for name in names}
    for name in names:
        if short[name] != name and any(_clash(short[name], short[other]) for other in names if other != name):
            short = {key: key if key.startswith(f"{OUTPUT_ROOT}/") else value for key, value in short.items()}
            break
    return tuple((name, source, folder.joinpath(*short[name].split("/"))) for name, source in files)


def _clash(one: str, other: str) -> bool:
    """Return whether two names cannot both be files, on a disk that does not tell capitals apart either."""
    one, other = one.casefold(), other.casefold()
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def plan_saving(folder: Path, files: Files, record: SavedRecord) -> SavePlan:
    """Return what saving *files* in *folder* would do. Raises WorkspaceError where a link or a folder is in the way."""
    placed = targets(folder, files)
    replaces = []
    for name, source, target in placed:
        for place in (target, *(p for p in target.parents if p == folder or folder in p.parents)):
            if place.is_symlink():
                raise WorkspaceError(f"{place} is a link, and links are not followed; nothing was saved")
        if target.is_dir():
            raise WorkspaceError(f"{target} is a folder; nothing was saved. Save in another folder")
        if target.exists() and not record.ours(target, name) and _digest(target) != _digest(source):
            replaces.append(target)
    return SavePlan(folder, placed, tuple(replaces))


def write(plan: SavePlan, record: SavedRecord, *, replace: bool) -> tuple[Path, ...]:
    """Write the files of *plan*, its ``replaces`` only with *replace*; return what was written.

    Raises WorkspaceError.
    """
    done: list[tuple[Path, str]] = []
    try:
        for name, source, target in plan.files:
            kept = target in plan.replaces
            if kept and not replace:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(source, target, over=kept or record.ours(target, name))
            done.append((target, name))
    except OSError as error:
        raise WorkspaceError(f"{target} could not be written: {error.strerror or error}") from error
    finally:
        record.add(done)
    return tuple(target for target, _ in done)


def _write(source: Path, target: Path, *, over: bool) -> None:
    """Copy to a new file and put that in place, in one step; over another file only when *over*. Raises OSError."""
    fresh = target.with_name(f".{secrets.token_hex(8)}.saving")
    try:
        with source.open("rb") as reader, fresh.open("xb") as writer:
            while data := reader.read(_CHUNK):
                writer.write(data)
        fresh.chmod(0o644)
        if over:
            fresh.replace(target)
            return
        try:
            os.link(fresh, target)  # fails where something is, which a rename would not
        except FileExistsError:
            if _digest(target) != _digest(source):
                raise
        except OSError as error:  # a file system without links
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK) or target.exists():
                raise
            fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    """Return the digest of a file's content, "" when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while data := file.read(_CHUNK):
                digest.update(data)
    except OSError:
        return ""
    return digest.hexdigest()


def record_of(home: SavingHome) -> SavedRecord:
    """Return the record of what was saved, which lies beside the workspaces of all sessions."""
    return SavedRecord(home.sandbox.workspace.store.path.parent.parent / "saved.json")


async def save(home: SavingHome, folder: Path, files: Files, *, cell: str = "") -> tuple[Path, ...]:
    """Save *files* below *folder* after asking, and return where they lie, in the order of *files*.

    Files of the user that would be replaced are all named in the question, which is asked every time. Raises
    ApprovalDenied, WorkspaceError; nothing was written then.
    """
    record = record_of(home)
    plan = await asyncio.to_thread(plan_saving, folder, files, record)
    facts: dict[str, str | int] = {"number of files": len(files)}
    if len(files) == 1:
        facts = {"size in bytes": await asyncio.to_thread(lambda: files[0][1].stat().st_size)}
    else:
        facts["files"] = ", ".join(plan.shown(target) for _, _, target in plan.files)[:180]
    where = str(plan.files[0][2] if len(files) == 1 else folder)
    if plan.replaces:
        where = ", ".join(str(target) for target in plan.replaces)
        if len(where) > 4000:
            raise WorkspaceError(
                f"{counted(len(plan.replaces), 'file')} of yours would be replaced in {folder}, too many to be asked "
                "about; save in another folder"
            )
    try:
        await home.approval.gate(
            "replace_file" if plan.replaces else "save_output", where, policy=home.sandbox.policy,
            session_id=home.session_id, cell_id=cell, facts=facts,
        )
    except ValueError as error:
        raise WorkspaceError(f"{folder}: {error}; save in another folder") from error
    await asyncio.to_thread(write, plan, record, replace=True)
    return tuple(target for _, _, target in plan.files)


def save_as_configured(home: SavingHome, folder: str, files: Files) -> str:
    """Save *files* in the folder that the configuration names, and none over a file of the user's.

    Returns a sentence about what was not saved, "" when all was.
    """
    try:
        record = record_of(home)
        plan = plan_saving(Path.cwd() / folder, files, record)
        write(plan, record, replace=False)
    except WorkspaceError as error:
        return f"Outputs could not be saved in {folder}: {error}. They are kept in the workspace."
    if not plan.replaces:
        return ""
    names = ", ".join(f"{folder}/{plan.shown(target)}" for target in plan.replaces)
    return (
        f"Not saved, because another file has that name: {names}. The new ones are kept in the workspace; to replace "
        f"what is there: %agently outputs --save {folder}"
    )
