"""Publishing through the lock: what goes together, what it costs, and what it must not lose."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from table_world import (
    AVRO,
    CLOCK,
    CONFIG,
    Holder,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)
from waiting import until

from lockkit.clock import Clock
from lockkit.errors import LockBusy, LockLost, TableError
from lockkit.lab.server import Emulator
from lockkit.lock.handle import Lock
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    WriteAnswer,
)
from lockkit.runtime import Parallel, Procedure, Put, perform, run
from lockkit.runtime.proven import RETRY_AFTER_S_MAX, pause_s
from lockkit.sinks import silent
from lockkit.stores import open_store
from lockkit.table import Committed, begin, commit, prepare, read_table
from lockkit.table.errors import CommitConflict, HeartbeatExpired
from lockkit.table.format.layout import hadoop_base
from lockkit.table.format.plans import parse_rollback_plan
from lockkit.table.format.properties import PROPERTIES_KEY, load_config, to_properties
from lockkit.table.format.property_keys import format_properties
from lockkit.table.format.timeline import V6, instant_ms, load_timeline
from lockkit.table.handle import Table
from lockkit.table.occ.concurrency import CONCURRENCY_KEY, SHARED
from lockkit.table.occ.fence import NO_INSTANT, read_fence
from lockkit.table.occ.heartbeat_rules import HeartbeatRules, heartbeat_rules
from lockkit.table.occ.liveness import lives
from lockkit.table.occ.publish import publish
from lockkit.table.occ.rollback import RollbackRefused, RolledBack, roll_back
from lockkit.table.occ.transaction import TableCache

NAMES = count()


@pytest.fixture(scope="module")
def server() -> Iterator[Emulator]:
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def url(server: Emulator) -> str:
    found = f"s3://lake/publish-{next(NAMES)}"
    new_table(found, endpoint=server.s3)
    return found


def requests(server: Emulator, url: str, since: int) -> list[str]:
    key = url.removeprefix("s3://lake/") + "/"
    return [
        f"{each['method']} {each['key'].removeprefix(key)}"
        for each in server.requests(since) if each["key"].startswith(key)
    ]  # fmt: skip


# --- together -----------------------------------------------------------------------------------


def test_parallel_requests_have_all_ended_when_one_raises() -> None:
    ended: list[str] = []

    def fails() -> Procedure[None]:
        yield Put("a", b"", IfAbsent())
        raise ValueError("first")

    def works() -> Procedure[None]:
        yield Put("b", b"", IfAbsent())
        ended.append("b")

    def both() -> Procedure[Any]:
        return (yield Parallel((works(), fails(), works())))

    with pytest.raises(ValueError, match="first"):
        run(both(), open_store(f"memory://publish-{next(NAMES)}"), CLOCK)
    assert ended == ["b", "b"]


def test_of_parallel_procedures_only_those_with_requests_run_in_threads() -> None:
    """A snapshot of group commit reads dozens of commits whose content its fence repeats."""

    def ran_in(key: str = "") -> Procedure[int]:
        if key:
            yield Put(key, b"", IfAbsent())
        return threading.get_ident()

    def together() -> Procedure[Any]:
        return (yield Parallel((ran_in(), ran_in("a"), ran_in(), ran_in("b"))))

    *here, other = run(together(), open_store(f"memory://publish-{next(NAMES)}"), CLOCK)
    assert set(here) == {threading.get_ident()} != {other}


def test_parallel_procedures_have_what_their_first_steps_have_left_of_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lockkit.stores import within as limits

    now_ms = [0]
    monkeypatch.setattr(limits, "_clock", SimpleNamespace(boot_ms=lambda: now_ms[0]))

    def limited(takes_ms: int) -> Procedure[float]:
        now_ms[0] += takes_ms
        yield Put(f"k{next(NAMES)}", b"", IfAbsent())
        return limits.limit_ms()

    def together() -> Procedure[Any]:
        return (yield Parallel((limited(0), limited(800), limited(0))))

    with limits.within(1.0):
        found = run(together(), open_store(f"memory://publish-{next(NAMES)}"), CLOCK)
    assert found == (1000, 1000, 1000)


def test_ctrl_c_leaves_no_parallel_request_in_flight() -> None:
    """Neither where it meets the one that runs here, nor where the others are waited for, nor
    before the first request."""
    put, many, here = count(), 20_000, threading.main_thread().ident
    assert here is not None

    def many_puts() -> Procedure[None]:
        for _ in range(many):
            yield Put(f"b{next(put)}", b"", IfAbsent())

    def interrupted() -> Procedure[None]:
        yield Put("a", b"", IfAbsent())
        signal.raise_signal(signal.SIGINT)

    def interrupts() -> Procedure[None]:
        yield Put("c", b"", IfAbsent())
        signal.pthread_kill(here, signal.SIGINT)
        yield from many_puts()

    def nothing() -> Procedure[None]:
        yield Put("d", b"", IfAbsent())

    def early() -> Procedure[None]:
        signal.raise_signal(signal.SIGINT)
        yield from many_puts()

    def together(*procedures: Procedure[None]) -> Procedure[Any]:
        return (yield Parallel(procedures))

    def ends(code: int = 143) -> Procedure[None]:
        if code:  # as a handler of a signal may
            raise SystemExit(code)
        yield from many_puts()

    def fails(error: str = "before its first request") -> Procedure[None]:
        if error:
            raise ValueError(error)
        yield from many_puts()

    before = set(threading.enumerate())
    ways = (interrupted(), many_puts()), (nothing(), interrupts()), (many_puts(), early())
    nested = fails(), together(early(), many_puts())
    for each in (*ways, (many_puts(), ends()), nested):
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(together(*each), open_store(f"memory://publish-{next(NAMES)}"), CLOCK)
        assert set(threading.enumerate()) <= before
    assert next(put) < many


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_writers_parallel_requests_fit_its_clients_connection_pool(
    kind: str, server: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{kind}://lake/publish-{next(NAMES)}"
    endpoint = {"s3": server.s3, "gs": server.gcs}[kind]
    new_table(url, endpoint=endpoint)
    regions = [rows([each], region=f"r{each}") for each in range(30)]
    with Table(url, endpoint=endpoint, client="W1") as table:
        table.append(pa.concat_tables(regions))
    assert "pool is full" not in caplog.text


def test_a_store_cannot_prolong_a_call_beyond_its_deadline() -> None:
    assert pause_s(0, 3.0) == 3.0
    assert pause_s(0, float("inf")) == RETRY_AFTER_S_MAX


def test_an_append_of_a_warm_handle_takes_ten_requests(server: Emulator, url: str) -> None:
    with Table(url, endpoint=server.s3, client="W1") as table:
        for each in (0, 1):
            table.append(rows([each]))
        before = len(server.requests())
        table.append(rows([2]))
        seen = requests(server, url, before)
    assert len(seen) == 10, seen
    assert read_table(open_store(url, endpoint=server.s3)).num_rows == 3


@pytest.mark.parametrize("first", ["append", "upsert"])
def test_an_upsert_of_a_warm_handle_into_one_file_group_takes_ten_requests(
    first: str, server: Emulator
) -> None:
    """As many as an append: the handle has the base file, which it wrote."""
    url = f"s3://lake/publish-{next(NAMES)}"
    new_table(url, replace(CONFIG, buckets=1), endpoint=server.s3)
    with Table(url, endpoint=server.s3, client="W1") as table:
        getattr(table, first)(rows(range(20)))
        for amount in (1, 2):
            before = len(server.requests())
            table.upsert(rows(range(10), amount=amount))
            seen = requests(server, url, before)
    assert len(seen) == 10, seen
    stored = read_table(open_store(url, endpoint=server.s3))
    assert sorted(stored["amount"].to_pylist()) == [0] * 10 + [2] * 10


def test_on_a_table_that_hudi_writes_too_an_append_is_one_grant(server: Emulator) -> None:
    url = f"s3://lake/publish-{next(NAMES)}"
    new_table(url, replace(CONFIG, mode="hudi"), endpoint=server.s3)
    with Table(url, endpoint=server.s3, client="W1") as table:
        before = len(server.requests())
        table.append(rows([0]))
        seen = requests(server, url, before)
    locked = [n for n, each in enumerate(seen) if "table_lock" in each and each.startswith("put")]
    asked = next(n for n, each in enumerate(seen) if each.endswith("commit.requested"))
    done = next(n for n, each in enumerate(seen) if each.endswith(".commit"))
    assert locked[0] < asked < done < locked[-1], seen
    assert [each for each in seen if "fence.json" in each] == ["get .hoodie/.locks/fence.json"]


@pytest.mark.parametrize("write", [Table.append, Table.upsert])
def test_beside_hudi_an_instant_has_a_heartbeat_first_and_every_clock_has_passed_it_at_the_end(
    server: Emulator, write: Callable[..., Committed]
) -> None:
    """Hudi rolls back what has no heartbeat, and its clocks may be 200 ms behind."""
    url = f"s3://lake/publish-{next(NAMES)}"
    new_table(url, replace(CONFIG, mode="hudi"), endpoint=server.s3)
    with Table(url, endpoint=server.s3) as table:
        before = len(server.requests())
        committed = write(table, rows([0]))
        assert Clock().wall_ms() > instant_ms(committed.instant) + 200
    sent = requests(server, url, before)
    beat, first = f"put .hoodie/.heartbeat/{committed.instant}", f"put .hoodie/{committed.instant}"
    assert sent.index(beat) < sent.index(f"{first}.commit.requested")
    assert sent.index(f"{first}.commit") < sent.index(beat.replace("put", "delete"))


def test_a_handle_that_is_refused_since_the_table_changed_appends_to_it_as_it_is_now(
    server: Emulator, url: str
) -> None:
    store = open_store(url, endpoint=server.s3)
    with Table(url, endpoint=server.s3, client="W1") as table:
        table.append(rows([0]))
        body = format_properties(to_properties(replace(CONFIG, buckets=8)))
        _, version = run(load_config(), store, CLOCK)
        assert isinstance(store.put(PROPERTIES_KEY, body, IfVersion(version)), Applied)
        with pytest.raises(TableError, match="the table changed under this commit"):
            table.append(rows([1]))
        table.append(rows([2]))
    assert sorted(read_table(store)["id"].to_pylist()) == ["k0", "k2"]


def test_rows_that_are_no_arrow_table_are_refused_by_their_type(server: Emulator, url: str) -> None:
    with Table(url, endpoint=server.s3) as table:
        before = len(server.requests())
        for wrong in ([{"id": "k0"}], rows([0]).to_batches()[0]):
            with pytest.raises(TableError, match=f"the rows are a {type(wrong).__name__}, "):
                table.append(wrong)
        assert not requests(server, url, before)


def test_one_handle_used_by_two_threads_is_refused(server: Emulator, url: str) -> None:
    """Hudi's caveat: a client that is shared mixes two transactions."""
    with Table(url, endpoint=server.s3, client="W1") as table:
        holder = Lock(url, endpoint=server.s3, ttl_s=30)
        holder.acquire()
        first = threading.Thread(target=table.append, args=(rows([0]),))
        first.start()
        assert until(lambda: bool(table._busy)), "it waits for the lock"
        with pytest.raises(RuntimeError, match="another thread is using this handle"):
            table.refresh()
        with pytest.raises(RuntimeError, match="append: another thread is using this handle"):
            table.append(rows([1]))
        holder.release()
        holder.close()
        first.join()
    assert read_table(open_store(url, endpoint=server.s3)).num_rows == 1


def test_a_held_lock_is_reported_as_held_and_nothing_is_published(
    server: Emulator, url: str
) -> None:
    store = open_store(url, endpoint=server.s3)
    prepared = prepare_inserts(store, rows([0]))
    with Lock(url, endpoint=server.s3, ttl_s=30) as held:
        with closing(Lock(url, endpoint=server.s3, ttl_s=30, acquire_timeout=0)) as mine:
            with pytest.raises(LockBusy, match=held.owner):
                publish(prepared, mine, store, CLOCK)
    assert read_table(store).num_rows == 0


def test_contending_writers_all_publish_commits_that_do_not_overlap(
    server: Emulator, url: str
) -> None:
    def write(name: str) -> None:
        with Table(url, endpoint=server.s3, client=name) as table:
            for each in range(4):
                table.append(rows([int(name) * 10 + each]))

    writers = [threading.Thread(target=write, args=(str(n),)) for n in range(1, 4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    ids = read_table(open_store(url, endpoint=server.s3))["id"].to_pylist()
    assert sorted(ids) == sorted(f"k{n * 10 + each}" for n in range(1, 4) for each in range(4))


@pytest.mark.parametrize("where", ["checked", "fenced", "published"])
def test_ctrl_c_in_a_commit_reports_the_possible_outcome_and_frees_the_lock(
    where: str, server: Emulator, url: str
) -> None:
    store = open_store(url, endpoint=server.s3)
    prepared = prepare_inserts(store, rows([0]))

    def interrupts(kind: str, **_: Any) -> None:
        if kind == where:
            raise KeyboardInterrupt

    with closing(Lock(url, endpoint=server.s3, ttl_s=30, acquire_timeout=5)) as lock:
        with pytest.raises(KeyboardInterrupt) as interrupted:
            publish(prepared, lock, store, CLOCK, interrupts)
        assert f"whether {prepared.instant} was committed" in str(
            interrupted.value.__notes__
        )
        assert not lock.locked()
    with Table(url, endpoint=server.s3, client="W2") as other:
        other.append(rows([1]))
    ids = read_table(store)["id"].to_pylist()
    assert sorted(ids) == (["k1"] if where == "checked" else ["k0", "k1"])


def test_a_long_append_has_a_heartbeat_and_a_short_one_needs_none(
    server: Emulator, url: str
) -> None:
    """Else a service takes it back while it waits for the lock."""
    quick = {"hoodie.client.heartbeat.interval_in_ms": "1000", CONCURRENCY_KEY: SHARED}
    store = open_store(url, endpoint=server.s3)
    with (
        Table(url, endpoint=server.s3, client="W1", options=quick) as table,
        closing(Lock(url, endpoint=server.s3, ttl_s=30)) as other,
    ):
        before = len(server.requests())
        table.append(rows([0]))
        assert not any("heartbeat" in each for each in requests(server, url, before))
        other.acquire()
        waits = threading.Thread(target=table.append, args=(rows([1]),))
        waits.start()
        while not (beats := store.list(".hoodie/.heartbeat/")):
            assert waits.is_alive()
        instant = beats[0].key.rpartition("/")[2]
        assert run(lives(instant, heartbeat_rules(quick)), store, CLOCK)
        other.release()
        waits.join()
    assert read_table(store).num_rows == 2
    assert not store.list(".hoodie/.heartbeat/")


@dataclass
class Leaping(Clock):
    """The machine's clock, which a test moves ahead."""

    ahead_ms: int = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.ahead_ms


@pytest.mark.parametrize("write", [Table.append, Table.upsert])
def test_a_writer_counts_the_age_of_its_instant_from_the_sending_of_its_request(
    memory: str, write: Callable[..., object]
) -> None:
    """Other writers count it from when the store applied the request."""
    clock = Leaping()
    with Table(memory, clock=clock) as table:
        table.append(rows([0]))
        send = table.store.put

        def answered_late(key: str, body: bytes, condition: Condition) -> WriteAnswer:
            answer = send(key, body, condition)
            if key.endswith(".requested"):
                clock.ahead_ms += HeartbeatRules().belief_ms
            return answer

        table.store.put = answered_late  # type: ignore[method-assign]
        with pytest.raises(HeartbeatExpired):
            write(table, rows([1]))
    assert read_table(open_store(memory))["id"].to_pylist() == ["k0"]
    assert not run(load_timeline(V6), open_store(memory), CLOCK).pending


# --- a rollback ---------------------------------------------------------------------------------


@pytest.fixture
def memory() -> str:
    found = f"memory://publish-{next(NAMES)}"
    new_table(found)
    return found


def test_a_rollback_wins_over_a_slow_writer_that_counted_as_dead(memory: str) -> None:
    store = open_store(memory)
    dead, other = prepare_inserts(store, rows([0])), prepare_inserts(store, rows([1]))
    known = dead.transaction.taken.known
    done = run(roll_back(dead.instant, Holder(2), known), store, CLOCK)
    assert isinstance(done, RolledBack)
    assert done.deleted == (dead.stats[0].path,)
    assert isinstance(store.get(dead.stats[0].path), Missing)
    for prepared in (dead, dead):  # it may ask as often as it likes
        with pytest.raises(LockLost, match="rolled it back"):
            run(commit(prepared, Holder(2)), store, CLOCK)
    run(commit(other, Holder(2)), store, CLOCK)
    assert read_table(store)["id"].to_pylist() == ["k1"]
    now = run(load_timeline(V6), store, CLOCK)
    assert now.completed[done.instant] == "rollback"
    assert not now.pending


def test_a_writer_that_is_committed_is_spared(memory: str) -> None:
    store = open_store(memory)
    quick = prepare_inserts(store, rows([0]))
    run(commit(quick, Holder(1)), store, CLOCK)
    done = run(roll_back(quick.instant, Holder(2), quick.transaction.taken.known), store, CLOCK)
    assert done == RollbackRefused(quick.instant)
    assert read_table(store).num_rows == 1


def test_a_rollback_leaves_the_fences_write_sets_so_that_a_later_conflict_is_found(
    memory: str,
) -> None:
    store = open_store(memory)
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    dead = prepare_inserts(store, rows([5]))
    loser = prepare_upserts(store, rows([0], amount=2))
    run(commit(prepare_upserts(store, rows([0], amount=1)), Holder(1)), store, CLOCK)
    run(roll_back(dead.instant, Holder(2), dead.transaction.taken.known), store, CLOCK)
    with pytest.raises(CommitConflict):
        run(commit(loser, Holder(2)), store, CLOCK)
    fence = run(read_fence(), store, CLOCK).fence
    assert fence is not None and fence.head.instant == dead.instant


def test_an_instant_that_is_rolled_back_while_it_begins_is_not_used(memory: str) -> None:
    """Its plan is there: who begins takes another instant rather than be refused at the end."""
    store = open_store(memory)
    first = run(begin(), store, CLOCK)
    procedure = roll_back(first.instant, Holder(1), first.taken.known)
    request = procedure.send(None)

    while not (isinstance(request, Put) and request.key.endswith("fence.json")):
        request = procedure.send(perform(request, store, CLOCK, silent))
    prepared = run(prepare(first, [], schema=AVRO), store, CLOCK)
    run(commit(prepared, Holder(1)), store, CLOCK)  # the plan alone decides nothing
    try:
        while True:
            request = procedure.send(perform(request, store, CLOCK, silent))
    except StopIteration as ended:
        assert ended.value == RollbackRefused(first.instant)


def test_hudi_mode_rolls_back_without_a_fence(memory: str) -> None:

    store = open_store(memory)
    dead = prepare_inserts(store, rows([0]))
    known = dead.transaction.taken.known
    hudi = TableCache(replace(CONFIG, mode="hudi"), known.config_version)
    with pytest.raises(TableError, match="needs the table's address"):
        run(roll_back(dead.instant, Holder(0), hudi), store, CLOCK)
    way = roll_back(dead.instant, Holder(0), hudi, base=hadoop_base("s3://lake/orders"))
    assert isinstance(run(way, store, CLOCK), RolledBack)
    (plan,) = (each.key for each in store.list(".hoodie/2") if "rollback.requested" in each.key)
    answer = store.get(plan)
    assert isinstance(answer, Found)
    assert parse_rollback_plan(plan, answer.body).base == "s3a://lake/orders"
    fence = run(read_fence(), store, CLOCK).fence
    assert fence is not None and fence.head.instant == NO_INSTANT, "nothing was decided by it"
