"""The Jupyter kernel: takes cells and requests from front ends, and has every cell run in the session's sandbox.

The process that holds the sockets and keys runs no user code. A cell is a request to the execution room; what comes
back passes the screen (trust filter, coalescing) on its way to iopub.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import zmq
from traitlets import Any as AnyTrait

from agently_kernel import __version__
from agently_kernel.approvals import ApprovalBroker, Ask
from agently_kernel.cells import CellRunner
from agently_kernel.comms import CommRelay
from agently_kernel.dispatch import Dispatch
from agently_kernel.guest_requests import told_of
from agently_kernel.handles import Handle
from agently_kernel.introspection import Introspection
from agently_kernel.iopub import Publisher
from agently_kernel.magics import complete_magic, inspect_magic
from agently_kernel.outputs import OutputFilter, OutputPolicy
from agently_kernel.panel_actions import PanelActions
from agently_kernel.panel_link import PanelLink
from agently_kernel.policy import PolicyApproval
from agently_kernel.prompts import InputBox, guest_prompt
from agently_kernel.reaper import clean_leftovers
from agently_kernel.screen import Screen
from agently_kernel.session_sandbox import SessionSandbox
from agently_kernel.settings import KernelSettings
from agently_kernel.spill import open_spill_log
from agently_kernel.startup import prepare
from agently_kernel.subshells import RunningCell, Subshell
from agently_kernel.taking_back import in_force, remembered

T = TypeVar("T")
log = logging.getLogger("agently_kernel")

PROTOCOL = "5.5"
STOP_AFTER = 0.02
"""Seconds from the answer to a shutdown_request until the loops stop: its last status message is sent in between."""
TIDY_AFTER = 10.0
"""Seconds after the start at which leftovers of dead sessions are looked for, beside whatever runs then."""
SERVER_PACE = 900_000.0
"""Bytes of text a second when a Jupyter server is in between: it drops streams above 1 MB/s, averaged over 3 s."""
_CELL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")


def _setting(name: str) -> AnyTrait:
    return AnyTrait(help=KernelSettings.model_fields[name].description or name.replace("_", " ")).tag(config=True)


class AgentlyKernel(Dispatch):
    """Jupyter's side of a sandboxed Python session. Settings: see :class:`~agently_kernel.settings.KernelSettings`."""

    implementation = "agently-kernel"
    implementation_version = __version__
    banner = f"Agently (sandboxed) {__version__}: every cell runs in a sandbox"
    language_info = {  # noqa: RUF012  # ipykernel declares it as a plain class attribute
        "name": "python",
        "version": ".".join(map(str, sys.version_info[:3])),
        "mimetype": "text/x-python",
        "codemirror_mode": {"name": "ipython", "version": sys.version_info.major},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
        "file_extension": ".py",
    }

    profile_dir = AnyTrait()  # of IPython's, which is not loaded here
    providers = _setting("providers")
    isolation = _setting("isolation")
    required_axes = _setting("required_axes")
    unsafe_fallback = _setting("unsafe_fallback")
    trusted_local_authorized = _setting("trusted_local_authorized")
    approval_mode = _setting("approval_mode")
    auto_allow = _setting("auto_allow")
    approval_timeout = _setting("approval_timeout")
    network = _setting("network")
    network_hosts = _setting("network_hosts")
    package_hosts = _setting("package_hosts")
    timeout = _setting("timeout")
    interrupt_grace = _setting("interrupt_grace")
    limits = _setting("limits")
    required_limits = _setting("required_limits")
    collection = _setting("collection")
    outputs = _setting("outputs")
    cell_output_bytes = _setting("cell_output_bytes")
    notebook_files = _setting("notebook_files")
    pass_environment = _setting("pass_environment")
    warm_spare = _setting("warm_spare")
    save_outputs = _setting("save_outputs")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._execute_sleep = 0.0  # the coalescer orders output itself
        prepared = getattr(self.parent, "prepared", None) or prepare(self.config)
        self.settings: KernelSettings = prepared.settings
        self.faults: tuple[str, ...] = prepared.faults
        self.session_id: str = prepared.session_id
        self.approval: PolicyApproval = prepared.approval
        self.sandbox: SessionSandbox = prepared.sandbox
        self._cells = 0
        self._next_count = 1
        self._ending: asyncio.Task[None] | None = None
        self._tidying: asyncio.TimerHandle | None = None
        self.filter = OutputFilter(
            OutputPolicy(self.settings.outputs), network_allowed=self.settings.network == "enabled"
        )
        self.publisher = Publisher(
            self._publish,
            budget=self.settings.cell_output_bytes,
            open_log=lambda cell: open_spill_log(self.sandbox.workspace.store, cell),
            pace=SERVER_PACE if os.environ.get("JPY_SESSION_NAME") else None,
            hold=lambda paused: self.sandbox.hold(paused),
        )
        self.broker = ApprovalBroker(panel_attached=lambda: self.panel.attached, input_box=self._approval_box)
        self.approval.set_channel(self.broker.handle, self.broker.account)
        self.panel = PanelLink(
            self, self.broker, PanelActions(self), self.settings, session_id=self.session_id,
            product_version=__version__, started_at=time.time(), status="starting",
        )
        self.broker.listen(self.panel.question)
        self.approval.add_listener(self.panel.decided)
        self.screen = Screen(
            self.publisher, self.filter, observe_text=self.panel.text, observe_withheld=self.panel.withheld
        )
        self.sandbox.attach(sink=self.screen, on_handle=self._new_sandbox, on_event=self.panel.event)
        self.sandbox.on_grants = self._grants_changed
        self.cells = CellRunner(self)
        self.comms = CommRelay(self.filter, self.sandbox, self.screen.close_comm)
        self.introspection = Introspection(self.sandbox.ready, self.filter)
        self.input_box = InputBox(self.session, self.stdin_socket)
        for kind in ("comm_open", "comm_msg", "comm_close"):
            self.shell_handlers[kind] = self.control_handlers[kind] = self.comm_request
        for kind in ("create", "delete", "list"):
            self.control_handlers[f"{kind}_subshell_request"] = self.subshell_request

    def _new_sandbox(self, handle: Handle) -> None:
        self.screen.new_guest()
        self.panel.session(status="ready", workspace_id=self.sandbox.workspace.workspace_id)
        if handle.facts is not None:
            self.panel.sandbox(handle.facts, handle.selection)

    def _grants_changed(self) -> None:
        if self.sandbox.facts is not None:
            self.panel.sandbox(self.sandbox.facts, self.sandbox.selection)
        self.panel.grants(self.sandbox.given, remembered(self), in_force(self))

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Serve requests, and begin to open the sandbox at the same time."""
        super().start()
        self.main_loop.call_soon(self._begin)

    def _begin(self) -> None:
        self.panel.start()
        loop = asyncio.get_running_loop()
        self._tidying = loop.call_later(TIDY_AFTER, lambda: loop.run_in_executor(None, self._tidy))
        if not self.faults:
            self.sandbox.start()

    async def shutdown_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """End the session, say so, and stop the loops once this very request is answered to its end.

        The base stops the main loop at once, which then closes sockets that the control thread still writes to.
        """
        content = await self.do_shutdown(bool(parent["content"].get("restart", False)))
        self.session.send(stream, "shutdown_reply", content, parent, ident=ident)
        self.session.send(self.iopub_socket, "shutdown_reply", content, parent, ident=self.topic("shutdown"))

        def stop() -> None:
            self.io_loop.add_callback(self.io_loop.stop)
            self.control_stream.io_loop.stop()

        self.control_stream.flush(zmq.POLLOUT)
        asyncio.get_running_loop().call_later(STOP_AFTER, stop)

    @staticmethod
    def _tidy() -> None:
        """Remove what sessions that died elsewhere have left; never anything of a live one."""
        try:
            for item in clean_leftovers().failed:
                log.warning("%s could not be removed: %s", item.path, item.reason)
        except Exception:
            log.exception("what dead sessions left behind could not be looked at")

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """End the sandbox the tidy way: exit handlers run, files are collected, nothing is left."""
        await self.on_main(self._end())
        return {"status": "ok", "restart": restart}

    async def _end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._ending)

    async def _close(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
        self.broker.cancel_all()
        tasks = []
        for running in self.subshells.running:
            if running.task is not None:
                running.interrupted = True
                running.task.cancel()
                tasks.append(running.task)
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        await self.sandbox.close()
        self.publisher.close()
        self.panel.close()
        self.input_box.close()

    def terminate(self) -> None:
        """End the kernel on SIGTERM."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._end())
        task.add_done_callback(lambda _: self.io_loop.stop())

    # -- what ipykernel's base would do otherwise ----------------------------------------------------------------------

    @property
    def execution_count(self) -> int:
        """The number of the next cell; kept here, where no cell can change it."""
        return self._next_count

    @execution_count.setter
    def execution_count(self, value: int) -> None:
        """Ignored: the base counts every request, the ordinary kernel only what is stored in history."""

    @property
    def kernel_info(self) -> dict[str, Any]:
        """What the kernel is: no debugger is offered, because there is none."""
        return {
            "protocol_version": PROTOCOL,
            "implementation": self.implementation,
            "implementation_version": self.implementation_version,
            "language_info": self.language_info,
            "banner": self.banner,
            "help_links": self.help_links,
            "supported_features": ["kernel subshells"],
        }

    async def do_debug_request(self, msg: Mapping[str, Any]) -> dict[str, Any]:
        """Decline, in the words of the Debug Adapter Protocol: the base would never answer."""
        said = "This kernel has no debugger for front ends; breakpoint(), %debug and pdb work in cells."
        return {
            "type": "response", "request_seq": msg.get("seq", 0), "success": False,
            "command": str(msg.get("command", "")), "message": said,
        }

    async def stop_running(self, cells: Sequence[RunningCell]) -> None:
        """Stop running cells: in the sandbox, or wherever they wait."""
        for running in cells:
            running.interrupted = True
        self.broker.cancel_all()
        for running in cells:
            inside = await self.sandbox.interrupt(running.cell)
            if not inside and running in self.subshells.running and running.task is not None:
                running.task.cancel()

    async def set_up_subshell(self, name: str, wanted: bool) -> None:
        """Make a subshell in the interpreter, or end it."""
        await self.sandbox.set_up_subshell(name, wanted)

    async def drop_questions(self) -> None:
        """Answer with nothing the completion or inspection that is waited for."""
        await self.introspection.stop()

    async def stop_questions(self) -> None:
        """End completions and inspections that are waited for, or that were given up and go on."""
        await self.introspection.stop()
        self.sandbox.stop_questions()

    # -- cells ---------------------------------------------------------------------------------------------------------

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Mapping[str, Any] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Mapping[str, Any] | None = None,
        cell_id: str | None = None,
    ) -> dict[str, Any]:
        """Run one cell and return the content of its reply. One that came on the control channel waits its turn."""
        arguments = (code, silent, store_history, dict(user_expressions or {}), allow_stdin, cell_id or "")
        if threading.current_thread() is self._main_thread:
            parent = self.get_parent("shell")
            shell = self.subshells.of(parent.get("header", {}).get("subshell_id"))
            return await self._execute(*arguments, shell=shell, parent=parent, ident=self._shell_parent_ident.get())
        parent, ident = self.get_parent("control"), self._control_parent_ident

        async def in_turn() -> dict[str, Any]:
            async with (shell := self.subshells.main).lock:
                return await self._execute(*arguments, shell=shell, parent=parent, ident=ident)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(in_turn(), self.main_loop))

    async def _execute(
        self, code: str, silent: bool, store_history: bool, user_expressions: dict[str, Any], allow_stdin: bool,
        cell_id: str, *, shell: Subshell, parent: Mapping[str, Any], ident: Sequence[bytes],
    ) -> dict[str, Any]:
        running = RunningCell(
            cell=self._name_of(parent), parent={"header": parent.get("header", {})}, ident=ident,
            allow_stdin=bool(allow_stdin),
            told={"shell": told_of(parent), "control": told_of(self.get_parent("control"))},
        )
        shell.running = running
        count = self._next_count
        stored = store_history and not silent and bool(code.strip())
        if stored:
            self._next_count += 1
        self.screen.begin(running.cell, running.parent, count, unattended=not allow_stdin)
        running.task = asyncio.ensure_future(
            self.cells.run(
                running, code, silent=silent, store_history=store_history and not silent, count=count,
                user_expressions=user_expressions, cell_id=cell_id, subshell=shell.id,
            )
        )
        try:
            reply = await running.task
        except asyncio.CancelledError:
            if not running.interrupted:
                raise
            reply = self.cells.interrupted(running)
        finally:
            await self.screen.finish(running.cell, stopped=running.interrupted)
            shell.running = None
            if self.running is None:
                self.panel.session(status="ready")
        return {**reply, "execution_count": count if stored else self._next_count - 1}

    def _name_of(self, request: Mapping[str, Any]) -> str:
        """Return the name of a new cell: the id of its request, which widgets that capture output ask for."""
        self._cells += 1
        name = request.get("header", {}).get("msg_id")
        return name if isinstance(name, str) and _CELL_NAME.match(name) else f"cell-{self._cells}"

    def guest_input(self, running: RunningCell) -> Callable[[str, bool], Awaitable[str]] | None:
        """Return how the cell's ``input()`` is answered, or None when its front end has no input box."""
        if not running.allow_stdin:
            return None

        async def ask(prompt: str, password: bool) -> str:
            return await self.input_box.ask(
                guest_prompt(self.filter.prompt(prompt)), password=password, parent=running.parent, ident=running.ident,
                from_guest=True, before=self.publisher.flush,
            )

        return ask

    def _approval_box(self) -> Ask | None:
        """Return the way to ask a person in the running cell's input box, None when there is none."""
        running = self.running
        if running is None or not running.allow_stdin:
            return None

        async def ask(prompt: str, password: bool) -> str:
            return await self.input_box.ask(
                prompt, password=password, parent=running.parent, ident=running.ident, from_guest=False,
                before=self.publisher.flush,
            )

        return ask

    # -- other requests ------------------------------------------------------------------------------------------------

    async def do_complete(self, code: str, cursor_pos: int | None) -> dict[str, Any]:
        """Complete at *cursor_pos* (characters): in the line of a magic here, else asked of the guest."""
        found = complete_magic(code, len(code) if cursor_pos is None else cursor_pos)
        if found is not None:
            return {
                "status": "ok", "matches": list(found.matches), "cursor_start": found.start, "cursor_end": found.end,
                "metadata": {},
            }
        return await self.introspection.ask("complete", code, cursor_pos=cursor_pos)

    async def do_inspect(
        self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Inspect the name at *cursor_pos*: in the line of a magic here, else asked of the guest."""
        text = inspect_magic(code, cursor_pos)
        if text is not None:
            return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}
        level = 1 if detail_level else 0
        return await self.introspection.ask("inspect", code, cursor_pos=cursor_pos, detail_level=level)

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        """Tell whether *code* can be run as it stands, asked of the guest."""
        return await self.introspection.ask("is_complete", code)

    async def do_history(self, hist_access_type: str, output: bool, raw: bool, **query: Any) -> dict[str, Any]:
        """Return history of this session, asked of the guest."""
        wanted = {"hist_access_type": hist_access_type, "output": output, "raw": raw, **query}
        return await self.introspection.ask("history", "", query=wanted)

    async def comm_info_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """List the open comms of the guest."""
        comms = self.comms.listing(parent["content"].get("target_name"))
        self.session.send(stream, "comm_info_reply", {"status": "ok", "comms": comms}, parent, ident)

    async def comm_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Pass a comm message of the front end to the guest, as far as the filter lets it."""
        await self.on_main(self.comms.from_front_end(parent))

    def topic(self, kind: str) -> bytes:
        """Return the iopub topic of a message type."""
        return bytes(self._topic(kind))

    def _publish(
        self, kind: str, content: Mapping[str, Any], parent: Mapping[str, Any], metadata: Mapping[str, Any] | None,
        buffers: Sequence[bytes],
    ) -> None:
        self.session.send(
            self.iopub_socket, kind, dict(content), parent=dict(parent), ident=self.topic(kind),
            metadata=dict(metadata) if metadata else None, buffers=list(buffers) or None,
        )
