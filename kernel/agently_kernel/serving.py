"""Whether a sandbox that was opened for its owner's requirement can also serve a bundle that comes later."""

from __future__ import annotations

import asyncio

from agently_kernel.contract.bundle import CodeExecutionBundle
from agently_kernel.contract.errors import ExecutionResourceError
from agently_kernel.contract.protocols import ObservesTools
from agently_kernel.guest.wire import WireError
from agently_kernel.handles import Handle
from agently_kernel.providers.toolchains import VERSION_COMMANDS
from agently_kernel.selection import toolchain_problem


async def serving_problem(handle: Handle, bundle: CodeExecutionBundle) -> str | None:
    """Return why a resident sandbox cannot run *bundle*, as a sentence, or None.

    Tools that nobody has looked for in it are looked for now, and belong to its facts from then on.
    Raises SandboxDied, ExecutionResourceError when it does not answer.
    """
    probe = handle.selection.probe if handle.selection else None
    capability = probe.capability if probe else None
    if capability is None or handle.facts is None:
        return None
    if bundle.language not in capability.languages:
        return (
            f"The session's sandbox ({handle.provider_id}) does not run {bundle.language}; run it in a fresh sandbox."
        )
    await _look_for_tools(handle, bundle)
    problem = toolchain_problem(bundle.toolchains, {**capability.toolchains, **handle.facts.toolchains})
    if problem is None:
        return None
    return (
        f"The session's sandbox ({handle.provider_id}) cannot run this: {problem.message}. To fix it: {problem.remedy}."
    )


async def _look_for_tools(handle: Handle, bundle: CodeExecutionBundle) -> None:
    resource, facts = handle.resource, handle.facts
    known = facts.toolchains if facts is not None else {}
    unknown = {
        need.tool: VERSION_COMMANDS[need.tool]
        for need in bundle.toolchains
        if need.tool in VERSION_COMMANDS and (need.tool not in known or not known[need.tool].available)
    }
    if not unknown or not isinstance(resource, ObservesTools):
        return
    try:
        await resource.observe_tools(unknown)
    except (asyncio.TimeoutError, WireError) as error:
        raise ExecutionResourceError(
            f"The session's sandbox ({handle.provider_id}) did not say whether it has {', '.join(unknown)}; run it "
            "again, or in a fresh sandbox."
        ) from error
