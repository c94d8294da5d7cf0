"""The warm spare with real bubblewrap sandboxes: the next run is in it, and nothing of it survives its owner."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from agently_kernel.contract.bundle import CodeExecutionRequest
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.execution import CodeExecution
from agently_kernel.manager import ExecutionResourceManager
from agently_kernel.workspace.task_workspace import TaskWorkspace

LEAVES_A_FILE = "import os; print(sorted(os.listdir('.'))); open('left.txt', 'w').write('x'); open('/tmp/left', 'w')"
OWNER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_spare_bubblewrap import OwnerOfSpare

async def main():
    async with OwnerOfSpare(Path({place!r})) as (execution, spare):
        print("ready", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


class OwnerOfSpare:
    """Runs once in a fresh sandbox and waits until the spare of it is open; yields (execution, spare's view)."""

    def __init__(self, place: Path) -> None:
        self.manager = ExecutionResourceManager(spare_seconds=60.0)
        self.workspace = TaskWorkspace.create(
            session_id="spare", limits=ResourceLimits(), collection=CollectionLimits(), data_dir=place
        )
        self.execution = CodeExecution(self.manager, workspace=self.workspace, candidates=("bubblewrap",))

    async def __aenter__(self):
        result = await self.execution.async_run(CodeExecutionRequest(source_code=LEAVES_A_FILE))
        assert result.status is ExecutionStatus.SUCCESS, result.message
        return self.execution, await self.spare()

    async def spare(self):
        for _ in range(1000):
            if views := self.manager.list(status="ready"):
                return views[0]
            await asyncio.sleep(0.01)
        raise AssertionError("no spare was opened within ten seconds")

    async def __aexit__(self, *_: object) -> None:
        await self.manager.aclose()
        self.workspace.close()


async def test_each_run_has_a_sandbox_that_nothing_ran_in_before(tmp_path: Path) -> None:
    owner = OwnerOfSpare(tmp_path)
    async with owner as (execution, spare):
        for _ in range(2):
            result = await execution.async_run(CodeExecutionRequest(source_code=LEAVES_A_FILE))
            assert result.status is ExecutionStatus.SUCCESS
            assert result.facts == spare.facts, "it ran in the spare"
            assert result.stdout.text == "['output']\n"
            spare = await owner.spare()


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_a_killed_owner_leaves_no_spare_behind(tmp_path: Path) -> None:
    script = OWNER.format(folder=str(Path(__file__).parent), place=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "ready\n"
        sandbox = below(owner.pid)
        assert any("stage1.py" in " ".join(process.cmdline()) for process in sandbox)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(10)
    deadline = time.monotonic() + 5
    while left := [process for process in sandbox if process.is_running() and process.status() != "zombie"]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
