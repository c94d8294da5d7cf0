"""The start of an interpreter, in the process that init forked for it: its surroundings, its parts, its end."""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import sys
import time
import traceback
import types
from typing import Any, Dict, NoReturn

from .between import disarm
from .c_output import line_buffer_c_library
from .channel import Channel, ChannelClosed
from .needs import Needs
from .packages import make_installable
from .services import Services
from .shell import Engine, Shell
from .sources import Sources
from .streams import Router
from .threads import ThreadRoom


def _prepare(config: Dict[str, Any]) -> types.ModuleType:
    """Environment, folder, import path and the module ``__main__`` of the user, as a Python started by hand has
    them."""
    environment = config.get("env") or {}
    os.environ.clear()
    os.environ.update({name: value for name, value in environment.items() if isinstance(value, str)})
    time.tzset()
    try:
        os.makedirs(environment.get("HOME") or "/tmp", 0o700, exist_ok=True)
    except OSError:
        pass  # a home that cannot be made is like one that cannot be written: programs say so themselves
    try:
        os.chdir(config.get("cwd") or "/workspace/build")
    except OSError as error:
        os.write(2, ("agently guest: the working folder cannot be entered: %s\n" % error).encode("utf-8", "replace"))
    import site

    site.main()
    sys.path.insert(0, "")
    sys.argv = [""]
    if "HTTPS_PROXY" in environment:
        make_installable()
    user = types.ModuleType("__main__", "Automatically created module for the cells of a notebook")
    user.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = user
    return user


def _engine(mode: str, services: Services, user: types.ModuleType) -> Engine:
    """Return the IPython engine where IPython can be imported (or must be: mode ``ipython``), else the plain one."""
    if mode != "plain":
        try:
            from .shell_ipython import IPythonEngine

            engine: Engine = IPythonEngine(services, user)
            return engine
        except ImportError:
            if mode == "ipython":
                raise
    from .shell_plain import PlainEngine

    return PlainEngine(services, user)


def main(start: Any) -> NoReturn:
    """Be the interpreter that init forked: *start* holds the channel's descriptor, the counter and the
    configuration."""
    code = 0
    try:
        disarm()
        channel = Channel(start.sock, start.counter)
        router = Router(channel)
        room = ThreadRoom(start.config["data_soft"]) if start.config.get("data_soft") else None
        if room is not None:
            room.install()
        user = _prepare(start.config)
        router.install()
        line_buffer_c_library()
        sources = Sources()
        services = Services(router, sources)
        builtins.input = services.input
        import getpass

        getpass.getpass = services.getpass
        engine = _engine(start.config.get("mode") or "auto", services, user)
        sources.install()
        needs = Needs(router, (start.config.get("roots") or {}).get("build") or "/workspace/build")
        shell = Shell(channel, router, services, engine, needs, room)
        needs.install()
        services.look_for = needs.look_for
        gc.collect()
        gc.freeze()
        shell.serve()
    except ChannelClosed:
        os._exit(1)
    except BaseException:
        code = 3
        traceback.print_exc()
    try:
        atexit._run_exitfuncs()
        router.flush()
    except BaseException:
        code = code or 1
    os._exit(code)
