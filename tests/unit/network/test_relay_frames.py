"""The host's end of a relay against guests that keep to nothing: bounded, never out of step, never stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_origin import origin

from agently_kernel.guest import wire
from agently_kernel.network.relay import MAX_CONNECTIONS, WINDOW, NetworkRelay


class ScriptedGuest:
    """Keeps what the host sends; its windows are never refilled unless a test does so."""

    def __init__(self, *hosts: str) -> None:
        self.relay = NetworkRelay(hosts)
        self.sent: list[tuple[dict[str, Any], bytes]] = []
        self.relay.attach(self._take)

    async def _take(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        wire.check(dict(header), len(payload), wire.TO_INIT)
        self.sent.append((dict(header), payload))

    async def says(self, op: str, conn: int, payload: bytes = b"", **fields: int) -> None:
        header = {"op": op, "conn": conn, **fields}
        wire.check(header, len(payload), wire.FROM_INIT)
        waiting = self.relay.on_frame(op, header, payload)
        if waiting is not None:
            await waiting

    async def gets(self, op: str, conn: int, seconds: float = 5.0) -> bytes:
        """Wait until the host has sent *op* for *conn*; return all data that it sent there."""
        async def arrived() -> None:
            while not any(h["op"] == op and h["conn"] == conn for h, _ in self.sent):
                await asyncio.sleep(0.005)

        await asyncio.wait_for(arrived(), seconds)
        return b"".join(data for h, data in self.sent if h["op"] == "net_data" and h["conn"] == conn)


async def test_a_request_is_served_and_closed() -> None:
    async with origin() as server:
        guest = ScriptedGuest(f"127.0.0.1:{server.port}")
        await guest.says("net_open", 1)
        await guest.says("net_data", 1, b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % server.port)
        assert (await guest.gets("net_close", 1)).endswith(b"pong")
        await guest.says("net_data", 1, b"late")
        await guest.says("net_close", 1)
        await guest.relay.aclose()


async def test_no_more_is_sent_than_the_guest_has_room_for() -> None:
    size = 3 * WINDOW
    async with origin(answer=b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * size) as server:
        guest = ScriptedGuest(f"127.0.0.1:{server.port}")
        await guest.says("net_open", 1)
        await guest.says("net_data", 1, b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\nGET\r\n\r\n" % server.port)
        await asyncio.sleep(0.3)
        got = await guest.gets("net_data", 1)
        assert len(got) == WINDOW
        while len(got) < size:
            await guest.says("net_credit", 1, bytes=WINDOW)
            await asyncio.sleep(0.1)
            before, got = len(got), await guest.gets("net_data", 1)
            assert len(got) - before <= WINDOW
        await guest.relay.aclose()


@pytest.mark.parametrize(
    "frames",
    [
        [("net_data", 1, b"x", {})], [("net_open", 2, b"", {}), ("net_open", 1, b"", {})],
        [("net_open", 1, b"", {}), ("net_open", 1, b"", {})], [("net_open", 0, b"", {})], [("net_open", -1, b"", {})],
        [("net_open", 1, b"", {}), ("net_credit", 1, b"", {"bytes": 1})],
        [("net_open", 1, b"", {}), ("net_credit", 1, b"", {"bytes": -1})],
        [("net_open", 1, b"", {}), ("net_data", 1, b"x" * WINDOW, {}), ("net_data", 1, b"x", {})],
        [("net_open", 1, b"", {}), ("net_end", 1, b"", {}), ("net_data", 1, b"x", {})],
        [("net_open", 1, b"", {}), ("net_close", 3, b"", {})],
    ],
)
async def test_frames_that_no_honest_guest_sends_are_a_violation(frames: list[Any]) -> None:
    guest = ScriptedGuest()
    with pytest.raises(wire.WireError):
        for op, conn, payload, fields in frames:
            await guest.says(op, conn, payload, **fields)
    await guest.relay.aclose()


async def test_connections_beyond_the_bound_are_closed_at_once() -> None:
    guest = ScriptedGuest()
    for number in range(1, MAX_CONNECTIONS + 11):
        await guest.says("net_open", number)
    assert [h["conn"] for h, _ in guest.sent if h["op"] == "net_close"] == list(
        range(MAX_CONNECTIONS + 1, MAX_CONNECTIONS + 11)
    )
    await guest.relay.aclose()
    await guest.says("net_data", 1, b"late")


async def test_a_refused_host_is_told_and_remembered_hosts_have_an_end() -> None:
    told: list[str] = []
    attempts: list[str] = []
    relay = NetworkRelay((), on_attempt=lambda attempt: attempts.append(attempt.host))
    relay.on_refused = told.append
    guest = ScriptedGuest()
    guest.relay = relay
    relay.attach(guest._take)
    for number in range(1, 301):
        await guest.says("net_open", number)
        await guest.says("net_data", number, b"CONNECT h%d.example:443 HTTP/1.1\r\n\r\n" % number)
        await guest.gets("net_close", number)
    assert told[0] == "h1.example:443 is not granted to this sandbox"
    assert len(attempts) == 256
    await relay.aclose()


OPS = st.sampled_from(["net_open", "net_data", "net_credit", "net_end", "net_close"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(OPS, st.integers(-1, 5), st.binary(max_size=80), st.integers(-5, 300_000)), max_size=30))
async def test_any_frames_end_in_service_or_a_violation(frames: list[tuple[str, int, bytes, int]]) -> None:
    guest = ScriptedGuest("granted.example")
    try:
        for op, conn, payload, count in frames:
            fields = {"bytes": count} if op == "net_credit" else {}
            await guest.says(op, conn, payload if op == "net_data" else b"", **fields)
            await asyncio.sleep(0)
    except wire.WireError:
        pass
    await asyncio.wait_for(guest.relay.aclose(), 5)
