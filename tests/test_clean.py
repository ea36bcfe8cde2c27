"""The clean: what it deletes, what stays for readers and writers, and that it may die anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import table_world
from table_history import History, add, overwrite, publish, rows_of
from table_world import (
    AVRO,
    CLOCK,
    CONFIG,
    Hasty,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
    steps,
)

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, IfAbsent
from lockkit.runtime import run
from lockkit.stores import Store
from lockkit.table import begin, load_snapshot, prepare, read_table, write_inserts
from lockkit.table.format.plans import CleanPlan, format_clean_plan
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.bucket_groups import bucket_file_id, generations
from lockkit.table.services import clean as cleans
from lockkit.table.services.clean import Cleaned, carry_out, plan_clean, preview_clean, resume_clean
from lockkit.table.services.rules import CleanRules, clean_rules

NAMES = count()
VERSIONS = [6, 9]


def fresh(version: int = 6) -> Store:
    return new_table(f"memory://clean-{next(NAMES)}", replace(CONFIG, version=version))


def known(store: Store) -> TableCache:
    return TableCache(*run(load_config(), store, CLOCK))


def clean(store: Store, rules: CleanRules) -> Cleaned | None:
    plan = run(plan_clean(known(store), rules), store, CLOCK)
    return run(carry_out(plan, known(store).config.names), store, CLOCK) if plan.instant else None


def data_files(store: Store) -> set[str]:
    return {each.key for each in store.list("") if each.key.endswith(".parquet")}


def shown(store: Store, instants: Iterable[str]) -> set[str]:
    return {
        each.path for at in instants
        for each in run(load_snapshot(as_of=at), store, CLOCK).slices
    }  # fmt: skip


def amount_of(store: Store, **how: Any) -> int:
    """Of k0."""
    return rows_of(read_table(store, meta=True, **how))["k0"][0]


def cleans_of(store: Store) -> list[str]:
    now = run(load_timeline(known(store).config.names), store, CLOCK)
    return [each for each, action in now.completed.items() if action == "clean"]


def update(store: Store, *ids: int, amount: int) -> str:
    return publish(store, prepare_upserts(store, rows(ids, amount=amount)))


# --- what goes and what stays ---------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(4))
def test_a_reader_as_of_any_retained_commit_reads_what_was_committed(
    seed: int, version: int
) -> None:
    """Over histories with slow, dead and refused writers and overwrites, cleaned all the time."""
    store = fresh(version)
    history = History(store, seed, regions=("EU", "US"))
    model, retained, deleted = history.model, 1 + seed % 3, 0
    for _ in range(30):
        history.step()
        if len(history.slow) > 2:
            history.take_back()
        if history.random.random() < 0.4:
            done = clean(store, CleanRules(commits=retained))
            deleted += len(done.deleted) if done else 0
            for at in sorted(model.commits)[-retained:]:
                assert rows_of(read_table(store, as_of=at, meta=True)) == model.rows(at)
    history.take_back()
    done = clean(store, CleanRules(commits=2))
    assert deleted or (done and done.deleted)
    newest = sorted(model.commits)
    assert rows_of(read_table(store, meta=True)) == model.rows()
    assert shown(store, newest[-2:]) <= data_files(store)
    if version == 6:  # in version 9 completion times may keep more
        assert data_files(store) <= shown(store, newest[-3:])


def test_a_writer_that_began_before_reads_the_slices_that_it_merges_into() -> None:
    store = fresh()
    add(store, 0)
    slow = prepare_inserts(store, rows([9]))
    for amount in range(1, 6):
        update(store, 0, amount=amount)
    assert clean(store, CleanRules(commits=1)) is None
    assert amount_of(store, as_of=slow.instant) == 0
    publish(store, slow)
    assert (done := clean(store, CleanRules(commits=1))) and len(done.deleted) == 4


def test_versions_are_kept_by_number_if_configured() -> None:
    store = fresh()
    add(store, 0)
    for amount in range(1, 5):
        update(store, 0, amount=amount)
    rules = CleanRules(policy="KEEP_LATEST_FILE_VERSIONS", versions=2)
    assert (done := clean(store, rules)) and len(done.deleted) == 3
    assert clean(store, rules) is None
    assert amount_of(store) == 4


def test_hours_are_counted_from_now_to_the_commits_instants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, rules = fresh(), CleanRules(policy="KEEP_LATEST_BY_HOURS")
    with monkeypatch.context() as then:
        for hours, amount in ((5, 0), (4, 1), (3, 2)):
            then.setattr(table_world, "CLOCK", Hasty(offset_ms=-hours * 3_600_000))
            before = add(store, 0) if not amount else update(store, 0, amount=amount)
    update(store, 0, amount=3)
    for hours, gone in ((24, 0), (4, 1), (2, 1), (2, 0)):  # of 4 hours ago the second is shown
        done = clean(store, replace(rules, hours=hours))
        assert len(done.deleted if done else ()) == gone, hours
    assert amount_of(store, as_of=before) == 2


def test_a_commit_with_a_savepoint_keeps_all_that_it_shows() -> None:
    store = fresh()
    add(store, 0)
    saved = update(store, 0, amount=1)
    assert isinstance(store.put(f".hoodie/{saved}.savepoint", b"", IfAbsent()), object)
    for amount in range(2, 6):
        update(store, 0, amount=amount)
    assert (done := clean(store, CleanRules(commits=1))) and len(done.deleted) == 3
    assert amount_of(store, as_of=saved) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replaced_bucket_is_dropped_and_its_file_id_is_never_used_again(version: int) -> None:
    store = fresh(version)
    partition = "region=EU"
    for generation in range(3):
        transaction = run(begin(action="replacecommit"), store, CLOCK)
        before = run(load_snapshot(covering=transaction.covered), store, CLOCK)
        its = generations(before).get((partition, f"{0:08d}"), 0) + bool(before.groups)
        assert its == generation
        of = bucket_file_id(partition, 0, its)
        file = write_inserts(transaction.target, rows([0], amount=generation), file_id=of)
        store.put(file.key, file.body, IfAbsent())
        way = prepare(transaction, [file.stat], schema=AVRO, operation="INSERT_OVERWRITE",
                      replaced=frozenset(before.groups))  # fmt: skip
        publish(store, run(way, store, CLOCK))
    assert (done := clean(store, CleanRules(commits=1))) and len(done.deleted) == 1
    add(store, 5)
    assert (done := clean(store, CleanRules(commits=1))) and len(done.deleted) == 1
    assert amount_of(store) == 2
    assert generations(run(load_snapshot(), store, CLOCK))[partition, f"{0:08d}"] == 2


def test_commits_without_garbage_are_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleans, "EMPTY_AFTER", 3)
    store, rules = fresh(), CleanRules(commits=1)
    for each in range(4):
        add(store, each)
    plan = run(plan_clean(known(store), rules), store, CLOCK)
    assert (plan.instant, plan.files) == ("", ())
    add(store, 5)
    done = clean(store, rules)
    assert done is not None and not done.deleted
    assert run(preview_clean(known(store), rules), store, CLOCK).retain_from == done.retain_from
    with_since = plan_clean(known(store), rules, since=done.retain_from)
    assert run(with_since, store, CLOCK).instant == ""


def test_a_clean_continues_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleans, "COMMITS_AT_ONCE", 2)
    store, rules, deleted = fresh(), CleanRules(commits=1), 0
    add(store, 0)
    for amount in range(1, 8):
        update(store, 0, amount=amount)
    while (done := clean(store, rules)) is not None:
        deleted += len(done.deleted)
    assert deleted == 6  # the newest, and what the newest had been made from


# --- it may die anywhere --------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_clean_that_died_at_any_request_is_finished_by_its_plan(version: int) -> None:
    for most in range(40):
        store = fresh(version)
        add(store, 0)
        for amount in range(1, 5):
            update(store, 0, amount=amount)
        names = known(store).config.names
        plan = run(plan_clean(known(store), CleanRules(commits=1)), store, CLOCK)
        over = steps(carry_out(plan, names), store, most)
        snapshot = run(load_snapshot(), store, CLOCK)
        done = run(resume_clean(plan.instant, names, snapshot), store, CLOCK)
        assert done == Cleaned(plan.instant, plan.retain_from, tuple(p for _, p in plan.files))
        assert not data_files(store) & set(done.deleted)
        assert amount_of(store) == 4
        assert cleans_of(store) == [plan.instant]
        assert len([each for each in store.list(names.folder) if plan.instant in each.key]) == 3
        if over:
            return
    raise AssertionError("it never came to its end")


def test_a_plan_that_names_what_readers_see_deletes_nothing() -> None:
    store = fresh()
    add(store, 0)
    (of,) = run(load_snapshot(), store, CLOCK).slices
    instant, names = "20250101000000000", known(store).config.names
    wrong = CleanPlan(instant="", retain_from="", last_completed="",
                      files=((of.partition, of.path),))  # fmt: skip
    store.put(names.requested(instant, "clean"), format_clean_plan(wrong), IfAbsent())
    with pytest.raises(TableError, match="latest snapshot shows; nothing was deleted"):
        run(resume_clean(instant, names, run(load_snapshot(), store, CLOCK)), store, CLOCK)
    assert isinstance(store.get(of.path), Found)


def test_a_plan_stays_right_however_late_it_is_carried_out() -> None:
    store = fresh()
    add(store, 0)
    for amount in range(1, 4):
        update(store, 0, amount=amount)
    plan = run(plan_clean(known(store), CleanRules(commits=2)), store, CLOCK)
    (group,) = run(load_snapshot(), store, CLOCK).groups
    overwrite(store, [group], rows([0], amount=50))
    update(store, 0, amount=51)
    run(carry_out(plan, known(store).config.names), store, CLOCK)
    assert amount_of(store) == 51


# --- options --------------------------------------------------------------------------------------


def test_hudis_names_are_understood_and_nonsense_is_refused_by_name() -> None:
    assert clean_rules({}) == CleanRules()
    newer = {"hoodie.clean.commits.retained": "3", "hoodie.cleaner.commits.retained": "7"}
    assert clean_rules(newer).commits == 3
    assert clean_rules({"hoodie.cleaner.policy": "keep_latest_file_versions"}).policy == (
        "KEEP_LATEST_FILE_VERSIONS"
    )
    assert clean_rules({"hoodie.clean.hours.retained": 7}).hours == 7
    for wrong in ({"hoodie.clean.policy": "KEEP_ALL"},
                  {"hoodie.clean.commits.retained": "0"},
                  {"hoodie.clean.fileversions.retained": "many"}):  # fmt: skip
        with pytest.raises(TableError, match=next(iter(wrong))):
            clean_rules(wrong)
