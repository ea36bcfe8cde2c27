"""Savepoints and restores; judged by a dictionary, by hudi-rs, and by a crash at every request."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa
import pytest
from deaths import Died, Mortal
from hudi_rs import read_by_hudi_rs

from lockkit import Clock
from lockkit.cli.main import main
from lockkit.errors import TableError
from lockkit.protocol.outcome import IfAbsent
from lockkit.runtime import Procedure, SiblingInterrupted, run
from lockkit.stores import Store
from lockkit.table import Table, begin, load_snapshot, read_table
from lockkit.table.errors import DamagedFile, RefusedOption, TableBlocked, TableChanged
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import Timeline, instant_ms, instant_of, load_timeline
from lockkit.table.occ import news, transaction
from lockkit.table.occ.commit import EpochGuard, trust
from lockkit.table.occ.mode import set_fence
from lockkit.table.occ.rollback import withdraw
from lockkit.table.occ.transaction import TableCache, TakenInstant
from lockkit.table.read import opening
from lockkit.table.services import clean as cleaning
from lockkit.table.services import restore as restoring

OPTIONS = {"hoodie.clean.commits.retained": "1", "hoodie.clean.automatic": "false"}
COW, MOR = "COPY_ON_WRITE", "MERGE_ON_READ"
KINDS = [(9, "fenced", COW), (6, "fenced", COW), (9, "hudi", COW), (6, "hudi", COW),
         (9, "fenced", MOR), (9, "hudi", MOR), (6, "hudi", MOR)]  # fmt: skip
Model = dict[str, int]


def rows(*keys: str, v: int) -> pa.Table:
    regions = ["EU" if key < "k2" else "US" for key in keys]
    return pa.table({"id": list(keys), "region": regions, "v": pa.array([v] * len(keys))})


def contents(found: pa.Table) -> Model:
    return {row["id"]: row["v"] for row in found.to_pylist()}


def by_hudi_rs(folder: Path) -> Model:
    return contents(read_by_hudi_rs(folder))


def made(folder: Path, version: int = 9, mode: str = "fenced", kind: str = COW) -> Table:
    index = "BUCKET" if (mode, kind) == ("hudi", MOR) else ""
    return Table.create(
        f"file://{folder}", record_key="id", partition_by="region", version=version, mode=mode,
        table_type=kind, index=index, buckets=2, options=OPTIONS,
    )  # fmt: skip


def saved_then_changed(table: Table) -> tuple[str, Model]:
    """A savepoint, what it shows, and every kind of commit after it."""
    table.upsert(rows("k0", "k1", "k3", v=1))
    if table._open().config.merged:
        table.compact()
    table.upsert(rows("k0", "k4", v=2))
    saved = table.savepoint(comment="before").instant
    model = contents(table.read())
    table.upsert(rows("k1", "n1", v=3))
    if table._open().config.merged:
        assert table.compact()
    shared = table._open().config.hashed  # Hudi's buckets are not replaced
    (table.upsert if shared else table.overwrite)(rows("k5", v=4))
    table.delete(rows("k0", v=5))
    table.append(rows("n2", v=6))
    table.clean()
    assert contents(table.read()) != model
    return saved, model


def timeline(table: Table) -> Timeline:
    names = table.refresh().config.names
    return run(load_timeline(names), table.store, table.clock)


def begun(table: Table) -> str:
    """The instant of a writer that goes on later."""
    known = TableCache(*run(load_config(), table.store, table.clock))
    return run(begin(known), table.store, table.clock).instant


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with made(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(("version", "mode", "kind"), KINDS)
def test_a_restore_brings_back_what_the_savepoint_showed_and_writers_go_on(
    tmp_path: Path, version: int, mode: str, kind: str
) -> None:
    with made(tmp_path, version, mode, kind) as table, Table(table.url, options=OPTIONS) as idle:
        saved, model = saved_then_changed(table)
        idle.upsert(rows("k3", v=7))
        done = table.restore(saved)
        assert len(done.taken_back) == 5 + (kind == MOR)
        # Version 6: the compaction's three base files, and the log file of k0 behind one of them.
        # The other five log files are of slices that stay, with commands.
        assert done.files == 4 if (version, kind) == (6, MOR) else done.files >= 5
        for each in (table, idle):
            assert contents(each.read()) == model == by_hudi_rs(tmp_path)
        for v, each in enumerate((idle, table), start=10):
            each.upsert(rows("k0", f"m{v}", v=v))
            model |= {"k0": v, f"m{v}": v}
            assert contents(table.read()) == model == by_hudi_rs(tmp_path)
        assert [each.instant for each in table.history()][-1] < saved
        assert min(each.instant for each in table.history()[:2]) > done.instant
        table.restore(saved)
        assert contents(table.read())["k0"] == 2


@pytest.mark.parametrize(("version", "mode", "kind"), KINDS)
def test_a_clean_deletes_a_savepoints_files_once_the_savepoint_is_deleted(
    tmp_path: Path, version: int, mode: str, kind: str
) -> None:
    with made(tmp_path, version, mode, kind) as table:
        saved, _ = saved_then_changed(table)
        table.clean()
        before = contents(table.read())
        assert contents(table.read(as_of=saved))["k0"] == 2
        assert table.delete_savepoint(saved) and not table.delete_savepoint(saved)
        (cleaned,) = table.clean()
        assert any(saved in path for path in cleaned.deleted), cleaned
        with pytest.raises(TableError, match="no savepoint"):
            table.restore(saved)
        assert contents(table.read()) == before == by_hudi_rs(tmp_path)


@pytest.mark.parametrize(("kind", "write"), [(MOR, "upsert"), (MOR, "delete"), (COW, "append")])
def test_a_write_that_the_closed_fence_of_a_dead_restore_refuses_takes_its_instant_back(
    tmp_path: Path, kind: str, write: str
) -> None:
    """The restore is completed, and its process died before it opened the fence."""
    with made(tmp_path, kind=kind) as table, ExitStack() as stack:
        saved, model = saved_then_changed(table)
        opened = restoring.open_fence

        def dies(*of: Any) -> Procedure[None]:
            now = yield from load_timeline(of[0].names)
            if "restore" in now.completed.values():
                raise Died
            yield from opened(*of)

        stack.enter_context(patch.object(restoring, "open_fence", dies))
        with pytest.raises(Died):
            table.restore(saved)
        stack.close()
        before = {str(each) for each in tmp_path.rglob("*") if ".lockkit" not in str(each)}
        with Table(table.url, options=OPTIONS) as other:
            with pytest.raises(TableBlocked, match="run the restore again"):
                getattr(other, write)(rows("k0", v=9))
            assert not timeline(other).pending
            after = {str(each) for each in tmp_path.rglob("*") if ".lockkit" not in str(each)}
            assert {each for each in after - before if Path(each).is_file()} == set()
            assert contents(other.read()) == model
            assert other.restore(saved).taken_back == ()
            other.upsert(rows("k0", v=9))
            assert contents(other.read()) == model | {"k0": 9} == by_hudi_rs(tmp_path)


def test_a_read_beside_a_pending_restore_says_that_any_process_can_finish_it(
    table: Table,
) -> None:
    saved, _ = saved_then_changed(table)
    with patch.object(restoring, "_carry_out", side_effect=Died), pytest.raises(Died):
        table.restore(saved)
    with pytest.raises(TableBlocked, match="any other can finish it: lockkit table restore URL"):
        table.read()


def test_ctrl_c_at_the_release_of_a_restores_lock_leaves_no_lock(table: Table) -> None:
    saved, model = saved_then_changed(table)
    store: Any = cast(Any, table.lock)._client.store
    put, left = store.put, 0

    def interrupted(key: str, body: bytes, condition: Any) -> Any:
        nonlocal left
        if b'"expired":true' in body.replace(b" ", b""):
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
                Clock().sleep(0.05)
        return put(key, body, condition)

    for left in (1, 2):  # it opens the fence, and then it restores, each under the lock
        with patch.object(type(store), "put", lambda _, *of: interrupted(*of)):
            with pytest.raises(KeyboardInterrupt):
                table.restore(saved)
        assert left == 0 and not table.lock.locked()
    assert contents(table.read()) == model


@pytest.mark.parametrize(
    ("version", "mode", "kind", "sent"),
    [(9, "fenced", COW, False), (9, "fenced", MOR, True), (6, "hudi", MOR, True)],
)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_a_restore_that_died_at_any_request_is_finished_by_the_same_call(
    tmp_path: Path, every: int, version: int, mode: str, kind: str, sent: bool
) -> None:
    """Each fifth request in `make test`, from the first or the second one on, by the kind; all of
    them in `make soak`.
    """
    with made(tmp_path / "made", version, mode, kind) as table:
        saved, model = saved_then_changed(table)
        whole = contents(table.read())
    for most in range(1 + (sent and every > 1), 200, every):
        folder = tmp_path / f"{most}"
        shutil.copytree(tmp_path / "made", folder)
        died = False
        with Table(f"file://{folder}", options=OPTIONS) as table:
            table._upkeep.context.store = cast(Store, Mortal(table.store, most, sent=sent))
            try:
                table.restore(saved)
            except (Died, SiblingInterrupted):
                died = True
        with Table(f"file://{folder}", options=OPTIONS) as other:
            try:
                assert contents(other.read()) in ((whole, model) if died else (model,))
            except TableBlocked as error:
                assert died and "restore" in str(error)
            other.restore(saved)
            assert contents(other.read()) == model == by_hudi_rs(folder)
            other.upsert(rows("k0", v=9))
            assert contents(other.read()) == model | {"k0": 9}
        if not died:
            assert most > 20
            return
    raise AssertionError("it never came to its end")


def test_a_pending_commit_keeps_the_table_from_being_restored(table: Table) -> None:
    saved, _ = saved_then_changed(table)
    before = contents(table.read())
    instant = begun(table)
    with pytest.raises(TableBlocked, match=f"{instant} .commit. is pending"):
        table.restore(saved)
    assert contents(table.read()) == before
    table.append(rows("n9", v=9))  # the fence is open


def left_closed(table: Table) -> tuple[str, Model]:
    """A restore died before it opened the fence, and then a writer in mid commit; as `saved`."""
    saved, model = saved_then_changed(table)
    table.restore(saved)
    config, _ = run(load_config(), table.store, table.clock)
    run(set_fence(config, EpochGuard(1_000), trust, closed=True), table.store, table.clock)
    begun(table)
    return saved, model


def test_a_restore_that_died_before_it_opened_the_fence_is_ended_beside_a_pending_commit(
    table: Table,
) -> None:
    """The commit's rollback needs an open fence, and a restore needs the rollback."""
    saved, model = left_closed(table)
    with pytest.raises(TableBlocked, match="no longer in fenced mode"):
        table.append(rows("n9", v=9))
    with pytest.raises(TableBlocked, match="is pending"):
        table.restore(saved)
    table.append(rows("n9", v=9))
    assert contents(table.read()) == model | {"n9": 9}


def test_a_restore_that_died_before_it_opened_the_fence_is_ended_beside_a_dead_writer(
    table: Table,
) -> None:
    saved, model = left_closed(table)
    soon = {"hoodie.client.heartbeat.interval_in_ms": "1000"}
    time.sleep(4)
    with Table(table.url, options=OPTIONS | soon) as other:
        other.restore(saved)
        other.append(rows("n9", v=9))
        assert contents(other.read()) == model | {"n9": 9}


@pytest.mark.parametrize("decided", [False, True])
def test_a_writer_between_the_look_and_the_plan_makes_the_restore_withdraw(
    table: Table, decided: bool
) -> None:
    saved, _ = saved_then_changed(table)
    take = restoring.take

    def late(*given: Any, **how: Any) -> Procedure[TakenInstant]:
        alone = {"hoodie.write.concurrency.mode": "single_writer"}  # as if its lock were lost
        with Table(table.url, options=alone) as other:
            if decided:
                other.append(rows("n9", v=9))
            else:
                begun(other)
        return (yield from take(*given, **how))

    with patch.object(restoring, "take", late):
        with pytest.raises(TableChanged, match="was begun, committed or archived while the"):
            table.restore(saved)
    assert ("n9" in contents(table.read())) is decided
    table.append(rows("n10", v=10))
    assert "restore" not in timeline(table).pending.values()


def test_a_writer_that_begins_during_a_restore_is_refused(table: Table) -> None:
    saved, model = saved_then_changed(table)
    carry_out = restoring._carry_out

    def late(*given: Any) -> Procedure[Any]:
        with Table(table.url) as other:
            for write in (other.append, other.upsert):
                with pytest.raises(TableError, match="restore"):
                    write(rows("n9", v=9))
            with pytest.raises(TableBlocked, match="pending restore"):
                other.read()
        return (yield from carry_out(*given))

    with patch.object(restoring, "_carry_out", late):
        table.restore(saved)
    assert contents(table.read()) == model


@pytest.mark.parametrize("begun", [False, True])
def test_a_restore_whose_plan_is_damaged_closes_reads_only_once_it_has_begun(
    table: Table, begun: bool
) -> None:
    """It has deleted nothing before, and nobody can begin it; another one replaces it."""
    saved, model = saved_then_changed(table)
    before, names = contents(table.read()), table._open().config.names
    instant = instant_of(instant_ms(table.history()[0].instant) + 1000)
    table.store.put(names.requested(instant, "restore"), b"damaged", IfAbsent())
    if begun:
        table.store.put(names.inflight(instant, "restore"), b"", IfAbsent())
    with Table(table.url) as other:
        for read in (other.read, lambda: read_table(table.store)):
            if begun:
                with pytest.raises(TableBlocked, match="pending restore"):
                    read()
            else:
                assert contents(read()) == before
        with pytest.raises(TableBlocked, match="pending restore"):
            other.append(rows("n9", v=9))
        if begun:
            with pytest.raises(DamagedFile):
                other.restore(saved)
            return
        other.restore(saved)
        assert contents(other.read()) == model
        other.append(rows("n9", v=9))


@pytest.mark.parametrize("closes", [True, False])
def test_a_fence_that_a_restore_does_not_close_brings_back_what_it_took(
    table: Table, closes: bool
) -> None:
    """A planted mistake: with `closes`, a writer that does not look for restores is refused."""
    saved, model = saved_then_changed(table)
    set_right, carry_out, outcome = restoring.set_fence, restoring._carry_out, []

    def set_wrong(*given: Any, closed: bool) -> Procedure[None]:
        if closes or not closed:
            yield from set_right(*given, closed=closed)

    # As if its lock were lost.
    alone = {"hoodie.write.concurrency.mode": "single_writer", **OPTIONS}
    with Table(table.url, options=alone) as other, ExitStack() as planted:
        other.upsert(rows("k5", v=7))

        def late(*given: Any) -> Procedure[Any]:
            try:
                other.upsert(rows("k5", v=8))
            except TableError as error:
                outcome.append(str(error))
            return (yield from carry_out(*given))

        for module, looks in ((transaction, "refuse_unreadable"), (news, "refuse_unreadable"),
                              (opening, "refuse_log_files")):  # fmt: skip
            planted.enter_context(patch.object(module, looks, lambda *_, **__: ()))
        planted.enter_context(patch.object(restoring, "_carry_out", late))
        planted.enter_context(patch.object(restoring, "set_fence", set_wrong))
        table.restore(saved)
    assert (contents(table.read()) == model) is closes
    assert bool(outcome) is closes and all("no longer in fenced mode" in each for each in outcome)


def test_a_clean_that_was_planned_before_a_savepoint_gives_its_plan_up(table: Table) -> None:
    table.upsert(rows("k0", v=1))
    saved = table.history()[0].instant
    table.upsert(rows("k0", v=2))
    table.upsert(rows("k0", v=3))
    take = cleaning.take

    def late(*given: Any, **named: Any) -> Procedure[Any]:
        with Table(table.url) as other:
            assert other.savepoint(saved).files == 1
        return (yield from take(*given, **named))

    with patch.object(cleaning, "take", late):
        assert table.clean() == ()
    table.restore(saved)
    assert contents(table.read()) == {"k0": 1}


def test_what_names_no_commit_makes_no_savepoint_and_no_restore(table: Table) -> None:
    with pytest.raises(TableBlocked, match="no completed commit to save; write to it first"):
        table.savepoint()
    wrong: Any = 5
    for call in (
        lambda: table.savepoint(wrong), lambda: table.savepoint(comment=wrong),
        lambda: table.restore(wrong), lambda: table.delete_savepoint(wrong),
    ):  # fmt: skip
        with pytest.raises(RefusedOption, match="takes a text; this is a int"):
            call()


def test_a_savepoint_is_refused_where_a_clean_took_its_files(table: Table) -> None:
    for v in range(3):
        table.upsert(rows("k0", v=v))
    first, newest = table.history()[-1].instant, table.history()[0].instant
    assert table.clean()
    with pytest.raises(TableChanged, match="a clean deleted it"):
        table.savepoint(first)
    with pytest.raises(RefusedOption, match="no completed commit"):
        table.savepoint("20200101000000000")
    assert not timeline(table).savepoints
    assert table.savepoint().instant == table.savepoint(newest).instant == newest


def test_a_restore_is_refused_by_name_where_it_would_not_be_right(table: Table) -> None:
    saved, _ = saved_then_changed(table)
    later = table.savepoint().instant
    before = contents(table.read())
    with pytest.raises(TableBlocked, match=f"{later} is a savepoint later than {saved}"):
        table.restore(saved)
    with pytest.raises(RefusedOption, match=f"its savepoints: {saved}, {later}"):
        table.restore("20200101000000000")
    assert table.restore(later).taken_back == () and contents(table.read()) == before


def test_commits_that_overlap_a_commit_make_no_savepoint_of_it(table: Table) -> None:
    from table_history import add, publish
    from table_world import CLOCK, new_table, prepare_inserts
    from table_world import rows as made_rows

    store = new_table(f"{table.url}/overlap")
    slow = prepare_inserts(store, made_rows([1]))
    fast = add(store, 0)
    with Table(f"{table.url}/overlap") as overlapping:
        with pytest.raises(RefusedOption, match="overlapped"):
            overlapping.savepoint(fast)
        publish(store, slow)
        assert overlapping.savepoint(fast).files == 2
        assert read_table(store, CLOCK).num_rows == 2


def test_the_commands_save_show_and_restore(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    table.upsert(rows("k0", v=1))
    saved = table.history()[0].instant

    def told(verb: str, *more: str) -> str:
        assert main(["table", verb, table.url, *more]) == 0
        return capsys.readouterr().out

    assert f"{saved} is a savepoint: 1 files stay" in told("savepoint", "--comment", "mine")
    assert f"savepoints: {saved}" in told("show")
    table.upsert(rows("k0", v=2))
    newest = table.history()[0].instant
    assert f"{newest} would be taken back" in told("restore", saved)
    assert contents(table.read()) == {"k0": 2}
    assert "1 commits are gone, 1 files deleted" in told("restore", saved, "--yes")
    assert contents(table.read()) == {"k0": 1}
    assert f"{saved} is deleted" in told("savepoint", "--delete", saved)
    assert "nothing was deleted" in told("savepoint", "--delete", saved)
    assert main(["table", "savepoint", table.url, "--delete", saved, "--comment", "x"]) == 64


@pytest.mark.parametrize("mode", ["hudi", "fenced"])
@pytest.mark.parametrize("knows", ["written", "read"])
def test_an_idle_handle_brings_no_column_back_that_a_restore_took_away(
    tmp_path: Path, mode: str, knows: str
) -> None:
    """In the mode fenced a pending instant keeps its horizon before the commits that go."""
    wide = rows("k9", v=2).append_column("extra", pa.array(["x"]))
    with made(tmp_path, mode=mode) as table, Table(table.url, options=OPTIONS) as idle:
        table.upsert(rows("k0", "k3", v=1))
        saved = table.savepoint().instant
        if mode == "fenced":
            late = run(begin(TableCache(*run(load_config(), table.store, table.clock))),
                       table.store, table.clock)  # fmt: skip
        table.append(wide) if knows == "read" else idle.append(wide)
        assert "extra" in idle.refresh().schema
        if mode == "fenced":
            run(withdraw(late.taken, EpochGuard(0), base=""), table.store, table.clock)
        table.restore(saved)
        idle.append(rows("k8", v=3))
        assert table.read().column_names == ["id", "region", "v"]
        assert contents(table.read()) == {"k0": 1, "k3": 1, "k8": 3} == by_hudi_rs(tmp_path)


def test_a_handles_snapshot_is_not_taken_for_the_restored_tables(table: Table) -> None:
    saved, model = saved_then_changed(table)
    old = run(load_snapshot(), table.store, Clock())
    table.restore(saved)
    for v in range(20):  # so many that a checkpoint is written
        table.append(rows(f"m{v}", v=v))
    new = run(load_snapshot(since=old), table.store, Clock())
    assert new.groups == run(load_snapshot(), table.store, Clock()).groups
    assert contents(table.read()) == model | {f"m{v}": v for v in range(20)}
