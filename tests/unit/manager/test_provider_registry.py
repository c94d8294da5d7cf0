"""Providers by entry point: loaded when asked for, failures as reasons, ours first."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from synthetic_manager_provider import (  # type: ignore[import-not-found]
    Managed,
    SyntheticProvider,
    wanted,
)

from agently_kernel.contract.errors import ExecutionResourceUnavailable
from agently_kernel.registry import DEFAULT_ORDER, GROUP, ProviderRegistry


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SYNTHETIC distribution with entry points of every kind of trouble."""
    package = tmp_path / "site"
    info = package / "synthetic_outside-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: synthetic-outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\n"
        "zz_good = synthetic_outside:Good\nzz_broken = synthetic_outside_broken:X\n"
        "zz_missing = synthetic_outside_none:X\n"
        "zz_liar = synthetic_outside:Liar\nbubblewrap = synthetic_outside:Good\n"
    )
    (package / "synthetic_outside.py").write_text(
        "from synthetic_manager_provider import SyntheticProvider\n"
        "class Good(SyntheticProvider):\n    def __init__(self): super().__init__('zz_good')\n"
        "class Liar(SyntheticProvider):\n    def __init__(self): super().__init__('bubblewrap')\n"
    )
    (package / "synthetic_outside_broken.py").write_text("raise RuntimeError('hunter2')\n")
    monkeypatch.syspath_prepend(str(package))
    importlib.invalidate_caches()
    yield package
    for name in ("synthetic_outside", "synthetic_outside_broken"):
        sys.modules.pop(name, None)


def test_nothing_is_imported_before_it_is_asked_for(installed):
    registry = ProviderRegistry()
    assert {"zz_good", "zz_broken", "zz_missing", "zz_liar", "bubblewrap"} <= set(registry.ids())
    assert "synthetic_outside" not in sys.modules
    provider = registry.get("zz_good")
    assert provider.provider_id == "zz_good" and registry.get("zz_good") is provider
    assert registry.get("nowhere") is None


@pytest.mark.parametrize(
    ("name", "reason", "remedy"),
    [
        ("zz_broken", "could not be imported from synthetic_outside_broken:X: RuntimeError", "repair or uninstall"),
        ("zz_missing", "needs the module 'synthetic_outside_none'", "install the module 'synthetic_outside_none'"),
        ("zz_liar", "calls itself 'bubblewrap'", "repair or uninstall"),
    ],
)
async def test_what_cannot_be_imported_is_an_unavailable_candidate(installed, name, reason, remedy):
    manager = Managed()
    manager.registry = manager._opener.registry = ProviderRegistry()
    with pytest.raises(ExecutionResourceUnavailable) as caught:
        await manager.async_ensure(wanted(provider_candidates=[name]))
    (skipped,) = caught.value.details["selection"]["skipped"]
    assert skipped["code"] == "unavailable" and reason in skipped["message"] and remedy in skipped["remedy"]
    assert "hunter2" not in str(caught.value)


def test_nobody_replaces_one_of_ours_by_installing_a_package(installed):
    entry = ProviderRegistry()._entry_points()["bubblewrap"]
    assert entry.value == "agently_kernel.providers.bubblewrap:BubblewrapExecutionResourceProvider"


def test_the_default_order_is_registered_then_ours_then_others_by_name(installed):
    registry = ProviderRegistry()
    mine = SyntheticProvider("mine")
    registry.register(mine)
    ids = registry.ids()
    assert ids[:2] == ("mine", "bubblewrap")
    assert ids[-4:] == ("zz_broken", "zz_good", "zz_liar", "zz_missing")
    ours = [name for name in ids if name in DEFAULT_ORDER]
    assert ours == sorted(ours, key=DEFAULT_ORDER.index)
    with pytest.raises(ValueError, match="'zz_good' is registered already"):
        registry.register(SyntheticProvider("zz_good"))
