"""Keeping configured values out of texts that others wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from agently_kernel.contract.base import JSONValue
from agently_kernel.contract.errors import AgentlyKernelError

HIDDEN = "‹hidden›"
_SECRET_KEY = re.compile(
    r"pass|secret|token|credential|auth|api_?key|private|cookie|^env|environment|header", re.IGNORECASE
)
_SHORTEST = 4


def _leaves(value: JSONValue, secret: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, secret or _SECRET_KEY.search(str(key)) is not None)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, secret)
    elif isinstance(value, str) and len(value) >= _SHORTEST:
        yield value, secret


def describe_error(error: BaseException, configs: Iterable[Mapping[str, JSONValue]], *, most: int = 600) -> str:
    """Return *error* as one line for people, at most *most* characters.

    An error of this product keeps its words, except values under keys that name a secret or an environment. Of any
    other exception every configured text is hidden, because its author did not write it to be shown.
    """
    ours = isinstance(error, AgentlyKernelError)
    text = " ".join(str(error).split())
    hidden = {leaf for config in configs for leaf, secret in _leaves(config, False) if secret or not ours}
    for leaf in sorted(hidden, key=len, reverse=True):
        for form in {leaf, repr(leaf)[1:-1], " ".join(leaf.split())}:
            text = text.replace(form, HIDDEN) if form else text
    if not ours:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= most else text[: most - 1] + "…"
