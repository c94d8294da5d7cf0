"""The output trust filter: what a guest may show, and in which form. Pure functions and bookkeeping; no I/O."""

from __future__ import annotations

from agently_kernel.outputs.filter import RESERVED_DISPLAY_PREFIX, OutputFilter
from agently_kernel.outputs.policy import (
    FilteredBundle,
    FilteredComm,
    FilteredError,
    FilteredPayloads,
    OutputLimits,
    OutputPolicy,
    Withheld,
)
from agently_kernel.outputs.text import StreamFilter

__all__ = [
    "RESERVED_DISPLAY_PREFIX",
    "FilteredBundle",
    "FilteredComm",
    "FilteredError",
    "FilteredPayloads",
    "OutputFilter",
    "OutputLimits",
    "OutputPolicy",
    "StreamFilter",
    "Withheld",
]
