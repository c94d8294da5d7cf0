"""The provider that the author's guide shows passes the contract tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from provider_support import concluded, probe

from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.testing.provider_contract import ProviderContract

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "filtered_provider.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the example's filter exists on Linux only")


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("filtered_provider", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestExampleContract(ProviderContract):
    """All of the contract."""

    def make_provider(self) -> ExecutionResourceProvider:
        provider: ExecutionResourceProvider = example().FilteredProvider()
        return provider


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 100


async def test_it_claims_only_what_it_does() -> None:
    found = await probe(example().FilteredProvider(), {})
    assert found.capability is not None, found.reason
    axes = concluded(found.capability.isolation)
    assert (axes["syscalls_restricted"], axes["process_contained"], axes["host_filesystem_restricted"]) == (
        True, False, False,
    )
