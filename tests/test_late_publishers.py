"""A commit that a restore took back is not published afterwards, by nobody and at no time.

Its writer was decided, paused and overtaken, or another process was about to publish it. Each goes
on at every request of the restore, and after it. Judged by a dictionary, and by hudi-rs, which
knows Hudi's rules alone.
"""

from __future__ import annotations

import os
import pickle
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from deaths import AtRequest, Due, Send, nth
from test_savepoints import COW, MOR, OPTIONS, Model, by_hudi_rs, contents, made, rows

from lockkit import Clock, open_store
from lockkit.errors import LockLost, LossReason, StoreError, TableError
from lockkit.lab.verify.planting import planted
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure, run
from lockkit.runtime.proven import delete
from lockkit.stores import Store
from lockkit.table import Table
from lockkit.table.errors import CommitUnknown, TableChanged
from lockkit.table.format.taken_back import taken_back_by
from lockkit.table.occ.commit import LATE_MS
from lockkit.table.occ.committing import commit_alone
from lockkit.table.occ.decide import settle
from lockkit.table.occ.fence import read_fence

EVERY_KIND = [
    (9, COW, "overwrite"), (9, COW, "append"), (6, COW, "append"), (6, COW, "overwrite"),
    (9, MOR, "upsert"),
]  # fmt: skip
KINDS = [EVERY_KIND[0], *(pytest.param(*each, marks=pytest.mark.soak) for each in EVERY_KIND[1:])]
DONE = (".commit", ".replacecommit", ".deltacommit")
TRIES_MAX = 200
ALONE = {"hoodie.write.concurrency.mode": "single_writer", **OPTIONS}


def interposed(
    store: Store, due: Due, act: Callable[[], object], *, on: bool = False
) -> AtRequest:
    """A store that does something else first when a request is due; with `on`, from then on."""

    def acts(send: Send) -> Any:
        act()
        return send()

    return AtRequest(store, due, acts, on=on)


def publishes(name: str, key: Any) -> bool:
    return name == "put" and str(key).endswith(DONE)


def gives_up() -> None:
    raise StoreError("the process ends here")


def falls_silent() -> None:
    raise RuntimeError("the connection is gone")


class Paused:
    """A process that stands still before the request that is due, until it may go on."""

    def __init__(self, store: Store, due: Due, work: Callable[[Store], object]) -> None:
        self.reached, self.may = threading.Event(), threading.Event()
        self.outcome: Any = None
        stops = cast(Store, interposed(store, due, self._stand_still))
        self.thread = threading.Thread(target=self._work, args=(work, stops), daemon=True)
        self.thread.start()
        assert self.reached.wait(30), self.outcome

    def _stand_still(self) -> None:
        self.reached.set()
        assert self.may.wait(60)

    def _work(self, work: Callable[[Store], object], store: Store) -> None:
        try:
            self.outcome = work(store)
        except Exception as error:  # noqa: BLE001 - the outcome that the test looks at
            self.outcome = error
        self.reached.set()

    def go_on(self) -> None:
        self.may.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


def paused_writer(
    url: str, write: str, due: Due = publishes, dies: Due | None = None, **options: Any
) -> Paused:
    """A writer between its decision and its completed file, or before another request.

    It gets no answer from the request on for which `dies` is true.
    """

    def work(store: Store) -> object:
        with Table(url, options=OPTIONS, **options) as table:
            table.store = store
            return getattr(table, write)(rows("late", v=99))

    store = open_store(url, **options)
    if dies is not None:
        store = cast(Store, interposed(store, dies, gives_up, on=True))
    return Paused(store, due, work)


def restored(table: Table, saved: str, most: int, act: Callable[[], object]) -> bool:
    """Restore, and `act` before the n-th request, or after the last; whether there was an n-th."""
    context = table._upkeep.context
    right, between = context.store, interposed(context.store, nth(most), act)
    context.store = cast(Store, between)
    try:
        table.restore(saved)
    finally:
        context.store = right
    if not between.struck:
        act()
    return between.struck


def refused_or_early(late: Paused, within: bool) -> None:
    """The writer got an error that says what happened, or an answer before the restore's end."""
    if isinstance(late.outcome, Exception):
        assert isinstance(late.outcome, TableChanged), late.outcome
        assert "restore" in str(late.outcome), late.outcome
    else:
        assert within, "it was acknowledged after the restore"


def goes_on(table: Table, model: Model) -> None:
    """The table is as it was saved, and writers go on, with a new handle and with this one."""
    assert contents(table.read()) == model
    with Table(table.url, options=OPTIONS, **endpoint_of(table)) as other:
        other.upsert(rows("k0", "m1", v=7))
    table.upsert(rows("k1", v=8))
    assert contents(table.read()) == model | {"k0": 7, "m1": 7, "k1": 8}


def endpoint_of(table: Table) -> dict[str, Any]:
    return {name: value for name, value in table._store_options.items() if value is not None}


def saved_state(table: Table) -> tuple[str, Model]:
    table.upsert(rows("k0", "k1", "k3", v=1))
    return table.savepoint().instant, contents(table.read())


@pytest.mark.parametrize(("version", "kind", "write", "every"), [
    (9, COW, "overwrite", 3),
    *(pytest.param(*each, 1, marks=pytest.mark.soak) for each in EVERY_KIND),
])  # fmt: skip
def test_a_writer_that_was_overtaken_publishes_nothing_that_a_restore_took_back(
    tmp_path: Path, version: int, kind: str, write: str, every: int
) -> None:
    """It goes on at each third request in `make test`, at all of them in `make soak`."""
    with made(tmp_path / "made", version, kind=kind) as table:
        saved, model = saved_state(table)
    for most in range(1, TRIES_MAX, every):
        folder = tmp_path / f"{most}"
        shutil.copytree(tmp_path / "made", folder)
        with Table(f"file://{folder}", options=OPTIONS) as table:
            late = paused_writer(table.url, write)
            table.append(rows("a1", v=3))
            assert contents(table.read())["late"] == 99
            within = restored(table, saved, most, late.go_on)
            refused_or_early(late, within)
            assert contents(table.read()) == model == by_hudi_rs(folder)
            goes_on(table, model)
        shutil.rmtree(folder)
        if not within:
            assert most > 20
            return
    raise AssertionError("the restore never came to its end")


@pytest.mark.parametrize("write", ["append", "overwrite"])
@pytest.mark.parametrize("asked", [1, 2, 3])
def test_a_process_that_rolls_a_commit_forward_creates_nothing_after_a_restore(
    tmp_path: Path, write: str, asked: int
) -> None:
    """It stands still before its n-th request: the completed file, the inflight file, the create.
    """
    with made(tmp_path / "made") as table:
        saved, model = saved_state(table)
        names = table.refresh().config.names
        late = paused_writer(table.url, write)
        seen = run(read_fence(), table.store, Clock())
        rolling = Paused(table.store, nth(asked), lambda store: run(
            settle(names, seen, frozenset(), []), store, Clock()
        ))  # fmt: skip
        table.append(rows("a1", v=3))
        table.restore(saved)
        rolling.go_on()
        assert rolling.outcome is None, rolling.outcome
        late.go_on()
        refused_or_early(late, within=False)
        assert contents(table.read()) == model == by_hudi_rs(tmp_path / "made")
        goes_on(table, model)


def name_is_free(key: str, _action: str, **_: Any) -> Procedure[None]:
    """As Hudi does."""
    yield from delete(key)


@pytest.mark.parametrize("free", [False, True], ids=["kept", "planted: free"])
def test_a_commit_that_went_keeps_its_name_so_a_writer_that_dies_there_brings_nothing_back(
    tmp_path: Path, free: bool
) -> None:
    """If it lives on, it deletes what it has created too late. Its name kept, it creates nothing.
    """
    published: list[Any] = []

    def dies(name: str, key: Any) -> bool:
        was = bool(published)
        published.extend([key] if publishes(name, key) else [])
        return was

    plants = {"lockkit.table.services.restore:keep_name": name_is_free} if free else {}
    with made(tmp_path / "made") as table, planted(plants):
        saved, model = saved_state(table)
        late = paused_writer(table.url, "append", publishes, dies)
        table.append(rows("a1", v=3))
        table.restore(saved)
        late.go_on()
        (key,) = published
        found = table.store.get(key)
        assert isinstance(found, Found)
        assert bool(taken_back_by(key, found.body)) == (not free)
        assert contents(table.read()) == model


@pytest.mark.parametrize("write", ["append", "overwrite"])
def test_a_restore_on_an_object_store_is_not_undone_by_a_late_writer(
    shared_emulator: Any, bucket: str, write: str
) -> None:
    endpoint = {"endpoint": shared_emulator.s3}
    for most in (5, 15, 25, TRIES_MAX):
        with Table.create(
            f"s3://{bucket}/{most}", record_key="id", partition_by="region", options=OPTIONS,
            commit="serial", **endpoint,
        ) as table:  # fmt: skip
            saved, model = saved_state(table)
            late = paused_writer(table.url, write, **endpoint)
            table.append(rows("a1", v=3))
            within = restored(table, saved, most, late.go_on)
            refused_or_early(late, within)
            goes_on(table, model)


def test_a_late_commit_stays_away_after_a_restore_to_an_older_savepoint(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        older, first = saved_state(table)
        table.upsert(rows("k9", v=2))
        saved, second = table.savepoint().instant, contents(table.read())
        late = paused_writer(table.url, "overwrite")
        table.append(rows("a1", v=3))
        table.restore(saved)
        table.append(rows("n2", v=4))
        assert contents(table.read()) == second | {"n2": 4}
        table.delete_savepoint(saved)
        assert len(table.restore(older).taken_back) == 2
        late.go_on()
        refused_or_early(late, within=False)
        assert contents(table.read()) == first == by_hudi_rs(tmp_path)
        goes_on(table, first)


def test_the_history_names_no_commit_that_was_taken_back(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        saved, _ = saved_state(table)
        table.append(rows("a1", v=3))
        (gone,) = table.restore(saved).taken_back
        assert [each.instant for each in table.history() if each.action == "commit"] == [saved]
        with pytest.raises(Exception, match="no completed commit"):
            table.savepoint(gone)


@pytest.mark.usefixtures("archived_at_once")
@pytest.mark.parametrize("version", [9, 6])
def test_archiving_after_a_restore_hides_no_file_from_hudis_readers(
    tmp_path: Path, version: int
) -> None:
    """The names that were kept leave with the commits after them, and are not in the archive."""
    with made(tmp_path, version) as table:
        saved, model = saved_state(table)
        table.overwrite(rows("k0", "k5", v=2))
        (gone,) = table.restore(saved).taken_back
        table.delete_savepoint(saved)
        for v in range(3, 12):
            table.append(rows(f"n{v}", v=v))
            model |= {f"n{v}": v}
        keys = {each.key for each in table.store.list(".hoodie/")}
        assert any(gone in key for key in keys)
        archived = table.archive(keep_min=4, keep_max=5)
        assert archived and archived.instants[0] == saved and gone not in archived.instants
        keys = {each.key for each in table.store.list(".hoodie/")}
        assert not any(gone in key for key in keys)
        assert contents(table.read()) == model == by_hudi_rs(tmp_path)
        assert gone not in {each.instant for each in table.history()}


# --- a publisher that sleeps until its commit is archived -----------------------------------------


def asks_for_its_inflight_file(name: str, key: Any) -> bool:
    return name == "get" and str(key).endswith(".inflight")


def archived(table: Table, model: Model) -> None:
    """More commits, and all but the latest leave the timeline."""
    for v in range(3, 12):
        table.append(rows(f"n{v}", v=v))
        model |= {f"n{v}": v}
    if merged := table._open().config.merged:
        table.compact()  # its commit stays: clean keeps the files that it made obsolete
    table.clean()
    done = table.archive(keep_min=4, keep_max=5)
    assert done is not None and len(done.instants) >= (2 if merged else 5), done


def overtaken(
    table: Table, write: str, restores: bool, due: Due, dies: Due | None = None
) -> tuple[Model, Paused]:
    """Its writer was decided and stands still, while others published, restored and archived."""
    saved, model = saved_state(table)
    late = paused_writer(table.url, write, due, dies)
    table.append(rows("a1", v=3))
    if restores:
        table.restore(saved)
    else:
        model = contents(table.read())
        assert model["late"] == 99
    table.delete_savepoint(saved)
    archived(table, model)
    return model, late


@pytest.mark.usefixtures("archived_at_once")
@pytest.mark.parametrize("due", [asks_for_its_inflight_file, publishes])
@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize(("version", "kind", "write"), KINDS)
def test_a_writer_that_slept_until_its_commit_was_archived_says_what_became_of_it(
    tmp_path: Path, version: int, kind: str, write: str, restores: bool, due: Due
) -> None:
    """It stands still before it looks whether it is late, or when it has looked."""
    with made(tmp_path, version, kind=kind) as table:
        model, late = overtaken(table, write, restores, due)
        assert contents(table.read()) == model == by_hudi_rs(tmp_path)
        before = [each.key for each in table.store.list(".hoodie/")]
        late.go_on()
        assert [each.key for each in table.store.list(".hoodie/")] == before
        if restores:
            refused_or_early(late, within=False)
        else:
            assert late.outcome.instant in {each.instant for each in table.history()}
        assert contents(table.read()) == model == by_hudi_rs(tmp_path)
        table.upsert(rows("k0", v=7))
        assert contents(table.read()) == model | {"k0": 7} == by_hudi_rs(tmp_path)


@pytest.mark.usefixtures("archived_at_once")
@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("version", [9, 6])
def test_what_a_writer_published_too_late_before_it_died_leaves_with_the_next_archiving(
    tmp_path: Path, version: int, restores: bool
) -> None:
    published: list[Any] = []

    def dies(name: str, key: Any) -> bool:
        published.extend([key] if publishes(name, key) else [])
        return bool(published) and asks_for_its_inflight_file(name, key)

    with made(tmp_path, version) as table:
        model, late = overtaken(table, "append", restores, publishes, dies)
        late.go_on()
        assert isinstance(late.outcome, CommitUnknown), late.outcome
        assert contents(table.read()) == model != by_hudi_rs(tmp_path)
        for v in range(12, 15):
            table.append(rows(f"n{v}", v=v))
            model |= {f"n{v}": v}
        assert table.archive(keep_min=4, keep_max=5)
        assert contents(table.read()) == model == by_hudi_rs(tmp_path)


@pytest.mark.usefixtures("archived_at_once")
@pytest.mark.parametrize("restores", [False, True])
def test_a_writer_without_an_answer_finds_out_that_its_commit_is_archived(
    tmp_path: Path, restores: bool
) -> None:
    with made(tmp_path) as table:
        model, late = overtaken(table, "append", restores, publishes, publishes)
        late.go_on()
        assert isinstance(late.outcome, CommitUnknown), late.outcome
        prepared = late.outcome.prepared
        again = commit_alone(prepared)
        if restores:
            with pytest.raises((TableError, LockLost), match="restore"):
                run(again, table.store, Clock())
        else:
            assert run(again, table.store, Clock()).instant == prepared.instant
        assert contents(table.read()) == model == by_hudi_rs(tmp_path)


@pytest.mark.usefixtures("archived_at_once")
@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("asked", [1, 2, 3])
def test_a_process_that_rolls_it_forward_leaves_no_file_once_it_is_archived(
    tmp_path: Path, asked: int, restores: bool
) -> None:
    with made(tmp_path) as table:
        saved, model = saved_state(table)
        names = table.refresh().config.names
        late = paused_writer(table.url, "append")
        seen = run(read_fence(), table.store, Clock())
        rolling = Paused(table.store, nth(asked), lambda store: run(
            settle(names, seen, frozenset(), []), store, Clock()
        ))  # fmt: skip
        table.append(rows("a1", v=3))
        if restores:
            table.restore(saved)
        else:
            model = contents(table.read())
        table.delete_savepoint(saved)
        archived(table, model)
        before = [each.key for each in table.store.list(".hoodie/")]
        rolling.go_on()
        assert rolling.outcome is None, rolling.outcome
        late.go_on()
        assert [each.key for each in table.store.list(".hoodie/")] == before
        assert contents(table.read()) == model == by_hudi_rs(tmp_path)


def completed_long_ago(folder: Path) -> None:
    """Let the files of completed commits be 5 s older, by the clock of their store."""
    for each in (folder / ".hoodie").rglob("*"):
        if each.suffix in DONE:
            then = each.stat().st_mtime - 5
            os.utime(each, (then, then))


def test_archiving_leaves_alone_what_was_completed_a_moment_ago(tmp_path: Path) -> None:
    """Its writer may still publish it, and need not look what became of it."""
    with made(tmp_path) as table:
        for v in range(6):
            table.append(rows(f"n{v}", v=v))
        plan = table.archive(keep_min=2, keep_max=3)
        assert plan is None
        completed_long_ago(tmp_path)
        table.append(rows("n9", v=9))
        late = paused_writer(table.url, "append")
        table.append(rows("n10", v=10))
        done = table.archive(keep_min=2, keep_max=3)
        assert done is not None and len(done.instants) == 6
        time.sleep(LATE_MS / 1000 + 0.1)  # from now on the writer looks what became of it
        completed_long_ago(tmp_path)
        table.append(rows("n11", v=11))
        table.append(rows("n12", v=12))
        assert table.archive(keep_min=2, keep_max=3)
        late.go_on()
        assert late.outcome.instant in {each.instant for each in table.history()}
        assert contents(table.read()) == by_hudi_rs(tmp_path)


def test_a_restore_that_another_process_finished_creates_nothing_after_archiving(
    tmp_path: Path, archived_at_once: None
) -> None:
    with made(tmp_path) as table, Table(table.url, options=ALONE) as other:
        saved, model = saved_state(table)
        table.append(rows("a1", v=3))
        (gone,) = (each.instant for each in table.history() if each.instant > saved)
        context = table._upkeep.context
        right = context.store

        def reads_its_file(name: str, key: Any) -> bool:
            return name == "get" and f"/{gone}_" in str(key) and str(key).endswith(".commit")

        def restores(store: Store) -> object:
            context.store = store
            return table.restore(saved)

        slow = Paused(right, reads_its_file, restores)
        other.restore(saved)
        other.delete_savepoint(saved)
        archived(other, model)
        slow.go_on()
        context.store = right
        assert contents(other.read()) == model == by_hudi_rs(tmp_path)


# --- a writer that sleeps before its first file ---------------------------------------------------


class Standing(Clock):
    """A clock whose date stands still."""

    def __init__(self, at_ms: int) -> None:
        super().__init__()
        self.at_ms = at_ms

    def wall_ms(self) -> int:
        return self.at_ms


def asks_for_an_instant(name: str, key: Any) -> bool:
    return name == "put" and str(key).endswith(".requested")


@pytest.mark.usefixtures("archived_at_once")
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(("version", "write"), [(9, "append"), (6, "append"), (9, "overwrite")])
def test_a_request_in_a_name_that_a_restore_left_does_not_stay(
    tmp_path: Path, version: int, write: str, ends: bool
) -> None:
    """Two writers of one millisecond: one sleeps before its request until the other one's commit is
    taken back and its name has left. It removes its request; if it dies, the next archiver does.
    """
    with made(tmp_path, version) as table:
        saved, model = saved_state(table)
        clock, asked = Standing(table.clock.wall_ms() + 100), list[Any]()

        def dies(name: str, key: Any) -> bool:
            after = bool(asked)
            asked.extend([key] if asks_for_an_instant(name, key) else [])
            return ends and after

        def work(store: Store) -> object:
            with Table(table.url, options=ALONE, clock=clock) as other:
                other.store = store
                return getattr(other, write)(rows("late", v=99))

        store = cast(Store, interposed(open_store(table.url), dies, gives_up, on=True))
        late = Paused(store, asks_for_an_instant, work)
        with Table(table.url, options=ALONE, clock=clock) as other:
            gone = getattr(other, write)(rows("a1", v=3)).instant
        table.restore(saved)
        table.delete_savepoint(saved)
        archived(table, model)
        keys = [each.key for each in table.store.list(".hoodie/")]
        assert not any(gone in key for key in keys)
        late.go_on()
        assert f"/{gone}." in str(asked[0])
        keys = [each.key for each in table.store.list(".hoodie/")]
        assert any(gone in key for key in keys) == ends
        if ends:
            assert isinstance(late.outcome, StoreError), late.outcome
            table.archive(keep_min=4, keep_max=5)
        else:
            model |= {"late": 99}
            if write == "overwrite":  # of its partition
                model = {key: v for key, v in model.items() if key < "k2" or key == "late"}
        assert not any(gone in each.key for each in table.store.list(".hoodie/"))
        assert contents(table.read()) == model == by_hudi_rs(tmp_path)


# --- a store that falls silent after the decision -------------------------------------------------


@pytest.mark.parametrize("write", ["append", "upsert"])
def test_a_commit_whose_publication_alone_got_no_answer_is_said_to_be_committed(
    tmp_path: Path, write: str
) -> None:
    def decides(name: str, key: Any) -> bool:
        return name == "put" and str(key).endswith("fence.json")

    with made(tmp_path) as table:
        for due, decided in ((publishes, True), (decides, False)):
            store = cast(Store, interposed(open_store(table.url), due, falls_silent, on=True))
            with Table(table.url, options=ALONE) as writer:
                writer._open()
                writer.store = store
                with pytest.raises(CommitUnknown) as raised:
                    getattr(writer, write)(rows(f"k{decided:d}", v=9))
            assert raised.value.decided is decided
            assert ("was committed, and may" in str(raised.value)) is decided
            assert pickle.loads(pickle.dumps(raised.value)).decided is decided
            assert (f"k{decided:d}" in contents(table.read())) is False
            table.append(rows(f"n{decided:d}", v=1))
            assert (f"k{decided:d}" in contents(table.read())) is decided


# --- an archiver that sleeps through its lease ----------------------------------------------------


def adds_to_the_archive(name: str, key: Any) -> bool:
    return name == "put" and ("/history/manifest_" in str(key) or ".commits_.archive." in str(key))


def sleeping_archiver(url: str) -> Paused:
    """It stands still before it creates the manifest or log; afterwards its lease is over."""
    added: list[Any] = []

    def ends(name: str, key: Any) -> bool:
        added.extend([key] if adds_to_the_archive(name, key) else [])
        return bool(added) and name in ("put", "delete") and not adds_to_the_archive(name, key)

    def loses() -> None:
        raise LockLost("archiving", "the lease is over", "", reason=LossReason.EXPIRED)

    def work(store: Store) -> object:
        with Table(url, options=ALONE) as table:
            table._upkeep.context.store = table.store = store
            return table.archive(keep_min=2, keep_max=3)

    store = cast(Store, interposed(open_store(url), ends, loses, on=True))
    return Paused(store, adds_to_the_archive, work)


@pytest.mark.usefixtures("archived_at_once")
@pytest.mark.parametrize(("version", "mode", "before", "step"), [
    (9, "fenced", False, 13), (6, "fenced", True, 13),
    *(pytest.param(*each, marks=pytest.mark.soak) for each in (
        (9, "fenced", True, 1), (6, "fenced", False, 1), (6, "hudi", False, 5),
        (9, "hudi", True, 5))),
])  # fmt: skip
@pytest.mark.timeout(600)
def test_what_a_restore_took_back_is_not_archived_by_an_archiver_that_slept(
    tmp_path: Path, version: int, mode: str, before: bool, step: int
) -> None:
    """It wakes at each request of the restore (every n-th, by `step`), and after it.

    `before` it there was an archive.
    """
    with made(tmp_path / "made", version, mode) as table:
        table.upsert(rows("k0", "k1", "k3", v=1))
        if before:
            for v in range(3, 10):
                table.append(rows(f"n{v}", v=v))
            table.clean()
            assert table.archive(keep_min=4, keep_max=5)
        for v in range(20, 25):
            table.append(rows(f"n{v}", v=v))
    for most in range(1, TRIES_MAX, step):
        folder = tmp_path / f"{most}"
        shutil.copytree(tmp_path / "made", folder)
        with Table(f"file://{folder}", options=OPTIONS) as table:
            late = sleeping_archiver(table.url)
            whole = contents(table.read())
            commits = sorted(each.instant for each in table.history() if each.action != "restore")
            saved = table.savepoint(commits[-4]).instant
            model = contents(table.read(as_of=saved))
            try:
                within = restored(table, saved, most, late.go_on)
            except TableError as error:  # the archiver was faster
                assert "archived" in str(error), error
                within, model = True, whole
            assert isinstance(late.outcome, LockLost | TableChanged), late.outcome
            assert contents(table.read()) == model == by_hudi_rs(folder)
            goes_on(table, model)
            table.archive(keep_min=2, keep_max=3)
            assert contents(table.read()) == by_hudi_rs(folder)
            table.delete_savepoint(saved)
            table.clean()
            table.archive(keep_min=2, keep_max=3)
            assert contents(table.read()) == by_hudi_rs(folder)
        shutil.rmtree(folder)
        if not within:
            assert most > 20
            return
    raise AssertionError("the restore never came to its end")


def test_a_restore_that_leaves_the_archives_next_number_free_is_found(tmp_path: Path) -> None:
    """The planted mistake of the rule above."""
    def nothing(*_: object) -> Procedure[None]:
        yield from ()

    with planted({"lockkit.table.services.restore:take_next": nothing}):
        with pytest.raises((AssertionError, TableChanged)):
            test_what_a_restore_took_back_is_not_archived_by_an_archiver_that_slept(
                tmp_path, 9, "fenced", False, 60
            )
