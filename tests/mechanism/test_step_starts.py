"""How programs are started in a real sandbox: what they inherit, what they get back, and why one did not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from bubblewrap_session import opened

from agently_kernel.contract.result import ExecutionStatus

FILES = {"main.py": b"print(1)"}


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("no-such-program",), "the program no-such-program cannot be started: No such file or directory"),
        (("/no/such/program",), "the program /no/such/program cannot be started: No such file or directory"),
        (("workspace://source/main.py",), "cannot be started: Permission denied"),
    ],
)
async def test_a_program_that_cannot_be_started_is_told_with_the_reason(
    tmp_path: Path, argv: tuple[str, ...], reason: str
) -> None:
    async with opened(tmp_path) as session:
        result = await session.run_program(FILES, argv)
        assert result.status is ExecutionStatus.ERROR
        assert reason in result.message
        assert (await session.run_program(FILES, ("echo", "on"))).stdout.text == "on\n"


@pytest.mark.parametrize("name", ["INT", "HUP", "TERM", "PIPE", "XFSZ"])
async def test_signals_have_their_default_meaning(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as session:
        result = await session.run_program(FILES, ("sh", "-c", f"kill -{name} $$; echo survived"))
        assert result.stdout.text == ""
        assert result.steps[-1].signal == f"SIG{name}"


async def test_a_program_leads_a_session_of_its_own_and_holds_nothing_else(tmp_path: Path) -> None:
    code = "import os; print(os.getsid(0) == os.getpid(), os.getcwd(), sorted(map(int, os.listdir('/proc/self/fd'))))"
    async with opened(tmp_path) as session:
        result = await session.run_program(FILES, ("python3", "-c", code))
        assert result.stdout.text == "True /workspace/build [0, 1, 2, 3]\n"  # 3: the listing
