"""Figures of ``%%agently_exec``: programs in a fresh sandbox, what the magic adds, builds from cache, collection.

``python tests/bench/programs.py [--quick] [--json FILE] [--only NAME]``; samples of both sides are taken in turn. The
exit status is always 0: read the ratios.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from run import STOCK, Figure, Kernel, Measures, asked, compared, report

from agently_kernel.contract.bundle import CodeExecutionRequest
from agently_kernel.contract.resource import ExecutionResourceRequirement
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.policy import PolicyApproval
from agently_kernel.session_sandbox import SessionSandbox
from agently_kernel.settings import KernelSettings

BARE = ("bwrap", "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc", "--dev", "/dev")
PAUSE = 0.4
"""Seconds between programs, as between cells that a person runs; the next sandbox is opened meanwhile."""


class Programs:
    """Runs programs as the magics do, without a front end."""

    def __init__(self) -> None:
        settings = KernelSettings.model_validate({"providers": ("bubblewrap",)})
        self.sandbox = SessionSandbox(settings, PolicyApproval(), session_id="bench")
        self.sandbox.attach(sink=lambda event: None, on_handle=lambda handle: None, on_event=lambda event: None)
        self._wanted = ExecutionResourceRequirement(
            scope="action_call", owner_id="bench", provider_candidates=settings.providers, policy=settings.policy()
        )
        self._count = 0

    async def run(self, source: str, language: str = "python", outputs: tuple[str, ...] = ()) -> CodeExecutionResult:
        """Run one program; it must succeed."""
        self._count += 1
        result = await self.sandbox.run(
            CodeExecutionRequest(language=language, source_code=source, expected_outputs=outputs), cell="cell",
            execution_id=f"e{self._count}", sink=lambda event: None, input_handler=None, timeout=120,
            requirement=self._wanted,
        )
        if result.status is not ExecutionStatus.SUCCESS:
            raise RuntimeError(f"{language}: {result.message} {result.stderr.text[-500:]}")
        return result


def with_programs(work: Callable[[Programs], object]) -> None:
    """Run the coroutine that *work* makes, and close everything."""
    async def main() -> None:
        programs = Programs()
        try:
            await work(programs)  # type: ignore[misc]
        finally:
            await programs.sandbox.close()

    asyncio.run(main())


def timed_bare(*argv: str) -> float:
    """Return the milliseconds of *argv* in a bubblewrap sandbox without anything of ours."""
    started = time.perf_counter()
    subprocess.run([*BARE, *argv], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1e3


def one_shot(count: int) -> Figure:
    """A Python program in a fresh sandbox, against bare ``bwrap python3 -c``."""
    pairs: list[tuple[float, float]] = []

    async def work(programs: Programs) -> None:
        for number in range(count + 3):
            await asyncio.sleep(PAUSE)
            started = time.perf_counter()
            await programs.run("print(1)")
            ours = (time.perf_counter() - started) * 1e3
            await asyncio.sleep(PAUSE)
            bare = await asyncio.to_thread(timed_bare, sys.executable, "-c", "print(1)")
            if number >= 3:  # the first ones probe and compile
                pairs.append((ours, bare))

    with_programs(work)
    return compared("one-shot Python", "ms", 1.3, pairs)


def magic(count: int) -> Figure:
    """What the magic adds in a stock ipykernel: a cell's time beyond that of its execution and of a cell that does
    nothing."""
    kernel = Kernel(STOCK)
    added = []
    try:
        kernel.execute("%load_ext agently_exec")
        for number in range(count + 3):
            time.sleep(PAUSE)
            seconds, _ = kernel.execute("%%agently_exec --result r\nprint(1)")
            own = float(kernel.value("r.seconds"))
            nothing, _ = kernel.execute("pass")
            if number >= 3:
                added.append((seconds - own - nothing) * 1e3)
    finally:
        kernel.close()
    value = statistics.median(added)
    return Figure("magic in a stock kernel", "ms", value, 0.0, value, 5.0, value <= 5.0)


GO = 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println(1) }\n'
CPP = '#include <iostream>\nint main() { std::cout << 1 << "\\n"; }\n'


def rebuild(count: int) -> list[Figure]:
    """An unchanged program that is built, again, against the same argv without its build step: a program alone."""
    found = []

    async def work(programs: Programs) -> None:
        for language, source in (("go", GO), ("c++", CPP)):
            pairs = []
            for number in range(count + 2):
                await asyncio.sleep(PAUSE)
                started = time.perf_counter()
                await programs.run(source, language)
                ours = (time.perf_counter() - started) * 1e3
                await asyncio.sleep(PAUSE)
                started = time.perf_counter()
                await programs.run("exec /bin/true", "bash")
                alone = (time.perf_counter() - started) * 1e3
                if number >= 2:
                    pairs.append((ours, alone))
            found.append(compared(f"{language} rebuild, unchanged", "ms", 1.2, pairs))

    with_programs(work)
    return found


def outputs(count: int) -> Figure:
    """128 outputs of 1 MiB: bytes a second of their collection, against ``cp`` and ``sha256sum`` of as much."""
    names = tuple(f"output/{number}.bin" for number in range(128))
    program = "import os\nfor n in range(128):\n    open(f'output/{n}.bin', 'wb').write(os.urandom(1048576))"
    pairs = []

    async def work(programs: Programs) -> None:
        for _ in range(count):
            result = await programs.run(program, outputs=names)
            ours = next(step.seconds for step in result.trace if step.step == "collect")
            with tempfile.TemporaryDirectory(dir="/dev/shm") as source, tempfile.TemporaryDirectory() as target:
                for number in range(128):
                    Path(source, f"{number}.bin").write_bytes(os.urandom(1048576))
                command = f"cp {source}/*.bin {target}/ && sha256sum {target}/*.bin"
                started = time.perf_counter()
                subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)
                pairs.append((128 / ours, 128 / (time.perf_counter() - started)))

    with_programs(work)
    ours, reference = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    share = statistics.median(a / b for a, b in pairs)
    return Figure("128 outputs of 1 MiB", "MiB/s", ours, reference, share, 0.6, share >= 0.6)


MEASURES: Measures = {
    "one_shot": (one_shot, 30, 2),
    "magic": (magic, 20, 2),
    "rebuild": (rebuild, 15, 2),
    "outputs": (outputs, 5, 1),
}

if __name__ == "__main__":
    report(MEASURES, asked(MEASURES, __doc__ or ""))
