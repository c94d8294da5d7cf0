"""A real JupyterLab and a real Chromium, one of each for the whole test session.

The labextension under test is the one in ``labextension/static``; it is built first when a source is newer.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

REPO = Path(__file__).resolve().parents[2]
EXTENSION = REPO / "labextension"
sys.path.insert(0, str(EXTENSION))
import build_panel  # noqa: E402

RESULTS = REPO / "test-results" / "browser"
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests, and give each the time that a first page load takes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture(scope="session")
def built_extension() -> Path:
    """Return the built labextension, as fresh as its sources."""
    if not build_panel.is_fresh():
        build_panel.build(production=False)
    return EXTENSION / "static"


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


@pytest.fixture(scope="session")
def lab(built_extension: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start a JupyterLab server with its own home, data and settings."""
    root = tmp_path_factory.mktemp("lab")
    folder, data, config, settings = (root / name for name in ("work", "data", "config", "settings"))
    for path in (folder, data / "labextensions", data / "kernels" / "synthetic", config, settings):
        path.mkdir(parents=True)
    (data / "labextensions" / "agently-kernel-panel").symlink_to(built_extension)
    (data / "kernels" / "synthetic" / "kernel.json").write_text(json.dumps({
        "argv": [sys.executable, str(Path(__file__).with_name("synthetic_kernel.py")), "-f", "{connection_file}"],
        "display_name": "Synthetic", "language": "python", "interrupt_mode": "message", "metadata": {"agently": {}},
        "env": {"SYNTHETIC_TIMEOUT": "120"},
    }))
    short = data / "kernels" / "synthetic-short"
    shutil.copytree(data / "kernels" / "synthetic", short)
    spec = json.loads((short / "kernel.json").read_text())
    spec["env"]["SYNTHETIC_TIMEOUT"] = "4"
    (short / "kernel.json").write_text(json.dumps(spec))
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
    }
    log = (root / "server.log").open("w")
    server = subprocess.Popen(
        [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}",
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


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the system's Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("no Chromium: install the package chromium")
    RESULTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield running
        running.close()


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
    def panel(self):  # type: ignore[no-untyped-def]
        return self.page.locator("#agently-panel")

    def card(self, where: str = "#agently-panel"):  # type: ignore[no-untyped-def]
        return self.page.locator(f"{where} .agently-Card")

    def run_cell(self, index: int) -> None:
        """Run a cell by clicking into it and pressing Ctrl+Enter."""
        cell = self.cell(index)
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")

    def cell(self, index: int):  # type: ignore[no-untyped-def]
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").nth(index)

    def output(self, index: int):  # type: ignore[no-untyped-def]
        return self.cell(index).locator(".jp-OutputArea-output")

    def chip(self):  # type: ignore[no-untyped-def]
        return self.panel.locator(".agently-chip")

    def shot(self, name: str) -> None:
        self.page.screenshot(path=str(RESULTS / f"{name}.png"))


@pytest.fixture
def desk(lab: Lab, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A fresh page; its last sight is kept when the test fails."""
    context = browser.new_context(viewport={"width": 1360, "height": 880})
    page = context.new_page()
    desk = Desk(lab, page)
    yield desk
    if getattr(request.node, "failed", False):
        desk.shot(f"failed-{request.node.name}")
    context.close()
    _shut_down_kernels(lab)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):  # type: ignore[no-untyped-def]
    outcome = yield
    if outcome.get_result().when == "call" and outcome.get_result().failed:
        item.failed = True  # type: ignore[attr-defined]


def _shut_down_kernels(lab: Lab) -> None:
    headers = {"Authorization": f"token {lab.token}"}
    listing = urllib.request.Request(f"{lab.url}/api/sessions", headers=headers)
    with urllib.request.urlopen(listing, timeout=10) as answer:
        sessions = json.load(answer)
    for session in sessions:
        gone = urllib.request.Request(f"{lab.url}/api/sessions/{session['id']}", headers=headers, method="DELETE")
        with urllib.request.urlopen(gone, timeout=20):
            pass
