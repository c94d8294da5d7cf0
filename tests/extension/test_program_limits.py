"""A program that goes over a limit is told which one it was and how large, in every language and in both homes."""

from __future__ import annotations

import pytest
from kernel_session import KernelSession

HUNGRY = {
    "python": "blocks = [bytearray(2**20) for _ in range(4000)]",
    "c++": "#include <cstdlib>\n#include <cstring>\nint main() {\n"
           "  for (int i = 0; i < 4000; i++) { void *p = malloc(1 << 20); memset(p, 1, 1 << 20); }\n}",
    "bash": "head -c 900M /dev/zero | tail | wc\nexit ${PIPESTATUS[1]}",
}


@pytest.mark.parametrize("language", HUNGRY)
def test_memory(home: KernelSession, language: str) -> None:
    run = home.run(f"%%agently_exec --language {language} --memory 256M\n{HUNGRY[language]}", timeout=120)
    assert run.status == "error"
    assert "the sandbox reached its memory limit of 256 MiB." in run.error[1], (run.error, run.text("stderr"))


def test_a_process_that_ends_for_another_reason_is_not_blamed_on_a_limit(home: KernelSession) -> None:
    for source in ("import os; os.kill(os.getpid(), 9)", "raise SystemExit(3)"):
        run = home.run(f"%%agently_exec --memory 256M\n{source}", timeout=60)
        assert run.status == "error"
        assert "limit" not in run.error[1]
