"""Every language through the Python interface, in real sandboxes: what goes well, and every way that it does not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agently_kernel import CodeExecution, CodeExecutionFile, CodeExecutionRequest, CodeExecutionToolchainRequirement
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.sandbox.session import GuestSession

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is a mechanism of Linux")


@dataclass(frozen=True)
class Language:
    """One language's programs, each doing the same thing."""

    tool: str
    hello: str
    files: dict[str, str]
    broken: str
    broken_at: str
    raising: str
    raising_code: int
    endless: str
    flood: str
    output: str


LANGUAGES = {
    "python": Language(
        tool="python",
        hello="import sys\nprint('hello', *sys.argv[1:], sys.stdin.read())",
        files={
            "main.py": "from package.part import value\nprint(value)",
            "package/__init__.py": "", "package/part.py": "value = 'from a part'",
        },
        broken="x = 1\ndef f(:\n    pass\n", broken_at='main.py", line 2',
        raising="import sys\nsys.exit(3)", raising_code=3,
        endless="while True: pass",
        flood="import sys\nfor _ in range(50): sys.stdout.write('x' * 1023 + '\\n' + ('y' * 1023 + '\\n') * 1023)",
        output="open('output/x.txt', 'w').write('made')",
    ),
    "node": Language(
        tool="node",
        hello="const fs = require('fs');\nconsole.log('hello', ...process.argv.slice(2), fs.readFileSync(0, 'utf8'));",
        files={"main.mjs": "import {value} from './part.mjs';\nconsole.log(value);",
               "part.mjs": "export const value = 'from a part';"},
        broken="const x = 1;\nfunction f( {\n", broken_at="main.js:",
        raising="process.exit(3);", raising_code=3,
        endless="for (;;) {}",
        flood="const block = ('x'.repeat(1023) + '\\n').repeat(1024);\n"
              "for (let i = 0; i < 50; i++) require('fs').writeSync(1, block);",
        output="require('fs').writeFileSync('output/x.txt', 'made');",
    ),
    "go": Language(
        tool="go",
        hello='package main\nimport ("fmt"; "io"; "os")\nfunc main() {\n\tin, _ := io.ReadAll(os.Stdin)\n'
              '\tfmt.Println("hello", os.Args[1], os.Args[2], string(in))\n}\n',
        files={"main.go": 'package main\nimport "fmt"\nfunc main() { fmt.Println(value()) }\n',
               "part.go": 'package main\nfunc value() string { return "from a part" }\n'},
        broken="package main\nfunc main() {\n\tundefined_name()\n}\n", broken_at="main.go:3:2",
        raising='package main\nimport "os"\nfunc main() { os.Exit(3) }\n', raising_code=3,
        endless="package main\nfunc main() { for {} }\n",
        flood='package main\nimport ("os"; "strings")\nfunc main() {\n'
              '\tblock := strings.Repeat(strings.Repeat("x", 1023)+"\\n", 1024)\n'
              "\tfor i := 0; i < 50; i++ { os.Stdout.WriteString(block) }\n}\n",
        output='package main\nimport "os"\nfunc main() { os.WriteFile("output/x.txt", []byte("made"), 0644) }\n',
    ),
    "c++": Language(
        tool="c++",
        hello="#include <iostream>\n#include <iterator>\n#include <string>\nint main(int, char **argv) {\n"
              "  std::string in{std::istreambuf_iterator<char>(std::cin), {}};\n"
              '  std::cout << "hello " << argv[1] << " " << argv[2] << " " << in << "\\n";\n}\n',
        files={"main.cpp": '#include <iostream>\n#include "part.h"\nint main() { std::cout << value() << "\\n"; }\n',
               "part.cpp": '#include "part.h"\nconst char *value() { return "from a part"; }\n',
               "part.h": "const char *value();\n"},
        broken="int main() {\n  return undefined_name;\n}\n", broken_at="main.cpp:2:10",
        raising="int main() { return 3; }\n", raising_code=3,
        endless="int main() { for (volatile int x = 0;;) x = 1; }\n",
        flood="#include <cstdio>\n#include <string>\nint main() {\n  std::string line(1023, 'x'), block;\n"
              "  for (int i = 0; i < 1024; i++) block += line + '\\n';\n"
              "  for (int i = 0; i < 50; i++) std::fwrite(block.data(), 1, block.size(), stdout);\n}\n",
        output='#include <fstream>\nint main() { std::ofstream("output/x.txt") << "made"; }\n',
    ),
    "bash": Language(
        tool="bash",
        hello='echo "hello $1 $2 $(cat)"',
        files={"main.sh": 'source "$(dirname "$0")/part.sh"\necho "$value"', "part.sh": "value='from a part'"},
        broken="x=1\nif then\n", broken_at="main.sh: line 2",
        raising="exit 3", raising_code=3,
        endless="while :; do :; done",
        flood="yes \"$(printf 'x%.0s' {1..1023})\" | head -n 51200",
        output="printf made > output/x.txt",
    ),
}


@pytest.fixture(scope="module")
def execution(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeExecution]:
    """One manager and workspace for all; every run has a fresh sandbox all the same."""
    data = tmp_path_factory.mktemp("data")
    before = os.environ.get("JUPYTER_DATA_DIR")
    os.environ["JUPYTER_DATA_DIR"] = str(data)
    try:
        with CodeExecution.open(candidates=("bubblewrap",), folder=tmp_path_factory.mktemp("notebook")) as made:
            yield made
    finally:
        os.environ.pop("JUPYTER_DATA_DIR")
        if before is not None:
            os.environ["JUPYTER_DATA_DIR"] = before


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(execution: CodeExecution, language: str, source: str | None = None, **more: object) -> CodeExecutionResult:
    timeout = more.pop("timeout", 60.0)
    request = CodeExecutionRequest.model_validate({"language": language, "source_code": source, **more})
    return execution.run(request, timeout=timeout)


def test_hello_with_arguments_and_standard_input(execution: CodeExecution, language: str) -> None:
    result = run(execution, language, LANGUAGES[language].hello, args=("a", "b c"), stdin="grüße".encode())
    assert (result.status, result.message) == (ExecutionStatus.SUCCESS, "")
    assert result.stdout.text.rstrip("\n") == "hello a b c grüße"
    assert result.stderr.text == ""
    assert result.facts is not None
    assert all(result.facts.isolation.as_mapping().values())


def test_a_program_of_several_files_is_built_and_runs(execution: CodeExecution, language: str) -> None:
    files = [CodeExecutionFile(path=path, content=text.encode()) for path, text in LANGUAGES[language].files.items()]
    result = run(execution, language, files=tuple(files))
    assert (result.status, result.stdout.text) == (ExecutionStatus.SUCCESS, "from a part\n")


def test_a_program_that_cannot_be_built_names_file_and_line(execution: CodeExecution, language: str) -> None:
    result = run(execution, language, LANGUAGES[language].broken)
    assert result.status is ExecutionStatus.ERROR
    assert LANGUAGES[language].broken_at in result.stderr.text
    assert result.returncode not in (0, None)


def test_an_exit_code_is_kept(execution: CodeExecution, language: str) -> None:
    result = run(execution, language, LANGUAGES[language].raising)
    assert (result.status, result.returncode) == (ExecutionStatus.ERROR, LANGUAGES[language].raising_code)
    assert "exit code 3" in result.message
    assert "workspace://" not in result.message


def test_the_time_limit_ends_it(execution: CodeExecution, language: str) -> None:
    result = run(execution, language, LANGUAGES[language].endless, timeout=4.0)
    assert result.status is ExecutionStatus.TIMED_OUT
    assert "time limit" in result.message
    assert 3.5 < result.seconds < 30


def test_50_megabytes_keep_head_and_tail(execution: CodeExecution, language: str) -> None:
    result = run(execution, language, LANGUAGES[language].flood)
    assert result.status is ExecutionStatus.SUCCESS
    assert result.stdout.total_bytes == 50 * 2**20
    assert result.stdout.dropped_bytes > 0
    assert len(result.stdout.text) <= 9 * 2**20
    assert result.stdout.text.startswith("xxxx")
    assert result.stdout.text.endswith("\n")


def test_a_declared_output_is_collected(execution: CodeExecution, language: str) -> None:
    result = run(execution, language, LANGUAGES[language].output, expected_outputs=("output/x.txt",))
    assert result.status is ExecutionStatus.SUCCESS
    [output] = result.outputs
    assert (output.path, output.size) == ("output/x.txt", 4)
    assert Path(output.stored_path).read_text() == "made"


def test_a_missing_output_fails_and_the_others_are_kept(execution: CodeExecution, language: str) -> None:
    declared = ("output/x.txt", "output/never.txt")
    result = run(execution, language, LANGUAGES[language].output, expected_outputs=declared)
    assert result.status is ExecutionStatus.ERROR
    assert [(item.path, item.reason) for item in result.refused_outputs] == [("output/never.txt", "missing")]
    assert [item.path for item in result.outputs] == ["output/x.txt"]
    assert "output/never.txt" in result.message


def test_a_constraint_that_is_not_met_skips_the_candidate_with_the_reason(
    execution: CodeExecution, language: str
) -> None:
    tool = LANGUAGES[language].tool
    wanted = (CodeExecutionToolchainRequirement(tool=tool, minimum_version="99"),)
    result = run(execution, language, LANGUAGES[language].hello, toolchains=wanted)
    assert result.status is ExecutionStatus.BLOCKED
    assert f"{tool}>=99" in result.message
    assert "bubblewrap" in result.message


@pytest.mark.parametrize("language", ["go", "c++"])
def test_an_unchanged_program_is_not_built_again(
    execution: CodeExecution, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    request = GuestSession.request

    async def noted(self: GuestSession, message: Mapping[str, Any], *args: Any, **more: Any) -> Any:
        asked.append(message["op"])
        return await request(self, message, *args, **more)

    monkeypatch.setattr(GuestSession, "request", noted)
    source = LANGUAGES[language].raising.replace("3", "0")
    first, second = (run(execution, language, source) for _ in range(2))
    assert asked.count("copy") == 1 and "put" not in asked  # the sandbox sees it, so it is not sent
    changed = run(execution, language, source.replace("0", "4"))
    assert [step.role for step in first.steps] == ["build", "run"]
    assert [step.role for step in second.steps] == ["run"]
    assert second.status is ExecutionStatus.SUCCESS
    assert [step.role for step in changed.steps] == ["build", "run"]
    assert changed.returncode == 4
