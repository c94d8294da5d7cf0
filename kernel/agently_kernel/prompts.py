"""The front end's input box: one question at a time, never blocking the kernel's loop.

The base kernel's way blocks the whole loop while a person types; here the reply is awaited, so output, comms, timers
and Stop go on. A prompt of a guest is shown as it is, except that one which resembles the kernel's own questions is
marked; its message also says in its metadata that it comes from a sandbox.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq
import zmq.asyncio

SANDBOX_MARK = "[from the sandbox] "


def guest_prompt(text: str) -> str:
    """Return the prompt of a guest, cleaned before, as it may be shown: marked when it could pass for our own."""
    letters = "".join(ch for ch in unicodedata.normalize("NFKD", text).casefold() if ch.isalnum())
    own = any(word in letters for word in ("agently", "approval", "sandbox"))
    own = own or ("allow" in letters and ("type" in letters or "session" in letters))
    return SANDBOX_MARK + text if own else text


class InputBox:
    """Sends ``input_request`` and awaits the reply. Lives on the main loop's thread.

    ``socket`` is the kernel's stdin ROUTER; ``session`` signs and checks messages.
    """

    def __init__(self, session: Any, socket: zmq.Socket[bytes]) -> None:
        self._session = session
        self._raw = socket
        self._shadow: zmq.asyncio.Socket | None = None
        self._lock = asyncio.Lock()
        self._withdrawn: deque[str] = deque(maxlen=50)

    async def ask(
        self,
        prompt: str,
        *,
        password: bool,
        parent: Mapping[str, Any],
        ident: Sequence[bytes] | bytes,
        from_guest: bool,
        before: Callable[[], None] = lambda: None,
    ) -> str:
        """Return the line a person typed. Raises EOFError for the end-of-file character.

        ``before`` runs just before the question is sent (to flush output). Cancel the task to withdraw the question.
        """
        async with self._lock:
            if self._shadow is None:
                self._shadow = zmq.asyncio.Socket.shadow(self._raw.underlying)
            before()
            self._drop_stale()
            asked = self._session.send(
                self._raw,
                "input_request",
                {"prompt": prompt, "password": password},
                parent=dict(parent),
                ident=ident,
                metadata={"agently": {"from": "sandbox" if from_guest else "kernel"}},
            )
            try:
                line = await self._reply(self._shadow)
            except asyncio.CancelledError:
                self._withdrawn.append(str(asked["header"]["msg_id"]))
                raise
            if line == "\x04":
                raise EOFError("the input box was closed with end of file")
            return line

    async def _reply(self, socket: zmq.asyncio.Socket) -> str:
        """Return the next line typed for a question that was not withdrawn. Front ends that name none are believed."""
        while True:
            frames = await socket.recv_multipart()
            try:
                _, parts = self._session.feed_identities(frames)
                reply = self._session.deserialize(parts)
            except Exception:  # noqa: S112  # an unsigned or damaged message is not an answer
                continue
            if reply["header"].get("msg_type") != "input_reply":
                continue
            if (reply.get("parent_header") or {}).get("msg_id") in self._withdrawn:
                continue
            value = reply["content"].get("value", "")
            return value if isinstance(value, str) else ""

    def _drop_stale(self) -> None:
        """Throw away answers to questions that were withdrawn."""
        while True:
            try:
                self._raw.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return

    def close(self) -> None:
        """Let go of the socket, which stays open for its owner."""
        if self._shadow is not None:
            self._shadow.close()
            self._shadow = None

