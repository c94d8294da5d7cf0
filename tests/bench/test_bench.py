"""The bench itself works: every figure can be measured. No timing is asserted; ``make bench`` prints the figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(400)
def test_every_figure_is_measured(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    bench = Path(__file__).with_name("run.py")
    subprocess.run([sys.executable, bench, "--quick", "--json", target], check=True, timeout=380)
    figures = {figure["name"]: figure for figure in json.loads(target.read_text())}
    assert set(figures) == {
        "round trip of 1+1",
        "start to first result",
        "1e5 printed lines",
        "50 MB from one cell",
        "kernel's growth over it",
        "completion",
        "20 MB HTML at the client",
        "plain text, filter on / off",
        "idle session beyond stock",
        "the same, shared pages once",
        "one-shot fresh sandbox",
        "one-shots back to back",
    }
    assert all(figure["ours"] > 0 for name, figure in figures.items() if name != "kernel's growth over it")


@pytest.mark.docker
@pytest.mark.timeout(200)
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can start an engine of its own")
def test_every_figure_of_containers_is_measured(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    bench = Path(__file__).with_name("containers.py")
    subprocess.run([sys.executable, bench, "--quick", "--json", target], check=True, timeout=180)
    figures = {figure["name"]: figure for figure in json.loads(target.read_text())}
    assert set(figures) == {
        "container to docker run", "cell on docker", "cell on gvisor", "containers a session",
        "docker programs started", "probes of the chain, cold", "the same, warm",
    }
    # These two are no timings.
    assert (figures["containers a session"]["ours"], figures["docker programs started"]["ours"]) == (1, 0)


@pytest.mark.timeout(300)
def test_every_figure_of_programs_is_measured(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    bench = Path(__file__).with_name("programs.py")
    subprocess.run([sys.executable, bench, "--quick", "--json", target], check=True, timeout=280)
    assert {figure["name"] for figure in json.loads(target.read_text())} == {
        "one-shot Python", "magic in a stock kernel", "go rebuild, unchanged", "c++ rebuild, unchanged",
        "128 outputs of 1 MiB",
    }
