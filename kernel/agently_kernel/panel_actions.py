"""What a panel can make the kernel do; called on the control channel's loop, carried out on the main one."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agently_kernel.cells import save_outputs
from agently_kernel.contract.approval import ApprovalRequest
from agently_kernel.contract.errors import ConfigurationError, WorkspaceError
from agently_kernel.contract.workspace import CollectedOutput
from agently_kernel.policy import PolicyApproval
from agently_kernel.session_sandbox import SessionSandbox
from agently_kernel.settings import KernelSettings
from agently_kernel.wishes import Wish, WishResult, grant_wish

T = TypeVar("T")


class PanelHome(Protocol):
    """What is used of a kernel, or of a session in another one. ``running`` is None while no cell runs."""

    session_id: str

    @property
    def running(self) -> object: ...
    @property
    def faults(self) -> tuple[str, ...]: ...
    @property
    def settings(self) -> KernelSettings: ...
    @property
    def approval(self) -> PolicyApproval: ...
    @property
    def sandbox(self) -> SessionSandbox: ...

    async def on_main(self, work: Coroutine[Any, Any, T], seconds: float = 10.0) -> T:
        """Run *work* on the loop that all of this belongs to. Raises asyncio.TimeoutError."""


class PanelActions:
    """Implements the panel's ``PanelHost`` for a kernel."""

    def __init__(self, kernel: PanelHome) -> None:
        self._kernel = kernel

    async def restart_sandbox(self) -> str:
        """Close the sandbox; return a sentence about what was lost. Raises AgentlyKernelError while a cell runs."""
        if self._kernel.running is not None:
            raise ConfigurationError("A cell is running. Stop it first, then restart the sandbox.")
        await self._kernel.on_main(self._kernel.sandbox.restart_sandbox())
        return "The sandbox was closed. Variables are lost, collected files are kept; the next cell opens a fresh one."

    async def doctor(self) -> tuple[str, dict[str, Any]]:
        """Return the doctor's report as text and as plain JSON."""
        from agently_kernel.doctor import examine, render

        kernel, sandbox = self._kernel, self._kernel.sandbox
        work = examine(
            sandbox.manager.registry, sandbox.settings.providers, sandbox.policy, others=True, faults=kernel.faults
        )
        report = await self._kernel.on_main(work, 60.0)
        return render(report), report.model_dump(mode="json")

    async def save_output(self, output: CollectedOutput, folder: str) -> str:
        """Copy *output* to *folder* below the notebook's folder, through the gate; return where it went."""
        place = Path(folder)
        if place.is_absolute() or ".." in place.parts:
            raise ConfigurationError("Outputs are saved below the notebook's folder only; give a relative folder.")
        kernel = self._kernel
        target = Path.cwd() / place
        where = str(target / output.path.removeprefix("output/"))

        async def save() -> None:
            await kernel.approval.gate(
                "save_output", where, policy=kernel.sandbox.policy, session_id=kernel.session_id,
                facts={"size in bytes": output.size, "digest": output.sha256},
            )
            try:
                save_outputs(target, [(output.path, Path(output.stored_path))])
            except OSError as error:
                raise WorkspaceError(f"{where} could not be written: {error.strerror or error}") from error

        await kernel.on_main(save(), kernel.settings.approval_timeout + 30.0)
        return where

    async def revoke(self, grant: ApprovalRequest) -> None:
        """Forget a remembered approval; what it allowed needs a new one from now on."""
        kernel = self._kernel

        async def forget() -> None:
            kernel.approval.forget(kernel.session_id, grant.gate, grant.subject)

        await kernel.on_main(forget())

    async def wish(self, wish: Wish) -> tuple[WishResult, ...]:
        """Take what of *wish* is stricter than the configuration. Raises AgentlyKernelError."""
        return await self._kernel.on_main(grant_wish(self._kernel, wish), 30.0)
