"""The policy text of macOS's Seatbelt: a pure function from resolved folders to a profile and its parameters.

Everything is denied first. No path is ever written into the text: paths travel as parameters, so that no name can break
out of its quotes, and no rule comes from anywhere but here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import ConfigurationError

_PREAMBLE = """(version 1)
(deny default)
(allow process-fork)
(allow process-exec)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow sysctl-read)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow ipc-posix-sem)
(allow file-read-metadata (literal "/"))
(allow file-read* file-write-data (literal "/dev/null") (literal "/dev/zero"))
(allow file-read* (literal "/dev/random") (literal "/dev/urandom"))
(allow file-read* file-map-executable
  (subpath "/usr/lib") (subpath "/usr/share") (subpath "/usr/bin") (subpath "/bin") (subpath "/System/Library")
  (subpath "/System/Volumes/Preboot/Cryptexes") (literal "/private/etc/localtime") (subpath "/private/var/db/timezone"))
"""
_CLOSING = """(deny network*)
(deny file-write-setugid)
"""
_FORBIDDEN = ("/", "/private", "/private/tmp", "/private/var", "/Users", "/System", "/Library", "/usr", "/etc", "/var",
              "/tmp", "/home", "/root")  # noqa: S108


class SeatbeltGrant(Frozen):
    """Folders as a sandbox may use them. ``read`` and ``write`` may not contain each other."""

    read: tuple[str, ...]
    write: tuple[str, ...]


class SeatbeltProfile(Frozen):
    """The text, and the values of its parameters."""

    text: str
    parameters: tuple[tuple[str, str], ...]

    def arguments(self, program: str, file: str) -> list[str]:
        """Return the command that runs what follows it under this profile, whose text lies in *file*."""
        defined = [word for name, value in self.parameters for word in ("-D", f"{name}={value}")]
        return [program, *defined, "-f", file]


def _resolved(path: str) -> str:
    if not os.path.isabs(path) or any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise ConfigurationError(f"The folder {path!r} cannot be shown: it must be absolute and plain.")
    real = os.path.realpath(path)
    if real in _FORBIDDEN or path in _FORBIDDEN:
        raise ConfigurationError(f"The folder {real} is too wide for a sandbox; name what is needed in it.")
    return real


def _contains(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _ancestors(paths: Iterable[str]) -> list[str]:
    found: set[str] = set()
    for path in paths:
        while (path := os.path.dirname(path)) != "/":
            found.add(path)
    return sorted(found)


def make_profile(grant: SeatbeltGrant) -> SeatbeltProfile:
    """Return the profile for *grant*; every path is resolved first.

    Raises ConfigurationError for a relative or system-wide path, and for a writable folder that overlaps a readable
    one.
    """
    read = sorted({_resolved(path) for path in grant.read})
    write = sorted({_resolved(path) for path in grant.write})
    for writable in write:
        for readable in read:
            if _contains(writable, readable) or _contains(readable, writable):
                raise ConfigurationError(
                    f"The writable folder {writable} and the read-only folder {readable} overlap; nothing was started."
                )
    parameters: list[tuple[str, str]] = []

    def subjects(kind: str, prefix: str, paths: Sequence[str]) -> str:
        words = []
        for number, path in enumerate(paths):
            parameters.append((f"{prefix}{number}", path))
            words.append(f'({kind} (param "{prefix}{number}"))')
        return " ".join(words)

    lines = [_PREAMBLE.rstrip()]
    if ancestors := _ancestors((*read, *write)):
        lines.append(f"(allow file-read-metadata {subjects('literal', 'ANCESTOR', ancestors)})")
    if read:
        names = subjects("subpath", "READ", read)
        lines.append(f"(allow file-read* file-map-executable {names})")
    if write:
        lines.append(f"(allow file-read* file-write* file-map-executable {subjects('subpath', 'WRITE', write)})")
    if read:
        lines.append(f"(deny file-write* {names})")  # last of the rules on these folders: it wins
    return SeatbeltProfile(text="\n".join([*lines, _CLOSING]), parameters=tuple(parameters))
