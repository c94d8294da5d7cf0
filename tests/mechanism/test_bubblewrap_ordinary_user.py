"""The same tests once more as an ordinary user: in a user namespace, without control groups."""

from __future__ import annotations

import re
import subprocess

import pytest
from bubblewrap_support import ROOT
from ordinary_user import UID, ordinary_user

SUITES = (
    "tests/mechanism/test_bubblewrap_sandbox.py", "tests/mechanism/test_bubblewrap_facts.py",
    "tests/mechanism/test_bubblewrap_provider.py", "tests/mechanism/test_session_bubblewrap.py", "tests/escapes",
)


@pytest.mark.root
@pytest.mark.timeout(300)
@pytest.mark.skipif(not ROOT, reason="the tests run as an ordinary user anyway")
def test_everything_holds_for_an_ordinary_user() -> None:
    with ordinary_user() as user:
        who = subprocess.run(
            [*user.command, "-c", "import os; print(os.geteuid())"],
            env=user.environment, capture_output=True, text=True, check=True,
        )
        assert who.stdout.strip() == str(UID)
        answer = subprocess.run(
            [*user.command, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=120", *SUITES],
            env=user.environment, cwd=user.repository, capture_output=True, text=True, timeout=280, check=False,
        )
    summary = answer.stdout.strip().splitlines()[-1] if answer.stdout.strip() else answer.stderr[-2000:]
    assert answer.returncode == 0, answer.stdout[-6000:]
    passed = re.search(r"(\d+) passed", summary)
    assert passed is not None and int(passed.group(1)) >= 170, summary
