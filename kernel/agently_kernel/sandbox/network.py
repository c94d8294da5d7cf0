"""A guest's way to the hosts it was granted: opened on demand, observed before use, closed with the sandbox."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from agently_kernel.contract.errors import SandboxError
from agently_kernel.contract.isolation import Evidence, IsolationFacts, SandboxFacts
from agently_kernel.contract.network import HostPattern
from agently_kernel.contract.protocols import GuestNetwork
from agently_kernel.guest import wire
from agently_kernel.sandbox.observe import read_observations
from agently_kernel.sandbox.session import GuestSession

PORT = 3128
"""Where the relay listens on the sandbox's own loopback (a proxy's customary port); another one where it is taken."""
OPEN_SECONDS = 10.0
NET_OPS = frozenset(("net_open", "net_data", "net_credit", "net_end", "net_close"))
_LOCAL = ("localhost", "127.0.0.1", "::1")


def proxy_environment(port: int, hosts: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables by which programs find the relay, in both spellings, and Node's word to heed them.

    What is local means the sandbox's own loopback and goes past the relay, but for what is among the granted *hosts*:
    that can only be meant as the host's, and few programs read ports in ``NO_PROXY``.
    """
    address = f"http://127.0.0.1:{port}"
    granted = {HostPattern.parse(host).value for host in hosts}
    past = ",".join(name for name in _LOCAL if name not in granted)
    found = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), address) | {"NO_PROXY": past}
    return {**found, **{name.lower(): value for name, value in found.items()}, "NODE_USE_ENV_PROXY": "1"}


class NetworkLink:
    """The relay of one sandbox."""

    def __init__(self, session: GuestSession, relay: GuestNetwork, python: str, guest_dir: str) -> None:
        self._session = session
        self._python, self._guest_dir = python, guest_dir
        self.relay = relay
        self._port: int | None = None
        self._told: Mapping[str, str] = {}
        relay.attach(session.send)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables for what is granted now; empty until :meth:`open` has succeeded."""
        return {} if self._port is None else proxy_environment(self._port, self.relay.hosts)

    async def refresh(self) -> None:
        """Tell the sandbox the variables anew when other hosts have been granted since. Raises SandboxError."""
        if self._port is None or self.environment == self._told:
            return
        try:
            reason = await self._listen(self._port)
        except asyncio.TimeoutError:
            reason = f"no answer within {OPEN_SECONDS:g} s"
        if reason:
            raise SandboxError(f"The sandbox could not be told which hosts it may reach now: {reason}")

    async def _listen(self, port: int) -> str:
        """Let init listen on *port*, which it may do already, and hand the variables on; return why not, or ""."""
        environment = proxy_environment(port, self.relay.hosts)
        message = {"op": "net_listen", "port": port, "env": environment}
        header, _ = await self._session.request(message, timeout=OPEN_SECONDS)
        if not header["ok"]:
            return str(header.get("reason") or "no reason given")[:500]
        self._told = environment
        return ""

    def on_frame(self, op: str, header: dict[str, Any], payload: bytes) -> Awaitable[None] | None:
        """Take a frame of a connection. Raises WireError."""
        return self.relay.on_frame(op, header, payload)

    async def open(self) -> tuple[Evidence, ...]:
        """Let init listen and observe from inside what can be reached; return the evidence. Raises SandboxError."""
        try:
            return await asyncio.wait_for(self._open(), OPEN_SECONDS)
        except asyncio.TimeoutError:
            raise SandboxError(f"The sandbox's network relay did not start within {OPEN_SECONDS:g} s.") from None

    async def _open(self) -> tuple[Evidence, ...]:
        reason = ""
        for port in (PORT, *(secrets.randbelow(16384) + 49152 for _ in range(4))):
            reason = await self._listen(port)
            if not reason:
                break
        else:
            raise SandboxError(f"The sandbox's network relay could not listen: {reason}")
        argv = [self._python, "-I", "-S", f"{self._guest_dir}/network_probe.py", str(port), self.relay.self_test,
                self.relay.secret]
        _, payload = await self._session.request({"op": "tools", "argvs": [argv]}, timeout=OPEN_SECONDS)
        self._port = port
        answer = wire.loads(payload)
        text = answer[0].get("output") if isinstance(answer, list) and answer and isinstance(answer[0], dict) else None
        try:
            return read_observations(str(text or "").encode(), allowed=("network",))
        except wire.WireError as error:
            raise SandboxError(f"The attempts through the sandbox's network relay told nothing ({error}).") from error


def with_relay(facts: SandboxFacts, evidence: tuple[Evidence, ...], hosts: tuple[str, ...]) -> SandboxFacts:
    """Return *facts* of a sandbox whose relay was opened: ``filtered`` only if nothing but the relay leads out."""
    isolation = IsolationFacts.from_evidence((*facts.isolation.evidence, *evidence))
    held = isolation.network_blocked is True
    return facts.model_copy(update={
        "isolation": isolation, "network": "filtered" if held else "unknown", "network_hosts": hosts if held else (),
        "observed_at": time.time(),
    })
