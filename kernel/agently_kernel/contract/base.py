"""Shared base of the contract's models, and the JSON form that digests are taken from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from pydantic import BaseModel, ConfigDict

JSONValue: TypeAlias = Any
"""A value made only of dict (string keys), list, str, int, float, bool and None."""

MAX_BYTES = 2**50
"""The largest size that a setting may have (1 PiB): far beyond any machine, and within every kernel interface."""

MAX_SECONDS = 366 * 24 * 3600.0
"""The longest time that a setting may have: a year."""


class Frozen(BaseModel):
    """Base of every value that crosses a border: immutable, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True)


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical_json(value: JSONValue) -> bytes:
    """Return the one JSON text of *value*: keys sorted, no blanks, UTF-8, no NaN or infinity.

    Raises ValueError for a value that JSON cannot hold exactly (NaN, lone surrogates, other types).
    """
    try:
        return _canonical(value).encode("utf-8")
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise ValueError(f"not a plain JSON value: {error}") from error


def sha256_digest(data: bytes) -> str:
    """Return ``sha256:`` followed by the 64 lower-case hex digits of the SHA-256 of *data*."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


class FrozenMapping(dict[str, JSONValue]):
    """A read-only mapping with text keys; a dict by type, so that every serializer and copier takes it as one."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this mapping is read-only; build a new value instead")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> FrozenMapping:
        return self

    def __deepcopy__(self, memo: object) -> FrozenMapping:
        return self

    def __reduce__(self) -> tuple[type[FrozenMapping], tuple[dict[str, JSONValue]]]:
        return FrozenMapping, (dict(self),)


def freeze_mapping(value: Mapping[str, JSONValue]) -> Mapping[str, JSONValue]:
    """Return a read-only copy of a JSON mapping; nested lists and dicts become tuples and read-only mappings.

    Raises ValueError when the mapping is not plain JSON (also for keys that are not text).
    """
    def deep(item: JSONValue) -> JSONValue:
        if isinstance(item, str | int | float | None):
            return item
        if isinstance(item, Mapping):
            _refuse_other_keys(item)
            return FrozenMapping({k: deep(v) for k, v in item.items()})
        if isinstance(item, list | tuple):
            return tuple(deep(v) for v in item)
        return item

    if type(value) is FrozenMapping:
        return value  # only made here
    frozen: Mapping[str, JSONValue] = deep(value)
    canonical_json(frozen)
    return frozen


def thaw(value: JSONValue) -> JSONValue:
    """Return a plain dict/list copy of a frozen JSON value (the inverse of :func:`freeze_mapping`).

    Raises ValueError for a mapping with a key that is not text: JSON would silently rename it.
    """
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        _refuse_other_keys(value)
        return {k: thaw(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(v) for v in value]
    return value


def _refuse_other_keys(value: Mapping[str, JSONValue]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"not a plain JSON value: the key {key!r} is not text")
