"""What a sandbox restricts, as observed: axes with evidence, limits with mechanism, network beside them.

The four axes are those of the reference. A value is true, false, or None for "could not be observed"; None never counts
as true. Nothing here is inferred from a provider's name or an argument list.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal

from pydantic import Field, field_validator, model_validator

from agently_kernel.contract.base import MAX_BYTES, Frozen, JSONValue, freeze_mapping
from agently_kernel.contract.network import NetworkMode


class IsolationAxis(str, Enum):
    """The boolean axes of the reference."""

    PROCESS_CONTAINED = "process_contained"
    HOST_FILESYSTEM_RESTRICTED = "host_filesystem_restricted"
    PRIVILEGE_ESCALATION_BLOCKED = "privilege_escalation_blocked"
    SYSCALLS_RESTRICTED = "syscalls_restricted"


REQUIRED_AXES: tuple[IsolationAxis, ...] = tuple(IsolationAxis)


class SafetyClass(str, Enum):
    """``isolated``: all axes can be observed true. ``constrained``: some. ``trusted_local``: no isolation at all."""

    ISOLATED = "isolated"
    CONSTRAINED = "constrained"
    TRUSTED_LOCAL = "trusted_local"


class Evidence(Frozen):
    """One observation: what was tried or read, from where, and what came of it.

    ``subject`` is an IsolationAxis value, ``network`` or ``limits.<name>``. ``value`` is True when the restriction
    held, False when it did not, None when it could not be observed. ``source`` is ``outside`` (the host kernel's view
    of the session process) or ``inside`` (an attempt made by our runner before any user code, with the host's nonce
    echoed).
    ``observed_at`` is seconds since the epoch.
    """

    subject: str
    check: str
    value: bool | None
    source: Literal["outside", "inside"]
    detail: str = ""
    observed_at: float


def conclude(evidence: tuple[Evidence, ...], subject: str) -> bool | None:
    """Fold all evidence on *subject*: any False → False; else any None or no evidence at all → None; else True."""
    values = [item.value for item in evidence if item.subject == subject]
    if False in values:
        return False
    return None if not values or None in values else True


class IsolationFacts(Frozen):
    """The axes with the evidence they were concluded from; build it with :meth:`from_evidence`."""

    process_contained: bool | None = None
    host_filesystem_restricted: bool | None = None
    privilege_escalation_blocked: bool | None = None
    syscalls_restricted: bool | None = None
    network_blocked: bool | None = None
    evidence: tuple[Evidence, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _legacy(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(
                f"isolation {value!r} is a legacy label; report the boolean axes "
                + ", ".join(axis.value for axis in IsolationAxis)
            )
        return value

    @classmethod
    def from_evidence(cls, evidence: tuple[Evidence, ...]) -> IsolationFacts:
        """Conclude every axis and the network from *evidence* with :func:`conclude`."""
        axes = {axis.value: conclude(evidence, axis.value) for axis in IsolationAxis}
        return cls(**axes, network_blocked=conclude(evidence, "network"), evidence=evidence)

    def axis(self, axis: IsolationAxis) -> bool | None:
        """Return the concluded value of one axis."""
        value: bool | None = getattr(self, axis.value)
        return value

    def as_mapping(self) -> dict[str, bool]:
        """Return only the axes that were observed, as the reference's boolean mapping."""
        return {axis.value: value for axis in IsolationAxis if (value := self.axis(axis)) is not None}


LimitName = Literal["memory", "processes", "file_size", "cpu", "scratch_bytes", "output_bytes", "inodes", "open_files"]


class LimitFact(Frozen):
    """One limit: its value (bytes, count or seconds), the mechanism that holds it, and whether it was seen in force.

    ``detail`` says what the mechanism does not cover, in a few words; empty where there is nothing to say.
    """

    name: LimitName
    limit: float | None
    mechanism: Literal["cgroup1", "cgroup2", "rlimit", "tmpfs", "watchdog", "engine", "gvisor", "none"]
    observed: bool | None = None
    detail: str = ""


class ResourceLimits(Frozen):
    """Limits asked for. Bytes, counts, CPUs; None means no limit of that kind is asked for.

    The upper bounds are those of the kernel: PID_MAX_LIMIT, the default of fs.nr_open, the largest NR_CPUS.
    """

    memory_bytes: int | None = Field(
        default=2 * 1024**3, ge=64 * 1024**2, le=MAX_BYTES, examples=["4G"],
        description="memory of all processes and files of the sandbox together; None: no limit",
    )
    processes: int | None = Field(
        default=512, ge=16, le=2**22, examples=[64], description="processes and threads at a time; None: no limit"
    )
    cpus: float | None = Field(
        default=None, ge=0.01, le=8192, allow_inf_nan=False, examples=[1.5],
        description="processors' worth of time; None: no limit",
    )
    file_size_bytes: int | None = Field(
        default=1024**3, ge=1024**2, le=MAX_BYTES, examples=["100M"], description="one file; None: no limit"
    )
    open_files: int = Field(default=1024, ge=64, le=2**20, examples=[4096], description="open files of a process")
    scratch_bytes: int = Field(
        default=1024**3, ge=1024**2, le=MAX_BYTES, examples=["4G"], description="working folder, and /tmp once more"
    )
    output_bytes: int = Field(
        default=1024**3, ge=1024**2, le=MAX_BYTES, examples=["256M"], description="the folder output/"
    )
    inodes: int = Field(
        default=200_000, ge=100, le=2**31 - 1, examples=[10_000], description="files and folders that it may make"
    )
    scratch: Literal["tmpfs", "disk"] = Field(
        default="tmpfs", examples=["disk"],
        description="where the working folder lies: in memory, or in a folder on the host's disk",
    )


class ToolchainFact(Frozen):
    """A tool as observed where the code will run: normalised version, or None when it is not there."""

    tool: str
    available: bool
    version: str | None = None
    detail: str = ""


class CodeExecutionProviderCapability(Frozen):
    """What a provider can do, as observed by its probe (reference: ``capabilities``)."""

    languages: tuple[str, ...] = ()
    toolchains: Mapping[str, ToolchainFact] = Field(default_factory=dict)
    isolation: IsolationFacts = Field(default_factory=IsolationFacts)
    workspace_access_modes: tuple[Literal["snapshot", "read_only", "read_write"], ...] = ("snapshot",)
    network: Literal["none", "inherited", "filtered", "unknown"] = "unknown"
    safety_class: SafetyClass
    network_modes: tuple[NetworkMode, ...] = Field(
        default=("disabled",), description="what its sandboxes can be opened with; 'hosts' needs a relay"
    )
    build_support: bool = True
    output_collection: Literal["directory", "protocol", "none"] = "none"
    mechanism: Mapping[str, JSONValue] = Field(default_factory=dict)

    @field_validator("mechanism")
    @classmethod
    def _mechanism(cls, value: Mapping[str, JSONValue]) -> Mapping[str, JSONValue]:
        return freeze_mapping(value)


class SandboxFacts(Frozen):
    """The facts of one live sandbox, shown beside every result; ``limits`` and ``isolation`` are those of this one."""

    provider_id: str
    safety_class: SafetyClass
    isolation: IsolationFacts
    limits: tuple[LimitFact, ...] = ()
    network: Literal["none", "inherited", "filtered", "unknown"] = "unknown"
    network_hosts: tuple[str, ...] = Field(default=(), description="with 'filtered': what the relay opens")
    toolchains: Mapping[str, ToolchainFact] = Field(default_factory=dict)
    mechanism: Mapping[str, JSONValue] = Field(default_factory=dict)
    observed_at: float

    @field_validator("mechanism")
    @classmethod
    def _mechanism(cls, value: Mapping[str, JSONValue]) -> Mapping[str, JSONValue]:
        return freeze_mapping(value)

    @property
    def network_shown(self) -> str:
        """The network as a person reads it: ``none``, ``hosts: data.example.org``, ``inherited`` …"""
        return f"hosts: {', '.join(self.network_hosts)}" if self.network_hosts else self.network
