"""Names of the magics that the kernel itself answers, so that completion and help know them in the sandbox too.

The kernel recognises them by a cell's first line before anything is sent here; what arrives here stood elsewhere.
"""

import sys
import types
from typing import Any

from IPython.core.error import UsageError


def agently_exec(line: str, cell: str = "") -> None:
    """Run the cell as a program in a fresh sandbox of its own. ``%%agently_exec --help`` lists the options."""
    raise UsageError(
        "%%agently_exec must be the first line of its cell, for the kernel runs it outside of this sandbox. Move what "
        "stands above it, comments too, below it or into another cell."
    )


def agently(line: str) -> None:
    """Look at the sandbox and give it files: ``%agently help`` lists the commands."""
    raise UsageError(
        "%agently must stand in a cell of its own (beside comments), for the kernel answers it outside of this sandbox."
    )


def register(shell: Any) -> None:
    """Make the names known to *shell*, and let ``%load_ext agently_exec`` do nothing: it is built in here."""
    extension = types.ModuleType("agently_exec", "Built in to this kernel, which answers its magics outside.")
    extension.__dict__["load_ipython_extension"] = lambda _: None
    extension.__dict__["unload_ipython_extension"] = lambda _: None
    sys.modules.setdefault("agently_exec", extension)
    shell.register_magic_function(agently_exec, "cell")
    # below a comment IPython takes a cell magic for a line magic whose name begins with a percent sign
    shell.register_magic_function(agently_exec, "line", "%agently_exec")
    shell.register_magic_function(agently, "line")
