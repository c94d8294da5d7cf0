"""Files that a running cell misses: the host is asked whether it gives them, and the cell goes on with the answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from agently_kernel.contract.errors import AgentlyKernelError

log = logging.getLogger(__name__)

NeedHandler: TypeAlias = Callable[[str, str, bool], Awaitable[str | None]]
"""``handler(cell, path, writes) -> name``: the name of the input that was granted for the path (untrusted), None when
none was. *writes*: the cell is about to write to a file of that name, so there is nothing to give, only to say.

May raise AgentlyKernelError; the cell then goes on without the file.
"""


async def give(
    handler: NeedHandler | None, cell: str, path: str, writes: bool, show: Callable[[str], Awaitable[str]],
    deliver: Callable[[], Awaitable[None]] | None,
) -> bool:
    """Ask *handler*, bring what was granted into the sandbox, and return whether the file is there now.

    *deliver* brings all inputs to a sandbox that does not share folders with the host; *show* puts one under its name.
    """
    try:
        name = await handler(cell, path, writes) if handler is not None else None
        if name is None:
            return False
        if deliver is not None:
            await deliver()
        return not await show(name)
    except AgentlyKernelError as error:
        log.info("a file that a cell misses was not given: %s", error.code)
    except Exception:
        log.exception("a file that a cell misses could not be given")
    return False
