"""Relative paths: one accepted spelling, and nothing that could lead out, collide or deceive."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.contract.paths import (
    has_deceptive_characters,
    normalise_output_path,
    normalise_relative_path,
    refuse_collisions,
)

_PARTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=8)


@given(
    st.lists(st.one_of(_PARTS, st.sampled_from(["..", ".", "", "\\", "a\x00", "\u202e", " "])), max_size=5).map(
        "/".join
    )
)
def test_accepted_paths_are_stable_and_stay_inside(text):
    try:
        path = normalise_relative_path(text)
    except ValueError:
        return
    assert normalise_relative_path(path) == path == unicodedata.normalize("NFC", text)
    assert not path.startswith("/") and "\\" not in path and not has_deceptive_characters(path)
    assert all(part not in ("", ".", "..") for part in path.split("/"))
    assert len(path.encode()) <= 4096


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "empty"),
        (" a", "begins or ends with a blank"),
        ("a ", "blank"),
        ("/a", "absolute"),
        ("a//b", "empty, '.'"),
        ("a/../b", "'..' component"),
        ("./a", "'..' component"),
        ("a/", "component"),
        ("a\\b", "backslash"),
        ("a\nb", "control"),
        ("a\x00", "control"),
        ("x\u202etxt", "direction-changing"),
        ("\ud800", "control"),
        (".agently/x", "reserved"),
        (".AGENTLY", "reserved"),
        ("n" * 256, "longer than 255 bytes"),
        ("é" * 128, "longer than 255 bytes"),
        ("a/" * 2050 + "a", "longer than 4096 bytes"),
        (b"a", "must be text, not bytes"),
    ],
)
def test_refused_paths_name_the_rule(path, words):
    with pytest.raises(ValueError, match="input file") as caught:
        normalise_relative_path(path, what="input file")
    assert words in str(caught.value)


def test_decomposed_letters_become_composed():
    assert normalise_relative_path("e\u0301/x") == "é/x"


@pytest.mark.parametrize("path", ["output", "output/", "out/x", "x", "Output/x", "output/.agently/x", "output/../x"])
def test_outputs_lie_under_output(path):
    with pytest.raises(ValueError):
        normalise_output_path(path)


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "A"), ("a", "a/b"), ("x/y/z", "X/y"), ("straße", "STRASSE")])
def test_collisions(paths):
    with pytest.raises(ValueError, match="bundle file"):
        refuse_collisions(paths, what="bundle file")
    with pytest.raises(ValueError, match="bundle file"):
        refuse_collisions(tuple(reversed(paths)), what="bundle file")


@given(st.lists(st.from_regex(r"[a-c](/[a-c]){0,2}", fullmatch=True), max_size=6))
def test_collision_free_paths_can_all_be_made(paths):
    try:
        refuse_collisions(paths, what="file")
    except ValueError:
        pairs = [(one, two) for i, one in enumerate(paths) for two in paths[:i] + paths[i + 1 :]]
        assert any(one == two or one.startswith(two + "/") for one, two in pairs)
        return
    assert len(set(paths)) == len(paths)
    assert not any(one.startswith(two + "/") for one in paths for two in paths)
