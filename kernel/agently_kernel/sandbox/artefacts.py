"""The program that a plan builds: brought from the store of the workspace when nothing it is made from has changed."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any

from agently_kernel.contract.base import canonical_json
from agently_kernel.contract.bundle import CodeExecutionBundle
from agently_kernel.contract.errors import SandboxError
from agently_kernel.contract.isolation import SandboxFacts
from agently_kernel.contract.protocols import BuildStore, OutputSource
from agently_kernel.contract.workspace import parse_workspace_uris
from agently_kernel.sandbox.session import GuestSession

BRING_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Artefact:
    """One file in the build area, which the build steps of a plan make and its run step starts.

    ``built`` holds the keys of what lies in this very sandbox already; ``shared``: it sees the source root itself.
    """

    key: str
    path: str
    store: BuildStore
    source: OutputSource
    built: set[str]
    shared: bool

    @classmethod
    def of(
        cls, bundle: CodeExecutionBundle, facts: SandboxFacts, store: BuildStore, source: OutputSource,
        built: set[str], *, shared: bool,
    ) -> Artefact | None:
        """Return the artefact of *bundle*, None when it builds nothing or runs something else."""
        run = bundle.run_step
        uris = parse_workspace_uris(run.argv[0]) if run is not None and bundle.build_steps else ()
        if len(uris) != 1 or uris[0][0] != "build" or not uris[0][1]:
            return None
        made_from = {
            "files": [[file.path, file.sha256] for file in bundle.files],
            "steps": [[list(step.argv), dict(step.env), step.cwd] for step in bundle.build_steps],
            "provider": facts.provider_id,
            "tools": {name: tool.version for name, tool in facts.toolchains.items()},
            "image": {name: str(value) for name, value in facts.mechanism.items() if name.startswith("image")},
        }
        key = hashlib.sha256(canonical_json(made_from)).hexdigest()
        return cls(key, uris[0][1], store, source, built, shared)

    async def bring(self, session: GuestSession) -> bool:
        """Put the program where it belongs and return True; False when it has to be built. Raises SandboxDied."""
        if self.key in self.built:
            return True
        # A copy inside takes a fraction of what sending some megabytes over the channel does.
        shown = self.store.show(self.key) if self.shared else None
        there = shown is not None and await self._ask(session, {"op": "copy", "source": shown, "path": self.path})
        if not there:
            data = self.store.get(self.key)
            message = {"op": "put", "root": "build", "path": self.path}
            there = data is not None and await self._ask(session, message, data)
        if there:
            self.built.add(self.key)
        return there

    @staticmethod
    async def _ask(session: GuestSession, message: dict[str, Any], data: bytes = b"") -> bool:
        try:
            header, _ = await session.request(message, data, timeout=BRING_SECONDS)
        except asyncio.TimeoutError:
            return False
        return bool(header["ok"])

    async def take(self) -> None:
        """Keep the program, which was just built and has not run yet."""
        self.built.add(self.key)
        data = bytearray()
        try:
            async for piece in self.source.fetch_file("build", self.path, self.store.max_bytes):
                data += piece
        except SandboxError:
            return  # too large, or not a plain file: it is built again in the next sandbox
        self.store.put(self.key, bytes(data))

    def forget(self) -> None:
        """Take it that the program does not lie in this sandbox."""
        self.built.discard(self.key)
