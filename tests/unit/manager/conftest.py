"""Fixtures of the manager's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest_asyncio
from synthetic_manager_provider import Managed  # type: ignore[import-not-found]


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Callable[..., Managed]]:
    """Make managers that are closed at the end."""
    made: list[Managed] = []

    def build(*providers: Any, **options: Any) -> Managed:
        made.append(Managed(*providers, **options))
        return made[-1]

    yield build
    for manager in made:
        await manager.aclose()
