"""The interpreter with IPython: its InteractiveShell, wired to the channel instead of to sockets."""

from __future__ import annotations

import asyncio
import builtins
import functools
import os
import subprocess
import sys
import types
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

import IPython
from IPython.core import page
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.tokenutil import token_at_cursor
from traitlets import Any as AnyTrait
from traitlets import CBool, Type
from traitlets.config import Config

from . import plots
from .comms import CommRoom
from .completion import Completions
from .facade import KernelFacade, announce
from .history import History
from .kept_apart import HERE, Payloads, keep_hooks_set, store_in_place
from .kernel_magics import register
from .packages import say_what_lasts
from .services import Outcome, Request, Services
from .shell import Engine
from .stops import run_child
from .streams import text_of
from .subshells import Awaiting, run_beside
from .tracebacks import OWN_FOLDER, lines_of, shortened_error

MOST_NAME = 255


class CellCompiler(CachingCompiler):  # type: ignore[misc]
    """Names the code of a cell by its real file, so that every tool that opens ``co_filename`` finds the source."""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        if raw_code == HERE.source:
            return HERE.path
        return str(super().get_code_name(raw_code, transformed_code, number))


class GuestDisplayHook(DisplayHook):  # type: ignore[misc]
    """Sends the value of a cell as execute_result."""

    services = AnyTrait()

    @property
    def prompt_count(self) -> Any:
        """The number of the calling thread's cell, under which ``Out`` keeps its value."""
        return super().prompt_count if HERE.count is None else HERE.count

    def start_displayhook(self) -> None:
        HERE.formatting = True
        HERE.bundle = None

    def write_output_prompt(self) -> None:
        """The count travels with the reply."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        HERE.bundle = (format_dict, md_dict)

    def finish_displayhook(self) -> None:
        if HERE.bundle is not None and HERE.bundle[0] and self.services is not None:
            self.services.display("execute_result", *HERE.bundle)
        HERE.bundle = None
        HERE.formatting = False


class GuestDisplayPublisher(DisplayPublisher):  # type: ignore[misc]
    """Sends what is displayed."""

    services = AnyTrait()

    def publish(
        self, data: Any, metadata: Any = None, source: Any = None, *, transient: Any = None, update: bool = False,
        **kwargs: Any,
    ) -> None:
        if self.services is not None:
            kind = "update_display_data" if update else "display_data"
            self.services.display(kind, data, metadata, (transient or {}).get("display_id"))

    def clear_output(self, wait: bool = False) -> None:
        if self.services is not None:
            self.services.clear(wait)


class ZMQInteractiveShell(InteractiveShell):  # type: ignore[misc]
    """The interactive shell of a notebook. Libraries recognise one by this class name."""

    displayhook_class = Type(GuestDisplayHook)
    display_pub_class = Type(GuestDisplayPublisher)
    compiler_class = Type(CellCompiler)
    _count = 1
    autoindent = CBool(False)
    kernel = AnyTrait()
    services = AnyTrait()

    @property
    def execution_count(self) -> int:
        """The number of the calling thread's cell; elsewhere that of the cell which began last."""
        return self._count if HERE.next_count is None else HERE.next_count

    @execution_count.setter
    def execution_count(self, count: int) -> None:
        self._count = count
        if HERE.next_count is not None:
            HERE.next_count = count

    def init_environment(self) -> None:
        """Colours where a program has them, no pager that waits for keys."""
        os.environ.update(
            TERM="xterm-color", CLICOLOR="1", FORCE_COLOR="1", CLICOLOR_FORCE="1", PAGER="cat", GIT_PAGER="cat"
        )

    def init_hooks(self) -> None:
        super().init_hooks()
        self.set_hook("show_in_pager", page.as_hook(self._page), 99)

    def _page(self, text: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None) -> None:
        data = text if isinstance(text, dict) else {"text/plain": text}
        self.payload_manager.write_payload({"source": "page", "data": data, "start": max(0, start)})

    def transform_cell(self, raw_cell: str) -> str:
        """Return the Python of a cell. It was made to see whether the cell awaits: that is not done a second time."""
        known, HERE.transformed = HERE.transformed, None
        return known[1] if known is not None and known[0] == raw_cell else str(super().transform_cell(raw_cell))

    def should_run_async(self, raw_cell: str, *, transformed_cell: str, **more: Any) -> bool:
        """Whether a cell awaits; asked twice in the same way."""
        known, HERE.awaits = HERE.awaits, None
        if known is not None and known[0] == transformed_cell:
            return known[1]
        return bool(super().should_run_async(raw_cell, transformed_cell=transformed_cell, **more))

    def run_cell_async(self, *args: Any, **options: Any) -> Any:
        """Return the coroutine that runs a cell, and remember it: one that is never begun is complained about."""
        HERE.coroutine = super().run_cell_async(*args, **options)
        return HERE.coroutine

    def set_next_input(self, s: str, replace: bool = False) -> None:
        """Offer *s* as the next cell."""
        self.payload_manager.write_payload({"source": "set_next_input", "text": s, "replace": replace})

    def enable_gui(self, gui: Any = None) -> None:
        """Only the inline backend has a place to draw here."""
        if gui not in (None, "", "inline", "agg"):
            raise UsageError("There is no window system in this sandbox: the %s event loop cannot be used." % gui)

    def ask_exit(self) -> None:
        """``exit`` and ``quit`` end the cell."""
        raise SystemExit

    def system_piped(self, cmd: str) -> None:
        """Run a shell command; its output is that of descriptors 1 and 2 and shows as it comes."""
        command = self.var_expand(cmd, depth=1)

        def start(**pipes: Any) -> "subprocess.Popen[bytes]":
            return subprocess.Popen(command, shell=True, executable=os.environ.get("SHELL"), **pipes)

        beside = self.services is not None and self.services.subshell()
        self.user_ns["_exit_code"] = run_beside(start) if beside else run_child(start)

    system = system_piped

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        if HERE.stopped and issubclass(etype, asyncio.CancelledError):
            etype, evalue = KeyboardInterrupt, ""
            stb = [text_of(line, "").replace("CancelledError", "KeyboardInterrupt") for line in stb]
        lines = [text_of(line, "") for line in ([stb] if isinstance(stb, str) else stb)]
        HERE.shown_error = lines
        HERE.failed |= HERE.formatting  # a result that cannot be shown fails its cell
        if self.services is not None:
            self.services.error(etype.__name__, text_of(evalue, "<the exception's text cannot be made>"), lines)

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        """Show the exception; in Python's own form where IPython has none (groups) or stumbles over it."""
        _end_at_user_code((exc_tuple or sys.exc_info())[2])
        try:
            etype, evalue, _ = self._get_exc_info(exc_tuple)
        except ValueError:
            etype = evalue = None  # IPython says that there is nothing to show
        if etype in (KeyboardInterrupt, SystemExit) and not self.services.router.channel.open:
            return  # a forked child ends: forty that one Stop reaches have no need of forty tracebacks
        if not _holds_group(evalue):
            try:
                super().showtraceback(exc_tuple, *args, **kwargs)
                return
            except Exception:
                pass
        hidden = (OWN_FOLDER, os.path.dirname(IPython.__file__) + os.sep)
        labels = {name: "In[%s]" % number for name, number in self.compile._filename_map.items()}
        self._showtraceback(etype, evalue, lines_of(evalue, lambda name: name.startswith(hidden), labels))

    def show_usage_error(self, exc: BaseException) -> None:
        """Show it as an error like any other: printed, as IPython does, it would be there twice."""
        self._showtraceback(type(exc), exc, ["\x1b[31mUsageError\x1b[39m: %s" % exc])

    def _format_exception_for_storage(self, exception: BaseException, *_: Any, **__: Any) -> Dict[str, Any]:
        """What %history keeps of an error: the lines that were shown, instead of making them a second time."""
        return shortened_error(type(exception).__name__, text_of(exception, ""), list(HERE.shown_error or []))

    def _user_obj_error(self) -> Dict[str, Any]:
        """What a user expression that raised replies."""
        error = super()._user_obj_error()
        return dict(error, **shortened_error(error["ename"], text_of(error["evalue"], ""), list(error["traceback"])))

    def get_parent(self) -> Dict[str, Any]:
        """Return the header of the request that the calling code belongs to, as far as libraries ask for it."""
        return self.kernel.get_parent() if self.kernel is not None else {}

    def set_thread_parent(self, parent: Any) -> Any:
        """Let the output of the calling thread or task belong to the cell of *parent*; returns what undoes it."""
        return self.services.router.belong_to(_cell_of(parent))

    def reset_thread_parent(self, token: Any) -> None:
        """Undo one ``set_thread_parent``; a thread's output then follows whichever cell runs."""
        self.services.router.follow_running(token)

    def set_parent(self, parent: Any) -> None:
        """As ``set_thread_parent``: other threads follow the cell that started them."""
        self.set_thread_parent(parent)

    @property
    def parent_header(self) -> Dict[str, Any]:
        return self.get_parent()


class IPythonEngine(Engine):
    """Runs cells with IPython."""

    mode = "ipython"

    def __init__(self, services: Services, user: types.ModuleType) -> None:
        self.info = {"ipython": IPython.__version__}
        self._services = services
        services.not_allowed = StdinNotImplementedError
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.IPKernelApp.guest = True  # what libraries look for to tell a notebook from a terminal
        self.shell = shell = ZMQInteractiveShell.instance(config=config, user_module=user, user_ns=user.__dict__)
        shell.kernel = KernelFacade(services, shell)
        shell.displayhook.services = shell.display_pub.services = shell.services = services
        shell.payload_manager = Payloads(services.subshell)
        announce(ZMQInteractiveShell)
        _interruptible_pdb()
        _look_for_what_is_displayed(services)
        plots.install(services.subshell)
        keep_hooks_set(shell)
        say_what_lasts()
        # A Stop can break in between the making of this coroutine of ours and its start, wherever it is remembered.
        warnings.filterwarnings("ignore", r"coroutine '[\w.]*\.run_cell_async' was never awaited", RuntimeWarning)
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")  # exiting ends the cell here, whichever way
        self.comms = CommRoom(services)
        shell.kernel.comm_manager = self.comms.manager
        register(shell)
        own = {name: list(calls) for name, calls in shell.events.callbacks.items() if name.startswith("post_")}
        services.result_is_last = lambda: shell.ast_node_interactivity != "all" and all(
            shell.events.callbacks[name] == calls for name, calls in own.items()
        )
        self._history = History()
        self._completions = Completions(shell.Completer)
        manager = shell.history_manager  # for %history -l and -g, %rerun and %recall
        manager.get_tail = self._tail
        manager.search = self._search
        manager.get_range = _without_gaps(manager.get_range)
        store_in_place(manager)

    # -- cells ---------------------------------------------------------------------------------------------------------

    def execute(self, source: str, request: Request) -> Union[Outcome, Awaiting]:
        shell = self.shell
        HERE.begin(source, request.path, request.execution_count)
        shell.kernel.begin(request, source)
        if request.execution_count is not None:
            shell.execution_count = request.execution_count  # the host's, which goes on with a new interpreter
        if request.store_history:
            self._history.add(shell.execution_count, source)
        problem = None
        try:
            transformed = shell.transform_cell(source)
        except Exception:
            transformed, problem = source, sys.exc_info()
        if shell.should_run_async(source, transformed_cell=transformed, preprocessing_exc_tuple=problem):
            return lambda: self._awaiting(source, request, transformed, problem)
        if problem is None:
            HERE.transformed, HERE.awaits = (source, transformed), (transformed, False)
        try:
            result = shell.run_cell(source, store_history=request.store_history, silent=request.silent)
        except BaseException:  # a Stop that broke in before IPython began to run it
            if HERE.coroutine is not None:
                HERE.coroutine.close()
            raise
        return self._outcome(result, request)

    async def _awaiting(self, source: str, request: Request, transformed: str, problem: Any) -> Outcome:
        shell, result = self.shell, None
        try:
            result = await shell.run_cell_async(
                source, store_history=request.store_history, silent=request.silent, transformed_cell=transformed,
                preprocessing_exc_tuple=problem,
            )
        finally:
            shell.events.trigger("post_execute")
            if not request.silent and result is not None:
                shell.events.trigger("post_run_cell", result)
        return self._outcome(result, request)

    def _outcome(self, result: Any, request: Request) -> Outcome:
        shell = self.shell
        ok = bool(result.success) and not HERE.failed
        ended_by = result.error_before_exec or result.error_in_exec
        if not self._services.router.channel.open:
            return Outcome(ok, {}, ended_by)  # a forked child: replies are its parent's
        if not result.success and HERE.shown_error is None:  # such as bdb's quit, which IPython keeps to itself
            name = type(ended_by).__name__
            self._services.error(name, text_of(ended_by, ""), [name])
        reply: Dict[str, Any] = {
            "execution_count": shell.execution_count - (1 if request.store_history else 0),
            "user_expressions": shell.user_expressions(request.user_expressions) if ok else {},
            "payload": shell.payload_manager.read_payload(),
        }
        shell.payload_manager.clear_payload()
        return Outcome(ok, reply)

    def stopped(self) -> None:
        HERE.stopped = True

    # -- introspection -------------------------------------------------------------------------------------------------

    def complete(self, code: str, cursor: int) -> Dict[str, Any]:
        found = self._completions.find(code, cursor)
        typed = [
            {"start": item.start, "end": item.end, "text": item.text, "type": item.type, "signature": item.signature}
            for item in found
        ]
        return {
            "status": "ok", "matches": [item.text for item in found],
            "cursor_start": found[0].start if found else cursor, "cursor_end": found[0].end if found else cursor,
            "metadata": {"_jupyter_types_experimental": typed},
        }

    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, Any]:
        name = token_at_cursor(code, cursor)
        reply: Dict[str, Any] = {"status": "ok", "found": False, "data": {}, "metadata": {}}
        try:
            reply["data"] = dict(self.shell.object_inspect_mime(name, detail_level=detail))
            if not self.shell.enable_html_pager:
                reply["data"].pop("text/html", None)
            reply["found"] = True
        except KeyError:
            pass
        return reply

    def is_complete(self, code: str) -> Dict[str, Any]:
        status, indent = self.shell.input_transformer_manager.check_complete(code)
        return {"status": status, "indent": " " * (indent or 0)} if status == "incomplete" else {"status": status}

    def history(self, query: Dict[str, Any]) -> Dict[str, Any]:
        outputs = self.shell.history_manager.output_hist_reprs
        return {"status": "ok", "history": self._history.select(query, outputs)}

    def _tail(self, n: Any = 10, raw: bool = True, output: bool = False, include_latest: bool = False) -> List[Any]:
        query = {"hist_access_type": "tail", "n": n, "output": output, "before": not include_latest}
        return self._history.select(query, self.shell.history_manager.output_hist_reprs)

    def _search(
        self, pattern: str = "*", raw: bool = True, search_raw: bool = True, output: bool = False, n: Any = None,
        unique: bool = False,
    ) -> List[Any]:
        query = {
            "hist_access_type": "search", "pattern": pattern, "n": n, "output": output, "unique": unique,
            "before": True,
        }
        return self._history.select(query, self.shell.history_manager.output_hist_reprs)

    def comm(self, header: Dict[str, Any], payload: bytes) -> None:
        self.comms.receive(header, payload)


def _without_gaps(get_range: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """Leave out numbers of cells that did not run here: an earlier interpreter's, and the kernel's own magics."""

    def rows(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for session, line, entry in get_range(*args, **kwargs):
            if entry[0] if isinstance(entry, tuple) else entry:
                yield session, line, entry

    return rows


def _interruptible_pdb() -> None:
    """Let ``pdb`` be IPython's debugger, which a Stop ends: Python's own would ask on."""
    import pdb

    from IPython.core import debugger

    debugger.Pdb = debugger.InterruptiblePdb
    pdb.Pdb = debugger.Pdb  # type: ignore[misc]
    pdb.set_trace = debugger.set_trace


def _look_for_what_is_displayed(services: Services) -> None:
    """Let ``Image("plot.png")`` ask for a file beside the notebook: it only looks whether there is one by this name."""
    from IPython.core.display import DisplayObject, Image

    for kind in (DisplayObject, Image):  # Image looks before its base does
        kind.__init__ = _asking_first(kind.__init__, services)


def _asking_first(plain: Callable[..., None], services: Services) -> Callable[..., None]:
    @functools.wraps(plain)
    def init(self: Any, data: Any = None, *args: Any, **keys: Any) -> None:
        name = str(data) if isinstance(data, (str, os.PathLike)) else ""
        if 0 < len(name) <= MOST_NAME and name.isprintable() and "<" not in name and "://" not in name:
            services.look_for(name)
        plain(self, data, *args, **keys)

    return init


def _cell_of(parent: Any) -> str:
    """Return the id of the cell that a request, or its header, belongs to; empty when it names none."""
    header = parent.get("header", parent) if isinstance(parent, dict) else {}
    cell = header.get("msg_id", "") if isinstance(header, dict) else ""
    return cell if isinstance(cell, str) and len(cell) <= 256 else ""


def _end_at_user_code(trace: Optional[types.TracebackType]) -> None:
    """Cut off what follows the last frame that is not of these modules: a Stop often finds our code waiting."""
    last = None
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OWN_FOLDER):
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None


def _holds_group(error: Optional[BaseException]) -> bool:
    """True when *error* is an exception group, or came while one was handled."""
    group = getattr(builtins, "BaseExceptionGroup", None)  # Python 3.11
    while error is not None and group is not None:
        if isinstance(error, group):
            return True
        error = error.__context__
    return False
