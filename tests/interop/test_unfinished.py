"""Apache Hudi finishes what a process of lockkit's began and did not live to finish."""

from __future__ import annotations

import pytest
from hudi_world import Refused
from ours import CLOCK, order
from test_hudi import CLEANING, ROWS, Shared, ours, shared  # noqa: F401

from lockkit.runtime import run
from lockkit.table import begin, load_snapshot
from lockkit.table.format.layout import NO_BASE, hadoop_base
from lockkit.table.format.plans import (
    CleanPlan,
    RollbackPlan,
    format_clean_plan,
    format_rollback_plan,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def left_by(table: Shared, instant: str) -> list[str]:
    return [entry.key for entry in table.us.store.list("") if instant in entry.key]


def plan_rollback(table: Shared, base: str) -> str:
    """The plan of a rollback and nothing more; answers the dead writer's instant."""
    dead = table.us.insert([order("dead")], beat=False)
    files = tuple((stat.partition, stat.path) for stat in dead.stats)
    plan = RollbackPlan("", dead.instant, "commit", files, base)
    run(begin(action="rollback", plan=format_rollback_plan(plan)), table.us.store, CLOCK)
    return dead.instant


def test_hudi_carries_out_a_rollback_that_we_only_planned(ours: Shared) -> None:  # noqa: F811
    dead = plan_rollback(ours, hadoop_base(ours.url))
    ours.hudi_writes(order("h0"), **CLEANING)
    assert left_by(ours, dead) == []
    ours.both_show(*ROWS, order("h0"))


def test_hudi_refuses_a_rollback_plan_without_the_tables_address_and_cannot_write(
    ours: Shared,  # noqa: F811
) -> None:
    dead = plan_rollback(ours, NO_BASE)
    with pytest.raises(Refused, match="does not belong to base-path"):
        ours.hudi_writes(order("h0"), **CLEANING)
    assert left_by(ours, dead)


def test_hudi_carries_out_a_clean_that_we_only_planned(ours: Shared) -> None:  # noqa: F811
    snapshot = run(load_snapshot(), ours.us.store, CLOCK)
    live = {each.path for each in snapshot.slices}
    files = [each.key for each in ours.us.store.list("region=") if each.key.endswith(".parquet")]
    (old,) = (key for key in files if key not in live)
    last = max(each.instant for each in snapshot.slices)
    plan = CleanPlan(
        instant="", retain_from=last, last_completed=last,
        files=((old.rpartition("/")[0], old),), base=hadoop_base(ours.url),
    )  # fmt: skip
    begun = run(begin(action="clean", plan=format_clean_plan(plan)), ours.us.store, CLOCK)
    ours.hudi_writes(order("h0"), **CLEANING)
    assert not ours.us.store.list(old)
    assert any(key.endswith(".clean") for key in left_by(ours, begun.instant))
    ours.both_show(*ROWS, order("h0"))
