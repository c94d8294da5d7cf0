"""Words around numbers in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 file``, ``1,200 files``; *plural* where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def in_words(value: object) -> str:
    """Return a plain value of a report (a truth, a number, a list or a mapping of them) as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "—"
    if isinstance(value, tuple | list):
        return ", ".join(in_words(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')} {in_words(item)}" for key, item in value.items())
    return str(value)


def sentence(text: str) -> str:
    """Return *text* as a person reads it in a cell: with a capital letter and a full stop.

    A first word that is no plain word (a path, an option, a setting) stays as it is.
    """
    text = text.strip()
    first = text.partition(" ")[0]
    if first.isascii() and first.isalpha() and first.islower() and first != text:
        text = text[0].upper() + text[1:]
    return text if not text or text[-1] in ".!?…:" else text + "."
