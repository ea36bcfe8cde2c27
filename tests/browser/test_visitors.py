"""Whoever leaves a page leaves nothing running, whatever the page was served by."""

from __future__ import annotations

import time
from typing import Any

import pytest

from browser.world import Server, elsewhere, fleets, gone, launch, run_all_cells, workbench_alone

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread"),
    pytest.mark.xdist_group("voila"),
]  # fmt: skip

GONE_S = 60.0
DEADMAN_S = 6.0


def no_kernel(server: Server) -> bool:
    """Whether the server's last kernel ends in time."""
    deadline = time.monotonic() + GONE_S
    while server.kernels() and time.monotonic() < deadline:
        time.sleep(0.2)
    return server.kernels() == []


@pytest.mark.soak
def test_a_closed_tab_of_jupyterlab_ends_the_writers_then_the_kernel(
    one_guest_house: Server, page: Any
) -> None:
    """The page's heartbeat ends, so the fleet does; then the kernel is idle, and is culled."""
    run_all_cells(page, one_guest_house, workbench_alone(one_guest_house, DEADMAN_S))
    launch(page)
    assert fleets(one_guest_house.directory) and elsewhere(page, one_guest_house) == []
    page.goto("about:blank")
    assert gone(one_guest_house.directory, GONE_S), "a fleet outlives its page"
    assert no_kernel(one_guest_house)


@pytest.mark.soak
def test_a_voila_page_whose_farewell_is_refused_leaves_no_kernel(
    one_guest_house: Server, page: Any
) -> None:
    """As in a Jupyter server that checks for forged requests: no cookie, no farewell."""
    page.context.clear_cookies()
    page.goto(
        f"{one_guest_house.url}/voila/render/{workbench_alone(one_guest_house, DEADMAN_S)}"
    )
    launch(page)
    assert elsewhere(page, one_guest_house) == [] and page.trouble == []
    page.goto("about:blank")
    assert gone(one_guest_house.directory, GONE_S), "a fleet outlives its page"
    assert no_kernel(one_guest_house)


@pytest.mark.soak
def test_a_voila_page_with_the_servers_cookie_takes_its_kernel_along(
    one_guest_house: Server, page: Any
) -> None:
    """Where JupyterLab was opened before, and behind a hub, the farewell is heard at once."""
    page.request.get(f"{one_guest_house.url}/lab")
    page.goto(f"{one_guest_house.url}/voila/render/{workbench_alone(one_guest_house)}")
    launch(page)
    page.goto("about:blank")
    assert gone(one_guest_house.directory), "a writer waits for its page"
    assert no_kernel(one_guest_house)
