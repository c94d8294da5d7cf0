"""The names that libraries look for when they want to know whether a notebook runs them, and what they ask it then."""

from __future__ import annotations

import logging
import sys
import types
import uuid
from collections import OrderedDict
from typing import Any, Dict

from . import bundles
from .services import Request, Services

MOST_REQUESTS = 1000
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
        self._requests: "OrderedDict[str, Dict[str, Any]]" = OrderedDict()
        self._control: Dict[str, Any] = {}

    def begin(self, request: Request, source: str) -> None:
        """Note the request of the cell that runs now, as far as the host tells it."""
        told = request.told.get("shell") or {}
        content = {
            "code": source, "silent": request.silent, "store_history": request.store_history,
            "user_expressions": dict(request.user_expressions), "allow_stdin": request.allow_stdin,
        }
        self._requests[request.cell] = _message(dict(told.get("header") or {}, msg_id=request.cell), told, content)
        while len(self._requests) > MOST_REQUESTS:
            self._requests.popitem(last=False)
        control = request.told.get("control") or {}
        self._control = _message(dict(control.get("header") or {}), control, {}) if control else {}

    def get_parent(self, channel: Any = None) -> Dict[str, Any]:
        """Return the request that the calling code belongs to, its ``msg_id`` is the id of the cell; for the channel
        ``control`` the last request there before this cell."""
        if channel == "control":
            return self._control
        cell = self._services.router.owner()
        known = self._requests.get(cell)
        return known if known is not None else _message({"msg_id": cell, "session": self.session.session}, {}, {})

    @property
    def _parent_header(self) -> Dict[str, Any]:
        return self.get_parent()

    @property
    def _parent_ident(self) -> Dict[str, Any]:
        """Names of the clients that sent the requests, as ipykernel keeps them: nothing can be sent to them here."""
        return {
            channel: [str(self.get_parent(channel).get("header", {}).get("session", "")).encode()]
            for channel in ("shell", "control")
        }

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


def _message(header: Dict[str, Any], told: Dict[str, Any], content: Dict[str, Any]) -> Dict[str, Any]:
    header = dict({"msg_type": "execute_request", "username": "sandbox"}, **header)
    return {"header": header, "msg_id": header.get("msg_id", ""), "msg_type": header["msg_type"], "parent_header": {},
            "content": content, "metadata": dict(told.get("metadata") or {}), "buffers": []}


def announce(shell_class: type) -> None:
    """Let ``'ipykernel.zmqshell' in sys.modules`` be true, which some libraries take as the mark of a notebook."""
    module = types.ModuleType("ipykernel.zmqshell", "Stands in for the shell of ipykernel, which is not loaded here")
    module.__dict__["ZMQInteractiveShell"] = shell_class
    sys.modules.setdefault("ipykernel.zmqshell", module)
