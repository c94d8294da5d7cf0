"""The network of single hosts, for every provider whose sandboxes have a loopback of their own and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection

from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.network import EVERY_PUBLIC_HOST, NetworkMode, normalise_hosts
from agently_kernel.contract.protocols import ProviderHost
from agently_kernel.contract.resource import ExecutionResourcePolicy, ExecutionResourceRequirement
from agently_kernel.network.proxy import Attempt
from agently_kernel.network.relay import NetworkRelay
from agently_kernel.sandbox.resource import SandboxResource


def relayed_hosts(policy: ExecutionResourcePolicy) -> tuple[str, ...] | None:
    """Return what *policy* opens through a relay (() when only steps name hosts), None for no network at all."""
    if policy.network_mode == "disabled":
        return None
    return policy.network_hosts if policy.network_mode == "hosts" else (EVERY_PUBLIC_HOST,)


def grant_hosts(
    resource: object,
    hosts: tuple[str, ...],
    modes: Collection[NetworkMode],
    host: ProviderHost | None,
    requirement: ExecutionResourceRequirement,
) -> None:
    """Open *hosts* besides those that a live sandbox has, from its next execution on; () only makes its relay ready.

    *modes* are its provider's. Raises ConfigurationError where there is no relay.
    """
    if not isinstance(resource, SandboxResource):
        raise ConfigurationError("This provider's sandboxes cannot open the network for single hosts.")
    if resource.relay is not None:
        resource.relay.hosts = normalise_hosts((*resource.relay.hosts, *hosts))
        return
    if resource.facts.network in ("none", "unknown") and "hosts" not in modes:
        raise ConfigurationError(
            f"The sandbox ({resource.facts.provider_id}) cannot open the network for single hosts; use a provider that "
            "can: bubblewrap, runsc, docker or gvisor."
        )
    if resource.facts.network != "inherited":
        resource.use_network(NetworkRelay(hosts, on_attempt=attempt_event(host, requirement)))


def withdraw_hosts(resource: object, hosts: Collection[str]) -> None:
    """Take *hosts* from a live sandbox that has a relay; open connections to them end, all others go on."""
    if isinstance(resource, SandboxResource) and resource.relay is not None:
        resource.relay.hosts = tuple(host for host in resource.relay.hosts if host not in hosts)
        resource.hosts_changed()


async def with_network(
    resource: SandboxResource,
    requirement: ExecutionResourceRequirement,
    policy: ExecutionResourcePolicy,
    modes: Collection[NetworkMode],
    host: ProviderHost | None,
) -> SandboxResource:
    """Open the hosts of *policy* for a sandbox that was just opened, and return it; close it when that fails.

    Nothing is done where the sandbox has another network already, or its provider has no relay (*modes*).
    """
    hosts = relayed_hosts(policy)
    if hosts is None or "hosts" not in modes or resource.facts.network != "none":
        return resource
    try:
        resource.use_network(NetworkRelay(hosts, on_attempt=attempt_event(host, requirement)))
        await resource.open_network()
    except BaseException:
        await resource.aclose()
        raise
    return resource


def attempt_event(host: ProviderHost | None, requirement: ExecutionResourceRequirement) -> Callable[[Attempt], None]:
    """Return what tells a host name, its port and the status as an event; never what was sent."""

    def tell(attempt: Attempt) -> None:
        if host is not None:
            host.progress(requirement, "network", host=attempt.host, port=attempt.port, status=attempt.status)

    return tell
