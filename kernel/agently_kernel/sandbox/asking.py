"""Asking a program of the host a short question (its version), whatever it does: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.uninterrupted import uninterrupted

ASK_SECONDS = 5.0
ASK_BYTES = 64 * 1024
_SETTLE = 0.2
AnswerT = TypeVar("AnswerT")


class ProgramAnswer(Frozen):
    """What a program said: exit code (negative: a signal), standard output and standard error."""

    returncode: int
    stdout: str
    stderr: str


def ask_program(
    argv: Sequence[str], *, env: Mapping[str, str], seconds: float = ASK_SECONDS, most: int = ASK_BYTES
) -> ProgramAnswer:
    """Run *argv* with nothing to read and return its answer. Blocks, for at most *seconds* and a moment more.

    What it left running is ended too, as far as it stayed in its process group. Raises SandboxLaunchError when it
    cannot be started, writes more than *most* bytes, or does not end in time.
    """
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env),
            start_new_session=os.name == "posix", bufsize=0,
        )
    except (OSError, ValueError) as error:
        raise SandboxLaunchError(f"{argv[0]} could not be started: {error}.") from error
    with process, contextlib.ExitStack() as stack:
        stack.callback(_end, process)
        return _listen(process, argv, seconds, most)


async def in_thread(ask: Callable[[], AnswerT]) -> AnswerT:
    """Return what *ask*, which asks a program, returns; off the event loop. A cancellation waits for the end of it, so
    that no process is left then."""
    return await uninterrupted(asyncio.to_thread(ask))


def _listen(process: subprocess.Popen[bytes], argv: Sequence[str], seconds: float, most: int) -> ProgramAnswer:
    asked, deadline = " ".join(argv), time.monotonic() + seconds
    kept = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr) if stream is not None}
    parts = list(kept.values())
    ended_at: float | None = None
    with selectors.DefaultSelector() as selector:
        for descriptor in kept:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() or process.poll() is None:
            now = time.monotonic()
            if process.poll() is not None:
                ended_at = ended_at or now
                if now > ended_at + _SETTLE:  # somebody else holds its pipes
                    break
            if now > deadline:
                raise SandboxLaunchError(f"`{asked}` did not end within {seconds:g} s and was ended.")
            for key, _ in selector.select(min(0.05, deadline - now + 0.001)):
                data = os.read(key.fd, 16 * 1024)
                kept[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                if sum(map(len, parts)) > most:
                    raise SandboxLaunchError(f"`{asked}` wrote more than {most // 1024} KiB and was ended.")
            if not selector.get_map() and process.poll() is None:
                time.sleep(0.005)
    out, err = (bytes(part).decode("utf-8", "replace") for part in parts)
    return ProgramAnswer(returncode=process.wait(), stdout=out, stderr=err)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it and its process group; the number is still its own, because nobody has been told of its end yet."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
