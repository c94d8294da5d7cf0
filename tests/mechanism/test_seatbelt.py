"""Seatbelt: the profile as text against containment rules, and the life of its file with a fake policy program.

Everything here but the last test is SYNTHETIC: it shows what would be asked of macOS, not what macOS does.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from provider_support import probe, surroundings

from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.contract.result import ExecutionStatus
from agently_kernel.providers.seatbelt import SeatbeltExecutionResourceProvider
from agently_kernel.providers.seatbelt_profile import SeatbeltGrant, make_profile

POLICY = ExecutionResourcePolicy(isolation="preferred", required_axes=(), network_mode="enabled")


def balanced(text: str) -> bool:
    depth = 0
    for character in re.sub(r'"[^"]*"', "", text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0


def test_synthetic_the_profile_of_one_grant() -> None:
    profile = make_profile(SeatbeltGrant(read=("/opt/work/src",), write=("/opt/work/build", "/opt/work/output")))
    assert profile.parameters == (
        ("ANCESTOR0", "/opt"), ("ANCESTOR1", "/opt/work"), ("READ0", "/opt/work/src"), ("WRITE0", "/opt/work/build"),
        ("WRITE1", "/opt/work/output"),
    )
    lines = profile.text.splitlines()
    assert lines[:2] == ["(version 1)", "(deny default)"]
    assert lines[-6:] == [
        '(allow file-read-metadata (literal (param "ANCESTOR0")) (literal (param "ANCESTOR1")))',
        '(allow file-read* file-map-executable (subpath (param "READ0")))',
        '(allow file-read* file-write* file-map-executable (subpath (param "WRITE0")) (subpath (param "WRITE1")))',
        '(deny file-write* (subpath (param "READ0")))',
        "(deny network*)",
        "(deny file-write-setugid)",
    ]
    assert profile.arguments("/usr/bin/sandbox-exec", "/p")[:3] == ["/usr/bin/sandbox-exec", "-D", "ANCESTOR0=/opt"]
    assert profile.arguments("/usr/bin/sandbox-exec", "/p")[-2:] == ["-f", "/p"]


characters = st.characters(min_codepoint=32, exclude_characters="/\x7f", exclude_categories=["Cs"])
names = st.text(characters, min_size=1, max_size=20)
paths = st.lists(names.filter(lambda n: n not in (".", "..")), min_size=2, max_size=4).map(
    lambda parts: "/agently-no-such/" + "/".join(parts)
)


@given(read=st.lists(paths, max_size=4), write=st.lists(paths, max_size=3))
def test_synthetic_no_path_is_ever_in_the_text_and_only_granted_folders_are_writable(
    read: list[str], write: list[str]
) -> None:
    try:
        profile = make_profile(SeatbeltGrant(read=tuple(read), write=tuple(write)))
    except ConfigurationError as error:
        assert "overlap" in str(error)
        return
    assert balanced(profile.text) and "agently-no-such" not in profile.text
    values = dict(profile.parameters)
    for rule in re.findall(r"\(allow [^\n]*file-write\*[^\n]*", profile.text):
        assert {values[name] for name in re.findall(r'param "(\w+)"', rule)} <= {os.path.realpath(p) for p in write}
    assert "(allow network" not in profile.text and "(allow default" not in profile.text


@pytest.mark.parametrize(
    ("read", "write", "reason"),
    [
        (("/",), (), "too wide"), ((), ("/tmp",), "too wide"), (("relative",), (), "absolute"),
        (("/opt/a\nb",), (), "absolute"), (("/opt/a",), ("/opt/a/b",), "overlap"),
        (("/opt/a/b",), ("/opt/a",), "overlap"),
    ],
)
def test_synthetic_what_would_be_too_much_is_refused(
    read: tuple[str, ...], write: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        make_profile(SeatbeltGrant(read=read, write=write))


def test_synthetic_links_are_resolved_before_they_are_judged(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "root").symlink_to("/")
    profile = make_profile(SeatbeltGrant(read=(str(tmp_path / "link"),), write=()))
    assert ("READ0", os.path.realpath(tmp_path / "real")) in profile.parameters
    with pytest.raises(ConfigurationError, match="too wide"):
        make_profile(SeatbeltGrant(read=(), write=(str(tmp_path / "root"),)))
    with pytest.raises(ConfigurationError, match="overlap"):
        make_profile(SeatbeltGrant(read=(str(tmp_path / "real"),), write=(str(tmp_path / "link"),)))


def fake_provider(tmp_path: Path, body: str) -> SeatbeltExecutionResourceProvider:
    program = tmp_path / "sandbox-exec"
    program.write_text("#!/bin/sh\nwhile [ \"$1\" = -D ]; do shift 2; done\n" + body)
    program.chmod(0o755)
    provider = SeatbeltExecutionResourceProvider()
    provider.policy_program, provider.system = str(program), "darwin"
    return provider


@pytest.mark.skipif(sys.platform == "darwin", reason="the real program is tested there")
async def test_synthetic_the_policy_file_is_there_for_the_program_and_gone_afterwards(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = f'echo "$2" >> {seen}; grep -q "deny default" "$2" || exit 9; shift 2; exec "$@"\n'
    provider = fake_provider(tmp_path, body)
    async with surroundings(provider, {}, tmp_path / "store", POLICY) as place:
        result = await place.cell("print('ran')")
        assert (result.status, result.stdout.text) == (ExecutionStatus.SUCCESS, "ran\n"), result.message
        assert result.facts is not None and result.facts.safety_class.value == "constrained"
        assert result.facts.isolation.process_contained is False
    files = seen.read_text().split()
    assert len(files) == 2  # the probe's and the session's
    assert [Path(file).exists() for file in files] == [False, False]


@pytest.mark.skipif(sys.platform == "darwin", reason="the real program is tested there")
async def test_synthetic_the_policy_file_is_gone_after_a_failed_start(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    provider = fake_provider(tmp_path, f'echo "$2" >> {seen}; echo "no such policy" >&2; exit 65\n')
    found = await probe(provider, {})
    assert not found.available and "no such policy" in found.reason
    (file,) = seen.read_text().split()
    assert not Path(file).exists()


async def test_elsewhere_it_says_where_it_works() -> None:
    found = await probe(SeatbeltExecutionResourceProvider(), {})
    if sys.platform == "darwin":
        assert found.available, found.reason
        assert found.capability is not None and found.capability.isolation.process_contained is False
    else:
        assert not found.available and found.reason.startswith("Seatbelt is part of macOS")
