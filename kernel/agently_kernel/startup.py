"""The first moments of a kernel: settings are read and the sandbox is on its way before the rest is even loaded."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agently_kernel.policy import PolicyApproval
from agently_kernel.session_sandbox import SessionSandbox
from agently_kernel.settings import KernelSettings, read_settings
from agently_kernel.user_config import BASE_TRAITS, config_places, section_of


@dataclass(slots=True)
class Prepared:
    """What a kernel is made of before it has a socket. ``config`` is the user's whole configuration, as mappings."""

    settings: KernelSettings
    faults: tuple[str, ...]
    session_id: str
    approval: PolicyApproval
    sandbox: SessionSandbox
    config: Mapping[str, Any] = field(default_factory=dict)


def prepare(config: Mapping[str, Any], faults: Sequence[str] = ()) -> Prepared:
    """Return the parts of a kernel for *config*, which has *faults* (sentences). Nothing is started yet."""
    settings, found = read_settings(section_of(config, BASE_TRAITS), config_places(sys.argv[1:]).of)
    session_id, approval = secrets.token_hex(8), PolicyApproval()
    return Prepared(
        settings=settings, faults=(*faults, *found), session_id=session_id, approval=approval,
        sandbox=SessionSandbox(settings, approval, session_id=session_id), config=config,
    )


LAUNCH_SECONDS = 1.0
"""How long loading is put off at most for the launch, which takes a fraction of it."""


async def load_while_starting(prepared: Prepared, module: str) -> None:
    """Begin to open the sandbox, and import *module* on a thread while it boots."""
    import importlib

    if not prepared.faults:
        prepared.sandbox.start()
        await prepared.sandbox.launched(LAUNCH_SECONDS)
    await asyncio.get_running_loop().run_in_executor(None, importlib.import_module, module)
