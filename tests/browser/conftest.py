"""One JupyterLab, one Voila and one browser for all tests of this directory.

They end with its last test: Playwright keeps an event loop in the thread while it runs, and the
tests of other rooms want their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser.world import (
    FIRST,
    FLAGS,
    LATER_MS,
    Server,
    chromium,
    driver,
    gone,
    listened,
    serving,
    shot,
    theme,
)

playwright = pytest.importorskip("playwright.sync_api", reason="make test installs playwright")
Factory = pytest.TempPathFactory


@pytest.fixture(scope="package", autouse=True)
def able() -> None:
    """Without a browser no server is started either."""
    chromium()
    driver()


@pytest.fixture(scope="package")
def context() -> Iterator[Any]:
    """Its pages share a cache: JupyterLab is 20 MB of script. Its scrollbars take room."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium(), args=FLAGS, ignore_default_args=["--hide-scrollbars"]
        )
        yield browser.new_context(viewport={"width": 1500, "height": 1180})
        browser.close()


@pytest.fixture
def page(context: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page that knows what it fetched and what went wrong in it."""
    page = listened(context.new_page())
    yield page
    shot(page, f"last-{request.node.name}")
    page.close()


@pytest.fixture(scope="package")
def one_lab(tmp_path_factory: Factory) -> Iterator[Server]:
    flags = ["--IdentityProvider.token=", "--allow-root", "--LabApp.expose_app_in_browser=True"]
    directory = tmp_path_factory.mktemp("lab")
    notebook = str(directory / "notebooks" / FIRST)
    with serving(directory, "lockkit", "lab", notebook, *flags) as server:
        yield server


@pytest.fixture
def lab(one_lab: Server, page: Any) -> Iterator[Server]:
    """JupyterLab, for one test: in the light theme before it, without a kernel after it."""
    yield one_lab
    if page.evaluate("Boolean(window.jupyterapp)"):
        theme(page, "Light")
        page.evaluate("window.jupyterapp.serviceManager.sessions.shutdownAll()")
    assert gone(one_lab.directory), "a writer outlived its kernel"
    assert one_lab.kernels() == []


@pytest.fixture(scope="package")
def one_voila(tmp_path_factory: Factory) -> Iterator[Server]:
    pytest.importorskip("voila", reason="make lab installs voila")
    directory = tmp_path_factory.mktemp("voila")
    with serving(directory, "voila", str(directory / "notebooks")) as server:
        yield server


@pytest.fixture
def voila(one_voila: Server, page: Any) -> Iterator[Server]:
    """Voila, for one test: two minutes after its page is left, its kernel and its writers end."""
    yield one_voila
    page.goto("about:blank", timeout=LATER_MS)
    assert gone(one_voila.directory, 200.0), "a writer outlived its page's kernel"


@pytest.fixture(scope="package")
def one_guest_house(tmp_path_factory: Factory) -> Iterator[Server]:
    """JupyterLab, and Voila in it, as on Binder; kernels that nobody looks at end in seconds."""
    directory = tmp_path_factory.mktemp("guests")
    notebook = str(directory / "notebooks" / FIRST)
    flags = ["--IdentityProvider.token=", "--allow-root", "--LabApp.expose_app_in_browser=True",
             "--MappingKernelManager.cull_idle_timeout=6",
             "--MappingKernelManager.cull_interval=1"]  # fmt: skip
    with serving(directory, "lockkit", "lab", notebook, *flags) as server:
        yield server
