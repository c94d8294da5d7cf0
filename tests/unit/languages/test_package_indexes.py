"""The hosts of package indexes are those that the installed tools name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.languages import indexes

POLICY = ExecutionResourcePolicy()


def tool(folder: Path, name: str, *lines: str) -> None:
    """A SYNTHETIC tool that prints *lines* and writes down its environment."""
    program = folder / name
    body = "".join(f"echo '{line}'\n" for line in lines)
    program.write_text(f"#!/bin/sh\nenv > {folder}/env\npwd >> {folder}/env\n{body}")
    program.chmod(0o755)


def test_pip_names_its_own_index_and_the_host_of_its_files() -> None:
    hosts = indexes.package_hosts("python", POLICY)
    said = subprocess.run(["python3", "-m", "pip", "download", "--help"], capture_output=True, text=True, check=True)
    assert len(hosts) == 2 and hosts[0] in "".join(said.stdout.split())


def test_npm_and_go_are_asked_without_settings_of_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    monkeypatch.setenv("npm_config_registry", "https://elsewhere.example.org/")
    tool(tmp_path, "npm", "https://packages.example.org/npm/")
    assert indexes.package_hosts("node", POLICY) == ("packages.example.org",)
    seen = (tmp_path / "env").read_text()
    assert "npm_config_registry" not in seen and "HOME=/nonexistent" in seen and seen.endswith("\n/\n")
    tool(tmp_path, "go", "https://proxy.example.org|https://second.example.org,direct", "sum.example.org")
    assert indexes.package_hosts("go", POLICY) == ("proxy.example.org", "second.example.org", "sum.example.org")


@pytest.mark.parametrize("language", ["node", "go"])
def test_a_missing_tool_is_a_sentence(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=f"Where {language} packages come from .* package_hosts"):
        indexes.package_hosts(language, POLICY)
    named = ExecutionResourcePolicy(package_hosts={language: ("index.example.org",)})
    assert indexes.package_hosts(language, named) == ("index.example.org",)


@pytest.mark.parametrize("line", ["", "undefined", "file:///etc", "https://", "https://user:pw@/x", "http://10"])
def test_what_is_no_address_of_a_host_is_not_taken(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    tool(tmp_path, "npm", line)
    with pytest.raises(ConfigurationError):
        indexes.package_hosts("node", POLICY)
