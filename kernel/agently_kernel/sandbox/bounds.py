"""Bounded text: the head and the tail of a stream are kept, whatever lies between is counted and dropped."""

from __future__ import annotations

import codecs
from collections import OrderedDict, deque

from agently_kernel.contract.result import CapturedStream

_DECODER = codecs.getincrementaldecoder("utf-8")


class BoundedText:
    """Keeps at most *limit* bytes of what is added: the first half and the last half. Never grows beyond that."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        data = data[-self._tail_limit :]
        if self._tail and len(self._tail[-1]) + len(data) <= 4096:
            self._tail[-1] += data  # tiny pieces are joined, so that their number is bounded too
        else:
            self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    def take(self) -> CapturedStream:
        """Return the text kept, with a line in between that counts what was dropped, and forget it.

        Damaged UTF-8 is replaced. What is decoded is let go at once, so that it is not held twice.
        """
        extra = self._tail_bytes - self._tail_limit
        if extra > 0:
            self._tail[0] = self._tail[0][extra:]
            self._tail_bytes -= extra
        dropped = self.total_bytes - len(self._head) - self._tail_bytes
        decoder = _DECODER("replace")
        pieces: list[str] = []
        if dropped:
            cut = _whole_characters(self._head)
            start = _cut_character(self._tail[0])
            self._tail[0] = self._tail[0][start:]
            dropped += len(self._head) - cut + start
            del self._head[cut:]
        pieces.append(decoder.decode(self._head))
        self._head = bytearray()
        if dropped:
            pieces.append(f"{decoder.decode(b'', True)}\n[... {dropped} bytes dropped ...]\n")
        while self._tail:
            pieces.append(decoder.decode(self._tail.popleft()))
        self._tail_bytes = 0
        pieces.append(decoder.decode(b"", True))
        return CapturedStream(text="".join(pieces), total_bytes=self.total_bytes, dropped_bytes=dropped)


def _whole_characters(data: bytearray) -> int:
    """Return the length of *data* without a UTF-8 character that is cut off at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        width = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return len(data) - back if width > back else len(data)
    return len(data)


def _cut_character(data: bytes) -> int:
    """Return how many bytes at the start of *data* are the rest of a UTF-8 character, at most 3."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return start


class StreamDecoders:
    """Incremental UTF-8 decoders, one for each (cell, stream); at most *most* are remembered, the oldest forgotten."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._decoders: OrderedDict[tuple[str, str], codecs.IncrementalDecoder] = OrderedDict()

    def decode(self, cell: str, name: str, data: bytes) -> str:
        """Return the text of the next bytes; a character cut at the end waits for its rest."""
        key = (cell, name)
        decoder = self._decoders.get(key)
        if decoder is None:
            if data.isascii():
                return data.decode("ascii")
            decoder = self._decoders[key] = _DECODER("replace")
            while len(self._decoders) > self._most:
                self._decoders.popitem(last=False)
        return decoder.decode(data)

    def flush(self, cell: str, name: str) -> str:
        """End the stream of a cell: return a replacement character when it ended within a character, else nothing."""
        decoder = self._decoders.pop((cell, name), None)
        return decoder.decode(b"", True) if decoder is not None else ""
