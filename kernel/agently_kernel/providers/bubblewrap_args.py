"""The argument lists of bubblewrap: a pure function from what a sandbox shall show to what ``bwrap`` is told.

Two lists, because there are two ways that hold:

- ``user``: an ordinary user, in a user namespace of its own, with further user namespaces disabled inside.
- ``root``: euid 0, *without* a user namespace. Inside one, the guest would still be the host's uid 0 for every check
that looks at the global user id (sysctls, files of root in a bound tree, process limits). So bwrap keeps only the three
  capabilities that ``setpriv`` needs to become an unprivileged uid, and setpriv drops everything before the guest
  starts.

The guest is the first process of its pid namespace (``--as-pid-1``): nothing inside can kill or stop it, and no helper
of bwrap is left inside whose descriptors, environment or memory could be looked at.

When the kernel is killed, bwrap's process dies with it (``--die-with-parent``) and the guest with that one, or, as
root, where a process without capabilities may not signal another uid, by the end of its standard input.

Options travel through a descriptor (``--args``), never on the command line, so that no host path shows in /proc.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.workspace import SANDBOX_PATHS, SANDBOX_ROOT
from agently_kernel.sandbox.interpreter import SYSTEM_ROOTS, is_inside
from agently_kernel.sandbox.launch import GUEST_DIR
from agently_kernel.sandbox.system_files import HOSTNAME

SETPRIV = "/usr/bin/setpriv"
TMP = "/tmp"  # noqa: S108 - the sandbox's own
SHM = "/dev/shm"  # noqa: S108
LIVE_INPUTS = SANDBOX_ROOT + "/live"
HIDDEN = (
    "/proc/keys", "/proc/key-users", "/proc/kcore", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats",
)
"""Files of /proc that no namespace narrows; the Open Container Initiative's runtimes hide most of them as well."""
PRESSURE = "/proc/pressure"
BWRAP_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
"""The whole environment of the bwrap process itself: a first process of the sandbox could be asked for it."""


class BubblewrapLayout(Frozen):
    """Everything that decides the argument list. Paths are absolute; sizes are bytes.

    ``system`` lists host folders of the operating system that are real (bound read-only), ``system_links`` those that
    are links, as (path, target). ``read_only`` are host paths shown at their own places; ``inputs`` are (name below the
    working directory, host path); ``links`` are (path, target) made inside, last. ``hidden`` are files of /proc that
    cannot be opened (see :func:`hidden_files`). ``masked_inputs`` (named as ``inputs``) and ``masked`` are sockets and
    the like in folders of the host, which a read-only mount leaves as open as they are. ``build_dir`` replaces the
    scratch tmpfs by a host folder (disk mode). What a guest may have left in that folder is not to be walked through by
    bwrap, so inputs then appear below ``/workspace/live`` and nothing is made in it.
    """

    mode: Literal["user", "root"]
    uid: int
    gid: int
    system: tuple[str, ...]
    system_links: tuple[tuple[str, str], ...] = ()
    etc_dir: str
    etc_folders: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    guest_dir: str
    source_dir: str
    input_dir: str | None = None
    inputs: tuple[tuple[str, str], ...] = ()
    masked_inputs: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    build_dir: str | None = None
    scratch_bytes: int
    output_bytes: int
    shm_bytes: int
    env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    cwd: str = SANDBOX_PATHS["build"]
    private_network: bool = True


class _Tree:
    """Collects options; makes every missing parent folder 0755 (bwrap's own would be 0700, closed to another uid)."""

    def __init__(self) -> None:
        self.options: list[str] = []
        self._made: set[str] = {"/"}

    def add(self, *options: str) -> None:
        self.options += options

    def parents(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent in self._made:
            return
        self.parents(parent)
        # A folder made for an input among the guest's own files is the guest's to write in, whoever it is.
        self.folder(parent, "1777" if is_inside(parent, (SANDBOX_PATHS["build"],)) else "0755")

    def folder(self, path: str, mode: str = "0755") -> None:
        if path not in self._made:
            self.parents(path)
            self._made.add(path)
            self.add("--perms", mode, "--dir", path)

    def mounted(self, path: str, *holds: str) -> None:
        """Note that *path* is a mount now; *holds* are folders that it is known to have."""
        self._made |= {path, *holds}

    def read_only(self, source: str, path: str) -> None:
        self.parents(path)
        self.add("--ro-bind", source, path)
        self.mounted(path)

    def tmpfs(self, path: str, size: int, mode: str = "1777") -> None:
        self.parents(path)
        self.add("--perms", mode, "--size", str(size), "--tmpfs", path)  # --size must stand directly before --tmpfs
        self.mounted(path)

    def link(self, path: str, target: str) -> None:
        self.parents(path)
        self.add("--symlink", target, path)


def _namespaces(layout: BubblewrapLayout) -> list[str]:
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if layout.private_network:
        options.append("--unshare-net")
    if layout.mode == "user":
        options += ["--unshare-user", "--uid", str(layout.uid), "--gid", str(layout.gid), "--disable-userns"]
        options += ["--cap-drop", "ALL"]
    else:
        options += ["--cap-drop", "ALL"]
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            options += ["--cap-add", capability]
    return [*options, "--as-pid-1", "--die-with-parent", "--new-session", "--hostname", HOSTNAME]


def bwrap_options(layout: BubblewrapLayout) -> list[str]:
    """Return bwrap's options in order, without the descriptors that are only known at the start of a process."""
    tree = _Tree()
    tree.add(*_namespaces(layout), "--clearenv")
    for name, value in sorted(layout.env.items()):
        tree.add("--setenv", name, value)
    for path in layout.system:
        tree.read_only(path, path)
    for path, target in layout.system_links:
        tree.link(path, target)
    tree.read_only(layout.etc_dir, "/etc")
    for name in layout.etc_folders:
        tree.add("--ro-bind", f"/etc/{name}", f"/etc/{name}")
    # bwrap covers /proc/sys only where its folder is writable; settings of one's own namespaces are not told by that.
    # /proc/pressure takes orders of everybody: to watch the whole machine.
    tree.add("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--ro-bind-try", PRESSURE, PRESSURE)
    tree.add("--dev", "/dev")
    tree.mounted("/dev", SHM)
    tree.mounted("/proc")
    for path in layout.hidden:
        tree.add("--ro-bind", os.devnull, path)  # as a device on a bind of bwrap's it cannot even be opened
    tree.tmpfs(SHM, layout.shm_bytes)
    tree.add("--remount-ro", "/dev")  # bwrap's /dev is a tmpfs of no fixed size
    tree.tmpfs(TMP, layout.scratch_bytes)
    tree.folder("/var")
    tree.link("/var/tmp", TMP)  # noqa: S108
    _workspace(tree, layout)
    # After the tmpfs mounts: an interpreter may live below one of those places.
    for path in layout.read_only:
        if not is_inside(path, (*layout.system, *(link for link, _ in layout.system_links))):
            tree.read_only(path, path)
    for path in layout.masked:
        tree.add("--ro-bind", os.devnull, path)
    for path, target in layout.links:
        if layout.build_dir is None or not is_inside(path, (SANDBOX_PATHS["build"],)):
            tree.link(path, target)
    tree.read_only(layout.guest_dir, GUEST_DIR)
    tree.add("--remount-ro", "/", "--chdir", layout.cwd)
    return tree.options


def _workspace(tree: _Tree, layout: BubblewrapLayout) -> None:
    build, output = SANDBOX_PATHS["build"], SANDBOX_PATHS["output"]
    tree.folder(SANDBOX_ROOT)
    tree.read_only(layout.source_dir, SANDBOX_PATHS["source"])
    if layout.input_dir is not None:
        tree.read_only(layout.input_dir, SANDBOX_PATHS["input"])
    else:
        tree.folder(SANDBOX_PATHS["input"])
    if layout.build_dir is None:
        tree.tmpfs(build, layout.scratch_bytes)
    else:
        tree.add("--bind", layout.build_dir, build)
        tree.mounted(build)
    tree.tmpfs(output, layout.output_bytes)
    if layout.build_dir is None:
        tree.link(f"{build}/output", output)
    live = build if layout.build_dir is None else LIVE_INPUTS
    for name, source in layout.inputs:
        tree.read_only(source, f"{live}/{name}")
    for name in layout.masked_inputs:
        tree.add("--ro-bind", os.devnull, f"{live}/{name}")


def privilege_drop(layout: BubblewrapLayout) -> list[str]:
    """Return the ``setpriv`` prefix of the root list, empty for the user list."""
    if layout.mode == "user":
        return []
    return [SETPRIV, f"--reuid={layout.uid}", f"--regid={layout.gid}", "--clear-groups", "--bounding-set=-all",
            "--inh-caps=-all", "--no-new-privs", "--"]


def encode_options(options: Sequence[str]) -> bytes:
    """Return the bytes that ``--args`` reads: every option followed by NUL. Raises ValueError for a NUL in an
    option."""
    if any("\0" in option for option in options):
        raise ValueError("an option of bubblewrap holds a NUL character")
    return b"".join(os.fsencode(option) + b"\0" for option in options)


def hidden_files() -> tuple[str, ...]:
    """Return the files of /proc that tell of the whole machine, as far as this kernel has them.

    A namespace of one's own does not narrow them: key rings show the keys of the user who started the sandbox.
    """
    return tuple(path for path in HIDDEN if os.path.exists(path))


def system_layout(root: str = "/") -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return (folders to bind, links to make) for the operating system's own folders as they are below *root*."""
    folders, links = [], []
    for name in SYSTEM_ROOTS:
        path = os.path.join(root, name.lstrip("/"))
        if os.path.islink(path):
            links.append((name, os.readlink(path)))
        elif os.path.isdir(path):
            folders.append(name)
    return tuple(folders), tuple(links)
