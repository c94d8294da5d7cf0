"""The log of what a cell printed beyond what is shown: a file of the workspace's store, never seen by a guest."""

from __future__ import annotations

from agently_kernel.contract.errors import AgentlyKernelError
from agently_kernel.workspace.store import LogWriter, WorkspaceStore


class StoreLog:
    """Text into a :class:`LogWriter`; a store that cannot take it loses the text, never the cell."""

    def __init__(self, writer: LogWriter | None) -> None:
        self._writer = writer

    def write(self, text: str) -> None:
        """Append *text* as UTF-8."""
        if self._writer is not None:
            self._writer.write(text.encode("utf-8", "replace"))

    def close(self) -> None:
        """Close the file; harmless when it is closed."""
        if self._writer is not None:
            self._writer.close()

    @property
    def label(self) -> str:
        """Say where the text is, and whether all of it fitted; empty when it could not be kept."""
        if self._writer is None:
            return ""
        lost = self._writer.dropped
        return f"{self._writer.path}" + (f", except for {lost:,} bytes beyond the log's own limit" if lost else "")


def open_spill_log(store: WorkspaceStore, cell: str) -> StoreLog:
    """Open the log of *cell* in *store*; one that cannot be opened swallows what it is given."""
    try:
        return StoreLog(store.log_writer(cell))
    except AgentlyKernelError:
        return StoreLog(None)
