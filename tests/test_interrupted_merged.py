"""Ctrl-C at each request of a process that works on a merge-on-read table, and goes on afterwards.

The writes and services of version 6; in version 9 archiving and savepoints. After each interrupt
the same process writes, compacts and cleans again, and hudi-rs reads what a dictionary says.
"""

from __future__ import annotations

import _thread
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deaths import AtRequest, Send, nth
from hudi_rs import read_by_hudi_rs
from test_merge_on_read import made
from test_merged_of_hudi import adopted, shown
from test_merged_v6 import (
    compacts,
    deletes,
    dies,
    folder,
    forget,
    live,
    resume,
    rolls_back,
    timeline,
    upserts,
    write,
)

from lockkit.runtime import SiblingInterrupted
from lockkit.stores import Store
from lockkit.table import Table
from lockkit.table.errors import TableBlocked

pytestmark = [
    pytest.mark.usefixtures("no_hudi_beside", "archived_at_once"), pytest.mark.timeout(600),
]
REQUESTS_MAX = 250
OPTIONS = {"hoodie.clean.automatic": "false", "hoodie.clean.commits.retained": "1"}
BY_HAND = OPTIONS | {"hoodie.write.concurrency.mode": "single_writer",
                     "hoodie.cleaner.policy.failed.writes": "EAGER"}  # fmt: skip


def interrupts(store: Store, most: int, *, sent: bool) -> AtRequest:
    """Ctrl-C at the request after `most`, before it is sent or before its answer."""

    def strikes(send: Send) -> Any:
        answer = send() if sent else None
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        _thread.interrupt_main()  # a worker's request goes on
        return answer if sent else send()

    return AtRequest(store, nth(most + 1), strikes)


def cleans(table: Table) -> None:
    table.clean()


def archives(table: Table) -> None:
    table.archive(keep_min=2, keep_max=3)


def saves(table: Table) -> None:
    table.savepoint()


def restores(table: Table) -> None:
    (saved,) = table._upkeep.service.inspect().now.savepoints
    table.restore(saved)


def old_slices(table: Table) -> None:
    for n in range(1, 4):
        write(table, n, "k03", "k04")
        table.compact()


def interrupted(
    table: Table, to: Path, deed: Any, step: int, sent: bool
) -> Iterator[tuple[Table, dict[str, int], str]]:
    """The copies of the table, each with the rows before, and the key of the request at which its
    process was interrupted. The process lives.
    """
    before = live(table)
    for most in range(step // 2 if sent else 0, REQUESTS_MAX, step):
        url = f"file://{shutil.copytree(folder(table), to / f'{most}')}"
        with Table(url, options=OPTIONS) as one:
            kept = one.store, one._data, one._upkeep.context.store
            store: Any = interrupts(one.store, most, sent=sent)
            one.store = one._data = one._upkeep.context.store = store
            try:
                deed(one)
            except (KeyboardInterrupt, SiblingInterrupted):
                pass
            one.store, one._data, one._upkeep.context.store = kept
            yield one, before, store.at
        if not store.struck:
            return
    raise AssertionError(f"it had more than {REQUESTS_MAX} requests")


every = pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.soak)])
sent_or_not = pytest.mark.parametrize("sent", [False, True])


@every
@sent_or_not
@pytest.mark.parametrize("deed", [upserts, deletes, compacts, cleans, rolls_back])
def test_ctrl_c_in_version_6_leaves_all_of_its_rows_or_none_and_blocks_nobody(
    hudi_made: Path, tmp_path: Path, deed: Any, sent: bool, step: int
) -> None:
    with adopted(hudi_made, tmp_path, "mor6") as table:
        if deed is cleans:
            old_slices(table)
        if deed is rolls_back:
            dies(table, "k03", "k04", "k91")
        for one, before, at in interrupted(table, tmp_path, deed, step, sent):
            found = live(one)
            assert found in (before, after(deed, before))
            # Without a fence nobody knows what became of the write that decides.
            stays = {"compaction", "clean", "rollback"}
            if at.endswith(".deltacommit") or deed is rolls_back:
                stays.add("deltacommit")
            assert {*timeline(one).pending.values()} <= stays, at
            write(one, 7, "k05")  # at once: nobody waits for a heartbeat
            with Table(one.url, options=BY_HAND) as other:
                settled(other, found | {"k05": 7})


def after(deed: Any, before: dict[str, int]) -> dict[str, int]:
    if deed is upserts:
        return before | dict.fromkeys(("k03", "k04", "k90"), 77)
    gone = ("k03", "k04") if deed is deletes else ()
    return {key: v for key, v in before.items() if key not in gone}


def settled(table: Table, expected: dict[str, int]) -> None:
    """Every plan is carried out, and what is older leaves the timeline: the rows stay."""
    for instant in [each for each, done in timeline(table).rollbacks.items() if not done]:
        resume(table, instant)
    write(table, 8, "k06")
    write(table, 9, "k06")
    expected = expected | {"k06": 9}
    while table.compact() is not None:
        pass
    table.clean()
    # A clean waits until nobody can be at it, as Hudi's may.
    assert {*timeline(table).pending.values()} <= {"clean"}
    forget(table, max(timeline(table).commits))
    assert live(table) == expected == dict(shown(read_by_hudi_rs(table.url)))


@every
@sent_or_not
@pytest.mark.parametrize("deed", [archives, saves])
@pytest.mark.parametrize(("version", "mode"), [(9, "fenced"), (6, "hudi")])
def test_ctrl_c_in_the_archiver_or_a_savepoint_of_a_merged_table_blocks_nobody(
    tmp_path: Path, deed: Any, sent: bool, step: int, version: int, mode: str
) -> None:
    options = {"partition_by": "region", "buckets": 1, "index": "BUCKET", "options": OPTIONS,
               "version": version, "mode": mode}  # fmt: skip
    with made(f"file://{tmp_path / 't'}", **options) as table:
        old_slices(table)
        table.clean()
        write(table, 4, "k05")
        history = {each.instant for each in table.history()}
        for one, before, _ in interrupted(table, tmp_path, deed, step, sent):
            assert live(one) == before == dict(shown(read_by_hudi_rs(one.url)))
            write(one, 7, "k05")
            one.compact()
            one.savepoint()
            one.clean()
            one.archive(keep_min=2, keep_max=3)
            every = [each.instant for each in one.history()]
            assert history <= {*every} and len(every) == len({*every})
            assert live(one) == before | {"k05": 7} == dict(shown(read_by_hudi_rs(one.url)))


@every
@sent_or_not
def test_ctrl_c_in_a_restore_of_version_6_leaves_it_to_the_same_call(
    tmp_path: Path, sent: bool, step: int
) -> None:
    how = {"partition_by": "region", "buckets": 1, "index": "BUCKET", "options": OPTIONS}
    with made(f"file://{tmp_path / 't'}", version=6, mode="hudi", **how) as table:
        old_slices(table)
        write(table, 4, "k03", "k05")
        saved, model = table.savepoint().instant, live(table)
        write(table, 5, "k03")
        table.compact()
        write(table, 6, "k03", "k91")
        for one, before, _ in interrupted(table, tmp_path, restores, step, sent):
            with suppress(TableBlocked):
                assert live(one) in (before, model)
            one.restore(saved)
            assert live(one) == model == dict(shown(read_by_hudi_rs(one.url)))
            assert one.delete_savepoint(saved)
            with Table(one.url, options=BY_HAND) as other:
                settled(other, model)
