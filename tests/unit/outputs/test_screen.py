"""What a cell is told about outputs that were not shown: each thing once, and not without end."""

from __future__ import annotations

import asyncio
from typing import Any

from agently_kernel.contract.outputs import DisplayOutput
from agently_kernel.iopub import Publisher
from agently_kernel.outputs import OutputFilter, Withheld
from agently_kernel.screen import MOST_NOTICES, Screen


class _Log:
    def write(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass

    def account(self, hidden: int) -> str:
        return ""


class Bench:
    """A screen whose messages are kept."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.observed: list[Withheld] = []
        publisher = Publisher(
            lambda kind, content, *_: self.sent.append((kind, dict(content))), budget=2**20, open_log=lambda _: _Log()
        )
        self.screen = Screen(
            publisher, OutputFilter(), observe_withheld=lambda _, item: self.observed.append(item)
        )
        self.screen.begin("c", {}, 1)

    async def lines(self) -> list[str]:
        """Finish the cell and return the lines of the kernel's own."""
        await asyncio.wait_for(self.screen.finish("c"), 10)
        text = "".join(content["text"] for kind, content in self.sent if kind == "stream")
        return [line for line in text.splitlines() if line.startswith("[agently]")]


async def test_notices_of_made_up_kinds_have_an_end_and_the_rest_is_counted() -> None:
    bench = Bench()
    for number in range(200):
        data = {"text/plain": "x", f"application/x-made-up-{number}": "y"}
        bench.screen(DisplayOutput("c", "display_data", data, {}, None))
    lines = await bench.lines()
    assert len(bench.observed) == 200
    assert len(lines) == MOST_NOTICES + 1
    assert lines[-1] == "[agently] … and 180 more outputs were withheld, in whole or in part."


async def test_a_notice_is_told_once_whoever_repeats_it() -> None:
    bench = Bench()
    for _ in range(100):
        bench.screen.withheld("c", (), "[withheld] the same thing")
    assert await bench.lines() == ["[agently] [withheld] the same thing"]


async def test_lines_of_the_kernels_own_are_told_beside_a_flood_of_them() -> None:
    bench = Bench()
    for number in range(100):
        bench.screen.withheld("c", (), f"[withheld] thing {number}")
    bench.screen.note("c", "The interpreter ended.")
    assert "[agently] The interpreter ended." in await bench.lines()
