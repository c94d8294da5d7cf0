"""What helps after a failure that the sandbox brought about on purpose, told once below the cell."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agently_kernel.contract.result import CodeExecutionResult

TAIL = 8192
"""Characters at the end of each stream that are looked at."""
_NO_NETWORK = re.compile(
    r"Name or service not known|[Tt]emporary failure in name resolution|[Nn]etwork is unreachable|Failed to resolve|"
    r"[Cc]ould not resolve|nodename nor servname|No address associated with hostname|ENETUNREACH|EAI_AGAIN|"
    r"Could not find a version that satisfies the requirement|"
    r"getaddrinfo (?:failed|ENOTFOUND)|dial (?:tcp|udp)[^\n]{0,200}(?:no such host|unreachable|connection refused)"
)
_INSTALLER = re.compile(r"No matching distribution found|NewConnectionError|PackagesNotFoundError|npm (?:ERR|error)")


def network_hint(result: CodeExecutionResult) -> str:
    """Return what to do when a cell seems to have failed for want of a network that the sandbox does not give, else "".

    What the cell showed is only searched for the words that systems use, so this may be wrong: it is a hint.
    """
    if result.facts is None or result.facts.network != "none":
        return ""
    error: Mapping[str, object] = result.error or {}
    said = (str(error.get("evalue", ""))[:TAIL], result.stderr.text[-TAIL:], result.stdout.text[-TAIL:])
    if not any(_NO_NETWORK.search(text) for text in said if text):
        return ""
    hint = (
        "The network is off in this sandbox, on purpose. To give one cell a network, begin it with "
        "%%agently_exec --network HOST (you are asked); to give it to all cells, set "
        "c.AgentlyKernel.network = 'enabled' in your configuration."
    )
    if any(_INSTALLER.search(text) for text in said[1:]):
        hint += " Packages of the environment that this kernel is installed in are there already: install others there."
    return hint
