"""What the kernelspec starts: ``main()``, after it has taken the notebook's folder from the import path.

That folder would come first for ``python -m agently_kernel`` before Python 3.11 (from then on, ``PYTHONSAFEPATH`` keeps
it away), so a file saved beside the notebook, such as ``agently_kernel.py`` or ``runpy.py``, would run in this process.
For ``python -c`` it is the empty entry, and nothing has been imported through it when the kernelspec's line takes that
away.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # started by hand, with -m: the current folder

import gc

SETTLED = 3.0
"""Seconds after which the start is over and garbage is collected again."""


def main() -> None:
    """Run the kernel until it is shut down.

    The sockets are bound first, then the sandbox is started, and the kernel's own modules are loaded while it boots.
    Collecting garbage and waiting long for the interpreter's lock would only cost time during that.
    """
    gc.disable()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)

    from agently_kernel.early_sockets import bind_early

    early = bind_early(sys.argv[1:])

    import asyncio

    from agently_kernel.deferred import defer

    defer("IPython", "ipykernel", "jupyter_client")  # needed for a few of their modules
    from agently_kernel.startup import load_while_starting, prepare
    from agently_kernel.user_config import read_config

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    prepared = prepare(*read_config(sys.argv[1:]))
    loop.run_until_complete(load_while_starting(prepared, "agently_kernel.app"))

    from agently_kernel.app import run

    def settle() -> None:
        sys.setswitchinterval(interval)
        gc.freeze()
        gc.enable()

    loop.call_later(SETTLED, settle)
    run(prepared, early)


if __name__ == "__main__":
    main()
