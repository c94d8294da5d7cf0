from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agently_kernel.guest import wire
from agently_kernel.sandbox import launch
from agently_kernel.sandbox.launch import BootConfig, guest_argv, guest_files, install_guest


def test_the_argument_list() -> None:
    assert guest_argv("/usr/bin/python3") == ["/usr/bin/python3", "-I", "-S", "-u", "/run/agently/guest/stage1.py"]


def test_installed_programs_are_the_same_read_only_and_complete(tmp_path: Path) -> None:
    folder = install_guest(tmp_path / "a" / "guest")
    programs = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    assert {name: path.read_bytes() for name, path in programs.items()} == guest_files()
    assert {oct(path.stat().st_mode & 0o777) for path in programs.values()} == {"0o444"}
    assert oct(folder.stat().st_mode & 0o777) == "0o755"
    assert install_guest(folder) == folder  # again: replaces


@pytest.mark.parametrize("fresh", [True, False])
def test_the_compiled_form_is_used_and_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool) -> None:
    if not fresh:  # the package's own cache cannot be used: compiled into the folder
        monkeypatch.setattr(
            launch.importlib.util, "cache_from_source", _nowhere(launch.importlib.util.cache_from_source)
        )
    folder = install_guest(tmp_path)
    monkeypatch.undo()
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import wire; print(wire.__cached__, wire.PROTOCOL)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-v", "-B", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[1] == str(wire.PROTOCOL)
    assert any("matches" in line and "wire.cpython" in line for line in done.stderr.splitlines())


def _nowhere(original: object) -> object:
    def cache_from_source(path: str) -> str:
        found = original(path)  # type: ignore[operator]
        return os.path.join("/nonexistent", os.path.basename(found))

    return cache_from_source


def test_the_boot_message_passes_the_protocols_check() -> None:
    config = BootConfig(limits={"core": 0, "nofile": 512})
    header = config.header({"nonce": config.nonce})
    assert wire.Decoder({"boot": wire.BOOT}).feed(wire.encode(header)) == [(header, b"")]
    assert header["interpreter"] == {
        "env": {},
        "mode": "auto",
        "cwd": "/workspace/build",
        "roots": {
            "source": "/workspace/src",
            "input": "/workspace/input",
            "build": "/workspace/build",
            "scratch": "/workspace/build",
            "output": "/workspace/output",
        },
        "links": {},
    }
    assert header["seccomp"] == {
        "enabled": True, "allow_inet": True, "allow_unix": True, "hidden_memory": "all", "allow_reserve": True,
    }
    assert config.nonce != BootConfig().nonce and config.nonce not in repr(config)
