"""A candidate's config: what the providers' configs have in common, and how one is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeVar

from pydantic import Field, ValidationError, field_validator

from agently_kernel.contract.base import Frozen, thaw
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.resource import ExecutionResourceRequirement
from agently_kernel.sandbox.interpreter import is_inside

_FORBIDDEN = ("/", "/proc", "/sys", "/dev", "/etc", "/run", "/tmp", "/workspace")  # noqa: S108


class HostConfig(Frozen):
    """``extra_read_only``: absolute paths of the host that the user wants shown read-only at their own places.

    ``env``: variables that the guest gets besides the fixed ones.
    """

    extra_read_only: tuple[str, ...] = ()
    env: Mapping[str, str] = Field(default_factory=dict, repr=False)

    @field_validator("extra_read_only", mode="before")
    @classmethod
    def _list(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("extra_read_only")
    @classmethod
    def _paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        home = os.path.expanduser("~")
        for path in value:
            if not os.path.isabs(path) or os.path.normpath(path) != path:
                raise ValueError(f"{path!r} must be an absolute path without '.', '..' or a trailing slash")
            if path in _FORBIDDEN or is_inside(home, (path,)) or is_inside(path, ("/proc", "/sys", "/dev")):
                raise ValueError(f"{path!r} would show a whole home or system folder; name what is needed in it")
            if not os.path.exists(path):
                raise ValueError(f"{path!r} does not exist")
        return value


class ProgramConfig(HostConfig):
    """A host config with ``binary``: absolute path of the mechanism's program to use."""

    binary: str | None = None

    @field_validator("binary")
    @classmethod
    def _binary(cls, value: str | None) -> str | None:
        if value is not None and not os.path.isabs(value):
            raise ValueError("must be an absolute path")
        return value


ConfigT = TypeVar("ConfigT", bound=Frozen)


def read_config(kind: type[ConfigT], requirement: ExecutionResourceRequirement, provider_id: str) -> ConfigT:
    """Return the validated config of a requirement. Raises ConfigurationError naming field and allowed names."""
    try:
        return kind.model_validate(thaw(requirement.config))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "config"
        raise ConfigurationError(
            f"Provider {provider_id}: {field}: {first['msg']}. Allowed are {', '.join(sorted(kind.model_fields))}.",
            details={"field": field},
        ) from None
