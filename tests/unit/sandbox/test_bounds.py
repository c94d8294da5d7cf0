from __future__ import annotations

import tracemalloc
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agently_kernel.sandbox.bounds import BoundedText, StreamDecoders


@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(4, 200))
def test_ascii_head_and_tail_are_exact(pieces: list[bytes], limit: int) -> None:
    pieces = [bytes(b & 0x7F for b in piece) for piece in pieces]
    whole = b"".join(pieces)
    bounded = BoundedText(limit)
    for piece in pieces:
        bounded.add(piece)
    captured = bounded.take()
    assert captured.total_bytes == len(whole)
    if len(whole) <= limit:
        assert captured.text == whole.decode() and not captured.truncated
    else:
        dropped = len(whole) - limit
        head, tail = whole[: limit // 2].decode(), whole[-(limit - limit // 2) :].decode()
        assert captured.text == f"{head}\n[... {dropped} bytes dropped ...]\n{tail}"
        assert captured.dropped_bytes == dropped


@given(st.text(max_size=300), st.integers(4, 120), st.integers(1, 7))
def test_no_character_is_damaged_by_the_cut(text: str, limit: int, size: int) -> None:
    data = text.encode("utf-8", "replace")
    text = data.decode()
    bounded = BoundedText(limit)
    for at in range(0, len(data), size):
        bounded.add(data[at : at + size])
    captured = bounded.take()
    head, marker, tail = captured.text.partition(f"\n[... {captured.dropped_bytes} bytes dropped ...]\n")
    if captured.truncated:
        assert marker and text.startswith(head) and text.endswith(tail)
        assert len(head.encode()) + len(tail.encode()) + captured.dropped_bytes == len(data)
    else:
        assert captured.text == text


def test_memory_is_bounded_for_tiny_and_for_large_pieces() -> None:
    for size, count in ((1, 300_000), (65536, 500)):
        bounded = BoundedText(50_000)
        tracemalloc.start()
        for _ in range(count):
            bounded.add(b"x" * size)
        used, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < 200_000 and peak < 400_000
        assert bounded.take().total_bytes == size * count


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_decoding_does_not_depend_on_how_the_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    decoders = StreamDecoders()
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    text = "".join(decoders.decode("c", "stdout", data[a:b]) for a, b in pairwise(marks))
    assert text + decoders.flush("c", "stdout") == data.decode("utf-8", "replace")


def test_streams_and_cells_do_not_mix_and_old_ones_are_forgotten() -> None:
    decoders = StreamDecoders(most=2)
    assert decoders.decode("a", "stdout", b"\xc3") == ""
    assert decoders.decode("a", "stderr", b"\xa9") == "�"
    assert decoders.decode("a", "stdout", b"\xa9") == "é"
    for cell in ("b", "c", "d"):
        assert decoders.decode(cell, "stdout", b"\xc3") == ""
    assert decoders.decode("b", "stdout", b"\xa9") == "�"
    assert decoders.decode("d", "stdout", b"\xa9") == "é"
