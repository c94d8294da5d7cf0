"""What gVisor's kernel must hold, however it was started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provider_support import surroundings

from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.providers.base import SandboxProvider

LIMIT = 40
MEMORY_POLICY = ExecutionResourcePolicy(limits=ResourceLimits(memory_bytes=400 << 20))
MEMORY = {
    "many processes": "import os, time\nfor _ in range(10):\n    if not os.fork(): b = bytearray(b'x') * (100 << 20); "
    "time.sleep(5); os._exit(0)\ntime.sleep(5)",
    "a shared segment": "import ctypes, os\nlibc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p\n"
    "at = libc.shmat(libc.shmget(0, 900 << 20, 0o1600), None, 0)\nctypes.memset(at, 1, 900 << 20)\n"
    "import time; time.sleep(5)",
}
"""Ways past it, in many small parts or in one that belongs to no process; they hold it for a while."""
FORKS = """
import subprocess
children = []
try:
    for _ in range(200):
        children.append(subprocess.Popen(["sleep", "60"]))
except BlockingIOError:
    print("refused after", len(children))
for child in children:
    child.kill()
    child.wait()
"""
THREADS = """
import threading
end, threads = threading.Event(), []
try:
    for _ in range(200):
        threads.append(threading.Thread(target=end.wait))
        threads[-1].start()
except RuntimeError:
    print("refused after", len(threads) - 1)
end.set()
"""
WAYS_OUT = """
import os
tried = []
for path in ("/run/agently/superuser/pids", "/run/agently/superuser/pids/sandbox/pids.max"):
    for action in (os.listdir, lambda path: open(path, "w")):
        try:
            action(path)
            tried.append(path)
        except PermissionError:
            pass
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
sets = {status[name].strip() for name in status if name.startswith("Cap")}
print(tried, os.getuid() != 0, os.getgroups(), sets)
"""


async def gvisor_holds_processes(provider: SandboxProvider[Any], config: Mapping[str, Any], folder: Path) -> None:
    """Assert that forks and threads end at the limit, and that the guest cannot reach what holds it."""
    policy = ExecutionResourcePolicy(
        limits=ResourceLimits(processes=LIMIT), required_limits=("processes",), network_mode="disabled"
    )
    async with surroundings(provider, config, folder, policy) as place:
        for program in (FORKS, THREADS):
            result = await place.cell("kept = 1\n" + program)
            assert result.status is ExecutionStatus.SUCCESS, result.message
            assert 20 <= int(result.stdout.text.rpartition(" ")[2]) < LIMIT, result.stdout.text
        assert result.facts is not None
        (fact,) = (limit for limit in result.facts.limits if limit.name == "processes")
        assert (fact.limit, fact.mechanism, fact.observed) == (LIMIT, "gvisor", True)
        result = await place.cell("print(kept)\n" + WAYS_OUT)
        assert result.stdout.text == "1\n[] True [] {'0000000000000000'}\n", (result.stdout.text, result.error)
