"""The inputs that were given to one workspace, by the names that they have inside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from agently_kernel.contract.errors import GrantError, WorkspaceError
from agently_kernel.contract.paths import normalise_relative_path
from agently_kernel.contract.workspace import AccessMode, GrantedInput, TaskWorkspaceAccessRequirement
from agently_kernel.workspace.inputs import InputRoot, absolute, classify, holds, is_place_of

_MODES: tuple[AccessMode, ...] = ("snapshot", "read_only", "read_write")


class GivenInputs:
    """Which files and folders of the host a workspace gives, and where their copies lie. Usable from any thread.

    *root*: the folder of the copies. *private*: places of this product, which are never given. *require_open* raises
    WorkspaceError once the workspace is closed.
    """

    def __init__(self, root: Path, *, private: tuple[Path, ...], require_open: Callable[[], None]) -> None:
        self._root = InputRoot(root)
        self._private = private
        self._require_open = require_open
        self._given: dict[str, GrantedInput] = {}
        self._replaced: list[GrantedInput] = []  # mounts that sandboxes which were opened with them still have
        self._lock = threading.Lock()
        self.copying = threading.Lock()
        """Held while the folder of the copies changes. A lock of its own: a long copy must not hold up a cell."""

    @property
    def all(self) -> tuple[GrantedInput, ...]:
        """Everything that is given now, by name."""
        with self._lock:
            return tuple(self._given[name] for name in sorted(self._given))

    def check(self, requirement: TaskWorkspaceAccessRequirement) -> None:
        """Raise GrantError for an input of *requirement* that was not given here, or in a wider mode than it asks."""
        with self._lock:
            for item in requirement.inputs:
                if self._given.get(item.name) != item and item not in self._replaced:
                    raise GrantError(f"the input {item.name!r} was not granted in this workspace; grant it first")
                if _MODES.index(item.mode) > _MODES.index(requirement.mode):
                    raise GrantError(
                        f"the input {item.name!r} is granted as {item.mode}, but this execution asks for access mode "
                        f"{requirement.mode} only"
                    )

    def snapshot(self, host_path: Path | str, name: str, *, allow_sensitive: bool) -> GrantedInput:
        """Give a private copy, as ``TaskWorkspace.snapshot_input`` says."""
        path = absolute(host_path)
        with self.copying:
            name = self._usable(name, path, allow_sensitive)
            around = self._around(path, name)
            if around is not None and around.mode != "snapshot":
                return around
            digest, size = self._root.snapshot(path, name, allow_secrets=allow_sensitive)
            if around is not None:
                digest, size = self._root.measure(around.name)
                return self._enter(around.model_copy(update={"sha256": digest, "size": size}))
            return self._enter(GrantedInput(name=name, host_path=str(path), mode="snapshot", sha256=digest, size=size))

    def live(self, host_path: Path | str, name: str, *, mode: AccessMode, allow_sensitive: bool) -> GrantedInput:
        """Give a live mount, as ``TaskWorkspace.live_input`` says."""
        path = absolute(host_path)
        if mode == "snapshot" or self._around(path, name) is not None:
            return self.snapshot(path, name, allow_sensitive=allow_sensitive)
        with self.copying:
            name = self._usable(name, path, allow_sensitive)
            real = path.resolve()
            if not real.is_file() and not real.is_dir():
                raise WorkspaceError(f"{path} is no regular file or folder, so it cannot be given to a sandbox")
            return self._enter(GrantedInput(name=name, host_path=str(real), mode=mode))

    def covering(self, host_path: Path | str, name: str) -> GrantedInput | None:
        """Return the live input that shows *host_path* under *name*, as ``TaskWorkspace.covering`` says."""
        path, given = absolute(host_path), self._given.get(name)
        if given is not None and given.mode != "snapshot" and is_place_of(given, name, path):
            return given
        around = self._around(path, name)
        return around if around is not None and around.mode != "snapshot" else None

    def withdraw(self, name: str) -> None:
        """Take back what was given under *name*, as ``TaskWorkspace.withdraw_input`` says."""
        with self.copying:
            with self._lock:
                granted = self._given.get(name)
            if granted is None:
                return
            self._root.remove(name)  # also of a mount: it may have been given as a copy before
            with self._lock:
                del self._given[name]
                if granted.mode != "snapshot":
                    self._replaced.append(granted)

    def _around(self, path: Path, name: str) -> GrantedInput | None:
        """Return the folder that was given and that *path* lies in, under the name that it has there; None if none."""
        found = [item for item in self.all if name.startswith(item.name + "/")]
        return next((item for item in found if is_place_of(item, name, path)), None)

    def _enter(self, granted: GrantedInput) -> GrantedInput:
        """Enter *granted* in the book; single files of a folder that is given now are not kept beside it."""
        with self._lock:
            for name in [name for name in self._given if f"{name}/".startswith(granted.name + "/")]:
                replaced = self._given.pop(name)
                if replaced.mode != "snapshot" and replaced != granted:
                    self._replaced.append(replaced)
            self._given[granted.name] = granted
        return granted

    def _usable(self, name: str, path: Path, allow_sensitive: bool) -> str:
        """Return the name to be used for *path*, which may be given.

        Raises WorkspaceError for what is never given or not without asking, ValueError where what was given before
        stands in the way of the name.
        """
        self._require_open()
        name = normalise_relative_path(name, what="input name")
        for other in self.all:
            if other.name == name:
                continue
            if other.name.casefold() == name.casefold():
                raise ValueError(
                    f"the input name differs only in case from {other.name!r}, given before; give it another (--name)"
                )
            shorter, longer = sorted((name, other.name), key=len)
            if longer.casefold().startswith(shorter.casefold() + "/") and not (
                is_place_of(other, name, path) if other.name == shorter else holds(other, name, path)
            ):
                raise ValueError(
                    f"the input name and {other.name!r}, under which {other.host_path} was given before, cannot lie "
                    "one in the other; give it another (--name)"
                )
        kind = classify(path, private=self._private)
        if kind == "forbidden":
            raise WorkspaceError(f"{path} is part of the machine or of this product and is never given to a sandbox")
        if kind == "sensitive" and not allow_sensitive:
            raise WorkspaceError(
                f"{path} is, or contains, a home folder, system settings or something that looks like a secret; "
                "it is given to a sandbox only when you allow exactly this"
            )
        return name
