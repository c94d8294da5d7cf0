"""Plans of the adapters, exactly as they are; nothing is run here."""

from __future__ import annotations

import importlib.metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.contract.bundle import (
    CodeExecutionFile,
    CodeExecutionRequest,
    CodeExecutionToolchainRequirement,
    ExecutionForm,
    compare_versions,
)
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.languages import AdapterRegistry, get_adapter, languages

POLICY = ExecutionResourcePolicy()


def prepare(language, source=None, *, files=None, **more):
    request = CodeExecutionRequest(
        language=language,
        source_code=source,
        files=tuple(CodeExecutionFile(path=path, content=content) for path, content in (files or {}).items()),
        **more,
    )
    return get_adapter(language).prepare(request, POLICY)


def plan(bundle):
    steps = [*bundle.build_steps, *([bundle.run_step] if bundle.run_step else [])]
    return [(step.role, step.cwd, step.argv) for step in steps]


def app_of(bundle):
    return bundle.run_step.argv[0]


def test_all_languages_and_their_aliases():
    assert languages() == ("bash", "c++", "go", "node", "python")
    for alias, language in [
        ("py", "python"),
        ("python3", "python"),
        ("NodeJS", "node"),
        ("golang", "go"),
        ("cpp", "c++"),
        ("g++", "c++"),
        ("sh", "bash"),
        ("shell", "bash"),
        ("javascript", "node"),
        ("js", "node"),
    ]:
        assert get_adapter(alias).language_id == language


def test_unknown_language_lists_what_there_is():
    with pytest.raises(ConfigurationError, match=r"'rust'; there are bash, c\+\+, go, node, python"):
        get_adapter("rust")
    with pytest.raises(ConfigurationError, match="must match"):
        get_adapter("ru st")


def test_python_cell_is_one_file_without_steps():
    bundle = prepare("python", "x = 'é'\n", form=ExecutionForm.SESSION, options={"silent": False, "execution_count": 3})
    assert plan(bundle) == []
    assert bundle.entrypoint == "cell.py"
    assert bundle.files[0].content == "x = 'é'\n".encode()
    assert dict(bundle.options) == {"silent": False, "execution_count": 3}
    assert bundle.form is ExecutionForm.SESSION


@pytest.mark.parametrize("more", [{"args": ("a",)}, {"stdin": b"x"}])
def test_python_cell_takes_no_args_and_no_stdin(more):
    with pytest.raises(ConfigurationError, match="run it one_shot"):
        prepare("python", "1", form=ExecutionForm.SESSION, **more)


@pytest.mark.parametrize("language", ["node", "go", "c++", "bash"])
def test_only_python_has_a_session(language):
    with pytest.raises(ConfigurationError, match="no resident session"):
        prepare(language, "1", form=ExecutionForm.SESSION)


def test_python_program():
    bundle = prepare(
        "python", "import helper", files={"helper.py": b""}, args=("-v", ""), expected_outputs=("output/a",)
    )
    assert plan(bundle) == [("run", "scratch", ("python3", "-u", "workspace://source/main.py", "-v", ""))]
    assert dict(bundle.run_step.env) == {"PYTHONDONTWRITEBYTECODE": "1"}
    assert [file.path for file in bundle.files] == ["helper.py", "main.py"]
    assert bundle.expected_outputs == ("output/a",)


def test_python_package_is_run_by_its_name():
    bundle = prepare("python", files={"a/b/__init__.py": b"", "a/b/__main__.py": b""}, entrypoint="a/b/__main__.py")
    assert bundle.run_step.argv == ("python3", "-u", "-m", "a.b")
    assert bundle.run_step.env["PYTHONPATH"] == "workspace://source"


def test_python_requirements_are_installed_with_network_in_that_step_only():
    bundle = prepare("python", "1", files={"requirements.txt": b"x==1\n"})
    assert [(step.role, step.network) for step in (*bundle.build_steps, bundle.run_step)] == [
        ("build", True),
        ("run", False),
    ]
    assert bundle.build_steps[0].argv == (
        "python3",
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--target",
        "workspace://build/.deps/python",
        "--requirement",
        "requirements.txt",
    )
    assert bundle.run_step.env["PYTHONPATH"] == "workspace://build/.deps/python"
    ignored = prepare("python", "1", files={"requirements.txt": b"x==1\n"}, options={"dependencies": "ignore"})
    assert ignored.build_steps == () and "PYTHONPATH" not in ignored.run_step.env


def test_python_package_with_requirements_searches_both_places():
    bundle = prepare(
        "python",
        files={"p/__init__.py": b"", "p/__main__.py": b"", "requirements.txt": b"x\n"},
        entrypoint="p/__main__.py",
    )
    assert bundle.run_step.env["PYTHONPATH"] == "workspace://source:workspace://build/.deps/python"


def test_dependencies_option_names_its_values():
    with pytest.raises(ConfigurationError, match="'maybe'; allowed are 'install' and 'ignore'"):
        prepare("python", "1", files={"requirements.txt": b"x\n"}, options={"dependencies": "maybe"})


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("console.log(1)", "main.js"),
        ("const fs = require('fs')", "main.js"),
        ("import fs from 'fs'", "main.mjs"),
        ("import {x} from './x.mjs'", "main.mjs"),
        ("import './x.mjs'", "main.mjs"),
        ("export default 3", "main.mjs"),
        ("export{a}", "main.mjs"),
        ("// import fs from 'fs'\nimportant = 1", "main.js"),
        ("const p = import('fs')", "main.js"),
    ],
)
def test_node_source_is_named_by_its_module_kind(source, name):
    assert prepare("node", source).entrypoint == name


def test_node_packages_lie_beside_the_program():
    files = {"package.json": b'{"dependencies": {"left-pad": "1"}}', "main.mjs": b"import 'left-pad'"}
    bundle = prepare("node", files=files)
    place = bundle.run_step.argv[1].removesuffix("/main.mjs")
    assert place.startswith("workspace://build/.app-")
    assert bundle.build_steps[0].argv[-1] == place
    assert bundle.build_steps[1].argv == ("npm", "install", "--no-audit", "--no-fund", "--prefix", place)
    assert [step.network for step in bundle.build_steps] == [False, True]
    locked = prepare("node", files={**files, "package-lock.json": b"{}"})
    assert locked.build_steps[1].argv[:2] == ("npm", "ci")
    assert prepare("node", files={"package.json": b'{"type": "module"}', "main.js": b""}).build_steps == ()


def test_node_package_file_that_is_no_json():
    with pytest.raises(ConfigurationError, match=r"package\.json is not JSON"):
        prepare("node", "1", files={"package.json": b"{"})


def test_go_files_at_the_root_are_built_as_a_list():
    bundle = prepare("go", files={"main.go": b"package main", "util.go": b"package main", "data.txt": b""})
    app = app_of(bundle)
    assert plan(bundle) == [
        ("build", "source", ("go", "build", "-o", app, "main.go", "util.go")),
        ("run", "scratch", (app,)),
    ]
    assert dict(bundle.build_steps[0].env) == {
        "CGO_ENABLED": "0",
        "GO111MODULE": "on",
        "GOCACHE": "workspace://build/.cache/go-build",
        "GOENV": "off",
        "GOFLAGS": "-buildvcs=false",
        "GOMODCACHE": "workspace://build/.cache/go-mod",
        "GOPATH": "workspace://build/.cache/go",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
    }


@pytest.mark.parametrize("extra", ["lib/lib.go", "main_test.go", "sys_windows.go", "_draft.go"])
def test_go_packages_get_a_module(extra):
    bundle = prepare("go", files={"main.go": b"package main", extra: b"package x"})
    assert bundle.build_steps[0].argv[-1] == "."
    assert {f.path: f.content for f in bundle.files}["go.mod"] == b"module main\n\ngo 1.19\n"


def test_go_build_constraint_needs_the_package_form():
    bundle = prepare("go", files={"main.go": b"package main", "x.go": b"//go:build ignore\n\npackage main"})
    assert bundle.build_steps[0].argv[-1] == "."


def test_go_command_in_a_folder_of_a_module():
    files = {"go.mod": b"module m\n\ngo 1.20\n", "cmd/tool/main.go": b"package main", "m.go": b"package m"}
    bundle = prepare("go", files=files, entrypoint="cmd/tool/main.go")
    assert bundle.build_steps[0].argv[-1] == "./cmd/tool"
    assert len([f for f in bundle.files if f.path == "go.mod"]) == 1


def test_go_module_takes_the_version_that_was_asked_for():
    bundle = prepare(
        "go", files={"main.go": b"", "a/a.go": b""}, toolchains=(CodeExecutionToolchainRequirement.parse("go>=1.22.3"),)
    )
    assert {f.path: f.content for f in bundle.files}["go.mod"] == b"module main\n\ngo 1.22\n"


def test_go_dependencies_need_their_sums():
    files = {"go.mod": b"module m\n\nrequire example.com/x v1.0.0\n", "main.go": b"package main"}
    with pytest.raises(ConfigurationError, match=r"go\.sum is missing"):
        prepare("go", files=files)
    bundle = prepare("go", files={**files, "go.sum": b""})
    assert bundle.build_steps[0].argv == ("go", "mod", "download")
    assert [step.network for step in bundle.build_steps] == [True, False]
    assert "GOPROXY" not in bundle.build_steps[0].env


def test_go_with_c_code_enables_the_c_compiler():
    assert prepare("go", 'package main\n\nimport "C"\n').build_steps[0].env["CGO_ENABLED"] == "1"


def test_cpp_builds_all_sources():
    bundle = prepare(
        "c++", files={"main.cpp": b"", "lib/a.cc": b"", "lib/a.h": b"", "include/b.hpp": b"", "-odd.cpp": b""}
    )
    app = app_of(bundle)
    assert plan(bundle) == [
        (
            "build",
            "source",
            ("c++", "-std=c++20", "-pthread", "-I.", "-Iinclude", "-o", app, "./-odd.cpp", "lib/a.cc", "main.cpp"),
        ),
        ("run", "scratch", (app,)),
    ]


def test_cpp_refuses_more_sources_than_one_call_takes():
    files = {f"a{number}.cpp": b"" for number in range(201)}
    with pytest.raises(ConfigurationError, match="201 C\\+\\+ sources; one program is built of at most 200"):
        prepare("c++", files=files, entrypoint="a0.cpp")


def test_bash_script():
    bundle = prepare("bash", "echo", args=("-x",))
    assert plan(bundle) == [("run", "scratch", ("bash", "workspace://source/main.sh", "-x"))]
    assert [tool.describe() for tool in bundle.toolchains] == ["bash"]


@pytest.mark.parametrize(("language", "name"), [("python", "-c.py"), ("node", "-e.js"), ("bash", "-c.sh")])
def test_names_like_options_are_never_options(language, name):
    bundle = prepare(language, files={name: b""}, entrypoint=name)
    assert bundle.run_step.argv[-1] == f"workspace://source/{name}"


def test_names_like_options_for_compilers():
    assert prepare("c++", files={"-o.cpp": b""}, entrypoint="-o.cpp").build_steps[0].argv[-1] == "./-o.cpp"
    assert prepare("go", files={"-x.go": b""}, entrypoint="-x.go").build_steps[0].argv[-1] == "./-x.go"


def test_two_programs_never_share_a_file_and_the_same_one_does():
    first, again, other = (prepare("c++", text) for text in ("int main(){}", "int main(){}", "int main(){return 1;}"))
    assert app_of(first) == app_of(again) != app_of(other)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"files": {"a.py": b"", "b.py": b""}}, r"entrypoint\); it must be one of a\.py, b\.py"),
        ({"files": {"a.txt": b""}}, r"name the python file to start with \(entrypoint\)"),
        ({"files": {"a.txt": b""}, "entrypoint": "a.txt"}, r"must end in \.py"),
        ({"files": {"a.py": b""}, "entrypoint": "b.py"}, r"'b\.py' is not among the files: a\.py"),
        ({"source": "1", "files": {"main.py": b""}}, r"both the source text and a file are called 'main\.py'"),
        ({"source": "1", "entrypoint": "../x.py"}, r"'\.\.' component"),
        ({"source": "\ud800"}, "cannot be written as UTF-8"),
        ({"source": "1", "files": {"MAIN.PY": b""}}, r"collides with"),
        ({"source": "1", "args": ("workspace://elsewhere/x",)}, "names no root of a workspace"),
    ],
)
def test_bad_requests_say_what_is_wrong(more, words):
    with pytest.raises(ConfigurationError, match=words):
        prepare("python", more.pop("source", None), **more)


@pytest.mark.parametrize(
    ("wanted", "result"),
    [
        ("python>=3.6", "python>=3.8"),
        ("python>=3.11", "python>=3.11"),
        ("python==3.12.1", "python==3.12.1"),
        ("python", "python>=3.8"),
    ],
)
def test_toolchain_constraints_only_tighten(wanted, result):
    bundle = prepare("python", "1", toolchains=(CodeExecutionToolchainRequirement.parse(wanted),))
    assert [tool.describe() for tool in bundle.toolchains] == [result]


@pytest.mark.parametrize(
    "wanted", [("python==3.7",), ("python==3.11", "python==3.12"), ("python==3.9", "python>=3.10")]
)
def test_toolchain_constraints_that_exclude_each_other(wanted):
    with pytest.raises(ConfigurationError, match="both cannot hold"):
        prepare("python", "1", toolchains=tuple(CodeExecutionToolchainRequirement.parse(text) for text in wanted))


def test_toolchain_of_another_tool_is_kept():
    bundle = prepare("bash", "1", toolchains=(CodeExecutionToolchainRequirement.parse("node>=20"),))
    assert [tool.describe() for tool in bundle.toolchains] == ["bash", "node>=20"]


_VERSIONS = st.lists(st.integers(0, 30), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(st.lists(_VERSIONS, min_size=1, max_size=4))
def test_the_highest_minimum_wins(minimums):
    wanted = tuple(CodeExecutionToolchainRequirement(tool="node", minimum_version=version) for version in minimums)
    merged = prepare("node", "1", toolchains=wanted).toolchains[0].minimum_version
    assert merged in {"18", *(item.minimum_version for item in wanted)}
    assert all(compare_versions(merged, version) >= 0 for version in ("18", *minimums))


class SyntheticAdapter:
    """SYNTHETIC: an outside adapter."""

    language_id = "tcl"
    aliases = ("wish",)

    def prepare(self, request, policy):
        raise NotImplementedError

    def toolchain_requirements(self, request):
        return ()


def _point(name, value):
    return importlib.metadata.EntryPoint(name=name, value=value, group="agently_kernel.languages")


def test_entry_points_are_loaded_when_asked_for():
    registry = AdapterRegistry([_point("tcl", f"{__name__}:SyntheticAdapter"), _point("bad", "no_such_module_xyz:A")])
    assert registry.languages() == ("bad", "bash", "c++", "go", "node", "python", "tcl")
    assert isinstance(registry.get("TCL"), SyntheticAdapter)
    assert registry.get("wish") is registry.get("tcl")
    with pytest.raises(
        ConfigurationError, match=r"'bad' \(no_such_module_xyz:A\) cannot be loaded: ModuleNotFoundError"
    ):
        registry.get("bad")
    assert registry.get("python").language_id == "python"


def test_register_refuses_taken_and_malformed_names():
    registry = AdapterRegistry([])
    adapter = SyntheticAdapter()
    registry.register(adapter)
    registry.register(adapter)
    with pytest.raises(ConfigurationError, match="'tcl' is taken"):
        registry.register(SyntheticAdapter())
    with pytest.raises(ConfigurationError, match="has no language_id"):
        registry.register(object())
