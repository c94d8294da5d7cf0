"""What the magics need of the place they run in: the sandboxed kernel itself, or the service inside another IPython."""

from __future__ import annotations

from typing import Protocol

from agently_kernel.iopub import Publisher
from agently_kernel.outputs import OutputFilter
from agently_kernel.policy import PolicyApproval
from agently_kernel.screen import Screen
from agently_kernel.session_sandbox import SessionSandbox
from agently_kernel.settings import KernelSettings


class Home(Protocol):
    """One session. All of it belongs to one event loop, on which the magics' work runs too."""

    settings: KernelSettings
    session_id: str
    approval: PolicyApproval
    sandbox: SessionSandbox
    filter: OutputFilter
    screen: Screen
    publisher: Publisher
