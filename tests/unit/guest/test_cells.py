# ruff: noqa: E501 - programs of cells stand on one line
"""What a cell shows and how it ends, with IPython and without."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from guest_driver import Guest


def test_text_and_value(either: Guest) -> None:
    cell = either.run("print('hi')\n1+1")
    assert cell.script() == [("stdout", "hi\n"), ("execute_result", {"text/plain": "2"})]
    assert cell.done[0] == "ok"


def test_the_hosts_execution_count_is_used_and_told(either: Guest) -> None:
    assert either.run("1", execution_count=700).done[1]["execution_count"] == 700
    assert either.run("1", execution_count=701, store_history=False).done[1]["execution_count"] == 701


def test_a_semicolon_hides_the_value(either: Guest) -> None:
    assert either.run("5;").script() == []


def test_a_silent_cell_prints_but_has_no_value(either: Guest) -> None:
    assert either.run("print('heard'); 5", silent=True).script() == [("stdout", "heard\n")]


def test_state_lives_on(either: Guest) -> None:
    either.run("import os\nkept = [1]\nos.makedirs('sub', exist_ok=True); os.chdir('sub'); os.environ['K'] = 'v'")
    assert either.run("print(kept, os.path.basename(os.getcwd()), os.environ['K']); os.chdir('..')").text() == "[1] sub v\n"


def test_the_last_value_is_an_underscore(either: Guest) -> None:
    either.run("10 * 10")
    assert either.run("_ + 1").result() == {"text/plain": "101"}


def test_an_error_names_cell_and_line_and_no_frame_of_ours(either: Guest) -> None:
    cell = either.run("x = 1\ndef f():\n    return x / 0\nf()", execution_count=31)
    error = cell.error()
    text = "\n".join(error["traceback"])
    assert (error["ename"], error["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert cell.done[0] == "error"
    assert "In[31]" in text and "line 3" in strip(text)
    assert "guest" not in text and "IPython" not in text


def strip(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    "line", ["%time 1", "%%bash", "!ls", "files = !ls", "t = %timeit -o 1", "len?", "?len", "  %cd x"]
)
def test_without_ipython_a_line_of_ipython_is_told_what_it_lacks(plain: Guest, line: str) -> None:
    error = plain.run("x = 1\nif x:\n    pass\n" + line).error()
    assert error["ename"] in ("SyntaxError", "IndentationError") and "has no IPython" in error["evalue"], error
    assert "line 4" in strip("\n".join(error["traceback"]))


@pytest.mark.parametrize("line", ["if True print('x')", "x = 5 %% 3", "print('why?'", "y = 7 !x"])
def test_other_syntax_errors_stay_what_they_are(plain: Guest, line: str) -> None:
    error = plain.run(line).error()
    assert error["ename"] == "SyntaxError" and "IPython" not in error["evalue"], error


def test_a_syntax_error_stops_the_whole_cell(either: Guest) -> None:
    assert either.run("ran_before = 1\nif True print('x')").error()["ename"] == "SyntaxError"
    assert either.run("print('ran_before' in globals())").text() == "False\n"


@pytest.mark.parametrize(
    ("code", "ename", "evalue"),
    [
        ("import sys; sys.exit(3)", "SystemExit", "3"),
        ("raise KeyboardInterrupt('by hand')", "KeyboardInterrupt", "by hand"),
        ("raise GeneratorExit", "GeneratorExit", ""),
        ("class Odd(Exception):\n    def __str__(self): raise RuntimeError\nraise Odd", "Odd", "<the exception's text cannot be made>"),
        ("class Bad:\n    def __repr__(self): raise RuntimeError('broke')\nBad()", "RuntimeError", "broke"),
        ("def r(): return r()\nr()", "RecursionError", "maximum recursion depth exceeded"),
        ("import asyncio\nawait asyncio.sleep(0)\n1/0", "ZeroDivisionError", "division by zero"),
    ],
)
def test_odd_ends_are_one_error_each_and_the_interpreter_lives(either: Guest, code: str, ename: str, evalue: str) -> None:
    cell = either.run(code)
    error = cell.error()
    assert (error["ename"], error["evalue"][: len(evalue)], cell.done[0]) == (ename, evalue, "error")
    assert either.run("print('alive')").text() == "alive\n"


def test_an_exception_group_is_one_error(either: Guest) -> None:
    cell = either.run(
        "import sys\nif sys.version_info < (3, 11): raise ValueError('inner')\nraise ExceptionGroup('all', [ValueError('inner')])"
    )
    assert cell.error()["ename"] in ("ExceptionGroup", "ValueError")
    assert "inner" in "".join(cell.error()["traceback"])


def test_exit_and_quit_end_the_cell_only(ipython: Guest) -> None:
    for code in ("exit", "quit", "exit()", "quit()"):
        assert ipython.run(code).error()["ename"] == "SystemExit"
    assert ipython.run("print('still')").text() == "still\n"


def test_a_source_of_another_digest_is_not_run(either: Guest) -> None:
    cell = either.run("never = 1", digest="sha256:" + "0" * 64)
    assert cell.error()["ename"] == "RuntimeError"
    assert "is not the one that was submitted" in cell.error()["evalue"]
    assert either.run("print('never' in globals())").text() == "False\n"


def test_user_expressions(either: Guest) -> None:
    found = either.run("v = 7", user_expressions={"twice": "v * 2", "bad": "1/0"}).done[1]["user_expressions"]
    assert found["twice"] == {"status": "ok", "data": {"text/plain": "14"}, "metadata": {}}
    assert (found["bad"]["status"], found["bad"]["ename"]) == ("error", "ZeroDivisionError")


def test_a_value_travels_in_all_its_forms(either: Guest) -> None:
    cell = either.run(
        "class Rich:\n"
        "    def _repr_html_(self): return '<i>rich</i>'\n"
        "    def _repr_latex_(self): return '$x$'\n"
        "    def _repr_png_(self): return bytes([137]) + b'PNG'\n"
        "    def _repr_json_(self): return {'k': [1, float('nan')]}\n"
        "    def __repr__(self): return 'plain-form'\n"
        "Rich()"
    )
    assert cell.result() == {
        "text/plain": "plain-form", "text/html": "<i>rich</i>", "text/latex": "$x$", "image/png": "iVBORw==",
        "application/json": {"k": [1, None]},
    } | ({"image/png": "iVBORw==\n"} if cell.result()["image/png"].endswith("\n") else {})


def test_displays_are_updated_by_their_id_from_a_later_cell(either: Guest) -> None:
    first = either.run("h = display('v0', display_id='box')")
    later = either.run("h.update('v1')")
    assert [(d["kind"], d["display_id"], d["data"]["text/plain"]) for d in first.displays() + later.displays()] == [
        ("display_data", "box", "'v0'"), ("update_display_data", "box", "'v1'"),
    ]


def test_an_output_that_is_too_large_is_told(either: Guest) -> None:
    code = "class Big:\n    def _repr_html_(self): return 'x' * (65 << 20)\ndisplay(Big()); print('on')"
    cell = either.run(code)
    assert cell.displays() == []
    assert cell.text("stderr") == "An output of 65 MiB was not shown: at most 64 MiB fit into one output.\n"
    assert cell.text() == "on\n"


@pytest.mark.parametrize("value", ["{1: 'a', '1': 'b'}", "{(1, 2): {3}}", "[float('inf')]", "10 ** 3000", "b'\\xff'"])
def test_json_of_any_value_is_json_that_the_host_takes(either: Guest, value: str) -> None:
    code = f"class J:\n    def _repr_json_(self): return {{'v': {value}}}\nJ()"
    assert "application/json" in either.run(code).result()


def test_deeply_nested_json_is_flattened_and_not_fatal(either: Guest) -> None:
    cell = either.run("d = []\nfor _ in range(200): d = [d]\nclass J:\n    def _repr_json_(self): return {'v': d}\nJ()")
    assert cell.done[0] == "ok"


def test_classes_of_cells_can_be_pickled_and_their_sources_found(either: Guest) -> None:
    either.run("class Kind:\n    def method(self):\n        return 'marker'\n\nclass Bare:\n    field: int = 1")
    cell = either.run(
        "import pickle, inspect, linecache, os\n"
        "print(type(pickle.loads(pickle.dumps(Kind()))) is Kind, '__file__' in globals())\n"
        "print(inspect.getsource(Kind).splitlines()[0], inspect.getsource(Kind.method).strip().splitlines()[1].strip())\n"
        "print(inspect.getsource(Bare).splitlines()[1].strip())\n"
        "name = Kind.method.__code__.co_filename\n"
        "print(os.path.exists(name), 'marker' in open(name).read(), linecache.getline(name, 3).strip())"
    )
    assert cell.text().splitlines() == [
        "True False", "class Kind: return 'marker'", "field: int = 1", "True True return 'marker'",
    ]


def test_modules_beside_the_cell_are_imported(either: Guest) -> None:
    cell = either.run(
        "import pathlib, importlib, sys\npathlib.Path('helper_mod.py').write_text('V = 5')\n"
        "importlib.invalidate_caches(); import helper_mod; print(helper_mod.V, repr(sys.path[0]), sys.argv)"
    )
    assert cell.text() == "5 '' ['']\n"


def test_await_tasks_and_asyncio_run(either: Guest) -> None:
    assert either.run("import asyncio\nawait asyncio.sleep(0.01)\n6*7").result() == {"text/plain": "42"}
    assert either.run("async def f(): return 5\nasyncio.run(f()) + asyncio.run(f())").result() == {"text/plain": "10"}
    either.run("out = []\nasync def ticks():\n    for i in range(3):\n        out.append(i); await asyncio.sleep(0.01)\n"
               "task = asyncio.create_task(ticks())")
    time.sleep(0.2)
    assert either.run("print(out, task.done(), asyncio.get_event_loop().is_running())").text() == "[0, 1, 2] True True\n"


def test_context_variables_outlive_the_cell(either: Guest) -> None:
    either.run("import contextvars\nvar = contextvars.ContextVar('var', default='unset')\nvar.set('set')")
    assert either.run("print(var.get())").text() == "set\n"


def test_input_and_getpass(either: Guest) -> None:
    cell = either.submit("import getpass\nn = input('name? ')\ns = getpass.getpass('pass? ')\nprint(n, len(s))", allow_stdin=True)
    for prompt, password, line in (("name? ", False, "Ada Lövelace"), ("pass? ", True, "hunter22")):
        header, _ = either.until("input")
        assert header == {"op": "input", "cell": cell, "prompt": prompt, "password": password}
        either.send({"op": "input_reply", "cell": cell}, line.encode())
    assert either.collect(cell).text() == "Ada Lövelace 8\n"


def test_input_is_refused_at_once_where_nobody_can_be_asked(either: Guest) -> None:
    error = either.run("input('x')").error()
    assert error["evalue"] == "raw_input was called, but this frontend does not support input requests."
    cell = either.submit("input('x')", allow_stdin=True)
    either.until("input")
    either.send({"op": "input_refused", "cell": cell, "reason": "nobody answered"})
    assert either.collect(cell).error()["evalue"] == "nobody answered"


def test_the_debugger_asks_through_input(either: Guest) -> None:
    cell = either.submit("def f():\n    v = 5\n    import pdb; pdb.set_trace()\n    return v\nprint('got', f())", allow_stdin=True)
    text = ""
    for line in ("v + 100", "c"):
        header, _ = either.until("input")
        text += header["prompt"]
        either.send({"op": "input_reply", "cell": cell}, line.encode())
    assert text.count("(Pdb)") == 2 or text.count("ipdb>") == 2
    assert "got 5" in either.collect(cell).text()


def test_children_read_nothing_from_standard_input(either: Guest) -> None:
    cell = either.run("import subprocess; print(subprocess.run(['cat'], stdout=subprocess.PIPE, timeout=8).stdout)")
    assert cell.text() == "b''\n"


def test_signal_handlers_of_the_user_work_in_the_main_thread(either: Guest) -> None:
    cell = either.run(
        "import signal, threading\nclass Late(Exception): pass\ndef h(*a): raise Late\n"
        "old = signal.signal(signal.SIGALRM, h); signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "import time\ntry: time.sleep(9)\nexcept Late: print('caught', threading.current_thread() is threading.main_thread())\n"
        "signal.signal(signal.SIGALRM, old)"
    )
    assert cell.text() == "caught True\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_process_pools(either: Guest, method: str) -> None:
    cell = either.run(
        "import pathlib, multiprocessing as mp, concurrent.futures as cf, importlib\n"
        "pathlib.Path('pool_mod.py').write_text('def twice(x):\\n    print(\"child\", x, flush=True)\\n    return 2 * x\\n')\n"
        "importlib.invalidate_caches(); import pool_mod\n"
        f"with cf.ProcessPoolExecutor(1, mp_context=mp.get_context({method!r})) as ex:\n"
        "    print(list(ex.map(pool_mod.twice, [4, 5])))"
    )
    assert cell.text() == "child 4\nchild 5\n[8, 10]\n"


def test_a_forked_child_cannot_speak_on_the_channel_but_its_text_arrives(either: Guest) -> None:
    cell = either.run(
        "import os\npid = os.fork()\nif pid == 0:\n    print('from child'); display('shown in child'); os._exit(0)\n"
        "os.waitpid(pid, 0); print('from parent')"
    )
    assert cell.text() == "from child\n'shown in child'\nfrom parent\n"
    assert cell.displays() == []


def test_introspection(either: Guest) -> None:
    either.run("def catalogue_entry(alpha, beta=2):\n    'docstring-of-entry'\n    return alpha")
    either.query("complete", "first", cursor_pos=5)  # loads and parses much: may be cut short on a busy machine
    assert "catalogue_entry" in either.query("complete", "catalogue_en", cursor_pos=12)["matches"]
    reply = either.query("inspect", "catalogue_entry", cursor_pos=4, detail_level=0)
    assert reply["found"] and "docstring-of-entry" in reply["data"]["text/plain"]
    assert either.query("inspect", "no_such_thing", cursor_pos=4, detail_level=0)["found"] is False
    assert either.query("is_complete", "for i in range(3):") == {"status": "incomplete", "indent": "    "}
    assert either.query("is_complete", "x = 1") == {"status": "complete"}
    assert either.query("is_complete", "x = = 1") == {"status": "invalid"}


def test_history(either: Guest) -> None:
    either.run("first_thing = 1", execution_count=901)
    either.run("second_thing = 2", execution_count=902)
    either.run("hidden = 3", execution_count=903, store_history=False)
    ask = lambda **query: either.query("history", query=query)["history"]  # noqa: E731
    assert ask(hist_access_type="tail", n=2) == [[0, 901, "first_thing = 1"], [0, 902, "second_thing = 2"]]
    assert ask(hist_access_type="range", session=0, start=901, stop=902) == [[0, 901, "first_thing = 1"]]
    assert ask(hist_access_type="search", pattern="second*") == [[0, 902, "second_thing = 2"]]
    assert ask(hist_access_type="tail", n=1, output=True)[0][2][0] == "second_thing = 2"


def test_hostile_objects_cost_one_answer(either: Guest) -> None:
    either.run("class Trap:\n    def __dir__(self): raise SystemExit(3)\n    def __getattr__(self, name): raise KeyboardInterrupt(name)\n"
               "trap = Trap()")
    assert either.query("complete", "trap.", cursor_pos=5)["status"] in ("ok", "error")
    assert either.query("inspect", "trap", cursor_pos=4, detail_level=0)["status"] in ("ok", "error")
    assert either.run("print('survived')").text() == "survived\n"


def test_large_sources_run(either: Guest) -> None:
    assert either.run("data = " + repr("z" * 3_000_000) + "\nprint(len(data))").text() == "3000000\n"


def test_user_code_may_replace_builtins_and_json_without_deafening_the_interpreter(tmp_path: Path) -> None:
    with Guest(tmp_path, mode="plain") as guest:
        guest.start()
        guest.run("import json, sys, os, time\njson.loads = json.dumps = lambda *a, **k: {'code': ''}\nos.read = os.write = None\n"
                  "time.sleep = lambda *_: None\nsys.exit = lambda *a: None")
        assert guest.run("print('heard')").text() == "heard\n"


class TestResultsThatTravelWithTheEnd:
    """A small result is held until the cell's end, which follows at once; whatever is shown meanwhile comes after it."""

    def test_other_output_after_the_result_keeps_its_place(self, ipython: Guest) -> None:
        ipython.run("ip = get_ipython()\nlate = lambda: print('late')\nip.events.register('post_execute', late)")
        cell = ipython.run("1 + 1")
        ipython.run("ip.events.unregister('post_execute', late)")
        assert cell.script() == [("execute_result", {"text/plain": "2"}), ("stdout", "late\n")]

    def test_a_value_of_a_nested_cell_comes_before_what_is_printed_next(self, ipython: Guest) -> None:
        cell = ipython.run("get_ipython().run_cell('40 + 2', store_history=False)\nprint('next')")
        assert cell.script() == [("execute_result", {"text/plain": "42"}), ("stdout", "next\n")]

    def test_a_child_that_prints_next_prints_after_it(self, ipython: Guest) -> None:
        cell = ipython.run("get_ipython().run_cell('6 * 7', store_history=False)\nimport os\nx = os.system('echo child')")
        assert cell.script() == [("execute_result", {"text/plain": "42"}), ("stdout", "child\n")]

    def test_every_value_is_shown_in_its_place(self, ipython: Guest) -> None:
        ipython.run("%config InteractiveShell.ast_node_interactivity = 'all'")
        cell = ipython.run("1\nprint('two')\n3")
        ipython.run("%config InteractiveShell.ast_node_interactivity = 'last_expr'")
        assert [kind for kind, _ in cell.script()] == ["execute_result", "stdout", "execute_result"]
