"""What is said below a cell about the files it left: one line for what was refused, bounded lists for the rest."""

from __future__ import annotations

from collections.abc import Sequence

from agently_kernel.contract.paths import OUTPUT_ROOT
from agently_kernel.contract.resource import ProviderSelection
from agently_kernel.contract.words import counted
from agently_kernel.contract.workspace import CollectedOutput, RefusedOutput

MOST_NAMED = 5
"""Refused files that are named in one line."""
MOST_LISTED = 20
"""Collected files that get a line each."""


def name_refused(refused: Sequence[RefusedOutput], most: int = MOST_NAMED) -> str:
    """Return each file with its reason, ``a.bin (it is a symbolic link), b (…) and 3 more``; no final stop."""
    named = [
        f"{'further files' if item.path == OUTPUT_ROOT else item.path} ({reason_of(item)})" for item in refused[:most]
    ]
    more = len(refused) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")


def lost_outputs(lost: Sequence[RefusedOutput]) -> str:
    """Return the sentence about declared outputs that are not there, with each of them."""
    named = "; ".join(f"{item.path} ({item.reason}: {reason_of(item)})" for item in lost)
    return f"Declared outputs are missing or were refused: {named}. The others were kept."


def reason_of(refused: RefusedOutput) -> str:
    """Return why a file was refused, without its name, as part of a sentence."""
    return refused.message.removeprefix(f"{refused.path} was not taken: ").rstrip(".")


def isolation_line(selection: ProviderSelection | None) -> str:
    """Return the line below whatever ran with less isolation than was wished for, or with none; "" below the rest."""
    if selection is None:
        return ""
    if selection.unsafe:
        return f"This ran WITHOUT isolation ({selection.provider_id}), as it was allowed to."
    if selection.preference_fallback:
        return f"The preferred isolation could not be had; {selection.provider_id} was taken instead."
    return ""


def refused_line(refused: Sequence[RefusedOutput], *, fresh: bool) -> str:
    """Return the one line about files that nobody declared and that were not taken, "" when there are none.

    Declared ones make the cell fail, and its error names them. *fresh*: the sandbox was the run's own.
    """
    found = [item for item in refused if not item.declared]
    if not found:
        return ""
    fate = "They were lost with this run's sandbox." if fresh else "They are lost when the sandbox ends."
    return f"Not copied out of output/: {name_refused(found)}. {fate}"


def collected_lines(outputs: Sequence[CollectedOutput]) -> tuple[str, ...]:
    """Return a line for each collected file, up to 20, and one that counts the others."""
    lines = [
        f"collected {item.path} ({counted(item.size, 'byte')}, {item.sha256[:19]}…)" for item in outputs[:MOST_LISTED]
    ]
    more = len(outputs) - len(lines)
    if not more:
        return tuple(lines)
    return (*lines, f"… and {counted(more, 'more file')}; `%agently outputs` lists all of them")
