"""A table leaves group commit and returns to it, while handles are open and owners are suspended.

Nothing that was acknowledged is lost, and nothing that was refused or rolled back in between is
committed. Judged by a dictionary, and by hudi-rs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_archiving import OPTIONS
from test_group_switch import made, switch
from test_group_table import HOW, in_child, judged, published, rows, spy, values

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, IfVersion
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.errors import DamagedFile, ModeSwitched, TableBlocked, TableChanged
from lockkit.table.format.archived import load_archived
from lockkit.table.format.properties import FENCED, GROUP, HUDI, PROPERTIES_KEY, load_config
from lockkit.table.format.timeline import instant_ms, instant_of
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group.decision import GroupFence, Offer, may_judge
from lockkit.table.occ.group.fence import OFFERS, format_offer, read_group_fence
from lockkit.table.occ.rollback import RolledBack, roll_back
from lockkit.table.occ.transaction import TableCache
from lockkit.table.services import archive_group
from lockkit.table.services.archive_rules import ArchiveRules

pytestmark = pytest.mark.usefixtures("archived_at_once")


@pytest.fixture
def url(tmp_path: Path, archived_at_any_age: None) -> str:
    where = f"file://{tmp_path}/orders"
    Table.create(where, **HOW).close()
    return where


def timeline(url: str) -> Path:
    return Path(url.removeprefix("file://")) / ".hoodie/timeline"


def offers(url: str) -> list[Path]:
    return [each for end in OFFERS for each in timeline(url).glob(f"*{end}")]


def archived(url: str) -> set[str]:
    store, clock = open_store(url), Clock()
    config, _ = run(load_config(), store, clock)
    return {each.instant for each in run(load_archived(config), store, clock)}


def suspended(
    url: str, one: Table, first: Callable[[], object], then: Callable[[], object]
) -> None:
    """`one` loses the fence to `first`, so it offers its commit; before it looks whether that is
    decided, it is suspended, and `then` happens."""
    left = [first, then]

    def before(request: str) -> None:
        lost = len(left) == 2 and request == f"put {FENCE_KEY}"
        if lost or (len(left) == 1 and request.endswith(FENCE_KEY) and offers(url)):
            left.pop(0)()

    spy(one, before)


def made_before(url: str) -> None:
    with Table(url) as table:
        table.append(rows("a"))


# --- what was acknowledged stays ------------------------------------------------------------------


@pytest.mark.parametrize("meets", [False, True], ids=["sleeps", "meets the other mode"])
@pytest.mark.parametrize("other", [FENCED, HUDI])
def test_commits_of_a_handle_that_was_open_over_both_switches_are_published(
    url: str, other: str, meets: bool
) -> None:
    model: dict[str, int] = {}
    with Table(url) as idle:
        for number in range(6):
            idle.append(rows(f"a{number}"))
            model[f"a{number}"] = 0
        published(idle)
        switch(url, other)
        if meets:
            with pytest.raises(ModeSwitched):
                idle.append(rows("refused"))
        with Table(url) as fresh:
            fresh.append(rows("between"))
        switch(url, GROUP)
        with Table(url) as fresh:
            fresh.append(rows("fresh"))
        model |= {"between": 0, "fresh": 0}
        refused = 0
        for number in range(6):
            try:
                idle.append(rows(f"b{number}"))
                model[f"b{number}"] = 0
            except TableError:
                refused += 1
        assert refused <= 1, "it learns once that the mode was switched"
    assert values(url) == judged(url) == model
    with Table(url) as fresh:
        fresh.append(rows("later"))
    assert values(url) == judged(url) == model | {"later": 0}


def test_a_fence_goes_on_counting_and_leaves_a_gap(url: str) -> None:
    with Table(url) as table:
        for each in "abc":
            table.append(rows(each))
    store, clock = open_store(url), Clock()
    before, _ = run(read_group_fence(), store, clock)
    switch(url, FENCED)
    switch(url, GROUP)
    after, _ = run(read_group_fence(), store, clock)
    assert after.table == before.table and after.round > before.round
    assert after.first > before.last + 1, "who knew the last decision lists again"
    assert after.published == after.last


@pytest.mark.parametrize("back", [FENCED, GROUP])
def test_a_commit_that_was_archived_in_the_other_mode_is_acknowledged(
    url: str, back: str
) -> None:
    with Table(url) as one, Table(url, options=OPTIONS) as other:
        one.append(rows("a"))
        published(one)
        model = dict.fromkeys(["a", "first", "second", "mine", *(f"f{n}" for n in range(8))], 0)

        def meanwhile() -> None:
            other.append(rows("second"))
            published(other)
            switch(url, FENCED)
            with Table(url, options=OPTIONS) as table:
                for number in range(8):
                    table.append(rows(f"f{number}"))
                assert table.archive(keep_min=3, keep_max=4)
            switch(url, back)

        suspended(url, one, lambda: other.append(rows("first")), meanwhile)
        done = one.append(rows("mine"))
    assert done.instant in archived(url)
    assert values(url) == judged(url) == model


def test_a_commit_that_a_restore_took_back_in_the_other_mode_is_not_acknowledged(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        saved = one.append(rows("a"))
        published(one)
        one.savepoint(saved.instant)

        def meanwhile() -> None:
            other.append(rows("second"))
            published(other)
            switch(url, FENCED)
            with Table(url) as table:
                table.restore(saved.instant)

        suspended(url, one, lambda: other.append(rows("first")), meanwhile)
        with pytest.raises(TableChanged, match=r"restore .* has taken it back"):
            one.append(rows("mine"))
    assert values(url) == judged(url) == {"a": 0}


def test_a_reader_that_meets_the_switch_lists_again(url: str) -> None:
    def killed() -> None:
        table = Table(url)
        table.append(rows("a"))
        published(table)

        def before(request: str) -> None:
            if request.startswith("put") and request.endswith(".commit"):
                os.kill(os.getpid(), signal.SIGKILL)

        spy(table, before)
        table.append(rows("mine"))
        published(table)

    os.waitpid(in_child(killed), 0)
    with Table(url) as reader:
        asked: list[str] = []

        def before(request: str) -> None:
            asked.append(request)
            if request == f"get {FENCE_KEY}" and asked.count(request) == 2:
                switch(url, FENCED)

        spy(reader, before)
        assert sorted(reader.read()["id"].to_pylist()) == ["a", "mine"]
        assert asked.count(f"get {FENCE_KEY}") >= 2
    assert judged(url) == {"a": 0, "mine": 0}


# --- what was begun before is over ----------------------------------------------------------------


def test_an_upsert_that_was_offered_before_overwrites_nothing_that_came_between(url: str) -> None:
    keys = ["a", *(f"k{number}" for number in range(30))]
    with Table(url) as one, Table(url) as other:
        one.upsert(rows(*keys))
        groups = [pq.read_table(each)["id"].to_pylist()  # type: ignore[no-untyped-call]
                  for each in Path(url.removeprefix("file://")).rglob("*.parquet")]  # fmt: skip
        beside = next(key for group in groups if "a" in group for key in group if key != "a")
        published(one)

        def meanwhile() -> None:
            published(other)
            switch(url, FENCED)
            with Table(url) as table:
                table.upsert(rows(beside, v=100))
            switch(url, GROUP)

        suspended(url, one, lambda: other.append(rows("first")), meanwhile)
        with pytest.raises(ModeSwitched, match="begun before the table's mode was switched"):
            one.upsert(rows("a", v=55))
        assert values(url) == judged(url) == dict.fromkeys([*keys, "first"], 0) | {beside: 100}
        one.upsert(rows("a", v=56))
    assert values(url)["a"] == judged(url)["a"] == 56


def test_what_was_rolled_back_in_the_other_mode_is_not_committed(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        published(one)

        def meanwhile() -> None:
            published(other)
            target = offers(url)[0].name[:17]
            switch(url, FENCED)
            store, clock = open_store(url), Clock()
            known = TableCache(*run(load_config(), store, clock))
            known = replace(known, newest=target)
            gone = run(roll_back(target, EpochGuard(1), known), store, clock)
            assert isinstance(gone, RolledBack)
            switch(url, GROUP)

        suspended(url, one, lambda: other.append(rows("first")), meanwhile)
        with pytest.raises(ModeSwitched, match="begin again"):
            one.append(rows("mine"))
        one.append(rows("again"))
    assert values(url) == judged(url) == {"a": 0, "first": 0, "again": 0}


def test_nobody_decides_what_was_begun_before_the_switch() -> None:
    fence = GroupFence("a", "t", since="20260101000000009")
    before, after = (Offer(each, 0, blind=True, table="t")
                     for each in ("20260101000000009", "20260101000000017"))  # fmt: skip
    assert not may_judge(fence, before) and may_judge(fence, after)


@pytest.mark.parametrize("offer", [f"{'0' * 16}-{'0' * 64}.append", "1.abc.rewrite"])
def test_writers_begin_after_a_pending_instant_that_is_ahead_of_their_clocks(
    url: str, offer: str
) -> None:
    with Table(url) as table:
        done = table.append(rows("a"))
    switch(url, FENCED)
    ahead = instant_of(instant_ms(done.instant) + 600_000)
    (timeline(url) / f"{ahead}.{offer}").write_bytes(b"")
    switch(url, GROUP)
    with Table(url) as one, Table(url) as other:
        with pytest.raises(ModeSwitched, match="begin again"):
            one.append(rows("no"))  # it has not read the fence before
        for number in range(3):
            assert one.append(rows(f"b{number}")).instant > ahead
            assert other.upsert(rows(f"c{number}")).instant > ahead


def test_a_pending_instant_that_is_hours_ahead_stops_the_switch(url: str) -> None:
    made_before(url)
    switch(url, FENCED)
    offer = timeline(url) / "22220101000000000.offer"
    offer.write_bytes(format_offer(Offer("22220101000000000", 0)))
    with pytest.raises(TableBlocked, match="pending or offered, and hours ahead"):
        switch(url, GROUP)
    offer.unlink()
    switch(url, GROUP)


@pytest.mark.parametrize("said", [None, "", "-1", "x", "9" * 40])
def test_a_count_that_is_damaged_stops_the_switch(url: str, said: str | None) -> None:
    switch(url, FENCED)
    store = open_store(url)
    found = store.get(PROPERTIES_KEY)
    assert isinstance(found, Found)
    lines = [each for each in found.body.splitlines() if not each.startswith(b"lockkit.fence.last")]
    lines += [] if said is None else [f"lockkit.fence.last={said}".encode()]
    store.put(PROPERTIES_KEY, b"\n".join(lines) + b"\n", IfVersion(found.version))
    with pytest.raises(DamagedFile, match=r"lockkit\.fence\.last"):
        switch(url, GROUP)
    with Table(url) as table:
        table.append(rows("a"))
    assert values(url) == judged(url) == {"a": 0}


def test_what_could_be_published_again_stays_also_in_the_mode_fenced(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_group, "REPUBLISHED_MS", 600_000)
    plain = f"file://{tmp_path}/plain"
    made(plain, FENCED)
    switch(url, FENCED)
    for each, leaves in ((url, False), (plain, True)):
        with Table(each, options=OPTIONS) as table:
            for number in range(8):
                table.append(rows(f"f{number}"))
            plan = table._upkeep.service.preview_archive(ArchiveRules(keep_min=3, keep_max=4))
        assert bool(plan.instants) == leaves
        assert ("could still be published again" in plan.kept_for) != leaves
