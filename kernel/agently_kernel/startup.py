"""The first moments of a kernel: settings are read and the sandbox is on its way before the rest is even loaded."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_path

from agently_kernel.policy import PolicyApproval
from agently_kernel.session_sandbox import SessionSandbox
from agently_kernel.settings import CONFIG_NAME, SECTION, KernelSettings, read_settings


@dataclass(slots=True)
class Prepared:
    """What a kernel is made of before it has a socket. ``config`` is the user's whole configuration, as mappings."""

    settings: KernelSettings
    faults: tuple[str, ...]
    session_id: str
    approval: PolicyApproval
    sandbox: SessionSandbox
    config: Mapping[str, Any] = field(default_factory=dict)


def read_config(arguments: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """Return the user's configuration and what could not be read of it (empty: all could).

    Files are ``agently_kernel_config.py`` and ``.json`` in Jupyter's config folders, never in the notebook's folder;
    ``--AgentlyKernel.name=value`` of *arguments* wins over them.
    """
    config: dict[str, Any] = {}
    names = (CONFIG_NAME + ".py", CONFIG_NAME + ".json")
    for folder, name in ((folder, name) for folder in reversed(jupyter_config_path()) for name in names):
        if not Path(folder, name).is_file():
            continue
        from traitlets.config.loader import Config, JSONFileConfigLoader, PyFileConfigLoader

        try:
            merged = Config(config)
            loader = PyFileConfigLoader if name.endswith(".py") else JSONFileConfigLoader
            merged.merge(loader(name, path=folder).load_config())
        except (Exception, SystemExit) as error:
            return {}, (
                f"{name} in {folder} cannot be read ({type(error).__name__}: {error}). "
                "Correct or remove it, then restart the kernel."
            )
        config = merged
    prefix = f"--{SECTION}."
    for argument in arguments:
        setting, equals, value = argument.removeprefix(prefix).partition("=")
        if argument.startswith(prefix) and equals:
            config.setdefault(SECTION, {})[setting] = value
    return config, ""


def section_of(config: Mapping[str, Any], foreign: Sequence[str] = ()) -> dict[str, Any]:
    """Return the kernel's own section of a configuration as plain values, without the *foreign* names."""
    section = config.get(SECTION, {})
    return {
        str(key): value.get_value([]) if hasattr(value, "get_value") and not isinstance(value, str) else value
        for key, value in section.items()
        if key not in foreign
    }


BASE_TRAITS = ("debug_just_my_code", "filter_internal_frames", "stop_on_error_timeout", "_execute_sleep",
               "_poll_interval", "_darwin_app_nap")
"""Settings of ipykernel's base class, which it reads itself."""


def prepare(config: Mapping[str, Any], fault: str = "") -> Prepared:
    """Return the parts of a kernel for *config*. Nothing is started yet."""
    settings, faults = read_settings(section_of(config, BASE_TRAITS))
    session_id, approval = secrets.token_hex(8), PolicyApproval()
    return Prepared(
        settings=settings, faults=(fault, *faults) if fault else faults, session_id=session_id, approval=approval,
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
