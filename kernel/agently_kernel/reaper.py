"""A small watcher that tidies up after a kernel that was killed and could not do it itself.

The sandbox's processes end by themselves when the kernel is gone. Its runtime area on the host's tmpfs and its control
groups would stay until the next start; a shell that waits for the end of a pipe removes them at once. It is started
before any of them is made, and finds them by the owner that they record.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from agently_kernel.sandbox.cgroups import find_places, group_pattern, remove_stale
from agently_kernel.sandbox.orphans import remove_orphans
from agently_kernel.sandbox.runtime import owned_patterns, stale_folders
from agently_kernel.workspace.areas import process_start, product_data_dir, remove_tree, runtime_candidates
from agently_kernel.workspace.cleaning import CleaningReport, clean

# Reads until the kernel's end of the pipe is closed, whichever way that happens, then removes what is still there; told
# that all is done, it ends. The groups can go only when the last process in them has ended, which takes a moment.
_SCRIPT = r"""
trap '' HUP INT TERM
while read -r word; do [ "$word" = done ] && exit 0; done
pid=$1 start=$2 groups=$3 folders=$4 stores=$5; shift 5
IFS='
'
for turn in 1 2 3 4 5 6 7 8 9 10; do
  left=
  for group in $groups; do [ -d "$group" ] && ! rmdir "$group" 2>/dev/null && left=1; done
  [ -z "$left" ] && break
  sleep 0.2
done
owned() { grep -Eqs "\"pid\": ?$pid," "$1" && grep -Eqs "\"start_time\": ?$start," "$1"; }
for folder in $folders; do rm -rf -- "$folder"; done
for base; do
  for record in "$base"/*/owner.json; do owned "$record" && rm -rf -- "${record%/owner.json}"; done
done
for part in "$stores"/*/incoming/* "$stores"/*/.workspace.json.*; do
  store=${part%/*}
  owned "${store%/incoming}/workspace.json" && rm -f -- "$part"
done
:
"""


class Reaper:
    """Watches over this process. ``close`` ends it without a look: other sessions of this process may live on."""

    def __init__(self) -> None:
        """Start watching. Raises OSError."""
        pid = os.getpid()
        groups = "\n".join(sorted({group_pattern(place.parent, pid) for place in find_places().values()}))
        bases = (*runtime_candidates(), product_data_dir() / "scratch")
        self._process = subprocess.Popen(
            [
                "/bin/sh", "-c", _SCRIPT, "agently-kernel-reaper", str(pid), str(process_start(pid) or 0), groups,
                "\n".join(owned_patterns(pid)), str(product_data_dir() / "workspaces"), *map(str, bases),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            start_new_session=True, env={"PATH": os.defpath},
        )

    def close(self) -> None:
        """Let the watcher end and wait for it, shortly. Idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"done\n")
                self._process.stdin.flush()
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(2.0)


def watch() -> Reaper | None:
    """Return a reaper for this process, None where there is no shell; the next start tidies up then."""
    if sys.platform == "win32":
        return None
    try:
        return Reaper()
    except OSError:
        return None


def remove_folders() -> Iterator[str]:
    """Remove what sandboxes of killed kernels had in temporary places; yield each. Raises WorkspaceError."""
    for folder in stale_folders():
        remove_tree(folder)
        yield str(folder)


def clean_leftovers(*, remove_stores: bool = False, dry_run: bool = False) -> CleaningReport:
    """Remove what dead sessions left behind, of every kind; see :func:`agently_kernel.workspace.cleaning.clean`."""
    hooks = (remove_orphans, remove_stale, remove_folders) if sys.platform == "linux" else ()
    return clean(remove_stores=remove_stores, dry_run=dry_run, hooks=hooks)
