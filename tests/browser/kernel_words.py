"""Finds, in the kernel's sources, every text that a panel can show, as samples of what would arrive there.

A text is found by where it goes: an argument of a call, an exception's sentence, a returned string. What is put into it
at run time is followed to constants of the module and to local assignments; all else becomes a sample value.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import agently_kernel

KERNEL = Path(agently_kernel.__file__).parent
SAMPLES = ("7", "Zz", "/Zz", "Zz Zz")
Template = tuple[str | None, ...]
"""Literal parts; None stands for a value that is known at run time only."""


@dataclass(frozen=True)
class Sink:
    """Where texts go on their way to a panel: in which files, by which calls, and which words of the panel show them.

    ``takes`` are positions and keywords; ``around`` is what the receiver makes of the text.
    """

    words: str
    calls: tuple[str, ...]
    takes: tuple[int | str, ...]
    files: str = "**/*.py"
    around: str = "{}"


BECAUSE = "“Zz” (Zz: Zz) could not be asked because {}; nothing was run for it."
SINKS = (
    Sink("replyText", ("_no", "_error"), (2,), "panel.py"),
    Sink("replyText", ("ConfigurationError", "WorkspaceError"), (0,), "panel_actions.py"),
    Sink("replyText", ("WorkspaceError",), (0,), "saving.py"),
    Sink("endText", ("DeathCause",), ("message",)),
    Sink("endText", ("_end",), (1,), "sandbox/watchdog.py", "The sandbox was ended because {}."),
    Sink("endText", ("memory_death",), (2,), around="The sandbox was ended at the memory limit of 7 MiB: {}."),
    Sink("endText", ("give", "decided"), (1,)),
    Sink("endText", ("ApprovalDecision",), ("reason",), around=BECAUSE),
    Sink("endText", ("progress",), (0, 1), "providers/*.py"),
    Sink("endText", ("emit", "_emit"), ("phase",)),
    Sink("skipText", ("Problem",), (2,)),
    Sink("skipText", ("SkipReason", "_replace"), ("message",)),
    Sink("skipText", ("SandboxLaunchError", "EngineCallError"), (0, "explanation"), "providers/*.py"),
    Sink("skipText", ("missing",), (2,), "providers/docker.py", "The image Zz is not on the Zz engine{}."),
    Sink("remedyText", ("Problem",), (3,)),
    Sink("remedyText", ("SkipReason", "EngineCallError", "_replace"), ("remedy",)),
    Sink("reasonText", ("withheld", "Withheld"), (2, "reason")),
    Sink("reasonText", ("_refused", "_withheld", "_lost"), (0, 1, "reason"), "outputs/*.py"),
    Sink("checkText", ("Evidence",), ("check",)),
    Sink("detailText", ("Evidence",), ("detail",)),
    Sink("limitText", ("LimitFact",), ("mechanism", "detail")),
    Sink("refusalText", ("Refusal",), (1,), "workspace/*.py", "Zz was not taken: {}"),
    Sink("sentence", ("gate", "approve", "_gate", "grant"), ("why",)),
)
FAILURES = "_known_failures"
"""A function that returns triples: a pattern, a reason, a remedy."""
RETURNS = {"panel_actions.py": "replyText", "taking_back.py": "replyText", "policy.py": "endText"}
"""Files whose functions return sentences."""


class Module:
    """One source file: its constants, its functions, and what a name in a function may hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text("utf-8"))
        self.constants: dict[str, ast.expr] = {}
        self.functions: dict[str, ast.AST] = {}
        self._open: list[str] = []
        for node in self.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        self.constants[target.id] = node.value
            elif isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node

    def assigned(self, name: str, scope: ast.AST) -> Iterator[ast.expr]:
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name) and target.id == name:
                        yield node.value
                    elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        for each, value in zip(target.elts, node.value.elts, strict=False):
                            if isinstance(each, ast.Name) and each.id == name:
                                yield value

    def templates(self, node: ast.expr | None, scope: ast.AST, depth: int = 0) -> list[Template]:
        """Return what *node* may come to; parts that nothing is known of are None."""
        unknown: list[Template] = [(None,)]
        deeper = depth + 1
        if node is None or depth > 12:
            return unknown
        if isinstance(node, ast.Constant):
            return unknown if node.value is None else [(str(node.value),)]
        if isinstance(node, ast.JoinedStr):
            parts = [self.templates(value, scope, deeper) for value in node.values]
            return [sum(choice, ()) for choice in itertools.islice(itertools.product(*parts), 200)]
        if isinstance(node, ast.FormattedValue):
            plain = node.conversion == -1 and node.format_spec is None
            return self.templates(node.value, scope, deeper) if plain else unknown
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.templates(node.left, scope, deeper), self.templates(node.right, scope, deeper)
            return [a + b for a in left for b in right]
        if isinstance(node, ast.IfExp):
            return self.templates(node.body, scope, deeper) + self.templates(node.orelse, scope, deeper)
        if isinstance(node, ast.BoolOp):
            return [found for value in node.values for found in self.templates(value, scope, deeper)]
        if isinstance(node, ast.Name):
            return self._name(node.id, scope, deeper)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            return self._values(node.value.id, deeper) or unknown
        if isinstance(node, ast.Call):
            return self._call(node, scope, deeper) or unknown
        return unknown

    def _name(self, name: str, scope: ast.AST, depth: int) -> list[Template]:
        if name in self._open:  # made from itself, as by adding to it
            return [(None,)]
        self._open.append(name)
        found = [each for value in self.assigned(name, scope) for each in self.templates(value, scope, depth)]
        self._open.pop()
        if not found and name in self.constants:
            found = self.templates(self.constants[name], self.tree, depth)
        return found or [(None,)]

    def _values(self, name: str, depth: int) -> list[Template]:
        table = self.constants.get(name)
        values = table.values if isinstance(table, ast.Dict) else []
        return [each for value in values for each in self.templates(value, self.tree, depth)]

    def _call(self, node: ast.Call, scope: ast.AST, depth: int) -> list[Template]:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and isinstance(node.func.value, ast.Name):
            values = self._values(node.func.value.id, depth)
            return values + (self.templates(node.args[1], scope, depth) if values and len(node.args) > 1 else [])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "join" and isinstance(node.args[0], ast.Name):
            return self._joined(node.args[0].id, scope, depth)
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            return [each for _, each in self.returned(self.functions[node.func.id], depth)]
        return []

    def _joined(self, name: str, scope: ast.AST, depth: int) -> list[Template]:
        """Return each sentence of a list of them."""
        items: list[ast.expr] = []
        for value in self.assigned(name, scope):
            lists = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            items += [each for part in lists if isinstance(part, ast.List) for each in part.elts]
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{name}.append":
                items += node.args
        return [each for item in items for each in self.templates(item, scope, depth)]

    def returned(self, function: ast.AST, depth: int = 0) -> Iterator[tuple[int, Template]]:
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                for each in self.templates(node.value, function, depth):
                    yield node.lineno, each


def _scopes(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Every node with the function around it."""
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, scope = stack.pop()
        yield node, scope
        inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else scope
        stack += [(child, inner) for child in ast.iter_child_nodes(node)]


@dataclass(frozen=True)
class Text:
    """A text of the kernel: where it stands, which words of the panel show it, and samples of it."""

    place: str
    words: str
    template: str
    samples: tuple[str, ...]


def _text(module: Module, line: int, words: str, template: Template, around: str) -> Text | None:
    if not any(ch.isalpha() for part in template if part for ch in part):
        return None
    gaps = template.count(None)
    choices = itertools.product(SAMPLES, repeat=gaps) if gaps <= 3 else ((each,) * gaps for each in SAMPLES)
    samples = []
    for choice in choices:
        values = iter(choice)
        samples.append(around.format("".join(next(values) if part is None else part for part in template)))
    place = f"{module.path.relative_to(KERNEL)}:{line}"
    return Text(place, words, "".join("…" if part is None else part for part in template), tuple(samples))


def texts() -> list[Text]:
    """Return every text that was found, in the order of files and lines."""
    found: list[Text | None] = []
    for path in sorted(KERNEL.rglob("*.py")):
        name = path.relative_to(KERNEL).as_posix()
        if name.startswith("testing/"):
            continue
        module = Module(path)
        sinks = [sink for sink in SINKS if sink.files == "**/*.py" or path.relative_to(KERNEL).match(sink.files)]
        for node, scope in _scopes(module.tree):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                for sink in (sink for sink in sinks if called in sink.calls):
                    for value in _taken(node, sink):
                        for each in module.templates(value, scope):
                            found.append(_text(module, node.lineno, sink.words, each, sink.around))
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "") == "remark":
                for each in module.templates(node.value, scope):
                    found.append(_text(module, node.lineno, "endText", each, BECAUSE))
            elif isinstance(node, ast.Tuple) and len(node.elts) == 3 and scope is module.functions.get(FAILURES):
                for words, value in zip(("skipText", "remedyText"), node.elts[1:], strict=True):
                    for each in module.templates(value, scope):
                        found.append(_text(module, node.lineno, words, each, "{}"))
            elif isinstance(node, ast.Dict) and name.startswith("providers/"):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "remedy":
                        for each in module.templates(value, scope):
                            found.append(_text(module, node.lineno, "remedyText", each, "{}"))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_str(node) and name in RETURNS:
                for line, each in module.returned(node):
                    found.append(_text(module, line, RETURNS[name], each, "{}"))
    unique = {(text.words, text.samples): text for text in found if text is not None}
    return sorted(unique.values(), key=lambda text: (text.place.split(":")[0], int(text.place.split(":")[1])))


def _is_str(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return isinstance(node.returns, ast.Name) and node.returns.id == "str"


def _taken(call: ast.Call, sink: Sink) -> Iterator[ast.expr]:
    for index in (each for each in sink.takes if isinstance(each, int)):
        if index < len(call.args):
            yield call.args[index]
    for keyword in call.keywords:
        if keyword.arg in sink.takes:
            yield keyword.value
