"""How init starts processes: interpreters (by fork alone) and steps (by fork and exec), and how it ends them."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import sys
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

PIPE_BYTES = 1024 * 1024
PRIVATE_FD = 100
F_SETPIPE_SZ = 1031
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
EXEC_SECONDS = 10.0
_SIGNALS = (
    signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ,
)
"""What a program gets back as it is by default: this process, and Python, handle or ignore these."""


class StartError(Exception):
    """Why a process could not be started, as a sentence."""


class InterpreterEnds(NamedTuple):
    """Init's ends of a new interpreter: its pid, the socket, the read ends of descriptors 1 and 2, the shared
    counter."""

    pid: int
    sock: socket.socket
    out: int
    err: int
    counter: mmap.mmap


class ChildEnds(NamedTuple):
    """What the forked interpreter keeps: the descriptor of its socket, and the counter."""

    sock: int
    counter: mmap.mmap


def prctl(option: int, value: int) -> int:
    """Call prctl(2) with one argument and return its result; -1 where a system has no such call."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(option, value, 0, 0, 0)) if hasattr(libc, "prctl") else -1


def enlarge(fd: int) -> None:
    """Give a pipe 1 MiB where the kernel allows it; harmless for anything else."""
    try:
        fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        pass  # no pipe, or the user's share of pipe memory is used up: the size only matters for speed


def make_pipe() -> Tuple[int, int]:
    """Return a large pipe (read, write) whose read end does not block."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    enlarge(read)
    return read, write


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors, whether they are open or not."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass  # being closed is all that was wanted


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _start_error(error: OSError) -> StartError:
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        reason = "no process could be forked (%s): the limit of processes or memory is reached"
        return StartError(reason % error.strerror)
    return StartError("no process could be started: %s" % error)


def fork_interpreter(abandon: Callable[[], None]) -> Union[InterpreterEnds, ChildEnds]:
    """Fork. Return InterpreterEnds in init, ChildEnds in the child, which holds no other descriptor above 2 then.

    *abandon* is called in the child while init's descriptors are still open, so that no object of init's closes a
    number that is used anew later. The child leads its own session and process group; its descriptors 1 and 2 are
    pipes to init, 0 reads nothing. Raises StartError.
    """
    try:
        ours, theirs = socket.socketpair()
        out, out_w = make_pipe()
        err, err_w = make_pipe()
        counter = mmap.mmap(-1, mmap.PAGESIZE)
        parent = os.getpid()
        pid = os.fork()
    except OSError as error:
        raise _start_error(error)
    if pid == 0:
        _reset_signals()
        os.setsid()
        prctl(PR_SET_DUMPABLE, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # init died before the signal of its death was armed
        abandon()
        os.dup2(out_w, 1)
        os.dup2(err_w, 2)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        channel = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, min(PRIVATE_FD, most // 2))
        for end in (ours, theirs):
            end.close()
        close_all(fd for fd in open_descriptors() if fd > 2 and fd != channel)
        return ChildEnds(channel, counter)
    theirs.close()
    close_all((out_w, err_w))
    ours.setblocking(False)
    return InterpreterEnds(pid, ours, out, err, counter)


def open_descriptors() -> List[int]:
    """Return the numbers of all open descriptors of this process."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return list(range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65536)))


def spawn_step(
    argv: Sequence[str], env: Dict[str, str], cwd: str, stdin: bool, out: Tuple[int, int], err: Tuple[int, int]
) -> Tuple[int, Optional[int]]:
    """Fork and exec *argv* in its own session; return (pid, write end of its standard input or None).

    *out* and *err* are (read, write) pipes; the write ends are closed here in any case. Raises StartError naming what
    failed: the folder, the program, or the limit.
    """
    argv = _with_python(argv, env)
    if os.getpid() == 1 and hasattr(os, "posix_spawn"):
        return _spawn_lightly(argv, env, cwd, stdin, out, err)
    fds: List[int] = [out[1], err[1]]
    try:
        trouble_r, trouble_w = os.pipe()
        fds += [trouble_r, trouble_w]
        source, feed = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), None)
        fds.append(source)
        pid = os.fork()
    except OSError as error:
        close_all(fds)
        raise _start_error(error)
    if pid == 0:
        _exec_step(argv, env, cwd, (source, out[1], err[1]), trouble_w)
    fds.remove(trouble_r)
    close_all(fds)
    try:
        ready, _, _ = select.select([trouble_r], [], [], EXEC_SECONDS)
        told = os.read(trouble_r, 4096) if ready else b""  # empty: exec closed the other end, the program runs
    finally:
        os.close(trouble_r)
    if not told:
        if feed is not None:
            os.set_blocking(feed, False)
        return pid, feed
    os.waitpid(pid, 0)
    if feed is not None:
        os.close(feed)
    raise StartError(told.decode("utf-8", "replace"))


def _spawn_lightly(
    argv: Sequence[str], env: Dict[str, str], cwd: str, stdin: bool, out: Tuple[int, int], err: Tuple[int, int]
) -> Tuple[int, Optional[int]]:
    """Do what ``spawn_step`` does without copying this process first, which costs more than most of a start.

    For the first process of a pid namespace alone: with it everything ends, so no signal of its death need be armed.
    """
    fds: List[int] = [out[1], err[1]]
    feed: Optional[int] = None
    before = os.getcwd()
    what = "the folder %s cannot be entered" % cwd
    try:
        source, feed = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), None)
        fds.append(source)
        os.chdir(cwd)
        what = "the program %s cannot be started" % argv[0]
        ends = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((source, out[1], err[1]))]
        pid = os.posix_spawn(
            _program(argv[0], env), list(argv), env, file_actions=ends, setsid=True, setsigdef=_SIGNALS
        )
    except OSError as error:
        if feed is not None:
            os.close(feed)
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise _start_error(error)
        raise StartError("%s: %s" % (what, error.strerror or error))
    finally:
        close_all(fds)
        os.chdir(before)
    if feed is not None:
        os.set_blocking(feed, False)
    return pid, feed


def _with_python(argv: Sequence[str], env: Dict[str, str]) -> Sequence[str]:
    """Return *argv*, with the interpreter that runs this in place of a ``python3`` that the sandbox does not have.

    Plans name ``python3``; images may have Python under another name, or at a place that is not on the path.
    """
    if argv[0] != "python3" or not sys.executable:
        return argv
    try:
        _program(argv[0], env)
    except FileNotFoundError:
        return [sys.executable, *argv[1:]]
    return argv


def _program(name: str, env: Dict[str, str]) -> str:
    """Return the path of a program that *env* names, as the shell finds it. Raises FileNotFoundError."""
    if "/" in name:
        return name
    for folder in (env.get("PATH") or os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _exec_step(argv: Sequence[str], env: Dict[str, str], cwd: str, ends: Tuple[int, int, int], trouble: int) -> None:
    """In the forked child: never returns."""
    what = "the step could not be prepared"
    try:
        _reset_signals()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for target, fd in enumerate(ends):
            os.dup2(fd, target)
        what = "the folder %s cannot be entered" % cwd
        os.chdir(cwd)
        what = "the program %s cannot be started" % argv[0]
        os.execvpe(argv[0], list(argv), env)
    except BaseException as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        os.write(trouble, ("%s: %s" % (what, reason)).encode("utf-8", "replace")[:4000])
    finally:
        os._exit(127)


def _families() -> Dict[int, Tuple[int, int]]:
    """Return the parent of every visible process, and the leader of its session."""
    found: Dict[int, Tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as stream:
                    fields = stream.read().rpartition(b")")[2].split()
                    found[int(name)] = int(fields[1]), int(fields[3])
            except (OSError, ValueError, IndexError):
                continue  # it ended meanwhile
    return found


def children_of(pid: int) -> Set[int]:
    """Return the pids of the direct children of *pid*; empty where /proc does not tell."""
    try:
        return {child for child, (parent, _) in _families().items() if parent == pid}
    except OSError:
        return set()


def kill_tree(roots: Iterable[int], spare: Iterable[int] = ()) -> None:
    """SIGKILL *roots*, their process groups and sessions where they lead one, and all descendants, until none is left.

    *spare* and what hangs below them stay. Bounded to a number of rounds: a fork bomb is stopped by stopping first.
    """
    wanted, safe = set(roots), set(spare) | {os.getpid()}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for _ in range(16):
            try:
                families = _families()
            except OSError:
                families = {}
            doomed = {pid for pid in wanted - safe}
            grown = True
            while grown:
                more = {pid for pid, of in families.items() if not doomed.isdisjoint(of) and pid not in safe} - doomed
                grown = bool(more)
                doomed |= more
            fresh = doomed - wanted
            wanted |= doomed
            for pid in doomed:
                for kill in (os.killpg, os.kill):
                    try:
                        if kill is os.kill or (pid in families and os.getpgid(pid) == pid):
                            kill(pid, number)
                    except OSError:
                        continue  # gone
            if not fresh:
                break
