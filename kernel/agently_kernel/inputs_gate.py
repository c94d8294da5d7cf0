"""The one way by which a file of the host gets to a sandbox: checked, asked for where due, then copied or mounted.

What a person names in a magic's line or command and lies beside the notebook (in its folder or below) is given without
another question, unless the configuration asks always. Everything else is asked for. Places that may hold secrets are
always asked for, in words that say so, and what belongs to the machine or to this product is never given.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agently_kernel.contract.approval import ApprovalOutcome, Gate
from agently_kernel.contract.bundle import MAX_BUNDLE_FILES, MAX_FILE_BYTES, CodeExecutionFile
from agently_kernel.contract.errors import ApprovalDenied, ConfigurationError, WorkspaceError
from agently_kernel.contract.paths import OUTPUT_ROOT, normalise_relative_path
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.contract.workspace import GrantedInput
from agently_kernel.policy import PolicyApproval
from agently_kernel.workspace.inputs import PathClass, absolute, classify, is_secret_name
from agently_kernel.workspace.task_workspace import TaskWorkspace

InputMode = Literal["snapshot", "read_only"]
Stamp = tuple[int, int, int, int]
_MISSING = re.compile(r"no such file|not found|does not exist|cannot open|can't open|unable to open|not exist", re.I)
_MODULE = re.compile(r"No module named '(\w{1,200})")
_NO_PLACE = re.compile(r"Read-only file system|EROFS|non-existent directory", re.I)
_ABSOLUTE = re.compile(r"(?:no such file[\w ]*|not found|not exist)[^\n]{0,20}?['\"](/[^'\"\n]{1,400})['\"]", re.I)
_INSIDE = ("/workspace", "/tmp", "/proc", "/sys", "/dev", "/usr", "/etc", "/bin", "/lib", "/var", "/run")  # noqa: S108
_WORD = re.compile(r"'([^'\n]{1,400})'|\"([^\"\n]{1,400})\"|([^\s'\",;()]{1,400})")
MOST_QUESTIONS = 8
"""How many files one cell may ask for."""


def how_to_grant(path: str) -> str:
    """Return the command that gives *path* to the sandbox."""
    return f"%agently grant {shlex.quote(path)}"


def not_given(path: str, reason: str = "") -> str:
    """Return what to say of a file that code missed and was not given; *reason*: why, when a question ended so."""
    because = f", because {reason.rstrip('.')}" if reason else ""
    how = how_to_grant(path)
    return f"{path} lies beside the notebook but was not given to the sandbox{because}. To give it: {how}"


def not_written(path: str) -> str:
    """Return what to say of code that adds to a file of the user, or changes it in place."""
    return (
        f"{path} beside the notebook was not opened: nothing of yours is written to from the sandbox, and what code "
        f"writes under this name is another file. To read yours: {how_to_grant(path)}; results belong in output/."
    )


def not_mounted(name: str) -> str:
    """Return what to say of code that misses something in a mount which its sandbox was opened without."""
    how = "run %agently restart (variables are lost)"
    return f"{name} was given as a live mount, which only a fresh sandbox shows: {how}."


def hidden_by(names: str) -> str:
    """Return what to say of inputs that cannot be seen under their names (*names* is untrusted)."""
    return (
        f"Not visible yet: a file that code made in the sandbox has the same name ({names}). Rename or remove that one "
        "there, or run %agently restart (variables are lost)."
    )


@dataclass(slots=True)
class InputGate:
    """Gives inputs to one workspace. ``folder`` is the notebook's folder, which relative names start from.

    ``gives``: an ordinary file beside the notebook that code opens is given without a question.
    """

    approval: PolicyApproval
    workspace: TaskWorkspace
    policy: ExecutionResourcePolicy
    session_id: str
    folder: Path
    changed: Callable[[], None] = lambda: None
    gives: bool = False
    _stamps: dict[tuple[str, str], Stamp] = field(default_factory=dict)
    _needed: set[tuple[str, str]] = field(default_factory=set)

    def locate(self, text: str) -> Path:
        """Return the absolute path that *text* names. Raises WorkspaceError when nothing is there."""
        path = absolute(self.folder / Path(text).expanduser())
        if not os.path.lexists(path):
            raise WorkspaceError(
                f"{text!r} does not exist ({path}), so it cannot be given to a sandbox; check the name"
            )
        return path

    def name_of(self, path: Path, name: str = "") -> str:
        """Return the name that *path* has inside: as seen from the notebook's folder, else its last part.

        Raises ConfigurationError for a name that cannot be used.
        """
        if not name:
            name = path.relative_to(self.folder).as_posix() if self._beside(path) else path.name
        try:
            name = normalise_relative_path(name, what="input name")
        except ValueError as error:
            raise ConfigurationError(f"{error}; give the input another name (--name)") from error
        if name.split("/")[0].casefold() == OUTPUT_ROOT:
            raise ConfigurationError(f"the input {name!r} would hide the output folder; give it another name (--name)")
        return name

    async def grant(
        self, text: str, *, name: str = "", mode: InputMode = "snapshot", asked_by_code: bool = False, cell: str = "",
        why: str = "",
    ) -> GrantedInput:
        """Give a file or folder to the workspace, after asking where that is due, and return what was granted.

        *asked_by_code*: the cell's program wants it, so a person is always asked. An unchanged file that was given
        under this name before is not copied again. Of a file in a folder that was given the folder is returned, whose
        copy then has the file as it is now. Raises ApprovalDenied, WorkspaceError, ConfigurationError.
        """
        path = self.locate(text)
        name = self.name_of(path, name)
        shown = self.workspace.covering(path, name)
        if shown is not None:
            return shown
        known = next((item for item in self.workspace.inputs if item.name == name and item.mode == mode), None)
        stamp = await asyncio.to_thread(_stamp, path)
        if known is not None and self._stamps.get((str(path), name)) == stamp:
            return known
        sensitive = await self._ask(path, asked_by_code=asked_by_code, cell=cell, why=why, name=name)
        try:
            granted = await asyncio.to_thread(
                lambda: self.workspace.live_input(path, name, mode=mode, allow_sensitive=sensitive)
            )
        except ValueError as error:
            raise WorkspaceError(f"{text!r} cannot be given as {name!r}: {error}") from error
        self._stamps[str(path), name] = stamp
        self.changed()
        return granted

    def may_say(self, path: str, *, cell: str) -> bool:
        """Return whether *path* (untrusted) is a file of ours that this cell was not asked or told about, and note it.

        At most eight a cell.
        """
        if not self.lies_beside(path) or (cell, path) in self._needed:
            return False
        self._needed = {*(item for item in self._needed if item[0] == cell), (cell, path)}
        return len(self._needed) <= MOST_QUESTIONS

    def mount_of(self, path: str) -> GrantedInput | None:
        """Return the live input that shows *path*, a name which lies beside the notebook, or None."""
        return self.workspace.covering(self.folder / path, path)

    async def take_back(self, name: str) -> None:
        """Take an input back, and remove its copy; it is asked for, and copied, anew. Raises WorkspaceError."""
        self._stamps = {key: stamp for key, stamp in self._stamps.items() if not f"{key[1]}/".startswith(f"{name}/")}
        self._needed.clear()
        await asyncio.to_thread(self.workspace.withdraw_input, name)

    async def needed(self, path: str, *, cell: str = "") -> GrantedInput | None:
        """Give what code in the sandbox misses under the name *path*, after asking; None when there is nothing.

        A cell's question about a name is asked once. Raises ApprovalDenied, WorkspaceError.
        """
        unasked = self.gives and self.lies_beside(path) and await asyncio.to_thread(self._open_to_code, path)
        if not unasked and not self.may_say(path, cell=cell):
            return None
        why = "The running cell opens it; it goes on as soon as you have answered."
        return await self.grant(path, asked_by_code=not unasked, cell=cell, why=why)

    async def refused(self, path: str, denied: ApprovalDenied) -> str:
        """Return what to say of a file that :meth:`needed` did not give, because a question about it ended so."""
        said = not_given(path, str(denied.details.get("reason") or ""))
        alone = denied.details.get("outcome") == ApprovalOutcome.NO_CHANNEL.value
        package = f"{path}/__init__.py"
        helps = await asyncio.to_thread(lambda: self._open_to_code(path) or self._open_to_code(package))
        if self.gives or not alone or not helps:
            return said
        return f'{said} in a cell before it, or set c.AgentlyKernel.notebook_files = "give" in your configuration.'

    def lies_beside(self, path: str) -> bool:
        """Return whether *path* (untrusted) names something beside the notebook of which no copy was given yet."""
        try:
            name = normalise_relative_path(path, what="path")
        except ValueError:
            return False
        return (
            name == path
            and name.split("/")[0].casefold() != OUTPUT_ROOT
            and os.path.lexists(self.folder / name)
            and all(item.name != name or item.mode != "snapshot" for item in self.workspace.inputs)
        )

    def hint(self, result: CodeExecutionResult, *, cell: str = "") -> str:
        """Return how to give what a cell seems to have missed, or where it may write, "" when nothing of that shows.

        For what opens files without Python's knowledge: libraries, commands, imports, absolute paths. All that is
        looked at is untrusted; what a cell was asked or told already is left out.
        """
        said = str((result.error or {}).get("evalue") or "")[:4000]
        streams = (result.stderr.text[-4000:], result.stdout.text[-4000:])
        lines = [line for text in streams for line in text.splitlines() if _MISSING.search(line)]
        if _MISSING.search(said):
            lines.insert(0, said)
        for line in lines[-20:]:
            for found in list(_WORD.finditer(line))[:50]:
                name = (found.group(1) or found.group(2) or found.group(3)).strip().rstrip(":").removeprefix("./")
                if (told := self._hint_for(name, cell)):
                    return told
        failed = result.status is not ExecutionStatus.SUCCESS
        for text in (said, streams[0]) if failed else ():
            for module in _MODULE.findall(text)[-3:]:
                for name in (f"{module}.py", module):
                    if (told := self._hint_for(name, cell, as_part=bool(result.steps))):
                        return told
        if not failed or (cell, "") in self._needed:
            return ""
        told = _where_to_write(said, streams[0]) or _machine_path(said)
        if told:
            self._needed.add((cell, ""))
        return told

    def _hint_for(self, name: str, cell: str, *, as_part: bool = False) -> str:
        """Return what to say of *name* (untrusted) when it is a file of ours that was not given, else "".

        *as_part*: the program would find it only among its own files.
        """
        inside = name.removeprefix(f"{self.folder}/") if name.startswith(f"{self.folder}/") else name
        if not self.lies_beside(inside) or self.mount_of(inside) is not None or not self.may_say(inside, cell=cell):
            return ""
        if as_part:
            part = f"{inside}={inside}" if (self.folder / inside).is_dir() else inside
            return (
                f"{inside} lies beside the notebook but is no part of this program. To make it one: "
                f"%%agently_exec --file {shlex.quote(part)}"
            )
        there = "" if inside == name else f" and then open it as {shlex.quote(inside)}, its name in the sandbox"
        return not_given(inside) + there

    async def read_files(self, text: str, *, name: str = "", cell: str = "") -> tuple[CodeExecutionFile, ...]:
        """Return a file, or all files of a folder, as parts of a program, after asking where that is due.

        Without *name* a file keeps its last part as its name, and a folder's files lie at the root of the program.
        Hidden entries of a folder are left out. Raises ApprovalDenied, WorkspaceError, ConfigurationError.
        """
        path = self.locate(text)
        why = "It becomes a part of the program."
        await self._ask(path, asked_by_code=False, cell=cell, why=why, name=name or path.name)
        return await asyncio.to_thread(_program_files, path, name)

    async def read_bytes(self, text: str, *, why: str, cell: str = "") -> bytes:
        """Return the bytes of one file (at most 16 MiB), after asking where that is due. Raises as *read_files*."""
        path = self.locate(text)
        await self._ask(path, asked_by_code=False, cell=cell, why=why, name=path.name)
        return await asyncio.to_thread(_read, path)

    def _beside(self, path: Path) -> bool:
        return path != self.folder and self.folder in path.parents

    def _look(self, path: Path) -> tuple[PathClass, Path, bool]:
        """Return what kind of place *path* is, where it leads, and whether it is given when a person has named it."""
        private = self.workspace.private_places
        kind = classify(path, private=private)
        if kind == "forbidden":  # a link to itself, for one, which leads nowhere
            return kind, path, False
        real = path.resolve()
        beside = (
            self._beside(path)
            and self.folder.resolve() in real.parents
            and classify(self.folder, private=private) == "ordinary"  # not all of HOME
        )
        return kind, real, kind == "ordinary" and beside and self.policy.approval_mode != "always"

    def _open_to_code(self, name: str) -> bool:
        """Return whether the file *name* is given without a question to code that opens it, where ``gives`` is set.

        A folder, a hidden file and what a link shows under another name are not.
        """
        _, real, named = self._look(self.folder / name)
        hidden = any(part.startswith(".") for part in Path(name).parts)
        return named and not hidden and real.is_file() and real == self.folder.resolve() / name

    async def _ask(self, path: Path, *, asked_by_code: bool, cell: str, why: str, name: str) -> bool:
        """Pass the gate that *path* needs; return whether a person allowed a sensitive place."""
        kind, real, named = await asyncio.to_thread(self._look, path)
        if kind == "forbidden":
            raise WorkspaceError(f"{path} is part of the machine or of this product and is never given to a sandbox")
        if named and not asked_by_code:
            return False
        gate: Gate = "sensitive_input" if kind == "sensitive" else "input"
        facts: dict[str, str | int] = dict(await asyncio.to_thread(_facts, path))
        if real != path:
            facts["leads to"] = str(real)[-200:]
        facts["name inside"] = name[-200:]
        await self.approval.gate(
            gate, str(path), policy=self.policy, facts=facts, why=why, session_id=self.session_id, cell_id=cell
        )
        return kind == "sensitive"


def _where_to_write(*texts: str) -> str:
    """Return where results belong when one of *texts* says that a place cannot be written to, else ""."""
    if not any(_NO_PLACE.search(text) for text in texts):
        return ""
    return (
        "The sandbox writes to its working folder, output/ and /tmp only. Write results to output/, such as "
        "output/result.csv: what lies there is kept."
    )


def _machine_path(text: str) -> str:
    """Return how a file is given that *text* says is missing under an absolute path of no place in the sandbox."""
    found = next((path for path in _ABSOLUTE.findall(text) if not path.startswith(_INSIDE)), "")
    if not found:
        return ""
    name = shlex.quote(found.rstrip("/").rpartition("/")[2])
    return (
        f"The sandbox sees no files of this machine but those it is given. To give this one: {how_to_grant(found)} "
        f"and then open it as {name}. Results belong in output/."
    )


def _stamp(path: Path) -> Stamp:
    """Return what changes when a file does; of a folder that of its newest entry."""
    try:
        status = path.stat()
        newest, size = status.st_mtime_ns, status.st_size
        if stat.S_ISDIR(status.st_mode):
            for number, (folder, _, files) in enumerate(os.walk(path)):
                infos = [os.lstat(Path(folder) / file) for file in files]
                newest = max([newest, os.lstat(folder).st_mtime_ns, *(info.st_mtime_ns for info in infos)])
                size += sum(info.st_size for info in infos)
                if number > MAX_BUNDLE_FILES:
                    break
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be read: {error.strerror or error}") from error
    return status.st_dev, status.st_ino, size, newest


def _facts(path: Path) -> dict[str, str | int]:
    try:
        status = path.stat()
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be read: {error.strerror or error}") from error
    if stat.S_ISDIR(status.st_mode):
        return {"kind": "folder with everything in it"}
    return {"kind": "file", "size in bytes": status.st_size}


def _read(path: Path) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise WorkspaceError(f"{path} is no regular file, so it cannot be given to a program")
            if status.st_size > MAX_FILE_BYTES:
                raise WorkspaceError(f"{path} has more than {MAX_FILE_BYTES} bytes; use --input for it instead")
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be read: {error.strerror or error}") from error


def _program_files(path: Path, base: str) -> tuple[CodeExecutionFile, ...]:
    if not path.is_dir():
        return (_program_file(path, base or path.name),)
    found = []
    for place in sorted(path.rglob("*")):
        relative = place.relative_to(path)
        if any(part.startswith(".") or part == "__pycache__" for part in relative.parts) or place.is_dir():
            continue
        if place.is_symlink() or is_secret_name(place.name):
            raise WorkspaceError(f"{place} is a link or looks like a secret; name the files of the program one by one")
        found.append(_program_file(place, f"{base}/{relative.as_posix()}" if base else relative.as_posix()))
        if len(found) > MAX_BUNDLE_FILES:
            raise WorkspaceError(f"{path} has more than {MAX_BUNDLE_FILES} files, too many for one program")
    return tuple(found)


def _program_file(path: Path, name: str) -> CodeExecutionFile:
    try:
        return CodeExecutionFile(path=name, content=_read(path))
    except ValueError as error:
        raise WorkspaceError(f"{path} cannot be a part of the program: {error}") from error
