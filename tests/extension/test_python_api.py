"""The examples of docs/python-api.md, run as they stand."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

import agently_kernel
from agently_kernel import CodeExecution, CodeExecutionRequest
from agently_kernel.contract.errors import ExecutionResourceError

TEXT = (Path(__file__).parents[2] / "docs" / "python-api.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.S)
SHOWN = [
    "success\nhello\noutput/x.csv 8\nbubblewrap True\n",
    "['0', '1', '4']\n",
    "sum: 6\n",
    "bubblewrap from bash\n",
    "blocked [('dependencies', 'Install packages')]\n",
    "42 ['ready']\nreleased\n",
]


@pytest.mark.parametrize(("example", "shown"), list(zip(EXAMPLES, SHOWN, strict=True)))
def test_an_example_shows_what_it_says(example: str, shown: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.returncode) == (shown, 0), done.stderr


def test_every_public_name_is_there() -> None:
    assert set(agently_kernel._PLACES) <= set(dir(agently_kernel))
    for name in agently_kernel._PLACES:
        assert getattr(agently_kernel, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = agently_kernel.Nothing


def test_nothing_is_left_after_closing(tmp_path: Path) -> None:
    with CodeExecution.open(folder=tmp_path) as execution:
        assert execution.workspace is not None
        runtime = execution.workspace.runtime_path
        assert execution.run(CodeExecutionRequest(source_code="print(1)")).stdout.text == "1\n"
        assert runtime.is_dir()
    assert not runtime.exists()


def test_the_synchronous_form_is_refused_on_a_running_loop(tmp_path: Path) -> None:
    with CodeExecution.open(folder=tmp_path) as execution:

        async def inside() -> None:
            with pytest.raises(ExecutionResourceError, match="running event loop"):
                execution.run(CodeExecutionRequest(source_code="1"))

        asyncio.run(inside())


BAD = [
    ({"timeout": "a"}, TypeError, "number of seconds"), ({"timeout": True}, TypeError, "number of seconds"),
    ({"timeout": 0}, ValueError, "more than 0"), ({"timeout": float("nan")}, ValueError, "more than 0"),
    ({"timeout": float("inf")}, ValueError, "finite"), ({"policy": "required"}, TypeError, "policy"),
    ({"requirement": {}}, TypeError, "requirement"), ({"access": []}, TypeError, "access"),
    ({"candidates": (1,)}, ValueError, "ProviderCandidate"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("options", "kind", "named"), BAD)
def test_an_argument_that_is_none_is_refused_before_anything_begins(
    tmp_path: Path, options: dict[str, object], kind: type[Exception], named: str
) -> None:
    with CodeExecution.open(folder=tmp_path) as execution:
        with pytest.raises(kind, match=named):
            execution.run(CodeExecutionRequest(source_code="print(1)"), **options)  # type: ignore[arg-type]
        assert not execution.manager.list()


def test_a_program_that_is_none_is_refused(tmp_path: Path) -> None:
    with CodeExecution.open(folder=tmp_path) as execution, pytest.raises(TypeError, match="CodeExecutionRequest"):
        execution.run("print(1)")  # type: ignore[arg-type]


def test_both_forms_of_a_run_show_the_same_arguments() -> None:
    import inspect

    assert inspect.signature(CodeExecution.run) == inspect.signature(CodeExecution.async_run)
