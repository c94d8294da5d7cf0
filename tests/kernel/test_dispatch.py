"""Which of a Stop and a cell was sent first, as far as dates of messages can tell."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from agently_kernel.dispatch import _was_sent_after


def at(seconds: float | None) -> dict[str, Any]:
    return {} if seconds is None else {"date": datetime.now(timezone.utc) + timedelta(seconds=seconds)}


@pytest.mark.parametrize(
    ("cell", "stop", "after"),
    [
        (-1.0, -2.0, True), (-2.0, -1.0, False),
        (3.0, -1.0, False), (30.0, 20.0, False),  # a clock that is fast says nothing
        (None, -1.0, False), (-1.0, None, False),
    ],
)
def test_only_a_date_that_can_be_believed_keeps_a_stop_from_a_cell(
    cell: float | None, stop: float | None, after: bool
) -> None:
    assert _was_sent_after(at(cell), at(stop)) is after


def test_a_date_without_a_zone_says_nothing() -> None:
    assert not _was_sent_after({"date": datetime.now()}, at(-5))
