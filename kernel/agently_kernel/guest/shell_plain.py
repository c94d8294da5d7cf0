"""The interpreter without IPython: standard library only.

The last expression of a cell is its value; ``_``, ``display``, ``await`` and rich representations work; there are no
magics.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import builtins
import codeop
import inspect
import keyword
import os
import re
import sys
import threading
import types
from typing import Any, Dict, List, Optional, Tuple, Union

from .history import History
from .services import Outcome, Request, Services
from .shell import Engine
from .streams import text_of
from .subshells import Awaiting
from .tracebacks import OWN_FOLDER, lines_of, shortened_error

_REPRESENTATIONS = (
    ("_repr_html_", "text/html"), ("_repr_markdown_", "text/markdown"), ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"), ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"), ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)
_FEATURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
# A line magic, a command of the shell, a question for help; also the first two where their result is kept.
_OF_IPYTHON = re.compile(r"\s*[%!?]|.*\?\s*$|[^=]*=\s*[%!]\s*\w")
_NO_IPYTHON = (
    "this line is IPython's, and the Python of this sandbox has no IPython; install it there (in the image: "
    "pip install ipython) for magics, ! commands and help by ?"
)
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*\.?$")


def _name_what_is_missing(error: BaseException, source: str) -> None:
    """Let a syntax error in a line that IPython would understand say so."""
    lines = source.splitlines()
    if isinstance(error, SyntaxError) and error.lineno is not None and 0 < error.lineno <= len(lines):
        if _OF_IPYTHON.match(lines[error.lineno - 1]):
            error.msg = _NO_IPYTHON


def rich_bundle(value: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return (data, metadata) of every representation that *value* offers. Raises what its ``__repr__`` raises."""
    data: Dict[str, Any] = {"text/plain": repr(value)}
    metadata: Dict[str, Any] = {}
    if isinstance(value, type):
        return data, metadata  # its methods are for its instances
    maker = getattr(value, "_repr_mimebundle_", None)
    if callable(maker):
        found = maker()
        found, more = found if isinstance(found, tuple) else (found, {})
        data.update(found or {})
        metadata.update(more or {})
    for name, kind in _REPRESENTATIONS:
        maker = getattr(value, name, None)
        shown = maker() if callable(maker) and kind not in data else None
        if isinstance(shown, tuple):
            shown, metadata[kind] = shown
        if shown is not None:
            data[kind] = shown
    return data, metadata


class DisplayHandle:
    """Returned by ``display(..., display_id=...)``: shows something else in the same place."""

    def __init__(self, services: Services, display_id: str) -> None:
        self._services = services
        self.display_id = display_id

    def update(self, value: Any) -> None:
        """Replace what is shown."""
        self._services.display("update_display_data", *rich_bundle(value), display_id=self.display_id)


class OfThread(threading.local):
    """What belongs to the cell that a thread runs."""

    stopped = silent = False


class PlainEngine(Engine):
    """Runs cells with ``compile`` and ``exec``."""

    mode = "plain"

    def __init__(self, services: Services, user: types.ModuleType) -> None:
        self._services = services
        services.not_allowed = RuntimeError
        self.namespace = user.__dict__
        self._count = 0
        self._flags = 0
        self._labels: Dict[str, str] = {}
        self._here = OfThread()
        self.history_of_session = History()
        self.namespace["display"] = builtins.display = self.display  # type: ignore[attr-defined]
        sys.displayhook = self._show_value

    def display(self, *values: Any, display_id: Any = None, **_: Any) -> Optional[DisplayHandle]:
        """Show objects in the richest form that they have."""
        name = os.urandom(8).hex() if display_id is True else display_id
        for value in values:
            self._services.display("display_data", *rich_bundle(value), display_id=name)
        return DisplayHandle(self._services, name) if name is not None else None

    def _show_value(self, value: Any) -> None:
        if value is None:
            return
        self.namespace["_"] = value
        if not self._here.silent:
            self._services.display("execute_result", *rich_bundle(value))

    # -- cells ---------------------------------------------------------------------------------------------------------

    def execute(self, source: str, request: Request) -> Union[Outcome, Awaiting]:
        self._here.stopped, self._here.silent = False, request.silent
        if request.execution_count is not None:
            self._count = request.execution_count
        elif request.store_history:
            self._count += 1
        self._labels[request.path] = "In[%d]" % self._count
        if request.store_history:
            self.history_of_session.add(self._count, source)
        try:
            parts = self._compile(source, request.path)
        except BaseException as error:
            _name_what_is_missing(error, source)
            self._show_error(error)
            return Outcome(False, self._reply(request, False), error)
        if any(code.co_flags & inspect.CO_COROUTINE for code, _ in parts):
            return lambda: self._awaiting(parts, request)
        try:
            for code, is_value in parts:
                result = eval(code, self.namespace)
                if is_value:
                    sys.displayhook(result)
        except BaseException as error:
            self._show_error(error)
            return Outcome(False, self._reply(request, False), error)
        return Outcome(True, self._reply(request, True))

    async def _awaiting(self, parts: List[Tuple[types.CodeType, bool]], request: Request) -> Outcome:
        try:
            for code, is_value in parts:
                result = eval(code, self.namespace)
                if code.co_flags & inspect.CO_COROUTINE:
                    result = await result
                if is_value:
                    sys.displayhook(result)
        except BaseException as error:
            if self._here.stopped and isinstance(error, asyncio.CancelledError):
                error = KeyboardInterrupt().with_traceback(error.__traceback__)
            self._show_error(error)
            return Outcome(False, self._reply(request, False), error)
        return Outcome(True, self._reply(request, True))

    def _compile(self, source: str, path: str) -> List[Tuple[types.CodeType, bool]]:
        """Return the code objects of a cell, each with whether its result is the cell's value."""
        flags = self._flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(source, path, "exec", flags | ast.PyCF_ONLY_AST, True)
        assert isinstance(tree, ast.Module)
        value: Optional[ast.Expression] = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = tree.body.pop()
            assert isinstance(last, ast.Expr)
            value = ast.Expression(last.value)
        parts = []
        if tree.body:
            parts.append((compile(tree, path, "exec", flags, True), False))
            self._flags |= parts[0][0].co_flags & _FEATURES  # ``from __future__`` holds for the cells to come
        if value is not None:
            shown = not source.rstrip().endswith(";")
            parts.append((compile(value, path, "eval", flags | self._flags, True), shown))
        return parts

    def _reply(self, request: Request, ok: bool) -> Dict[str, Any]:
        self._services.repair()
        expressions: Dict[str, Any] = {}
        for name, expression in request.user_expressions.items() if ok and self._services.router.channel.open else ():
            try:
                data, metadata = rich_bundle(eval(expression, self.namespace))
                expressions[name] = {"status": "ok", "data": data, "metadata": metadata}
            except BaseException as error:
                shown = shortened_error(type(error).__name__, text_of(error, ""), self._format(error))
                expressions[name] = dict(shown, status="error")
        return {"execution_count": self._count, "user_expressions": expressions, "payload": []}

    def _show_error(self, error: BaseException) -> None:
        self._services.repair()
        text = text_of(error, "<the exception's text cannot be made>")
        self._services.error(type(error).__name__, text, self._format(error))

    def _format(self, error: BaseException) -> List[str]:
        return lines_of(error, lambda name: name.startswith(OWN_FOLDER), self._labels)

    def stopped(self) -> None:
        self._here.stopped = True

    # -- introspection -------------------------------------------------------------------------------------------------

    def complete(self, code: str, cursor: int) -> Dict[str, Any]:
        found = _NAME.search(code[:cursor])
        text = found.group() if found else ""
        start = cursor - len(text)
        matches: List[str] = []
        if text and "." in text:
            head, _, tail = text.rpartition(".")
            try:
                names = dir(eval(head, self.namespace))
            except BaseException:
                names = []
            matches = ["%s.%s" % (head, name) for name in names if name.startswith(tail) and (tail or name[0] != "_")]
        elif text:
            known = {*self.namespace, *dir(builtins), *keyword.kwlist}
            matches = [name for name in known if name.startswith(text)]
        return {
            "status": "ok", "matches": sorted(matches), "cursor_start": start, "cursor_end": cursor, "metadata": {},
        }

    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, Any]:
        before = re.search(r"[\w.]*$", code[:cursor])
        after = re.match(r"\w*", code[cursor:])
        name = ((before.group() if before else "") + (after.group() if after else "")).strip(".")
        nothing = {"status": "ok", "found": False, "data": {}, "metadata": {}}
        try:
            value = eval(name, self.namespace)
        except BaseException:
            return nothing
        lines = ["Type: %s" % type(value).__name__]
        try:
            lines.append("Signature: %s%s" % (name, inspect.signature(value)))
        except (TypeError, ValueError):
            lines.append("Value: %.2000s" % text_of(value, "<no text>"))
        lines.append(inspect.getdoc(value) or "")
        if detail:
            try:
                lines.append(inspect.getsource(value))
            except (OSError, TypeError):
                pass  # nothing that has a source
        return {"status": "ok", "found": True, "data": {"text/plain": "\n".join(lines)}, "metadata": {}}

    def is_complete(self, code: str) -> Dict[str, Any]:
        try:
            found = codeop.compile_command(code + ("\n" if "\n" in code else ""), "<cell>", "exec")
        except (SyntaxError, ValueError, OverflowError):
            return {"status": "invalid"}
        if found is not None:
            return {"status": "complete"}
        last = code.splitlines()[-1] if code.strip() else ""
        indent = last[: len(last) - len(last.lstrip())] + ("    " if last.rstrip().endswith(":") else "")
        return {"status": "incomplete", "indent": indent}

    def history(self, query: Dict[str, Any]) -> Dict[str, Any]:
        return {"status": "ok", "history": self.history_of_session.select(query, {})}

    def comm(self, header: Dict[str, Any], payload: bytes) -> None:
        """Without IPython there are no widgets that could be spoken to."""
