"""The plans really build and run: several files, right names in messages, outputs where the program stands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plan_runner import PlanRunner, tool
from test_language_plans import prepare


@pytest.fixture
def runner(tmp_path):
    return PlanRunner(tmp_path)


def test_python_modules_and_output(runner, tmp_path):
    ran = runner.run(
        prepare(
            "python",
            "import sys, pkg.tool\nopen('output/x.txt','w').write(pkg.tool.word)\nprint(sys.argv[1:], input())",
            files={"pkg/__init__.py": b"", "pkg/tool.py": b"word = 'yes'"},
            args=("a b", ""),
            stdin=b"line\n",
        )
    )
    assert (ran.code, ran.out, ran.err) == (0, "['a b', ''] line\n", "")
    assert (tmp_path / "output" / "x.txt").read_text() == "yes"


def test_python_package_with_relative_imports(runner):
    files = {"p/__init__.py": b"", "p/__main__.py": b"from .x import y\nprint(y)", "p/x.py": b"y = 5"}
    assert runner.run(prepare("python", files=files, entrypoint="p/__main__.py")).out == "5\n"


def test_python_error_names_file_and_line(runner):
    ran = runner.run(prepare("python", "1\n1/0\n"))
    assert ran.code == 1 and 'main.py", line 2' in ran.err and ran.err.endswith("ZeroDivisionError: division by zero\n")


def test_bash_beside_its_files(runner):
    bundle = prepare(
        "bash",
        'source "$(dirname "$0")/lib.sh"; hello "$1"; exit 4',
        files={"lib.sh": b"hello() { echo hi $1; }"},
        args=("you",),
    )
    ran = runner.run(bundle)
    assert (ran.code, ran.out) == (4, "hi you\n")


def test_node_common_and_es_modules(runner):
    tool("node")
    files = {"lib.mjs": b"export const x = 2", "old.cjs": b"module.exports = 3"}
    source = "import {x} from './lib.mjs'\nimport old from './old.cjs'\nconsole.log(x + old, process.argv[2])"
    assert runner.run(prepare("node", source, files=files, args=("--inspect",))).out == "5 --inspect\n"
    assert runner.run(prepare("node", "console.log(require('./d.json').a)", files={"d.json": b'{"a": 7}'})).out == "7\n"


def test_node_error_names_file_and_line(runner):
    tool("node")
    ran = runner.run(prepare("node", "let a = 1\nthrow new Error('no')\n"))
    assert ran.code == 1 and "main.js:2" in ran.err


CPP = {
    "main.cpp": b'#include "lib/sum.h"\n#include <iostream>\n'
    b"int main(int n, char** v) { std::cout << sum(n, 40) << v[1]; }\n",
    "lib/sum.h": b"int sum(int, int);\n",
    "lib/sum.cc": b'#include "lib/sum.h"\nint sum(int a, int b) { return a + b; }\n',
}


def test_cpp_of_two_sources(runner):
    tool("c++")
    ran = runner.run(prepare("c++", files=CPP, args=("!",)))
    assert (ran.role, ran.code, ran.out) == ("run", 0, "42!")


def test_cpp_message_carries_the_users_name(runner):
    tool("c++")
    ran = runner.run(prepare("c++", files={**CPP, "lib/sum.cc": b"int sum(int a, int b) {\n  return a + c;\n}\n"}))
    assert ran.role == "build" and ran.code != 0
    assert "\nlib/sum.cc:2:14: error: " in "\n" + ran.err


GO = {
    "main.go": b'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println(sum(40, 2)) }\n',
    "sum.go": b"package main\n\nfunc sum(a, b int) int { return a + b }\n",
}


@pytest.fixture(scope="module")
def go_runner(tmp_path_factory):
    """One build area for all Go tests: the standard library is compiled once."""
    return PlanRunner(tmp_path_factory.mktemp("go"), tools=str(Path(tool("go")).parent))


def test_go_of_two_files(go_runner):
    ran = go_runner.run(prepare("go", files=GO))
    assert (ran.code, ran.out) == (0, "42\n")
    assert not os.path.exists(Path(go_runner.roots["build"]) / "go.mod")


def test_go_package_in_a_folder(go_runner):
    files = {
        "main.go": b'package main\n\nimport "main/lib"\n\nfunc main() { println(lib.Word()) }\n',
        "lib/lib.go": b'package lib\n\nfunc Word() string { return "from lib" }\n',
    }
    ran = go_runner.run(prepare("go", files=files))
    assert (ran.code, ran.err) == (0, "from lib\n")


def test_go_message_carries_the_users_name(go_runner):
    ran = go_runner.run(prepare("go", files={**GO, "sum.go": b"package main\n\nfunc sum(a, b int) int { return c }\n"}))
    assert ran.role == "build" and "sum.go:3:33: undefined: c" in ran.err.replace("undeclared name", "undefined")
