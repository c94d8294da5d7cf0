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

    def captured(self) -> CapturedStream:
        """Return the text kept, with a line in between that counts what was dropped; damaged UTF-8 is replaced."""
        tail = b"".join(self._tail)[-self._tail_limit :]
        dropped = self.total_bytes - len(self._head) - len(tail)
        if not dropped:
            text = (bytes(self._head) + tail).decode("utf-8", "replace")
            return CapturedStream(text=text, total_bytes=self.total_bytes)
        head = bytes(self._head)
        cut = _whole_characters(head)
        start = 0
        while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
            start += 1
        dropped += len(head) - cut + start
        text = (
            head[:cut].decode("utf-8", "replace")
            + f"\n[... {dropped} bytes dropped ...]\n"
            + tail[start:].decode("utf-8", "replace")
        )
        return CapturedStream(text=text, total_bytes=self.total_bytes, dropped_bytes=dropped)


def _whole_characters(data: bytes) -> int:
    """Return the length of *data* without a UTF-8 character that is cut off at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        width = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return len(data) - back if width > back else len(data)
    return len(data)


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
