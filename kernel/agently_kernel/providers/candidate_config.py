"""Reading a candidate's config, the same for every provider."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from agently_kernel.contract.base import Frozen, thaw
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.resource import ExecutionResourceRequirement

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
