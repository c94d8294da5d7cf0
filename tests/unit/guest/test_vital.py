"""A cell that replaces what the interpreter itself needs disables itself, not the cells after it."""

from __future__ import annotations

import pytest
from guest_driver import Guest


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("import builtins; builtins.len = None", "len"),
        ("import builtins; builtins.compile = lambda *a, **k: None", "compile"),
        ("import builtins; del builtins.isinstance", "isinstance"),
        ("import builtins; builtins.exec = builtins.eval = None", "exec"),
        ("import builtins; builtins.dict = builtins.str = builtins.type = 0", "dict"),
    ],
)
def test_vital_names_are_put_back_and_the_user_is_told(either: Guest, damage: str, name: str) -> None:
    told = either.run(damage).text("stderr")
    assert "put back" in told and name in told
    assert either.run("len(str(dict(a=isinstance(1, int))))").result() == {"text/plain": "11"}


def test_a_print_of_the_users_own_stays(either: Guest) -> None:
    assert either.run("import builtins; old = print; builtins.print = lambda *a: old('mine', *a)").text("stderr") == ""
    assert either.run("print(1)").text() == "mine 1\n"
