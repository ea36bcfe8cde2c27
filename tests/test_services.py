"""Table services: clean, clustering and rollback beside writers and readers, killed anywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from table_world import (
    AVRO,
    CLOCK,
    CONFIG,
    Hasty,
    Holder,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.lab.server import Emulator
from lockkit.lock.handle import Lock
from lockkit.protocol.outcome import Found, IfAbsent
from lockkit.runtime import Procedure, Put, perform, run
from lockkit.sinks import silent
from lockkit.stores import ListEntry, Store, open_store
from lockkit.table import (
    Prepared,
    Table,
    TableConfig,
    begin,
    commit,
    load_increment,
    load_snapshot,
    prepare,
    read_table,
    roll_back,
    scan,
    write_inserts,
)
from lockkit.table.format.layout import hadoop_base
from lockkit.table.format.plans import parse_clean_plan
from lockkit.table.format.timeline import V6, V9, Timeline, load_timeline, parse_timeline
from lockkit.table.occ import failed as occ_failed
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.concurrency import SHARED, OptimisticConcurrency
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.liveness import HEARTBEATS
from lockkit.table.occ.markers import MARKERS, mark
from lockkit.table.read import checkpoint
from lockkit.table.services.rules import CleanRules, ServiceRules, service_rules
from lockkit.table.services.service import ServiceRun, TableService
from lockkit.table.services.shared import keep
from lockkit.table.services.upkeep import AppendsDue, ServiceFailed

NAMES = count()
T = "20250101000000000"


@pytest.mark.parametrize(
    ("names", "completed", "pending"),
    [
        ((".commit", ".savepoint.inflight", ".savepoint"), "commit", None),
        ((".commit", ".rollback"), "commit", None),
        ((".clean.requested", ".commit.requested"), None, "commit"),
        ((".clean", ".commit.requested", ".inflight"), None, "commit"),
    ],
)
def test_another_action_with_a_commits_instant_does_not_hide_it(
    names: tuple[str, ...], completed: str | None, pending: str | None
) -> None:
    """A savepoint has the instant of its commit; others may take the same millisecond."""
    now = parse_timeline([ListEntry(f"{V6.folder}{T}{name}", 0) for name in sorted(names)], V6)
    assert now.completed.get(T) == completed
    assert now.pending.get(T) == pending
    assert now.savepoints == ({T} if ".savepoint" in names else set())


def test_a_savepoint_does_not_change_its_commits_completion_time() -> None:
    done = ("20250101000000001.commit", "20250101000000009.savepoint")
    now = parse_timeline([ListEntry(f"{V9.folder}{T}_{name}", 0) for name in done], V9)
    assert (now.completed, now.completion) == ({T: "commit"}, {T: "20250101000000001"})


# --- services beside writers and readers, at the real server --------------------------------------

A = {
    "hoodie.write.concurrency.mode": "single_writer",
    "hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "3",
    "hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "4",
}  # fmt: skip
B = {name.replace("inline", "async.enabled") if name == "hoodie.clustering.inline" else name: each
     for name, each in A.items()}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Emulator]:
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def url(server: Emulator) -> str:
    found = f"s3://lake/services-{next(NAMES)}"
    new_table(found, endpoint=server.s3)
    return found


def asked(server: Emulator, url: str, key: str) -> list[str]:
    """Requests of this table with `key` in their key, as the server recorded them."""
    folder = url.removeprefix("s3://lake/") + "/"
    return [f"{each['method']} {each['key']}" for each in server.requests()
            if each["key"].startswith(folder) and key in each["key"]]  # fmt: skip


def ids(store: Store, **how: Any) -> list[str]:
    return sorted(read_table(store, **how)["id"].to_pylist())


def keys(*numbers: int) -> list[str]:
    return sorted(f"k{each}" for each in numbers)


def timeline(store: Store) -> Timeline:
    return run(load_timeline(run(load_snapshot(), store, CLOCK).config.names), store, CLOCK)


def other_process(url: str, server: Emulator, store: Store, **of: Any) -> TableService:
    """Model C, as far as the table can tell."""
    turns = OptimisticConcurrency(Lock(url, endpoint=server.s3, ttl_s=30, acquire_timeout=30))
    return TableService(url, store, turns, clock=CLOCK, rules=ServiceRules(**of))


# --- without any option ---------------------------------------------------------------------------


def left_behind(store: Store, minutes: int = 10) -> Prepared:
    """An instant of a writer that began some minutes ago, and has no heartbeat."""
    clock = Clock(offset_ms=-minutes * 60_000)
    began = run(begin(), store, clock)
    file = write_inserts(began.target, rows([90]), file_id="left-0")
    store.put(file.key, file.body, IfAbsent())
    return run(prepare(began, [file.stat], schema=AVRO), store, clock)


def gave_up(store: Store) -> Prepared:
    left = left_behind(store)
    with Heartbeat(left.instant, store, clock=CLOCK):
        return left


@pytest.mark.parametrize("operation", ["append", "upsert", "overwrite"])
@pytest.mark.parametrize("config", [
    CONFIG, replace(CONFIG, version=9), replace(CONFIG, mode="hudi"),
    replace(CONFIG, mode="hudi", version=9),
], ids=["version 6", "version 9", "hudi mode, version 6", "hudi mode, version 9"])  # fmt: skip
def test_a_commit_rolls_back_the_dead_writer_that_it_meets_under_the_lock_that_it_holds(
    server: Emulator, config: TableConfig, operation: str
) -> None:
    url = f"s3://lake/services-{next(NAMES)}"
    store = new_table(url, config, endpoint=server.s3)
    dead = gave_up(store)
    with Table(url, endpoint=server.s3) as table:
        done = getattr(table, operation)(rows([0]))
    now = timeline(store)
    assert not now.pending and list(now.rollbacks.values()) == [True]
    assert not any(dead.instant in each.key for each in store.list("region"))
    assert ids(store) == keys(0) and run(load_increment(), store, CLOCK).held_back is None
    assert not any(store.list(HEARTBEATS))
    sent = [each for each in asked(server, url, "") if each.startswith(("put", "delete"))]
    lock = [n for n, each in enumerate(sent) if each.endswith("table_lock.json")]
    rolled_back = [n for n, each in enumerate(sent) if ".rollback" in each or ("/region" in each
                   and each.startswith("delete"))]  # fmt: skip
    (committed,) = [n for n, each in enumerate(sent) if f"/{done.instant}" in each
                    and each.endswith(("commit", ".commit"))]  # fmt: skip
    acquired, released = lock[-2:]
    # Where Hudi writes too, an upsert holds the lock once before that, to take its instant.
    assert len(lock) == (4 if config.mode == "hudi" and operation != "append" else 2)
    assert len(rolled_back) >= 4
    assert acquired < min(rolled_back) and max(rolled_back) < min(committed, released)


def test_a_commit_never_rolls_a_living_writer_back_and_looks_at_it_once(
    server: Emulator, url: str
) -> None:
    store = open_store(url, endpoint=server.s3)
    slow = left_behind(store)
    with Heartbeat(slow.instant, store, clock=CLOCK), Table(url, endpoint=server.s3) as table:
        for each in range(4):
            table.append(rows([each]))
        assert slow.instant in timeline(store).pending
        looks = asked(server, url, f".heartbeat/{slow.instant}")
        assert sum(each.lower().startswith("get") for each in looks) == 1
    assert ids(store) == keys(0, 1, 2, 3)


@pytest.mark.parametrize("option", [
    {"hoodie.table.services.enabled": "false"},
    {"hoodie.clean.failed.writes.policy": "NEVER"},
])  # fmt: skip
def test_a_commit_leaves_a_dead_writer_alone_where_the_options_say_so(
    server: Emulator, url: str, option: dict[str, str]
) -> None:
    store = open_store(url, endpoint=server.s3)
    dead = gave_up(store)
    with Table(url, endpoint=server.s3, options=option) as table:
        table.append(rows([0]))
    assert dead.instant in timeline(store).pending


def test_a_young_pending_instant_costs_a_commit_no_request(server: Emulator, url: str) -> None:
    store = open_store(url, endpoint=server.s3)
    prepare_inserts(store, rows([9]))
    with Table(url, endpoint=server.s3) as table:
        table.append(rows([0]))
        table.append(rows([1]))
        before = len(asked(server, url, ""))
        table.append(rows([2]))
    assert len(asked(server, url, "")) - before == 10


def test_a_failed_rollback_is_a_warning_and_the_commit_remains(
    server: Emulator, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(url, endpoint=server.s3)
    dead = gave_up(store)

    def fail(*_: Any, **__: Any) -> Procedure[None]:
        raise TableError("no luck")
        yield

    monkeypatch.setattr(occ_failed, "roll_back", fail)
    with Table(url, endpoint=server.s3) as table:
        with pytest.warns(ServiceFailed, match="no luck") as warned:
            table.append(rows([0]))
    (failed,) = (each.message for each in warned if isinstance(each.message, ServiceFailed))
    assert isinstance(failed.cause, TableError) and str(failed.cause) in str(failed)
    assert ids(store) == keys(0) and dead.instant in timeline(store).pending


@pytest.mark.parametrize(("options", "cleans"), [
    (None, True),
    ({"hoodie.clean.automatic": "false"}, False),
    ({"hoodie.table.services.enabled": "false"}, False),
])  # fmt: skip
def test_a_writer_cleans_by_default_and_not_if_an_option_switches_it_off(
    server: Emulator, url: str, options: dict[str, str] | None, cleans: bool
) -> None:
    """Hudi's defaults: `hoodie.clean.automatic`, with the files of ten commits retained."""
    store = open_store(url, endpoint=server.s3)
    with Table(url, endpoint=server.s3, options=options) as table:
        table.append(rows([0]))
        for amount in range(1, 4):
            run(commit(prepare_upserts(store, rows([0], amount=amount)), Holder(1)), store, CLOCK)
        for each in range(1, 17):
            table.append(rows([each]))
    assert ("clean" in timeline(store).completed.values()) is cleans
    latest = run(load_snapshot(), store, CLOCK).slices
    data = [each.key for each in store.list("region") if each.key.endswith(".parquet")]
    assert len(data) == len(latest) + (0 if cleans else 3)
    assert ids(store) == keys(*range(17))


def test_appends_alone_leave_nothing_to_clean_so_each_takes_ten_requests(
    server: Emulator, url: str
) -> None:
    with Table(url, endpoint=server.s3) as table:
        for each in range(24):
            before = len(asked(server, url, ""))
            table.append(rows([each]))
            count = len(asked(server, url, "")) - before
            assert each < 2 or count == 10, (each, count)


def test_a_writer_of_few_appends_also_looks_for_what_others_left() -> None:
    rules = service_rules({}, SHARED)

    def looks(due: AppendsDue, *others: int) -> list[int]:
        return [n for n, each in enumerate(others) if due.next(each, rules)]

    assert looks(AppendsDue(0, 0), *[0] * 60) == [], "all of it is its own"
    assert looks(AppendsDue(5, 5), *[0] * 60) == [14], "once, when the others' are not retained"
    assert looks(AppendsDue(19, 19), 0) == [0], "also if it appends once and ends"
    assert looks(AppendsDue(0, 0), *[1] * 20) == [9, 14, 19]
    every = service_rules({"hoodie.clean.max.commits": "1"}, SHARED)
    assert AppendsDue(0, 0).next(0, every), "asked for, it is looked for as Hudi does"


# --- with options ---------------------------------------------------------------------------------


def test_inline_services_of_a_single_writer_send_no_lock_request(
    server: Emulator, url: str
) -> None:
    with Table(url, endpoint=server.s3, options=A) as table:
        for each in range(12):
            table.append(rows([each]))
        assert ids(table.store) == keys(*range(12))
        actions = list(timeline(table.store).completed.values())
        assert {"clean", "replacecommit", "commit"} == set(actions)
        assert len(run(load_snapshot(), table.store, CLOCK).slices) < 6
    assert asked(server, url, "fence.json") and not asked(server, url, "table_lock")


def test_services_in_a_thread_beside_the_writer_send_no_lock_request_either(
    server: Emulator, url: str
) -> None:
    done = threading.Event()

    def on_event(_kind: str, *, text: str = "", **_of: Any) -> None:
        if text.startswith("cleaned"):
            done.set()

    with Table(url, endpoint=server.s3, options=B, emit=on_event) as table:
        for each in range(8):
            table.append(rows([each]))
        last = 8
        while not done.is_set() and last < 200:
            table.append(rows([last]))
            last += 1
        assert done.is_set()
        assert ids(table.store) == keys(*range(last))
    assert asked(server, url, "replacecommit") and not asked(server, url, "table_lock")
    assert not timeline(open_store(url, endpoint=server.s3)).pending


def test_a_failed_table_service_is_a_warning_because_the_commit_is_made(
    server: Emulator, url: str
) -> None:
    with Table(url, endpoint=server.s3, options=A) as table:
        table.append(rows([0]))
        table.store.put(V6.requested(T, "clean"), b"\x00 noise", IfAbsent())
        with pytest.warns(ServiceFailed, match=f"stands.*{T}.clean.requested"):
            table.append(rows([1]))
        assert ids(table.store) == keys(0, 1)


def test_a_reader_keeps_its_snapshot_while_all_files_are_clustered_and_cleaned(
    server: Emulator, url: str
) -> None:
    store = open_store(url, endpoint=server.s3)
    with Table(url, endpoint=server.s3) as table:
        for each in range(12):
            table.append(rows([each]))
    begun = scan(store)
    seen = next(begun)["id"].to_pylist()
    held = run(load_snapshot(), store, CLOCK)
    service = other_process(url, server, store, clean=CleanRules(commits=1))
    assert service.cluster() is not None and service.clean() == ()
    service.context.rules = ServiceRules(clean=CleanRules(commits=2))
    with Table(url, endpoint=server.s3) as table:
        table.append(rows([50]))
    assert service.clean() == ()
    for batch in begun:
        seen += batch["id"].to_pylist()
    assert sorted(seen) == keys(*range(12))
    service.context.rules = ServiceRules(clean=CleanRules(commits=1))
    (cleaned,) = service.clean()
    assert set(cleaned.deleted) == {each.path for each in held.slices}
    assert ids(store) == keys(*range(12), 50)


def test_two_services_and_a_writer_at_once_lose_nothing(server: Emulator, url: str) -> None:
    store = open_store(url, endpoint=server.s3)
    over, failed = threading.Event(), []

    def serve() -> None:
        service = other_process(
            url, server, open_store(url, endpoint=server.s3), clean_on=True, cluster_on=True,
            cluster_every=3, clean=CleanRules(commits=2),
        )  # fmt: skip
        try:
            while not over.is_set():
                service.run()
        except Exception as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    with Table(url, endpoint=server.s3) as table:
        for each in range(12):
            table.append(rows([each]))
    over.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert ids(store) == keys(*range(12))
    assert not timeline(store).pending


def test_a_service_saves_a_checkpoint_of_the_table_after_some_commits(
    url: str, server: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY", 3)
    with Table(url, endpoint=server.s3, options=A) as table:
        for each in range(4):
            table.append(rows([each]))
        assert run(checkpoint.read_checkpoint(), table.store, CLOCK) is not None


# --- failed writes --------------------------------------------------------------------------------


def left_by_a_dead_writer(store: Store, number: int) -> Prepared:
    left = prepare_inserts(store, rows([number]))
    with Heartbeat(left.instant, store, clock=CLOCK):
        pass  # it is over, as if it had expired
    return left


def is_pending(store: Store, prepared: Prepared) -> bool:
    left = [each.key for each in store.list("") if prepared.instant in each.key
            and "rollback" not in each.key]  # fmt: skip
    assert bool(left) == (prepared.instant in timeline(store).pending)
    return bool(left)


def test_eager_rolls_back_every_pending_instant_before_the_single_writers_next_write(
    server: Emulator, url: str
) -> None:
    store = open_store(url, endpoint=server.s3)
    dead = prepare_inserts(store, rows([7]))
    run(mark(dead.instant, dead.stats[0].path, "CREATE"), store, CLOCK)
    with Table(url, endpoint=server.s3, options=A) as table:
        table.append(rows([0]))
    assert not is_pending(store, dead)
    assert ids(store) == keys(0)
    assert not asked(server, url, "table_lock")


def test_eager_rollback_spares_another_running_write_of_the_same_process(
    server: Emulator, url: str
) -> None:
    store = open_store(url, endpoint=server.s3)
    with keep(url, A, endpoint=server.s3) as upkeep:
        known = upkeep.service.inspect().known
        with upkeep.taking_an_instant(known.config):
            mine = run(begin(known), store, CLOCK)
            upkeep.own.add(mine.instant)
        dead = prepare_inserts(store, rows([0]))
        upkeep.before_write(known)
        assert set(timeline(store).pending) == {mine.instant} and not is_pending(store, dead)
        upkeep.own.discard(mine.instant)
        upkeep.before_write(known)
    assert not timeline(store).pending


def test_lazy_rolls_back_only_instants_without_a_heartbeat(server: Emulator, url: str) -> None:
    store = open_store(url, endpoint=server.s3)
    lives, begins = (prepare_inserts(store, rows([each])) for each in range(2))
    dead = left_by_a_dead_writer(store, 2)
    heart = Heartbeat(lives.instant, store, clock=CLOCK)
    taken_back = other_process(url, server, store).run().taken_back
    assert [each.target for each in taken_back] == [dead.instant]
    assert [is_pending(store, each) for each in (dead, lives, begins)] == [False, True, True]
    heart.assert_alive()
    run(commit(lives, EpochGuard(1000)), store, CLOCK)
    heart.finish()
    assert ids(store) == keys(0)
    assert not store.list(HEARTBEATS)


def test_leftovers_of_a_writer_that_died_after_its_commit_are_removed(
    server: Emulator, url: str
) -> None:
    store = open_store(url, endpoint=server.s3)
    died, lives, gave_up = (prepare_inserts(store, rows([each])) for each in range(3))
    for each in (died, lives, gave_up):
        run(mark(each.instant, each.stats[0].path, "CREATE"), store, CLOCK)
    for each in (died, lives):
        run(commit(each, EpochGuard(1)), store, CLOCK)
    for key in (gave_up.inflight, gave_up.transaction.taken.requested):
        store.delete(key)
    store.put(HEARTBEATS + "noise", b"", IfAbsent())
    heart = Heartbeat(lives.instant, store, clock=CLOCK)
    for each in (died, gave_up):
        with Heartbeat(each.instant, store, clock=CLOCK):
            pass  # it is over, as if it had expired
    assert other_process(url, server, store).run() == ServiceRun()
    left = [each.key for folder in (HEARTBEATS, MARKERS) for each in store.list(folder)]
    assert [each for each in left if lives.instant in each or "noise" in each] == left
    assert len(left) == 3
    heart.finish()


def test_with_the_policy_never_no_instant_is_rolled_back(server: Emulator, url: str) -> None:
    store = open_store(url, endpoint=server.s3)
    dead = left_by_a_dead_writer(store, 0)
    assert other_process(url, server, store, failed="NEVER").run() == ServiceRun()
    options = A | {"hoodie.clean.failed.writes.policy": "NEVER"}
    with Table(url, endpoint=server.s3, options=options) as table:
        table.append(rows([1]))
    assert is_pending(store, dead)


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_a_rollback_whose_maker_died_is_finished_by_its_plan(server: Emulator, mode: str) -> None:
    url = f"s3://lake/services-{next(NAMES)}"
    store = new_table(url, replace(CONFIG, mode=mode), endpoint=server.s3)
    dead = prepare_inserts(store, rows([0]))
    service = other_process(url, server, store, failed="NEVER")
    seen = service.inspect()
    way = roll_back(dead.instant, EpochGuard(1), seen.known, base=hadoop_base(url))
    request = way.send(None)
    while not (isinstance(request, Put) and "rollback.requested" in request.key):
        request = way.send(perform(request, store, CLOCK, silent))
    perform(request, store, CLOCK, silent)
    way.close()
    assert "rollback" in timeline(store).pending.values()
    if mode == "hudi":  # its maker may be at it: it is an hour old only by the later clock
        assert service.run() == ServiceRun()
        service.context.clock = Hasty(offset_ms=3_600_000)
    (done,) = service.run().taken_back
    assert done.target == dead.instant
    assert not is_pending(store, dead) and not timeline(store).pending


def test_where_hudi_writes_too_a_clean_names_the_tables_address(server: Emulator) -> None:
    url = f"s3://lake/services-{next(NAMES)}"
    store = new_table(url, replace(CONFIG, mode="hudi"), endpoint=server.s3)
    with Table(url, endpoint=server.s3) as table:
        for each in range(5):
            table.append(rows([each]))
    service = other_process(url, server, store, clean=CleanRules(commits=1))
    assert service.cluster() is not None
    with Table(url, endpoint=server.s3) as table:
        table.append(rows([9]))
    (cleaned,) = service.clean()
    key = V6.requested(cleaned.instant, "clean")
    found = store.get(key)
    assert isinstance(found, Found)
    assert parse_clean_plan(key, found.body).base == hadoop_base(url)
    assert len(cleaned.deleted) == 5 and ids(store) == keys(*range(5), 9)


def test_invalid_options_are_refused_by_name() -> None:
    assert service_rules({}, "single_writer").failed == "EAGER"
    assert service_rules({}, "optimistic_concurrency_control").failed == "LAZY"
    for name, value in (
        ("hoodie.clean.automatic", "perhaps"), ("hoodie.clustering.inline.max.commits", "0"),
        ("hoodie.clean.failed.writes.policy", "EAGER"),
    ):  # fmt: skip
        with pytest.raises(TableError, match=name):
            service_rules({name: value}, "optimistic_concurrency_control")
    both = {"hoodie.clustering.inline": "true", "hoodie.clustering.async.enabled": "true"}
    with pytest.raises(TableError, match="choose one"):
        service_rules(both, "single_writer")
