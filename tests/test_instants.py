"""An instant belongs to one attempt, and one that was given up is never used again.

Also what a caller is told if something fails after the moment of commit.
"""

from __future__ import annotations

import _thread
import json
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatch
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from lock_world import until
from table_world import (
    AVRO,
    CLOCK,
    Hasty,
    Holder,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.clock import Clock
from lockkit.errors import LockLost, TableError
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    Throttled,
    Unknown,
)
from lockkit.runtime import run
from lockkit.sinks import ObserverFailed
from lockkit.stores import Store
from lockkit.table import (
    Table,
    TableConfig,
    begin,
    commit,
    load_increment,
    load_snapshot,
    prepare,
    read_table,
    roll_back,
    write_inserts,
)
from lockkit.table.errors import CommitConflict, CommitUnknown
from lockkit.table.format.plans import RollbackPlan, format_rollback_plan
from lockkit.table.format.properties import PROPERTIES_KEY, load_config
from lockkit.table.format.timeline import (
    LANES,
    TimelineNames,
    instant_ms,
    instant_of,
    load_timeline,
)
from lockkit.table.occ.commit import EpochGuard, StateChange
from lockkit.table.occ.discarding import discard
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, WINDOW_MAX, Decided, Fence
from lockkit.table.occ.late import archived_as
from lockkit.table.occ.liveness import heartbeat_key
from lockkit.table.occ.mode import switch_mode
from lockkit.table.occ.publish import _ReleaseThread
from lockkit.table.occ.rollback import RollbackRefused, keep_only, settle_own, withdraw
from lockkit.table.occ.transaction import TableCache, Transaction, survey, take
from lockkit.table.read.checkpoint import CHECKPOINT_EVERY, CHECKPOINT_KEY
from lockkit.table.read.opening import look_over
from lockkit.table.services.archive import archive
from lockkit.table.services.archive_rules import ArchiveRules

NUMBERS = count()
VERSIONS = pytest.mark.parametrize("version", [6, 9])


class Standing(Hasty):
    """A clock that does not advance."""

    def __init__(self, at_ms: int) -> None:
        super().__init__()
        self.at_ms = at_ms

    def wall_ms(self) -> int:
        return self.at_ms


def table(version: int = 9, mode: str = "fenced") -> tuple[Store, TableConfig, str]:
    config = TableConfig(
        name="orders", record_key="id", partition_by="region", precombine="at", version=version,
        mode=mode,
    )  # fmt: skip
    url = f"memory://instants-{next(NUMBERS)}/t"
    return new_table(url, config), config, url


def known_of(store: Store) -> TableCache:
    return TableCache(*run(load_config(), store, CLOCK))


def pending(store: Store, names: TimelineNames) -> list[str]:
    return list(run(load_timeline(names), store, CLOCK).pending)


class Bent:
    """A store with one method replaced by a test."""

    def __init__(self, store: Store, **methods: Callable[..., Any]) -> None:
        self._store = store
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


# --- whose it is ----------------------------------------------------------------------------------


@VERSIONS
def test_no_two_actions_request_one_instant(version: int) -> None:
    """The file names differ by action, so create-if-absent cannot keep them apart."""
    store, _, _ = table(version)
    known, still = known_of(store), Standing(CLOCK.wall_ms())
    found = {
        action: run(take(known, action=action), store, still).instant
        for action in ("commit", "replacecommit")
    }
    assert len(set(found.values())) == 2
    assert [instant_ms(at) % len(LANES) for at in found.values()] == [0, 1]


@VERSIONS
def test_with_group_commit_a_commit_takes_the_lanes_of_merge_on_read_too(
    version: int
) -> None:
    """Its table has no merge-on-read actions, whose lanes its commits take, too."""
    config = TableConfig(name="orders", record_key="id", version=version, commit="group")
    store = new_table(f"memory://instants-{next(NUMBERS)}/t", config)
    still = Standing(CLOCK.wall_ms())
    first, second = (instant_ms(run(take(known_of(store)), store, still).instant) for _ in range(2))
    assert 0 < second - first < 9 * len(LANES)
    assert {first % len(LANES), second % len(LANES)} < {0, 5, 6, 7}


@VERSIONS
def test_beside_hudi_an_instant_with_another_writers_heartbeat_is_left_alone(version: int) -> None:
    """In mode hudi a writer's heartbeat comes before its instant, so one may exist already."""
    store, config, url = table(version, mode="hudi")
    still = Standing(CLOCK.wall_ms())
    theirs = run(take(known_of(store)), store, still)
    store.delete(theirs.requested)
    beat = heartbeat_key(theirs.instant)
    store.put(beat, b"", IfAbsent())
    with Table(url, clock=still) as writer:
        committed = writer.upsert(rows([1]))
    assert committed is not None and committed.instant > theirs.instant
    assert isinstance(store.get(theirs.requested), Missing)
    assert isinstance(store.get(beat), Found)
    assert pending(store, config.names) == []


@VERSIONS
def test_an_instant_whose_answer_was_lost_is_still_the_writers_own(version: int) -> None:
    store, config, _ = table(version)
    lost = []

    def put(key: str, body: bytes, condition: Any) -> Any:
        answer = store.put(key, body, condition)
        if key.endswith(".requested") and not lost:
            lost.append(key)
            return Unknown("the answer was lost")
        return answer

    transaction = run(begin(), Bent(store, put=put), CLOCK)
    assert lost == [transaction.taken.requested]
    assert pending(store, config.names) == [transaction.instant], "no dead instant is left behind"


@VERSIONS
def test_an_instant_that_another_attempt_holds_is_left_alone(version: int) -> None:
    """A late delete removed our file, and another writer took the instant."""
    store, _, _ = table(version)
    known, still = known_of(store), Standing(CLOCK.wall_ms())
    ours = run(take(known), store, still)
    store.delete(ours.requested)
    theirs = run(take(known), store, still)
    assert theirs.instant == ours.instant and theirs.body != ours.body
    transaction, now = run(survey(ours), store, CLOCK)
    assert transaction is None
    run(discard(ours, now), store, CLOCK)
    assert isinstance(store.get(theirs.requested), Found), "it is theirs, and not ours to delete"
    assert run(survey(theirs), store, CLOCK)[0] is not None


@VERSIONS
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("ends", ["interrupt", "outage"])
def test_an_append_that_never_got_its_instant_leaves_another_writers_alone(
    ends: str, prepared: bool, version: int
) -> None:
    """A later instant is completed, but the other writer had listed the timeline before that."""
    store, _, url = table(version)
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    ahead = Clock(offset_ms=6_000)  # so every new instant is the one right after the newest
    run(commit(run(prepare(run(begin(), store, ahead), [], schema=AVRO), store, ahead), Holder(1)),
        store, CLOCK)  # fmt: skip
    late = Table(url, clock=Hasty())
    late.refresh()
    theirs = run(begin(run(look_over(), store, CLOCK)[0]), store, CLOCK)
    if prepared:
        run(prepare(theirs, [], schema=AVRO), store, CLOCK)
    files = {each.key for each in store.list(".hoodie/") if theirs.instant in each.key}
    later = run(prepare(run(begin(), store, CLOCK), [], schema=AVRO), store, CLOCK)
    down: list[str] = []

    def put(key: str, body: bytes, condition: Any) -> Any:
        if theirs.instant in key and not down:
            down.append(key)
            run(commit(later, Holder(2)), store, CLOCK)
            if ends == "interrupt":
                raise KeyboardInterrupt
            return Unknown("503")
        return store.put(key, body, condition)

    def get(key: str, **how: Any) -> Any:
        if down and ends == "outage" and len(down) < 60:  # until the append has given up
            down.append(key)
            return Unknown("503")
        return store.get(key, **how)

    late.store = Bent(late.store, put=put, get=get)
    with pytest.raises((KeyboardInterrupt, TableError)):
        late.append(rows([1]))
    assert down, "both wanted the same instant"
    assert {each.key for each in store.list(".hoodie/") if theirs.instant in each.key} == files
    late.close()


def test_a_commit_under_our_instant_that_is_not_ours_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, config, _ = table(6)
    run(commit(prepare_inserts(store, rows([2])), Holder(1)), store, CLOCK)
    ours, theirs = prepare_inserts(store, rows([0])), prepare_inserts(store, rows([1]))
    store.put(config.names.completed(ours.instant), theirs.body, IfAbsent())
    run(commit(prepare_inserts(store, rows([3])), Holder(1)), store, CLOCK)
    monkeypatch.setattr("lockkit.table.occ.fence.Fence.since", lambda *_: None)  # list, then
    with pytest.raises(TableError, match="is not ours"):
        run(commit(ours, Holder(2)), store, CLOCK)


# --- giving it up ---------------------------------------------------------------------------------


@VERSIONS
def test_an_instant_that_is_given_up_is_never_used_again(version: int) -> None:
    """Otherwise late writes of its first owner become visible with the second owner's commit."""
    store, config, _ = table(version)
    gave_up = prepare_inserts(store, rows([0]))
    run(withdraw(gave_up.transaction.taken, EpochGuard(0)), store, CLOCK)
    now = run(load_timeline(config.names), store, CLOCK)
    assert not now.pending and list(now.rollbacks.values()) == [True]
    assert isinstance(store.get(gave_up.stats[0].path), Missing)
    behind = Standing(instant_ms(gave_up.instant))
    assert run(begin(known_of(store)), store, behind).instant > now.latest > gave_up.instant


@VERSIONS
def test_an_instant_that_was_overtaken_is_deleted_without_a_rollback(version: int) -> None:
    """No writer can commit it any more: every listing shows the later commit."""
    store, config, _ = table(version)
    slow = prepare_inserts(store, rows([0]))
    done = run(commit(prepare_inserts(store, rows([1])), Holder(1)), store, CLOCK)
    run(withdraw(slow.transaction.taken, EpochGuard(0)), store, CLOCK)
    now = run(load_timeline(config.names), store, CLOCK)
    assert (list(now.completed), dict(now.pending)) == ([done.instant], {})
    again = run(take(known_of(store)), store, Standing(instant_ms(slow.instant)))
    assert again.instant == slow.instant, "it can be taken"
    assert run(survey(again), store, CLOCK)[0] is None, "and is never of any use"


@VERSIONS
def test_a_writer_whose_clock_is_slow_begins_though_others_commit_all_the_time(
    version: int,
) -> None:
    """Each of its listings showed a later commit: it used up 200 instants, and failed."""
    store, config, _ = table(version)
    names, slow = config.names, Standing(CLOCK.wall_ms() - 60_000)
    tries = []

    def listing(prefix: str, after: str = "") -> Any:
        if prefix == names.prefix:
            newest = CLOCK.wall_ms() + 300 * len(tries)
            tries.append(newest)
            done = instant_of(newest + 300) if version == 9 else None
            store.put(names.completed(instant_of(newest), "commit", done), b"{}", IfAbsent())
        return store.list(prefix, after)

    transaction = run(begin(), Bent(store, list=listing), slow)
    assert len(tries) < 8
    assert pending(store, names) == [transaction.instant], "none of the others is left behind"


@VERSIONS
def test_a_refused_append_leaves_nothing_that_holds_readers_back(version: int) -> None:
    store, config, url = table(version)
    with Table(url) as other, Table(url) as mine:
        mine.append(rows([0]))

        def wider(kind: str, **_: Any) -> None:
            if kind == "began":
                with suppress(TableError), Table(url) as third:
                    third.append(rows([2]).append_column("extra", pa.array([1])))

        mine.emit = wider
        wrong = rows([1]).append_column("extra", pa.array(["a string"]))
        with pytest.raises((CommitConflict, TableError)):
            mine.append(wrong)
        assert not pending(store, config.names)
        other.append(rows([3]))
    assert sorted(read_table(store)["id"].to_pylist()) == ["k0", "k2", "k3"]


@VERSIONS
def test_an_interrupted_append_is_rolled_back_at_once(version: int) -> None:
    store, config, url = table(version)

    def interrupt(kind: str, **_: Any) -> None:
        if kind == "checked":
            raise KeyboardInterrupt

    with Table(url, emit=interrupt) as mine:
        with pytest.raises(KeyboardInterrupt) as interrupted:
            mine.append(rows([0]))
        assert "was not committed" in str(interrupted.value.__notes__)
        assert not pending(store, config.names)
        assert not mine.lock.locked()
    assert read_table(store).num_rows == 0


@VERSIONS
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("what", ["append", "upsert", "cluster"])
def test_beside_hudi_an_interrupt_rolls_back_what_was_certainly_not_committed(
    what: str, version: int, *, sent: bool
) -> None:
    """A clustering's plan stayed, and upserts conflicted with it until its heartbeat expired."""
    store, config, url = table(version, "hudi")
    now: list[str] = []

    def interrupt(kind: str, **_: Any) -> None:
        if kind in now:
            raise KeyboardInterrupt

    with Table(url, emit=interrupt) as mine:
        for each in range(3):
            mine.append(rows([each]))
        now.append("published" if sent else "checked")
        with pytest.raises(KeyboardInterrupt) as interrupted:
            mine.cluster() if what == "cluster" else getattr(mine, what)(rows([3]))
        notes = str(getattr(interrupted.value, "__notes__", ""))
        assert ("was not committed" in notes) is not sent
        now.clear()
        assert not pending(store, config.names)
        assert not mine.lock.locked()
        mine.upsert(rows([0]))
    there = [f"k{each}" for each in range(4 if sent and what != "cluster" else 3)]
    assert sorted(read_table(store)["id"].to_pylist()) == there


# --- a schedule that lost an acknowledged update --------------------------------------------------


def test_a_slow_append_that_gives_up_its_instant_cannot_harm_the_next_owner() -> None:
    """No fault, no crash, no late message: one clock is six seconds ahead.

    An overwrite and an append took one instant, and the append gave it up twice, by deletes that
    named no version. Between the two an upsert took the instant: its files vanished, a reader of
    increments passed it, and a third writer overwrote its acknowledged rows.
    """
    store, config, url = table(6)
    ahead = Clock(offset_ms=6_000)
    known = known_of(store)
    run(commit(prepare_inserts_at(store, known, ahead, "first"), Holder(1)), store, ahead)
    known = known.after(run(load_timeline(config.names), store, CLOCK))
    overwrite = run(take(known, action="replacecommit"), store, CLOCK)
    listed, go_on, upload = threading.Event(), threading.Event(), threading.Event()

    class Slow(Bent):
        def put(self, key: str, body: bytes, condition: Any) -> Any:
            if key.endswith(".parquet") and not upload.is_set():
                upload.wait(20)
            return store.put(key, body, condition)

        def list(self, *args: Any) -> Any:
            found = store.list(*args)
            listed.set()
            go_on.wait(20)
            return found

    done: dict[str, str] = {}
    with Table(url) as slow:
        slow.refresh()
        slow.store = Slow(store)
        thread = threading.Thread(
            target=lambda: done.update(slow=slow.append(rows(range(1))).instant)
        )
        thread.start()
        assert listed.wait(20)
        gone, now = run(survey(overwrite), store, CLOCK)
        if gone is None:
            run(discard(overwrite, now), store, CLOCK)
        go_on.set()
        # If both had one instant, the append has given it up once. Its upload continues.
        theirs = config.names.requested(overwrite.instant, "commit")
        until(lambda: isinstance(store.get(theirs), Missing))
        upsert = prepare_inserts_at(store, known, CLOCK, "acknowledged")
        upload.set()
        thread.join()
    committed = run(commit(upsert, Holder(1_000_000)), store, CLOCK)
    instants = [overwrite.instant, done["slow"], committed.instant]
    assert len(set(instants)) == 3, "no two writers ever have one instant"
    found = run(load_snapshot(), store, CLOCK)
    assert {each.instant for each in found.slices} >= {committed.instant, done["slow"]}
    pulled = run(load_increment(""), store, CLOCK)
    late = run(load_increment(pulled.end), store, CLOCK)
    seen = {each.instant for part in (pulled, late) for each in part.slices}
    assert committed.instant in seen or committed.instant > (late.end or pulled.end)


def prepare_inserts_at(store: Store, known: TableCache, clock: Clock, key: str) -> Any:
    transaction = run(begin(known), store, clock)
    file = write_inserts(transaction.target, rows([9]), file_id=f"{CLOCK.unique()}-0")
    assert store.put(file.key, file.body, IfAbsent())
    return run(prepare(transaction, [file.stat], schema=AVRO), store, clock)


# --- after the moment of commit -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fenced", "published"])
def test_an_observer_that_fails_after_the_moment_of_commit_fails_no_commit(kind: str) -> None:
    """The caller would write the rows again."""
    store, _, url = table()

    def full(kind_seen: str, **_: Any) -> None:
        if kind_seen == kind:
            raise OSError(28, "No space left on device")

    with Table(url, emit=full) as mine, pytest.warns(ObserverFailed, match="No space left"):
        mine.append(rows([0]))
    assert read_table(store)["id"].to_pylist() == ["k0"]
    with warnings.catch_warnings(), Table(url, emit=full) as mine:
        warnings.simplefilter("error", ObserverFailed)
        mine.append(rows([1]))


def test_an_observer_that_blocks_delays_no_acknowledgement() -> None:
    """No code of the user runs between the deciding write and the acknowledgement."""
    store, _, url = table()
    seen: list[tuple[str, int]] = []

    def visible(kind: str, **_: Any) -> None:
        seen.append((kind, read_table(store).num_rows))

    with Table(url, emit=visible) as mine:
        mine.append(rows([0]))
    kind_seen = dict(seen)
    assert (kind_seen["checked"], kind_seen["fenced"], kind_seen["published"]) == (0, 1, 1)


def test_a_process_at_its_limit_of_threads_commits_and_releases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _, url = table()
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "release" or "(one)" in thread.name:
            raise RuntimeError("can't start new thread")
        real(thread)

    with Table(url, lock={"ttl_s": 3.0}) as mine:
        mine.append(rows([0]))
        monkeypatch.setattr(threading.Thread, "start", start)
        mine.append(rows([1]))
        assert not mine.lock.owned()
    assert sorted(read_table(store)["id"].to_pylist()) == ["k0", "k1"]


def test_an_unknown_outcome_is_settled_before_the_call_returns() -> None:
    store, _, url = table()
    silent = []

    def put(key: str, body: bytes, condition: Any) -> Any:
        answer = store.put(key, body, condition)
        if key == FENCE_KEY and not silent:
            silent.append(key)
            return Unknown("the answer was lost")
        return answer

    def get(key: str, **how: Any) -> Any:
        if key == FENCE_KEY and 0 < len(silent) < 9:
            silent.append(key)
            return Unknown("silence")
        return store.get(key, **how)

    with Table(url, clock=Hasty()) as mine:
        mine.append(rows([0]))
        mine.store = Bent(store, put=put, get=get)
        mine.append(rows([1]))
    assert sorted(read_table(store)["id"].to_pylist()) == ["k0", "k1"]


@pytest.mark.parametrize("where", [FENCE_KEY, "*.requested", "*.commit"])
def test_a_write_that_landed_behind_a_hidden_retrys_429_is_seen(where: str) -> None:
    """The first copy was applied; the client sees only that the later copies were throttled."""
    store, _, url = table()

    def put(key: str, body: bytes, condition: Any) -> Any:
        if fnmatch(key, where):
            store.put(key, body, condition)
            return Throttled(None)
        return store.put(key, body, condition)

    with Table(url, clock=Hasty()) as mine:
        mine.append(rows([0]))
        mine.store = Bent(store, put=put)
        mine.append(rows([1]))
    assert sorted(read_table(store)["id"].to_pylist()) == ["k0", "k1"]


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
@VERSIONS
def test_ctrl_c_at_any_request_leaves_nothing_pending_and_reports_the_outcome(
    version: int, mode: str
) -> None:
    for at in range(60):
        config = TableConfig(
            name="orders", record_key="id", partition_by="region", precombine="at",
            version=version, mode=mode,
        )  # fmt: skip
        url = f"memory://instants-{next(NUMBERS)}/t"
        store = new_table(url, config)
        sent = count()

        def struck(name: str, store: Store = store, sent: Any = sent, at: int = at) -> Any:
            def send(*args: Any, **how: Any) -> Any:
                answer = getattr(store, name)(*args, **how)
                if next(sent) == at:
                    if threading.current_thread() is not threading.main_thread():
                        _thread.interrupt_main()
                    else:
                        raise KeyboardInterrupt
                return answer

            return send

        with Table(url, clock=Hasty(), lock={"ttl_s": 5.0}) as mine:
            mine.append(rows([0]))
            mine.store = Bent(store, **{n: struck(n) for n in ("get", "put", "list")})
            notes = "done"
            try:
                mine.append(rows([1]))
                time.sleep(0.01)  # an interrupt that is on its way
            except KeyboardInterrupt as error:
                notes = str(getattr(error, "__notes__", ""))
            mine.store = store
            assert not mine.lock.locked(), (at, notes)
        visible = read_table(store).num_rows == 2
        unknown = mode == "hudi" and "is not known" in notes
        assert not (visible and "was not committed" in notes), (at, notes)
        assert visible or unknown or "not committed" in notes, (at, notes)
        assert unknown or not pending(store, config.names), (at, notes)
        if next(sent) < at:
            return


def test_an_unsettled_outcome_raises_an_error_with_its_transaction() -> None:
    store, _, url = table()
    dark = []

    def put(key: str, body: bytes, condition: Any) -> Any:
        if key == FENCE_KEY:
            dark.append(key)
            store.put(key, body, condition)
            return Unknown("the answer was lost")
        return store.put(key, body, condition)

    def get(key: str, **how: Any) -> Any:
        return Unknown("silence") if dark and key == FENCE_KEY else store.get(key, **how)

    with Table(url, clock=Hasty()) as mine:
        mine.append(rows([0]))
        mine.store = Bent(store, put=put, get=get)
        with pytest.raises(CommitUnknown) as unknown:
            mine.append(rows([1]))
    prepared = unknown.value.prepared
    assert prepared.instant == unknown.value.instant
    run(commit(prepared, Holder(100)), store, CLOCK)  # the network is back: the same again tells
    assert sorted(read_table(store)["id"].to_pylist()) == ["k0", "k1"]


def test_an_observer_that_always_fails_stops_neither_a_commit_nor_a_release() -> None:
    store, _, url = table()

    def broken(_kind: str, **_: Any) -> None:
        raise RuntimeError("no observer")

    with Table(url, emit=broken) as mine, warnings.catch_warnings():
        warnings.simplefilter("ignore", ObserverFailed)
        mine.append(rows([0]))
        assert not mine.lock.locked()
    assert read_table(store)["id"].to_pylist() == ["k0"]


@pytest.mark.parametrize("step", ["begin", "go", "end"])
def test_ctrl_c_around_the_decision_leaves_no_lock_with_endless_renewal(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store, config, url = table()
    real = getattr(_ReleaseThread, step)
    hits = []

    def hit(release: Any) -> None:
        if not hits:
            hits.append(step)
            raise KeyboardInterrupt
        real(release)

    with Table(url) as mine:
        mine.append(rows([0]))
        monkeypatch.setattr(_ReleaseThread, step, hit)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            mine.append(rows([1]))
        assert not mine.lock.locked() and not mine.lock.owned()
        said = str(interrupted.value.__notes__)
        assert ("was not committed" if step == "begin" else "was committed") in said
        assert not pending(store, config.names)
        mine.append(rows([2]))


# --- what a writer that was taken for dead may still do -------------------------------------------


@VERSIONS
def test_a_writer_that_was_rolled_back_is_refused_however_late_it_wakes(version: int) -> None:
    """By then its rollback has left the fence's window, and its inflight file is new."""
    store, _, _ = table(version)
    run(commit(prepare_inserts(store, rows([1])), Holder(1)), store, CLOCK)
    asleep = run(begin(), store, CLOCK)
    run(roll_back(asleep.instant, Holder(1), known_of(store)), store, CLOCK)
    for each in range(WINDOW_MAX + 2):
        run(commit(prepare_inserts(store, rows([10 + each])), Holder(1)), store, CLOCK)
    woken = run(prepare(asleep, [], schema=AVRO), store, CLOCK)
    with pytest.raises((CommitConflict, LockLost)):
        run(commit(woken, Holder(2)), store, CLOCK)


@VERSIONS
def test_a_rolled_back_writer_removes_its_late_inflight_file(version: int) -> None:
    """Otherwise it would hold readers back, and no heartbeat would name its owner."""
    store, config, _ = table(version)
    asleep = run(begin(), store, CLOCK)
    run(roll_back(asleep.instant, Holder(1), known_of(store)), store, CLOCK)
    run(prepare(asleep, [], schema=AVRO), store, CLOCK)
    assert pending(store, config.names) == [asleep.instant]
    run(withdraw(asleep.taken, EpochGuard(0), paths=()), store, CLOCK)
    assert not pending(store, config.names)


@VERSIONS
def test_a_rolled_back_writer_deletes_the_data_file_that_it_put_afterwards(version: int) -> None:
    """Once later commits are archived, Hudi's readers would show it."""
    store, _, _ = table(version)
    asleep = run(begin(), store, CLOCK)
    run(roll_back(asleep.instant, Holder(1), known_of(store)), store, CLOCK)
    late = f"r/f0_0-0-0_{asleep.instant}.parquet"
    store.put(late, b"rows", IfAbsent())
    run(withdraw(asleep.taken, EpochGuard(0), paths=[late]), store, CLOCK)
    assert not store.list("r/")


@VERSIONS
def test_an_interrupted_writer_whose_commit_is_archived_hears_that_it_was_committed(
    version: int, archived_at_once: None
) -> None:
    store, _, _ = table(version)
    mine = prepare_inserts(store, rows([0]))
    run(commit(mine, Holder(1)), store, CLOCK)
    for each in range(4):
        run(commit(prepare_inserts(store, rows([1 + each])), Holder(1)), store, CLOCK)
    rules, held = ArchiveRules(keep_min=1, keep_max=2), StateChange(Holder(1))
    assert run(archive(known_of(store), rules, held), store, CLOCK) is not None
    taken = mine.transaction.taken
    assert isinstance(run(settle_own(taken, ()), store, CLOCK), RollbackRefused)
    other = replace(taken, attempt="of a writer that had the same instant")
    assert run(archived_as(other), store, CLOCK) is None


@VERSIONS
def test_an_instant_that_a_rollback_under_way_names_is_not_used(version: int) -> None:
    store, _, _ = table(version)
    taken = run(take(known_of(store)), store, CLOCK)
    plan = format_rollback_plan(RollbackPlan("", taken.instant, "commit", ()))
    later = replace(known_of(store), newest=taken.instant)
    run(take(later, action="rollback", plan=plan), store, CLOCK)
    assert run(survey(taken), store, CLOCK)[0] is None


@VERSIONS
def test_an_instant_that_another_action_also_requested_is_not_used(version: int) -> None:
    store, config, _ = table(version)
    taken = run(take(known_of(store)), store, CLOCK)
    other = config.names.requested(taken.instant, "replacecommit")
    assert isinstance(store.put(other, b"", IfAbsent()), Applied)
    found, now = run(survey(taken), store, CLOCK)
    assert found is None and taken.instant in now.doubled


@VERSIONS
def test_an_instant_with_another_writers_inflight_file_is_not_used(version: int) -> None:
    """A crashed process sent it late. A commit must consist of its own writer's bytes."""
    store, config, _ = table(version)
    still = Standing(CLOCK.wall_ms())
    dead = run(take(known_of(store)), store, still)
    store.put(config.names.inflight(dead.instant), b"late", IfAbsent())
    store.delete(dead.requested)
    assert run(begin(known_of(store)), store, still).instant != dead.instant


@VERSIONS
def test_a_commit_made_in_hudi_mode_is_seen_after_the_switch_back(version: int) -> None:
    """Its writer's clock was slow: the commit is below the horizon of the older checkpoint."""
    store, config, url = table(version)
    for each in range(CHECKPOINT_EVERY + 2):
        run(commit(prepare_inserts(store, rows([each])), Holder(1)), store, CLOCK)
    with Table(url) as mine:
        mine.refresh()
    assert isinstance(store.get(CHECKPOINT_KEY), Found)
    run(switch_mode("hudi", Holder(2)), store, CLOCK)
    slow, known = Clock(offset_ms=-60_000), known_of(store)
    taken = run(take(known), store, slow)  # Hudi lists nothing after it
    transaction = Transaction(taken, run(load_timeline(config.names), store, CLOCK))
    file = write_inserts(transaction.target, rows([777]), file_id="hudi-0")
    store.put(file.key, file.body, IfAbsent())
    prepared = run(prepare(transaction, [file.stat], schema=AVRO), store, slow)
    run(commit(prepared, Holder(3)), store, slow)
    run(switch_mode("fenced", Holder(4)), store, CLOCK)
    with Table(url) as mine:
        mine.append(rows([888]))
    assert {"k777", "k888"} <= set(read_table(store)["id"].to_pylist())


def test_an_unknown_commit_raises_commit_unknown_where_warnings_are_errors() -> None:
    """The release gets no answer either, and warns."""
    _, _, url = table()
    writer = Table(url, lock={"ttl_s": 1.0, "acquire_timeout": 5}, clock=Hasty())
    writer.append(rows([0]))
    down: list[str] = []

    def out(real: Store) -> Any:
        def put(key: str, body: bytes, condition: Any) -> Any:
            if not down:
                answer = real.put(key, body, condition)
                if key != FENCE_KEY:
                    return answer
                down.append(key)
            return Unknown("503")

        def get(key: str, **how: Any) -> Any:
            return Unknown("503") if down else real.get(key, **how)

        return Bent(real, put=put, get=get)

    lock: Any = writer.lock
    writer.store = out(writer.store)
    lock.store = lock._client.store = writer.store
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CommitUnknown) as caught:
            writer.append(rows([1]))
    assert caught.value.prepared is not None


# --- rules that one test each shows ---------------------------------------------------------------


@VERSIONS
def test_a_writer_that_lost_its_instant_does_not_withdraw_the_next_owners(version: int) -> None:
    """Nothing later is committed, so a withdrawal would roll back the instant and its files."""
    store, config, _ = table(version)
    known, still = known_of(store), Standing(CLOCK.wall_ms())
    ours = run(take(known), store, still)
    store.delete(ours.requested)
    theirs = run(begin(known), store, still)
    assert theirs.instant == ours.instant
    prepared = run(prepare(theirs, [], schema=AVRO), store, CLOCK)
    assert run(withdraw(ours, EpochGuard(0)), store, CLOCK) is None
    assert pending(store, config.names) == [theirs.instant]
    run(commit(prepared, Holder(1)), store, CLOCK)


def test_a_resend_without_a_fence_has_the_completion_time_of_the_first_send() -> None:
    """Otherwise the first send, landing late, would complete the instant a second time."""
    store, config, _ = table(9, "hudi")
    prepared = prepare_inserts(store, rows([0]))
    late: list[Callable[[], Any]] = []

    def put(key: str, body: bytes, condition: Any) -> Any:
        if key.endswith(".commit") and len(late) < 9:
            late.append(lambda: store.put(key, body, condition))
            return Unknown("the answer was lost")
        return store.put(key, body, condition)

    def get(key: str, **how: Any) -> Any:
        return Unknown("silence") if key.endswith(".commit") else store.get(key, **how)

    with pytest.raises(CommitUnknown):
        run(commit(prepared, Holder(1)), Bent(store, put=put, get=get), CLOCK)
    run(commit(prepared, Holder(1)), store, Clock(offset_ms=60_000))
    for send in late:
        assert not isinstance(send(), Applied), "one instant, one completed file"
    done = [e.key for e in store.list(config.names.folder) if e.key.endswith(".commit")]
    assert len(done) == 1


@VERSIONS
def test_beside_hudi_nothing_of_a_commit_that_may_yet_land_is_deleted(version: int) -> None:
    store, _, url = table(version, "hudi")
    late: list[Callable[[], Any]] = []

    def put(key: str, body: bytes, condition: Any) -> Any:
        if key.endswith(".commit"):
            late.append(lambda: store.put(key, body, condition))
            return Unknown("the answer was lost")
        return store.put(key, body, condition)

    with Table(url, clock=Hasty()) as mine:
        mine.store = Bent(store, put=put)
        with pytest.raises(CommitUnknown):
            mine.append(rows([0]))
    assert isinstance(late[0](), Applied)
    assert read_table(store)["id"].to_pylist() == ["k0"]


@VERSIONS
def test_a_decided_commit_keeps_its_files_while_its_table_is_briefly_missing(
    version: int,
) -> None:
    """Its writer was interrupted right after the decision, and then found no fence and no table."""
    store, _, url = table(version)
    lost: dict[str, bytes] = {}

    def put(key: str, body: bytes, condition: Any) -> Any:
        outcome = store.put(key, body, condition)
        if key == FENCE_KEY and isinstance(outcome, Applied):
            for gone in (PROPERTIES_KEY, FENCE_KEY):
                found = store.get(gone)
                assert isinstance(found, Found)
                lost[gone] = found.body
                store.delete(gone)
            raise KeyboardInterrupt
        return outcome

    with Table(url, clock=Hasty()) as mine:
        mine.store = Bent(store, put=put)
        with pytest.raises(KeyboardInterrupt):
            mine.append(rows([0]))
    for restored, body in lost.items():
        store.put(restored, body, IfAbsent())
    with Table(url, clock=Hasty()) as other:
        other.append(rows([1]))
    assert sorted(read_table(store)["id"].to_pylist()) == ["k0", "k1"]


@VERSIONS
def test_a_conflict_with_a_commit_that_the_fence_does_not_know_is_found(version: int) -> None:
    """An old lockkit or Hudi made it without the fence, before or after we began."""
    store, _, _ = table(version)
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    run(commit(prepare_inserts(store, rows([1])), Holder(2), fence=False), store, CLOCK)
    mine, other = (prepare_upserts(store, rows([0, 1], amount=each)) for each in (1, 2))
    run(commit(other, Holder(3), fence=False), store, CLOCK)
    with pytest.raises(CommitConflict):
        run(commit(mine, Holder(4)), store, CLOCK)


def test_a_decision_at_or_below_the_horizon_is_not_reported() -> None:
    """The horizon may be decided after a commit that the transaction covers by name."""
    below, named = "20260101000000000", "20260101000000007"
    window = tuple(Decided(COMMIT, each) for each in (named, below))
    fence = Fence(1, "a", "0" * 64, window, whole=True)
    assert fence.since(frozenset({named}), horizon=below) == ()


@VERSIONS
def test_of_a_repeated_task_only_the_files_that_the_commit_will_name_are_kept(version: int) -> None:
    store, _, _ = table(version)
    prepared = prepare_inserts(store, rows([0]), rows([1]))
    kept, other = (each.path for each in prepared.stats)
    run(keep_only(prepared.instant, [kept]), store, CLOCK)
    assert isinstance(store.get(kept), Found) and isinstance(store.get(other), Missing)


def test_an_overwrite_that_an_older_lockkit_carried_on_in_the_fence_is_read_from_its_file() -> None:
    """Its entry in the window does not say where it removed rows, and must not be guessed."""
    store, _, url = table()
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    mine = prepare_inserts(store, rows([1]))
    with Table(url) as other:
        other.overwrite(rows([2]))
    found = store.get(FENCE_KEY)
    assert isinstance(found, Found)
    fields = json.loads(found.body)
    assert fields["window"][-1].pop("overwrites") == ["region=EU"]
    store.put(FENCE_KEY, json.dumps(fields).encode(), IfVersion(found.version))
    with pytest.raises(CommitConflict, match="overw"):
        run(commit(mine, Holder(10_000)), store, CLOCK)
