"""Where collected outputs come from: a directory descriptor into the sandbox, or files over the guest protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Literal

from agently_kernel.contract.errors import SandboxError
from agently_kernel.contract.protocols import Sandbox
from agently_kernel.guest import wire
from agently_kernel.sandbox.session import GuestSession

Area = Literal["build", "output"]

STEP_DEADLINE = 30.0
_REASONS = frozenset(
    ("missing", "symlink", "hard_link", "not_regular", "too_large", "total_exceeded", "too_many", "changed", "bad_name")
)


class KnownListing:
    """The last list of a sandbox's outputs, and whether the guest said at a cell's end that it is still the same.

    That word counts for one look, at the end of that cell: a guest that says it wrongly hides its own files from that
    look, as it could by leaving them out of the list.
    """

    def __init__(self) -> None:
        self.unchanged = False
        self._most = 0
        self._found: Sequence[tuple[str, int]] | None = None

    def take(self, max_files: int) -> Sequence[tuple[str, int]] | None:
        """Return the list when the guest's word makes asking needless, else None: the next :meth:`keep` is due."""
        found = self._found if self.unchanged and self._most == max_files else None
        self.unchanged = False
        if found is None:
            self._found = None  # until the answer is there, it is not known which list the guest means
        return found

    def keep(self, max_files: int, found: Sequence[tuple[str, int]]) -> None:
        """Remember the answer to a question."""
        self._most, self._found = max_files, found


class GuestOutputSource:
    """Implements ``ListingOutputSource`` for every sandbox."""

    def __init__(self, sandbox: Sandbox, session: GuestSession, known: KnownListing) -> None:
        self._sandbox = sandbox
        self._session = session
        self._known = known

    def open_directory(self, area: Area) -> int | None:
        """Return a new descriptor of the area (the caller closes it), or None; works after the sandbox was killed."""
        return self._sandbox.open_directory(area)

    async def fetch_file(self, area: Area, path: str, max_bytes: int) -> AsyncIterator[bytes]:
        """Stream one regular file. More than *max_bytes* is refused as too_large, whatever the guest promised.

        Raises SandboxError with a RefusedOutput reason as code (``unreadable`` when there is no answer), SandboxDied.
        """
        total = 0
        message = {"op": "fetch", "area": area, "path": path, "max_bytes": max_bytes}
        try:
            async with self._session.stream_request(message, timeout=STEP_DEADLINE) as following:
                while True:
                    header, data = await following()
                    if header["state"] == "refused":
                        reason = str(header.get("reason") or "")
                        code, _, words = reason.partition(":")
                        code = code.strip() if code.strip() in _REASONS else "unreadable"
                        raise SandboxError(f"{path!r} was not given out: {(words or reason)[:500]}", code=code)
                    total += len(data)
                    if total > max_bytes:
                        raise SandboxError(f"{path!r} is larger than {max_bytes} bytes", code="too_large")
                    if data:
                        yield data
                    if header["state"] == "end":
                        return
        except asyncio.TimeoutError:
            raise SandboxError(f"the sandbox did not send {path!r} in time", code="unreadable") from None

    async def list_files(self, area: Area, max_files: int) -> Sequence[tuple[str, int]]:
        """Return at most *max_files* regular files as (path in the area, size); both untrusted. Raises SandboxError."""
        known = self._known.take(max_files) if area == "output" else None
        if known is not None:
            return known
        try:
            _, payload = await self._session.request(
                {"op": "list", "area": area, "max_files": max_files}, timeout=STEP_DEADLINE
            )
            items = wire.loads(payload)
            found = [(item["path"], item["size"]) for item in items[:max_files]]
        except asyncio.TimeoutError:
            raise SandboxError("the sandbox did not list its files in time", code="unreadable") from None
        except (wire.WireError, TypeError, KeyError) as error:
            raise SandboxError(f"the sandbox's list of files is malformed: {error}", code="unreadable") from None
        if not all(isinstance(path, str) and isinstance(size, int) for path, size in found):
            raise SandboxError("the sandbox's list of files is malformed", code="unreadable")
        if area == "output":
            self._known.keep(max_files, found)
        return found
