"""The kernel's link to its panels: what happens is told to a record, and the service answers what panels ask.

The panel's modules cost time and memory, and many kernels never meet a panel. They are loaded, on a thread, when one
asks; what happened until then is kept as a bounded list of calls and played into the record, which is made in any case
before that list is full.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agently_kernel.contract.approval import ApprovalDecision, ApprovalOutcome, ApprovalRequest, Gate
from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.isolation import SandboxFacts
from agently_kernel.contract.resource import ProviderSelection
from agently_kernel.contract.result import CodeExecutionResult
from agently_kernel.contract.workspace import CollectedOutput, GrantedInput
from agently_kernel.settings import KernelSettings

if TYPE_CHECKING:
    from agently_kernel.outputs import Withheld
    from agently_kernel.panel import ApprovalDesk, PanelHost, PanelService
    from agently_kernel.panel_state import PanelState

REQUEST_TYPE = "agently_panel_request"
MAX_CALLS = 1000
LOAD_AT = MAX_CALLS // 2
"""Calls that are kept before the record is made without a panel."""
MAX_TEXT = 256 * 1024
LATE = 0.02
"""Seconds until a record is told what cells come to: after a short cell, and before a panel is told again."""
_OF_CELLS = frozenset(("execution_started", "execution_output", "execution_finished", "set_session"))


class KernelChannels(Protocol):
    """What of an ipykernel kernel is used here."""

    control_handlers: dict[str, Callable[..., Awaitable[None]]]
    _publish_status: Callable[..., None]

    def get_parent(self, channel: str) -> Mapping[str, Any]:
        """Return the request that is being answered on *channel*."""


def without_status(kernel: KernelChannels) -> Callable[[], None]:
    """Publish no busy and idle around panel requests; return a function that takes that back.

    Front ends would show a kernel as idle while its cell runs.
    """
    publish_status = kernel._publish_status

    def status(state: str, channel: str, parent: Any = None) -> None:
        asked = parent or kernel.get_parent(channel) or {}
        if asked.get("header", {}).get("msg_type") != REQUEST_TYPE:
            publish_status(state, channel, parent)

    def remove() -> None:
        kernel._publish_status = publish_status

    kernel._publish_status = status
    return remove


class PanelLink:
    """Tells panels about one kernel session. Its telling methods are cheap and may be called from any thread.

    ``facts`` are fields of the panel's session view.
    """

    def __init__(
        self, kernel: KernelChannels, desk: ApprovalDesk, host: PanelHost, settings: KernelSettings, /, **facts: Any
    ) -> None:
        self._kernel = kernel
        self._desk = desk
        self._host = host
        self._settings = settings
        self._facts = facts
        self._guard = threading.RLock()
        self._calls: deque[tuple[str, tuple[Any, ...], dict[str, Any]]] = deque(maxlen=MAX_CALLS)
        self._late: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._text_kept = 0
        self._state: PanelState | None = None
        self._service: PanelService | None = None
        self._remove: Callable[[], None] | None = None
        self._speak_again = without_status(kernel)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        kernel.control_handlers[REQUEST_TYPE] = self._first_request

    def start(self) -> None:
        """Take this loop for what is to be done beside whatever runs. Call once, on it."""
        self._loop = asyncio.get_running_loop()

    @property
    def attached(self) -> bool:
        """True while a panel is there that shows questions."""
        service = self._service
        return service is not None and service.attached

    def close(self) -> None:
        """Stop telling panels anything."""
        with self._guard:
            self._closed = True
            self._calls.clear()
            self._late.clear()
            if self._remove is not None:
                self._remove()
            self._speak_again()
            if self._service is not None:
                self._service.close()

    # -- telling -------------------------------------------------------------------------------------------------------

    def session(self, **fields: Any) -> None:
        """The session's state changed (status, message, workspace_id)."""
        self._tell("set_session", **fields)

    def sandbox(self, facts: SandboxFacts, selection: ProviderSelection | None) -> None:
        """A sandbox was opened."""
        self._tell("set_sandbox", facts, selection)

    def grants(
        self, inputs: tuple[GrantedInput, ...], remembered: Collection[tuple[Gate, str]],
        in_force: Sequence[tuple[Gate, str]],
    ) -> None:
        """What the session may use has changed: its inputs, its approvals, and what else holds (gate, subject)."""
        self._tell("set_inputs", inputs)
        self._tell("set_in_force", remembered, in_force)

    def cell(self, name: str, cell_id: str) -> None:
        """The notebook's cell *cell_id* is called *name* here."""
        self._tell("cell_named", name, cell_id)

    def started(self, execution_id: str, **fields: Any) -> None:
        """An execution began; fields as ``PanelState.execution_started``."""
        self._tell("execution_started", execution_id, **fields)

    def text(self, execution_id: str, text: str) -> None:
        """An execution showed text."""
        if self._state is None:
            if self._text_kept + len(text) > MAX_TEXT:
                return
            self._text_kept += len(text)
        self._tell("execution_output", execution_id, text)

    def withheld(self, execution_id: str, item: Withheld) -> None:
        """Something was not shown."""
        self._tell(
            "withheld", execution_id, kind=item.kind, mime=item.mime, reason=item.reason, how_to_allow=item.how_to_allow
        )

    def finished(self, execution_id: str, result: CodeExecutionResult, *, count: int | None) -> None:
        """An execution ended."""
        self._tell("execution_finished", execution_id, result, count=count)

    def collected(self, outputs: tuple[CollectedOutput, ...]) -> None:
        """Files were collected outside of an execution."""
        self._tell("outputs_collected", outputs)

    def event(self, event: ExecutionResourceEvent) -> None:
        """The manager told something (an EventHook)."""
        self._tell("resource_event", event)

    def question(self, event: str, request: ApprovalRequest, outcome: ApprovalOutcome | None, by: str) -> None:
        """A question opened or closed (a listener of the broker)."""
        if event == "opened":
            self._tell("approval_asked", request)
        else:
            self._tell("approval_closed", request.request_id)

    def decided(self, request: ApprovalRequest, decision: ApprovalDecision) -> None:
        """A gate was decided (a listener of the policy)."""
        self._tell("approval_ended", request, decision)

    def _tell(self, method: str, *args: Any, **fields: Any) -> None:
        with self._guard:
            if self._closed:
                return
            if self._state is None:
                self._calls.append((method, args, fields))
                if len(self._calls) == LOAD_AT and self._loop is not None:
                    self._loop.call_soon_threadsafe(self._loop.run_in_executor, None, self._load)
                return
            self._late.append((method, args, fields))
            loop = self._loop
            if method not in _OF_CELLS or loop is None:
                self._catch_up()
            elif len(self._late) == 1:
                if asyncio._get_running_loop() is loop:
                    loop.call_later(LATE, self._catch_up)
                else:
                    loop.call_soon_threadsafe(loop.call_later, LATE, self._catch_up)

    def _catch_up(self) -> None:
        """Tell the record what it was not told yet. From any thread."""
        with self._guard:
            late, self._late = self._late, []
            for method, args, fields in late:
                getattr(self._state, method)(*args, **fields)

    # -- answering -----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Make record and service, and play back what happened so far. From any thread; once."""
        from agently_kernel.panel import PanelService, install, publisher
        from agently_kernel.panel_schema import PolicyView, SessionView
        from agently_kernel.panel_state import PanelState

        with self._guard:
            if self._service is not None or self._closed:
                return
            settings = self._settings
            state = PanelState(
                session=SessionView(**self._facts),
                policy=PolicyView(
                    isolation=settings.isolation, output_policy=settings.outputs, network_mode=settings.network,
                    approval_timeout_seconds=settings.approval_timeout, scratch=settings.limits.scratch,
                ),
            )
            for method, args, fields in self._calls:
                getattr(state, method)(*args, **fields)
            self._calls.clear()
            service = PanelService(publisher(self._kernel), state, self._desk, self._host)

            async def answer(request: Any) -> Any:
                self._catch_up()
                return await service.handle(request)

            self._remove = install(self._kernel, answer)
            self._state, self._service = state, service

    async def _first_request(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._load)
        if not self._closed:
            await self._kernel.control_handlers[REQUEST_TYPE](stream, ident, parent)
