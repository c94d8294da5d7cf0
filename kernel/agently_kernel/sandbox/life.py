"""The life of a sandbox's resource: what it is made of, what is known of it, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal
from weakref import WeakValueDictionary

from agently_kernel.contract.errors import SandboxCleanupError, SandboxDied, SandboxError
from agently_kernel.contract.isolation import LimitFact, SandboxFacts
from agently_kernel.contract.outputs import OutputSink
from agently_kernel.contract.protocols import BuildStore, GuestNetwork, Sandbox, SeenAtOnce
from agently_kernel.contract.result import DeathCause
from agently_kernel.contract.workspace import TaskWorkspaceAccessGrant
from agently_kernel.sandbox.activity import Activity, CellRun
from agently_kernel.sandbox.deaths import Stopper, limit_reached, sandbox_death, with_loss
from agently_kernel.sandbox.delivery import Delivery
from agently_kernel.sandbox.launch import GUEST_DIR, BootConfig
from agently_kernel.sandbox.needs import NeedHandler
from agently_kernel.sandbox.network import NetworkLink, with_relay
from agently_kernel.sandbox.questions import Questions
from agently_kernel.sandbox.resident import Resident
from agently_kernel.sandbox.router import OutputRouter
from agently_kernel.sandbox.session import GuestSession, SessionEnd
from agently_kernel.sandbox.source import GuestOutputSource, KnownListing
from agently_kernel.sandbox.stopping import Stops, TaskKeeper
from agently_kernel.sandbox.wear import Wear
from agently_kernel.uninterrupted import uninterrupted

log = logging.getLogger(__name__)

InterpreterState = Literal["none", "starting", "idle", "busy", "exited"]

EXPLAIN_DEADLINE = 1.0
CLOSE_DEADLINE = 10.0


class ResourceLife:
    """Owns the sandbox, its guest's session and the resident interpreter, and ends them. Base of ``SandboxResource``.

    All methods run on one event loop.
    """

    facts: SandboxFacts

    def __init__(
        self,
        sandbox: Sandbox,
        config: BootConfig,
        grant: TaskWorkspaceAccessGrant | None,
        paths: Mapping[str, str],
        max_output_bytes: int,
        deliver: Delivery | None = None,
    ) -> None:
        """Use ``SandboxResource.open``."""
        self.builds: BuildStore | None = None
        self._built: set[str] = set()
        self.need_handler: NeedHandler | None = None
        self._bring: Callable[[], Awaitable[None]] | None = None
        self._deliver = deliver
        self._guest = ("python3", GUEST_DIR)
        self._relay: GuestNetwork | None = None
        self._network: NetworkLink | None = None  # open, or being opened
        self._sandbox = sandbox
        self._seen_at_once = sandbox if isinstance(sandbox, SeenAtOnce) else None
        self._config = config
        self._mounts = grant.mounts_key() if grant is not None else None
        self._shown = {item.name for item in grant.inputs} if grant is not None else set()
        self._paths = dict(paths)
        self._max_output_bytes = max_output_bytes
        self._router = OutputRouter()
        self._turn = asyncio.Lock()
        self._turns_beside: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks = TaskKeeper()
        self._session: GuestSession | None = None  # until the guest has been spawned
        self._resident: Resident
        self._stops: Stops
        self._questions: Questions
        self._begun: dict[str, str] = {}  # by subshell
        self._closing: asyncio.Task[None] | None = None
        self._death: DeathCause | None = None
        self._death_known = asyncio.Event()
        self._idle_death: DeathCause | None = None
        self._wear = Wear()
        self._listing = KnownListing()

    # -- what is known of it -------------------------------------------------------------------------------------

    @property
    def background_sink(self) -> OutputSink | None:
        """Where output outside a running execution goes."""
        return self._router.background_sink

    @background_sink.setter
    def background_sink(self, sink: OutputSink | None) -> None:
        self._router.background_sink = sink

    @property
    def interrupt_grace(self) -> float:
        """Seconds from a Stop or a time limit to the kill of an interpreter that goes on; may be set at any time."""
        return self._stops.grace

    @interrupt_grace.setter
    def interrupt_grace(self, seconds: float) -> None:
        self._stops.grace = seconds

    @property
    def healthy(self) -> bool:
        """True while the sandbox can serve another execution, as far as the host knows without asking."""
        return self._closing is None and self._death is None and not self._wear.worn and self._live.alive

    @property
    def worn(self) -> bool:
        """True when no interpreter gets anywhere in this sandbox any more, so that it should be replaced."""
        return self._wear.worn

    @property
    def seen_ready(self) -> bool:
        """True when the sandbox is as :meth:`health` wants it and that could be seen at once; False decides nothing."""
        return self._seen_at_once is not None and self.healthy and self._seen_at_once.alive_now()

    async def health(self) -> Literal["ready", "unhealthy"]:
        """Ask the mechanism too; for ``ExecutionResourceProvider.async_health_check``."""
        return "ready" if self.healthy and await self._sandbox.is_alive() else "unhealthy"

    @property
    def _live(self) -> GuestSession:
        if self._session is None:
            raise SandboxDied("The sandbox has not been opened.")
        return self._session

    @property
    def sandbox(self) -> Sandbox:
        """The provider's sandbox."""
        return self._sandbox

    @property
    def interpreter_state(self) -> InterpreterState:
        """State of the resident interpreter; ``none`` before the first start."""
        if any(isinstance(run, CellRun) and run.sent for run in self._router.runs):
            return "busy"
        state = self._resident.state
        return "idle" if state == "ready" else state

    def began(self, cell: str) -> bool:
        """True when *cell* was the last one of its subshell, or of none, that was handed to the interpreter."""
        return cell in self._begun.values()

    @property
    def generation(self) -> int:
        """How many interpreters were started here."""
        return self._resident.generation

    @property
    def last_death(self) -> DeathCause | None:
        """The last end of an interpreter or of the sandbox."""
        return self._death or self._resident.last_death

    async def ended_by_itself(self) -> DeathCause | None:
        """Return why the sandbox has ended although nobody closed it, None while it lives. Waits for the cause."""
        if self._closing is not None or (self._death is None and self._live.alive):
            return None
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._death_known.wait(), CLOSE_DEADLINE)
        return self._death

    @property
    def diagnostics(self) -> str:
        """The last of the guest's standard error: untrusted text for people."""
        return self._live.diagnostics

    @property
    def output_source(self) -> GuestOutputSource:
        """Where ``TaskWorkspace.collect`` reads from."""
        return GuestOutputSource(self._sandbox, self._live, self._listing)

    def _refuse_dead(self) -> None:
        if self._closing is not None:
            raise SandboxDied("The sandbox has been closed.")
        if self._death is not None:
            details = {"cause": self._death.model_dump(mode="json"), "lost": "sandbox"}
            raise SandboxDied(self._death.message, details=details)
        if not self._live.alive:
            raise self._live.died()

    # -- network -------------------------------------------------------------------------------------------------

    @property
    def takes_copies(self) -> bool:
        """True where inputs are sent into the sandbox, because it shares no folder with this machine."""
        return self._deliver is not None

    def use_network(self, relay: GuestNetwork) -> None:
        """Open what *relay* grants from the next execution on, in this very sandbox; once for a sandbox.

        Programs find it by the usual proxy variables, which a running interpreter gets too; ``facts`` tell it then.
        """
        if self._relay is None:
            self._relay = relay
            relay.on_refused = self._tell_refused

    @property
    def relay(self) -> GuestNetwork | None:
        """The relay that this sandbox was given, or None."""
        return self._relay

    async def open_network(self) -> None:
        """Open the relay now, if there is one that is not open yet, and observe it. Raises SandboxError."""
        relay = self._relay
        if relay is None:
            return
        if self._network is None:
            link = self._network = NetworkLink(self._live, relay, *self._guest)
            try:
                self.facts = with_relay(self.facts, await link.open(), relay.hosts)
            except BaseException:
                self._relay = self._network = None
                raise
        else:
            self.hosts_changed()
            await self._network.refresh()

    def hosts_changed(self) -> None:
        """Let the facts name the hosts that an open relay grants now; without any, it leads nowhere."""
        hosts = self._relay.hosts if self._relay is not None else ()
        if self._network is not None and self.facts.network in ("filtered", "none"):
            self.facts = self.facts.model_copy(
                update={"network": "filtered" if hosts else "none", "network_hosts": hosts}
            )

    def _tell_refused(self, reason: str) -> None:
        for run in self._router.runs:  # which of them asked is not known
            run.network_refused(reason)

    # -- the end -------------------------------------------------------------------------------------------------

    async def _explain(self, returncode: int | None) -> DeathCause | None:
        try:
            return await asyncio.wait_for(self._sandbox.explain_death(returncode), EXPLAIN_DEADLINE)
        except Exception as error:
            log.debug("the mechanism could not explain a death: %s", error)
            return None

    def _limits_in_force(self) -> tuple[LimitFact, ...]:
        return self.facts.limits

    async def _limit_reached(self, returncode: int) -> str:
        """Return which limit made the mechanism end a process just now, as part of a sentence; "" when none did."""
        death = await self._explain(returncode)
        return limit_reached(death, self._limits_in_force()) if death is not None else ""

    def _on_end(self, end: SessionEnd) -> None:
        self._tasks.add(self._record_end(end))

    async def _record_end(self, end: SessionEnd) -> None:
        stopper: Stopper | None = "stopped_by_user" if self._closing is not None else self._stops.sandbox_stopper
        death = await self._explain(end.returncode) if end.violation is None and stopper is None else None
        own = sandbox_death(end.returncode, stopper=stopper, violation=end.violation)
        self._set_death(with_loss(death) if death is not None else own)

    def _set_death(self, death: DeathCause) -> None:
        if self._death is not None:
            return
        self._death = death
        self._death_known.set()
        self._resident.sandbox_ended(death)
        for run in self._router.runs:
            run.die(death)

    async def _explained_end(self, run: Activity) -> None:
        """Wait until the cause of the sandbox's end is known and give it to *run*."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._death_known.wait(), CLOSE_DEADLINE)
        run.die(self._death or sandbox_death(None))

    async def aclose(self, grace: float = 2.0) -> None:
        """Let exit handlers run for at most *grace* seconds, then end everything. Idempotent; completes when cancelled.

        Raises SandboxCleanupError naming what could not be removed.
        """
        failed = self._closing is not None and self._closing.done() and self._closing.exception() is not None
        if self._closing is None or failed:  # what could not be removed is tried again
            self._closing = asyncio.ensure_future(self._close(grace))
        closing = self._closing

        async def closed() -> None:
            await asyncio.shield(closing)

        await uninterrupted(closed())

    async def _close(self, grace: float) -> None:
        session = self._live
        if session.alive:
            session.resume()
            with contextlib.suppress(SandboxError):
                await session.send({"op": "shutdown", "grace": int(grace * 1000)})
                await session.wait_ended(grace + 0.5)
        await self._end()

    async def _end(self) -> None:
        try:
            if self._relay is not None:
                await self._relay.aclose()
            if self._session is not None:
                await self._session.close()
        finally:
            try:
                await asyncio.wait_for(self._sandbox.close(), CLOSE_DEADLINE)
            except asyncio.TimeoutError:
                raise SandboxCleanupError(
                    f"The {self._sandbox.provider_id} sandbox was not removed within {CLOSE_DEADLINE:g} s; what is "
                    "left of it is found by `agently-kernel clean`."
                ) from None
            finally:
                await self._tasks.end()
                if self._session is not None:
                    self._set_death(sandbox_death(None, stopper="stopped_by_user"))
