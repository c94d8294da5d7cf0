"""The conformance suite for Jupyter kernels."""

from __future__ import annotations

import queue
import time
from typing import ClassVar

import jupyter_kernel_test


class AgentlyKernelTests(jupyter_kernel_test.KernelTests):  # type: ignore[misc]
    """Every check that applies to a Python kernel; message forms are checked against the protocol's schemas."""

    kernel_name = "agently"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples: ClassVar = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples: ClassVar = ["1", "print('hello')", "def f(x):\n  return x*2\n\n"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise RuntimeError"
    code_execute_result: ClassVar = [{"code": "1+2+3", "result": "6"}]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('x'))", "mime": "text/latex"},
    ]
    code_inspect_sample = "print"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    supported_history_operations = ("tail", "range", "search")
    code_history_pattern = "1?2*"

    @classmethod
    def setUpClass(cls) -> None:
        """Complete once: the first completion of a session parses for seconds on a busy machine."""
        super().setUpClass()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            asked = cls.kc.complete("zi")
            try:
                while True:
                    reply = cls.kc.get_shell_msg(timeout=30)
                    if reply["parent_header"].get("msg_id") == asked:
                        break
            except queue.Empty:
                continue
            if reply["content"]["matches"]:
                break


del jupyter_kernel_test.KernelTests
