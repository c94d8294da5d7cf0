"""Collected by the plugin: the contract tests of the provider that ``--agently-provider`` names."""

from __future__ import annotations

import json

import pytest

from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.registry import ProviderRegistry
from agently_kernel.testing.provider_contract import ProviderContract


class TestProvider(ProviderContract):
    """The provider named on the command line."""

    @pytest.fixture(autouse=True)
    def _named(self, pytestconfig: pytest.Config) -> None:
        self.name = str(pytestconfig.getoption("--agently-provider"))
        self.config = json.loads(pytestconfig.getoption("--agently-provider-config"))

    def make_provider(self) -> ExecutionResourceProvider:
        """Return the registered provider."""
        registry = ProviderRegistry()
        provider = registry.get(self.name)
        if provider is None:
            pytest.fail(f"no provider is called {self.name!r}; there are {', '.join(registry.ids())}")
        return provider
