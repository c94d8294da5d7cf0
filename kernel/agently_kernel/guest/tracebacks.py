"""Tracebacks in Python's own form, without the frames of the interpreter, with cells named as cells."""

from __future__ import annotations

import os
import traceback
from typing import Any, Callable, Dict, List, Mapping

OWN_FOLDER = os.path.dirname(__file__) + os.sep
MAX_NAME = 1000
MAX_VALUE = 256 * 1024
MAX_LINE = 256 * 1024
MAX_LINES = 2000
MAX_TEXT = 1024 * 1024
"""Most characters of all lines together: far more than anybody reads, and far below the most that one frame holds."""


def shortened(text: str, most: int) -> str:
    """Return *text* with at most about *most* characters: the beginning and the end, and how much lies between."""
    if len(text) <= most:
        return text
    half = most // 2
    return "%s\n[... %d characters left out ...]\n%s" % (text[:half], len(text) - 2 * half, text[-half:])


def shortened_error(name: str, value: str, lines: List[str]) -> Dict[str, Any]:
    """Return the content of an error message, bounded so that it can always be shown whole."""
    lines = [shortened(line, MAX_LINE) for line in lines]
    if len(lines) > MAX_LINES:
        half = MAX_LINES // 2
        lines = lines[:half] + ["[... %d lines left out ...]" % (len(lines) - 2 * half)] + lines[-half:]
    if sum(map(len, lines)) > MAX_TEXT:
        lines = _ends(lines, MAX_TEXT // 2)
    return {"ename": shortened(name, MAX_NAME).replace("\n", " "), "evalue": shortened(value, MAX_VALUE),
            "traceback": lines}


def _ends(lines: List[str], half: int) -> List[str]:
    """Return as many whole lines of the beginning and of the end as fit into *half* characters each."""
    kept: List[List[str]] = []
    left = list(lines)
    for take in (0, -1):
        room, some = half, []
        while left and len(left[take]) <= room:
            room -= len(left[take])
            some.append(left.pop(take))
        kept.append(some)
    return kept[0] + ["[... %d lines left out ...]" % len(left)] + kept[1][::-1]


def lines_of(error: BaseException, hidden: Callable[[str], bool], labels: Mapping[str, str]) -> List[str]:
    """Return the lines of a traceback. *hidden* tells file names whose frames are left out; *labels*: file to cell."""
    try:
        trace = traceback.TracebackException.from_exception(error)
        _hide(trace, hidden, set())
        text = "".join(trace.format())
    except BaseException:
        return [type(error).__name__]  # an exception whose own methods raise
    for path, label in labels.items():
        text = text.replace('File "%s", line ' % path, "Cell %s, line " % label)
    return text.splitlines()


def _hide(trace: Any, hidden: Callable[[str], bool], seen: "set[int]") -> None:
    if trace is None or id(trace) in seen:
        return
    seen.add(id(trace))
    trace.stack[:] = [frame for frame in trace.stack if not hidden(frame.filename)]
    for other in [trace.__cause__, trace.__context__, *(getattr(trace, "exceptions", None) or ())]:
        _hide(other, hidden, seen)
