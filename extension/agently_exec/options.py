"""The one grammar of ``%%agently_exec`` and ``%agently``, for the sandboxed kernel and for every other IPython.

A line is read completely before anything happens: what is wrong is told with the option's name and what is allowed.
"""

from __future__ import annotations

import argparse
import difflib
import keyword
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from agently_kernel.contract.base import MAX_SECONDS
from agently_kernel.contract.bundle import CodeExecutionToolchainRequirement, normalise_expected_outputs
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.network import normalise_hosts
from agently_kernel.contract.paths import normalise_relative_path
from agently_kernel.contract.resource import IsolationPolicy
from agently_kernel.languages import get_adapter, languages
from agently_kernel.outputs.policy import FAMILIES, KINDS, is_kind
from agently_kernel.settings import allowed_range, parse_size, shown

EXEC, LINE = "%%agently_exec", "%agently"
ISOLATION: tuple[IsolationPolicy, ...] = ("required", "preferred", "none")
MODES = ("snapshot", "read_only")
NOTHING_RUN = "Nothing was run."

_EXEC = re.compile(r"\s*%%agently_exec(?![\w.])([^\n]*)(?:\n|\Z)")
_LINE = re.compile(r"\s*%agently(?![\w.])([^\n]*)\s*\Z")
_NAMED = re.compile(r"(?:%%agently_exec|%agently)(?![\w.])")
_PROVIDER = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class ExecOptions:
    """What a ``%%agently_exec`` line asks for. ``network`` is None when it says nothing, () for ``none``."""

    language: str = "python"
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    entry: str | None = None
    isolation: IsolationPolicy | None = None
    unsafe_fallback: bool = False
    providers: tuple[str, ...] = ()
    network: tuple[str, ...] | None = None
    toolchains: tuple[CodeExecutionToolchainRequirement, ...] = ()
    timeout: float | None = None
    memory: int | None = None
    session: bool = False
    stdin: str | None = None
    result: str | None = None
    args: tuple[str, ...] = ()
    help: bool = False


@dataclass(frozen=True, slots=True)
class LineOptions:
    """What a ``%agently`` line asks for. ``argument`` is the path of grant, the kind of allow; else empty.

    ``hosts`` are those of ``allow network``.
    """

    command: str
    argument: str = ""
    name: str = ""
    mode: Literal["snapshot", "read_only"] = "snapshot"
    save: str = ""
    details: bool = False
    hosts: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process, and knows what a misspelt option meant."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{self.prog}: {message.removeprefix('argument ')}. {NOTHING_RUN}")

    def names(self) -> list[str]:
        """All options, in the order of the help."""
        return [name for action in self._actions for name in action.option_strings]

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse *words*. Raises ConfigurationError."""
        found, unknown = self.parse_known_args(list(words))
        if unknown:
            word = unknown[0]
            if not word.startswith("-"):
                lists = f"{LINE} help lists what each command takes"
                rest = "arguments of the program come after --" if self.prog == EXEC else lists
                self.error(f"{word!r} belongs to no option; {rest}")
            near = difflib.get_close_matches(word.split("=")[0], self.names(), n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            there = f"The options are {', '.join(self.names())}" if self.names() else "It takes no options"
            self.error(f"there is no option {word.split('=')[0]}{hint} {there}")
        return found


def _exec_parser() -> _Parser:
    parser = _Parser(
        prog=EXEC, add_help=False, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run the cell as a program in a sandbox.",
        usage="%%%%agently_exec [options] [-- ARGS…]",
        epilog="The cell is a program: what it prints is shown, the value of its last line and its figures are not\n"
        "(those of --session are). Arguments of the program come after --. Files beside the notebook that you name\n"
        "here are given to it; others, and places that hold secrets, only when you allow it. Files that it leaves in\n"
        "output/ are collected; %agently outputs lists them.",
    )
    many = {"action": "extend", "nargs": "+", "default": [], "metavar": "PATH"}
    parser.add_argument("--language", default="python", metavar="NAME", help=f"one of {', '.join(languages())}")
    parser.add_argument("--output", **many, help="a file under output/ that must be there at the end (up to 128)")  # type: ignore[arg-type]
    parser.add_argument("--input", **many, help="a file or folder that the program may read, under its own name")  # type: ignore[arg-type]
    parser.add_argument(
        "--file", action="extend", nargs="+", default=[], metavar="NAME=PATH",
        help="a file that becomes part of the program, or a folder whose files do",
    )
    parser.add_argument("--entry", metavar="NAME", help="the file to start with; the cell itself when it has no file")
    parser.add_argument("--isolation", choices=ISOLATION, help="what must be observed to hold (default: configured)")
    parser.add_argument(
        "--unsafe-fallback", action="store_true", help="allow running without isolation; you are asked before"
    )
    parser.add_argument("--provider", action="extend", nargs="+", default=[], metavar="ID", help="in this order")
    parser.add_argument("--network", metavar="none|HOST,…", help="hosts that the program may reach; you are asked")
    parser.add_argument(
        "--toolchain", action="extend", nargs="+", default=[], metavar="TOOL", help="such as 'go>=1.22' or node==20.1"
    )
    parser.add_argument("--timeout", metavar="SECONDS", help="wall-clock limit, for building and running together")
    parser.add_argument("--memory", metavar="SIZE", help="memory limit, such as 512M or 2G")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--fresh", action="store_true", help="a sandbox of its own, closed at the end (the default)")
    where.add_argument("--session", action="store_true", help="the session's sandbox, with the variables there")
    parser.add_argument("--stdin", metavar="PATH", help="a file that the program reads as standard input")
    parser.add_argument("--result", metavar="NAME", help="bind what came of it to this variable")
    parser.add_argument("--help", action="store_true", help="show this; nothing is run")
    return parser


COMMANDS = {
    "status": "what is open, what it restricts, what was granted",
    "facts": "every axis with its evidence, limits, network, and the providers that were skipped",
    "doctor": "what each provider could do on this machine, and what would help",
    "outputs": "collected files; --save FOLDER copies them beside the notebook, after asking",
    "grant": "PATH: give a file or folder to the sandbox (--name NAME, --mode snapshot|read_only)",
    "restart": "close the session's sandbox; the next cell opens a fresh one",
    "events": "the last events of the resource manager",
    "allow": "network HOST,…: let the session's sandbox reach these hosts; KIND: show a kind of output; after asking",
    "help": "this list",
}
_ARGUMENTS = {"grant": "PATH", "allow": "KIND"}
_LINE_OPTIONS = {"grant": ("--name", "--mode"), "outputs": ("--save",), "doctor": ("--details",)}


def line_help() -> str:
    """Return the commands of ``%agently`` as text."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "%agently COMMAND, in a cell of its own",
            "",
            *(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()),
            "",
            "Without a command: status. %%agently_exec runs one cell in a sandbox of its own: %%agently_exec --help.",
        ]
    )


def exec_help() -> str:
    """Return the options of ``%%agently_exec`` as text."""
    return _exec_parser().format_help()


def split_exec(code: str) -> tuple[str, str] | None:
    """Return the option line and the program of a ``%%agently_exec`` cell, None for any other text."""
    found = _EXEC.match(code)
    return (found.group(1), code[found.end() :]) if found else None


def split_lines(code: str) -> tuple[str, ...]:
    """Return what follows ``%agently`` in each line of a cell that holds such lines and comments only, else ()."""
    lines = [line for line in code.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    found = [_LINE.match(line) for line in lines]
    return tuple(match.group(1) for match in found if match) if all(found) else ()


def asked_help(code: str) -> str | None:
    """Return the help that a cell such as ``%agently?`` or ``?%%agently_exec`` asks for, None for any other cell."""
    found = _NAMED.fullmatch(code.strip().strip("?").strip()) if "?" in code else None
    return None if found is None else _help_of(found.group())


def help_at(code: str, cursor: int) -> str | None:
    """Return the help of the magic in whose line *cursor* (characters) stands, None when it is elsewhere."""
    start = code.rfind("\n", 0, cursor) + 1
    found = _NAMED.match(code[start:].lstrip())
    if found is None or (found.group() == EXEC and code[:start].strip()):
        return None
    return _help_of(found.group())


def _help_of(name: str) -> str:
    return exec_help() if name == EXEC else line_help()


def _words(line: str, magic: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigurationError(
            f"{magic}: the line cannot be read ({error}); close every quotation mark. {NOTHING_RUN}"
        ) from error


def parse_exec(line: str) -> ExecOptions:
    """Read the options of a ``%%agently_exec`` line. Raises ConfigurationError: the option, and what is allowed."""
    words = _words(line, EXEC)
    if words in (["?"], ["??"]):
        return ExecOptions(help=True)
    at = words.index("--") if "--" in words else len(words)
    parser = _exec_parser()
    found = parser.read(words[:at])
    if found.help:
        return ExecOptions(help=True)

    def refuse(option: str, reason: object) -> NoReturn:
        parser.error(f"{option}: {str(reason).rstrip('.')}")

    try:
        language = get_adapter(found.language).language_id
    except ConfigurationError as error:
        refuse("--language", error)
    try:
        outputs = normalise_expected_outputs(tuple(found.output))
    except ValueError as error:
        refuse("--output", error)
    toolchains = []
    for text in found.toolchain:
        try:
            toolchains.append(CodeExecutionToolchainRequirement.parse(text))
        except ValueError as error:
            refuse("--toolchain", _plain(error))
    for name in found.provider:
        if not _PROVIDER.match(name):
            refuse("--provider", f"{name!r} is no provider id; `%agently doctor` lists them")
    isolation: IsolationPolicy | None = found.isolation
    if found.unsafe_fallback and isolation == "required":
        refuse("--unsafe-fallback", "it contradicts --isolation required; use preferred or none")
    if found.result is not None and (not found.result.isidentifier() or keyword.iskeyword(found.result)):
        refuse("--result", f"{found.result!r} is no variable name")
    options = ExecOptions(
        language=language, outputs=outputs, inputs=tuple(found.input), files=tuple(map(_named_file, found.file)),
        entry=_entry(found.entry), isolation=isolation or ("preferred" if found.unsafe_fallback else None),
        unsafe_fallback=found.unsafe_fallback, providers=tuple(found.provider), network=_network(found.network),
        toolchains=tuple(toolchains), timeout=_seconds(found.timeout), memory=_memory(found.memory),
        session=found.session, stdin=found.stdin, result=found.result, args=tuple(words[at + 1 :]),
    )
    if options.session:
        _check_session(options)
    return options


def _check_session(options: ExecOptions) -> None:
    asked: dict[str, object] = {
        "--isolation": options.isolation, "--unsafe-fallback": options.unsafe_fallback, "--provider": options.providers,
        "--network": options.network, "--memory": options.memory, "--input": options.inputs,
    }
    if options.language == "python":
        asked |= {"--stdin": options.stdin, "--file": options.files, "--entry": options.entry, "ARGS": options.args}
    for name, value in asked.items():
        if value:
            raise ConfigurationError(
                f"{EXEC}: {name} cannot be given with --session, which uses the session's sandbox as it is"
                f"{' and its running interpreter' if options.language == 'python' else ''}. Leave it out, or use "
                f"--fresh. {NOTHING_RUN}"
            )


def _plain(error: ValueError) -> str:
    details = getattr(error, "errors", None)
    if callable(details):
        return "; ".join(str(item["msg"]).removeprefix("Value error, ") for item in details(include_url=False))
    return str(error)


def _bad(option: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{EXEC}: {option}: {reason}. {NOTHING_RUN}")


def _named_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if equals and not (name and path):
        raise _bad("--file", f"{text!r} must look like NAME=PATH or PATH")
    if not equals:
        return "", text
    try:
        return normalise_relative_path(name, what="name"), path
    except ValueError as error:
        raise _bad("--file", str(error)) from error


def _entry(text: str | None) -> str | None:
    try:
        return None if text is None else normalise_relative_path(text, what="name")
    except ValueError as error:
        raise _bad("--entry", str(error)) from error


def _network(text: str | None) -> tuple[str, ...] | None:
    if text is None or text.strip().casefold() == "none":
        return None if text is None else ()
    try:
        hosts = read_hosts(text)
    except ValueError as error:
        raise _bad("--network", f"{error}; or give none") from error
    if not hosts:
        raise _bad("--network", "give none, or the hosts that the program needs")
    return hosts


def read_hosts(text: str) -> tuple[str, ...]:
    """Read a list of hosts with commas between them. Raises ValueError."""
    return normalise_hosts(part for part in text.split(",") if part.strip())


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_SECONDS:
        raise _bad("--timeout", f"{shown(text)} is not a number of seconds, more than 0 and at most a year")
    return seconds


def _memory(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size(text)
        return ResourceLimits(memory_bytes=size).memory_bytes
    except ValueError as error:
        allowed = allowed_range(ResourceLimits, "memory_bytes")
        reason = str(error) if "no size" in str(error) else f"{shown(text)} is not allowed; it must be {allowed}"
        raise _bad("--memory", reason) from error


def parse_line(line: str) -> LineOptions:
    """Read a ``%agently`` line. Raises ConfigurationError naming what is allowed."""
    words = _words(line, LINE) or ["status"]
    command = words[0]
    if command in ("help", "--help", "-h", "?", "??"):
        return LineOptions("help")
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigurationError(f"{LINE} {command}: there is no such command.{hint} Use one of {', '.join(COMMANDS)}.")
    parser = _Parser(prog=f"{LINE} {command}", add_help=False, allow_abbrev=False)
    if command in _ARGUMENTS:
        parser.add_argument("argument", metavar=_ARGUMENTS[command])
    if command == "grant":
        parser.add_argument("--name", default="", metavar="NAME")
        parser.add_argument("--mode", default="snapshot", choices=MODES)
    elif command == "outputs":
        parser.add_argument("--save", default="", metavar="FOLDER")
    elif command == "doctor":
        parser.add_argument("--details", action="store_true")
    if command == "allow":
        parser.add_argument("hosts", nargs="*", metavar="HOST")
    found = vars(parser.read(words[1:]))
    if command == "allow":
        found["hosts"] = _allowed_hosts(found["argument"], ",".join(found["hosts"]))
    return LineOptions(command, **found)


def _allowed_hosts(kind: str, text: str) -> tuple[str, ...]:
    """Return the hosts of ``allow network``, () for a kind of output. Raises ConfigurationError."""
    if kind != "network":
        if text:
            raise ConfigurationError(f"{LINE} allow {kind}: give one kind of output, or network and the hosts.")
        _check_kind(kind)
        return ()
    try:
        hosts = read_hosts(text)
    except ValueError as error:
        raise ConfigurationError(f"{LINE} allow network: {error}.") from error
    if "none" in hosts:
        raise ConfigurationError(
            f"{LINE} allow network none: this opens hosts and closes none. What was allowed is taken back in the "
            f"panel; a program without any is run with {EXEC} --network none."
        )
    if not hosts:
        raise ConfigurationError(f"{LINE} allow network: name the hosts, as in {LINE} allow network data.example.org")
    return hosts


def _check_kind(kind: str) -> None:
    """Refuse what no output can be called. Raises ConfigurationError listing the kinds there are."""
    if is_kind(kind):
        return
    near = f" Did you mean mime:{kind}?" if is_kind(f"mime:{kind}") else ""
    raise ConfigurationError(
        f"{LINE} allow: {kind!r} is no kind of output.{near} The line that begins with [agently] [withheld] names "
        f"the kind: {', '.join(KINDS)}, mime:TYPE, widget:MODULE or comm:TARGET. To open the network: "
        f"{LINE} allow network HOST"
    )


# -- completion --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Completions:
    """What can stand between ``start`` and ``end`` (characters of the cell)."""

    matches: tuple[str, ...]
    start: int
    end: int


def complete(code: str, cursor: int) -> Completions | None:
    """Complete in the line of a magic; None when the cursor is not in one: the program's own completion runs then."""
    line = code[:cursor]
    if "\n" in line.lstrip():
        return None
    typed = line.lstrip()
    word = re.split(r"\s", typed)[-1]
    start = cursor - len(word)
    words = typed.split()
    if typed.startswith((EXEC + " ", EXEC + "\t")):
        found = _exec_words(words[1:] if not word else words[1:-1], word)
    elif typed.startswith((LINE + " ", LINE + "\t")):
        found = _line_words(words[1:] if not word else words[1:-1], word)
    else:
        return None
    return Completions(tuple(found), start, cursor) if found is not None else None


def _exec_words(before: Sequence[str], word: str) -> list[str] | None:
    if "--" in before:
        return []
    last = next((item for item in reversed(before) if item.startswith("--")), "")
    values: Sequence[str] = ()
    if before and before[-1] == last:
        values = {"--language": languages(), "--isolation": ISOLATION, "--network": ("none",)}.get(last, ())
    if not word.startswith("-") and not values:
        return None if last in ("--input", "--file", "--stdin") else []
    if word.startswith("-"):
        repeated = {"--output", "--input", "--file", "--provider", "--toolchain"}
        values = [name for name in _exec_parser().names() if name not in before or name in repeated]
    return [item for item in values if item.startswith(word)]


def _line_words(before: Sequence[str], word: str) -> list[str] | None:
    if not before:
        return [name for name in COMMANDS if name.startswith(word)]
    if before[-1] == "--mode":
        return [mode for mode in MODES if mode.startswith(word)]
    if word.startswith("-"):
        return [name for name in _LINE_OPTIONS.get(before[0], ()) if name.startswith(word)]
    if before == ["allow"]:
        return [kind for kind in ("network", *KINDS, *(f"{family}:" for family in FAMILIES)) if kind.startswith(word)]
    return None if before[0] == "grant" else []
