"""Hosts as they are written and meant, and addresses that no name may lead to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.contract.network import HostPattern, normalise_hosts
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.network.addresses import inside_kind
from agently_kernel.network.dial import Grants


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("Example.ORG", "example.org"), ("example.org.", "example.org"), ("example.org:8443", "example.org:8443"),
        ("*.Example.org", "*.example.org"), ("10.0.0.5", "10.0.0.5"), ("[2001:DB8::1]:80", "[2001:db8::1]:80"),
        ("[::1]", "[::1]"), ("*", "*"), ("*:8080", "*:8080"), ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        (" data.example.org ", "data.example.org"), ("localhost", "localhost"), ("a_b.example.org", "a_b.example.org"),
    ],
)
def test_accepted_spellings(written: str, normal: str) -> None:
    assert str(HostPattern.parse(written)) == normal


@pytest.mark.parametrize(
    "written",
    [
        "", ".", "*.org", "*.", "a..b", "-a.org", "a-.org", "bücher.example", "http://example.org", "example.org/x",
        "user@example.org", "example.org:0", "example.org:65536", "example.org:http", "ex ample.org", "127.1", "0x7f.1",
        "2130706433", "0177.0.0.1", "1.2.3.4.5", "::1", "[127.0.0.1]", "[fe80::1%eth0]", "*example.org", "ex*.org",
        "a.*.org", "x" * 64 + ".org", "example\n.org", "example.org\0", "a" * 254,
    ],
)
def test_refused_spellings(written: str) -> None:
    with pytest.raises(ValueError):
        HostPattern.parse(written)


@pytest.mark.parametrize(
    ("grant", "host", "port", "allowed"),
    [
        ("example.org", "example.org", 443, True), ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 8080, False), ("example.org", "www.example.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False), ("example.org", "notexample.org", 443, False),
        ("*.example.org", "www.example.org", 443, True), ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False), ("*.example.org", "evilexample.org", 443, False),
        ("example.org:8443", "example.org", 8443, True), ("example.org:8443", "example.org", 443, False),
        ("10.0.0.5", "10.0.0.5", 80, True), ("10.0.0.5", "10.0.0.6", 80, False),
        ("*", "anything.example", 443, True), ("*", "anything.example", 22, False), ("*", "8.8.8.8", 443, False),
        ("*", "2001:4860:4860::8888", 443, False),
    ],
)
def test_what_a_grant_means(grant: str, host: str, port: int, allowed: bool) -> None:
    assert Grants([grant]).allow(host, port) is allowed


@given(st.text(max_size=40))
def test_whatever_is_accepted_is_in_its_accepted_spelling(text: str) -> None:
    try:
        normal = str(HostPattern.parse(text))
    except ValueError:
        return
    assert str(HostPattern.parse(normal)) == normal
    assert normal.isascii() and normal.isprintable() and " " not in normal and "," not in normal


def test_a_policy_takes_hosts_only_in_their_mode() -> None:
    policy = ExecutionResourcePolicy(network_mode="hosts", network_hosts=("Data.example.org", "data.example.org."))
    assert policy.network_hosts == ("data.example.org",)
    with pytest.raises(ValueError, match="network_mode='hosts'"):
        ExecutionResourcePolicy(network_hosts=("data.example.org",))
    with pytest.raises(ValueError, match="at most 64"):
        normalise_hosts(f"h{number}.example.org" for number in range(65))


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "this machine"), ("127.9.9.9", "this machine"), ("0.0.0.0", "this machine"),
        ("::1", "this machine"), ("::", "this machine"), ("::ffff:127.0.0.1", "this machine"),
        ("::127.0.0.1", "this machine"), ("64:ff9b::7f00:1", "this machine"), ("2002:7f00:1::", "this machine"),
        ("169.254.169.254", "a link-local or metadata address"), ("168.63.129.16", "a link-local or metadata address"),
        ("fd00:ec2::254", "a link-local or metadata address"), ("fe80::1", "a link-local or metadata address"),
        ("::ffff:169.254.169.254", "a link-local or metadata address"), ("100.100.100.200", "a private network"),
        ("10.1.2.3", "a private network"), ("172.31.0.1", "a private network"), ("192.168.1.1", "a private network"),
        ("fc00::1", "a private network"), ("64:ff9b::a01:203", "a private network"),
        ("224.0.0.1", "no ordinary host"), ("255.255.255.255", "no ordinary host"), ("ff02::1", "no ordinary host"),
        ("2001:0:53aa:64c::", "no ordinary host"), ("172.32.0.1", ""), ("1.1.1.1", ""), ("2606:4700::1111", ""),
    ],
)
def test_addresses_that_are_reachable_only_from_here(address: str, kind: str) -> None:
    assert inside_kind(ipaddress.ip_address(address)) == kind
