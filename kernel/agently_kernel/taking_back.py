"""Taking back what was allowed: it ends at once, in the sandbox that is open too, and what cannot end is said."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Protocol

from agently_kernel.contract.approval import Gate
from agently_kernel.contract.network import HostPattern
from agently_kernel.outputs import OutputFilter
from agently_kernel.policy import PolicyApproval
from agently_kernel.screen import Screen
from agently_kernel.session_sandbox import SessionSandbox

InForce = tuple[Gate, str]
"""A gate, and exactly what it allows now."""


class GrantsHome(Protocol):
    """What is used of a kernel, or of a session in another one."""

    session_id: str

    @property
    def approval(self) -> PolicyApproval: ...
    @property
    def sandbox(self) -> SessionSandbox: ...
    @property
    def filter(self) -> OutputFilter: ...
    @property
    def screen(self) -> Screen: ...


def remembered(home: GrantsHome) -> tuple[InForce, ...]:
    """Return the approvals that hold for the whole session: what they allow is not asked for again."""
    return tuple((gate, subject) for _, gate, subject in home.approval.remembered(home.session_id))


def in_force(home: GrantsHome) -> tuple[InForce, ...]:
    """Return what holds until it is taken back, however it was answered: hosts and kinds of output. Inputs have their
    own list."""
    hosts: list[InForce] = [("network", host) for host in home.sandbox.grants.hosts]
    return (*hosts, *(("active_output", kind) for kind in sorted(home.filter.granted)))


async def take_back(home: GrantsHome, gate: Gate, subject: str) -> str:
    """Take back what *gate* allows of *subject*, in every sandbox of the session; return in a sentence what came of it.

    A host is taken from all approvals that name it. Raises AgentlyKernelError when something could not be ended; it is
    asked for again then all the same.
    """
    home.approval.forget(home.session_id, gate, subject)
    try:
        if gate == "network":
            return _network(home, tuple(part for part in subject.split(", ") if part))
        if gate in ("input", "sensitive_input"):
            return await _input(home, subject)
        if gate == "active_output":
            return await _output(home, subject)
        return "It will be asked for again."
    finally:
        home.sandbox.on_grants()


def _network(home: GrantsHome, hosts: tuple[str, ...]) -> str:
    for gate, subject in remembered(home):
        if gate == "network" and set(subject.split(", ")) & set(hosts):
            home.approval.forget(home.session_id, gate, subject)
    left = home.sandbox.grants.take_back_network(hosts)
    gone = [host for host in hosts if host not in left]
    said = [f"{', '.join(gone)} can no longer be reached; open connections were ended."] if gone else []
    configured = {str(HostPattern.parse(host)) for host in home.sandbox.policy.network_hosts}
    for host in left:
        by = "your configuration" if host in configured else "another grant or your configuration"
        said.append(f"{host} can still be reached, by {by}.")
    return " ".join(said)


async def _input(home: GrantsHome, path: str) -> str:
    """*path*: where the input lies on this machine."""
    places = {path, await asyncio.to_thread(os.path.realpath, path)}
    mine = [item for item in home.sandbox.given if item.host_path in places]
    around = [item.name for item in home.sandbox.given if Path(item.host_path) in Path(path).parents]
    still = f" It is still in {', '.join(around)}, which was given too: take that back as well." if around else ""
    if not mine:
        return f"{path} will be asked for again.{still}"
    left = [item.name for item in mine if not await home.sandbox.grants.take_back_input(item.name)]
    names = ", ".join(item.name for item in mine)
    if left:
        return (
            f"No new sandbox gets {names}, but the open one can still read {', '.join(left)}: restart the sandbox to "
            "end that (variables are lost)."
        )
    return f"{names} was removed from the sandbox. What code has read of it stays in its variables.{still}"


async def _output(home: GrantsHome, kind: str) -> str:
    for comm_id in home.screen.withdraw(kind):
        await home.sandbox.send_comm("comm_close", comm_id, {}, {}, ())
    return f"{kind} is not shown any more. What was shown before stays in the page until its output is cleared."
