"""What the tests of the magics need of a kernel's surroundings, whichever kernel is the home."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from kernel_session import KernelSession, Run


def environment(base: Path) -> dict[str, str]:
    """Return the environment that keeps a kernel away from the user's own data and settings."""
    folders = {
        "JUPYTER_DATA_DIR": base / "jupyter-data", "JUPYTER_CONFIG_DIR": base / "jupyter-config",
        "IPYTHONDIR": base / "ipython",
    }
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    return {name: str(folder) for name, folder in folders.items()}


def answering(session: KernelSession, word: str) -> Callable[[Run], None]:
    """Return what answers every question of the product with *word* and the code that it shows."""
    answered = 0

    def during(run: Run) -> None:
        nonlocal answered
        while len(run.prompts) > answered:
            found = re.search(r"'(allow(?: \w+)?) (\d{4})'", run.prompts[answered][0])
            answered += 1
            yes = found.group(1) if found and word == "allow" else word  # what opens most wants its name in the answer
            session.client.input(f"{yes} {found.group(2)}" if found else word)

    return during
