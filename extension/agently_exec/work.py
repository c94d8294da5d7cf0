"""What the magics do, written once for both homes: from the options of a line to a request, and to what it came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from agently_exec.home import Home
from agently_exec.options import EXEC, ISOLATION, NOTHING_RUN, ExecOptions
from agently_exec.tables import amount
from agently_kernel.contract.bundle import CodeExecutionFile, CodeExecutionRequest, ExecutionForm
from agently_kernel.contract.errors import ConfigurationError, reasons
from agently_kernel.contract.network import HostPattern
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement, ProviderCandidate
from agently_kernel.contract.result import CodeExecutionResult
from agently_kernel.contract.workspace import TaskWorkspaceAccessRequirement
from agently_kernel.hints import program_hint
from agently_kernel.output_notes import collected_lines, isolation_line, refused_line


@dataclass(frozen=True, slots=True)
class Wanted:
    """One execution, ready to run. ``requirement`` is None for the session's own sandbox."""

    request: CodeExecutionRequest
    requirement: ExecutionResourceRequirement | None
    access: TaskWorkspaceAccessRequirement | None
    timeout: float | None


async def prepare(
    home: Home, options: ExecOptions, body: str, *, cell: str, allow_stdin: bool = False, count: int = 0
) -> Wanted:
    """Pass the gates that the options need and return what to run. *count*: the cell's number, for tracebacks.

    Raises ConfigurationError, WorkspaceError, ApprovalDenied; nothing has been run then.
    """
    gate = home.sandbox.grants.inputs
    requirement = None if options.session else await _requirement(home, options, cell)
    files: list[CodeExecutionFile] = []
    for name, path in options.files:
        files += await gate.read_files(path, name=name, cell=cell)
    stdin = None
    if options.stdin is not None:
        stdin = await gate.read_bytes(options.stdin, why="The program reads it as standard input.", cell=cell)
    for path in options.inputs:
        await gate.grant(path, cell=cell)
    access = home.sandbox.grants.access(fresh=requirement is not None)
    request = _request(options, body, tuple(files), stdin, allow_stdin, count)
    return Wanted(request, requirement, access, options.timeout)


def _request(
    options: ExecOptions, body: str, files: tuple[CodeExecutionFile, ...], stdin: bytes | None, allow_stdin: bool,
    count: int,
) -> CodeExecutionRequest:
    in_session = options.session and options.language == "python"
    settings: dict[str, Any] = {}
    if in_session:
        settings = {
            "silent": False, "store_history": False, "allow_stdin": allow_stdin, "user_expressions": {},
            "execution_count": count,
        }
    if not body.strip() and not files:
        raise ConfigurationError(
            f"{EXEC}: there is no program: write one below the first line, or name its files with --file. {NOTHING_RUN}"
        )
    try:
        return CodeExecutionRequest(
            language=options.language, source_code=body if body.strip() else None, files=files,
            entrypoint=options.entry, args=options.args, stdin=stdin, expected_outputs=options.outputs,
            toolchains=options.toolchains, form=ExecutionForm.SESSION if in_session else ExecutionForm.ONE_SHOT,
            options=settings,
        )
    except ValidationError as error:
        raise ConfigurationError(f"{EXEC}: {reasons(error)}. {NOTHING_RUN}") from error


async def _requirement(home: Home, options: ExecOptions, cell: str) -> ExecutionResourceRequirement:
    """Return what the cell needs. What is more than configured is asked for; what is less is simply taken."""
    configured = home.sandbox.policy
    changes: dict[str, Any] = {}

    async def ask(gate: Any, subject: str, why: str = "", **facts: str | int) -> None:
        await home.approval.gate(
            gate, subject, policy=configured, facts=facts, why=why, session_id=home.session_id, cell_id=cell
        )

    if options.isolation is not None and options.isolation != configured.isolation:
        if ISOLATION.index(options.isolation) > ISOLATION.index(configured.isolation):
            await ask("isolation", f"isolation {options.isolation!r} instead of {configured.isolation!r}")
        changes["isolation"] = options.isolation
    if options.isolation is not None:
        changes["unsafe_fallback"] = options.isolation != "required" and (
            configured.unsafe_fallback or options.unsafe_fallback
        )
        changes["trusted_local_authorized"] = configured.trusted_local_authorized and configured.unsafe_fallback
    if options.memory is not None:
        most = configured.limits.memory_bytes
        if most is not None and options.memory > most:
            await ask("limits", f"{amount(options.memory)} of memory instead of {amount(most)}")
        changes["limits"] = configured.limits.model_copy(update={"memory_bytes": options.memory})
    if options.network is not None:
        allowed = home.sandbox.grants.reachable
        more = tuple(host for host in options.network if host not in allowed)
        if more and configured.network_mode != "enabled":
            await ask_network(home, more, cell)
        changes |= {"network_mode": "hosts" if options.network else "disabled", "network_hosts": options.network}
    values = {name: getattr(configured, name) for name in ExecutionResourcePolicy.model_fields}
    return ExecutionResourceRequirement(
        scope="action_call", owner_id=home.session_id, provider_candidates=_candidates(home, options),
        policy=ExecutionResourcePolicy(**{**values, **changes}),
    )


async def ask_network(home: Home, hosts: tuple[str, ...], cell: str) -> None:
    """Ask whether a sandbox may reach *hosts*. Raises ApprovalDenied."""
    ports = "80 and 443" if not any(HostPattern.parse(host).port for host in hosts) else "as named, else 80 and 443"
    await home.approval.gate(
        "network", ", ".join(hosts), policy=home.sandbox.policy, session_id=home.session_id, cell_id=cell,
        facts={"ports": ports},
    )


def _candidates(home: Home, options: ExecOptions) -> tuple[ProviderCandidate, ...]:
    """Return the chain that the cell names, with the configuration's config for each, else the configured one."""
    configured = {candidate.provider_id: candidate for candidate in home.settings.providers}
    known = configured or home.sandbox.manager.registry.ids()
    for name in options.providers:
        if name not in known:
            where = "in your configuration" if configured else "installed"
            raise ConfigurationError(
                f"{EXEC}: --provider: {name!r} is not {where}; allowed are {', '.join(known)}. {NOTHING_RUN}"
            )
    chosen = tuple(configured.get(name) or ProviderCandidate(provider_id=name) for name in options.providers)
    return chosen or home.settings.providers


def show_outputs(home: Home, cell: str, wanted: Wanted, result: CodeExecutionResult) -> None:
    """Say below the output of the cell what was collected and refused, and when isolation was less than wished."""
    less = isolation_line(result.selection)
    if less:
        home.screen.note(cell, less)
    for line in collected_lines(result.outputs):
        home.screen.note(cell, line)
    refused = refused_line(result.refused_outputs, fresh=wanted.requirement is not None)
    for line in (refused, home.sandbox.grants.inputs.hint(result, cell=cell), program_hint(wanted.request, result)):
        if line:
            home.screen.note(cell, line)
