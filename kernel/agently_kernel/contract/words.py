"""Words around numbers in sentences for people."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 file``, ``1,200 files``; *plural* where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
