"""The commands of ``%agently``: each returns tables, and does what it says only when its gate lets it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agently_exec.home import Home
from agently_exec.options import LineOptions, line_help
from agently_exec.tables import MARKS, Report, Table, amount, clean, events_table, facts_report, outputs_table, when
from agently_exec.work import ask_network
from agently_kernel.contract.approval import ApprovalOutcome
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.isolation import IsolationAxis
from agently_kernel.contract.words import counted
from agently_kernel.contract.workspace import CollectedOutput
from agently_kernel.doctor import DoctorReport, ProviderReport, conclusion, examine
from agently_kernel.inputs_gate import hidden_by, not_mounted
from agently_kernel.saving import save
from agently_kernel.workspace.earlier import earlier_files

MAX_LISTED = 500


async def run_line(home: Home, options: LineOptions, *, cell: str) -> Report:
    """Do what a ``%agently`` line asks for and return what to show.

    Raises AgentlyKernelError with a sentence (ApprovalDenied when a person said no, or nobody could be asked).
    """
    match options.command:
        case "help":
            return Report((Table(line_help()),), text=line_help())
        case "status":
            return await status(home)
        case "facts":
            await home.sandbox.ready()
            return facts_report(home.sandbox.facts, home.sandbox.selection, every=True)
        case "doctor":
            report = await examine(
                home.sandbox.manager.registry, home.settings.providers, home.sandbox.policy, others=True
            )
            return doctor_report(report, details=options.details)
        case "outputs":
            return await _outputs(home, options.save, cell)
        case "grant":
            return await _grant(home, options, cell)
        case "restart":
            await home.sandbox.restart_sandbox()
            text = "The sandbox was closed; the next cell opens a fresh one."
            return Report((Table(text, note="Variables are lost, collected files are kept."),))
        case "events":
            return Report((events_table(home.sandbox.events),))
        case _:
            if options.hosts:
                return await _allow_network(home, options.hosts, cell)
            return await _allow(home, options.argument, cell)


async def status(home: Home) -> Report:
    """Return what is open, what it restricts, what was given to it and what was allowed."""
    await home.sandbox.ready()
    facts, policy = home.sandbox.facts, home.sandbox.policy
    rows = [("session", home.session_id)]
    if facts is None:
        rows.append(("sandbox", "none is open; the next cell that needs one opens it"))
    else:
        held = [axis for axis in IsolationAxis if facts.isolation.axis(axis) is True]
        mark = MARKS[len(held) == len(IsolationAxis)]
        rows.append(("sandbox", f"{facts.provider_id} ({facts.safety_class.value})"))
        text = f"{mark} {len(held)} of {len(IsolationAxis)} axes observed to hold; {policy.isolation} by configuration"
        rows.append(("isolation", text))
        rows.append(("network", f"{MARKS[facts.isolation.network_blocked]} {facts.network_shown}"))
        rows += [
            (
                limit.name,
                "✗ not limited" if limit.mechanism == "none"
                else f"{amount(limit.limit, limit.name)} by {limit.mechanism}",
            )
            for limit in facts.limits
            if limit.limit is not None and limit.name in ("memory", "processes", "scratch_bytes")
        ]
    rows.append(("outputs shown", home.settings.outputs))
    tables = [Table("Agently status", ("", ""), tuple(rows))]
    given = home.sandbox.given
    if given:
        inputs = tuple(
            (item.name, item.mode, "" if item.size is None else amount(item.size), item.host_path) for item in given
        )
        tables.append(Table("Files that were given", ("name inside", "how", "size", "from"), inputs))
    allowed = tuple((gate, subject) for _, gate, subject in home.approval.remembered(home.session_id))
    if allowed:
        tables.append(Table("Allowed for this session", ("what", "exactly"), allowed))
    return Report(tuple(tables))


def collected_files(home: Home) -> tuple[list[CollectedOutput], Path]:
    """Return the newest copy of every file that was collected in this session, and the folder they are kept in."""
    store = home.sandbox.workspace.store
    found: list[CollectedOutput] = []
    for path in sorted(store.files.rglob("*")):
        if path.is_file() and not path.is_symlink() and len(found) < MAX_LISTED:
            name = path.relative_to(store.files).as_posix()
            found.append(CollectedOutput(path=name, sha256="", size=path.stat().st_size, stored_path=str(path)))
    return found, store.files


async def _outputs(home: Home, folder: str, cell: str) -> Report:
    found, where = collected_files(home)
    base = home.sandbox.grants.inputs.folder
    if not folder:
        rows = tuple((item.path, amount(item.size)) for item in found)
        own = Table(counted(len(found), "collected file"), ("file", "size"), rows, f"kept in {where}")
        earlier = await asyncio.to_thread(earlier_files, home.sandbox.workspace.store, base)
        older = tuple((when(at), counted(count, "file"), str(files)) for at, count, files in earlier)
        before = Table("Kept from earlier sessions in this folder", ("begun", "", "in"), older)
        return Report((own, before) if older else (own,))
    place = Path(folder)
    if place.is_absolute() or ".." in place.parts:
        raise ConfigurationError("%agently outputs --save: give a folder below the notebook's folder, such as results.")
    if not found:
        return Report((outputs_table((), title="Nothing was collected yet, so nothing was saved"),))
    target = base / place
    saved = await save(home, target, [(item.path, Path(item.stored_path)) for item in found], cell=cell)
    rows = tuple(
        (clean(path.relative_to(target).as_posix()), amount(item.size)) for item, path in zip(found, saved, strict=True)
    )
    return Report((Table(f"Saved in {target}", ("file", "size"), rows),))


async def _grant(home: Home, options: LineOptions, cell: str) -> Report:
    granted = await home.sandbox.grants.inputs.grant(options.argument, name=options.name, mode=options.mode, cell=cell)
    there = home.sandbox.will_show(granted)
    how = "a private copy" if granted.mode == "snapshot" else "a live read-only mount"
    rows = [("name inside", granted.name), ("from", granted.host_path), ("how", how)]
    if granted.size is not None:
        rows.append(("size", amount(granted.size)))
    if granted.sha256:
        rows.append(("digest", granted.sha256))
    hidden = await home.sandbox.show(granted)
    note = "" if there else not_mounted(granted.name)
    if hidden:
        note = hidden_by(clean(hidden))
    return Report((Table("Given to the sandbox", ("", ""), tuple(rows), note),))


async def _allow_network(home: Home, hosts: tuple[str, ...], cell: str) -> Report:
    await home.sandbox.ready()
    more = tuple(host for host in hosts if host not in home.sandbox.grants.reachable)
    if more:
        await ask_network(home, more, cell)
    await home.sandbox.grants.allow_network(hosts)
    facts = home.sandbox.facts
    if facts is None:
        note = "The next sandbox of this session is opened with them."
    else:
        note = f"Observed: {MARKS[facts.network == 'filtered']} {facts.network_shown}. Nothing else can be reached."
    rows = tuple((host,) for host in home.sandbox.grants.reachable)
    return Report((Table("The session's sandbox may reach", ("host",), rows, note),))


async def _allow(home: Home, kind: str, cell: str) -> Report:
    decision = await home.approval.gate(
        "active_output", kind, policy=home.sandbox.policy, session_id=home.session_id, cell_id=cell
    )
    home.filter.allow(kind)
    home.sandbox.on_grants()
    once = decision.outcome is ApprovalOutcome.APPROVED_ONCE
    return Report((Table(f"{kind} is shown from now on", note="Run the cell again to show it." if once else ""),))


_HEADS = {
    IsolationAxis.PROCESS_CONTAINED: "processes",
    IsolationAxis.HOST_FILESYSTEM_RESTRICTED: "files",
    IsolationAxis.PRIVILEGE_ESCALATION_BLOCKED: "privileges",
    IsolationAxis.SYSCALLS_RESTRICTED: "syscalls",
}


def doctor_report(report: DoctorReport, *, details: bool = False) -> Report:
    """Return the doctor's report as tables; with *details* every observation too."""
    rows = []
    for item in report.providers:
        marks = [MARKS[item.axes.get(axis.value)] if item.available else "·" for axis in _HEADS]
        network = MARKS[item.network_blocked] if item.available else "·"
        usable = "✓ yes" if item.meets_required else "? weaker" if item.available else "✗ no"
        used = "in use" if item.in_use else "" if item.in_chain else "not in your chain"
        rows.append((item.provider_id, usable, *marks, network, item.safety_class or "·", used))
    heads = ("provider", "usable", *_HEADS.values(), "no network", "class", "")
    title = f"agently-kernel {report.version} · Python {report.python} · {report.platform}"
    tables = [Table(title, heads, tuple(rows), conclusion(report))]
    reasons = tuple((p.provider_id, p.reason, p.remedy) for p in report.providers if p.reason or p.remedy)
    if reasons:
        tables.append(Table("What is missing", ("provider", "reason", "remedy"), reasons))
    for item in report.providers if details else ():
        tables += _observations(item)
    return Report(tuple(tables))


def _observations(item: ProviderReport) -> list[Table]:
    if not item.available:
        return []
    rows = tuple((MARKS[e.value], e.subject, e.check, e.source, e.detail) for e in item.evidence)
    tools = tuple(("tool " + name, version) for name, version in item.toolchains.items())
    more = tuple(item.mechanism.items()) + tools
    return [
        Table(f"{item.provider_id}: observations", ("", "subject", "check", "from", "detail"), rows),
        Table(f"{item.provider_id}: mechanism", ("", ""), more),
    ]
