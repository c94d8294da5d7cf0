"""How each tool is asked for its version in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agently_kernel.contract.resource import ExecutionResourceRequirement

VERSION_COMMANDS: Mapping[str, Sequence[str]] = {
    "node": ("node", "--version"),
    "go": ("go", "version"),
    "c++": ("c++", "--version"),
    "bash": ("bash", "--version"),
}
LANGUAGES = ("python", *VERSION_COMMANDS)


def wanted_tools(requirement: ExecutionResourceRequirement) -> dict[str, Sequence[str]]:
    """Return the version commands of the tools that a requirement names; Python is always looked at."""
    return {t.tool: VERSION_COMMANDS[t.tool] for t in requirement.toolchains if t.tool in VERSION_COMMANDS}
