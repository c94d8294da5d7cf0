"""What the kernel's process loads stays small: it runs no user code, is no client, and asks for no addresses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys
from agently_kernel.deferred import defer
defer("IPython", "ipykernel", "jupyter_client")
from agently_kernel.app import AgentlyKernelApp
app = AgentlyKernelApp()
app.connection_file = sys.argv[1]
app._find_connection_file()
tcp = app.ip
app.transport = "ipc"
print(json.dumps([tcp, AgentlyKernelApp().ip, AgentlyKernelApp(transport="ipc").ip, list(sys.modules)]))
"""


def test_the_kernel_loads_no_client_no_interpreter_and_no_list_of_addresses(tmp_path: Path) -> None:
    ports = {f"{name}_port": 5 for name in ("shell", "iopub", "stdin", "control", "hb")}
    info = {"transport": "tcp", "ip": "127.0.0.2", "key": "k", "signature_scheme": "hmac-sha256", **ports}
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(info))
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, timeout=60, check=True)
    given, tcp, ipc, modules = json.loads(done.stdout)
    assert (given, tcp, ipc) == ("127.0.0.2", "127.0.0.1", "kernel-ipc")
    heavy = {
        "jupyter_client.client", "jupyter_client.manager", "psutil", "IPython.core.interactiveshell", "jedi",
        "ipykernel.kernelapp", "agently_kernel.panel_state", "agently_kernel.doctor",
    }
    assert not heavy & set(modules)
