"""Speed by ratio against the ordinary Python kernel, in one run on one machine.

``python tests/bench/run.py [--quick] [--json FILE] [--only NAME]`` prints a table; the exit status is always 0: a
shared machine is noisy: read the ratios. Samples of the two kernels are taken in turn (A B A B …) and compared pair by
pair, so that a drift of the machine's speed hits both.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from jupyter_client import BlockingKernelClient, KernelManager

STOCK, OURS = "python3", "agently"


@dataclass(frozen=True)
class Figure:
    """One row: medians of both sides in ``unit``, their ratio (or difference), the bar, and whether it was met."""

    name: str
    unit: str
    ours: float
    reference: float
    value: float
    bar: float
    met: bool


Measures = dict[str, tuple[Callable[[int], "Figure | list[Figure]"], int, int]]


class Kernel:
    """A running kernel and a client that measures it."""

    def __init__(self, name: str, program: Path | None = None) -> None:
        """Start the kernel that is called *name*, or with its name *program*."""
        self.folder = tempfile.mkdtemp(prefix="bench-")
        self.manager = KernelManager(kernel_name=name)
        if program is not None:
            self.manager.kernel_spec.argv = [sys.executable, str(program), "-f", "{connection_file}"]
        started = time.perf_counter()
        log = Path(self.folder, "kernel.log")
        with log.open("w") as stream:
            self.manager.start_kernel(cwd=self.folder, stdout=stream, stderr=stream)
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        # A bare handshake instead of wait_for_ready, whose polling intervals would hide the differences measured here:
        # ask until the shell answers and the subscription to iopub carries.
        while not (self._answered() and self._subscribed()):
            if time.perf_counter() - started > 60:
                raise TimeoutError(f"kernel {name} does not answer; it said: {log.read_text()[-2000:]}")
        self.execute("0")
        self.start_seconds = time.perf_counter() - started

    def _answered(self) -> bool:
        self.client.kernel_info()
        try:
            return bool(self.client.get_shell_msg(timeout=0.2))
        except queue.Empty:
            return False

    def _subscribed(self) -> bool:
        try:
            return bool(self.client.get_iopub_msg(timeout=0.02))
        except queue.Empty:
            return False

    def execute(self, code: str, timeout: float = 120) -> tuple[float, int]:
        """Run *code*; return (seconds from sending to reply and idle, number of iopub messages)."""
        started = time.perf_counter()
        message = self.client.execute(code, store_history=False)
        count, idle = 0, False
        while not idle:
            received = self.client.get_iopub_msg(timeout=timeout)
            if received["parent_header"].get("msg_id") != message:
                continue
            count += 1
            idle = received["msg_type"] == "status" and received["content"]["execution_state"] == "idle"
        while True:
            reply = self.client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == message:
                if reply["content"]["status"] != "ok":
                    raise RuntimeError(f"{code[:60]!r} failed: {reply['content']}")
                return time.perf_counter() - started, count

    def value(self, expression: str) -> str:
        """Return the representation of an expression in the kernel."""
        reply = self.client.execute("", user_expressions={"value": expression}, reply=True, timeout=60)
        return str(reply["content"]["user_expressions"]["value"]["data"]["text/plain"])

    def complete(self, code: str) -> float:
        """Return the seconds a completion of *code* takes."""
        started = time.perf_counter()
        message = self.client.complete(code)
        while self.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != message:
            pass
        return time.perf_counter() - started

    def memory(self, kind: str = "rss", *, tree: bool = True) -> float:
        """Return MB (``rss`` or ``pss``) of the kernel process, with all that descends from it when *tree*."""
        process = psutil.Process(self.manager.provisioner.pid)  # type: ignore[attr-defined]
        processes = [process, *(process.children(recursive=True) if tree else ())]
        return sum(getattr(p.memory_full_info(), kind) for p in processes) / 1e6

    def close(self) -> None:
        """Shut the kernel down and remove its folder."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def both() -> Iterator[tuple[Kernel, Kernel]]:
    """Yield (ours, stock), both started and warm."""
    kernels = (Kernel(OURS), Kernel(STOCK))
    try:
        yield kernels
    finally:
        for kernel in kernels:
            kernel.close()


def compared(name: str, unit: str, bar: float, pairs: list[tuple[float, float]]) -> Figure:
    """Fold (ours, reference) pairs into a figure whose value is the median of the pairwise ratios."""
    ratio = statistics.median(a / b for a, b in pairs)
    ours, reference = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    return Figure(name, unit, ours, reference, ratio, bar, ratio <= bar)


def round_trip(count: int) -> Figure:
    """The cell ``1+1``, from sending to reply and idle."""
    with both() as (ours, stock):
        for kernel in (ours, stock):
            for _ in range(10):
                kernel.execute("1+1")
        pairs = [(ours.execute("1+1")[0] * 1e3, stock.execute("1+1")[0] * 1e3) for _ in range(count)]
    return compared("round trip of 1+1", "ms", 1.0, pairs)


def start(count: int) -> Figure:
    """From starting the process to the answer of its first cell."""
    pairs = []
    for _ in range(count):
        seconds = []
        for name in (OURS, STOCK):
            kernel = Kernel(name)
            seconds.append(kernel.start_seconds)
            kernel.close()
        pairs.append((seconds[0], seconds[1]))
    return compared("start to first result", "s", 1.15, pairs)


def lines(count: int) -> Figure:
    """A hundred thousand printed lines."""
    code = "for i in range(100_000): print('line', i)"
    with both() as (ours, stock):
        pairs = [(ours.execute(code)[0], stock.execute(code)[0]) for _ in range(count)]
    return compared("1e5 printed lines", "s", 0.5, pairs)


def bulk(count: int) -> list[Figure]:
    """Fifty megabytes from one cell, and how much the kernel process itself grows by it."""
    code = "print('x' * 50_000_000)"
    with both() as (ours, stock):
        before = ours.memory(tree=False)
        pairs = [(ours.execute(code)[0], stock.execute(code)[0]) for _ in range(count)]
        growth = ours.memory(tree=False) - before
    return [
        compared("50 MB from one cell", "s", 1.0, pairs),
        Figure("kernel's growth over it", "MB", growth, 0.0, growth, 20.0, growth <= 20.0),
    ]


def completion(count: int) -> Figure:
    """Completing ``os.pa``."""
    with both() as (ours, stock):
        for kernel in (ours, stock):
            kernel.execute("import os")
            for _ in range(3):
                kernel.complete("os.pa")
        pairs = [(ours.complete("os.pa") * 1e3, stock.complete("os.pa") * 1e3) for _ in range(count)]
    return compared("completion", "ms", 1.2, pairs)


def table(count: int) -> Figure:
    """A table of twenty megabytes, as HTML of a data frame."""
    make = (
        "from IPython.display import HTML\n"
        "row = '<tr><th>{0}</th><td>{0}.5</td><td>name &amp; {0}</td></tr>\\n'\n"
        "rows = ''.join(row.format(n) for n in range(300_000))\n"
        "big = HTML('<table border=\"1\" class=\"dataframe\"><tbody>' + rows + '</tbody></table>')"
    )
    with both() as (ours, stock):
        for kernel in (ours, stock):
            kernel.execute(make)
        pairs = [(ours.execute("big")[0], stock.execute("big")[0]) for _ in range(count)]
    return compared("20 MB HTML at the client", "s", 2.0, pairs)


def filter_cost(count: int) -> Figure:
    """A cell that prints and returns plain text, with the output filter and without it (a kernel only for this)."""
    cell = "print('plain text'); 'a result'"
    kernels = (Kernel(OURS), Kernel(OURS, Path(__file__).with_name("unfiltered_kernel.py")))
    try:
        for kernel in kernels:
            for _ in range(20):
                kernel.execute(cell)
        pairs = []
        for number in range(count):  # who comes first alternates: the second finds warmer caches
            order = (0, 1) if number % 2 else (1, 0)
            seconds = {side: kernels[side].execute(cell)[0] * 1e3 for side in order}
            pairs.append((seconds[0], seconds[1]))
    finally:
        for kernel in kernels:
            kernel.close()
    return compared("plain text, filter on / off", "ms", 1.03, pairs)


def idle_memory(_: int) -> list[Figure]:
    """Memory of an idle session (the kernel and all below it) beyond the ordinary kernel's.

    As the sum of resident sizes, in which a page that three processes share counts three times, and with such pages
    counted once (what the machine gets back when the session ends).
    """
    with both() as (ours, stock):
        time.sleep(3)
        sizes = [(kernel.memory("rss"), kernel.memory("pss")) for kernel in (ours, stock)]
    names = ("idle session beyond stock", "the same, shared pages once")
    return [Figure(name, "MB", a, b, a - b, 40.0, a - b <= 40.0) for name, a, b in zip(names, *sizes, strict=True)]


def one_shot(count: int, pause: float = 0.4, name: str = "one-shot fresh sandbox") -> Figure:
    """A fresh sandbox for one program, against bare ``bwrap python3 -c``.

    After *pause* seconds, as between cells that a person runs: the sandbox was opened ahead meanwhile.
    """
    bare = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc", "--dev", "/dev"]
    bare += [sys.executable, "-c", "print(1)"]
    kernel = Kernel(OURS)
    cell = "%%agently_exec --language python\nprint(1)"
    try:
        for _ in range(2):
            kernel.execute(cell)
        pairs = []
        for _ in range(count):
            time.sleep(pause)
            seconds = kernel.execute(cell)[0]
            time.sleep(pause)
            started = time.perf_counter()
            subprocess.run(bare, check=True, stdout=subprocess.DEVNULL)
            pairs.append((seconds * 1e3, (time.perf_counter() - started) * 1e3))
    finally:
        kernel.close()
    return compared(name, "ms", 1.5, pairs)


def one_shot_at_once(count: int) -> Figure:
    """The same without a pause: the start of each sandbox is waited for."""
    return one_shot(count, 0.0, "one-shots back to back")


MEASURES: Measures = {
    "round_trip": (round_trip, 200, 10),
    "start": (start, 7, 1),
    "lines": (lines, 5, 1),
    "bulk": (bulk, 5, 1),
    "completion": (completion, 50, 5),
    "table": (table, 5, 1),
    "filter": (filter_cost, 400, 10),
    "idle": (idle_memory, 1, 1),
    "one_shot": (one_shot, 15, 2),
    "one_shot_at_once": (one_shot_at_once, 15, 2),
}


def asked(names: Iterable[str], description: str) -> argparse.Namespace:
    """Return what the command line asks for of the measures *names*: ``quick``, ``json``, ``only``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples: shows that everything can be measured")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", action="append", choices=sorted(names), help="measure only this; may repeat")
    return parser.parse_args()


def report(measures: Measures, options: argparse.Namespace) -> None:
    """Measure, print the table, write the JSON. *measures*: by name the function, its samples, and those of --quick."""
    figures: list[Figure] = []
    print(f"{'figure':28} {'ours':>10} {'reference':>10}      {'value':>7} {'bar':>6}")
    for name, (measure, samples, few) in measures.items():
        if options.only and name not in options.only:
            continue
        found = measure(few if options.quick else samples)
        for figure in found if isinstance(found, list) else [found]:
            figures.append(figure)
            print(
                f"{figure.name:28} {figure.ours:10.3f} {figure.reference:10.3f} {figure.unit:4} "
                f"{figure.value:7.2f} {figure.bar:6.2f}  {'met' if figure.met else 'MISSED'}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))


if __name__ == "__main__":
    report(MEASURES, asked(MEASURES, __doc__ or ""))
