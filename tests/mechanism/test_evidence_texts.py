"""Every sentence of real evidence is known to the panel, so that it can be said in the reader's language."""

from __future__ import annotations

import re
from pathlib import Path

from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.doctor import examine
from agently_kernel.registry import ProviderRegistry

TEXTS = Path(__file__).resolve().parents[2] / "labextension" / "src" / "kerneltexts.ts"
NEUTRAL = re.compile(r"[A-Z0-9_]*|[0-9a-f]{16}|[\w./()\- ,]*(eth|lo|tun|tap|sit|docker|/)[\w./()\- ,]*")
"""Names of errors, numbers and paths: the same in every language."""


def rules(name: str) -> list[re.Pattern[str]]:
    """Return the patterns of one table of the panel's source; what it uses of regular expressions is Python's too."""
    table = TEXTS.read_text().split(f"const {name}: Rule[] = [")[1].split("\n];")[0]
    found = [re.compile(text.replace("\\/", "/"), re.DOTALL) for text in re.findall(r"^  \[/(.*)/s, ", table, re.M)]
    assert found
    return found


def unknown(texts: set[str], table: str) -> list[str]:
    return sorted(text for text in texts if not any(rule.match(text) for rule in rules(table)))


async def test_the_panel_has_words_for_what_real_providers_observe() -> None:
    anything = ExecutionResourcePolicy(isolation="none", unsafe_fallback=True, trusted_local_authorized=True)
    report = await examine(ProviderRegistry(), policy=anything)
    usable = {item.provider_id: item for item in report.providers if item.available}
    assert {"bubblewrap", "trusted_local"} <= set(usable)  # what holds, and what does not
    checks = {evidence.check for item in usable.values() for evidence in item.evidence}
    details = {evidence.detail for item in usable.values() for evidence in item.evidence}
    assert len(checks) > 50
    assert unknown(checks, "CHECKS") == []
    assert unknown({text for text in details if not NEUTRAL.fullmatch(text)}, "DETAILS") == []

