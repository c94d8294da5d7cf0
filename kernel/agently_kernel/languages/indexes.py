"""Where packages of a language come from: asked of the tool that installs them, for the address is its, not ours."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.resource import ExecutionResourcePolicy

ASK_SECONDS = 20.0
_HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+\Z")


def package_hosts(language: str, policy: ExecutionResourcePolicy) -> tuple[str, ...]:
    """Return the hosts that a step which installs packages may reach: the policy's, else the tool's own index.

    May start the tool for that, so it is not for an event loop. Raises ConfigurationError where neither is known.
    """
    hosts = policy.package_hosts.get(language) or _OWN[language]()
    if not hosts:
        raise ConfigurationError(
            f"Where {language} packages come from is not known, because the tool that installs them is not on this "
            f"machine: name the hosts in package_hosts, such as {{{language!r}: ['index.example.org']}}."
        )
    return hosts


def pip_hosts() -> tuple[str, ...]:
    """Return the hosts of pip's own index, without starting it; empty where there is no pip."""
    try:
        index = importlib.import_module("pip._internal.models.index").PyPI
        return _hosts((f"https://{index.netloc}", f"https://{index.file_storage_domain}"))
    except (ImportError, AttributeError):
        return ()


def _of_npm() -> tuple[str, ...]:
    return _hosts(_said("npm", "config", "get", "registry"))


def _of_go() -> tuple[str, ...]:
    proxies, _, database = "\n".join(_said("go", "env", "GOPROXY", "GOSUMDB")).partition("\n")
    return _hosts((*re.split(r"[,|]", proxies), "https://" + database.split("+")[0].split(" ")[0]))


_OWN: Mapping[str, Callable[[], tuple[str, ...]]] = {"python": pip_hosts, "node": _of_npm, "go": _of_go}


def _said(tool: str, *arguments: str) -> Sequence[str]:
    """Return the lines that a tool of this machine prints, without settings of the user or of any folder."""
    program = shutil.which(tool)
    if program is None:
        return ()
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "GOENV": "off"}
    try:
        done = subprocess.run(
            [program, *arguments], cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=ASK_SECONDS, check=False, text=True, errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return done.stdout.splitlines()


def _hosts(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the host names of web addresses, each once; what is none is left out."""
    names = (urlsplit(address.strip()).hostname or "" for address in addresses if "://" in address)
    return tuple(dict.fromkeys(name for name in names if _HOST.match(name)))
