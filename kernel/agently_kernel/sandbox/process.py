"""A SandboxProcess made of a child process with three pipes, for every provider that starts a local program.

``subprocess.Popen`` with pipes of our own instead of ``asyncio.create_subprocess_exec``: the end of the process is then
known from a process descriptor (pidfd) at once, where asyncio in some Python versions waits for the end of the pipes,
which a grandchild may hold open for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from agently_kernel.contract.errors import SandboxLaunchError

READER_LIMIT = 256 * 1024
"""Half the bytes that are read ahead: little, because thousands of small messages fit into them."""
PIPE_SIZE = 1024 * 1024


class PipedProcess:
    """A running child with asyncio streams. Made by :func:`spawn_process`; close it with :meth:`close`."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        streams: tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader],
        transports: Sequence[asyncio.BaseTransport],
        *,
        group: bool,
    ) -> None:
        self.stdin, self.stdout, self.stderr = streams
        self._popen = popen
        self._transports = transports
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = -1
        self._watch()

    @property
    def pid(self) -> int:
        """The child's process id on the host."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative signal number, or None while it lives."""
        return self._ended.result() if self._ended.done() and not self._ended.cancelled() else None

    async def wait(self) -> int:
        """Return the exit code once the process has ended, whoever still holds its pipes."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Send SIGKILL to the child (and to its process group when it has one of its own); harmless when it is gone."""
        if self._ended.done() or self._popen.returncode is not None:
            return  # reaped: the number may belong to somebody else by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._group:
                os.killpg(self._popen.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._popen.kill()

    def close(self) -> None:
        """Kill the child and close the pipes. Idempotent. Call it from ``Sandbox.close``, then await :meth:`wait`."""
        self.kill()
        for transport in self._transports:
            transport.close()

    def _watch(self) -> None:
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # an old kernel, or no descriptors left: the thread below does it
                self._pidfd = os.pidfd_open(self._popen.pid)
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._on_pidfd)
        else:
            threading.Thread(target=self._wait_in_thread, name="sandbox-process-wait", daemon=True).start()

    def _on_pidfd(self) -> None:
        code = self._popen.poll()
        if code is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
            self._set_ended(code)

    def _wait_in_thread(self) -> None:
        code = self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile: nobody waits any more
            self._loop.call_soon_threadsafe(self._set_ended, code)

    def _set_ended(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)


async def spawn_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
) -> PipedProcess:
    """Start *argv* (program first) in a session of its own with exactly *env*, and return it with three pipes.

    *pass_fds* are inherited besides them. The parent-death signal that a mechanism arms follows the *thread* that
    spawned, which is the thread of the running event loop: a sandbox ends with that thread at the latest, so a loop
    that owns sandboxes must not run in a thread that ends before them. Raises SandboxLaunchError when the program
    cannot be started.
    """
    loop = asyncio.get_running_loop()
    group = os.name == "posix"
    try:
        # Blocks until the program has been executed, about a millisecond, as asyncio's own form does too.
        popen = subprocess.Popen(  # noqa: ASYNC220
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env), cwd=cwd,
            pass_fds=tuple(pass_fds), close_fds=True, start_new_session=group, bufsize=0,
        )
    except (OSError, ValueError) as error:
        raise SandboxLaunchError(
            f"{argv[0]} could not be started: {error}. Check that it is installed and may be executed.",
            details={"remedy": f"install {argv[0]} or correct its path in the provider's settings"},
        ) from error
    transports: list[asyncio.BaseTransport] = []
    try:
        assert popen.stdin is not None and popen.stdout is not None and popen.stderr is not None
        for pipe in (popen.stdin, popen.stdout):
            _enlarge(pipe)
        # StreamReaderProtocol is the public protocol with flow control; its own reader stays unused for the input pipe.
        writing = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        stdin_transport, _ = await loop.connect_write_pipe(lambda: writing, popen.stdin)
        transports.append(stdin_transport)
        stdin = asyncio.StreamWriter(stdin_transport, writing, None, loop)
        readers = []
        for pipe in (popen.stdout, popen.stderr):
            reader = asyncio.StreamReader(limit=READER_LIMIT)
            read_transport, _ = await loop.connect_read_pipe(_protocol_of(reader), pipe)
            transports.append(read_transport)
            readers.append(reader)
        return PipedProcess(popen, (stdin, readers[0], readers[1]), transports, group=group)
    except BaseException:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(popen.pid, signal.SIGKILL)  # a mechanism may have forked already
        popen.kill()
        popen.wait()  # killed just now: this does not block
        for transport in transports:
            transport.close()
        for stream in (popen.stdin, popen.stdout, popen.stderr):
            if stream is not None:
                stream.close()
        raise


def _protocol_of(reader: asyncio.StreamReader) -> type[asyncio.StreamReaderProtocol]:
    return lambda: asyncio.StreamReaderProtocol(reader)  # type: ignore[return-value]


def _enlarge(pipe: IO[bytes]) -> None:
    """Ask for a large pipe, so that bulk output needs few wake-ups; where it is refused the pipe works all the same."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe.fileno(), 1031, PIPE_SIZE)  # F_SETPIPE_SZ; fcntl names it only since Python 3.10
