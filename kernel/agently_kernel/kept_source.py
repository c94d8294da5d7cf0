"""The folders of a sandbox, read after it has ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Literal

from agently_kernel.contract.errors import SandboxDied
from agently_kernel.contract.protocols import OutputSource
from agently_kernel.sandbox.resource import SandboxResource


class KeptSource:
    """The sandbox's folders, held open so that they can be read after everything in it has ended."""

    def __init__(self, source: OutputSource) -> None:
        self._folders: dict[str, int | None] = {
            "build": source.open_directory("build"), "output": source.open_directory("output")
        }

    @classmethod
    @contextlib.contextmanager
    def of(cls, resource: SandboxResource | None) -> Iterator[KeptSource | None]:
        """Hold the folders of *resource* open for a while; None when there is nothing to hold."""
        kept = cls(resource.output_source) if resource is not None else None
        try:
            yield kept
        finally:
            if kept is not None:
                for descriptor in kept._folders.values():
                    if descriptor is not None:
                        os.close(descriptor)

    @property
    def reachable(self) -> bool:
        """True when the folders can be read after the sandbox has ended."""
        return any(descriptor is not None for descriptor in self._folders.values())

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        """Return a new descriptor of the folder, or None (an OutputSource)."""
        held = self._folders[area]
        return None if held is None else os.dup(held)

    async def fetch_file(self, area: Literal["build", "output"], path: str, max_bytes: int) -> AsyncIterator[bytes]:
        """Refuse: nobody in the sandbox is left to send a file."""
        raise SandboxDied(f"{path} cannot be read: the sandbox has ended and its folders cannot be reached from here.")
        yield b""  # makes this an asynchronous generator, as the protocol wants

    async def list_files(self, area: Literal["build", "output"], max_files: int) -> list[tuple[str, int]]:
        """Return nothing: nobody in the sandbox is left to list files."""
        return []
