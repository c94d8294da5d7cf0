"""What is executed: request, files, steps and the immutable, digest-named CodeExecutionBundle.

Field names and limits follow the reference ("Code Execution Provider Migration"). A bundle's digest is the SHA-256 of
the canonical JSON of everything that can change what runs; its id is ``bundle-`` and the first 24 hex digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from agently_kernel.contract.base import Frozen, JSONValue, canonical_json, freeze_mapping, sha256_digest
from agently_kernel.contract.network import EVERY_PUBLIC_HOST, normalise_hosts
from agently_kernel.contract.paths import (
    MAX_EXPECTED_OUTPUTS,
    normalise_output_path,
    normalise_relative_path,
    refuse_collisions,
)
from agently_kernel.contract.workspace import parse_workspace_uris

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_BUNDLE_BYTES = 64 * 1024 * 1024
MAX_BUNDLE_FILES = 1024
MAX_ARGS = 256
MAX_ARG_BYTES = 8192
MAX_ENV = 128

_TOOL = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}\Z")
_TOOL_ALIASES = {
    "py": "python", "python3": "python", "nodejs": "node", "cpp": "c++", "cxx": "c++", "g++": "c++", "golang": "go",
    "sh": "bash", "shell": "bash",
}
_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,5}\Z")


class ExecutionForm(str, Enum):
    """``session``: in the resident interpreter, state lives on. ``one_shot``: the argv plan, in a fresh sandbox."""

    SESSION = "session"
    ONE_SHOT = "one_shot"


def normalise_tool_id(tool: str) -> str:
    """Return a canonical tool id (``python``, ``node``, ``go``, ``c++``, ``bash`` …). Raises ValueError."""
    name = tool.strip().casefold()
    name = _TOOL_ALIASES.get(name, name)
    if not _TOOL.match(name):
        raise ValueError(f"tool id {tool!r} must match [a-z0-9][a-z0-9._+-]*, at most 64 characters")
    return name


def normalise_version(text: str) -> str:
    """Return the first dotted number in *text* without leading zeros (``v20.1.0`` → ``20.1.0``). Raises ValueError."""
    found = re.search(r"\d{1,9}(?:\.\d{1,9}){0,5}", text)
    if found is None:
        raise ValueError(f"no version number in {text[:80]!r}")
    return ".".join(str(int(part)) for part in found.group(0).split("."))


def compare_versions(left: str, right: str) -> int:
    """Compare two normalised versions, the shorter padded with zeros; return -1, 0 or 1."""
    a, b = ([int(p) for p in v.split(".")] for v in (left, right))
    width = max(len(a), len(b))
    a, b = a + [0] * (width - len(a)), b + [0] * (width - len(b))
    return (a > b) - (a < b)


class CodeExecutionFile(Frozen):
    """One file of a bundle: relative path, bytes (at most 16 MiB), role, and the digest of the bytes."""

    path: str
    content: bytes = Field(repr=False)
    role: Literal["source", "dependency", "input"] = "source"
    sha256: str = ""

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        return normalise_relative_path(value, what="bundle file")

    @model_validator(mode="after")
    def _digest(self) -> CodeExecutionFile:
        if len(self.content) > MAX_FILE_BYTES:
            raise ValueError(f"{self.path!r} has {len(self.content)} bytes; the limit is {MAX_FILE_BYTES} bytes a file")
        actual = sha256_digest(self.content)
        if self.sha256 and self.sha256 != actual:
            raise ValueError(f"bundle file {self.path!r} does not have the digest that was given for it")
        object.__setattr__(self, "sha256", actual)
        return self


def _arguments(value: tuple[str, ...], *, what: str, empty: bool) -> tuple[str, ...]:
    if len(value) > MAX_ARGS:
        raise ValueError(f"{what} has {len(value)} entries; the limit is {MAX_ARGS}")
    for item in value:
        if "\0" in item or len(item.encode("utf-8", "surrogatepass")) > MAX_ARG_BYTES:
            raise ValueError(f"{what} has an entry with a NUL byte or of more than {MAX_ARG_BYTES} bytes")
        if not item and not empty:
            raise ValueError(f"{what} has an empty entry")
    return value


class CodeExecutionStep(Frozen):
    """One argv of the plan; never a shell string.

    ``cwd`` is one of source, build, output, scratch. Entries of ``argv`` and values of ``env`` may be
    ``workspace://{source,input,build,output}/…`` (``source`` is the bundle's own folder); the sandbox translates them
    with ``contract.workspace.resolve_workspace_uri``. ``network`` asks for network in this step
    only (subject to a gate), to ``hosts`` and nothing else; without any named that is every public host.
    """

    argv: tuple[str, ...]
    role: Literal["build", "run"]
    cwd: Literal["source", "build", "output", "scratch"] = "source"
    env: Mapping[str, str] = Field(default_factory=dict)
    network: bool = False
    hosts: tuple[str, ...] = ()

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return normalise_hosts(value)

    @model_validator(mode="after")
    def _network(self) -> CodeExecutionStep:
        if self.hosts and not self.network:
            raise ValueError("a step with hosts needs network=True")
        return self

    @property
    def reach(self) -> tuple[str, ...]:
        """The hosts that this step asks for."""
        return (self.hosts or (EVERY_PUBLIC_HOST,)) if self.network else ()

    @field_validator("argv")
    @classmethod
    def _argv(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not value[0]:
            raise ValueError("a step needs at least the program in argv")
        for item in value:
            parse_workspace_uris(item)
        return _arguments(value, what="step argv", empty=True)

    @field_validator("env")
    @classmethod
    def _env(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        if len(value) > MAX_ENV:
            raise ValueError(f"step env has {len(value)} entries; the limit is {MAX_ENV}")
        for key, item in value.items():
            if not key or "=" in key or "\0" in key or "\0" in item:
                raise ValueError(f"step env entry {key!r} is not a valid environment variable")
            parse_workspace_uris(item)
        return freeze_mapping(value)


class CodeExecutionToolchainRequirement(Frozen):
    """A tool that must be present where the code will run, with a minimum or an exact version (not both)."""

    tool: str
    minimum_version: str | None = None
    exact_version: str | None = None

    @field_validator("tool")
    @classmethod
    def _tool(cls, value: str) -> str:
        return normalise_tool_id(value)

    @field_validator("minimum_version", "exact_version")
    @classmethod
    def _version(cls, value: str | None) -> str | None:
        if value is not None and not _VERSION.match(value):
            raise ValueError(f"version {value!r} must be dotted numbers such as 3.11 or 1.22.1")
        return None if value is None else normalise_version(value)

    @model_validator(mode="after")
    def _exclusive(self) -> CodeExecutionToolchainRequirement:
        if self.minimum_version is not None and self.exact_version is not None:
            raise ValueError(f"toolchain {self.tool!r}: give a minimum or an exact version, not both")
        return self

    def describe(self) -> str:
        """Return the constraint as a person writes it: ``go>=1.22``, ``python==3.11.7`` or ``node``."""
        if self.exact_version:
            return f"{self.tool}=={self.exact_version}"
        return f"{self.tool}>={self.minimum_version}" if self.minimum_version else self.tool

    @classmethod
    def parse(cls, text: str) -> CodeExecutionToolchainRequirement:
        """Read ``go``, ``go>=1.22`` or ``go==1.22.1``. Raises ValueError naming the allowed forms."""
        found = re.match(r"\s*([A-Za-z0-9._+-]+?)\s*(?:(>=|==)\s*([0-9.]+))?\s*\Z", text)
        if not found:
            raise ValueError(f"toolchain {text!r} must look like go, go>=1.22 or go==1.22.1")
        tool, relation, version = found.groups()
        return cls(
            tool=tool,
            minimum_version=version if relation == ">=" else None,
            exact_version=version if relation == "==" else None,
        )


class CodeExecutionRequest(Frozen):
    """What a caller asks for, before a language adapter has planned it.

    ``options`` are JSON settings of the execution form (for a session cell: silent, store_history, allow_stdin,
    user_expressions, execution_count, request, subshell); they are part of the bundle's digest, as everything
    that affects execution.
    """

    language: str = "python"
    source_code: str | None = Field(default=None, repr=False)
    files: tuple[CodeExecutionFile, ...] = ()
    entrypoint: str | None = None
    args: tuple[str, ...] = ()
    stdin: bytes | None = Field(default=None, repr=False)
    expected_outputs: tuple[str, ...] = ()
    toolchains: tuple[CodeExecutionToolchainRequirement, ...] = ()
    form: ExecutionForm = ExecutionForm.ONE_SHOT
    options: Mapping[str, JSONValue] = Field(default_factory=dict)
    provenance: Mapping[str, JSONValue] = Field(default_factory=dict)

    @field_validator("language")
    @classmethod
    def _language(cls, value: str) -> str:
        return normalise_tool_id(value)

    @field_validator("args")
    @classmethod
    def _args(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _arguments(value, what="args", empty=True)

    @field_validator("expected_outputs")
    @classmethod
    def _outputs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return normalise_expected_outputs(value)

    @field_validator("options", "provenance")
    @classmethod
    def _json(cls, value: Mapping[str, JSONValue]) -> Mapping[str, JSONValue]:
        return freeze_mapping(value)

    @model_validator(mode="after")
    def _something(self) -> CodeExecutionRequest:
        if self.source_code is None and not self.files:
            raise ValueError("a request needs source_code or files")
        if self.source_code is not None and "\0" in self.source_code:
            raise ValueError("source_code holds a NUL character")
        return self


def normalise_expected_outputs(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return declared outputs normalised; at most 128, under ``output/``, no collisions. Raises ValueError."""
    if len(paths) > MAX_EXPECTED_OUTPUTS:
        raise ValueError(f"{len(paths)} declared outputs; the limit is {MAX_EXPECTED_OUTPUTS}")
    normal = tuple(normalise_output_path(path) for path in paths)
    refuse_collisions(normal, what="declared output")
    return normal


_JUST_NAMED = object()
"""Context of a validation whose digest has just been made of the very fields that it validates."""


class CodeExecutionBundle(Frozen):
    """The immutable thing that runs. Build it with :meth:`create`; ``bundle_digest`` names every part of it."""

    bundle_id: Annotated[str, Field(pattern=r"^bundle-[0-9a-f]{24}$")]
    bundle_digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    language: str
    files: tuple[CodeExecutionFile, ...]
    entrypoint: str
    build_steps: tuple[CodeExecutionStep, ...] = ()
    run_step: CodeExecutionStep | None = None
    stdin: bytes | None = Field(default=None, repr=False)
    expected_outputs: tuple[str, ...] = ()
    toolchains: tuple[CodeExecutionToolchainRequirement, ...] = ()
    form: ExecutionForm = ExecutionForm.ONE_SHOT
    options: Mapping[str, JSONValue] = Field(default_factory=dict)
    provenance: Mapping[str, JSONValue] = Field(default_factory=dict)

    @classmethod
    def create(
        cls,
        *,
        language: str,
        files: tuple[CodeExecutionFile, ...],
        entrypoint: str,
        build_steps: tuple[CodeExecutionStep, ...] = (),
        run_step: CodeExecutionStep | None = None,
        stdin: bytes | None = None,
        expected_outputs: tuple[str, ...] = (),
        toolchains: tuple[CodeExecutionToolchainRequirement, ...] = (),
        form: ExecutionForm = ExecutionForm.ONE_SHOT,
        options: Mapping[str, JSONValue] | None = None,
        provenance: Mapping[str, JSONValue] | None = None,
    ) -> CodeExecutionBundle:
        """Check all limits, compute digest and id, and return the bundle. Raises ValueError naming the field."""
        fields: dict[str, Any] = {
            "language": normalise_tool_id(language),
            "files": tuple(files),
            "entrypoint": normalise_relative_path(entrypoint, what="entrypoint"),
            "build_steps": tuple(build_steps),
            "run_step": run_step,
            "stdin": stdin,
            "expected_outputs": normalise_expected_outputs(tuple(expected_outputs)),
            "toolchains": tuple(toolchains),
            "form": form,
            "options": freeze_mapping(options or {}),
            "provenance": freeze_mapping(provenance or {}),
        }
        digest = _bundle_digest(fields)
        return cls.model_validate(
            {"bundle_id": _bundle_id(digest), "bundle_digest": digest, **fields}, context=_JUST_NAMED
        )

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> CodeExecutionBundle:
        self._verify_parts()
        if info.context is not _JUST_NAMED:
            self._verify_name()
        return self

    def verify(self) -> None:
        """Check limits, paths, digest and id again. Raises ValueError naming what does not hold.

        Building a bundle does this already; it is here for code that acts on a bundle it did not build.
        """
        self._verify_parts()
        self._verify_name()

    def _verify_parts(self) -> None:
        if not 1 <= len(self.files) <= MAX_BUNDLE_FILES:
            raise ValueError(f"a bundle has 1 to {MAX_BUNDLE_FILES} files, not {len(self.files)}")
        total = sum(len(file.content) for file in self.files)
        if total > MAX_BUNDLE_BYTES:
            raise ValueError(f"the bundle's files have {total} bytes together; the limit is {MAX_BUNDLE_BYTES}")
        for file in self.files:
            if normalise_relative_path(file.path, what="bundle file") != file.path:
                raise ValueError(f"bundle file {file.path!r} is not in its accepted spelling")
            if len(file.content) > MAX_FILE_BYTES:
                raise ValueError(f"bundle file {file.path!r} has more than {MAX_FILE_BYTES} bytes")
        refuse_collisions((file.path for file in self.files), what="bundle file")
        if self.entrypoint not in {file.path for file in self.files}:
            raise ValueError(f"entrypoint {self.entrypoint!r} is not one of the bundle's files")
        if self.form is ExecutionForm.ONE_SHOT and self.run_step is None:
            raise ValueError("a one-shot bundle needs a run step")
        if normalise_expected_outputs(self.expected_outputs) != self.expected_outputs:
            raise ValueError("the bundle's declared outputs are not in their accepted spelling")

    def _verify_name(self) -> None:
        digest = _bundle_digest({name: getattr(self, name) for name in _DIGESTED})
        if self.bundle_digest != digest or self.bundle_id != _bundle_id(digest):
            raise ValueError(f"bundle {self.bundle_id!r} does not have the digest of its content")


_DIGESTED = tuple(name for name in CodeExecutionBundle.model_fields if name not in ("bundle_id", "bundle_digest"))


def _bundle_id(digest: str) -> str:
    return "bundle-" + digest.removeprefix("sha256:")[:24]


def _step_json(plan: CodeExecutionStep) -> JSONValue:
    plain = {
        "argv": list(plan.argv), "role": plan.role, "cwd": plan.cwd, "env": plan.env, "network": plan.network,
    }
    return {**plain, "hosts": list(plan.hosts)} if plan.hosts else plain


def _bundle_digest(fields: Mapping[str, Any]) -> str:
    """Return the digest of everything that can change what runs; contents and standard input go in by their digests."""
    run_step, stdin = fields["run_step"], fields["stdin"]
    plain = {
        "version": 1,
        "language": fields["language"],
        "files": [
            {"path": f.path, "role": f.role, "sha256": f.sha256, "bytes": len(f.content)} for f in fields["files"]
        ],
        "entrypoint": fields["entrypoint"],
        "build_steps": [_step_json(step) for step in fields["build_steps"]],
        "run_step": _step_json(run_step) if run_step is not None else None,
        "stdin": sha256_digest(stdin) if stdin is not None else None,
        "expected_outputs": list(fields["expected_outputs"]),
        "toolchains": [tool.model_dump() for tool in fields["toolchains"]],
        "form": fields["form"].value,
        "options": fields["options"],
        "provenance": fields["provenance"],
    }
    return sha256_digest(canonical_json(plain))
