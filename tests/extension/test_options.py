"""The grammar of both magics: what is read, what is refused and how, what is completed."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agently_exec.options import (
    COMMANDS,
    EXEC,
    LINE,
    Completions,
    ExecOptions,
    LineOptions,
    asked_help,
    complete,
    exec_help,
    help_at,
    line_help,
    parse_exec,
    parse_line,
    split_exec,
    split_lines,
)
from agently_kernel.contract.bundle import CodeExecutionToolchainRequirement
from agently_kernel.contract.errors import ConfigurationError


def test_nothing_given_is_python_in_a_fresh_sandbox() -> None:
    assert parse_exec("") == ExecOptions()
    assert ExecOptions().language == "python"
    assert ExecOptions().session is False


def test_every_option_is_read() -> None:
    line = (
        "--language golang --output output/a output/b --output output/c --input data.csv "
        "--file main.go=src/main.go lib --entry main.go --isolation preferred --unsafe-fallback "
        "--provider bubblewrap docker --network a.org,b.org:443 --toolchain 'go>=1.22' --timeout 2.5 --memory 512M "
        "--fresh --stdin in.txt --result r -- -x 'a b' --output"
    )
    assert parse_exec(line) == ExecOptions(
        language="go", outputs=("output/a", "output/b", "output/c"), inputs=("data.csv",),
        files=(("main.go", "src/main.go"), ("", "lib")), entry="main.go", isolation="preferred", unsafe_fallback=True,
        providers=("bubblewrap", "docker"), network=("a.org", "b.org:443"),
        toolchains=(CodeExecutionToolchainRequirement(tool="go", minimum_version="1.22"),), timeout=2.5,
        memory=512 * 2**20, stdin="in.txt", result="r", args=("-x", "a b", "--output"),
    )


def test_no_network_is_not_the_same_as_nothing_said() -> None:
    assert parse_exec("--network none").network == ()
    assert parse_exec("").network is None


def test_unsafe_fallback_alone_asks_for_preferred_isolation() -> None:
    assert parse_exec("--unsafe-fallback").isolation == "preferred"


@pytest.mark.parametrize(
    ("line", "named", "allowed"),
    [
        ("--isolation maximal", "--isolation", "required"),
        ("--isolaton none", "--isolaton", "did you mean --isolation?"),
        ("--language cobol", "--language", "bash, c++, go, node, python"),
        ("--output x.csv", "--output", "output/result.csv"),
        ("--output output/../x", "--output", "'..' component"),
        ("--toolchain 'go<2'", "--toolchain", "go>=1.22"),
        ("--timeout soon", "--timeout", "number of seconds, more than 0 and at most a year"),
        ("--timeout -1", "--timeout", "number of seconds, more than 0 and at most a year"),
        ("--timeout nan", "--timeout", "number of seconds, more than 0 and at most a year"),
        ("--memory lots", "--memory", "'2G'"),
        ("--memory 1M", "--memory", "64 MiB"),
        ("--network 'http://x/'", "--network", "example.org"),
        ("--file =x", "--file", "NAME=PATH"),
        ("--file ../a=x", "--file", "'..' component"),
        ("--provider 'Docker!'", "--provider", "%agently doctor"),
        ("--result class", "--result", "variable name"),
        ("--unsafe-fallback --isolation required", "--unsafe-fallback", "preferred or none"),
        ("--fresh --session", "--session", "not allowed with argument --fresh"),
        ("--session --memory 1G", "--memory", "--fresh"),
        ("--session -- a", "ARGS", "--fresh"),
        ("stray", "'stray'", "after --"),
        ("--output 'output/x", "quotation", "close every"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed_and_nothing_runs(line: str, named: str, allowed: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_exec(line)
    message = str(caught.value)
    assert message.startswith(EXEC)
    assert named in message
    assert allowed in message
    assert message.endswith("Nothing was run.")


def test_more_outputs_than_the_limit_are_refused() -> None:
    names = " ".join(f"output/f{number}" for number in range(129))
    with pytest.raises(ConfigurationError, match="129 declared outputs; the limit is 128"):
        parse_exec(f"--output {names}")
    assert len(parse_exec(f"--output {names.removesuffix(' output/f128')}").outputs) == 128


def test_help_lists_every_option() -> None:
    assert parse_exec("--help --language python") == ExecOptions(help=True)
    for name in ("--language", "--output", "--input", "--file", "--entry", "--isolation", "--unsafe-fallback",
                 "--provider", "--network", "--toolchain", "--timeout", "--memory", "--fresh", "--session", "--stdin",
                 "--result", "-- ARGS"):
        assert name in exec_help()
    assert exec_help().startswith(f"usage: {EXEC} ")


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_line_is_read_or_refused_with_a_sentence(line: str) -> None:
    for read in (parse_exec, parse_line):
        try:
            read(line.replace("\n", " "))
        except ConfigurationError as error:
            assert str(error).startswith((EXEC, LINE))


_ARGUMENT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)


@given(st.lists(_ARGUMENT, max_size=6))
@settings(max_examples=200, deadline=None)
def test_arguments_of_the_program_arrive_as_they_were_written(arguments: list[str]) -> None:
    assert parse_exec("-- " + shlex.join(arguments)).args == tuple(arguments)


@pytest.mark.parametrize(
    ("code", "split"),
    [
        ("%%agently_exec --help", (" --help", "")),
        ("\n %%agently_exec\nprint(1)\n", ("", "print(1)\n")),
        ("%%agently_execute\nx", None),
        ("x = 1\n%%agently_exec\n", None),
    ],
)
def test_a_cell_magic_is_the_first_line(code: str, split: tuple[str, str] | None) -> None:
    assert split_exec(code) == split


@pytest.mark.parametrize(
    ("code", "rest"),
    [
        ("%agently", ("",)),
        (" %agently facts\n", (" facts",)),
        ("# why\n\n%agently facts\n# and\n%agently status", (" facts", " status")),
        ("%agently x\ny", ()),
        ("x = 1\n%agently facts", ()),
        ("%agentlyx", ()),
        ("# only a comment about %agently", ()),
        ("", ()),
    ],
)
def test_a_line_magic_stands_beside_comments_only(code: str, rest: tuple[str, ...]) -> None:
    assert split_lines(code) == rest


@pytest.mark.parametrize("form", ["{}?", "{} ?", "?{}", "??{}", "{}??", " {}? \n"])
def test_a_question_mark_asks_for_the_help_of_both(form: str) -> None:
    assert asked_help(form.format("%agently")) == line_help()
    assert asked_help(form.format("%%agently_exec")) == exec_help()


@pytest.mark.parametrize(
    "code", ["%agently", "%%agently_exec\nprint('?')", "%agently grant what?", "%agentlyx?", "?x", ""]
)
def test_other_cells_ask_for_nothing(code: str) -> None:
    assert asked_help(code) is None


@pytest.mark.parametrize("line", ["?", "??", "help", "-h", "--help"])
def test_the_line_itself_knows_the_question_mark(line: str) -> None:
    assert parse_line(line) == LineOptions("help")
    if line.startswith(("?", "--")):
        assert parse_exec(line).help


def test_every_command_is_in_the_help_and_help_too() -> None:
    listed = [line.split()[0] for line in line_help().splitlines() if line.startswith("  ")]
    assert listed == list(COMMANDS)
    assert "help" in listed


def test_help_is_found_in_a_magics_line_and_nowhere_else() -> None:
    code = "%%agently_exec --fresh\nprint(1)"
    assert help_at(code, 5) == exec_help()
    assert help_at(code, len(code)) is None
    assert help_at("x = 1\n%%agently_exec", 15) is None
    assert help_at("# why\n%agently facts", 10) == line_help()


@pytest.mark.parametrize(
    "kind", ["javascript", "chart", "set_next_input", "mime:application/pdf", "widget:anywidget", "comm:x"]
)
def test_kinds_that_can_be_withheld_can_be_allowed(kind: str) -> None:
    assert parse_line(f"allow {kind}") == LineOptions("allow", kind)


@pytest.mark.parametrize("kind", ["html", "net", "mime:", "mime:pdf", "widget:", "other:x", "a b", "text/x"])
def test_what_no_output_is_called_is_refused_with_what_there_is(kind: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_line(f"allow '{kind}'")
    assert "javascript, chart, set_next_input, mime:TYPE, widget:MODULE or comm:TARGET" in str(caught.value)
    assert ("Did you mean mime:" in str(caught.value)) == ("/" in kind)
    assert "%agently allow network HOST" in str(caught.value)


def test_hosts_are_allowed_by_name() -> None:
    wanted = LineOptions("allow", "network", hosts=("data.example.org", "*.example.org:8443"))
    assert parse_line("allow network data.example.org, *.Example.org:8443") == wanted
    for line, said in (
        ("allow network", "name the hosts"), ("allow network http://x/", "example.org"),
        ("allow chart data.example.org", "one kind"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            parse_line(line)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", LineOptions("status")),
        ("facts", LineOptions("facts")),
        ("--help", LineOptions("help")),
        ("grant 'my data.csv' --name d.csv --mode read_only",
         LineOptions("grant", "my data.csv", name="d.csv", mode="read_only")),
        ("outputs --save results", LineOptions("outputs", save="results")),
        ("doctor --details", LineOptions("doctor", details=True)),
        ("allow javascript", LineOptions("allow", "javascript")),
    ],
)
def test_commands_are_read(line: str, options: LineOptions) -> None:
    assert parse_line(line) == options


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("statsu", "Did you mean status?"),
        ("grant", "PATH"),
        ("grant a --mode rw", "snapshot"),
        ("facts more", "'more' belongs to no option; %agently help lists what each command takes"),
    ],
)
def test_a_bad_command_is_refused(line: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("?", r"\?")):
        parse_line(line)


@pytest.mark.parametrize(
    ("code", "matches"),
    [
        ("%%agently_exec --iso", ("--isolation",)),
        ("%%agently_exec --isolation p", ("preferred",)),
        ("%%agently_exec --isolation ", ("required", "preferred", "none")),
        ("%%agently_exec --language ", ("bash", "c++", "go", "node", "python")),
        ("%%agently_exec --fresh --fr", ()),
        ("%%agently_exec --output output/a --out", ("--output",)),
        ("%%agently_exec -- --iso", ()),
        ("%agently st", ("status",)),
        ("%agently grant data.csv --m", ("--mode",)),
        ("%agently grant data.csv --mode ", ("snapshot", "read_only")),
        ("%agently allow ", ("network", "javascript", "chart", "set_next_input", "mime:", "widget:", "comm:")),
    ],
)
def test_options_are_completed(code: str, matches: tuple[str, ...]) -> None:
    found = complete(code, len(code))
    assert found is not None
    assert found.matches == matches
    assert code[found.start : found.end] == code.rpartition(" ")[2]


@pytest.mark.parametrize("code", ["print(", "%%agently_exec\npri", "%agently grant da", "%%agently_exec --input da"])
def test_elsewhere_completion_is_left_to_others(code: str) -> None:
    assert complete(code, len(code)) is None


def test_a_commands_completion_knows_all_commands() -> None:
    assert complete("%agently ", 9) == Completions(tuple(COMMANDS), 9, 9)
