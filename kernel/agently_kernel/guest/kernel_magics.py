"""Names of the magics that the kernel itself answers, so that completion and help know them in the sandbox too.

The kernel recognises them by a cell's first line before anything is sent here; what arrives here stood elsewhere.
"""

from typing import Any

from IPython.core.error import UsageError


def agently_exec(line: str, cell: str = "") -> None:
    """Run the cell as a program in a fresh sandbox of its own. ``%%agently_exec --help`` lists the options."""
    raise UsageError("%%agently_exec is run by the kernel and must be the first line of its cell.")


def agently(line: str) -> None:
    """Look at the sandbox: ``%agently status``, ``outputs``, ``restart``, ``allow KIND``."""
    raise UsageError("%agently is answered by the kernel and must be the only line of its cell.")


def register(shell: Any) -> None:
    """Make the names known to *shell*."""
    shell.register_magic_function(agently_exec, "cell")
    shell.register_magic_function(agently, "line")
