"""The proxy over real TCP: what it passes on, what it refuses, and that nothing of a guest's gets it out of step."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_origin import origin, proxy

from agently_kernel.network.http_head import MAX_HEAD, BadRequest, parse_head
from agently_kernel.network.proxy import Timing


def target(port: int) -> bytes:
    return b"127.0.0.1:%d" % port


async def test_a_request_is_passed_on_with_its_body_and_without_what_is_for_the_proxy() -> None:
    async with origin() as server, proxy([f"127.0.0.1:{server.port}"]) as served:
        answer = await served.ask(
            b"POST http://" + target(server.port) + b"/a?b=c HTTP/1.1\r\nHost: other.example\r\nX-Own: 1\r\n"
            b"Connection: x-hop, keep-alive\r\nX-Hop: 1\r\nProxy-Authorization: Basic c2VjcmV0\r\nUpgrade: h2c\r\n"
            b"Content-Length: 5\r\n\r\nhelloGET http://smuggled/ HTTP/1.1\r\n\r\n"
        )
    assert answer.endswith(b"\r\n\r\npong")
    head, _, body = bytes(server.seen[0]).partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /a?b=c HTTP/1.1", b"host: " + target(server.port), b"x-own: 1", b"content-length: 5",
        b"connection: close",
    ]
    assert body == b"hello"
    assert [(item.status, item.host) for item in served.attempts] == [("connected", "127.0.0.1")]


async def test_a_chunked_body_is_read_and_written_anew() -> None:
    async with origin() as server, proxy([f"127.0.0.1:{server.port}"]) as served:
        await served.ask(
            b"POST http://" + target(server.port) + b"/ HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n"
            b"5;ext=1\r\nhello\r\n3\r\nyou\r\n0\r\nTrailer: x\r\n\r\n"
        )
    assert bytes(server.seen[0]).endswith(
        b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n"
    )


async def test_a_tunnel_carries_bytes_both_ways_and_their_ends() -> None:
    async with origin(answer=b"\x00\xffback" * 100_000) as server, proxy([f"127.0.0.1:{server.port}"]) as served:
        answer = await served.ask(b"CONNECT " + target(server.port) + b" HTTP/1.1\r\n\r\n\x16\x03\r\n\r\n", end=True)
    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n" + b"\x00\xffback" * 100_000
    assert bytes(server.seen[0]) == b"\x16\x03\r\n\r\n"


@pytest.mark.parametrize(
    "request_line",
    [b"CONNECT not-granted.example:443 HTTP/1.1", b"GET http://not-granted.example/ HTTP/1.1",
     b"CONNECT granted.example:22 HTTP/1.1", b"CONNECT 93.184.216.34:443 HTTP/1.1", b"CONNECT [::1]:443 HTTP/1.1",
     b"CONNECT sub.granted.example:443 HTTP/1.1", b"GET http://granted.example.not-granted.example/ HTTP/1.1"],
)
async def test_what_is_not_granted_is_refused_before_anything_is_looked_up(request_line: bytes) -> None:
    async def lookup(name: str, port: int) -> list[str]:
        raise AssertionError("nothing was to be looked up")

    async with proxy(["granted.example"], lookup=lookup) as served:
        answer = await served.ask(request_line + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 Forbidden: ")
    assert b"is not granted to this sandbox" in answer
    assert [item.status for item in served.attempts] == ["refused"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: granted.example", b"GET https://granted.example/ HTTP/1.1",
        b"GET http://user@granted.example/ HTTP/1.1", b"GET http://granted.example:99999/ HTTP/1.1",
        b"GET  http://granted.example/ HTTP/1.1", b"GET http://granted.example/ HTTP/2.0",
        b"CONNECT granted.example HTTP/1.1",
        b"CONNECT 0x7f.1:443 HTTP/1.1", b"CONNECT 2130706433:443 HTTP/1.1", b"CONNECT 127.1:443 HTTP/1.1",
        b"POST http://granted.example/ HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        b"POST http://granted.example/ HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6",
        b"POST http://granted.example/ HTTP/1.1\r\nContent-Length: 5, 5",
        b"POST http://granted.example/ HTTP/1.1\r\nContent-Length: +5",
        b"POST http://granted.example/ HTTP/1.1\r\nContent-Length: 0x5",
        b"POST http://granted.example/ HTTP/1.1\r\nTransfer-Encoding: chunked, identity",
        b"POST http://granted.example/ HTTP/1.1\r\nTransfer-Encoding: xchunked",
        b"POST http://granted.example/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"POST http://granted.example/ HTTP/1.0\r\nTransfer-Encoding: chunked",
        b"POST http://granted.example/ HTTP/1.1\r\nTransfer-Encoding : chunked",
        b"POST http://granted.example/ HTTP/1.1\r\nX: a\r\n folded: b",
        b"POST http://granted.example/ HTTP/1.1\r\nX: a\nTransfer-Encoding: chunked",
        b"POST http://granted.example/ HTTP/1.1\r\nX: a\rb", b"POST http://granted.example/ HTTP/1.1\r\nX: a\0b",
        b"POST http://granted.example/ HTTP/1.1\r\n: nameless", b"POST http://granted.example/ HTTP/1.1\r\nno colon",
        b"G\xc3\x84T http://granted.example/ HTTP/1.1", b"", b"\x16\x03\x01\x02\x00\x01",
        b"GET http://granted.example/ HTTP/1.1\r\n" + b"\r\n".join(b"X: %d" % n for n in range(200)),
    ],
)
def test_what_could_be_understood_in_two_ways_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_head(head)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_no_bytes_are_anything_but_a_request_or_a_refusal(data: bytes) -> None:
    try:
        request = parse_head(data)
    except BadRequest:
        return
    assert request.host and 0 < request.port < 65536


async def test_the_relay_answers_its_self_test_only() -> None:
    async with proxy([]) as served:
        assert (await served.ask(b"GET http://relay.agently.invalid/ HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\nproof\n")
        assert b"403" in await served.ask(b"GET http://other.agently.invalid/ HTTP/1.1\r\n\r\n")
    assert [item.host for item in served.attempts] == ["other.agently.invalid"]


# -- names and addresses ----------------------------------------------------------------------------------------------


async def test_a_name_is_looked_up_once_and_exactly_that_address_is_connected_to() -> None:
    answers = iter((["127.0.0.1"], ["127.0.0.99"]))  # as a rebinding name server gives them
    asked: list[str] = []

    async def lookup(name: str, port: int) -> list[str]:
        asked.append(name)
        return next(answers)

    async with origin() as server:
        hosts = [f"granted.example:{server.port}", f"127.0.0.1:{server.port}"]
        async with proxy(hosts, lookup=lookup) as served:
            answer = await served.ask(b"GET http://granted.example:%d/ HTTP/1.1\r\n\r\n" % server.port)
    assert answer.endswith(b"pong")
    assert asked == ["granted.example"]
    assert b"host: granted.example:%d" % server.port in bytes(server.seen[0])


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "169.254.169.254", "10.0.0.1", "fd00::1", "fe80::1%lo", "::ffff:127.0.0.1", "0.0.0.0"],
)
async def test_a_granted_name_cannot_lead_inside(address: str) -> None:
    async def lookup(name: str, port: int) -> list[str]:
        return [address]

    async with origin() as server, proxy([f"granted.example:{server.port}", "*"], lookup=lookup) as served:
        answer = await served.ask(b"CONNECT granted.example:%d HTTP/1.1\r\n\r\n" % server.port)
    assert answer.startswith(b"HTTP/1.1 403 Forbidden: granted.example:")
    assert b"has to be granted as an address of its own" in answer
    assert server.seen == []


async def test_an_address_of_this_machine_is_inside_whatever_its_network() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            own = probe.getsockname()[0]
        except OSError:
            own = "127.0.0.1"  # a machine without a network: its loopback is all that it has

    async def lookup(name: str, port: int) -> list[str]:
        return [own]

    async with proxy(["granted.example"], lookup=lookup) as served:
        assert (await served.ask(b"CONNECT granted.example:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403")


async def test_a_granted_host_that_cannot_be_reached_is_told_apart() -> None:
    async def nothing(name: str, port: int) -> list[str]:
        raise OSError("no such name")

    async with proxy(["granted.example"], lookup=nothing) as served:
        assert (await served.ask(b"CONNECT granted.example:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, and nobody listens
        port = held.getsockname()[1]
        async with proxy([f"127.0.0.1:{port}"]) as served:
            answer = await served.ask(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % port)
    assert answer.startswith(b"HTTP/1.1 502")
    assert served.attempts[0].status == "unreachable"


async def test_a_redirect_is_the_clients_to_follow_and_leads_nowhere_else() -> None:
    moved = b"HTTP/1.1 302 Found\r\nlocation: http://not-granted.example/\r\ncontent-length: 0\r\n\r\n"
    async with origin(answer=moved) as server, proxy([f"127.0.0.1:{server.port}"]) as served:
        first = await served.ask(b"GET http://" + target(server.port) + b"/ HTTP/1.1\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 302")
        assert (await served.ask(b"GET http://not-granted.example/ HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403")


async def test_what_is_granted_can_be_taken_back() -> None:
    async with origin() as server, proxy([f"127.0.0.1:{server.port}"]) as served:
        request = b"GET http://" + target(server.port) + b"/ HTTP/1.1\r\n\r\n"
        assert (await served.ask(request)).endswith(b"pong")
        served.grants.set(())
        assert (await served.ask(request)).startswith(b"HTTP/1.1 403")


# -- patience and bounds ----------------------------------------------------------------------------------------------


async def test_a_head_that_trickles_is_given_up() -> None:
    async with proxy(["granted.example"], timing=Timing(head=0.3, idle=5)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        started = time.monotonic()

        async def trickle() -> None:
            for _ in range(100):
                writer.write(b"G")
                await asyncio.sleep(0.02)

        task = asyncio.ensure_future(trickle())
        answer = await asyncio.wait_for(reader.read(-1), 5)
        assert answer.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - started < 3
        task.cancel()
        writer.close()


async def test_a_huge_head_is_refused_at_its_bound() -> None:
    async with proxy(["granted.example"]) as served:
        answer = await served.ask(b"GET http://granted.example/ HTTP/1.1\r\nX: " + b"a" * (2 * MAX_HEAD))
    assert answer.startswith(b"HTTP/1.1 431")


async def test_a_silent_tunnel_is_closed() -> None:
    async with origin() as server, proxy([f"127.0.0.1:{server.port}"], timing=Timing(head=1, idle=0.3)) as served:
        started = time.monotonic()
        answer = await served.ask(b"CONNECT " + target(server.port) + b" HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert 0.2 < time.monotonic() - started < 3


async def test_a_thousand_connections_are_all_served() -> None:
    async with origin() as server, proxy([f"127.0.0.1:{server.port}"], timing=Timing(head=30, idle=30)) as served:
        gate = asyncio.Semaphore(200)

        async def one() -> bool:
            async with gate:
                request = b"GET http://" + target(server.port) + b"/ HTTP/1.1\r\n\r\n"
                return (await served.ask(request, seconds=60)).endswith(b"pong")

        assert all(await asyncio.gather(*(one() for _ in range(1000))))


@pytest.mark.parametrize(
    "body",
    [b"5\r\nhelloXX3\r\n", b"zz\r\n", b"-1\r\n", b"ffffffffffffffff\r\n", b"5\r\nhel", b"5 5\r\nhello\r\n0\r\n\r\n"],
)
async def test_a_body_that_breaks_its_own_rules_ends_the_connection(body: bytes) -> None:
    async with origin(answer=b"") as server, proxy([f"127.0.0.1:{server.port}"]) as served:
        await served.ask(
            b"POST http://" + target(server.port) + b"/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body, end=True
        )
        assert not bytes(server.seen[0]).endswith(b"0\r\n\r\n")
