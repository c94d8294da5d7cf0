"""The notebooks, run from top to bottom in both homes, and what they showed."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from magic_homes import environment
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def shown(cell: Any) -> str:
    """Return everything that a cell showed, as plain text."""
    texts = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            texts.append(output.text)
        elif output.output_type == "error":
            texts.append(f"{output.ename}: {output.evalue}")
        else:
            texts.append(str(output.data.get("text/plain", "")))
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(texts))


@pytest.fixture
def run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a copy of a notebook; return what each code cell showed, by the first line of its source."""
    for name, value in environment(tmp_path_factory.getbasetemp()).items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "notebooks"
    shutil.copytree(NOTEBOOKS, folder)

    def execute(name: str, kernel: str) -> dict[str, str]:
        notebook = nbformat.read(folder / name, as_version=4)
        where = {"metadata": {"path": str(folder)}}
        client = NotebookClient(
            notebook, kernel_name=kernel, timeout=120, coalesce_streams=True, resources=where
        )
        asyncio.run(client.async_execute())
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for cell in code:
            failed = any(output.output_type == "error" for output in cell.outputs)
            assert failed == ("raises-exception" in cell.metadata.get("tags", ())), shown(cell)
        texts: dict[str, str] = {}
        for cell in code:
            first = cell.source.splitlines()[0]
            texts[first] = texts.get(first, "") + shown(cell)
        return texts

    return execute


@pytest.mark.parametrize("kernel", ["agently", "python3"])
def test_languages(run: Any, kernel: str) -> None:
    cells = run("languages.ipynb", kernel)
    texts = list(cells.values())
    assert "usage: %%agently_exec" in cells["%%agently_exec --help"]
    assert any("wrote 5 lines" in text and "collected output/squares.csv (21 bytes" in text for text in texts)
    assert "success ['output/squares.csv'] 21 bytes" in texts[3]
    assert "One Sandbox For Every Cell" in cells["%%agently_exec --language node"]
    assert "2 arguments: first second" in cells["%%agently_exec --language bash -- first second"]
    assert "go 1\ngo 2\ngo 3" in cells["%%agently_exec --language go --toolchain 'go>=1.19' --result built"]
    assert "sum 55" in cells["%%agently_exec --language c++ --result compiled"]
    assert "hello from several files, sandbox" in cells["%%agently_exec --language c++ --file data/greeting"]
    assert "best: ada" in cells["%%agently_exec --input data/scores.csv"]
    assert "main.go:4:2: undefined: undefined_name" in cells["%%agently_exec --language go"]
    assert "CellTimedOut" in cells["%%agently_exec --timeout 1"]
    assert "python>=99" in cells["%%agently_exec --toolchain 'python>=99'"]
    assert "did you mean --isolation?" in cells["%%agently_exec --isolaton none"]
    assert "output/squares.csv  21 bytes" in cells["%agently outputs"]


@pytest.mark.parametrize("kernel", ["agently", "python3"])
def test_approvals(run: Any, kernel: str) -> None:
    cells = run("approvals.ipynb", kernel)
    assert "here: ['output']\nhome folders: [] keys: []" in cells["%%agently_exec"]
    assert "name inside  data/scores.csv" in cells["%agently grant data/scores.csv"]
    assert "ApprovalDenied" in cells["%%agently_exec --input /etc/hostname"]
    assert "sensitive_input: /etc/hostname" in cells["%%agently_exec --input /etc/hostname"]
    assert "limits: 64 GiB of memory instead of 2 GiB" in cells["%%agently_exec --memory 64G"]
    assert "network: example.org" in cells["%%agently_exec --network example.org"]
    assert "with less" in cells["%%agently_exec --memory 256M --network none"]
    assert "collected output/report.txt (41 bytes" in cells["%%agently_exec --output output/report.txt"]
    assert "save_output" in cells["%agently outputs --save results"]
    assert "data/scores.csv  snapshot" in cells["%agently status"]
    assert "released" in cells["%agently events"]


def test_unsafe_fallback(run: Any) -> None:
    cells = run("unsafe_fallback.ipynb", "python3")
    assert "it isolates nothing, and isolation is required" in cells["%%agently_exec --provider trusted_local"]
    asked = cells["%%agently_exec --isolation preferred --unsafe-fallback --provider trusted_local"]
    assert "isolation 'preferred' instead of 'required'" in asked
    texts = "\n".join(cells.values())
    assert "success ran on the host" in texts
    assert "unsafe: True | provider: trusted_local" in texts
    assert "'process_contained': False" in texts
    assert "bubblewrap unsafe: False" in texts


def test_provider_author(run: Any) -> None:
    cells = run("provider_author.ipynb", "python3")
    texts = "\n".join(cells.values())
    assert "available: True | class: constrained" in texts
    assert "✓ syscalls_restricted" in texts
    assert "✗ host_filesystem_restricted" in texts
    assert "blocked\n  1. filtered: " in texts
    assert "success | ran behind the filter | fallback: True" in texts
    assert re.search(r"flipped: \['?(?:privilege_escalation_blocked', ')?syscalls_restricted'\]", texts), texts
    assert re.search(r"^\d+ passed", cells["import subprocess"]), cells["import subprocess"]
