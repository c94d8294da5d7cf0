"""The frame codec and the table of messages, shared by both ends of a sandbox's channel.

A frame is ``magic(2) version(1) zero(1) header_length(4) payload_length(4)``, big-endian, then the header (a JSON
object with ``op``) and the payload (raw bytes whose meaning the op gives). Text of cells travels as payload, never as
JSON.

Topology: host <-> init over the sandbox's stdin and stdout; init <-> interpreter over a socket pair that only those two
hold. Init is the only writer to the host, so a dying interpreter cannot leave half a frame there. Both receivers treat
the other side as hostile: every length is bounded before it is believed, every header is checked against the table, and
JSON is refused when it nests too deep, repeats a key, or holds NaN or an infinity.

Standard library only, Python 3.8 and newer: this module is copied into sandboxes.
"""

import json
import re
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

MAGIC = b"\xa7K"
VERSION = 1
PROTOCOL = 1
PREFIX = struct.Struct(">2sBBII")
MAX_HEADER = 256 * 1024
MAX_PAYLOAD = 64 * 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 4 * 1024 * 1024
STREAM_CHUNK = 256 * 1024
NET_WINDOW = 256 * 1024
NET_CONNECTIONS = 64
"""Connections of the relay that are open at a time; more wait in the sandbox's own kernel to be accepted."""
_SLICE = 1024 * 1024
_STRING = re.compile(rb'"[^"]*"?')
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(code for code in range(256) if code not in b"[]{}")


class WireError(Exception):
    """The peer sent something outside the protocol; the message names what."""


class Field(NamedTuple):
    """A header field: its type (``str``, ``int``, ``bool``, ``dict``, ``list``), whether it must be there, its size
    cap."""

    kind: type
    required: bool = True
    most: int = 4096
    choices: Tuple[str, ...] = ()


class Message(NamedTuple):
    """An op: its header fields and the most bytes its payload may have (0: none)."""

    fields: Dict[str, Field]
    payload: int = 0


_S, _N = Field(str), Field(int)
_SO = Field(str, False)
_NAME = Field(str, True, 8, ("stdout", "stderr"))
_AREA = Field(str, True, 8, ("build", "output"))
_LENGTHS = Field(list, False, 1024)
# Connections of the network relay: named by init in rising order. Both directions have a window of NET_WINDOW bytes,
# which ``net_credit`` refills; ``net_end`` ends one direction, ``net_close`` the connection. Later frames are late.
_NET = {
    "net_data": Message({"conn": _N}, STREAM_CHUNK),
    "net_credit": Message({"conn": _N, "bytes": _N}),
    "net_end": Message({"conn": _N}),
    "net_close": Message({"conn": _N}),
}
_COMM = Message(
    {"kind": Field(str, True, 16, ("comm_open", "comm_msg", "comm_close")), "comm_id": Field(str, True, 256),
     "cell": _SO, "target_name": Field(str, False, 256), "buffers": _LENGTHS},
    MAX_PAYLOAD,
)  # payload: JSON {"data": {...}, "metadata": {...}} of length buffers[0], then the binary buffers, lengths buffers[1:]

# host -> guest. `boot` is read by stage1; INIT ops end at init; INTERPRETER ops are relayed by init unchanged.
BOOT = Message(
    {"nonce": Field(str, True, 128), "protocol": _N, "limits": Field(dict), "seccomp": Field(dict),
     "challenge": Field(dict), "interpreter": Field(dict), "superuser": Field(dict, False)},
)
TO_INIT = {
    "boot": BOOT,
    "start": Message({"generation": _N}),  # fork an interpreter; init answers `interpreter` started, then ready
    "interrupt": Message({}),  # SIGINT to the interpreter's process group if a cell runs there, else `stop_idle` to it
    "kill": Message({"what": Field(str, True, 16, ("interpreter", "step")), "step": _SO}),  # SIGKILL, whole group
    "run_step": Message(
        {"step": Field(str, True, 64), "argv": Field(list, True, 257), "env": Field(dict), "cwd": _S,
         "needs": Field(bool, False)},
        MAX_PAYLOAD,
    ),  # payload: standard input of the step; needs: its Python asks for files that it misses
    "step_need_reply": Message({"step": Field(str, True, 64), "ok": Field(bool)}),
    "fetch": Message({"request": _N, "area": _AREA, "path": _S, "max_bytes": _N}),
    "list": Message({"request": _N, "area": _AREA, "max_files": _N}),  # answered by `listing`
    "put": Message({"request": _N, "root": Field(str, True, 8, ("source", "input", "build")), "path": _S}, MAX_PAYLOAD),
    "copy": Message({"request": _N, "source": _S, "path": _S}),  # build/<path> gets what src/<source> holds: `stored`
    "link": Message({"request": _N, "path": _S}),  # to input/<path>; answered by `stored`: ok with a reason is hidden
    "tools": Message({"request": _N, "argvs": Field(list, True, 16)}),  # run each argv briefly; answered by `tools`
    "ping": Message({"request": _N}),
    "net_listen": Message({"request": _N, "port": _N, "env": Field(dict)}),  # on loopback; answered by `stored`
    **_NET,
    # milliseconds for exit handlers, then init ends, or stays to give out files
    "shutdown": Message({"grace": _N, "stay": Field(bool, False)}),
}
TO_INTERPRETER = {
    "execute": Message(
        {"cell": Field(str, True, 256), "path": _S, "digest": Field(str, True, 80), "options": Field(dict, True, 65536)}
    ),  # digest: of the entrypoint file; options: silent, store_history, allow_stdin, user_expressions,
    # execution_count, request, subshell (its id, for a cell that runs beside the main thread's)
    "stop": Message({"cell": Field(str, True, 256)}),  # stop a cell of a subshell, which no signal reaches
    "subshell": Message({"id": Field(str, True, 256), "open": Field(bool)}),  # make it, or end it after its cells
    "complete": Message({"request": _N, "cursor_pos": _N}, MAX_PAYLOAD),  # payload of these four: the code, UTF-8
    "inspect": Message({"request": _N, "cursor_pos": _N, "detail_level": _N}, MAX_PAYLOAD),
    "is_complete": Message({"request": _N}, MAX_PAYLOAD),
    "history": Message({"request": _N, "query": Field(dict)}),
    "input_reply": Message({"cell": Field(str, True, 256)}, 1024 * 1024),  # payload: the line, UTF-8
    "input_refused": Message({"cell": Field(str, True, 256), "reason": _S}),
    "need_reply": Message({"cell": Field(str, True, 256), "path": _S, "ok": Field(bool)}),
    "give_up": Message({"request": _N}),  # nobody waits for the answer of a complete, inspect… any more: end it
    "comm": _COMM,
    "environ": Message({"set": Field(dict, True, 256)}),  # variables for what starts, and is imported, from now on
    "stop_idle": Message({}),  # end what code of the user does, if no cell runs
    "exit": Message({}),  # run exit handlers and end
}
# guest -> host.
FROM_INIT = {
    "hello": Message({"protocol": _N, "nonce": Field(str, True, 128), "python": _S, "pid": _N, "stage1": Field(dict)}),
    "probe": Message({"nonce": Field(str, True, 128)}, 256 * 1024),  # payload: JSON list of inside observations
    "interpreter": Message(
        {"generation": _N, "state": Field(str, True, 16, ("started", "ready", "exited")), "pid": Field(int, False),
         "mode": Field(str, False, 16, ("ipython", "plain")), "exit_code": Field(int, False),
         "signal": Field(int, False), "reason": _SO, "info": Field(dict, False)}
    ),
    "stream": Message({"name": _NAME, "cell": _SO, "step": _SO}, STREAM_CHUNK),  # payload: raw bytes
    "step": Message(
        {"step": Field(str, True, 64), "state": Field(str, True, 8, ("started", "exited", "failed")),
         "exit_code": Field(int, False), "signal": Field(int, False), "milliseconds": Field(int, False), "reason": _SO}
    ),
    "file": Message(
        {"request": _N, "state": Field(str, True, 8, ("data", "end", "refused")), "reason": _SO}, STREAM_CHUNK
    ),
    "listing": Message({"request": _N}, 4 * 1024 * 1024),  # payload: JSON list of {"path","size"}
    "stored": Message({"request": _N, "ok": Field(bool), "reason": _SO}),
    "tools": Message({"request": _N}, 256 * 1024),  # payload: JSON list of {"argv0","available","output"}
    "pong": Message({"request": _N}),
    # one at a time, as `need`; answered by step_need_reply
    "step_need": Message({"step": Field(str, True, 64), "path": _S, "writes": Field(bool, False)}),
    "net_open": Message({"conn": _N}),
    **_NET,
    "violation": Message({"reason": _S}),  # the interpreter broke the protocol; init has killed it
}
FROM_INTERPRETER = {
    "text": Message({"name": _NAME, "cell": Field(str, True, 256)}, STREAM_CHUNK),  # text that belongs to a named cell
    "display": Message(
        {"cell": Field(str, True, 256), "display_id": Field(str, False, 256),
         "kind": Field(str, True, 24, ("display_data", "update_display_data", "execute_result"))},
        MAX_PAYLOAD,
    ),  # payload: JSON {"data": {...}, "metadata": {...}}; binary data already base64 text
    "clear": Message({"cell": Field(str, True, 256), "wait": Field(bool)}),
    "error": Message({"cell": Field(str, True, 256)}, MAX_PAYLOAD),  # payload: JSON {"ename","evalue","traceback"}
    "done": Message(
        {"cell": Field(str, True, 256), "status": Field(str, True, 8, ("ok", "error"))}, MAX_PAYLOAD
    ),  # payload: JSON {"user_expressions": {...}, "payload": [...], "execution_count": n}
    "reply": Message({"request": _N}, MAX_PAYLOAD),  # payload: JSON content of the Jupyter reply
    "input": Message({"cell": Field(str, True, 256), "prompt": Field(str, True, 65536), "password": Field(bool)}),
    # a file that is missing, or one that the cell is about to write to (or make); answered by need_reply
    "need": Message({"cell": Field(str, True, 256), "path": _S, "writes": Field(bool, False)}),
    "comm": _COMM,
}
# interpreter -> init only, never relayed: the interpreter can take requests (init tells the host with `interpreter`);
# a Stop reaches this cell from now on.
READY = Message({"mode": Field(str, True, 16, ("ipython", "plain")), "info": Field(dict)})
BUSY = Message({"cell": Field(str, True, 256)})
# Between those two every frame is numbered from 1 without a gap (`n`, taken off by init), because the interpreter
# counts on init's word of how far it has come: a frame that a cell writes by itself would shift text to another cell.
INSIDE = {
    op: Message({**message.fields, "n": _N}, message.payload)
    for op, message in {**FROM_INTERPRETER, "ready": READY, "busy": BUSY}.items()
}
TO_GUEST = {**TO_INIT, **TO_INTERPRETER}
_DONE = FROM_INTERPRETER["done"]
# `unchanged` is init's word: a `list` of output would be answered now as it was answered last.
FROM_GUEST = {
    **FROM_INIT, **FROM_INTERPRETER, "done": Message({**_DONE.fields, "unchanged": Field(bool, False)}, _DONE.payload),
}


def encode(header: Dict[str, Any], payload: bytes = b"") -> bytes:
    """Return one frame. Raises WireError when header or payload is larger than any receiver takes."""
    head = _dumps(header).encode("ascii")
    if len(head) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise WireError("a frame of %d+%d bytes is larger than the protocol allows" % (len(head), len(payload)))
    return PREFIX.pack(MAGIC, VERSION, 0, len(head), len(payload)) + head + payload


def _no_constant(name: str) -> Any:
    raise WireError("JSON holds %s" % name)


def _no_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise WireError("JSON repeats a key")
    return result


def _check_shape(data: bytes) -> None:
    """Refuse deep nesting and too many values by byte operations, before json.loads could exhaust stack or memory."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH and data.count(b",") <= MAX_VALUES:
        return
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    brackets, values, at, inside = [], 0, 0, False
    while at < len(plain):  # in slices, because a hostile text of quotes alone would make a huge list of pieces
        piece = (b'"' if inside else b"") + plain[at : at + _SLICE]
        inside = piece.count(b'"') % 2 == 1
        outside = _STRING.sub(b"", piece)
        values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if values > MAX_VALUES:
            raise WireError("JSON holds more than %d values" % MAX_VALUES)
        brackets.append(outside.translate(_SQUARE, _NO_BRACKET))
        at += _SLICE
    nest = b"".join(brackets)
    for _ in range(MAX_DEPTH):  # each round takes away the innermost level
        if not nest:
            return
        nest = nest.replace(b"[]", b"")
    if nest:
        raise WireError("JSON nests deeper than %d" % MAX_DEPTH)


def _small_int(text: str) -> int:
    if len(text) > 400:
        raise WireError("JSON holds an integer of %d digits" % len(text))
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise WireError("JSON holds a number beyond the range of a float")
    return value


# Bound once: making an encoder for each frame costs more than the frame, and user code may replace json's functions.
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_loads = json.JSONDecoder(
    parse_constant=_no_constant, object_pairs_hook=_no_duplicates, parse_int=_small_int, parse_float=_finite
).decode


def loads(data: bytes) -> Any:
    """Decode hostile JSON. Raises WireError for anything but plain, shallow, finite JSON without repeated keys.

    Lone surrogates are replaced by U+FFFD, so that the result can always be encoded as UTF-8.
    """
    try:
        _check_shape(data)
        text = data.decode("utf-8")
        value = _loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError("not JSON: %s" % str(error)[:200])
    return scrub(value) if "\\u" in text else value


def scrub(value: Any) -> Any:
    """Return *value* with lone surrogates in every string (keys too) replaced by U+FFFD."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
            return value
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {scrub(k): scrub(v) for k, v in value.items()}
    if isinstance(value, list):
        return [scrub(v) for v in value]
    return value


def check(header: Dict[str, Any], payload_size: int, table: Dict[str, Message]) -> str:
    """Check a header against *table* and return its op. Raises WireError naming the op and the field."""
    op = header.get("op")
    message = table.get(op) if isinstance(op, str) else None
    if message is None:
        raise WireError("unknown op %.60r" % (op,))
    assert isinstance(op, str)
    if payload_size > message.payload:
        raise WireError("op %s has a payload of %d bytes; at most %d are allowed" % (op, payload_size, message.payload))
    for name, field in message.fields.items():
        value = header.get(name)
        if value is None:
            if field.required:
                raise WireError("op %s lacks %s" % (op, name))
            continue
        if not isinstance(value, field.kind) or (field.kind is int and isinstance(value, bool)):
            raise WireError("op %s: %s is not %s" % (op, name, field.kind.__name__))
        if isinstance(value, (str, list, dict)) and len(value) > field.most:
            raise WireError("op %s: %s is too long" % (op, name))
        if isinstance(value, int) and not -(2**53) < value < 2**53:
            raise WireError("op %s: %s is out of range" % (op, name))
        if field.choices and value not in field.choices:
            raise WireError("op %s: %s has no such value %.40r" % (op, name, value))
    for name in header:
        if name != "op" and name not in message.fields:
            raise WireError("op %s has an unknown field %.60r" % (op, name))
    return op


def split_buffers(lengths: Optional[List[Any]], payload: bytes) -> Tuple[Dict[str, Any], List[bytes]]:
    """Split a comm payload into its JSON part and its binary buffers. Raises WireError when lengths do not add up."""
    sizes = lengths if lengths else [len(payload)]
    plain = all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes)
    if not plain or sum(sizes) != len(payload):
        raise WireError("the buffers of a comm message do not add up")
    content = loads(payload[: sizes[0]]) if sizes[0] else {}
    if not isinstance(content, dict):
        raise WireError("the content of a comm message is not an object")
    buffers, at = [], sizes[0]
    for size in sizes[1:]:
        buffers.append(payload[at : at + size])
        at += size
    return content, buffers


class Decoder:
    """Cuts a byte stream into checked frames, keyed to one table. Bounded: never holds more than one frame and a
    read."""

    def __init__(self, table: Dict[str, Message], max_payload: int = MAX_PAYLOAD) -> None:
        self._table = table
        self._max_payload = max_payload
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes held: of a frame that has begun and not ended, and of frames that ``most`` left uncut."""
        return len(self._buffer)

    def feed(self, data: bytes, most: int = 0) -> List[Tuple[Dict[str, Any], bytes]]:
        """Take bytes, return the complete frames as (header, payload). Raises WireError; the decoder is then dead.

        With *most* at most so many frames are cut; ``feed(b"", most)`` goes on from there.
        """
        self._buffer += data
        frames: List[Tuple[Dict[str, Any], bytes]] = []
        at, size = 0, len(self._buffer)
        view = self._buffer
        while size - at >= PREFIX.size and (not most or len(frames) < most):
            magic, version, zero, head_size, payload_size = PREFIX.unpack_from(view, at)
            if magic != MAGIC or version != VERSION or zero:
                raise WireError("bytes on the channel that are no frame: %r" % bytes(view[at : at + 16]))
            if head_size > MAX_HEADER or payload_size > self._max_payload:
                sizes = (head_size, payload_size)
                raise WireError("a frame announces %d+%d bytes, more than the protocol allows" % sizes)
            end = at + PREFIX.size + head_size + payload_size
            if end > size:
                break
            start = at + PREFIX.size
            header = loads(bytes(view[start : start + head_size]))
            if not isinstance(header, dict):
                raise WireError("a frame's header is not an object")
            check(header, payload_size, self._table)
            frames.append((header, bytes(view[start + head_size : end])))
            at = end
        if at:
            del self._buffer[:at]
        return frames
