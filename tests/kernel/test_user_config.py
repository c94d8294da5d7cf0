"""Faults in the user's configuration files: the kernel starts, says which file and line, and runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_session import KernelSession

from agently_kernel.settings import read_settings
from agently_kernel.user_config import NAMES, config_places, read_config, section_of

ROOT = Path(__file__).parents[2]
Start = Callable[..., KernelSession]

FAULTS: dict[str, tuple[str, str]] = {
    "an exit": ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
    "an exit without a word": ("raise SystemExit", "line 1: SystemExit"),
    "an error": ("\n\n1 / 0\n", "line 3: ZeroDivisionError: division by zero"),
    "an error in a function of it": ("def f():\n    return {}['x']\nf()", "line 2: KeyError: 'x'"),
    "an error in a library": ("import json\njson.loads('{')", "line 2: JSONDecodeError"),
    "no Python": ("c.AgentlyKernel.providers = [", "line 1: SyntaxError"),
    "a module that is not there": ("import no_such_module_here", "line 1: ModuleNotFoundError"),
    "an interrupt": ("raise KeyboardInterrupt", "line 1: KeyboardInterrupt"),
    "an exception of its own": ("class Mine(BaseException): pass\nraise Mine('m')", "line 2: Mine: m"),
    "no section": ("c.AgentlyKernel = 5", "AgentlyKernel"),
    "a setting that is none, below others": (
        "c.AgentlyKernel.timeout = 5\nc.AgentlyKernel.provider = []", "line 2: c.Agen",
    ),
    "an object": ("c.AgentlyKernel.providers = object()", "c.AgentlyKernel.providers"),
    "a list of objects": ("c.AgentlyKernel.providers = [object()]", "c.AgentlyKernel.providers"),
    "a misspelt setting": ("c.AgentlyKernel.provider = ['bubblewrap']", "line 1: c.AgentlyKernel.provider is not"),
    "a bad log level": ("\nc.Application.log_level = 'nonsense'", "line 2: The 'log_level'"),
    "a bad option of the session": ("c.Session.digest_history_size = 'many'", "line 1: The 'digest_"),
    "a bad option of the application": ("c.AgentlyKernelApp.ip = 5", "line 1: The 'ip'"),
    "a bad option of the base": ("c.Kernel.stop_on_error_timeout = 'soon'", "line 1: The 'stop_on"),
    "a place of the machine": ("c.AgentlyKernel.save_outputs = '/etc'", "line 1: c.AgentlyKernel.save_outputs"),
}


def config(folder: Path, text: str | bytes, name: str = "agently_kernel_config.py") -> dict[str, str]:
    """Write a configuration file and return the environment that has it read."""
    folder.mkdir()
    data = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(data)
    return {"JUPYTER_CONFIG_DIR": str(folder)}


def refused(start: Start, env: dict[str, str]) -> str:
    """Start a kernel, run two cells that both must be refused, and return what was said."""
    session = start(env=env)
    first, second = session.run("print('ran')"), session.run("%agently status")
    for run in (first, second):
        assert (run.status, run.text()) == ("error", "")
        assert run.error[0] == "ConfigurationError"
    assert session.ask("kernel_info_request", {})["status"] == "ok"
    return first.error[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda name: name.replace(" ", "-"))
def test_a_fault_is_told_with_file_and_line_and_nothing_runs(start: Start, tmp_path: Path, fault: str) -> None:
    text, said = FAULTS[fault]
    told = refused(start, config(tmp_path / "config", text))
    assert said in told
    assert "No cell is run" in told
    if said.startswith("line"):
        assert str(tmp_path / "config" / "agently_kernel_config.py") in told


PLACES = {
    "c.AgentlyKernel.limits = {\n  'cpus': 1,\n  'memry': '2G',\n}": (".py", "line 3"),
    "c.AgentlyKernel.limits = {'memory': '2G'}\nc.AgentlyKernel.limits['memory'] = '1K'": (".py", "line 2"),
    "c.AgentlyKernel.limits = {'memory': '1K'}\nx = 'memory'": (".py", "line 1"),
    "c.AgentlyKernel.timeout = 3\nif True:\n    c.AgentlyKernel.timeout = 0": (".py", "line 3"),
    "c.AgentlyKernel.isolation = 'strong'\nc.Other.isolation = 'x'": (".py", "line 1"),
    "s = c.AgentlyKernel\ns.isolation = 'strong'": (".py", "line 2"),
    "c.AgentlyKernel.update({\n'isolation': 'strong'})": (".py", "line 2"),
    "c.AgentlyKernel.providers = ['bubblewrap']\nc.AgentlyKernel.providers.append('A B')": (".py", "line 2"),
    "\nc.AgentlyKernel.unsafe_fallback = True": (".py", "line 2"),
    "for name in ('prov' + 'ider',):\n    setattr(c.AgentlyKernel, name, 1)": (".py", "agently_kernel_config.py: c."),
    '{"AgentlyKernel": {\n"timeout": 1,\n"isolation": "strong"}}': (".json", "line 3"),
    '{"x": {"memory": 1},\n"AgentlyKernel": {"limits": {\n"memory": "1K"}}}': (".json", "line 3"),
    '{"AgentlyKernel": {"timeout": 1,\n"providers": [{"provider_id": "a",\n"cfg": 1}]}}': (".json", "line 3"),
}


@pytest.mark.parametrize("text", PLACES)
def test_every_fault_in_a_value_begins_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    kind, place = PLACES[text]
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    file = tmp_path / f"agently_kernel_config{kind}"
    file.write_text(text)
    values, _ = read_config(())
    _, faults = read_settings(section_of(values), config_places(()).of)
    assert len(faults) == 1
    assert faults[0].startswith(str(file)) and place in faults[0], faults


def test_the_most_important_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    (tmp_path / "agently_kernel_config.py").write_text("c.AgentlyKernel.timeout = 1")
    (tmp_path / "agently_kernel_config.json").write_text('{"AgentlyKernel": {"timeout": 0}}')
    arguments = ("--AgentlyKernel.isolation=strong",)
    values, _ = read_config(arguments)
    _, faults = read_settings(section_of(values), config_places(arguments).of)
    places = sorted(fault.partition(": c.")[0] for fault in faults)
    assert places == sorted([f"{tmp_path / 'agently_kernel_config.json'}, line 1", "The command line"])


BAD_JSON = ["[1]", "{", '{"AgentlyKernel": []}', '{"AgentlyKernel": {"isolation": "strong"}}', b"\xff\xfe"]


@pytest.mark.parametrize("text", BAD_JSON)
def test_a_fault_in_the_json_file_is_told(start: Start, tmp_path: Path, text: str | bytes) -> None:
    told = refused(start, config(tmp_path / "config", text, "agently_kernel_config.json"))
    assert "agently_kernel_config.json" in told


@pytest.mark.parametrize("name", ["jupyter_kernel_config.py", "jupyter_server_config.json", "ipython_kernel_config.py"])
def test_settings_in_a_file_that_is_not_read_are_told_once(start: Start, tmp_path: Path, name: str) -> None:
    text = "c.AgentlyKernel.timeout = 1" if name.endswith(".py") else '{"AgentlyKernel": {"timeout": 1}}'
    session = start(env=config(tmp_path / "config", text, name))
    session.run("pass", silent=True)
    first, second = session.run("print(1)"), session.run("print(2)")
    assert first.text() == "1\n"
    assert f"{tmp_path / 'config' / name} holds settings of this kernel, but that file is not read." in first.text(
        "stderr"
    )
    assert f"Move them to {tmp_path / 'config' / 'agently_kernel_config.py'}" in first.text("stderr")
    assert second.text("stderr") == ""


def test_a_configuration_beside_the_notebook_is_not_run_and_that_is_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "agently_kernel_config.py").write_text("open('ran', 'w').close()")
    session = start(env=config(tmp_path / "config", "# c.AgentlyKernel of old", "jupyter_server_config.py"))
    run = session.run("print(1)")
    assert run.text("stderr").count("is not read") == 1
    assert f"{tmp_path / 'agently_kernel_config.py'} holds settings" in run.text("stderr")
    assert not (tmp_path / "ran").exists()


def snippets(page: str) -> list[str]:
    """Return the configuration examples of a page of the documentation."""
    text = (ROOT / page).read_text("utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [block for block in found if "c.AgentlyKernel." in block]


@pytest.mark.parametrize("page", ["README.md", "docs/magic.md"])
def test_the_example_of_the_documentation_works_as_it_stands(start: Start, tmp_path: Path, page: str) -> None:
    (block,) = snippets(page)
    session = start(env=config(tmp_path / "config", block))
    run = session.run("import resource; print(1)")
    assert (run.text(), run.text("stderr")) == ("1\n", "")
    shown = session.run("%agently facts").of("display_data")[0]["content"]["data"]["text/plain"]
    assert re.search(r"memory +4 GiB", shown), shown


def test_the_files_of_the_documentation_have_the_name_that_is_read() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for name in re.findall(r"\b[a-z_]+_config\.(?:py|json)\b", page.read_text("utf-8")):
            assert name in NAMES, page


def test_lists_and_mappings_may_be_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "c.AgentlyKernel.providers.append('bubblewrap')\nc.AgentlyKernel.limits.update({'memory': '1G'})"
    for name, value in config(tmp_path / "config", text).items():
        monkeypatch.setenv(name, value)
    found, faults = read_config(["--AgentlyKernel.timeout=7"])
    assert faults == ()
    assert section_of(found) == {"providers": ["bubblewrap"], "limits": {"memory": "1G"}, "timeout": "7"}


@pytest.mark.parametrize("folder", ["/etc", "~/x", "..", "a/../b", "", " ", ".", "C:/x", "a\nb", "a\\b"])
def test_collected_files_go_below_the_notebooks_folder_only(folder: str) -> None:
    settings, (fault,) = read_settings({"save_outputs": folder})
    assert settings.save_outputs is None
    assert "must name a folder below the notebook's folder, for example 'results'" in fault


@pytest.mark.parametrize("folder", ["results", "a/b", "results/"])
def test_a_folder_below_is_taken(folder: str) -> None:
    assert read_settings({"save_outputs": folder})[0].save_outputs == folder.rstrip("/")
