# ruff: noqa: E501 - programs of guests stand on one line
"""Files of cells that are long over are pruned by the host: what a living function is made of is still told."""

from __future__ import annotations

import shutil
from pathlib import Path

from guest_driver import Guest

from agently_kernel.guest.sources import REMEMBERED_CHARACTERS, Sources


def test_source_and_tracebacks_of_living_things_survive_the_files(either: Guest) -> None:
    cell = either.run(
        "def pruned(x):\n    return 1 / x  # the line\nclass Pruned:\n    '''a class'''\n    def method(self):\n        "
        "return pruned(0)  # the method\nprint(pruned.__code__.co_filename)"
    )
    path = Path(cell.text().strip())
    assert path.exists()
    shutil.rmtree(path.parent) if path.parent.name.startswith("bundle") else path.unlink()
    look = "import inspect, linecache; linecache.checkcache(); print(inspect.getsource(pruned).splitlines()[1].strip())\n"
    assert either.run(look).text() == "return 1 / x  # the line\n"
    assert either.run("print(inspect.getsource(Pruned.method).strip().splitlines()[1].strip())").text() == (
        "return pruned(0)  # the method\n"
    )
    assert "class Pruned" in either.run("print(inspect.getsource(Pruned))").text()
    failed = either.run("Pruned().method()")
    assert failed.done[0] == "error"
    shown = str(failed.frames) if hasattr(failed, "frames") else str(vars(failed))
    assert "# the line" in shown and "# the method" in shown


def test_what_is_remembered_is_bounded() -> None:
    sources, size = Sources(), REMEMBERED_CHARACTERS // 8
    for number in range(20):
        sources.add(f"/cell-{number}", "#" * size)
    sources.add("/cell-19", "#" * (size // 2))
    assert list(sources._sizes) == [f"/cell-{number}" for number in range(13, 20)] or len(sources._sizes) <= 8
    assert sources._total == sum(sources._sizes.values()) <= REMEMBERED_CHARACTERS
