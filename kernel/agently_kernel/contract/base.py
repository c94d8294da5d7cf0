"""Shared base of the contract's models, and the JSON form that digests are taken from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

JSONValue: TypeAlias = Any
"""A value made only of dict (string keys), list, str, int, float, bool and None."""


class Frozen(BaseModel):
    """Base of every value that crosses a border: immutable, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True)


def canonical_json(value: JSONValue) -> bytes:
    """Return the one JSON text of *value*: keys sorted, no blanks, UTF-8, no NaN or infinity.

    Raises ValueError for a value that JSON cannot hold exactly (NaN, lone surrogates, other types).
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise ValueError(f"not a plain JSON value: {error}") from error


def sha256_digest(data: bytes) -> str:
    """Return ``sha256:`` followed by the 64 lower-case hex digits of the SHA-256 of *data*."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def freeze_mapping(value: Mapping[str, JSONValue]) -> Mapping[str, JSONValue]:
    """Return a read-only copy of a JSON mapping; nested lists and dicts become tuples and read-only mappings.

    Raises ValueError when the mapping is not plain JSON.
    """
    canonical_json(thaw(value))

    def deep(item: JSONValue) -> JSONValue:
        if isinstance(item, Mapping):
            return MappingProxyType({str(k): deep(v) for k, v in item.items()})
        if isinstance(item, list | tuple):
            return tuple(deep(v) for v in item)
        return item

    frozen: Mapping[str, JSONValue] = deep(value)
    return frozen


def thaw(value: JSONValue) -> JSONValue:
    """Return a plain dict/list copy of a frozen JSON value (the inverse of :func:`freeze_mapping`)."""
    if isinstance(value, Mapping):
        return {str(k): thaw(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(v) for v in value]
    return value
