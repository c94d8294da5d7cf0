"""Images: what an image offers, and pulling one, with the user's leave and with progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from agently_kernel.contract.base import Frozen
from agently_kernel.contract.errors import SandboxLaunchError
from agently_kernel.providers.docker_engine import DockerEngine, EngineCallError

PullPolicy = Literal["never", "if_missing", "always"]
Progress = Callable[[str, dict[str, str | int | float | bool]], None]

MAX_PROGRESS = 200


class ImageFacts(Frozen):
    """An image as the engine has it: its id is the digest of its content. ``volumes`` would be writable on the host."""

    name: str
    image_id: str
    environment: dict[str, str]
    volumes: tuple[str, ...]

    @property
    def path(self) -> str:
        """Return the image's search path for programs."""
        return self.environment.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def find_image(engine: DockerEngine, name: str) -> ImageFacts | None:
    """Return what the engine knows of the image, or None when it has none of this name. Raises EngineCallError."""
    try:
        found = await engine.call(f"looking for the image {name}", lambda client: client.inspect_image(name))
    except EngineCallError as error:
        if error.status == 404:
            return None
        raise
    config = found.get("Config") or {}
    pairs = (str(item).partition("=") for item in config.get("Env") or ())
    return ImageFacts(
        name=name, image_id=str(found.get("Id") or ""), environment={key: value for key, _, value in pairs},
        volumes=tuple(sorted(config.get("Volumes") or ())),
    )


def missing(engine: DockerEngine, name: str, why: str) -> SandboxLaunchError:
    """Return the error for an image that is not there."""
    command = "podman" if engine.facts.product == "Podman" else "docker"
    return SandboxLaunchError(
        f"The image {name} is not on the {engine.facts.product} engine{why}.",
        code="execution_resource.docker_image_missing",
        details={"remedy": f"`{command} pull {name}`, or name another image in the provider's `image`"},
    )


async def pull_image(engine: DockerEngine, name: str, progress: Progress) -> None:
    """Pull the image, telling *progress* how it goes. Raises SandboxLaunchError with the engine's reason."""
    import asyncio

    loop = asyncio.get_running_loop()
    repository, tag = split_name(name)

    def tell(phase: str, details: dict[str, str | int | float | bool]) -> None:
        loop.call_soon_threadsafe(progress, phase, details)

    def work(client: Any) -> None:
        told = 0
        layers: dict[str, tuple[int, int]] = {}
        for line in client.pull(repository, tag=tag, stream=True, decode=True):
            if line.get("error"):
                raise SandboxLaunchError(
                    f"The image {name} could not be pulled: {str(line['error'])[:500]}",
                    code="execution_resource.docker_image_pull_failed",
                    details={"remedy": "check the image's name, the network and the login of the registry"},
                )
            detail = line.get("progressDetail") or {}
            if line.get("id") and detail.get("total"):
                layers[str(line["id"])] = (int(detail.get("current") or 0), int(detail["total"]))
            if told < MAX_PROGRESS:
                told += 1
                tell("image_pull_progress", {
                    "status": str(line.get("status") or "")[:100],
                    "layers": len(layers),
                    "bytes": sum(part[0] for part in layers.values()),
                    "total_bytes": sum(part[1] for part in layers.values()),
                })

    progress("image_pull_started", {"image": name})
    try:
        await engine.call(f"pulling the image {name}", work)
    except EngineCallError as error:
        progress("image_pull_failed", {"image": name})
        raise SandboxLaunchError(
            f"The image {name} could not be pulled: {error.explanation}",
            code="execution_resource.docker_image_pull_failed",
            details={"remedy": "check the image's name, the network and the login of the registry"},
        ) from error
    except SandboxLaunchError:
        progress("image_pull_failed", {"image": name})
        raise
    progress("image_pull_completed", {"image": name})


def split_name(name: str) -> tuple[str, str | None]:
    """Return (repository, tag or digest) of an image name; ``latest`` where none is given."""
    if "@" in name:
        repository, _, digest = name.partition("@")
        return repository, digest
    head, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    return head + slash + last, tag if colon else "latest"
