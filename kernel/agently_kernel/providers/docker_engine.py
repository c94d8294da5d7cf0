"""A container engine that speaks the Docker API: which one it is, and calls to it that always end.

The SDK is imported when an engine is first connected to, never at start. Every call runs in a thread, with a deadline
of the HTTP request itself, so that the thread ends too.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxError, SandboxLaunchError
from agently_kernel.uninterrupted import uninterrupted

T = TypeVar("T")
SDK = "docker>=7.1"
"""What the extra ``docker`` of this package installs; named itself, because this package may come from a clone."""

START_DOCKER = (
    "start it (`systemctl start docker`, `systemctl --user start docker` for rootless Docker, `systemctl --user start "
    "podman.socket` for Podman, or Docker Desktop), or name another one with the provider's `host`"
)


EngineLimit = Literal["memory", "processes", "cpu"]
_LIMIT_KEYS: Mapping[EngineLimit, str] = {"memory": "MemoryLimit", "processes": "PidsLimit", "cpu": "CpuCfsQuota"}
ENGINE_LIMITS: tuple[EngineLimit, ...] = tuple(_LIMIT_KEYS)


class EngineCallError(SandboxError):
    """A call to the engine failed. ``status`` is the HTTP status, None when there was no answer."""

    code = "execution_resource.docker_unavailable"

    def __init__(self, message: str, *, status: int | None = None, explanation: str = "", remedy: str = "") -> None:
        super().__init__(message, details={"remedy": remedy, "diagnostics": explanation})
        self.status = status
        self.explanation = explanation


class EngineFacts(Frozen):
    """What an engine says of itself. ``local``: its containers are processes of this very machine."""

    product: str
    version: str
    kind: str
    local: bool
    rootless: bool
    runtimes: tuple[str, ...]
    runtime_programs: Mapping[str, str] = Field(default_factory=dict)
    """The program (or the containerd runtime type) behind each runtime, as far as the engine tells."""
    default_runtime: str
    limits: tuple[EngineLimit, ...] = ENGINE_LIMITS
    """What its control groups can hold; nothing where it has none, as rootless engines on hosts with version 1."""


class DockerEngine:
    """One connection. Make it with :meth:`connect`, end it with :meth:`close`; use it from one event loop."""

    def __init__(self, client: Any, url: str, facts: EngineFacts, seconds: float) -> None:
        self.client = client
        self.url = url
        self.facts = facts
        self._seconds = seconds

    @classmethod
    async def connect(cls, host: str | None, context: str | None, *, seconds: float = 10.0) -> DockerEngine:
        """Connect to *host* (a URL), else to the named Docker *context*, else where the docker command would.

        Raises SandboxLaunchError with a remedy when the SDK is missing or no engine answers within *seconds*.
        """
        try:
            import docker  # noqa: F401
        except ModuleNotFoundError as error:
            raise SandboxLaunchError(
                f"The Python package {error.name} is not installed, so no container engine can be asked.",
                details={"remedy": f'`"{sys.executable}" -m pip install "{SDK}"`'},
            ) from None
        return await _in_thread(lambda: cls._connect(host, context, seconds), "connecting", "the container engine")

    @classmethod
    def _connect(cls, host: str | None, context: str | None, seconds: float) -> DockerEngine:
        from docker import APIClient

        url, tls = _endpoint(host, context)
        where = url or "the default socket"
        try:
            client = _asked_once(APIClient)(base_url=url, timeout=seconds, tls=tls, version="auto")
        except Exception as error:
            raise _explain_connection(error, where) from error
        try:
            info, version = client.info(), client.version()
        except Exception as error:
            client.close()
            raise _explain_connection(error, where) from error
        return cls(client, client.base_url if url is None else url, _facts(client.base_url, info, version), seconds)

    async def call(self, what: str, function: Callable[[Any], T]) -> T:
        """Run ``function(client)`` in a thread and return what it returns. *what* is a phrase for error messages.

        A cancellation follows only after the call has ended: it must be known what it made. Raises EngineCallError.
        """
        return await _in_thread(lambda: function(self.client), what, self.facts.product)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.client.close()


def _asked_once(base: Any) -> Any:
    """Return the SDK's client with one answer to ``version``, which it asks itself to agree on the API's."""

    class Client(base):  # type: ignore[misc]
        _answer: Any = None

        def version(self, api_version: bool = True) -> Any:
            if self._answer is None:
                self._answer = super().version(api_version)
            return self._answer

    return Client


async def _in_thread(function: Callable[[], T], what: str, product: str) -> T:
    try:
        return await uninterrupted(asyncio.to_thread(function))
    except SandboxError:
        raise
    except Exception as error:
        raise _explain(error, what, product) from error


def _explain(error: BaseException, what: str, product: str) -> EngineCallError:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    text = str(getattr(error, "explanation", None) or error)[:1000]
    if status is None:
        late = "timed out" in str(error).lower()
        return EngineCallError(
            f"{product} did not answer in time while {what}." if late else f"{product} went away while {what}: {text}",
            explanation=text, remedy="look whether the daemon is overloaded or was stopped, and try again",
        )
    return EngineCallError(f"{product} refused {what}: {text}", status=int(status), explanation=text)


def _endpoint(host: str | None, context: str | None) -> tuple[str | None, Any]:
    """Return (URL or None for the default, TLS configuration or False) by the rules of the docker command."""
    from docker.context import ContextAPI
    from docker.utils import kwargs_from_env

    if host:
        return host, False
    if context is None:
        found = kwargs_from_env()
        if found.get("base_url"):
            return str(found["base_url"]), found.get("tls", False)
        context = os.environ.get("DOCKER_CONTEXT") or None
    chosen = ContextAPI.get_context(context) if context else ContextAPI.get_current_context()
    if chosen is None:
        raise SandboxLaunchError(
            f"There is no Docker context named {context!r}.", details={"remedy": "`docker context ls` lists them"}
        )
    if chosen.name == "default":
        return None, False
    return chosen.Host, chosen.TLSConfig or False


def _explain_connection(error: Exception, where: str) -> SandboxLaunchError:
    text = str(error)
    if "Permission denied" in text or "PermissionError" in text:
        return SandboxLaunchError(
            f"This user may not use the container engine at {where}.", code="execution_resource.docker_unavailable",
            details={"remedy": "use rootless Docker or Podman; membership of the group docker is as good as being root",
                     "diagnostics": text},
        )
    return SandboxLaunchError(
        f"No container engine answers at {where}.", code="execution_resource.docker_unavailable",
        details={"remedy": START_DOCKER, "diagnostics": text},
    )


def _facts(base_url: str, info: dict[str, Any], version: dict[str, Any]) -> EngineFacts:
    components = {str(part.get("Name")): part for part in version.get("Components") or ()}
    podman = "Podman Engine" in components
    # Podman has a key of its own; and it says that it can limit where nobody but root may make such groups.
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    rootless = info.get("Rootless") is True or any("rootless" in option for option in options)
    groups = str(info.get("CgroupVersion") or "1")
    system = str(info.get("OperatingSystem") or "")
    socket = "unix:" in base_url or base_url.startswith(("http+docker:", "http+unix:"))
    return EngineFacts(
        product="Podman" if podman else "Docker",
        version=str(version.get("Version") or "unknown")[:60],
        kind=str(info.get("OSType") or "linux"),
        # Behind a socket file of a Linux host there may still be a virtual machine.
        local=socket and sys.platform == "linux" and "Docker Desktop" not in system
        and str(info.get("KernelVersion") or platform.release()) == platform.release(),
        rootless=rootless,
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        runtime_programs={
            str(name): str((details or {}).get("path") or (details or {}).get("runtimeType") or "")[:200]
            for name, details in (info.get("Runtimes") or {}).items()
        },
        default_runtime=str(info.get("DefaultRuntime") or ""),
        limits=tuple(
            name for name, key in _LIMIT_KEYS.items()
            if info.get(key) is not False and info.get("CgroupDriver") != "none" and not (rootless and groups == "1")
        ),
    )
