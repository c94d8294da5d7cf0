"""What a Python user does in ipykernel, one row each: the code, and what must be seen for it."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from kernel_session import KernelSession, Run

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()

# (what it is about, code, what must be seen; see `check`)
TABLE: list[tuple[str, str, dict[str, Any]]] = [
    # displays
    (
        "binary data of a bundle travel as base64",
        "display({'image/png': b'\\x89PNG\\r\\n\\x1a\\n', 'text/plain': 'p'}, raw=True)",
        {"first": {"image/png": PNG, "text/plain": "p"}},
    ),
    (
        "a class that shows itself in many forms",
        "class R:\n    def _repr_html_(self): return '<b>h</b>'\n    def _repr_latex_(self): return '$x$'\n"
        "    def _repr_markdown_(self): return '**m**'\n    def __repr__(self): return 'r'\nR()",
        {"result_data": {"text/html": "<b>h</b>", "text/latex": "$x$", "text/markdown": "**m**", "text/plain": "r"}},
    ),
    (
        "a bundle with metadata",
        "class B:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'application/json': {'a': [1]}, 'text/plain': 'b'}, {'application/json': "
        "{'expanded': True}}\nB()",
        {"result_data": {"application/json": {"a": [1]}, "text/plain": "b"}},
    ),
    ("_ipython_display_", "class D:\n    def _ipython_display_(self): print('own way')\nD()", {"stdout": "own way\n"}),
    (
        "JSON, Markdown, Latex",
        "from IPython.display import *\ndisplay(JSON({'k': 1}), Markdown('*m*'), Latex('$y$'))",
        {
            "kinds": ["display_data"] * 3,
            "first": {"application/json": {"k": 1}, "text/plain": "<IPython.core.display.JSON object>"},
        },
    ),
    (
        "clear_output at once",
        "from IPython.display import clear_output\nprint('x'); clear_output(); print('y')",
        {"kinds": ["stream", "clear_output", "stream"]},
    ),
    ("a trailing semicolon", "1 + 1;", {"kinds": []}),
    ("the last expressions", "1\n2", {"result": "2"}),
    ("every expression", "from IPython import get_ipython\nget_ipython().ast_node_interactivity = 'all'", {}),
    ("... is shown", "3\n4", {"results": ["3", "4"]}),
    ("... until it is set back", "get_ipython().ast_node_interactivity = 'last_expr'", {"status": "ok"}),
    # data libraries
    (
        "a plot is a PNG with its size",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()",
        {"mimes": {"image/png", "text/plain"}, "kinds": ["display_data"]},
    ),
    ("a figure that is left open is shown", "plt.figure(); plt.plot([3, 1]);", {"mimes": {"image/png", "text/plain"}}),
    (
        "retina",
        "from matplotlib_inline.backend_inline import set_matplotlib_formats\nset_matplotlib_formats('retina')\n"
        "plt.plot([1, 2]); plt.show()",
        {"mimes": {"image/png", "text/plain"}, "metadata_keys": {"image/png": {"width", "height"}}},
    ),
    (
        "svg by the magic's setting",
        "%config InlineBackend.figure_formats = ['svg']\nplt.plot([1, 2]); plt.show()",
        {"mimes": {"image/svg+xml", "text/plain"}},
    ),
    (
        "png again",
        "%config InlineBackend.figure_formats = ['png']\n%matplotlib inline\nplt.plot([1]); plt.show()",
        {"mimes": {"image/png", "text/plain"}},
    ),
    (
        "pandas",
        "import pandas as pd\npd.DataFrame({'a': [1, 2]})",
        {"result_re": r"   a\n0  1\n1  2", "result_html": "<table"},
    ),
    ("a styled table", "pd.DataFrame({'a': [1, 2]}).style.background_gradient()", {"result_html": "<table"}),
    (
        "a picture",
        "from PIL import Image\nImage.new('RGB', (3, 2), 'red')",
        {"result_mimes": {"image/png", "image/jpeg", "text/plain"}},
    ),
    # magics
    ("%%time", "%%time\nprint('timed'); sum(range(10))", {"stdout_re": r"timed\n(?:.|\n)*Wall time: ", "result": "45"}),
    ("%time", "%time 2 + 3", {"stdout_re": "Wall time", "result": "5"}),
    ("%timeit", "%timeit -n 2 -r 2 1 + 1", {"stdout_re": r"per loop \(mean ± std\. dev\. of 2 runs, 2 loops each\)"}),
    (
        "%%writefile and %run",
        "%%writefile tool.py\nimport sys\nvalue = 5\nprint('ran', __name__, sys.argv[1:])",
        {"stdout": "Writing tool.py\n"},
    ),
    ("%run", "%run tool.py one two\nvalue", {"stdout": "ran __main__ ['one', 'two']\n", "result": "5"}),
    ("an import from the working folder", "import tool as t; t.value", {"stdout": "ran tool []\n", "result": "5"}),
    (
        "autoreload",
        "%load_ext autoreload\n%autoreload 2\nimport fresh_module_that_is_not_there",
        {"error": "ModuleNotFoundError"},
    ),
    (
        "autoreload: a module",
        "open('fresh.py', 'w').write('def f(): return 1\\n')\nimport fresh; fresh.f()",
        {"result": "1"},
    ),
    (
        "autoreload: its change",
        "import os, time\nopen('fresh.py', 'w').write('def f(): return 2  # longer\\n')\n"
        "os.utime('fresh.py', (time.time() + 5,) * 2);",
        {},
    ),
    ("autoreload: is seen", "fresh.f()", {"result": "2"}),
    ("autoreload off", "%autoreload 0", {}),
    ("!cmd", "!printf 'a\\nb\\n'; echo err >&2", {"stdout": "a\nb\n", "stderr": "err\n"}),
    ("!cmd with a variable", "word = 'x y'\n!echo {word} $word", {"stdout": "x y x y\n"}),
    ("the exit code of !cmd", "!exit 3\n_exit_code", {"result": "3"}),
    ("lines of a command", "lines = !printf 'a\\nb'\nlines", {"result": "['a', 'b']"}),
    ("%%bash", "%%bash\nfor i in 1 2; do echo $i; done; echo e >&2", {"stdout": "1\n2\n", "stderr": "e\n"}),
    ("%%bash that fails", "%%bash\nexit 4", {"error": "CalledProcessError"}),
    ("%%sh with its output kept", "%%sh --out kept\necho in", {"kinds": []}),
    ("... in a variable", "kept", {"result": "'in\\n'"}),
    ("%%python", "%%python3\nprint('another interpreter')", {"stdout": "another interpreter\n"}),
    ("%%capture", "%%capture caught\nprint('hidden'); display(7)", {"kinds": []}),
    ("... shown later", "caught.stdout, len(caught.outputs)", {"result": "('hidden\\n', 1)"}),
    ("%pip list", "%pip list", {"stdout_re": r"(?m)^ipykernel +7"}),
    (
        "%%html",
        "%%html\n<i>x</i>",
        {"first": {"text/html": "<i>x</i>\n", "text/plain": "<IPython.core.display.HTML object>"}},
    ),
    ("%who", "only_name = 1\n%who int", {"stdout_re": "only_name"}),
    (
        "%cd and %pwd",
        "import os\nos.makedirs('deep', exist_ok=True)\n%cd -q deep\nhere = os.getcwd()\n%cd -q ..\n"
        "here.endswith('/deep')",
        {"result": "True"},
    ),
    ("%env", "%env FIDELITY=1", {"stdout": "env: FIDELITY=1\n"}),
    ("%prun", "%prun -q sum(range(5))", {"stdout_re": ""}),
    ("%xmode", "%xmode Minimal", {"stdout": "Exception reporting mode: Minimal\n"}),
    ("... shows less", "1/0", {"error": "ZeroDivisionError"}),
    ("... and back", "%xmode Context", {"stdout_re": "Context"}),
    # running
    ("await", "import asyncio\nawait asyncio.sleep(0.01, 'woke')", {"result": "'woke'"}),
    ("asyncio.run", "asyncio.run(asyncio.sleep(0, 'ran'))", {"result": "'ran'"}),
    ("a running loop", "asyncio.get_running_loop().is_running()", {"result": "True"}),
    ("async for and with", "async def g():\n    yield 1\n    yield 2\n[x async for x in g()]", {"result": "[1, 2]"}),
    ("gather", "await asyncio.gather(asyncio.sleep(0.01, 1), asyncio.to_thread(lambda: 2))", {"result": "[1, 2]"}),
    (
        "a subprocess of asyncio",
        "p = await asyncio.create_subprocess_exec('echo', 'child')\nawait p.wait()",
        {"stdout": "child\n", "result": "0"},
    ),
    (
        "a thread pool",
        "from concurrent.futures import *\nlist(ThreadPoolExecutor(3).map(abs, [-1, -2]))",
        {"result": "[1, 2]"},
    ),
    (
        "a forked pool and a function of a cell",
        "import multiprocessing as mp\ndef square(x): return x * x\n"
        "with mp.get_context('fork').Pool(2) as pool: out = pool.map(square, [2, 3])\nout",
        {"result": "[4, 9]"},
    ),
    (
        "a spawned pool and a module's function",
        "with mp.get_context('spawn').Pool(1) as pool: out = pool.map(abs, [-4])\nout",
        {"result": "[4]"},
    ),
    (
        "a forkserver's pool",
        "with mp.get_context('forkserver').Pool(1) as pool: out = pool.map(abs, [-5])\nout",
        {"result": "[5]"},
    ),
    (
        "a ProcessPoolExecutor",
        "with ProcessPoolExecutor(1, mp.get_context('fork')) as pool: out = pool.submit(square, 6).result()\nout",
        {"result": "36"},
    ),
    (
        "prints of workers",
        "def say(x): print('worker', x)\nwith mp.get_context('fork').Pool(1) as pool: pool.map(say, [1]);",
        {"stdout": "worker 1\n"},
    ),
    # text
    (
        "logging",
        "import logging\nlogging.warning('w'); logging.getLogger('n').error('e')",
        {"stderr": "WARNING:root:w\nERROR:n:e\n"},
    ),
    (
        "logging set up by hand",
        "logging.basicConfig(level=logging.INFO, format='%(message)s', force=True); logging.info('i')",
        {"stderr": "i\n"},
    ),
    (
        "warnings",
        "import warnings\nwarnings.warn('careful')",
        {"stderr_re": r"cell\.py:2: UserWarning: careful\n  warnings\.warn\('careful'\)\n"},
    ),
    ("tqdm", "from tqdm import tqdm\nfor i in tqdm(range(3)): pass", {"stderr_re": r"100%.*3/3 \["}),
    (
        "tqdm knows a notebook",
        "from tqdm.auto import tqdm as auto\n[c.__module__ for c in auto.__mro__ if 'notebook' in c.__module__]",
        {"result": "['tqdm.notebook']"},
    ),
    (
        "rich",
        "from rich.console import Console\nfrom rich.table import Table\nt = Table('head'); t.add_row('cell')\n"
        "Console().print(t)",
        {"first_re": r"head(?:.|\n)*cell"},
    ),
    ("rich in place of print", "from rich import print as rprint\nrprint('[bold]b[/bold]')", {"first_re": "b"}),
    (
        "bytes that are not UTF-8, in the middle",
        "import os\nos.write(1, b'before \\xff\\xfe after\\n');",
        {"stdout": "before \ufffd\ufffd after\n"},
    ),
    (
        "a lone surrogate between lines",
        "print('before'); print('\\udc80'); print('after')",
        {"stdout_re": r"before\n.+\nafter\n"},
    ),
    (
        "a lone surrogate in a display",
        "display({'text/plain': 'a\\ud800b'}, raw=True)",
        {"first": {"text/plain": "a\ufffdb"}},
    ),
    ("a character split over writes", "for b in 'aé漢😀\\n'.encode(): os.write(1, bytes([b]))", {"stdout": "aé漢😀\n"}),
    (
        "a character split over streams",
        "os.write(1, 'é'.encode()[:1]); os.write(2, b'e\\n'); os.write(1, 'é\\n'.encode()[1:]);",
        {"stdout_re": "\n$", "stderr": "e\n"},
    ),
    ("what C prints", "import ctypes\nctypes.CDLL(None).printf(b'from C\\n');", {"stdout": "from C\n"}),
    ("colours", "print('\\x1b[31mred\\x1b[0m')", {"stdout": "\x1b[31mred\x1b[0m\n"}),
    (
        "print to the original stream",
        "import sys\nprint('under', file=sys.__stdout__, flush=True)",
        {"stdout": "under\n"},
    ),
    (
        "redirect_stdout",
        "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as s: print('caught')\ns.getvalue()",
        {"result": "'caught\\n'"},
    ),
    # sources, classes, ends
    (
        "getsource of a function",
        "import inspect\ndef shown(): return 1  # F\ninspect.getsource(shown)",
        {"result_re": "# F"},
    ),
    ("getsource of a class", "class Shown:\n    x = 1  # C\ninspect.getsource(Shown)", {"result_re": "# C"}),
    ("getsource of a method of an earlier cell", "inspect.getsource(R._repr_html_)", {"result_re": "def _repr_html_"}),
    (
        "pickling",
        "import pickle\npickle.loads(pickle.dumps(Shown())).x, Shown.__module__",
        {"result": "(1, '__main__')"},
    ),
    (
        "copying and dataclasses",
        "import copy, dataclasses\n@dataclasses.dataclass\nclass P: a: int = 1\ncopy.deepcopy(P(2))",
        {"result": "P(a=2)"},
    ),
    (
        "typing of a cell",
        "def typed(x: 'P') -> int: ...\nimport typing\ntyping.get_type_hints(typed)['x'].__name__",
        {"result": "'P'"},
    ),
    ("exit()", "exit()", {"error": "SystemExit"}),
    ("quit", "quit", {"error": "SystemExit"}),
    ("sys.exit with a message", "sys.exit('bye')", {"error": "SystemExit"}),
    ("a name survives all that", "word", {"result": "'x y'"}),
    ("In, Out, _", "7 * 6", {"result": "42"}),
    ("... _", "_", {"result": "42"}),
    ("... __", "__, _", {"result": "(42, 42)"}),
    ("... Out", "max(Out) > 1 and 'Out' in In[-1]", {"result": "True"}),
    ("%history", "%history -l 1", {"stdout": "max(Out) > 1 and 'Out' in In[-1]\n"}),
    ("%history that searches", "%history -g 7 * 6", {"stdout_re": r"(?m)^ *\d+: 7 \* 6$"}),
    ("%rerun", "%rerun", {"stdout_re": r"=== Executing: ===\n%history -g 7 \* 6\n=== Output: ===\n"}),
    (
        "doctest of a cell",
        "def add(a, b):\n    '''>>> add(1, 2)\n    3'''\n    return a + b\nimport doctest\n"
        "doctest.testmod().attempted > 0",
        {"result": "True"},
    ),
    (
        "a traceback names the line",
        "def bad():\n    return 1 / 0\nbad()",
        {"error": "ZeroDivisionError", "traceback_re": r"line 2[^\n]*\n?(?:.|\n)*1 / 0"},
    ),
    (
        "an exception group",
        "raise ExceptionGroup('g', [ValueError('one'), KeyError('two')])",
        {"error": "ExceptionGroup", "traceback_re": r"ValueError: one(?:.|\n)*KeyError: 'two'"},
    ),
    (
        "a chain",
        "try: 1/0\nexcept ZeroDivisionError as e: raise RuntimeError('outer') from e",
        {"error": "RuntimeError", "traceback_re": "direct cause"},
    ),
    (
        "an error that is shown and goes on",
        "try: 1/0\nexcept ZeroDivisionError: get_ipython().showtraceback()",
        {"error_shown": "ZeroDivisionError"},
    ),
    (
        "a repr that raises",
        "class Bad:\n    def __repr__(self): raise ValueError('no text')\nBad()",
        {"error": "ValueError"},
    ),
    ("an interrupt by hand", "raise KeyboardInterrupt", {"error": "KeyboardInterrupt"}),
    (
        "signals",
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('rang'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "import time\ntime.sleep(0.2)",
        {"stdout": "rang\n"},
    ),
    (
        "get_ipython",
        "type(get_ipython()).__name__, 'IPKernelApp' in get_ipython().config",
        {"result": "('ZMQInteractiveShell', True)"},
    ),
    (
        "sys.stdout of a notebook",
        "sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.fileno()",
        {"result": "(False, 'UTF-8', 1)"},
    ),
]


@pytest.mark.parametrize(("code", "want"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_feature(kernel: KernelSession, code: str, want: dict[str, Any]) -> None:
    check(kernel.run(code), want)


def check(run: Run, want: dict[str, Any]) -> None:
    """Compare what was seen with each thing that *want* names; without an error the cell must end well."""
    shown = run.of("error")
    expected = want.get("error") or want.get("error_shown") or ""
    assert [m["content"]["ename"] for m in shown] == ([expected] if expected else []), run.text("stderr")
    assert run.status == ("error" if expected and "error_shown" not in want else "ok")
    displays, results = run.of("display_data"), run.of("execute_result")
    seen = {
        "stdout": run.text(),
        "stderr": run.text("stderr"),
        "result": run.result,
        "kinds": run.kinds,
        "first": displays[0]["content"]["data"] if displays else {},
        "result_data": results[0]["content"]["data"] if results else {},
        "results": [m["content"]["data"]["text/plain"] for m in results],
        "mimes": set(displays[0]["content"]["data"]) if displays else set(),
        "result_mimes": set(results[0]["content"]["data"]) if results else set(),
        "metadata_keys": {k: set(v) for k, v in displays[0]["content"]["metadata"].items()} if displays else {},
        "status": run.status,
    }
    for name in seen.keys() & want.keys():
        assert seen[name] == want[name], name
    patterns = {
        "stdout_re": run.text(),
        "stderr_re": run.text("stderr"),
        "result_re": run.result,
        "result_html": seen["result_data"].get("text/html", ""),
        "first_re": seen["first"].get("text/plain", ""),
        "traceback_re": re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(shown[0]["content"]["traceback"])) if shown else "",
    }
    for name in patterns.keys() & want.keys():
        assert re.search(want[name], patterns[name]), (name, patterns[name])
    if "stderr" not in want and "stderr_re" not in want and not shown:
        assert run.text("stderr") == ""
