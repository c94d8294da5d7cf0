"""What a panel can make the kernel do; called on the control channel's loop, carried out on the main one."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agently_kernel.contract.approval import Gate
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.workspace import CollectedOutput
from agently_kernel.saving import save
from agently_kernel.taking_back import GrantsHome, take_back
from agently_kernel.wishes import Wish, WishHome, WishResult, grant_wish

T = TypeVar("T")


class PanelHome(GrantsHome, WishHome, Protocol):
    """What is used of a kernel, or of a session in another one. ``running`` is None while no cell runs."""

    @property
    def running(self) -> object: ...
    @property
    def faults(self) -> tuple[str, ...]: ...

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
        files = [(output.path, Path(output.stored_path))]
        work = save(kernel, Path.cwd() / place, files)
        (where,) = await kernel.on_main(work, kernel.settings.approval_timeout + 30.0)
        return str(where)

    async def revoke(self, gate: Gate, subject: str) -> str:
        """Take back what *gate* allowed of exactly *subject*; return what that came to. Raises AgentlyKernelError."""
        return await self._kernel.on_main(take_back(self._kernel, gate, subject), 30.0)

    async def wish(self, wish: Wish) -> tuple[WishResult, ...]:
        """Take what of *wish* is stricter than the configuration. Raises AgentlyKernelError."""
        return await self._kernel.on_main(grant_wish(self._kernel, wish), 30.0)
