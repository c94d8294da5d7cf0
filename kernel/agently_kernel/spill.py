"""The log of what a cell printed beyond what is shown: a file of the workspace's store, never seen by a guest."""

from __future__ import annotations

from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.contract.words import counted
from agently_kernel.workspace.store import LogWriter, WorkspaceStore


class StoreLog:
    """Text into a :class:`LogWriter`; a store that cannot take it loses the text, never the cell."""

    def __init__(self, writer: LogWriter | None, problem: str = "") -> None:
        self._writer = writer
        self._problem = problem

    def write(self, text: str) -> None:
        """Append *text* as UTF-8."""
        if self._writer is not None:
            self._writer.write(text.encode("utf-8", "replace"))

    def close(self) -> None:
        """Close the file; harmless when it is closed."""
        if self._writer is not None:
            self._writer.close()

    @property
    def account(self) -> str:
        """Say in a sentence where the text is, and whether all of it could be kept."""
        if self._writer is None:
            return f"They could not be kept: {self._problem}."
        self._writer.flush()
        lost, path = self._writer.dropped, self._writer.path
        if not lost:
            return f"They are in {path}."
        kept = f"The first {counted(self._writer.written, 'byte')} went to {path}; " if self._writer.written else ""
        return f"{kept}{counted(lost, 'byte')} could not be kept ({self._writer.reason})."


def open_spill_log(store: WorkspaceStore, cell: str) -> StoreLog:
    """Open the log of *cell* in *store*; one that cannot be opened swallows what it is given, and says so."""
    try:
        return StoreLog(store.log_writer(cell))
    except AgentlyKernelError as error:
        return StoreLog(None, str(error).rstrip("."))
