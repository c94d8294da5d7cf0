"""A JupyterLab server, a page in it, and the few gestures that the browser tests need."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page, expect

REPO = Path(__file__).resolve().parents[2]
RESULTS = REPO / "test-results" / "browser"


def _kernel(name: str, *arguments: str, **env: str) -> dict[str, object]:
    return {
        "argv": [sys.executable, *arguments, "-f", "{connection_file}"], "display_name": name, "language": "python",
        "interrupt_mode": "message", "metadata": {"agently": {}}, "env": {"PYTHONSAFEPATH": "1", **env},
    }


_SYNTHETIC = str(Path(__file__).with_name("synthetic_kernel.py"))
_OPEN = (
    "isolation=none", "unsafe_fallback=True", "trusted_local_authorized=True", "providers=trusted_local,bubblewrap",
)
KERNELS = {
    "synthetic": _kernel("Synthetic", _SYNTHETIC, SYNTHETIC_TIMEOUT="120"),
    "synthetic-short": _kernel("Synthetic", _SYNTHETIC, SYNTHETIC_TIMEOUT="4"),
    "agently-hasty": _kernel("Agently (hasty)", "-m", "agently_kernel", "--AgentlyKernel.approval_timeout=6"),
    "agently-open": _kernel(
        "Agently (not isolated)", "-m", "agently_kernel", *(f"--AgentlyKernel.{setting}" for setting in _OPEN)
    ),
}
"""Kernels of the tests, beside those that the environment brings."""


@dataclass(frozen=True)
class Lab:
    """A running server: its address, token and the folder that it serves."""

    url: str
    token: str
    folder: Path

    def notebook(self, name: str, cells: list[str], kernel: str) -> str:
        """Write a notebook and return its name."""
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in cells],
            metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
        )
        nbformat.write(book, self.folder / name)
        return name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serve(root: Path, built_extension: Path, python: str = sys.executable) -> Iterator[Lab]:
    """Run a JupyterLab server of *python*'s with its own home, data and settings below *root*."""
    folder, data, config, settings = (root / name for name in ("work", "data", "config", "settings"))
    for path in (folder, data / "labextensions", config, settings):
        path.mkdir(parents=True)
    (data / "labextensions" / "agently-kernel-panel").symlink_to(built_extension)
    for name, spec in KERNELS.items():
        place = data / "kernels" / name
        place.mkdir(parents=True)
        (place / "kernel.json").write_text(json.dumps(spec))
    for plugin, name, value in (
        ("@jupyterlab/apputils-extension", "notification", {"fetchNews": "false", "checkForUpdates": False}),
        ("@jupyterlab/docmanager-extension", "plugin", {"autosave": False}),
    ):
        place = settings / plugin
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.jupyterlab-settings").write_text(json.dumps(value))
    port, token = _free_port(), secrets.token_hex(16)
    env = {
        **os.environ, "HOME": str(root), "JUPYTER_DATA_DIR": str(data), "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"), "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces"),
        "JUPYTER_PREFER_ENV_PATH": "0",  # else a panel that was installed earlier hides the one under test
    }
    log = (root / "server.log").open("w")
    server = subprocess.Popen(
        [
            python, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}",
            "--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
            f"--ServerApp.root_dir={folder}", "--LabApp.news_url=", "--LabApp.extension_manager=readonly",
            "--MappingKernelManager.shutdown_wait_time=2",
        ],
        env=env, stdout=log, stderr=subprocess.STDOUT, cwd=root,
    )
    running = Lab(f"http://127.0.0.1:{port}", token, folder)
    try:
        _wait_for(running, server, root / "server.log")
        yield running
    finally:
        server.terminate()
        try:
            server.wait(timeout=15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def _wait_for(lab: Lab, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended: {log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{lab.url}/api/status?token={lab.token}", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start: {log.read_text()[-3000:]}")


class Desk:
    """One browser page with a JupyterLab in it, and the few gestures that the tests need."""

    def __init__(self, lab: Lab, page: Page) -> None:
        self.lab = lab
        self.page = page

    def open(self, notebook: str, *, panel: bool = True, linked: bool = True, app: str = "lab") -> None:
        """Open a notebook in a workspace of its own, with the sandbox panel in view unless *panel* is false.

        *linked* waits until the panel is linked to the kernel: a question that comes before has no panel to go to.
        """
        if app == "lab":
            space = secrets.token_hex(4)
            address = f"{self.lab.url}/lab/workspaces/{space}/tree/{notebook}?token={self.lab.token}&reset"
        else:
            address = f"{self.lab.url}/notebooks/{notebook}?token={self.lab.token}"
        self.page.goto(address)
        self.settle()
        if linked:
            shield = self.page.locator(".jp-NotebookPanel-toolbar .agently-Shield")
            shield.filter(has_text="/4").wait_for(timeout=20_000)
        if panel:
            self.show_panel()

    def settle(self) -> None:
        """Wait until the notebook is drawn; reload when the theme's style sheet was lost on the way."""
        for _ in range(3):
            self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
            self.page.wait_for_timeout(300)
            if self.page.locator(".jp-Dialog").count() == 0:
                return
            self.page.reload()
        raise AssertionError("a dialog stays in front of the notebook")

    def show_panel(self) -> None:
        if not self.panel.is_visible():
            self.page.locator("li[data-id='agently-panel']").click()
        self.panel.wait_for(state="visible")

    def hide_panel(self) -> None:
        if self.panel.is_visible():
            self.page.locator("li[data-id='agently-panel']").click()
        self.panel.wait_for(state="hidden")

    @property
    def panel(self) -> Locator:
        return self.page.locator("#agently-panel")

    def card(self, where: str = "#agently-panel") -> Locator:
        return self.page.locator(f"{where} .agently-Card")

    def run_cell(self, index: int) -> None:
        """Run a cell by clicking into it and pressing Ctrl+Enter.

        An output that arrives between the look and the click moves the cell away from under the pointer, and a page
        that still loads loses the key: both are looked at, and done again.
        """
        cell, prompt = self.cell(index), self.cell(index).locator(".jp-InputPrompt")
        active = re.compile(r"\bjp-mod-active\b")
        for _ in range(5):
            cell.locator(".cm-content").click()
            if active.search(cell.get_attribute("class") or ""):
                break
        expect(cell).to_have_class(active)
        fresh = prompt.text_content() == "[ ]:"
        self.page.keyboard.press("Control+Enter")
        for _ in range(3 if fresh else 0):
            try:
                expect(prompt).not_to_have_text("[ ]:", timeout=1500)
            except AssertionError:
                cell.locator(".cm-content").click()
                self.page.keyboard.press("Control+Enter")
            else:
                return

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").nth(index)

    def output(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-OutputArea-output")

    def chip(self) -> Locator:
        return self.panel.locator(".agently-chip")

    def shot(self, name: str) -> None:
        self.page.screenshot(path=str(RESULTS / f"{name}.png"))


def shut_down_kernels(lab: Lab) -> None:
    headers = {"Authorization": f"token {lab.token}"}
    listing = urllib.request.Request(f"{lab.url}/api/sessions", headers=headers)
    with urllib.request.urlopen(listing, timeout=10) as answer:
        sessions = json.load(answer)
    for session in sessions:
        gone = urllib.request.Request(f"{lab.url}/api/sessions/{session['id']}", headers=headers, method="DELETE")
        with urllib.request.urlopen(gone, timeout=20):
            pass


def put_setting(lab: Lab, plugin: str, value: dict[str, object]) -> None:
    """Write a user's setting as the settings editor does."""
    request = urllib.request.Request(
        f"{lab.url}/lab/api/settings/{plugin}", method="PUT", data=json.dumps({"raw": json.dumps(value)}).encode(),
        headers={"Authorization": f"token {lab.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10):
        pass
