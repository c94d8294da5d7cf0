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

    def account(self, hidden: int) -> str:
        """Say in a sentence where the first *hidden* bytes of the text are, and what of them could not be kept."""
        if self._writer is None:
            return f"They could not be kept: {self._problem}."
        self._writer.flush()
        kept, path = self._writer.written, self._writer.path
        if kept >= hidden:
            return f"They are in {path}."
        where = f"The first {counted(kept, 'byte')} of them are in {path}; the rest" if kept else "They"
        return f"{where} could not be kept ({self._writer.reason})."


def open_spill_log(store: WorkspaceStore, cell: str) -> StoreLog:
    """Open the log of *cell* in *store*; one that cannot be opened swallows what it is given, and says so."""
    try:
        return StoreLog(store.log_writer(cell))
    except AgentlyKernelError as error:
        return StoreLog(None, str(error).rstrip("."))
