"""Which host folders the running Python needs to work inside a sandbox, and which it would want but does not get.

Every root is given in its plain and in its resolved form, because both are used: a virtual environment's ``python`` is
a chain of links, and ``pyvenv.cfg`` names the base installation by whatever path it was created from.
"""

from __future__ import annotations

import ast
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import Field

from agently_kernel.contract.base import Frozen

SYSTEM_ROOTS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Folders of the operating system that every Linux sandbox shows read-only."""

STORES = ("/nix/store", "/gnu/store")
"""Package stores whose programs refer to each other by absolute path, so that only the whole store is of use."""

_VERSIONED = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_PARTS = ("bin", "pyvenv.cfg", f"lib/{_VERSIONED}", f"lib64/{_VERSIONED}", f"include/{_VERSIONED}")
_HOST_VARIABLES = ("TZ", "LC_TIME", "LC_NUMERIC", "LC_MONETARY", "LC_PAPER", "LC_MEASUREMENT")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_HOME = "/tmp/home"  # noqa: S108 - a path inside the sandbox's own tmpfs
_FIXED: Mapping[str, str] = {
    "HOME": _HOME,
    "USER": "sandbox",
    "LOGNAME": "sandbox",
    "SHELL": "/bin/sh",
    "TMPDIR": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "PIP_RETRIES": "1",  # else it waits long for a network that is off
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "MPLCONFIGDIR": _HOME + "/.config/matplotlib",
    "IPYTHONDIR": _HOME + "/.ipython",
    "XDG_CONFIG_HOME": _HOME + "/.config",
    "XDG_CACHE_HOME": _HOME + "/.cache",
    "XDG_DATA_HOME": _HOME + "/.local/share",
}
_STEERING = ("LD_", "DYLD_", "GLIBC_", "PYTHON", "AGENTLY_")


class InterpreterLayout(Frozen):
    """The interpreter as a sandbox must show it.

    ``roots`` are the absolute host folders (or single files) to show read-only at their own paths, none inside another
    and none inside a system root. ``links`` are (path, target) of links that lead to the executable from outside the
    roots. ``refused`` are folders on the import path that were left out (editable installs,
    ``.pth`` targets): a user may grant them by name.
    """

    executable: str
    real_executable: str
    version: str
    prefix: str
    roots: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()
    path: str = Field(description="value of PATH inside")


def is_inside(path: str, roots: Iterable[str]) -> bool:
    """True when *path* is one of *roots* or lies below one (both without trailing slashes, compared as text)."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def minimal_roots(paths: Iterable[str]) -> tuple[str, ...]:
    """Return *paths* sorted, without duplicates and without those that lie inside another one."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(p) for p in paths}):
        if not is_inside(path, kept):
            kept.append(path)
    return tuple(kept)


def narrow(path: str, homes: tuple[str, ...]) -> tuple[str, ...]:
    """Return what to show of an installation at *path* without showing the user's home folder.

    Usually the folder itself; when it is the root folder or holds one of *homes* (a virtual environment made in ``~``),
    only the parts that belong to a Python installation.
    """
    if path != "/" and not any(is_inside(home, (path,)) for home in homes):
        return (path,)
    return tuple(str(part) for name in _PARTS if (part := Path(path) / name).exists())


def _both(path: str) -> tuple[str, ...]:
    return (os.path.normpath(path), os.path.realpath(path))


def _links(path: str) -> list[tuple[str, str]]:
    """Return the links, as (path, target), that lead from *path* to the file it names."""
    found: list[tuple[str, str]] = []
    while os.path.islink(path) and len(found) < 40:
        target = os.readlink(path)
        found.append((path, target))
        path = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return found


def _site_places() -> list[str]:
    paths = sysconfig.get_paths()
    folders = [paths["purelib"], paths["platlib"]]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return list(dict.fromkeys(folders))


def _site_folders() -> list[str]:
    return [folder for folder in _site_places() if os.path.isdir(folder)]


def _editable_targets(folders: Iterable[str]) -> set[str]:
    """Return the folders that ``.pth`` files and setuptools' editable finders in *folders* point to."""
    found: set[str] = set()
    for folder in folders:
        for entry in Path(folder).glob("*.pth"):
            try:
                lines = entry.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            for line in lines:
                text = line.strip()
                if text and not text.startswith(("#", "import ", "import\t")):
                    found.add(os.path.normpath(os.path.join(folder, text)))
        for finder in Path(folder).glob("__editable__*_finder.py"):
            match = re.search(r"^MAPPING[^=]*=\s*(\{.*?\})\s*$", finder.read_text("utf-8", "replace"), re.M)
            try:
                mapping = ast.literal_eval(match.group(1)) if match else {}
            except (ValueError, SyntaxError):
                mapping = {}
            found.update(os.path.dirname(str(value)) for value in mapping.values())
    return {target for target in found if os.path.exists(target)}


def describe_interpreter(executable: str | None = None, *, home: str | None = None) -> InterpreterLayout:
    """Return the layout of the running interpreter (``executable`` only replaces the path it is started by).

    Reads the file system; raises nothing for what is missing: that shows when the sandbox is tried.
    """
    program = _without_dots(executable or sys.executable)
    homes = _both(home or os.path.expanduser("~"))
    paths = sysconfig.get_paths()
    wanted = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    wanted += [paths[name] for name in ("stdlib", "platstdlib")] + _site_folders()
    roots: list[str] = [store for store in STORES if is_inside(os.path.realpath(program), (store,))]
    for form in [form for path in wanted for form in _both(path)]:
        if os.path.exists(form) and not is_inside(form, SYSTEM_ROOTS):
            roots += narrow(form, homes)
    kept = tuple(root for root in minimal_roots(roots) if not is_inside(root, SYSTEM_ROOTS))
    shown = (*kept, *SYSTEM_ROOTS)
    refused = {
        form for target in _editable_targets(_site_folders()) if not is_inside(form := os.path.realpath(target), shown)
    }
    folders = [os.path.dirname(program), "/usr/local/bin", "/usr/bin", "/bin"]
    return InterpreterLayout(
        executable=program,
        real_executable=os.path.realpath(program),
        version=".".join(str(part) for part in sys.version_info[:3]),
        prefix=sys.prefix,
        roots=kept,
        links=tuple(link for link in _links(program) if not is_inside(link[0], shown)),
        refused=tuple(sorted(refused)),
        path=":".join(dict.fromkeys(folders)),
    )


def _without_dots(path: str) -> str:
    """Return *path* without ``..`` where that is the same folder: a program may be started by such a path, and inside
    a sandbox the folder that the dots go back from is not there."""
    plain = os.path.abspath(path)
    try:
        return plain if os.path.samefile(os.path.dirname(plain), os.path.dirname(path)) else path
    except OSError:
        return path


class KnownInterpreter:
    """The running interpreter's layout, read anew only when something was installed or removed since."""

    def __init__(self) -> None:
        self._places = _site_places()
        self._known: tuple[list[int], InterpreterLayout] | None = None

    def layout(self) -> InterpreterLayout:
        """Return what :func:`describe_interpreter` does. A ``.pth`` file that is edited in place is not noticed."""
        stamps = [_changed_at(place) for place in self._places]
        if self._known is None or self._known[0] != stamps:
            self._known = stamps, describe_interpreter()
        return self._known[1]


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1


def sandbox_environment(
    layout: InterpreterLayout, *, cpus: float | None, passed: Iterable[str] = (), extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the whole environment of a guest: of the host's a few locale settings and *passed*, then *extra*.

    ``cpus`` bounds the threads that numeric libraries start; without it they see the cores that are there. *passed*:
    names of variables of this process that the user's configuration passes on; those that are not set are left out.
    """
    env = {name: os.environ[name] for name in (*_HOST_VARIABLES, *passed) if name in os.environ}
    env.update(_FIXED, PATH=layout.path)
    if layout.prefix != sys.base_prefix:
        env["VIRTUAL_ENV"] = layout.prefix
    if cpus is not None:
        env.update(dict.fromkeys(_THREAD_VARIABLES, str(max(1, round(cpus)))))
    env.update(extra or {})
    return env


def is_own_variable(name: str) -> bool:
    """True for a variable that a sandbox sets itself, or that steers what is loaded before the code in it."""
    return name in _FIXED or name in ("PATH", "VIRTUAL_ENV") or name.startswith(_STEERING)
