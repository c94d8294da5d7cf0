"""``%%agently_exec`` and ``%agently`` for an ordinary IPython."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand
from IPython.display import display

from agently_exec.errors import ExecutionFailed, Stopped, failure_of, refusal_of
from agently_exec.frontend import front_end_of
from agently_exec.options import EXEC, complete, exec_help, line_help, parse_exec, parse_line
from agently_exec.result import ExecutionOutcome
from agently_exec.session import Session
from agently_kernel.contract.errors import AgentlyKernelError

__all__ = ["AgentlyMagics", "ExecutionFailed"]


class AgentlyMagics:
    """The magics of one shell. Their session is made when the first of them is used."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session of this shell."""
        if self._session is None:
            self._session = Session(front_end_of(self.shell))
        return self._session

    def agently_exec(self, line: str, cell: str) -> None:
        """Run the cell as a program in a sandbox. ``%%agently_exec --help`` lists the options."""
        try:
            options = parse_exec(line)
            if options.help:
                print(exec_help(), end="")
                return
            result = self.session.execute(options, cell, count=self._count())
        except AgentlyKernelError as error:
            raise refusal_of(error) from None
        except KeyboardInterrupt:
            raise Stopped("The execution was stopped.") from None
        if options.result is not None:
            self.shell.user_ns[options.result] = ExecutionOutcome(result)
        if result.status.value != "success":
            raise failure_of(result, self.session.guest_error(result))

    def _count(self) -> int:
        """The number of the running cell. IPython's own counter is ahead of it in some releases."""
        inputs = getattr(self.shell.history_manager, "input_hist_parsed", ())
        return max(0, len(inputs) - 1)

    def misplaced_exec(self, line: str) -> None:
        """Say where the magic belongs: below a comment IPython takes it for a line magic."""
        raise UsageError(
            f"{EXEC} must be the first line of its cell. Move what stands above it, comments too, below it or into "
            "another cell."
        )

    def agently(self, line: str) -> None:
        """Look at the sandbox and what it was given: ``%agently help`` lists the commands."""
        try:
            report = self.session.command(parse_line(line))
        except AgentlyKernelError as error:
            raise refusal_of(error) from None
        except KeyboardInterrupt:
            raise Stopped("The command was stopped.") from None
        display(report)

    def close(self) -> None:
        """End the session, if there is one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def match_options(context: Any) -> Any:
    """Complete in the line of a magic (an IPython matcher)."""
    text = context.full_text
    lines = text.split("\n")
    before = sum(len(line) + 1 for line in lines[: context.cursor_line])
    found = complete(text, before + context.cursor_position)
    if found is None:
        return {"completions": []}
    return {
        "completions": [SimpleCompletion(text=word, type="option") for word in found.matches],
        "matched_fragment": text[found.start : found.end],
        "suppress": True,
    }


options_matcher: Any = context_matcher()(match_options)


def keep_empty_cells(lines: list[str]) -> list[str]:
    """Give a ``%%agently_exec`` cell without a body an empty line, for IPython refuses cells without any."""
    if len(lines) == 1 and lines[0].lstrip().startswith(EXEC):
        return [lines[0].rstrip("\n") + "\n", "\n"]
    return lines


def load(shell: Any) -> AgentlyMagics:
    """Make the magics known to *shell* and return them."""
    magics = AgentlyMagics(shell)
    # as the kernel does, and unlike other magics: no value of a variable is put into the line
    for function in (AgentlyMagics.agently_exec, AgentlyMagics.agently):
        no_var_expand(function)
    AgentlyMagics.agently_exec.__doc__, AgentlyMagics.agently.__doc__ = exec_help(), line_help()
    shell.register_magic_function(magics.agently_exec, "cell", "agently_exec")
    shell.register_magic_function(magics.misplaced_exec, "line", "%agently_exec")
    shell.register_magic_function(magics.agently, "line", "agently")
    shell.input_transformers_cleanup.append(keep_empty_cells)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(options_matcher)
    _at_exit(magics.close)
    return magics


def _at_exit(close: Callable[[], None]) -> None:
    """Call *close* when the program ends, while threads can still be used; functions of atexit come too late."""
    register = getattr(threading, "_register_atexit", atexit.register)
    register(close)


def unload(shell: Any, magics: AgentlyMagics) -> None:
    """Take the magics away from *shell* and end their session."""
    for kind, name in (("cell", "agently_exec"), ("line", "agently"), ("line", "%agently_exec")):
        shell.magics_manager.magics[kind].pop(name, None)
    if keep_empty_cells in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(keep_empty_cells)
    if shell.Completer is not None and options_matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(options_matcher)
    magics.close()
