"""A panel service for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from panel_support import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.service.close()
