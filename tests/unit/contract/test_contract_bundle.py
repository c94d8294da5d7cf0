"""Bundles: deterministic digests that every field changes, limits, versions, workspace URIs, frozen mappings."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agently_kernel.contract.base import canonical_json, freeze_mapping, thaw
from agently_kernel.contract.bundle import (
    CodeExecutionBundle,
    CodeExecutionFile,
    CodeExecutionRequest,
    CodeExecutionStep,
    CodeExecutionToolchainRequirement,
    ExecutionForm,
    compare_versions,
    normalise_tool_id,
    normalise_version,
)
from agently_kernel.contract.workspace import SANDBOX_PATHS, parse_workspace_uris, resolve_workspace_uri

RUN = CodeExecutionStep(argv=("python3", "main.py"), role="run", env={"A": "1"})
BASE = {
    "language": "python",
    "files": (CodeExecutionFile(path="main.py", content=b"1"), CodeExecutionFile(path="lib.py", content=b"2")),
    "entrypoint": "main.py",
    "build_steps": (),
    "run_step": RUN,
    "stdin": None,
    "expected_outputs": ("output/x",),
    "toolchains": (CodeExecutionToolchainRequirement(tool="python", minimum_version="3.8"),),
    "form": ExecutionForm.ONE_SHOT,
    "options": {"silent": False},
    "provenance": {"from": "test"},
}
CHANGES = {
    "language": ["node"],
    "files": [
        (CodeExecutionFile(path="main.py", content=b"1"),),
        (CodeExecutionFile(path="main.py", content=b"9"), BASE["files"][1]),
        (BASE["files"][0], CodeExecutionFile(path="other.py", content=b"2")),
        (BASE["files"][0], CodeExecutionFile(path="lib.py", content=b"2", role="dependency")),
    ],
    "entrypoint": ["lib.py"],
    "build_steps": [(CodeExecutionStep(argv=("make",), role="build"),)],
    "run_step": [
        RUN.model_copy(update={"argv": ("python3", "main.py", "")}),
        RUN.model_copy(update={"cwd": "scratch"}),
        RUN.model_copy(update={"env": {"A": "2"}}),
        RUN.model_copy(update={"env": {}}),
        RUN.model_copy(update={"network": True}),
    ],
    "stdin": [b"", b"line"],
    "expected_outputs": [(), ("output/y",), ("output/x", "output/y")],
    "toolchains": [(), (CodeExecutionToolchainRequirement(tool="python", exact_version="3.8"),)],
    "form": [ExecutionForm.SESSION],
    "options": [{}, {"silent": True}, {"silent": 0}, {"silent": False, "n": 1}],
    "provenance": [{}, {"from": "elsewhere"}],
}


def test_the_same_parts_give_the_same_name():
    first, second = CodeExecutionBundle.create(**BASE), CodeExecutionBundle.create(**copy.deepcopy(BASE))
    assert first == second
    assert first.bundle_id == "bundle-" + first.bundle_digest[len("sha256:") :][:24]
    assert first.bundle_digest == "sha256:bb6f9f3a43ae099f55cf1400181e4941f72af20830d5061d30f29725a631da79"


def test_every_field_changes_the_digest():
    fields = set(CodeExecutionBundle.model_fields) - {"bundle_id", "bundle_digest"}
    assert set(CHANGES) == fields == set(BASE)
    digests = [CodeExecutionBundle.create(**BASE).bundle_digest]
    for name, values in CHANGES.items():
        digests += [CodeExecutionBundle.create(**{**BASE, name: value}).bundle_digest for value in values]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_bundle_that_was_altered_is_not_whole(name):
    bundle = CodeExecutionBundle.create(**BASE)
    altered = bundle.model_copy(update={name: CHANGES[name][0]})
    with pytest.raises(ValueError, match="digest of its content"):
        altered.verify()
    parts = {field: getattr(altered, field) for field in CodeExecutionBundle.model_fields}
    with pytest.raises(ValidationError, match="digest of its content"):
        CodeExecutionBundle(**parts)


def test_a_bundle_survives_its_own_json():
    bundle = CodeExecutionBundle.create(**BASE)
    again = CodeExecutionBundle.model_validate_json(bundle.model_dump_json())
    assert again == bundle
    assert pickle.loads(pickle.dumps(bundle)) == bundle == copy.deepcopy(bundle)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"files": ()}, "1 to 1024 files, not 0"),
        ({"files": tuple(CodeExecutionFile(path=f"f{n}", content=b"") for n in range(1025))}, "not 1025"),
        ({"entrypoint": "none.py"}, "'none.py' is not one of the bundle's files"),
        ({"entrypoint": "../main.py"}, "'..' component"),
        ({"run_step": None}, "needs a run step"),
        ({"expected_outputs": tuple(f"output/{n}" for n in range(129))}, "129 declared outputs; the limit is 128"),
        ({"expected_outputs": ("output/a", "output/A")}, "collides"),
        ({"options": {"x": float("nan")}}, "not a plain JSON value"),
        ({"options": {"x": {1: 2}}}, "the key 1 is not text"),
        ({"provenance": {"x": object()}}, "not a plain JSON value"),
        (
            {"files": (CodeExecutionFile(path="main.py", content=b""), CodeExecutionFile(path="Main.py", content=b""))},
            "collides",
        ),
        ({"language": "no such language!"}, "tool id"),
    ],
)
def test_limits_of_a_bundle(changes, words):
    with pytest.raises(ValueError) as caught:
        CodeExecutionBundle.create(**{**BASE, **changes})
    assert words in str(caught.value)


def test_total_size_of_a_bundle():
    part = bytes(16 * 1024 * 1024)
    files = tuple(
        CodeExecutionFile.model_construct(path=f"f{n}", content=part, role="source", sha256="") for n in range(5)
    )
    with pytest.raises(ValueError, match="83886080 bytes together; the limit is 67108864"):
        CodeExecutionBundle.create(**{**BASE, "files": files, "entrypoint": "f0"})


def test_file_size_and_digest():
    with pytest.raises(ValidationError, match="16777217 bytes; the limit is 16777216"):
        CodeExecutionFile(path="a", content=bytes(16 * 1024 * 1024 + 1))
    with pytest.raises(ValidationError, match="does not have the digest"):
        CodeExecutionFile(path="a", content=b"", sha256="sha256:" + "0" * 64)
    assert CodeExecutionFile(path="a", content=b"").sha256 == (
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"argv": ()}, "at least the program"),
        ({"argv": ("",)}, "at least the program"),
        ({"argv": ("a\0",)}, "NUL"),
        ({"argv": ("a", "x" * 8193)}, "8192"),
        ({"argv": ("a",) * 257}, "257 entries"),
        ({"argv": ("a",), "env": {"A=B": "1"}}, "not a valid environment variable"),
        ({"argv": ("a",), "env": {"": "1"}}, "valid"),
        ({"argv": ("a",), "env": {"A": "\0"}}, "valid"),
        ({"argv": ("a",), "env": {f"A{n}": "" for n in range(129)}}, "129"),
        ({"argv": ("workspace://logs/x",)}, "names no root"),
        ({"argv": ("a",), "env": {"A": "workspace://build/../x"}}, "'..'"),
    ],
)
def test_steps_that_cannot_be(step, words):
    with pytest.raises(ValidationError) as caught:
        CodeExecutionStep(role="run", **step)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({}, "needs source_code or files"),
        ({"source_code": "a\0"}, "NUL"),
        ({"source_code": "", "language": "?"}, "tool id"),
        ({"source_code": "", "args": ("x\0",)}, "NUL"),
        ({"source_code": "", "unknown": 1}, "Extra inputs"),
    ],
)
def test_requests_that_cannot_be(request_fields, words):
    with pytest.raises(ValidationError) as caught:
        CodeExecutionRequest(**request_fields)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Python 3.11.2", "3.11.2"),
        ("v20.19.2", "20.19.2"),
        ("go version go1.19.8 linux/amd64", "1.19.8"),
        ("c++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright", "12.2.0"),
        ("GNU bash, version 5.2.15(1)-release", "5.2.15"),
        ("3.08.010", "3.8.10"),
        ("7", "7"),
    ],
)
def test_versions_as_tools_print_them(text, version):
    assert normalise_version(text) == version


def test_text_without_a_version():
    with pytest.raises(ValueError, match="no version number in 'command not found'"):
        normalise_version("command not found")


_VERSION = st.lists(st.integers(0, 10**6), min_size=1, max_size=5)


@given(_VERSION, _VERSION)
def test_versions_compare_as_padded_numbers(left, right):
    width = max(len(left), len(right))
    a, b = (parts + [0] * (width - len(parts)) for parts in (left, right))
    one, two = (".".join(map(str, parts)) for parts in (left, right))
    assert compare_versions(one, two) == (a > b) - (a < b) == -compare_versions(two, one)
    assert compare_versions(one, one + ".0") == 0


@pytest.mark.parametrize(
    ("alias", "tool"),
    [
        ("py", "python"),
        ("Python3", "python"),
        ("nodejs", "node"),
        ("C++", "c++"),
        ("cpp", "c++"),
        ("g++", "c++"),
        ("golang", "go"),
        ("sh", "bash"),
        (" go ", "go"),
        ("rustc", "rustc"),
    ],
)
def test_tool_ids(alias, tool):
    assert normalise_tool_id(alias) == tool


@pytest.mark.parametrize("text", ["go>=1.22", "python==3.11.7", "node", "c++>=12"])
def test_toolchains_read_back_as_written(text):
    assert CodeExecutionToolchainRequirement.parse(text).describe() == text


@pytest.mark.parametrize("text", ["go>1", "go>=x", "", "go >= 1.2 <3", ">=1", "go==1..2"])
def test_toolchains_in_another_form(text):
    with pytest.raises(ValueError):
        CodeExecutionToolchainRequirement.parse(text)
    with pytest.raises(ValidationError, match="not both"):
        CodeExecutionToolchainRequirement(tool="go", minimum_version="1", exact_version="1")


def test_workspace_uris():
    roots = {**SANDBOX_PATHS, "source": "/workspace/src/bundle-1"}
    assert resolve_workspace_uri("workspace://source/a b.py", roots) == "/workspace/src/bundle-1/a b.py"
    assert resolve_workspace_uri("workspace://build", roots) == "/workspace/build"
    assert resolve_workspace_uri("workspace://source:workspace://build/x", roots) == (
        "/workspace/src/bundle-1:/workspace/build/x"
    )
    for plain in ("", "a", "/workspace/src", "x=workspace://build/y", "-Iworkspace://build"):
        assert resolve_workspace_uri(plain, roots) == plain
        assert parse_workspace_uris(plain) == ()


@given(st.text(max_size=20))
def test_a_workspace_uri_never_leaves_its_root(tail):
    try:
        resolved = resolve_workspace_uri("workspace://build/" + tail, SANDBOX_PATHS)
    except ValueError:
        return
    assert resolved == "/workspace/build" or resolved.startswith("/workspace/build/")
    assert ".." not in resolved.split("/")


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab\u00e9\U0001f600"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", max_size=3), _JSON, max_size=4))
def test_frozen_mappings_are_json_and_read_only(value):
    frozen = freeze_mapping(value)
    assert thaw(frozen) == json.loads(canonical_json(value)) == json.loads(json.dumps(frozen))
    assert freeze_mapping(frozen) == frozen
    for change in (
        lambda: frozen.__setitem__("k", 1),
        lambda: frozen.update(k=1),
        frozen.clear,
        lambda: frozen.pop("k", 0),
        frozen.popitem,
        lambda: frozen.setdefault("k", 1),
        lambda: frozen.__delitem__("k"),
        lambda: frozen.__ior__({"k": 1}),
    ):
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert thaw(frozen) == value


@given(_JSON)
def test_canonical_json_does_not_depend_on_key_order(value):
    def turned(item):
        if isinstance(item, dict):
            return {key: turned(item[key]) for key in reversed(list(item))}
        return [turned(part) for part in item] if isinstance(item, list) else item

    assert canonical_json(value) == canonical_json(turned(value))
