"""The kernel without its output filter: only for measuring what the filter costs. Whatever a cell shows passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agently_kernel.__main__ import main
from agently_kernel.outputs import OutputFilter, StreamFilter
from agently_kernel.outputs.policy import FilteredBundle


def _bundle(self: OutputFilter, data: Mapping[str, Any], metadata: Mapping[str, Any], **_: Any) -> FilteredBundle:
    return FilteredBundle(dict(data), dict(metadata))


if __name__ == "__main__":
    OutputFilter.bundle = _bundle  # type: ignore[method-assign]
    StreamFilter.feed = lambda self, text: text  # type: ignore[method-assign]
    StreamFilter.flush = lambda self: ""  # type: ignore[method-assign]
    main()
