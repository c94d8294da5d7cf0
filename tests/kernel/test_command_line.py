"""The command ``agently-kernel`` as a process of its own, with the user's configuration as it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is a mechanism of Linux")


def command(folder: Path, config: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``agently-kernel`` with the text *config* as the user's configuration file."""
    folder.joinpath("agently_kernel_config.py").write_text(config, "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "agently_kernel.cli", *arguments], env={**os.environ, "JUPYTER_CONFIG_DIR": str(folder)},
        capture_output=True, text=True, timeout=120, check=False,
    )


BROKEN = {
    "a misspelt setting": "c.AgentlyKernel.provider = ['bubblewrap']",
    "a value out of range": "\nc.AgentlyKernel.limits = {'memory': '1K'}",
    "an error": "1 / 0",
}
CLAIMS = ("run in this one", "Cells run in", "→")


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize(
    "arguments", [("providers",), ("doctor",), ("doctor", "--provider", "bubblewrap")], ids=" ".join
)
def test_with_a_broken_configuration_no_provider_is_said_to_run_cells(
    tmp_path: Path, fault: str, arguments: tuple[str, ...]
) -> None:
    ended = command(tmp_path, BROKEN[fault], *arguments)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert said.count("No cell is run until this is corrected") == 1
    assert f"{tmp_path / 'agently_kernel_config.py'}" in said and "line " in said
    assert not [claim for claim in CLAIMS if claim in said], said
    as_json = json.loads(command(tmp_path, BROKEN[fault], *arguments, "--json").stdout)
    assert not any(row["in_use"] for row in (as_json if isinstance(as_json, list) else as_json["providers"]))


def test_with_a_good_configuration_the_provider_is_named(tmp_path: Path) -> None:
    ended = command(tmp_path, "c.AgentlyKernel.providers = ['bubblewrap']", "providers")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"^bubblewrap +cells run in this one$", ended.stdout, re.MULTILINE)
