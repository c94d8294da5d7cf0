"""The kernel's settings: ``c.AgentlyKernel.<name>`` of the user's configuration, checked with one sentence per fault.

Only the user's own configuration (file or command line) widens anything; a notebook can only ask for less. A fault does
not stop the kernel: the settings then carry the sentences, and every cell is answered with them until it is corrected.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from agently_kernel.contract.base import MAX_SECONDS, Frozen
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.isolation import REQUIRED_AXES, IsolationAxis, LimitName, ResourceLimits
from agently_kernel.contract.network import EVERY_PUBLIC_HOST, normalise_hosts
from agently_kernel.contract.paths import normalise_relative_path
from agently_kernel.contract.resource import ExecutionResourcePolicy, IsolationPolicy, ProviderCandidate
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.sandbox.interpreter import is_own_variable

SECTION = "AgentlyKernel"
CONFIG_NAME = "agently_kernel_config"
_ALIASES = {"memory": "memory_bytes", "file_size": "file_size_bytes"}
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([bkmgt]?)(?:i?b)?\s*\Z", re.IGNORECASE | re.ASCII)


def parse_size(value: object) -> object:
    """Return bytes for ``"512 MiB"``, ``"2G"`` or ``"1048576"``; anything that is not text passes through unchanged.

    Raises ValueError, naming the form, for other text. K, M, G and T are powers of 1024.
    """
    if not isinstance(value, str):
        return value
    found = _SIZE.match(value)
    if found is None:
        raise ValueError(f"{shown(value)} is no size; write bytes or a number with K, M, G or T, for example '2G'")
    return int(Decimal(found.group(1)) * _UNITS[found.group(2).lower()])


def _size_of(name: str, value: object) -> object:
    try:
        return parse_size(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def shown(value: object) -> str:
    """Return *value* as a person would recognise it, at most 60 characters."""
    if isinstance(value, int) and abs(value) > 10**50:
        return f"a number of about {math.log10(abs(value)):.0f} digits"  # Python refuses to write very long ones
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def amount(value: float, *, size: bool) -> str:
    """Return a bound as text: ``64 MiB`` for a size, else a plain number."""
    if size:
        for unit, name in ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if value >= unit and value % unit == 0:
                return f"{value // unit:g} {name}"
        return f"{value:g} byte" + ("s" if value != 1 else "")
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def allowed_range(model: type[Frozen], name: str) -> str:
    """Return in words which numbers the field *name* of *model* takes; nothing for a field without bounds."""
    found: dict[str, float] = {}
    for item in model.model_fields[name].metadata if name in model.model_fields else ():
        for kind in ("ge", "gt", "le", "lt"):
            if isinstance(bound := getattr(item, kind, None), int | float):
                found[kind] = bound
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return " and ".join(f"{words[kind]} {amount(bound, size=name.endswith('_bytes'))}" for kind, bound in found.items())


def _literal(value: object) -> object:
    """A list, mapping, number or None written as text on a command line becomes that value."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{", "("):
        try:
            return ast.literal_eval(value.strip())
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"{value[:80]!r} cannot be read as a Python list or mapping") from error
    return None if value == "None" else value


class KernelSettings(Frozen):
    """Every setting of a kernel. Times are seconds, sizes bytes (or text such as ``"2G"``)."""

    providers: tuple[ProviderCandidate, ...] = Field(
        default=(), examples=[["runsc", "bubblewrap"]],
        description="the chain: ids in order, or {'provider_id': …, 'config': {…}}; empty: all that are registered",
    )
    isolation: IsolationPolicy = Field(
        default="required", examples=["preferred"],
        description="required: all of required_axes must be observed; preferred: the best that is there; none",
    )
    required_axes: tuple[IsolationAxis, ...] = Field(
        default=REQUIRED_AXES, examples=[["process_contained", "host_filesystem_restricted"]],
        description="what must be observed to hold of a sandbox before a cell runs in it",
    )
    unsafe_fallback: bool = Field(
        default=False, examples=[True],
        description="admit trusted_local, with isolation preferred or none; asked for unless trusted_local_authorized",
    )
    trusted_local_authorized: bool = Field(
        default=False, examples=[True], description="run in trusted_local, which isolates nothing, without asking"
    )
    approval_mode: Literal["auto", "always", "never"] = Field(
        default="auto", examples=["never"],
        description="auto: ask where something is needed; always: also for each sandbox and file; never: deny instead",
    )
    auto_allow: bool = Field(
        default=False, examples=[True],
        description="answer yes to every question but those about less or no isolation",
    )
    approval_timeout: float = Field(
        default=120.0, gt=0, le=MAX_SECONDS, examples=[30],
        description="seconds that a question stays open; then the answer is no",
    )
    network: Literal["disabled", "enabled"] = Field(
        default="disabled", examples=["enabled"],
        description="enabled: cells reach every public host, for a provider with a network of its own that network",
    )
    network_hosts: tuple[str, ...] = Field(
        default=(), examples=[["data.example.org", "*.example.org", "10.1.2.3:5432"]],
        description="hosts that cells may always reach",
    )
    package_hosts: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, examples=[{"python": ["packages.example.org"]}],
        description="by language: hosts that packages come from, instead of the public index",
    )
    timeout: float | None = Field(
        default=None, gt=0, le=MAX_SECONDS, examples=[600],
        description="seconds that a cell or program may run (wall clock); None: no limit",
    )
    interrupt_grace: float = Field(
        default=5.0, gt=0, le=600, examples=[10], description="seconds from Stop until the interpreter is killed"
    )
    limits: ResourceLimits = Field(
        default=ResourceLimits(), examples=[{"memory": "4G", "cpus": 2}], description="of each sandbox: see below"
    )
    required_limits: tuple[LimitName, ...] = Field(
        default=(), examples=[["memory", "processes"]],
        description="limits that something must hold; a provider that cannot is skipped",
    )
    collection: CollectionLimits = Field(
        default=CollectionLimits(), examples=[{"max_files": 1000}], description="of files copied out: see below"
    )
    outputs: Literal["framed", "static", "trusted"] = Field(
        default="framed", examples=["static"], description="what active content of outputs may do"
    )
    cell_output_bytes: int = Field(
        default=8 * 2**20, ge=64 * 2**10, le=2**30, examples=["32M"],
        description="text shown of a cell; of more, head and tail are shown",
    )
    notebook_files: Literal["ask", "give"] = Field(
        default="ask", examples=["give"],
        description="a file beside the notebook that code opens or imports: ask, or give a copy of it without a "
        "question; hidden files, names that hold secrets and what links lead to are asked for in any case",
    )
    pass_environment: tuple[str, ...] = Field(
        default=(), examples=[["RUN_DATE", "REGION"]],
        description="environment variables that cells get as they are where the kernel was started",
    )
    warm_spare: bool = Field(
        default=True, examples=[False],
        description="after a run in a fresh sandbox keep one more ready for the next, for two minutes",
    )
    save_outputs: str | None = Field(
        default=None, examples=["results"], description="folder beside the notebook that collected files are copied to"
    )

    @field_validator("network_hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return normalise_hosts(value)

    @field_validator("package_hosts", mode="before")
    @classmethod
    def _package_hosts(cls, value: object) -> object:
        value = _literal(value)
        if not isinstance(value, Mapping):
            return value
        return {str(name): tuple(hosts) if isinstance(hosts, list) else hosts for name, hosts in value.items()}

    @field_validator(
        "providers", "required_axes", "required_limits", "network_hosts", "pass_environment", mode="before"
    )
    @classmethod
    def _sequence(cls, value: object) -> object:
        value = _literal(value)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        return tuple(value) if isinstance(value, list) else value

    @field_validator("pass_environment")
    @classmethod
    def _variables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _VARIABLE.match(name):
                raise ValueError(f"{shown(name)} is no name of an environment variable, such as 'RUN_DATE'")
            if is_own_variable(name):
                raise ValueError(f"{name!r} is set by the sandbox itself, or steers what it loads, and never passed on")
        return value

    @field_validator("limits", "collection", mode="before")
    @classmethod
    def _sizes(cls, value: object) -> object:
        value = _literal(value)
        if not isinstance(value, Mapping):
            return value
        renamed = {_ALIASES.get(str(key), str(key)): (str(key), item) for key, item in value.items()}
        return {
            key: _size_of(written, item) if key.endswith("_bytes") else item for key, (written, item) in renamed.items()
        }

    @field_validator("cell_output_bytes", mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        return parse_size(value)

    @field_validator("timeout", "save_outputs", mode="before")
    @classmethod
    def _nothing(cls, value: object) -> object:
        return _literal(value)

    @field_validator("save_outputs")
    @classmethod
    def _folder(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            plain = value if value[:1] in ("/", "~") else normalise_relative_path(value.removesuffix("/"))
        except ValueError:
            plain = "/"
        if plain[:1] in ("/", "~") or ":" in plain:
            raise ValueError("must name a folder below the notebook's folder, for example 'results'")
        return plain

    def policy(self) -> ExecutionResourcePolicy:
        """Return the policy of this kernel's session. Raises ConfigurationError when two settings contradict."""
        public = (EVERY_PUBLIC_HOST,) if self.network == "enabled" else ()
        hosts = (*public, *self.network_hosts) if self.network_hosts else ()
        try:
            return ExecutionResourcePolicy(
                isolation=self.isolation, required_axes=self.required_axes, unsafe_fallback=self.unsafe_fallback,
                trusted_local_authorized=self.trusted_local_authorized, auto_allow=self.auto_allow,
                approval_mode=self.approval_mode, approval_timeout_seconds=self.approval_timeout,
                network_mode="hosts" if hosts else self.network, network_hosts=hosts,
                package_hosts=self.package_hosts, timeout_seconds=self.timeout, max_output_bytes=256 * 1024,
                limits=self.limits, required_limits=self.required_limits, pass_environment=self.pass_environment,
            )
        except ValidationError as error:
            raise ConfigurationError("; ".join(_sentences(error))) from error


_PARTS: Mapping[str, type[Frozen]] = {
    "limits": ResourceLimits, "collection": CollectionLimits, "providers": ProviderCandidate,
}


_OUT_OF_RANGE = frozenset(
    ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number", "int_parsing_size")
)


def public_name(model: type[Frozen], name: str) -> str:
    """Return what a user writes for the field *name* of *model*, such as ``memory`` for ``memory_bytes``."""
    short = {full: alias for alias, full in _ALIASES.items()} if model is ResourceLimits else {}
    return short.get(name, name)


def _as_given(section: Mapping[str, Any], location: list[str], value: object) -> tuple[str, object]:
    """Return name and value as the user wrote them: a size may have been turned into a number of bytes."""
    for name, item in (section.items() if len(location) == 1 else _parts_of(section.get(location[0]))):
        if _ALIASES.get(str(name), str(name)) == location[-1]:
            return str(name), item if isinstance(item, str | int | float) else value
    return location[-1], value


def _parts_of(value: object) -> Sequence[tuple[object, object]]:
    value = _literal(value)
    return list(value.items()) if isinstance(value, Mapping) else []


Find = Callable[[Iterable[Sequence[str]]], str]
"""Finds the place of a setting: ``FILE, line N``, or "" when it is not known; see :class:`ConfigPlaces`."""


def _placed(said: str, find: Find | None, names: Iterable[Sequence[str]]) -> str:
    place = find(names) if find is not None else ""
    return f"{place}: {said}" if place else said


def _sentences(
    error: ValidationError, section: Mapping[str, Any] = MappingProxyType({}), find: Find | None = None
) -> list[str]:
    """One sentence a fault: where it stands, the setting's full name, what is wrong, and what is allowed."""
    sentences = []
    for item in error.errors(include_url=False):
        location = [str(part) for part in item["loc"]]
        value, written = item.get("input"), list(location)
        if location and location[0] != "providers":  # a provider's config may hold a secret
            written[-1], value = _as_given(section, location, value)
        name = ".".join([f"c.{SECTION}", *written])
        given = f" = {shown(value)}" if isinstance(value, str | int | float) else ""
        if item["type"] == "extra_forbidden":
            model = _PARTS.get(location[0], KernelSettings) if len(location) > 1 else KernelSettings
            names = sorted(public_name(model, field) for field in model.model_fields)
            near = difflib.get_close_matches(location[-1], names, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            said = f"{name} is not a setting.{hint} Allowed: {', '.join(names)}."
        else:
            reason = item["msg"].removeprefix("Value error, ")
            model = _PARTS.get(location[0], KernelSettings) if len(location) > 1 else KernelSettings
            allowed = allowed_range(model, location[-1]) if location else ""
            if allowed and item["type"] in _OUT_OF_RANGE:
                reason = f"it must be {allowed}"
            said = f"{name}{given} is not valid: {reason[:1].lower()}{reason[1:]}."
        sentences.append(_placed(said, find, [written]))
    return sentences


def refusal(faults: Sequence[str]) -> str:
    """Return what a cell is answered with while the configuration has *faults*."""
    return " ".join((*faults, "No cell is run until this is corrected; then restart the kernel."))


def read_settings(section: Mapping[str, Any], find: Find | None = None) -> tuple[KernelSettings, tuple[str, ...]]:
    """Return the settings in *section* (the ``AgentlyKernel`` part of a configuration) and the faults found.

    *find* looks up where a setting stands; each fault then begins with that place.

    With faults the returned settings are the defaults: nothing that was asked for is half applied, and the caller is to
    refuse cells with the faults.
    """
    given = {str(key): value for key, value in section.items()}
    try:
        settings = KernelSettings(**given)
        settings.policy()
    except ValidationError as error:
        return KernelSettings(), tuple(_sentences(error, given, find))
    except ConfigurationError as error:  # two settings that contradict each other
        said = str(error)
        return KernelSettings(), (_placed(said, find, [[name] for name in given if name in said]),)
    return settings, ()
