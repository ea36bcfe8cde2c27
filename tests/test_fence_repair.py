"""A fence that is broken or gone is repaired, and what it decided is not lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from table_world import (
    CLOCK,
    Holder,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.errors import TableError
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion, Missing
from lockkit.protocol.record import EPOCH_MAX
from lockkit.runtime import List, Note, Procedure, perform, run
from lockkit.sinks import silent
from lockkit.stores import Store
from lockkit.table import FENCE_KEY, Prepared, TableConfig, commit, read_table
from lockkit.table.errors import BrokenFence, NewerFence
from lockkit.table.occ.commit import DecidedCommit, complete, decide
from lockkit.table.occ.fence import digest, parse_fence, read_fence
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.mode import switch_mode
from lockkit.table.occ.rollback import roll_back
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.opening import open_table, snapshot_at
from lockkit.table.services.repair import NOTHING, CannotTell, FenceRepair, carry_out, plan_repair

NAMES = count()
DEAD = HeartbeatRules(interval_ms=1, misses=1, slack_ms=0, drift_ms=0)
"""By these, a writer that wrote nothing for a few milliseconds is dead."""
ALIVE = HeartbeatRules()
NO_VERSIONS: tuple[bytes, ...] = ()


@pytest.fixture(params=[6, 9])
def version(request: Any) -> int:
    return int(request.param)


def table_without_commits(version: int) -> Store:
    config = TableConfig(
        name="orders", record_key="id", partition_by="region", precombine="at", version=version
    )
    return new_table(f"memory://repair-{next(NAMES)}/t", config)


@pytest.fixture
def store(version: int) -> Store:
    """A table with two commits."""
    store = table_without_commits(version)
    for number in (0, 1):
        run(commit(prepare_inserts(store, rows([number])), Holder(number + 1)), store, CLOCK)
    return store


def keys(store: Store) -> list[str]:
    return sorted(read_table(store).column("id").to_pylist())


def fence_body(store: Store) -> bytes:
    found = store.get(FENCE_KEY)
    assert isinstance(found, Found)
    return found.body


def damage(store: Store, body: bytes) -> None:
    found = store.get(FENCE_KEY)
    assert isinstance(found, Found)
    assert isinstance(store.put(FENCE_KEY, body, IfVersion(found.version)), Applied)


def decided(store: Store, prepared: Prepared, epoch: int = 3) -> DecidedCommit:
    """The writer stops between the moment of commit and its completed file."""
    return run(decide(prepared, Holder(epoch)), store, CLOCK)


def repair(store: Store, kept: Any = NO_VERSIONS, **how: Any) -> tuple[str, ...]:
    plan = run(plan_repair(kept, **{"rules": DEAD, **how}), store, CLOCK)
    assert isinstance(plan, FenceRepair)
    return run(carry_out(plan, Holder(50)), store, CLOCK)


def kept_by(store: Store) -> list[bytes]:
    return [store.get_version(FENCE_KEY, each) for each in store.versions(FENCE_KEY)
            if not each.deleted]  # fmt: skip


def truncated(body: bytes) -> bytes:
    return body[:-1]


def other_field(body: bytes) -> bytes:
    return json.dumps({**json.loads(body), "whole": 7}, separators=(",", ":")).encode()


def noise(_body: bytes) -> bytes:
    return b"not a fence"


# --- what the errors say --------------------------------------------------------------------------


def test_under_a_fence_of_a_newer_lockkit_the_remedy_is_to_upgrade(store: Store) -> None:
    damage(store, json.dumps({**json.loads(fence_body(store)), "format": 5}).encode())
    prepared = prepare_inserts(store, rows([2]))
    with pytest.raises(NewerFence, match=r"format 5.*newer lockkit.*upgrade lockkit"):
        run(commit(prepared, Holder(3)), store, CLOCK)
    with pytest.raises(NewerFence, match="upgrade lockkit"):
        run(plan_repair(kept_by(store)), store, CLOCK)


def test_the_error_of_a_broken_fence_does_not_advise_to_delete_it(store: Store) -> None:
    damage(store, b"{")
    with pytest.raises(BrokenFence, match=r"do not delete it.*repair-fence URL") as raised:
        run(commit(prepare_inserts(store, rows([2])), Holder(3)), store, CLOCK)
    assert "stop every writer" not in str(raised.value)


def test_a_sound_fence_needs_no_repair(store: Store) -> None:
    assert run(plan_repair(kept_by(store)), store, CLOCK) is None


# --- a decided commit that no reader sees yet -----------------------------------------------------


@pytest.mark.parametrize("garble", [truncated, other_field, noise])
def test_the_newest_readable_version_is_put_back(
    store: Store, garble: Callable[[bytes], bytes]
) -> None:
    late = decided(store, prepare_inserts(store, rows([2])))
    before = parse_fence(fence_body(store))
    damage(store, garble(fence_body(store)))
    assert repair(store, kept_by(store), rules=ALIVE) == (late.prepared.instant,)
    after = run(read_fence(), store, CLOCK).fence
    assert after is not None
    assert (after.window, after.whole) == (before.window, before.whole)
    assert keys(store) == ["k0", "k1", "k2"]


@pytest.mark.parametrize("garble", [truncated, other_field])
def test_without_versions_the_first_fields_identify_the_last_decision(
    store: Store, garble: Callable[[bytes], bytes]
) -> None:
    late = decided(store, prepare_inserts(store, rows([2])))
    other = prepare_inserts(store, rows([3]))
    damage(store, garble(fence_body(store)))
    assert repair(store, rules=ALIVE) == (late.prepared.instant,)
    assert run(complete(late), store, CLOCK).instant == late.prepared.instant
    run(commit(other, Holder(51)), store, CLOCK)
    assert keys(store) == ["k0", "k1", "k2", "k3"]


def test_wherever_the_fence_was_cut_off_a_decided_commit_is_not_lost(store: Store) -> None:
    late = decided(store, prepare_inserts(store, rows([2])))
    prepare_inserts(store, rows([3]))
    whole, found = fence_body(store), set()
    for length in range(0, len(whole), 7):
        damage(store, whole[:length])
        try:
            plan = run(plan_repair(NO_VERSIONS, rules=DEAD), store, CLOCK)
        except CannotTell as stopped:
            assert late.prepared.instant in str(stopped)
            found.add("stopped")
        else:
            assert plan is not None
            assert plan.publishes == late.prepared.instant
            assert plan.fence.sha256 == late.prepared.sha256
            found.add("told")
    assert found == {"stopped", "told"}


@pytest.mark.parametrize("gone", [True, False])
def test_a_repair_without_evidence_stops_until_the_operator_names_the_instant(
    store: Store, gone: bool
) -> None:
    late = decided(store, prepare_inserts(store, rows([2])))
    other = prepare_inserts(store, rows([3]))
    if gone:
        assert isinstance(store.delete(FENCE_KEY), Applied)
    else:
        damage(store, b"noise")
    with pytest.raises(CannotTell, match="whose writer may be alive"):
        run(plan_repair(NO_VERSIONS, rules=ALIVE), store, CLOCK)
    with pytest.raises(CannotTell, match="--decided INSTANT") as raised:
        run(plan_repair(NO_VERSIONS, rules=DEAD), store, CLOCK)
    assert all(each.instant in str(raised.value) for each in (late.prepared, other))
    with pytest.raises(TableError, match="cannot have been decided"):
        run(plan_repair(NO_VERSIONS, said="20250101000000000", rules=DEAD), store, CLOCK)
    assert repair(store, said=late.prepared.instant) == (late.prepared.instant,)
    run(commit(other, Holder(51)), store, CLOCK)
    assert keys(store) == ["k0", "k1", "k2", "k3"]


def test_a_table_whose_fence_is_gone_takes_no_commit_while_one_may_be_decided(
    store: Store,
) -> None:
    late = decided(store, prepare_inserts(store, rows([2])))
    other = prepare_inserts(store, rows([3]))
    assert isinstance(store.delete(FENCE_KEY), Applied)
    with pytest.raises(BrokenFence, match=f"is gone; it may have decided {late.prepared.instant}"):
        run(commit(other, Holder(9)), store, CLOCK)
    opened = run(open_table(), store, CLOCK)
    snapshot = run(snapshot_at_now(opened), store, CLOCK)
    known = TableCache(opened.config, opened.version, "", snapshot.covered.newest)
    with pytest.raises(BrokenFence, match="is gone"):
        run(roll_back(late.prepared.instant, Holder(9), known), store, CLOCK)
    assert repair(store, kept_by(store)) == (late.prepared.instant,)
    assert keys(store) == ["k0", "k1", "k2"]


def test_a_first_commit_that_was_decided_is_not_lost_with_the_fence(version: int) -> None:
    """No commit is visible yet: the table looked new, and its fence began again at epoch 0."""
    store = table_without_commits(version)
    first = decided(store, prepare_inserts(store, rows([0])), epoch=1)
    other = prepare_inserts(store, rows([1]))
    assert isinstance(store.delete(FENCE_KEY), Applied)
    gone = f"is gone; it may have decided {first.prepared.instant}"
    with pytest.raises(BrokenFence, match=gone):
        run(commit(other, Holder(2)), store, CLOCK)
    opened = run(open_table(), store, CLOCK)
    with pytest.raises(BrokenFence, match=gone):
        way = roll_back(
            first.prepared.instant, Holder(2), TableCache(opened.config, opened.version)
        )
        run(way, store, CLOCK)
    with pytest.raises(BrokenFence, match=gone):
        run(switch_mode("fenced", Holder(2)), store, CLOCK)
    with pytest.raises(BrokenFence, match=gone):
        run(switch_mode("hudi", Holder(2)), store, CLOCK)
    assert isinstance(store.get(FENCE_KEY), Missing), "and nobody began a new one"
    assert repair(store, said=first.prepared.instant) == (first.prepared.instant,)
    run(commit(other, Holder(51)), store, CLOCK)
    assert keys(store) == ["k0", "k1"]


def test_a_missing_fence_is_not_created_again_even_without_pending_instants(store: Store) -> None:
    """Its epoch is lost with it, and whoever holds an older grant would be let in again."""
    assert isinstance(store.delete(FENCE_KEY), Applied)
    with pytest.raises(BrokenFence, match=r"is gone\. Nothing was committed.*repair-fence URL"):
        run(commit(prepare_inserts(store, rows([2])), Holder(9)), store, CLOCK)
    assert isinstance(store.get(FENCE_KEY), Missing)
    assert repair(store, said=NOTHING) == ()
    assert fence_of(store).epoch == 50
    run(commit(prepare_inserts(store, rows([2])), Holder(51)), store, CLOCK)
    assert keys(store) == ["k0", "k1", "k2"]


def test_a_table_that_was_made_without_a_fence_gets_it_from_its_first_commit(
    version: int,
) -> None:
    """As an older lockkit made tables."""
    store = table_without_commits(version)
    assert isinstance(store.delete(FENCE_KEY), Applied)
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    assert keys(store) == ["k0"] and fence_of(store).whole
    run(commit(prepare_inserts(store, rows([1])), Holder(2)), store, CLOCK)
    assert keys(store) == ["k0", "k1"]


def test_of_two_first_commits_without_a_fence_the_second_checks_against_the_first(
    version: int,
) -> None:
    store = table_without_commits(version)
    assert isinstance(store.delete(FENCE_KEY), Applied)
    second = prepare_inserts(store, rows([1]))
    way = commit(second, Holder(2))
    request = way.send(None)
    while not isinstance(request, List):  # the fence was read, and is not there
        request = way.send(perform(request, store, CLOCK, silent))
    assert isinstance(store.delete(second.inflight), Applied)
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    assert isinstance(store.put(second.inflight, second.body, IfAbsent()), Applied)
    finish(way, store, request)
    assert keys(store) == ["k0", "k1"]


def snapshot_at_now(opened: Any) -> Procedure[Any]:
    from lockkit.table.read.opening import SnapshotPoint

    return snapshot_at(opened, SnapshotPoint())


@pytest.mark.parametrize("epoch", [2**62, EPOCH_MAX - 1, 10**30])
def test_a_fence_whose_epoch_leaves_no_room_is_repaired_and_loses_nothing(
    store: Store, epoch: int
) -> None:
    """Every later grant would be refused as superseded, or could not be written down."""
    late = decided(store, prepare_inserts(store, rows([2])))
    damage(store, fence_body(store).replace(b'"epoch":3,', b'"epoch":%d,' % epoch))
    with pytest.raises(BrokenFence, match=rf"{epoch}, leaves no room.*repair-fence URL"):
        run(commit(prepare_inserts(store, rows([3])), Holder(4)), store, CLOCK)
    assert repair(store, rules=ALIVE) == (late.prepared.instant,)
    assert fence_of(store).epoch == 50
    run(commit(prepare_inserts(store, rows([3])), Holder(51)), store, CLOCK)
    assert keys(store) == ["k0", "k1", "k2", "k3"]


def test_a_grant_whose_epoch_leaves_no_room_decides_nothing(store: Store) -> None:
    before = fence_body(store)
    with pytest.raises(TableError, match=r"leaves no room.*nothing was decided.*lock break"):
        run(commit(prepare_inserts(store, rows([2])), Holder(2**62)), store, CLOCK)
    assert fence_body(store) == before


# --- what was not decided -------------------------------------------------------------------------


def checked(procedure: Procedure[Any], store: Store) -> Any:
    """Carry a commit up to the one write that decides."""
    request = procedure.send(None)
    while not (isinstance(request, Note) and request.kind == "checked"):
        request = procedure.send(perform(request, store, CLOCK, silent))
    return procedure


def finish(procedure: Procedure[Any], store: Store, request: Any = None) -> Any:
    """Carry the rest of it out, beginning with the `request` that it waits for."""

    def rest() -> Procedure[Any]:
        answer: Any = None if request is None else (yield request)
        while True:
            try:
                following = procedure.send(answer)
            except StopIteration as done:
                return done.value
            answer = yield following

    return run(rest(), store, CLOCK)


def test_a_writer_that_was_about_to_decide_checks_again_under_the_new_fence(store: Store) -> None:
    slow = checked(commit(prepare_upserts(store, rows([0], amount=7)), Holder(3)), store)
    damage(store, truncated(fence_body(store)))
    assert repair(store) == ()
    run(commit(prepare_inserts(store, rows([2])), Holder(51)), store, CLOCK)
    with pytest.raises(Exception, match="epoch"):
        finish(slow, store)
    assert keys(store) == ["k0", "k1", "k2"]


def test_a_commit_whose_file_group_changed_since_was_not_decided(store: Store) -> None:
    prepare_upserts(store, rows([0], amount=7))
    run(commit(prepare_upserts(store, rows([0], amount=8)), Holder(3)), store, CLOCK)
    damage(store, b"noise")
    assert repair(store) == ()


def test_a_commit_that_was_prepared_after_the_damage_was_not_decided(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(store, b"noise")
    late = prepare_inserts(store, rows([2]))
    monkeypatch.setattr("lockkit.table.services.repair.STORE_SLACK_MS", -10_000)
    assert repair(store) == ()
    run(commit(late, Holder(51)), store, CLOCK)
    assert keys(store) == ["k0", "k1", "k2"]


def test_an_operators_claim_against_the_evidence_is_refused(store: Store) -> None:
    late = decided(store, prepare_inserts(store, rows([2])))
    damage(store, truncated(fence_body(store)))
    for kept in (NO_VERSIONS, kept_by(store)):
        with pytest.raises(TableError, match=f"decided {late.prepared.instant}.*leave --decided"):
            run(plan_repair(kept, said=NOTHING, rules=DEAD), store, CLOCK)


def test_after_a_repair_without_versions_every_later_conflict_is_found(store: Store) -> None:
    first, second = (prepare_upserts(store, rows([0], amount=each)) for each in (7, 8))
    damage(store, truncated(fence_body(store)))
    repair(store, said=NOTHING)
    run(commit(first, Holder(51)), store, CLOCK)
    with pytest.raises(Exception, match=r"also rewrites|rewrote|wrote"):
        run(commit(second, Holder(52)), store, CLOCK)


def test_a_version_that_does_not_know_a_visible_commit_is_not_put_back(store: Store) -> None:
    old = fence_body(store)
    run(commit(prepare_inserts(store, rows([2])), Holder(3)), store, CLOCK)
    damage(store, b"noise")
    plan = run(plan_repair([old], rules=DEAD), store, CLOCK)
    assert plan is not None
    assert plan.fence != parse_fence(old)
    assert not plan.fence.whole


# --- the repair itself ----------------------------------------------------------------------------


def test_of_two_repairs_at_once_one_is_made(store: Store) -> None:
    damage(store, truncated(fence_body(store)))
    plans = [run(plan_repair(NO_VERSIONS, rules=DEAD), store, CLOCK) for _ in range(2)]
    run(carry_out(plans[0], Holder(50)), store, CLOCK)
    with pytest.raises(TableError, match="has changed since it was examined"):
        run(carry_out(plans[1], Holder(50)), store, CLOCK)


def test_a_repair_that_dies_at_any_write_loses_nothing(store: Store) -> None:
    late = decided(store, prepare_inserts(store, rows([2])))
    damage(store, truncated(fence_body(store)))
    plan = run(plan_repair(NO_VERSIONS, rules=DEAD), store, CLOCK)
    assert plan is not None
    way = carry_out(plan, Holder(50))
    request = way.send(None)
    while True:  # it dies right after the one write that repairs
        answer = perform(request, store, CLOCK, silent)
        if getattr(request, "key", "") == FENCE_KEY and isinstance(answer, Applied):
            break
        request = way.send(answer)
    way.close()
    assert keys(store) == ["k0", "k1"]
    run(commit(prepare_inserts(store, rows([3])), Holder(51)), store, CLOCK)
    assert late.prepared.instant in {each.instant for each in fence_of(store).window}
    assert keys(store) == ["k0", "k1", "k2", "k3"]


def fence_of(store: Store) -> Any:
    fence = run(read_fence(), store, CLOCK).fence
    assert fence is not None
    return fence


def test_the_fence_has_the_digest_of_the_decided_inflight_file(store: Store) -> None:
    late = decided(store, prepare_inserts(store, rows([2])))
    found = store.get(late.prepared.inflight)
    assert isinstance(found, Found)
    assert digest(found.body) == fence_of(store).sha256
