"""Where packages go that a cell installs: the environment is read-only, so pip is told of a folder of the sandbox.

What is there already is seen by pip and not installed again; what is installed wins over it.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig

WHAT_LASTS = "Note: packages that are installed from a cell last as long as this sandbox."


def make_installable() -> None:
    """Let pip install into the home folder, where this and other interpreters find it; harmless when done twice."""
    if os.access(sysconfig.get_paths()["purelib"], os.W_OK) or "PIP_PREFIX" in os.environ:
        return
    prefix = os.path.join(os.environ.get("HOME") or "/tmp", ".local")  # noqa: S108 - of the sandbox
    folder = os.path.join(prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return  # pip will say so itself
    os.environ["PIP_PREFIX"] = prefix
    more = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder + (os.pathsep + more if more else "")
    os.environ["PATH"] = os.path.join(prefix, "bin") + os.pathsep + os.environ.get("PATH", "")
    sys.path.insert(1, folder)
    importlib.invalidate_caches()


def say_what_lasts() -> None:
    """Let the magics that install packages say how long those last, instead of advising a restart, which loses them."""
    try:
        from IPython.core.magics import packaging
    except ImportError:
        return
    packaging.__dict__["print"] = lambda *_: print(WHAT_LASTS)
