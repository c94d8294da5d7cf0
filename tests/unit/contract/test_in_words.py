"""Values of reports in words."""

from __future__ import annotations

import pytest

from agently_kernel.contract.words import in_words


@pytest.mark.parametrize(("value", "said"), [
    (True, "yes"), (False, "no"), (None, "—"), (3, "3"), ("text", "text"), ((), "none"), (["a", True], "a, yes"),
    ({"no_new_privs": True, "rlimits": ["nofile", "core"]}, "no new privs yes, rlimits nofile, core"),
])
def test_no_value_is_shown_as_code(value: object, said: str) -> None:
    assert in_words(value) == said
