"""``%%agently_exec`` and ``%agently``: recognised here, in the kernel, by a cell's first line; never by the guest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pydantic import ValidationError

from agently_kernel.contract.bundle import CodeExecutionRequest, CodeExecutionToolchainRequirement, ExecutionForm
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.isolation import IsolationAxis
from agently_kernel.contract.resource import ExecutionResourceRequirement, ProviderCandidate
from agently_kernel.contract.result import CodeExecutionResult

if TYPE_CHECKING:
    import argparse

    from agently_kernel.kernel import AgentlyKernel, RunningCell

_EXEC = re.compile(r"\s*%%agently_exec(?![\w.])([^\n]*)(?:\n|\Z)")
_LINE = re.compile(r"\s*%agently(?![\w.])([^\n]*)\s*\Z")
_STRICTNESS = ("none", "preferred", "required")


class Magic(Protocol):
    """A cell that the kernel answers itself."""

    async def run(self, kernel: AgentlyKernel, running: RunningCell, cell_id: str) -> dict[str, Any]:
        """Return the reply's content. Raises AgentlyKernelError with a sentence."""


def parse_magic(code: str) -> Magic | None:
    """Return the magic that *code* is, or None for an ordinary cell. Raises ConfigurationError for bad options."""
    found = _EXEC.match(code)
    if found is not None:
        return ExecMagic.parse(found.group(1), code[found.end() :])
    found = _LINE.match(code)
    return LineMagic.parse(found.group(1)) if found is not None else None


def _words(line: str, magic: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigurationError(f"{magic}: the line cannot be read ({error}); close every quotation mark.") from error


def _parser() -> argparse.ArgumentParser:
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            usage = self.format_usage()[7:].strip()
            raise ConfigurationError(f"%%agently_exec: {message}. Nothing was run. Options: {usage}")

    parser = Parser(prog="%%agently_exec", add_help=False, allow_abbrev=False)
    parser.add_argument("--help", action="store_true")
    parser.add_argument("--language", default="python", metavar="NAME")
    parser.add_argument("--output", action="append", default=[], metavar="PATH")
    parser.add_argument("--isolation", choices=_STRICTNESS)
    parser.add_argument("--provider", action="append", default=[], metavar="ID")
    parser.add_argument("--toolchain", action="append", default=[], metavar="'TOOL>=VERSION'")
    parser.add_argument("--timeout", type=float, metavar="SECONDS")
    parser.add_argument("args", nargs="*", metavar="ARGS")
    return parser


@dataclass(frozen=True, slots=True)
class ExecMagic:
    """One program in a fresh sandbox of its own."""

    options: Mapping[str, Any]
    body: str

    @classmethod
    def parse(cls, line: str, body: str) -> ExecMagic:
        """Read the options. Raises ConfigurationError naming the option and what is allowed."""
        options = vars(_parser().parse_args(_words(line, "%%agently_exec")))
        if options["timeout"] is not None and not 0 < options["timeout"] < 1e7:
            raise ConfigurationError("%%agently_exec: --timeout must be a positive number of seconds. Nothing was run.")
        return cls(options, body)

    def requirement(self, kernel: AgentlyKernel) -> ExecutionResourceRequirement:
        """Return what the cell needs; it can only ask for as much isolation as configured, or more."""
        policy, wanted = kernel.sandbox.policy, self.options["isolation"]
        if wanted is not None and _STRICTNESS.index(wanted) < _STRICTNESS.index(policy.isolation):
            raise ConfigurationError(
                f"%%agently_exec: --isolation {wanted} is weaker than your configuration ({policy.isolation}), and a "
                "cell can only ask for more. Change c.AgentlyKernel.isolation if you mean it. Nothing was run."
            )
        changes: dict[str, Any] = {}
        if wanted is not None:
            changes["isolation"] = wanted
            changes["unsafe_fallback"] = policy.unsafe_fallback and wanted != "required"
        allowed = {candidate.provider_id: candidate for candidate in kernel.settings.providers}
        for name in self.options["provider"]:
            if allowed and name not in allowed:
                raise ConfigurationError(
                    f"%%agently_exec: --provider {name} is not in your configuration; allowed: {', '.join(allowed)}. "
                    "Nothing was run."
                )
        chosen = tuple(allowed.get(name) or ProviderCandidate(provider_id=name) for name in self.options["provider"])
        return ExecutionResourceRequirement(
            scope="action_call", owner_id=kernel.session_id,
            provider_candidates=chosen or kernel.settings.providers, policy=policy.model_copy(update=changes),
        )

    async def run(self, kernel: AgentlyKernel, running: RunningCell, cell_id: str) -> dict[str, Any]:
        """Run the program and return the reply; collected outputs are listed below what it printed."""
        if self.options["help"]:
            kernel.publisher.text(running.cell, "stdout", _parser().format_help())
            return {"status": "ok", "user_expressions": {}, "payload": []}
        try:
            request = CodeExecutionRequest(
                language=self.options["language"], source_code=self.body, args=tuple(self.options["args"]),
                expected_outputs=tuple(self.options["output"]), form=ExecutionForm.ONE_SHOT,
                toolchains=tuple(map(CodeExecutionToolchainRequirement.parse, self.options["toolchain"])),
            )
        except ValidationError as error:
            reasons = [str(item["msg"]).removeprefix("Value error, ") for item in error.errors(include_url=False)]
            raise ConfigurationError(f"%%agently_exec: {'; '.join(reasons)}. Nothing was run.") from error
        except ValueError as error:
            raise ConfigurationError(f"%%agently_exec: {error}. Nothing was run.") from error
        result = await kernel.cells.execute(
            running, request, cell_id=cell_id, count=None, requirement=self.requirement(kernel),
            timeout=self.options["timeout"],
        )
        show_outputs(kernel, running.cell, result)
        return kernel.cells.reply(running.cell, result)


def show_outputs(kernel: AgentlyKernel, cell: str, result: CodeExecutionResult) -> None:
    """List what was collected and what was refused, below the output of the cell."""
    for output in result.outputs:
        kernel.screen.note(cell, f"collected {output.path} ({output.size:,} bytes, {output.sha256[:19]}…)")
    for refused in result.refused_outputs:
        kernel.screen.note(cell, f"refused {refused.path}: {refused.message}")


@dataclass(frozen=True, slots=True)
class LineMagic:
    """``%agently status | outputs | restart | allow KIND``."""

    command: str
    argument: str

    @classmethod
    def parse(cls, line: str) -> LineMagic:
        """Read the command. Raises ConfigurationError naming what is allowed."""
        words = _words(line, "%agently") or ["status"]
        command, rest = words[0], " ".join(words[1:])
        if command not in ("status", "facts", "outputs", "restart", "allow"):
            raise ConfigurationError(
                f"%agently {command}: there is no such command; use status, facts, outputs, restart or allow KIND."
            )
        if (command == "allow") != bool(rest):
            takes = "one kind of output" if command == "allow" else "nothing more"
            raise ConfigurationError(f"%agently {command} takes {takes}.")
        return cls(command, rest)

    async def run(self, kernel: AgentlyKernel, running: RunningCell, cell_id: str) -> dict[str, Any]:
        """Do what was asked and print what came of it."""
        if self.command == "facts":
            await self._facts(kernel, running)
        else:
            text = await getattr(self, f"_{self.command}")(kernel, running)
            kernel.publisher.text(running.cell, "stdout", text + "\n")
        return {"status": "ok", "user_expressions": {}, "payload": []}

    async def _status(self, kernel: AgentlyKernel, running: RunningCell) -> str:
        await kernel.sandbox.ready()
        facts = kernel.sandbox.facts
        if facts is None:
            return "No sandbox is open; the next cell opens one."
        marks = {True: "✓ observed", False: "✗ does not hold", None: "? could not be observed"}
        rows = [("provider", f"{facts.provider_id} ({facts.safety_class.value})")]
        rows += [(axis.value, marks[facts.isolation.axis(axis)]) for axis in IsolationAxis]
        rows.append(("network", f"{facts.network}, {marks[facts.isolation.network_blocked]} as blocked"))
        rows += [
            (limit.name, f"{limit.limit:,.0f} by {limit.mechanism}")
            for limit in facts.limits
            if limit.limit is not None
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    async def _facts(self, kernel: AgentlyKernel, running: RunningCell) -> None:
        from agently_exec.tables import facts_report

        await kernel.sandbox.ready()
        report = facts_report(kernel.sandbox.facts, kernel.sandbox.selection)
        kernel.publisher.message("display_data", {"data": report.bundle(), "metadata": {}}, running.cell)

    async def _outputs(self, kernel: AgentlyKernel, running: RunningCell) -> str:
        files = kernel.sandbox.workspace.store.files
        names = sorted(str(path.relative_to(files)) for path in files.rglob("*") if path.is_file())
        return "\n".join([f"{len(names)} collected files in {files}", *names[:200]])

    async def _restart(self, kernel: AgentlyKernel, running: RunningCell) -> str:
        await kernel.sandbox.restart_sandbox()
        return "The sandbox was closed; the next cell opens a fresh one. Variables are lost, collected files are kept."

    async def _allow(self, kernel: AgentlyKernel, running: RunningCell) -> str:
        await kernel.approval.gate(
            "active_output", self.argument, policy=kernel.sandbox.policy, session_id=kernel.session_id,
            cell_id=str((running.parent.get("metadata") or {}).get("cellId") or running.cell),
        )
        kernel.filter.allow(self.argument)
        return f"{self.argument} is allowed for this session; run the cell again to show it."
