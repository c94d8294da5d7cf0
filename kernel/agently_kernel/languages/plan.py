"""What the adapters share: entrypoint and files, toolchain constraints, steps, and the bundle that comes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from agently_kernel.contract.base import JSONValue
from agently_kernel.contract.bundle import (
    CodeExecutionBundle,
    CodeExecutionFile,
    CodeExecutionRequest,
    CodeExecutionStep,
    CodeExecutionToolchainRequirement,
    ExecutionForm,
    compare_versions,
)
from agently_kernel.contract.errors import ConfigurationError, reasons
from agently_kernel.contract.paths import normalise_relative_path
from agently_kernel.contract.workspace import WORKSPACE_URI

SOURCE = WORKSPACE_URI + "source"
BUILD = WORKSPACE_URI + "build"


def plain_name(path: str) -> str:
    """Return a relative path so that no program can take it for an option."""
    return f"./{path}" if path.startswith("-") else path


def in_source(path: str) -> str:
    """Return the URI of a bundle's file; absolute where it runs, so never an option."""
    return f"{SOURCE}/{path}"


def gather(
    request: CodeExecutionRequest,
    *,
    suffixes: tuple[str, ...],
    default_name: Callable[[str], str],
    usual: tuple[str, ...],
) -> tuple[tuple[CodeExecutionFile, ...], str]:
    """Return the request's files (sorted by path, the source text among them) and the entrypoint.

    Without an entrypoint: the source text, else the first of the *usual* names that is there, else the only file with
    one of *suffixes*. Raises ConfigurationError naming what is missing or too much.
    """
    files = {file.path: file for file in request.files}
    language = request.language
    try:
        entry = normalise_relative_path(request.entrypoint, what="entrypoint") if request.entrypoint else None
        if request.source_code is not None:
            entry = entry or default_name(request.source_code)
            if entry in files:
                raise ConfigurationError(f"both the source text and a file are called {entry!r}; rename the file")
            try:
                content = request.source_code.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ConfigurationError(f"the source text cannot be written as UTF-8: {error.reason}") from error
            files[entry] = CodeExecutionFile(path=entry, content=content)
    except ValueError as error:
        raise ConfigurationError(f"{reasons(error)}. Nothing was run.") from error
    if entry is None:
        fitting = sorted(path for path in files if path.endswith(suffixes))
        entry = next((name for name in usual if name in files), fitting[0] if len(fitting) == 1 else None)
        if entry is None:
            among = f"; it must be one of {', '.join(fitting[:10])}" if fitting else ""
            raise ConfigurationError(f"name the {language} file to start with (entrypoint){among}")
    if entry not in files:
        raise ConfigurationError(f"the entrypoint {entry!r} is not among the files: {', '.join(sorted(files)[:10])}")
    if suffixes and not entry.endswith(suffixes):
        raise ConfigurationError(f"the entrypoint {entry!r} of {language} must end in {' or '.join(suffixes)}")
    return tuple(files[path] for path in sorted(files)), entry


def merge_toolchains(
    language: str, base: CodeExecutionToolchainRequirement, wanted: Sequence[CodeExecutionToolchainRequirement]
) -> tuple[CodeExecutionToolchainRequirement, ...]:
    """Return the adapter's own requirement tightened by the request's, and the request's for other tools.

    Raises ConfigurationError when two constraints on one tool exclude each other.
    """
    merged = {base.tool: base}
    for item in wanted:
        known = merged.get(item.tool)
        merged[item.tool] = item if known is None else _tighten(language, known, item)
    return tuple(merged.values())


def _tighten(
    language: str, left: CodeExecutionToolchainRequirement, right: CodeExecutionToolchainRequirement
) -> CodeExecutionToolchainRequirement:
    exact = {version for version in (left.exact_version, right.exact_version) if version}
    minimum = [version for version in (left.minimum_version, right.minimum_version) if version]
    floor = minimum[0] if len(minimum) == 1 else None
    if len(minimum) == 2:
        floor = minimum[0] if compare_versions(minimum[0], minimum[1]) >= 0 else minimum[1]
    if not exact:
        return CodeExecutionToolchainRequirement(tool=left.tool, minimum_version=floor)
    version = next(iter(exact))
    if len(exact) > 1 or (floor is not None and compare_versions(version, floor) < 0):
        raise ConfigurationError(
            f"{language} needs {left.describe()}, and {right.describe()} was asked for; both cannot hold"
        )
    return CodeExecutionToolchainRequirement(tool=left.tool, exact_version=version)


def installs_dependencies(request: CodeExecutionRequest) -> bool:
    """True unless the request's option ``dependencies`` is ``ignore``. Raises ConfigurationError for other values."""
    choice = request.options.get("dependencies", "install")
    if choice not in ("install", "ignore"):
        raise ConfigurationError(f"the option dependencies is {choice!r}; allowed are 'install' and 'ignore'")
    return bool(choice == "install")


def one_shot_only(request: CodeExecutionRequest) -> None:
    """Raise ConfigurationError for a session-form request of a language that has no resident interpreter."""
    if request.form is not ExecutionForm.ONE_SHOT:
        raise ConfigurationError(f"{request.language} has no resident session; run it in a fresh one (one_shot)")


def content_key(files: Sequence[CodeExecutionFile], *extra: str) -> str:
    """Return 16 hex digits that name what is built from *files*: two programs never share a file in the build area."""
    digest = hashlib.sha256()
    for part in (*extra, *(f"{file.path}\0{file.sha256}" for file in files)):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0\0")
    return digest.hexdigest()[:16]


def step(
    role_and_argv: tuple[str, Sequence[str]],
    *,
    cwd: str = "source",
    env: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
) -> CodeExecutionStep:
    """Return a step from (role, argv) that may reach *hosts*.

    Raises ConfigurationError for an argv that no step can have.
    """
    role, argv = role_and_argv
    try:
        return CodeExecutionStep.model_validate(
            {"argv": tuple(argv), "role": role, "cwd": cwd, "env": dict(env or {}),
             "network": bool(hosts), "hosts": tuple(hosts)}
        )
    except ValueError as error:
        raise ConfigurationError(f"the {role} step cannot be planned: {_first_line(error)}") from error


def make_bundle(
    request: CodeExecutionRequest,
    *,
    language: str,
    files: tuple[CodeExecutionFile, ...],
    entrypoint: str,
    toolchains: tuple[CodeExecutionToolchainRequirement, ...],
    build_steps: tuple[CodeExecutionStep, ...] = (),
    run_step: CodeExecutionStep | None = None,
    options: Mapping[str, JSONValue] | None = None,
) -> CodeExecutionBundle:
    """Return the bundle, with everything of the request that the adapter does not decide. Raises ConfigurationError."""
    try:
        return CodeExecutionBundle.create(
            language=language, files=files, entrypoint=entrypoint, build_steps=build_steps, run_step=run_step,
            stdin=request.stdin, expected_outputs=request.expected_outputs, toolchains=toolchains, form=request.form,
            options=request.options if options is None else options, provenance=request.provenance,
        )
    except ValueError as error:
        raise ConfigurationError(f"no {language} bundle can be made of this: {_first_line(error)}") from error


def _first_line(error: ValueError) -> str:
    """Return the words of ours in a validation error."""
    details = getattr(error, "errors", None)
    if callable(details):
        return "; ".join(str(item["msg"]).removeprefix("Value error, ") for item in details())
    return str(error)
