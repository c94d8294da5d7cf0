"""What helps after a failure that the sandbox brought about on purpose, told once below the cell."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Mapping

from agently_kernel.contract.bundle import CodeExecutionRequest, ExecutionForm
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.languages.indexes import pip_hosts
from agently_kernel.sandbox.interpreter import is_own_variable
from agently_kernel.settings import amount

TAIL = 8192
"""Characters at the end of each stream that are looked at."""
_NO_NETWORK = re.compile(
    r"Name or service not known|[Tt]emporary failure in name resolution|[Nn]etwork is unreachable|Failed to resolve|"
    r"[Cc]ould not resolve|nodename nor servname|No address associated with hostname|ENETUNREACH|EAI_AGAIN|"
    r"Could not find a version that satisfies the requirement|"
    r"getaddrinfo (?:failed|ENOTFOUND)|dial (?:tcp|udp)[^\n]{0,200}(?:no such host|unreachable|connection refused)"
)
_NO_MEMORY = ("MemoryError", "_ArrayMemoryError")
_NO_VARIABLE = re.compile(r"KeyError: '([A-Za-z_][A-Za-z0-9_]{0,127})'")
_INSTALLERS: Mapping[str, re.Pattern[str]] = {
    "python": re.compile(r"No matching distribution found|NewConnectionError.{0,300}/simple/"),
    "node": re.compile(r"npm (?:ERR|error)"),
    "go": re.compile(r"^go: [^\n]{0,300}: Get \"https?://", re.M),
}
LINE_ALLOW = "%agently allow network"


def network_hint(result: CodeExecutionResult) -> str:
    """Return what to do when a cell seems to have failed for want of a network that the sandbox does not give, else "".

    What the cell showed is only searched for the words that systems use, so this may be wrong: it is a hint.
    """
    if result.facts is None or result.facts.network not in ("none", "filtered"):
        return ""
    error: Mapping[str, object] = result.error or {}
    said = (str(error.get("evalue", ""))[:TAIL], result.stderr.text[-TAIL:], result.stdout.text[-TAIL:])
    if not any(_NO_NETWORK.search(text) for text in said if text):
        return ""
    if result.facts.network == "filtered":
        hosts = ", ".join(result.facts.network_hosts) or "what was allowed"
        return (
            f"Only {hosts} can be reached from this sandbox, through the proxy that HTTP_PROXY and HTTPS_PROXY name, "
            "which HTTP clients use by themselves: there is no name resolution, and no direct connection of a "
            f"socket. To add a host: {LINE_ALLOW} HOST"
        )
    installers = [name for name, said_so in _INSTALLERS.items() if any(said_so.search(text) for text in said[1:])]
    if installers:
        needed = (installers[0] == "python" and pip_hosts()) or ("HOST",)  # other tools would have to be started
        return (
            f"The network is off in this sandbox, on purpose. To install here run {LINE_ALLOW} {' '.join(needed)}, or "
            f"begin the cell of a program with %%agently_exec --network {','.join(needed)} (you are asked), then run "
            "it again. What is installed so lasts as long as the sandbox. Packages of the environment that this kernel "
            "is installed in are there already: install others there to keep them."
        )
    return (
        "The network is off in this sandbox, on purpose. To open single hosts run %agently allow network HOST, or "
        "begin the cell of a program with %%agently_exec --network HOST (you are asked); to open them always, list "
        "them in c.AgentlyKernel.network_hosts in your configuration."
    )


def memory_hint(result: CodeExecutionResult) -> str:
    """Return how much memory a cell has and how it gets more, when an allocation failed for want of it, else ""."""
    if result.facts is None or (result.error or {}).get("ename") not in _NO_MEMORY:
        return ""
    limit = next((fact.limit for fact in result.facts.limits if fact.name == "memory"), None)
    if limit is None:
        return ""
    more = amount(2 * int(limit) >> 20 << 20, size=True).replace(" ", "")
    return (
        f"All cells and files of this sandbox together may use {amount(int(limit), size=True)} of memory. Variables "
        f'live on: delete what is not needed. For more: c.AgentlyKernel.limits = {{"memory": "{more}"}} in your '
        "configuration."
    )


def variable_hint(result: CodeExecutionResult, passed: Collection[str]) -> str:
    """Return how a variable of the environment is passed on when code seems to have failed for want of it, else "".

    *passed*: the names that are passed on already. What the code showed is only searched for Python's words.
    """
    if result.status is ExecutionStatus.SUCCESS:
        return ""
    error: Mapping[str, object] = result.error or {}
    lines = error.get("traceback")
    shown = "\n".join(map(str, lines)) if isinstance(lines, list | tuple) else ""
    for text in (f"{shown}\n{error.get('ename')}: {error.get('evalue')}"[-TAIL:], result.stderr.text[-TAIL:]):
        found = _NO_VARIABLE.findall(text) if "environ" in text else []
        if found and found[-1] in os.environ and found[-1] not in passed and not is_own_variable(found[-1]):
            return (
                f"{found[-1]} is set where this kernel was started, but a sandbox gets no variable of there by itself. "
                f'To pass it on: c.AgentlyKernel.pass_environment = ["{found[-1]}"] in your configuration.'
            )
    return ""


def program_hint(request: CodeExecutionRequest, result: CodeExecutionResult) -> str:
    """Return what a Python program that was written like a cell does not do, when that is what seems to be missed."""
    if request.form is not ExecutionForm.ONE_SHOT or request.language != "python":
        return ""
    if "EOFError: EOF when reading a line" in result.stderr.text[-TAIL:] and request.stdin is None:
        return "A program in its own sandbox has nobody to ask: give it a file with --stdin PATH, or use --session."
    shown = result.stdout.total_bytes or result.stderr.total_bytes or result.outputs or result.refused_outputs
    if result.status is ExecutionStatus.SUCCESS and not shown and _ends_in_a_value(request.source_code or ""):
        return (
            "The program ended well and showed nothing: only what a program prints or leaves in output/ is shown. "
            "Use print(), save figures in output/, or run it with --session, which shows values and figures."
        )
    return ""


def _ends_in_a_value(source: str) -> bool:
    """True when the last statement is an expression, whose value a cell would show."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return bool(body) and isinstance(body[-1], ast.Expr)
