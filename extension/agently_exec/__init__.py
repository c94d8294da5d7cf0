"""``%%agently_exec`` and ``%agently`` for any IPython notebook: ``%load_ext agently_exec``."""

from __future__ import annotations

from typing import Any

_LOADED = "_agently_exec_magics"


def load_ipython_extension(shell: Any) -> None:
    """Make the magics known to *shell* (``%load_ext agently_exec``)."""
    from agently_exec.magics import load

    if getattr(shell, _LOADED, None) is None:
        setattr(shell, _LOADED, load(shell))


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away from *shell* and end their session (``%unload_ext agently_exec``)."""
    magics = getattr(shell, _LOADED, None)
    if magics is not None:
        from agently_exec.magics import unload

        setattr(shell, _LOADED, None)
        unload(shell, magics)
