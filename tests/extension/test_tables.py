"""Tables: both forms, and nothing in them that could run or deceive."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from agently_exec.tables import Report, Table, amount, clean, events_table, facts_report, width
from agently_kernel.contract.isolation import Evidence, IsolationFacts, LimitFact, SafetyClass, SandboxFacts
from agently_kernel.contract.resource import ProviderSelection, SkipReason


def test_columns_are_aligned_also_with_wide_characters() -> None:
    table = Table("T", ("a", "b"), (("数据", "1"), ("x", "2")), "note")
    assert table.plain() == "T\n  a     b\n  数据  1\n  x     2\nnote"
    assert width("数据") == 4


def test_a_table_without_heads_has_no_empty_line() -> None:
    assert Table("T", ("", ""), (("a", "1"),)).plain() == "T\n  a  1"
    assert "<thead>" not in Table("T", ("", ""), (("a", "1"),)).html()


@given(st.text(max_size=400))
def test_whatever_stands_in_a_cell_is_escaped_and_one_line(text: str) -> None:
    html = Table("T", ("h",), ((text,),)).html()
    assert set(re.findall(r"<\s*/?\s*([a-z]+)", html)) <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    shown = clean(text)
    assert "\n" not in shown
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    assert len(shown) <= 300


def test_amounts_have_units() -> None:
    assert [amount(n) for n in (3, 2048, 5 * 2**20, 2**31)] == ["3 bytes", "2 KiB", "5 MiB", "2 GiB"]
    assert amount(512, "processes") == "512"
    assert amount(1.5, "cpu") == "1.5"


def facts() -> SandboxFacts:
    held = Evidence(subject="process_contained", check="own <pid>", value=True, source="inside", observed_at=1.0)
    lost = Evidence(subject="syscalls_restricted", check="filter", value=False, source="outside", observed_at=1.0)
    return SandboxFacts(
        provider_id="synthetic", safety_class=SafetyClass.CONSTRAINED,
        isolation=IsolationFacts.from_evidence((held, lost)), network="none", observed_at=1.0,
        limits=(LimitFact(name="memory", limit=2.0**30, mechanism="rlimit", observed=True),
                LimitFact(name="cpu", limit=None, mechanism="none")),
        mechanism={"version": "1 <b>"},
    )


def test_facts_show_axes_with_evidence_limits_and_who_was_skipped() -> None:
    skipped = SkipReason(provider_id="docker", index=0, code="unavailable", message="no daemon", remedy="start it")
    report = facts_report(facts(), ProviderSelection(provider_id="synthetic", skipped=(skipped,)))
    plain = report.plain()
    assert "provider             synthetic (constrained)" in plain
    assert "✓ holds                  process_contained             own <pid> (inside)" in plain
    assert "✗ does not hold          syscalls_restricted           filter (outside, does not hold)" in plain
    assert "? could not be observed  host_filesystem_restricted    none" in plain
    assert "? could not be observed  network (none): blocked       none" in plain
    assert "memory  1 GiB     rlimit   ✓ in force" in plain
    assert "cpu     no limit" in plain
    assert "docker    unavailable  no daemon      start it" in plain
    assert "own &lt;pid&gt;" in report.html()
    assert "<b>" not in report.html()


def test_facts_without_a_sandbox_say_so() -> None:
    assert facts_report(None).plain() == "Facts: no sandbox is open\nRun a cell; it opens one."


def test_no_events_is_a_sentence() -> None:
    assert events_table(()).plain() == "Events\nnone yet"


def test_a_report_of_text_keeps_its_lines() -> None:
    assert Report(text="a <b>\n c").plain() == "a <b>\n c"
    assert Report(text="a <b>\n c").html() == "<pre>a &lt;b&gt;\n c</pre>"


def test_a_report_as_a_widget_has_a_page_for_each_table() -> None:
    report = Report((Table("First: one", ("a",), (("<b>1</b>",),)), Table("Second", note="empty")))
    tab = report.widget()
    assert tab.titles == ("First", "Second")
    assert "&lt;b&gt;1&lt;/b&gt;" in tab.children[0].value
    assert set(report.bundle()) == {"text/plain", "text/html"}
