"""The names that libraries look for when they want to know whether a notebook runs them, and what they ask it then."""

from __future__ import annotations

import logging
import sys
import types
import uuid
from typing import Any, Dict

from . import bundles
from .services import Services

_DISPLAYS = ("display_data", "update_display_data", "execute_result")


class SessionFacade:
    """``kernel.session``: an id, and ``send`` for the messages that have a frame of their own here."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.session = uuid.uuid4().hex
        self.username = "sandbox"
        self.key = b""

    def msg(self, kind: str, content: Any = None, parent: Any = None, **_: Any) -> Dict[str, Any]:
        """Return a message as a dict, the way jupyter_client does."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": self.session, "username": self.username}
        return {"header": header, "msg_id": header["msg_id"], "msg_type": kind, "parent_header": parent or {},
                "content": content or {}, "metadata": {}}

    def send(self, stream: Any, msg_or_type: Any, content: Any = None, parent: Any = None, *_: Any, **__: Any) -> Any:
        """Show displays, errors and text that a library sends by hand; every other message goes nowhere."""
        message = msg_or_type if isinstance(msg_or_type, dict) else self.msg(msg_or_type, content, parent)
        kind, content = message.get("msg_type") or message["header"]["msg_type"], message["content"]
        if kind in _DISPLAYS:
            display_id = (content.get("transient") or {}).get("display_id")
            self._services.display(kind, content.get("data"), content.get("metadata"), display_id)
        elif kind == "stream":
            getattr(sys, "stderr" if content.get("name") == "stderr" else "stdout").write(str(content.get("text", "")))
        elif kind == "clear_output":
            self._services.clear(bool(content.get("wait")))
        elif kind == "error":
            self._services.send(
                {"op": "error", "cell": self._services.router.owner()},
                bundles.dumps({key: content.get(key, "") for key in ("ename", "evalue", "traceback")}),
            )
        return message


class KernelFacade:
    """``get_ipython().kernel``: who asks, and ways to send. The kernel itself is outside of the sandbox."""

    implementation = "agently"
    iopub_socket = None
    comm_manager: Any = None

    def __init__(self, services: Services, shell: Any) -> None:
        self._services = services
        self.shell = shell
        self.session = SessionFacade(services)
        self.log = logging.getLogger("agently")
        self.iopub_thread = None

    def get_parent(self, channel: Any = None) -> Dict[str, Any]:
        """Return the request that the calling code belongs to; its ``msg_id`` is the id of the cell."""
        cell = self._services.router.owner()
        header = {"msg_id": cell, "msg_type": "execute_request", "session": self.session.session, "username": "sandbox"}
        return {"header": header, "msg_id": cell, "msg_type": "execute_request", "parent_header": {}, "content": {},
                "metadata": {}}

    @property
    def _parent_header(self) -> Dict[str, Any]:
        return self.get_parent()

    @property
    def user_ns(self) -> Any:
        """The namespace of the cells."""
        return self.shell.user_ns

    def raw_input(self, prompt: str = "") -> str:
        """Ask the user for a line."""
        return self._services.ask(prompt)

    def getpass(self, prompt: str = "", stream: Any = None) -> str:
        """Ask the user for a secret line."""
        return self._services.ask(prompt, password=True)


def announce(shell_class: type) -> None:
    """Let ``'ipykernel.zmqshell' in sys.modules`` be true, which some libraries take as the mark of a notebook."""
    module = types.ModuleType("ipykernel.zmqshell", "Stands in for the shell of ipykernel, which is not loaded here")
    module.__dict__["ZMQInteractiveShell"] = shell_class
    sys.modules.setdefault("ipykernel.zmqshell", module)
