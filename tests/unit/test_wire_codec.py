"""The frame codec: round trips, bounds, and everything a hostile peer may send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agently_kernel.guest import wire

_TEXT = st.text(max_size=50)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)
_TABLE = {"note": wire.Message({"text": wire.Field(str, True, 100), "more": wire.Field(dict, False)}, 1000)}


@given(st.lists(st.tuples(st.text(max_size=100), st.binary(max_size=1000)), max_size=8), st.data())
def test_frames_survive_any_cutting(messages: list[tuple[str, bytes]], data: st.DataObject) -> None:
    stream = b"".join(wire.encode({"op": "note", "text": text}, payload) for text, payload in messages)
    decoder = wire.Decoder(_TABLE)
    found: list[tuple[dict[str, Any], bytes]] = []
    while stream:
        size = data.draw(st.integers(1, max(1, len(stream))))
        found += decoder.feed(stream[:size])
        stream = stream[size:]
    assert decoder.pending == 0
    assert [(header["text"], payload) for header, payload in found] == [(wire.scrub(t), p) for t, p in messages]


@given(_JSON)
def test_loads_returns_what_dumps_made(value: Any) -> None:
    assert wire.loads(json.dumps(value).encode()) == wire.scrub(value)


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_garbage_is_refused_or_waited_for_and_never_breaks_the_decoder(data: bytes) -> None:
    try:
        frames = wire.Decoder(_TABLE).feed(data)
    except wire.WireError:
        return
    assert frames == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":NaN}', "NaN"), (b'{"a":Infinity}', "Infinity"), (b'{"a":-Infinity}', "-Infinity"),
        (b'{"a":1e999}', "range of a float"), (b'{"a":1,"a":2}', "repeats a key"),
        (b"[" * 100000 + b"]" * 100000, "nests deeper than 64"), (b"9" * 5000, "integer of 5000 digits"),
        (b'{"a":', "not JSON"), (b"\xff\xfe", "not JSON"),
    ],
)
def test_hostile_json_is_named(text: bytes, message: str) -> None:
    with pytest.raises(wire.WireError, match=message):
        wire.loads(text)


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    assert wire.loads(b'{"\\ud800": ["\\udcff ok"]}') == {"�": ["� ok"]}


@pytest.mark.parametrize(
    ("header", "payload", "message"),
    [
        ({"op": "nothing"}, b"", "unknown op 'nothing'"),
        ({"op": ["note"]}, b"", "unknown op"),
        ({"op": "note"}, b"", "op note lacks text"),
        ({"op": "note", "text": 1}, b"", "text is not str"),
        ({"op": "note", "text": "x" * 101}, b"", "text is too long"),
        ({"op": "note", "text": "x", "extra": 1}, b"", "unknown field 'extra'"),
        ({"op": "note", "text": "x"}, b"y" * 1001, "payload of 1001 bytes; at most 1000"),
    ],
)
def test_headers_outside_the_table_are_named(header: dict[str, Any], payload: bytes, message: str) -> None:
    with pytest.raises(wire.WireError, match=message):
        wire.Decoder(_TABLE).feed(wire.encode(header, payload))


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (b"\x00\xff" * 8, "no frame"),
        (wire.PREFIX.pack(wire.MAGIC, 2, 0, 4, 0), "no frame"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 300 << 20, 0), "more than the protocol allows"),
        (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 0, 10, 300 << 20), "more than the protocol allows"),
    ],
)
def test_lengths_are_bounded_before_they_are_believed(prefix: bytes, message: str) -> None:
    with pytest.raises(wire.WireError, match=message):
        wire.Decoder(_TABLE).feed(prefix)


def test_a_boolean_is_no_number() -> None:
    with pytest.raises(wire.WireError, match="request is not int"):
        wire.check({"op": "ping", "request": True}, 0, wire.TO_INIT)


def test_what_is_too_large_is_not_encoded() -> None:
    with pytest.raises(wire.WireError, match="larger than the protocol allows"):
        wire.encode({"op": "x", "text": "y" * wire.MAX_HEADER})


def test_the_interpreter_cannot_speak_for_init() -> None:
    assert set(wire.FROM_INTERPRETER).isdisjoint(wire.FROM_INIT)
    assert "ready" not in wire.FROM_GUEST


@given(st.dictionaries(_TEXT, _JSON, max_size=3), st.lists(st.binary(max_size=100), max_size=4))
def test_comm_buffers_are_split_where_they_were_joined(content: dict[str, Any], buffers: list[bytes]) -> None:
    head = json.dumps(content).encode()
    sizes = [len(head)] + [len(item) for item in buffers]
    assert wire.split_buffers(sizes, head + b"".join(buffers)) == (wire.scrub(content), buffers)


@pytest.mark.parametrize("sizes", [[3], [-1, 6], [True, 4], [5, "x"], [2, 2]])
def test_buffer_sizes_that_do_not_add_up_are_refused(sizes: list[Any]) -> None:
    with pytest.raises(wire.WireError, match="do not add up"):
        wire.split_buffers(sizes, b"{}xyz")
