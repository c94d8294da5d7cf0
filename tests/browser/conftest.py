"""A real JupyterLab and a real Chromium, one of each for the whole test session.

The labextension under test is the one in ``labextension/static``; it is built first when a source is newer.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_desk import REPO, RESULTS, Desk, Lab, put_setting, serve, shut_down_kernels
from playwright.sync_api import Browser, sync_playwright

EXTENSION = REPO / "labextension"
sys.path.insert(0, str(EXTENSION))
import build_panel  # noqa: E402

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


@pytest.fixture(scope="session")
def lab(built_extension: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The newest JupyterLab: the one of this environment."""
    with serve(tmp_path_factory.mktemp("lab"), built_extension) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the system's Chromium, for one file: Playwright keeps an event loop running, and other tests run theirs."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("no Chromium: install the package chromium")
    RESULTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield running
        running.close()


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
    shut_down_kernels(lab)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):  # type: ignore[no-untyped-def]
    outcome = yield
    if outcome.get_result().when == "call" and outcome.get_result().failed:
        item.failed = True  # type: ignore[attr-defined]


@pytest.fixture
def dark_chinese(lab: Lab) -> Iterator[None]:
    put_setting(lab, "@jupyterlab/apputils-extension:themes", {"theme": "JupyterLab Dark"})
    put_setting(lab, "@jupyterlab/translation-extension:plugin", {"locale": "zh_CN"})
    yield
    put_setting(lab, "@jupyterlab/apputils-extension:themes", {})
    put_setting(lab, "@jupyterlab/translation-extension:plugin", {})
