"""Tracebacks in Python's own form, without the frames of the interpreter, with cells named as cells."""

from __future__ import annotations

import os
import traceback
from typing import Any, Callable, List, Mapping

OWN_FOLDER = os.path.dirname(__file__) + os.sep


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
