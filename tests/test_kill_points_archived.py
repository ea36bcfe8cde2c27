"""A killed archiver of version 6: each row and each commit is there once, whoever archives next."""

from __future__ import annotations

import pytest
from kill_points import Nursery
from kill_points_archived import DEEDS
from kill_points_archived import __file__ as program
from kill_points_merged import BOTH, kill, points_of

from lockkit.lab.server import Emulator

pytestmark = [
    pytest.mark.xdist_group("kill points"), pytest.mark.timeout(1800),
    pytest.mark.usefixtures("no_hudi_beside", "archived_at_once"),
]  # fmt: skip


@pytest.mark.parametrize("every", [21, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", DEEDS)
def test_an_archiver_killed_at_any_write_costs_no_row_and_no_commit_by_hudi_rs(
    kind: str, every: int
) -> None:
    deed = DEEDS[kind]
    with Emulator() as server, Nursery(program) as nursery:
        points = points_of(server, nursery, deed)
        labels = [each.label for each in points]
        assert deed.first in labels and sum("DELETE" in each for each in labels) > 5, labels
        ways = [(point, when) for point in points for when in BOTH]
        for way in ways[::every]:
            assert not kill(server, nursery, deed, *way)
