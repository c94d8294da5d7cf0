"""Names the cause of an end in one sentence: what ended, why as far as it was observed, and what was lost."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Literal

from agently_kernel.contract.isolation import LimitFact
from agently_kernel.contract.result import DeathCause

Stopper = Literal["time_limit", "stopped_by_user"]

LOST_VARIABLES = "Variables, imports and threads are lost; files and the sandbox live on."
LOST_SANDBOX = "Variables and files that had not been collected are lost; collected outputs are kept."

LIMIT_KINDS = {
    "memory_limit": "memory limit", "process_limit": "process limit", "cpu_limit": "processor limit",
    "watchdog": "limits",
}
_BY_US = {
    "time_limit": "because the cell ran past its time limit and did not react to the interrupt",
    "stopped_by_user": "because you stopped it",
}
_SIGNALS = {
    "SIGSEGV": " (a crash in native code)",
    "SIGABRT": " (native code gave up)",
    "SIGBUS": " (a crash in native code, or shared memory or a mapped file that ran out of space)",
    "SIGILL": " (native code that this processor cannot run)",
    "SIGFPE": " (an arithmetic fault in native code)",
    "SIGSYS": " (a forbidden system call)",
    "SIGKILL": " (killed; often for want of memory)",
    "SIGTERM": " (a program on this machine, or the code itself, asked it to end)",
}

_LAST_SIGNAL = 64


MUCH_IN_FILES = 0.25
"""Part of the memory limit from which files in memory are named as what the next cell will miss."""


def signal_name(number: int) -> str:
    """Return ``SIGSEGV`` for 11, ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def interpreter_death(
    exit_code: int | None, signal_number: int | None, *, stopper: Stopper | None = None, violation: str | None = None
) -> DeathCause:
    """Return the cause of an interpreter's end from what init reported and from what we ourselves did to it."""
    name = signal_name(signal_number) if signal_number else None
    if violation is not None:
        return DeathCause(
            what="interpreter", kind="protocol", exit_code=exit_code, signal=name,
            message=f"The interpreter was ended because it broke the protocol ({violation[:300]}). {LOST_VARIABLES}",
        )
    if stopper is not None:
        return DeathCause(
            what="interpreter", kind=stopper, exit_code=exit_code, signal=name,
            limit="time" if stopper == "time_limit" else None,
            message=f"The interpreter was ended {_BY_US[stopper]}. {LOST_VARIABLES}",
        )
    if name == "SIGXCPU":
        return DeathCause(
            what="interpreter", kind="cpu_limit", signal=name, limit="cpu",
            message=f"The interpreter was ended because it used up its processor time. {LOST_VARIABLES}",
        )
    if name is not None:
        return DeathCause(
            what="interpreter", kind="signal", signal=name,
            message=f"The interpreter was ended by {name}{_SIGNALS.get(name, '')}. {LOST_VARIABLES}",
        )
    if exit_code is not None:
        return DeathCause(
            what="interpreter", kind="exit", exit_code=exit_code,
            message=f"The interpreter ended itself with exit code {exit_code}. {LOST_VARIABLES}",
        )
    return DeathCause(
        what="interpreter", kind="unknown", message=f"The interpreter ended for an unknown reason. {LOST_VARIABLES}"
    )


def memory_death(
    what: Literal["interpreter", "sandbox"], limit_bytes: int | None, seen: str, files_bytes: int = 0
) -> DeathCause:
    """Return the cause of an end at the memory limit; *seen*: how that was observed; *files_bytes*: memory that files
    of the sandbox hold, which an interpreter that starts anew will miss too."""
    lost = LOST_VARIABLES if what == "interpreter" else LOST_SANDBOX
    advice = ""
    if what == "interpreter" and files_bytes >= MUCH_IN_FILES * (limit_bytes or 0) > 0:
        advice = f"Files that cells wrote hold {files_bytes // 1024**2} MiB of it: delete some, or restart the sandbox."
    return DeathCause(
        what=what, kind="memory_limit", limit="memory", signal="SIGKILL",
        message=f"The {what} was ended at the memory limit of {(limit_bytes or 0) // 1024**2} MiB: {seen}. {lost}",
        advice=advice,
    )


def limit_reached(death: DeathCause, limits: Sequence[LimitFact]) -> str:
    """Return ``the sandbox reached its memory limit of 512 MiB`` for an end at one of *limits*, "" for any other."""
    if death.kind not in LIMIT_KINDS:
        return ""
    bound = next((fact.limit for fact in limits if fact.name == death.limit and fact.limit), None)
    if bound is None:
        return f"the sandbox reached its {LIMIT_KINDS[death.kind]}" + (f" ({death.limit})" if death.limit else "")
    sized = death.limit == "memory" or str(death.limit).endswith("_bytes")
    size = f"{bound / 2**20:g} MiB" if sized else f"{bound:g}"
    named = f"limit on {str(death.limit).partition('_')[0]}" if death.kind == "watchdog" else LIMIT_KINDS[death.kind]
    return f"the sandbox reached its {named} of {size}"


def with_loss(death: DeathCause) -> DeathCause:
    """Return the cause of a sandbox's end as a mechanism explained it, with what was lost said in every case."""
    message = death.message if LOST_SANDBOX in death.message else f"{death.message.rstrip()} {LOST_SANDBOX}"
    return death.model_copy(update={"what": "sandbox", "message": message})


def sandbox_death(
    returncode: int | None, *, stopper: Stopper | None = None, violation: str | None = None
) -> DeathCause:
    """Return the cause of a sandbox's end that we ourselves brought about, or that nobody can explain better.

    *returncode* is an exit code, a negative signal number, or 128 and a signal number (as wrapping programs say it).
    """
    if returncode is not None and 128 < returncode <= 128 + _LAST_SIGNAL:
        returncode = 128 - returncode
    name = signal_name(-returncode) if returncode is not None and returncode < 0 else None
    code = returncode if returncode is not None and returncode >= 0 else None
    if violation is not None:
        return DeathCause(
            what="sandbox", kind="protocol", exit_code=code, signal=name,
            message=f"The sandbox was ended because {violation[:500]}. {LOST_SANDBOX}",
        )
    if stopper is not None:
        return DeathCause(
            what="sandbox", kind=stopper, exit_code=code, signal=name,
            limit="time" if stopper == "time_limit" else None,
            message=f"The sandbox was ended {_BY_US[stopper]}. {LOST_SANDBOX}",
        )
    how = f"with exit code {code}" if code is not None else "for an unknown reason"
    if name is not None:
        how = f"by {name}{_SIGNALS.get(name, '')}"
    return DeathCause(
        what="sandbox", kind="signal" if name else "exit" if code is not None else "unknown", exit_code=code,
        signal=name,
        message=f"The sandbox ended {how}. {LOST_SANDBOX}",
    )
