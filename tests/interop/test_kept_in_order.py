"""lockkit's table services on a table that Apache Hudi writes too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ours import CLOCK, order
from test_hudi import ROWS, Shared, either, shared  # noqa: F401

from lockkit.clock import Clock
from lockkit.lock.handle import Lock
from lockkit.protocol.policy import Expiry
from lockkit.runtime import run
from lockkit.table import begin
from lockkit.table.format.layout import hadoop_base
from lockkit.table.format.plans import (
    OURS,
    ClusteringGroup,
    ClusteringInput,
    ReplacePlan,
    format_cluster_plan,
)
from lockkit.table.occ.concurrency import OptimisticConcurrency
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.services.cluster import action_of
from lockkit.table.services.rules import CleanRules, ServiceRules
from lockkit.table.services.service import TableService

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def test_hudi_reads_and_writes_what_our_services_keep_in_order(
    either: Shared,  # noqa: F811
) -> None:
    table, rules = either, ServiceRules(clean=CleanRules(commits=1))
    table.we_insert(order("c0"))
    table.we_insert(order("c1"))
    rows = [*ROWS, order("c0"), order("c1")]
    turns = OptimisticConcurrency(
        Lock(table.url, endpoint=table.endpoint, ttl_s=15, renew_interval_s=1)
    )
    service = TableService(table.url, table.us.store, turns, rules=rules)
    clustered = service.cluster()
    assert clustered is not None and clustered.replaced > clustered.files
    table.both_show(*rows)
    updated = order("c0", amount=9, at=9)
    table.hudi_writes(updated, order("h0"))  # Hudi's index finds c0 in the new group
    rows = [*ROWS, updated, order("c1"), order("h0")]
    table.both_show(*rows)
    table.we_insert(order("c2"))
    (cleaned,) = service.clean()
    assert cleaned.deleted
    table.hudi_writes(order("h1"))
    table.both_show(*rows, order("c2"), order("h1"))
    # A clustering of ours whose maker died: Hudi writes elsewhere meanwhile, and we take it back.
    first = service.inspect().snapshot.slices[0]
    group = ClusteringGroup((ClusteringInput(first.partition, first.file_id, first.path),))
    plan = ReplacePlan((group,), {OURS: "cluster"}, hadoop_base(table.url))
    action = action_of(service.inspect().config.names)
    dead = run(begin(action=action, plan=format_cluster_plan(plan)), table.us.store, CLOCK)
    table.hudi_writes(order("h2", region="ASIA"))
    later = replace(rules, heartbeat=HeartbeatRules(expiry=Expiry.WALL))
    service = TableService(
        table.url, table.us.store, turns, rules=later, clock=Clock(offset_ms=600_000)
    )
    assert [each.target for each in service.take_back()] == [dead.instant]
    table.hudi_writes(order("h3"))
    table.both_show(*rows, order("c2"), order("h1"), order("h2", region="ASIA"), order("h3"))
    turns.close()
