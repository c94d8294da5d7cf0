"""The process of a kernel: connection file, sockets, heartbeat, control thread.

Not ipykernel's own application, which is one for an IPython: this process runs no user code, so it has no shell, no
profile and no captured streams, and does not load any. What it prints goes to the log of whoever started it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import zmq
from ipykernel.control import ControlThread
from ipykernel.heartbeat import Heartbeat
from jupyter_client.connect import ConnectionFileMixin
from jupyter_client.session import Session, session_aliases, session_flags
from jupyter_core.paths import jupyter_runtime_dir, secure_write
from tornado.ioloop import IOLoop
from traitlets import Instance, TraitError, Type, Unicode, default
from traitlets.config import Application, Config, catch_config_error
from traitlets.utils import filefind
from zmq.eventloop.zmqstream import ZMQStream

from agently_kernel import __version__
from agently_kernel.early_sockets import KINDS, Connection, EarlySockets, open_socket
from agently_kernel.iopub_socket import LoopSocket, ReplyStream
from agently_kernel.kernel import AgentlyKernel
from agently_kernel.startup import Prepared, prepare
from agently_kernel.user_config import config_places, read_config

T = TypeVar("T")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PORTS = ("shell", "iopub", "stdin", "hb", "control")
_PLAIN = (
    "The kernel runs over TCP without encryption: code and outputs could be read on their way. Use the ipc transport, "
    "or a client that provides CurveZMQ keys."
)


class AgentlyKernelApp(Application, ConnectionFileMixin):  # type: ignore[misc]
    """Starts an :class:`AgentlyKernel` on the connection file it is given."""

    name = Unicode("agently-kernel")
    version = Unicode(__version__)
    description = Unicode("Agently (sandboxed): a Jupyter kernel that runs every cell in a sandbox.")
    classes: ClassVar[list[type]] = [AgentlyKernel, Session]
    aliases: ClassVar[dict[str, str]] = {
        "f": "AgentlyKernelApp.connection_file",
        "ip": "AgentlyKernelApp.ip",
        "transport": "AgentlyKernelApp.transport",
        "log-level": "Application.log_level",
        "profile": "AgentlyKernelApp.profile",
        "profile-dir": "AgentlyKernelApp.profile",
        **{name: f"AgentlyKernelApp.{name}_port" for name in _PORTS},
        **session_aliases,
    }
    flags: ClassVar[dict[str, Any]] = {
        "debug": ({"Application": {"log_level": logging.DEBUG}}, "set the log level to debug"),
        **session_flags,
    }
    profile = Unicode(help="taken and ignored: whoever starts an IPython kernel may name a profile").tag(config=True)
    blocking_class = Type(klass=object, default_value=object)  # of clients: the base's name would load all of them
    prepared = Instance(Prepared, allow_none=True)
    early = Instance(EarlySockets, allow_none=True)
    context = Instance(zmq.Context, allow_none=True)
    heartbeat = Instance(Heartbeat, allow_none=True)
    control_thread = Instance(ControlThread, allow_none=True)
    kernel = Instance(AgentlyKernel, allow_none=True)

    @default("ip")  # type: ignore[untyped-decorator]
    def _ip_default(self) -> str:
        """The loopback address; the base asks for all addresses of the machine, and loads a library for that."""
        return _LOOPBACK[0] if self.transport == "tcp" else str(super()._ip_default())

    @catch_config_error  # type: ignore[untyped-decorator]
    def initialize(self, argv: Any = None) -> None:
        """Read command line and connection file, open the sockets, make the kernel."""
        self.parse_command_line(argv)
        if self.prepared is None:
            self.prepared = prepare(*read_config(sys.argv[1:] if argv is None else argv))
        self._take_config(self.prepared)
        self.log.setLevel(self.log_level)  # else every message is made, to be dropped by the handler
        self._owns_file = False
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._iopub: LoopSocket | None = None
        self._open_streams()
        self._guarded(lambda: self.session)
        self._find_connection_file()
        self._watch_parent()
        if self.curve_secretkey is None and self.transport == "tcp" and self.ip not in _LOOPBACK:
            self.log.warning(_PLAIN)
        self._open_sockets()
        self._start_heartbeat()
        self._write_connection_file()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Stop comes as a message
        self._make_kernel()

    def start(self) -> None:
        """Serve until the kernel is shut down."""
        if self.kernel is None:
            raise RuntimeError("initialize() makes the kernel that start() serves; call it first")
        self.kernel.start()
        IOLoop.current().start()

    def close(self) -> None:
        """Close threads and sockets; what was sent has a second to go on its way."""
        if self.heartbeat is not None:
            self.heartbeat.context.term()
        if self.control_thread is not None and self.control_thread.is_alive():
            self.control_thread.stop()
            self.control_thread.join()
        if self._iopub is not None:
            self._iopub.close()
        for socket in self._sockets.values():
            socket.close()
        if self.context is not None:
            self.context.term()
        if self._owns_file:
            Path(self.connection_file).unlink(missing_ok=True)
            self.cleanup_ipc_files()

    def _take_config(self, prepared: Prepared) -> None:
        """Apply the user's configuration, and over it the command line."""
        self._guarded(lambda: self.update_config(Config(prepared.config)))
        self.update_config(self.cli_config)

    def _guarded(self, make: Callable[[], T]) -> T:
        """Return what *make* makes. Options that Jupyter's own parts refuse are a fault, and are left out from then on.

        Such a fault must not end the process, which nobody would see: every cell is answered with it instead.
        """
        try:
            return make()
        except TraitError as error:
            said = " ".join(str(error).split())[:300].rstrip(".")
            if self.prepared is not None:
                named = re.match(r"The '(\w+)' trait", said)
                place = config_places(sys.argv[1:]).of([(named.group(1),)] if named else [])
                where = place or "An option in your configuration is not valid"
                self.prepared.faults += (f"{where}: {said}.",)
                self.prepared.config = {}
            self.config = Config()
            self.update_config(self.cli_config)
            return make()

    # -- connection ----------------------------------------------------------------------------------------------------

    def _find_connection_file(self) -> None:
        """Load the connection file, or name one that is going to be written and removed by us."""
        name = self.connection_file or f"kernel-{os.getpid()}.json"
        try:
            self.connection_file = filefind(name, [".", jupyter_runtime_dir()])
        except OSError:
            self.connection_file = str(Path(jupyter_runtime_dir(), name))
            Path(self.connection_file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._owns_file = True
            return
        try:
            self.load_connection_file()
        except Exception as error:
            self.log.error("The connection file %s cannot be used: %s", self.connection_file, error)
            self.exit(1)

    def _write_connection_file(self) -> None:
        """Tell the ports that were chosen here to whoever reads the file."""
        known = {} if self._owns_file else json.loads(Path(self.connection_file).read_text("utf-8"))
        info = {
            name: value.decode() if isinstance(value, bytes) else value
            for name, value in self.get_connection_info().items()
        }
        if any(known.get(name) != value for name, value in info.items()):
            with secure_write(self.connection_file) as stream:
                json.dump({**known, **info}, stream, indent=2)
        self.log.info("To connect another client to this kernel, use: --existing %s", self.connection_file)

    def _watch_parent(self) -> None:
        """End this process when the one that started it is gone."""
        handle = int(os.environ.get("JPY_PARENT_PID") or 0)
        if sys.platform == "win32":
            event = int(os.environ.get("JPY_INTERRUPT_EVENT") or 0)
            if handle or event:
                from ipykernel.parentpoller import ParentPollerWindows

                ParentPollerWindows(event, handle).start()
        elif handle > 1:  # init never goes away
            from ipykernel.parentpoller import ParentPollerUnix

            ParentPollerUnix(parent_pid=handle).start()

    # -- sockets -------------------------------------------------------------------------------------------------------

    def _open_sockets(self) -> None:
        """Take the sockets that listen already, or open each on its port or on a free one."""
        connection = Connection(
            self.transport, self.ip, {name: int(getattr(self, f"{name}_port")) for name in KINDS}, self.curve_publickey,
            self.curve_secretkey,
        )
        taken = self.early.take(connection) if self.early is not None else None
        if taken is not None:
            self.context, self._sockets = taken
            return
        self.context = zmq.Context()
        for name in KINDS:
            socket = self._sockets[name] = open_socket(self.context, name, connection)
            self.set_trait(f"{name}_port", self._bind(socket, connection.ports[name]))

    def _bind(self, socket: zmq.Socket[bytes], port: int) -> int:
        if self.transport == "ipc":
            port = port or next(n for n in itertools.count(1) if not Path(f"{self.ip}-{n}").exists())
            socket.bind(f"ipc://{self.ip}-{port}")
        elif port:
            socket.bind(f"tcp://{self.ip}:{port}")
        else:
            port = socket.bind_to_random_port(f"tcp://{self.ip}")
        return port

    def _start_heartbeat(self) -> None:
        self.heartbeat = Heartbeat(
            zmq.Context(), (self.transport, self.ip, self.hb_port), curve_publickey=self.curve_publickey,
            curve_secretkey=self.curve_secretkey,
        )
        self.set_trait("hb_port", self.heartbeat.port)
        self.heartbeat.start()

    @staticmethod
    def _open_streams() -> None:
        """Give a process that was started without a console somewhere to print to."""
        if sys.stdout is None or sys.stderr is None:
            sink = open(os.devnull, "w")  # noqa: SIM115, PTH123  # lives as long as the process
            sys.stdout, sys.stderr = sys.stdout or sink, sys.stderr or sink

    def _make_kernel(self) -> None:
        """Make the kernel, and have SIGTERM end it the tidy way. Subshells need no threads here."""
        self.control_thread = ControlThread(daemon=True)
        control_stream = ZMQStream(self._sockets["control"], self.control_thread.io_loop)
        self.control_thread.start()
        loop = asyncio.get_event_loop_policy().get_event_loop()
        self._iopub = LoopSocket(self._sockets["iopub"], self.session, loop)
        shell_stream = ReplyStream(self._sockets["shell"])
        kernel = self.kernel = self._guarded(
            lambda: AgentlyKernel.instance(
                parent=self, session=self.session, log=self.log, iopub_socket=self._iopub,
                stdin_socket=self._sockets["stdin"], shell_stream=shell_stream,
                control_stream=control_stream, control_thread=self.control_thread,
            )
        )
        kernel.record_ports({f"{name}_port": getattr(self, f"{name}_port") for name in _PORTS})
        if sys.platform != "win32":
            loop.add_signal_handler(signal.SIGTERM, kernel.terminate)


def run(prepared: Prepared, early: EarlySockets | None) -> None:
    """Run the kernel that was prepared, on this thread's event loop, until it is shut down."""
    app = AgentlyKernelApp.instance(prepared=prepared, early=early)
    app.initialize()
    try:
        app.start()
    finally:
        app.close()
