"""The shipped contract tests, run for the providers of this machine; a missing mechanism fails with its remedy."""

from __future__ import annotations

import sys

import pytest

from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.providers.bubblewrap import BubblewrapExecutionResourceProvider
from agently_kernel.testing.provider_contract import ProviderContract


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap works on Linux only")
class TestBubblewrap(ProviderContract):
    """As the user who runs the tests."""

    def make_provider(self) -> ExecutionResourceProvider:
        return BubblewrapExecutionResourceProvider()
