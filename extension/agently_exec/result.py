"""What ``--result NAME`` binds: the same fields in both homes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agently_exec.tables import Report, Table, clean, facts_report, outputs_table, trace_table
from agently_kernel.contract.isolation import SandboxFacts
from agently_kernel.contract.resource import ProviderSelection
from agently_kernel.contract.result import CodeExecutionResult, StepResult, TraceStep
from agently_kernel.contract.words import counted
from agently_kernel.contract.workspace import CollectedOutput, RefusedOutput


@dataclass(frozen=True, slots=True)
class ExecutionOutcome:
    """What an execution came to. ``stdout`` and ``stderr`` are head and tail, as kept; times are seconds.

    ``result`` is the whole :class:`~agently_kernel.contract.result.CodeExecutionResult`.
    """

    result: CodeExecutionResult = field(repr=False)

    @property
    def ok(self) -> bool:
        """True for success."""
        return self.result.status.value == "success"

    @property
    def status(self) -> str:
        """``success``, ``error``, ``timed_out``, ``cancelled``, ``died`` or ``blocked``."""
        return self.result.status.value

    @property
    def message(self) -> str:
        """A sentence, when the status is not success."""
        return self.result.message

    @property
    def returncode(self) -> int | None:
        """Exit code of the last step that ran."""
        return self.result.returncode

    @property
    def stdout(self) -> str:
        """Standard output, as kept."""
        return self.result.stdout.text

    @property
    def stderr(self) -> str:
        """Standard error, as kept."""
        return self.result.stderr.text

    @property
    def steps(self) -> tuple[StepResult, ...]:
        """The programs that ran: building, then running."""
        return self.result.steps

    @property
    def outputs(self) -> Mapping[str, CollectedOutput]:
        """Collected files by their name, such as ``output/x.csv``, with size, digest and where the copy is kept."""
        return {item.path: item for item in self.result.outputs}

    @property
    def refused(self) -> tuple[RefusedOutput, ...]:
        """Files that were not taken, with the reason."""
        return self.result.refused_outputs

    @property
    def facts(self) -> SandboxFacts | None:
        """What was observed of the sandbox that ran it."""
        return self.result.facts

    @property
    def selection(self) -> ProviderSelection | None:
        """Which provider was taken, and why others were not."""
        return self.result.selection

    @property
    def trace(self) -> tuple[TraceStep, ...]:
        """The eight steps of the execution with their times."""
        return self.result.trace

    @property
    def seconds(self) -> float:
        """How long it took in all."""
        return self.result.seconds

    def report(self) -> Report:
        """Return the tables that this object shows itself as."""
        return result_report(self.result)

    def widget(self) -> Any:
        """Return the report as an ipywidgets ``Tab``, for front ends that show widgets."""
        return self.report().widget()

    def __repr__(self) -> str:
        return f"<{self.status}, {counted(len(self.result.outputs), 'output')}, {self.seconds:.3f} s>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.report().bundle()


def result_report(result: CodeExecutionResult) -> Report:
    """Return status, steps, outputs, trace and facts as tables."""
    mark = "✓" if result.status.value == "success" else "✗"
    rows = [("status", f"{mark} {result.status.value}")]
    if result.message:
        rows.append(("message", result.message))
    if result.returncode is not None:
        rows.append(("exit code", str(result.returncode)))
    rows += [("seconds", f"{result.seconds:.3f}"), ("bundle", result.bundle_id or "none")]
    for name, stream in (("stdout", result.stdout), ("stderr", result.stderr)):
        cut = f", {stream.dropped_bytes:,} not kept" if stream.truncated else ""
        rows.append((name, f"{counted(stream.total_bytes, 'byte')}{cut}"))
    tables = [Table("Execution", ("", ""), tuple(rows))]
    if result.steps:
        steps = tuple((s.role, " ".join(s.argv), _ending(s), f"{s.seconds:.3f} s") for s in result.steps)
        tables.append(Table("Programs", ("role", "program", "ended", "time"), steps))
    if result.outputs or result.refused_outputs:
        tables.append(outputs_table(result.outputs, result.refused_outputs))
    tables.append(trace_table(result.trace))
    tables += facts_report(result.facts, result.selection, about="the sandbox that ran it").tables
    return Report(tuple(tables))


def _ending(step: StepResult) -> str:
    if step.timed_out:
        return "✗ time limit"
    if step.signal:
        return f"✗ {step.signal}"
    return "✓ exit code 0" if step.exit_code == 0 else f"✗ exit code {step.exit_code}"


_FACTS = {"provider_id", "safety_class", "isolation", "network", "limits"}


def plain_fields(result: CodeExecutionResult) -> dict[str, Any]:
    """Return the fields that a session's variables get: plain values, and no path of the host."""
    facts = result.facts
    return {
        "ok": result.status.value == "success",
        "status": result.status.value,
        "message": result.message,
        "returncode": result.returncode,
        "stdout": result.stdout.text,
        "stderr": result.stderr.text,
        "seconds": result.seconds,
        "steps": [step.model_dump(mode="json") for step in result.steps],
        "outputs": {item.path: item.model_dump(include={"path", "size", "sha256"}) for item in result.outputs},
        "refused": [item.model_dump(mode="json") for item in result.refused_outputs],
        "facts": facts.model_dump(mode="json", include=_FACTS) if facts else None,
        "trace": [step.model_dump(mode="json") for step in result.trace],
    }


KEPT = "see %agently outputs"
"""What an object in a sandbox says instead of a path of the host."""
_BINDING = '''\
def {name}(text, shown, bundle):
    import json, types
    class ExecutionOutcome:
        def __init__(self, **fields):
            self.__dict__.update(fields)
        def __repr__(self):
            return shown
        def _repr_mimebundle_(self, include=None, exclude=None):
            return dict(bundle)
    def build(value):
        if isinstance(value, dict):
            return {{key: build(item) for key, item in value.items()}}
        return tuple(build(item) for item in value) if isinstance(value, list) else value
    fields = json.loads(text)
    outputs = {{key: types.SimpleNamespace(**item) for key, item in fields.pop("outputs").items()}}
    return ExecutionOutcome(outputs=outputs, **build(fields))
{name} = {name}({text}, {shown}, {bundle})
'''


def binding_code(name: str, result: CodeExecutionResult) -> str:
    """Return Python that binds what came of *result* to *name* in a session's interpreter."""
    shown = f"<{result.status.value}, {counted(len(result.outputs), 'output')}, {result.seconds:.3f} s>"
    text, bundle = json.dumps(plain_fields(result)), result_report(_without_host_paths(result)).bundle()
    return _BINDING.format(name=name, text=ascii(text), shown=ascii(clean(shown)), bundle=ascii(bundle))


def _without_host_paths(result: CodeExecutionResult) -> CodeExecutionResult:
    """Return *result* as it may be shown by an object that lives in a sandbox: nothing tells how the host looks."""
    facts = result.facts and result.facts.model_copy(update={"mechanism": {}, "toolchains": {}})
    outputs = tuple(item.model_copy(update={"stored_path": KEPT}) for item in result.outputs)
    return result.model_copy(update={"facts": facts, "outputs": outputs, "selection": None})
