"""However long the text of an exception is, its name and the place where it came from are shown."""

from __future__ import annotations

import pytest
from guest_driver import Guest
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.guest import tracebacks


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('head-' + 'x' * 80_000_000 + '-tail')",
        "raise ValueError('head-' + 'x\\n' * 20_000_000 + '-tail')",
        "class E(ValueError):\n    def __str__(self): return 'head-' + 'é' * 40_000_000 + '-tail'\nraise E()",
        "import sys\ndef f(n): return f(n - 1) if n else 1 / 0\nsys.setrecursionlimit(20000)\nf(5000)",
    ],
)
def test_a_huge_error_is_shown_short_with_its_ends(either: Guest, code: str) -> None:
    cell = either.run(code, timeout=60)
    error = cell.error()
    assert cell.done[0] == "error"
    assert error["ename"] in ("ValueError", "E", "ZeroDivisionError", "RecursionError")
    if error["ename"] in ("ValueError", "E"):
        assert error["evalue"].startswith("head-") and error["evalue"].endswith("-tail")
        assert "characters left out" in error["evalue"]
    text = "\n".join(error["traceback"])
    assert len(text) <= tracebacks.MAX_TEXT + 10_000
    assert "Traceback" in text and error["traceback"][-1]


def test_a_huge_name_and_user_expressions_are_bounded_too(either: Guest) -> None:
    error = either.run("raise type('N' * 3_000_000, (Exception,), {})('a')").error()
    assert error["ename"].startswith("NNN") and len(error["ename"]) < 1100
    _, reply = either.run("1", user_expressions={"big": "int('head-' + 'x' * 80_000_000)", "small": "6 * 7"}).done
    assert reply["user_expressions"]["small"]["data"]["text/plain"] == "42"
    assert reply["user_expressions"]["big"]["ename"] == "ValueError"
    assert len(reply["user_expressions"]["big"]["evalue"]) <= tracebacks.MAX_VALUE + 100


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(20, 400))
def test_whole_lines_of_both_ends_are_kept(sizes: list[int], half: int) -> None:
    lines = [chr(97 + n % 26) * size for n, size in enumerate(sizes)]
    kept = tracebacks._ends(lines, half)
    middle = next(n for n, line in enumerate(kept) if line.startswith("[... "))
    head, tail = kept[:middle], kept[middle + 1 :]
    assert head == lines[: len(head)]
    assert tail == lines[len(lines) - len(tail) :]
    assert kept[middle] == f"[... {len(lines) - len(head) - len(tail)} lines left out ...]"
    assert sum(map(len, head)) <= half and sum(map(len, tail)) <= half
