"""Relative paths that may be named by a bundle, an input or a declared output.

Rules: the reference's limits (NFC, at most 4096 bytes, relative, no backslash, no ``.`` or ``..`` component, first
component not ``.agently``), made stricter where a name could deceive a reader or a file system.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MAX_PATH_BYTES = 4096
MAX_COMPONENT_BYTES = 255
OUTPUT_ROOT = "output"
MAX_EXPECTED_OUTPUTS = 128
RESERVED_ROOT = ".agently"

_BIDI_CONTROLS = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def has_deceptive_characters(text: str) -> bool:
    """True when *text* holds control, line-separating, bidirectional-control or surrogate characters."""
    return any(ch in _BIDI_CONTROLS or unicodedata.category(ch) in ("Cc", "Cs", "Zl", "Zp") for ch in text)


def normalise_relative_path(path: str, *, what: str = "path") -> str:
    """Return *path* in its one accepted spelling (NFC, ``/`` between components).

    Raises ValueError, naming *what* and the rule, for everything else: absolute, empty, ``.``/``..`` components, empty
    components, backslashes, control or bidirectional characters, over-long names.
    """
    if not isinstance(path, str):
        raise ValueError(f"{what} must be text, not {type(path).__name__}")
    if has_deceptive_characters(path):
        raise ValueError(f"{what} {path!r} holds control or direction-changing characters")
    text = unicodedata.normalize("NFC", path)
    if not text or text != text.strip():
        raise ValueError(f"{what} {path!r} is empty or begins or ends with a blank")
    if "\\" in text:
        raise ValueError(f"{what} {path!r} holds a backslash; use / between folders")
    if text.startswith("/"):
        raise ValueError(f"{what} {path!r} is absolute; give it relative to the workspace")
    if len(text.encode("utf-8")) > MAX_PATH_BYTES:
        raise ValueError(f"{what} is longer than {MAX_PATH_BYTES} bytes")
    parts = text.split("/")
    for part in parts:
        if part in ("", ".", ".."):
            raise ValueError(f"{what} {path!r} has an empty, '.' or '..' component")
        if len(part.encode("utf-8")) > MAX_COMPONENT_BYTES:
            raise ValueError(f"{what} {path!r} has a component longer than {MAX_COMPONENT_BYTES} bytes")
    if parts[0].casefold() == RESERVED_ROOT:
        raise ValueError(f"{what} {path!r} lies in the reserved folder {RESERVED_ROOT}")
    return text


def normalise_output_path(path: str) -> str:
    """Return a declared output's path; it must lie under ``output/``. Raises ValueError otherwise."""
    text = normalise_relative_path(path, what="declared output")
    parts = text.split("/")
    if parts[0] != OUTPUT_ROOT or len(parts) < 2:
        raise ValueError(f"declared output {path!r} must lie under {OUTPUT_ROOT}/, such as {OUTPUT_ROOT}/result.csv")
    if parts[1].casefold() == RESERVED_ROOT:
        raise ValueError(f"declared output {path!r} lies in the reserved folder {RESERVED_ROOT}")
    return text


def refuse_collisions(paths: Iterable[str], *, what: str) -> None:
    """Raise ValueError when two paths are equal, equal but for case, or one is a folder of another."""
    seen: dict[str, str] = {}
    for path in paths:
        key = path.casefold()
        if key in seen:
            raise ValueError(f"{what} {path!r} collides with {seen[key]!r}")
        seen[key] = path
    for key, path in seen.items():
        parts = key.split("/")
        for length in range(1, len(parts)):
            folder = "/".join(parts[:length])
            if folder in seen:
                raise ValueError(f"{what} {path!r} needs {seen[folder]!r} to be a folder, but that is a file")
