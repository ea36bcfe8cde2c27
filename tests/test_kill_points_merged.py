"""A killed process of a merge-on-read table: no acknowledged row is lost, no other one is read."""

from __future__ import annotations

import kill_points_sliced as version_6
import pytest
from kill_points import Nursery
from kill_points_merged import (
    ARCHIVER,
    BOTH,
    CLEAN,
    COMPACTION,
    UPSERT,
    Deed,
    kill,
    points_of,
)

from lockkit.lab.server import Emulator

pytestmark = [pytest.mark.xdist_group("kill points"), pytest.mark.timeout(1200)]


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("deed", [
    UPSERT, pytest.param(COMPACTION, marks=pytest.mark.soak),
    pytest.param(CLEAN, marks=pytest.mark.soak), pytest.param(ARCHIVER, marks=pytest.mark.soak),
    version_6.UPSERT,
    *(pytest.param(each, marks=pytest.mark.soak) for each in (
        version_6.DELETE, version_6.COMPACTION, version_6.CLEAN, version_6.ROLLBACK,
    )),
], ids=lambda each: f"{each.victim.__module__} {each.victim.__name__}"
        if isinstance(each, Deed) else "")  # fmt: skip
def test_a_process_killed_at_any_write_costs_others_no_row_by_hudi_rs(
    deed: Deed, every: int
) -> None:
    with Emulator() as server, Nursery(deed.victim.__code__.co_filename) as nursery:
        points = points_of(server, nursery, deed)
        assert deed.first in [each.label for each in points], points
        each_way = [(point, when) for point in points for when in BOTH]
        ways = [*each_way[:-1:every], each_way[-1]]
        outcomes = [kill(server, nursery, deed, *way) for way in ways]
        if deed.dead:
            # On a busy machine a victim's lease may end first: it gives up, and its last write,
            # which deletes its heartbeat, is not one after its commit. Another one is killed then.
            outcomes[-1] = outcomes[-1] or kill(server, nursery, deed, *ways[-1])
            first_visible = outcomes.index(True)
            assert first_visible > 0 and all(outcomes[first_visible:]), (ways, outcomes)
