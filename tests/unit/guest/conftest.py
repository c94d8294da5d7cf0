"""Guests for the tests of one module: started once, because a start costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_driver import Guest


@pytest.fixture(scope="module")
def ipython(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with Guest(tmp_path_factory.mktemp("ipython"), mode="ipython", seccomp=True) as guest:
        guest.start()
        yield guest


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with Guest(tmp_path_factory.mktemp("plain"), mode="plain", seccomp=True) as guest:
        guest.start()
        yield guest


@pytest.fixture(scope="module", params=["ipython", "plain"])
def either(request: pytest.FixtureRequest) -> Guest:
    """Both kinds of interpreter, one after the other."""
    guest: Guest = request.getfixturevalue(request.param)
    return guest


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Guest]:
    """A guest of this test alone, with a plain interpreter."""
    with Guest(tmp_path, mode="plain") as guest:
        guest.start()
        yield guest
