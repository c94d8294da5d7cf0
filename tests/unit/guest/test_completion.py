"""Completions come soon, whatever jedi does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from agently_kernel.guest import completion
from agently_kernel.guest.completion import AGAIN_SECONDS, FIRST_SECONDS, Completions

CODE = "catalogue_en"


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    yield InteractiveShell.instance(user_ns={"catalogue_entry": len})
    InteractiveShell.clear_instance()


def texts(completions: Completions) -> list[str]:
    return [item.text for item in completions.find(CODE, len(CODE))]


def test_names_are_found_while_jedi_reads_and_jedi_is_asked_afterwards(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SYNTHETIC: jedi reads until it is told to stop."""
    done = threading.Event()
    monkeypatch.setattr(completion, "_read", lambda: done.wait(30))
    asked: list[bool] = []
    real = type(shell.Completer).completions

    def spy(completer: Any, code: str, cursor: int) -> Any:
        asked.append(completer.use_jedi)
        return real(completer, code, cursor)

    monkeypatch.setattr(type(shell.Completer), "completions", spy)
    completions = Completions(shell.Completer)
    for patience in (FIRST_SECONDS, AGAIN_SECONDS):
        started = time.monotonic()
        assert texts(completions) == ["catalogue_entry"]
        assert time.monotonic() - started < patience + 2
        assert shell.Completer.use_jedi is True
    done.set()
    assert texts(completions) == ["catalogue_entry"]
    assert asked == [False, False, True]


def test_who_wants_no_jedi_gets_none(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_read", lambda: pytest.fail("jedi was started"))
    shell.Completer.use_jedi = False
    assert texts(Completions(shell.Completer)) == ["catalogue_entry"]
    assert shell.Completer.use_jedi is False


def test_without_another_thread_there_are_completions_too(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert texts(Completions(shell.Completer)) == ["catalogue_entry"]
