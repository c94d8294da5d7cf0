"""A synthetic kernel for the panel's browser tests: real panel service and real approval broker, invented facts.

It runs no code. Each line of a cell is a command of :class:`SyntheticKernel`, so that a test can bring about states
that a real sandbox only shows when something is wrong with the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

from agently_kernel.approvals import ApprovalBroker
from agently_kernel.contract.errors import ApprovalDenied
from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.isolation import (
    Evidence,
    IsolationAxis,
    IsolationFacts,
    LimitFact,
    SafetyClass,
    SandboxFacts,
    ToolchainFact,
)
from agently_kernel.contract.resource import ExecutionResourcePolicy, ProviderSelection, SkipReason
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.contract.workspace import CollectedOutput, GrantedInput, RefusedOutput
from agently_kernel.panel import PanelService, install, publisher
from agently_kernel.panel_schema import PolicyView, SessionView
from agently_kernel.panel_state import PanelState
from agently_kernel.policy import PolicyApproval

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000002000000020802000000fdd49a73"
    "0000001649444154789c63fccfc0f09f818181e13f030303030000250103fd3f7c8fbb0000000049454e44ae426082"
)


def facts(held: dict[str, bool | None] | None = None, safety: str = "isolated") -> SandboxFacts:
    """Return invented facts; *held* changes what was observed of single axes."""
    now = time.time()
    rows = {
        "process_contained": ("pid_namespace", "its own", "few processes are visible", "3 processes"),
        "host_filesystem_restricted": (
            "no_writable_host_mount", "25 mounts", "a file of the host cannot be read", "ENOENT",
        ),
        "privilege_escalation_blocked": ("no_new_privs", "1", "becoming uid 0 is refused", "EPERM"),
        "syscalls_restricted": ("seccomp_filter", "mode 2, 1 filter(s)", "ptrace is refused", "EPERM"),
        "network": ("net_namespace", "its own", "there is no route to anywhere", "ENETUNREACH"),
    }
    held = held or {}
    evidence = tuple(
        Evidence(
            subject=subject, check=check, value=held.get(subject, True), source=source, detail=detail, observed_at=now
        )
        for subject, (outside, seen, inside, tried) in rows.items()
        for source, check, detail in (("outside", outside, seen), ("inside", inside, tried))
    )
    return SandboxFacts(
        provider_id="bubblewrap" if safety == "isolated" else "trusted_local", safety_class=SafetyClass(safety),
        isolation=IsolationFacts.from_evidence(evidence), network="none" if safety == "isolated" else "inherited",
        limits=(
            LimitFact(name="memory", limit=2 * 1024**3, mechanism="cgroup2", observed=True),
            LimitFact(name="processes", limit=512, mechanism="cgroup2", observed=True),
            LimitFact(name="scratch_bytes", limit=1024**3, mechanism="tmpfs", observed=True),
            LimitFact(name="cpu", limit=None, mechanism="none", observed=None),
        ),
        toolchains={
            "python": ToolchainFact(tool="python", available=True, version="3.11.7"),
            "node": ToolchainFact(tool="node", available=False),
        },
        mechanism={"version": "0.8.0", "binary": "/usr/bin/bwrap", "seccomp_rules": 91, "user_namespace": True},
        observed_at=now,
    )


SELECTION = ProviderSelection(
    index=1, provider_id="bubblewrap",
    skipped=(
        SkipReason(
            provider_id="docker", index=0, code="unavailable",
            message="No container engine answers at the default socket.",
            remedy="start it (`systemctl start docker`), or name another one with the provider's `host`",
        ),
        SkipReason(
            provider_id="trusted_local", index=2, code="trusted_local_refused",
            message="it isolates nothing, and isolation is required",
        ),
    ),
)


class SyntheticKernel(Kernel):
    """Commands, one a line: ``print TEXT``, ``sleep SECONDS``, ``stream LINES``, ``ask GATE SUBJECT``, ``output PATH``,
    ``missing PATH``, ``withhold MIME``, ``inputs``, ``burst COUNT``, ``axes NAME=VALUE``, ``naked``, ``display HTML``,
    ``fail``."""

    implementation = "synthetic"
    implementation_version = "0"
    banner = "synthetic kernel for tests"
    language_info = {"name": "python", "mimetype": "text/plain", "file_extension": ".txt"}  # noqa: RUF012

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.timeout = float(os.environ.get("SYNTHETIC_TIMEOUT", "120"))
        self.folder = Path(tempfile.mkdtemp(prefix="synthetic-", dir=os.environ.get("JUPYTER_RUNTIME_DIR")))
        self.state = PanelState(
            session=SessionView(
                session_id="synthetic", product_version="0", started_at=time.time(), workspace_id="ws-1", status="ready"
            ),
            policy=PolicyView(approval_timeout_seconds=self.timeout),
        )
        self.broker = ApprovalBroker(panel_attached=lambda: self.service.attached)
        self.service = PanelService(publisher(self), self.state, self.broker, self)
        install(self, self.service.handle)
        self.broker.listen(self._question)
        self.approval = PolicyApproval()
        self.approval.set_channel(self.broker.handle, self.broker.account)
        self.approval.add_listener(self.state.approval_ended)
        self.state.set_sandbox(facts(), SELECTION)
        self.n = 0

    def _question(self, event: str, request: Any, _outcome: Any, _by: str) -> None:
        if event == "opened":
            self.state.approval_asked(request)
        else:
            self.state.approval_closed(request.request_id)

    async def restart_sandbox(self) -> str:
        self.state.set_sandbox(facts())
        return "The sandbox was closed."

    async def doctor(self) -> tuple[str, dict[str, Any]]:
        return "provider     available\nbubblewrap   yes\ndocker       no: the daemon does not answer", {}

    async def save_output(self, output: CollectedOutput, folder: str) -> str:
        return f"{folder}{output.path}"

    async def revoke(self, gate: Any, subject: str) -> str:
        self.approval.forget("synthetic", gate, subject)
        return f"{subject} is gone."

    def say(self, text: str, name: str = "stdout") -> None:
        self.send_response(self.iopub_socket, "stream", {"name": name, "text": text})

    async def do_execute(
        self, code: str, silent: bool, store_history: bool = True, user_expressions: Any = None,
        allow_stdin: bool = False, *, cell_meta: Any = None, cell_id: str | None = None,
    ) -> dict[str, Any]:
        self.n += 1
        name, started = f"exec-{self.n}", time.time()
        digest = "sha256:" + hashlib.sha256(code.encode()).hexdigest()
        self.state.set_session(status="busy")
        self.state.execution_started(name, cell_id=cell_id or "", bundle_digest=digest, count=self.execution_count)
        outputs: list[CollectedOutput] = []
        refused: list[RefusedOutput] = []
        status, message = ExecutionStatus.SUCCESS, ""
        for line in code.splitlines():
            word, _, rest = line.partition(" ")
            try:
                await self._command(name, word, rest, cell_id or "", outputs, refused)
            except ApprovalDenied as error:
                status, message = ExecutionStatus.BLOCKED, str(error)
                self.say(message + "\n", "stderr")
                break
        self.state.execution_finished(name, CodeExecutionResult(
            status=ExecutionStatus.ERROR if refused else status, bundle_id="b", bundle_digest=digest, message=message,
            outputs=tuple(outputs), refused_outputs=tuple(refused), started_at=started, seconds=time.time() - started,
        ))
        self.state.set_session(status="ready")
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    async def _command(
        self, name: str, word: str, rest: str, cell: str, outputs: list[CollectedOutput], refused: list[RefusedOutput]
    ) -> None:
        if word == "print":
            self.say(rest + "\n")
            self.state.execution_output(name, rest + "\n")
        elif word == "stream":
            for i in range(int(rest)):
                self.say(f"line {i}\n")
                self.state.execution_output(name, f"line {i}\n")
                await asyncio.sleep(0.05)
        elif word == "sleep":
            await asyncio.sleep(float(rest))
        elif word == "ask":
            gate, _, subject = rest.partition(" ")
            decision = await self.approval.gate(
                gate, subject,  # type: ignore[arg-type]
                policy=ExecutionResourcePolicy(approval_timeout_seconds=self.timeout),
                session_id="synthetic", cell_id=cell, notebook="synthetic.ipynb",
            )
            self.say(f"{gate}: {decision.outcome.value}\n")
        elif word == "output":
            data = {"png": PNG, "csv": b"name,value\nalpha,1\n\"be,ta\",2\n"}.get(rest.rsplit(".", 1)[-1], b"hello\n")
            path = self.folder / rest.replace("/", "_")
            path.write_bytes(data)
            outputs.append(CollectedOutput(
                path=rest, sha256=hashlib.sha256(data).hexdigest(), size=len(data), stored_path=str(path)
            ))
        elif word == "missing":
            message = f"{rest} was not taken: there is no such file"
            refused.append(RefusedOutput(path=rest, reason="missing", message=message))
        elif word == "withhold":
            reason = f"Output of type {rest} was withheld: its renderer may run code in the page."
            allow = f"To allow it in this session: %agently allow mime:{rest}"
            self.state.withheld(name, kind=f"mime:{rest}", mime=rest, reason=reason, how_to_allow=allow)
        elif word == "burst":
            for i in range(int(rest)):
                self.state.resource_event(ExecutionResourceEvent(
                    event_id=f"{name}-{i}", event_type="execution_resource.progress", timestamp=time.time(),
                    provider_id="bubblewrap", phase=f"step {i}",
                ))
        elif word == "axes":
            key, _, value = rest.partition("=")
            self.state.set_sandbox(facts({key: {"true": True, "false": False}.get(value)}), SELECTION)
        elif word == "naked":
            held = dict.fromkeys((*(axis.value for axis in IsolationAxis), "network"), False)
            self.state.set_sandbox(facts(held, "trusted_local"))
        elif word == "inputs":
            given = GrantedInput(name="data.csv", host_path="/data/data.csv", sha256="ab" * 32, size=1234)
            self.state.set_inputs((given,))
        elif word == "display":
            self.send_response(self.iopub_socket, "display_data", {"data": {"text/html": rest}, "metadata": {}})
        elif word == "fail":
            self.state.set_session(status="failed", message="No provider is eligible: bubblewrap is not installed.")


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=SyntheticKernel)
