"""A small watcher that tidies up after a kernel that was killed and could not do it itself.

The sandbox's processes end by themselves when the kernel is gone. Its runtime area on the host's tmpfs and its control
groups would stay until the next start; a shell that waits for the end of a pipe removes them at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agently_kernel.sandbox.cgroups import find_places, group_pattern

# Reads until the kernel's end of the pipe is closed, whichever way that happens, then removes what is still there. The
# groups can go only when the last process in them has ended, which takes a moment.
_SCRIPT = """
trap '' HUP INT TERM
while read -r _; do :; done
folders=$1; shift
IFS=
for i in 1 2 3 4 5 6 7 8 9 10; do
  left=
  for pattern; do for group in $pattern; do [ -d "$group" ] && ! rmdir "$group" 2>/dev/null && left=1; done; done
  [ -z "$left" ] && break
  sleep 0.3
done
printf '%s' "$folders" | while IFS= read -r folder || [ -n "$folder" ]; do rm -rf -- "$folder"; done
"""


class Reaper:
    """Watches over this process. ``close`` ends it; it then finds nothing left to do."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Start watching; *folders* are ours alone and go when this process is gone. Raises OSError."""
        patterns = [group_pattern(place.parent, os.getpid()) for place in find_places().values()]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "agently-kernel-reaper", "\n".join(map(str, folders)), *patterns],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
            env={"PATH": os.defpath},
        )

    def close(self) -> None:
        """Let the watcher end and wait for it, shortly. Idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(2.0)


def watch(folders: Sequence[Path]) -> Reaper | None:
    """Return a reaper for *folders*, None where there is no shell; the next start tidies up then."""
    if sys.platform == "win32":
        return None
    try:
        return Reaper(folders)
    except OSError:
        return None
