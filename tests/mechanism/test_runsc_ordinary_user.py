"""gVisor without an engine, as an ordinary user: rootless, with the same axes and the same contract."""

from __future__ import annotations

import re
import subprocess

import pytest
from bubblewrap_support import ROOT
from images import require_tool
from ordinary_user import ordinary_user


@pytest.mark.root
@pytest.mark.timeout(300)
@pytest.mark.skipif(not ROOT, reason="the tests run as an ordinary user anyway")
def test_everything_holds_for_an_ordinary_user() -> None:
    require_tool("runsc")
    with ordinary_user() as user:
        answer = subprocess.run(
            [*user.command, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=120",
             "tests/mechanism/test_runsc.py"],
            env=user.environment, cwd=user.repository, capture_output=True, text=True, timeout=280, check=False,
        )
    summary = answer.stdout.strip().splitlines()[-1] if answer.stdout.strip() else answer.stderr[-2000:]
    assert answer.returncode == 0, answer.stdout[-6000:]
    passed = re.search(r"(\d+) passed", summary)
    assert passed is not None and int(passed.group(1)) >= 25, summary
