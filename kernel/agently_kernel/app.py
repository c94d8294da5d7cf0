"""The process of a kernel: sockets and threads of ipykernel's application, none of its IPython.

The outer process runs no user code, so it has no shell, no profile and no captured streams; what it prints goes to the
log of whoever started it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import zmq
from ipykernel.kernelapp import IPKernelApp
from traitlets import Instance, Type, Unicode, default
from traitlets.config import Config

from agently_kernel import __version__
from agently_kernel.iopub_socket import LoopSocket
from agently_kernel.kernel import AgentlyKernel
from agently_kernel.startup import Prepared, prepare, read_config

IOPUB_HIGH_WATER = 10_000
"""Messages a slow reader may be behind before the socket drops some: 500 s of a stream at its highest rate."""


class AgentlyKernelApp(IPKernelApp):  # type: ignore[misc]
    """Starts an :class:`AgentlyKernel` on the connection file it is given."""

    name = "agently-kernel"
    version = Unicode(__version__)
    description = "Agently (sandboxed): a Jupyter kernel that runs every cell in a sandbox."
    kernel_class = Type(AgentlyKernel, klass="ipykernel.kernelbase.Kernel")
    classes = (AgentlyKernel, *IPKernelApp.classes[3:])
    prepared = Instance(Prepared, allow_none=True)

    def load_config_file(self, suppress_errors: bool | None = None) -> None:
        """Take the user's configuration, which was read already; the command line wins over it."""
        if self.prepared is None:
            self.prepared = prepare(*read_config(self.argv))
        self.update_config(Config(self.prepared.config))
        self.update_config(self.cli_config)

    @default("profile_dir")  # type: ignore[untyped-decorator]
    def _profile_dir_default(self) -> None:
        return None

    def init_profile_dir(self) -> None:
        """No profile: the outer process has no IPython."""

    def init_pdb(self) -> None:
        """No debugger: the outer process runs no user code."""

    def init_path(self) -> None:
        """Keep ``sys.path`` as it is: nothing of the notebook's folder is ever imported by this process."""

    def init_control(self, context: zmq.Context[Any]) -> None:
        """Open the control channel; cells run one at a time on the main thread, so there is no thread for subshells."""
        super().init_control(context)
        self.shell_channel_thread.io_loop.close()
        self.set_trait("shell_channel_thread", None)
        # iopub is opened next, from this context: a slow reader must not lose messages
        context.sndhwm = IOPUB_HIGH_WATER

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        """Open the publishing socket; no thread for it, see :class:`LoopSocket`."""
        socket = context.socket(zmq.XPUB)
        socket.linger = 1000
        self._apply_curve_server_options(socket)
        self.set_trait("iopub_port", self._bind_socket(socket, self.iopub_port))
        self.configure_tornado_logger()
        self.iopub_socket = LoopSocket(socket, self.session, asyncio.get_event_loop_policy().get_event_loop())

    def close(self) -> None:
        """Close the sockets."""
        self.iopub_socket.close()
        super().close()

    def init_io(self) -> None:
        """Leave the process's streams alone: output of cells comes from the sandbox, by another way."""
        self.displayhook = SimpleNamespace()
        if sys.stdout is None or sys.stderr is None:  # started without a console
            sink = open(os.devnull, "w")  # noqa: SIM115, PTH123  # lives as long as the process
            sys.stdout, sys.stderr = sys.stdout or sink, sys.stderr or sink

    def init_signal(self) -> None:
        """Ignore SIGINT: Stop comes as a message."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def init_kernel(self) -> None:
        """Make the kernel, and have SIGTERM end it the tidy way."""
        super().init_kernel()
        if sys.platform != "win32":
            asyncio.get_event_loop_policy().get_event_loop().add_signal_handler(signal.SIGTERM, self.kernel.terminate)


def run(prepared: Prepared) -> None:
    """Run the kernel that was prepared, on this thread's event loop, until it is shut down."""
    app = AgentlyKernelApp.instance(prepared=prepared)
    app.initialize()
    app.start()
