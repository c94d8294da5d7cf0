"""Files of the host on their way in: what is given at once, what is asked for, what is never given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agently_kernel.contract.approval import ApprovalOutcome, ApprovalRequest
from agently_kernel.contract.errors import ApprovalDenied, ConfigurationError, WorkspaceError
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.inputs_gate import InputGate, how_to_grant
from agently_kernel.policy import PolicyApproval
from agently_kernel.workspace.task_workspace import TaskWorkspace


class Person:
    """Answers every question with one outcome and remembers what was asked."""

    def __init__(self) -> None:
        self.outcome = ApprovalOutcome.APPROVED_ONCE
        self.asked: list[ApprovalRequest] = []

    def answer(self, request: ApprovalRequest) -> ApprovalOutcome:
        self.asked.append(request)
        return self.outcome


@pytest.fixture
def person() -> Person:
    return Person()


@pytest.fixture
def gate(tmp_path: Path, person: Person) -> Iterator[InputGate]:
    folder = tmp_path / "notebook"
    folder.mkdir()
    (folder / "data.csv").write_text("k,v\n1,2\n")
    (tmp_path / "elsewhere.csv").write_text("far")
    approval = PolicyApproval()
    approval.set_channel(person.answer)
    with TaskWorkspace.create(
        session_id="s", limits=ResourceLimits(), collection=CollectionLimits(), data_dir=tmp_path / "data",
        runtime_dir=tmp_path / "runtime", notebook_dir=folder,
    ) as workspace:
        yield InputGate(approval, workspace, ExecutionResourcePolicy(), "s", folder)


async def test_what_is_named_beside_the_notebook_is_given_without_a_question(gate: InputGate, person: Person) -> None:
    granted = await gate.grant("data.csv")
    assert (granted.name, granted.mode, granted.size) == ("data.csv", "snapshot", 8)
    assert (gate.workspace.input_path / "data.csv").read_text() == "k,v\n1,2\n"
    assert person.asked == []


async def test_a_configuration_that_always_asks_asks_here_too(gate: InputGate, person: Person) -> None:
    gate.policy = ExecutionResourcePolicy(approval_mode="always")
    person.outcome = ApprovalOutcome.DENIED
    with pytest.raises(ApprovalDenied):
        await gate.grant("data.csv")
    assert [(request.gate, request.subject) for request in person.asked] == [("input", str(gate.folder / "data.csv"))]
    assert gate.workspace.inputs == ()


async def test_what_lies_elsewhere_is_asked_for_with_name_size_and_kind(
    gate: InputGate, person: Person, tmp_path: Path
) -> None:
    granted = await gate.grant("../elsewhere.csv")
    assert granted.name == "elsewhere.csv"
    [request] = person.asked
    assert (request.gate, request.subject) == ("input", str(tmp_path / "elsewhere.csv"))
    assert "size in bytes: 3" in request.what
    assert "kind: file" in request.what


async def test_a_link_out_of_the_folder_is_asked_for_with_where_it_leads(
    gate: InputGate, person: Person, tmp_path: Path
) -> None:
    (gate.folder / "link.csv").symlink_to(tmp_path / "elsewhere.csv")
    await gate.grant("link.csv")
    assert f"leads to: {tmp_path / 'elsewhere.csv'}" in person.asked[0].what


@pytest.mark.parametrize("name", [".env", "key.pem", "id_rsa", "credentials.json"])
async def test_secrets_beside_the_notebook_pass_only_the_gate_that_says_so(
    gate: InputGate, person: Person, name: str
) -> None:
    (gate.folder / name).write_text("secret")
    person.outcome = ApprovalOutcome.DENIED
    with pytest.raises(ApprovalDenied):
        await gate.grant(name)
    assert [request.gate for request in person.asked] == ["sensitive_input"]
    assert gate.workspace.inputs == ()


async def test_the_machine_is_never_given(gate: InputGate, person: Person) -> None:
    with pytest.raises(WorkspaceError, match="never given to a sandbox"):
        await gate.grant("/proc/self/environ")
    assert person.asked == []


async def test_a_notebook_in_the_home_folder_gives_nothing_unasked(
    gate: InputGate, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(gate.folder))
    await gate.grant("data.csv")
    assert [request.gate for request in person.asked] == ["input"]


async def test_what_is_not_there_is_said_before_anybody_is_asked(gate: InputGate, person: Person) -> None:
    with pytest.raises(WorkspaceError, match=r"^'missing\.csv' does not exist"):
        await gate.grant("missing.csv")
    assert person.asked == []


async def test_nothing_may_hide_the_output_folder(gate: InputGate) -> None:
    (gate.folder / "output").mkdir()
    with pytest.raises(ConfigurationError, match="hide the output folder"):
        await gate.grant("output")
    granted = await gate.grant("output", name="earlier")
    assert granted.name == "earlier"


async def test_an_unchanged_file_is_not_copied_again_and_a_changed_one_is(gate: InputGate) -> None:
    first = await gate.grant("data.csv")
    assert await gate.grant("data.csv") is first
    (gate.folder / "data.csv").write_text("k,v\n3,4,5\n")
    second = await gate.grant("data.csv")
    assert second.sha256 != first.sha256
    assert (gate.workspace.input_path / "data.csv").read_text() == "k,v\n3,4,5\n"


async def test_code_that_misses_a_file_is_asked_about_once(gate: InputGate, person: Person) -> None:
    person.outcome = ApprovalOutcome.DENIED
    with pytest.raises(ApprovalDenied):
        await gate.needed("data.csv", cell="c1")
    assert await gate.needed("data.csv", cell="c1") is None
    assert len(person.asked) == 1
    person.outcome = ApprovalOutcome.APPROVED_ONCE
    granted = await gate.needed("data.csv", cell="c2")
    assert granted is not None
    assert granted.name == "data.csv"
    assert await gate.needed("data.csv", cell="c3") is None


@pytest.mark.parametrize("path", ["none.csv", "../elsewhere.csv", "/etc/passwd", "output/x", "a/./b", "", "a\nb"])
async def test_code_is_not_asked_about_what_is_not_beside_the_notebook(
    gate: InputGate, person: Person, path: str
) -> None:
    assert await gate.needed(path, cell="c") is None
    assert person.asked == []


async def test_one_cell_asks_for_a_few_files_only(gate: InputGate, person: Person) -> None:
    for number in range(20):
        (gate.folder / f"f{number}").write_text("x")
        await gate.needed(f"f{number}", cell="c")
    assert len(person.asked) == 8


@given(path=st.text(max_size=80))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_of_code_leads_out_of_the_folder(gate: InputGate, path: str) -> None:
    if gate.lies_beside(path):
        found = (gate.folder / path).absolute()
        assert gate.folder in found.parents
        assert ".." not in found.parts


def failed(text: str) -> CodeExecutionResult:
    """A SYNTHETIC result of a cell that failed with *text*."""
    return CodeExecutionResult(
        status=ExecutionStatus.ERROR, bundle_id="b", bundle_digest="d", error={"ename": "E", "evalue": text}
    )


def test_hints_name_the_command(gate: InputGate) -> None:
    (gate.folder / "my data.bin").write_text("x")
    assert "%agently grant 'my data.bin'" in gate.hint(failed("failed: No such file or directory: 'my data.bin'"))
    assert "%agently grant data.csv" in gate.hint(failed("unable to open data.csv (lib)"))
    assert gate.hint(failed("KeyError: 'data.csv'")) == ""
    assert gate.hint(failed("No such file or directory: 'other'")) == ""
    assert how_to_grant("a b") == "%agently grant 'a b'"


async def test_a_folder_becomes_parts_of_a_program(gate: InputGate, person: Person) -> None:
    (gate.folder / "src" / "inner").mkdir(parents=True)
    (gate.folder / "src" / "main.py").write_text("a")
    (gate.folder / "src" / "inner" / "b.py").write_text("b")
    (gate.folder / "src" / ".hidden").write_text("h")
    files = await gate.read_files("src")
    assert [(file.path, file.content) for file in files] == [("inner/b.py", b"b"), ("main.py", b"a")]
    assert [file.path for file in await gate.read_files("src", name="lib")] == ["lib/inner/b.py", "lib/main.py"]
    assert [file.path for file in await gate.read_files("src/main.py")] == ["main.py"]
    assert person.asked == []
    (gate.folder / "src" / "key.pem").write_text("k")
    with pytest.raises(WorkspaceError, match="looks like a secret"):
        await gate.read_files("src")
