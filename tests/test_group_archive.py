"""Archiving where writers decide together: what is archived is decided and published once.

Judged by a dictionary, and by hudi-rs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_archiving import OPTIONS, forget_checkpoint, rows
from test_group_table import (
    HOW,
    VERSIONS,
    before_fence,
    judged,
    names_at,
    published,
    spy,
    timeline,
    values,
)

from lockkit.cli import fence as fence_command
from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, IfAbsent, IfVersion
from lockkit.runtime import Procedure, run
from lockkit.stores import open_store
from lockkit.table import CommitConflict, Table
from lockkit.table.errors import BrokenFence, TableBlocked
from lockkit.table.format.archived import load_archived
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import COMMITS, V9, instant_ms, instant_of
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, NO_INSTANT, digest
from lockkit.table.occ.group import offer as group_offer
from lockkit.table.occ.group.archived import archived_outcome
from lockkit.table.occ.group.client import GroupClient, GroupWrite
from lockkit.table.occ.group.copied import in_archive, without_archived
from lockkit.table.occ.group.decision import (
    REFUSED,
    GroupDecision,
    GroupFence,
    Offer,
    close_for,
    decide,
    may_judge,
    refuse,
    without_oldest,
)
from lockkit.table.occ.group.fence import (
    OFFERS,
    format_group_fence,
    packed,
    parse_group_fence,
    read_group_fence,
)
from lockkit.table.occ.group.offer import missed_conflict
from lockkit.table.occ.group.outcomes import publish_one
from lockkit.table.occ.group.tail import load_with_tail
from lockkit.table.occ.group.view import GroupView
from lockkit.table.occ.rollback import RollbackRefused, roll_back
from lockkit.table.occ.transaction import TableCache
from lockkit.table.services import archive_group
from lockkit.table.services.archive_rules import ArchiveRules

T1, T2, T3 = "20260101000000001", "20260101000000009", "20260101000000017"


@pytest.fixture(params=VERSIONS)
def url(tmp_path: Path, archived_at_any_age: None, request: pytest.FixtureRequest) -> str:
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW, version=request.param).close()
    return made


def more(table: Table, count: int, v: int = 0) -> dict[str, int]:
    keys = [f"m{v}.{each}" for each in range(count)]
    for each in keys:
        table.append(rows(each, v=v))
    return dict.fromkeys(keys, v)


def archived(url: str) -> set[str]:
    store, clock = open_store(url), Clock()
    config, _ = run(load_config(), store, clock)
    return {each.instant for each in run(load_archived(config), store, clock)}


def archive(table: Table) -> Any:
    published(table)
    return table.archive(keep_min=3, keep_max=4)


# --- what everyone sees ---------------------------------------------------------------------------


def test_archived_commits_are_read_once_and_writers_go_on(url: str) -> None:
    with Table(url, options=OPTIONS) as table, Table(url) as idle:
        idle.append(rows("k0", v=0))
        model = {"k0": 0}
        for v in range(8):
            table.upsert(rows(f"k{v % 3}", f"n{v}", v=v))
            model |= {f"k{v % 3}": v, f"n{v}": v}
        table.clean()
        whole = table.history()
        done = archive(table)
        assert done is not None and len(done.instants) > 4 and not done.kept_for
        assert table.history() == whole
        assert values(url) == judged(url) == model
        for number, handle in enumerate((table, idle), 20):
            handle.upsert(rows("k1", v=number))
            handle.append(rows(f"after{number}", v=0))
            model |= {"k1": number, f"after{number}": 0}
        assert values(url) == judged(url) == model
        assert archive(table) is not None, "the next run archives what has come since"
    assert values(url) == judged(url) == model
    config, _ = run(load_config(), open_store(url), Clock())
    cleans = run(load_archived(config), open_store(url), Clock())
    cleans = [GroupDecision(1, 1, COMMIT, each.instant) for each in cleans
              if each.action not in COMMITS]  # fmt: skip
    assert cleans and not run(in_archive(config, cleans), open_store(url), Clock())


def test_a_fence_from_before_an_archive_is_repaired_and_the_archived_commits_stay(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older version of the object was put back."""
    there = Path(url.removeprefix("file://")) / FENCE_KEY
    with Table(url, options=OPTIONS) as table:
        model = more(table, 8)
        published(table)
        older = there.read_bytes()
        done = archive(table)
        assert done is not None
    there.write_bytes(older)
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    said = capsys.readouterr().out
    assert "has commits that it names" in said and "missing" not in said and "dropped" not in said
    fence = parse_group_fence(there.read_bytes())
    assert fence.archived == max(done.instants) and not archived(url) & {
        each.instant for each in fence.window
    }
    with Table(url, options=OPTIONS) as table:
        model |= more(table, 4, v=1)
        assert archive(table) is not None
    assert values(url) == judged(url) == model
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    assert "nothing to repair" in capsys.readouterr().out


@pytest.mark.parametrize("hidden", ["after the archived ones", "before them"])
def test_a_commit_that_is_not_published_in_a_copy_stays_beside_archived_ones_or_the_copy_is_refused(
    url: str, capsys: pytest.CaptureFixture[str], hidden: str
) -> None:
    """The copy's archive is hours newer than its timeline, and the fence's instants are out of
    order."""
    there, is_last = Path(url.removeprefix("file://")) / FENCE_KEY, hidden.startswith("after")
    with Table(url, options=OPTIONS) as table:
        model = more(table, 8)
        published(table)
        older = parse_group_fence(there.read_bytes())
        assert archive(table) is not None
        over = archived(url)
    *others, unpublished, newest = older.window
    order = [newest, *others, unpublished] if is_last else [unpublished, *others, newest]
    window = tuple(replace(each, seq=seq) for seq, each in enumerate(order, older.first))
    there.write_bytes(format_group_fence(replace(older, window=window, published=older.first)))
    forget_checkpoint(Path(url.removeprefix("file://")))
    os.remove(*timeline(url).glob(f"{unpublished.instant}*.commit"))
    assert main(["table", "repair-fence", url, "--yes"]) == (0 if is_last else 3)
    said = "has commits that it names" if is_last else "copy the table again while nobody writes"
    assert said in "".join(capsys.readouterr())
    fence = parse_group_fence(there.read_bytes())
    if is_last:
        left = [each.instant for each in fence.window]
        assert fence.archived == max(over) and left[-1] == unpublished.instant
        assert not over & {*left} and newest.instant not in left
        with Table(url) as table:
            model |= more(table, 2, v=1)
            published(table)
        assert values(url) == judged(url) == model
    late = replace(unpublished, instant=instant_of(instant_ms(max(over)) - 1), seq=99)
    with pytest.raises(BrokenFence, match="archive is hours newer than its timeline"):
        without_archived(older, others[: len(over)], [late])
    one, two = (replace(each, seq=seq) for seq, each in ((2, others[0]), (1, others[1])))
    after = without_archived(replace(older, window=(two, one, newest), published=2), [two], [])
    assert after.window == (newest,), "it is published, and nothing up to there is named"


def test_what_may_be_archived_and_is_still_in_the_timeline_is_committed(url: str) -> None:
    with Table(url) as table:
        done = table.append(rows("k0", v=0))
        published(table)
    for instant, kind in ((done.instant, COMMIT), (T1, REFUSED)):
        assert run(archived_outcome(instant), open_store(url), Clock()) == kind


def test_a_repair_that_another_one_has_made_meanwhile_is_not_called_one(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Path(url.removeprefix("file://")) / FENCE_KEY
    fence = parse_group_fence(there.read_bytes())
    there.write_bytes(format_group_fence(replace(fence, closed=True)))

    @contextmanager
    def held(_args: Any) -> Iterator[None]:
        there.write_bytes(format_group_fence(fence))
        yield

    monkeypatch.setattr(fence_command, "locked", held)
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("the fence is sound: nothing to repair")


def test_what_could_still_be_published_again_stays(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_group, "REPUBLISHED_MS", 600_000)
    with Table(url, options=OPTIONS) as table:
        more(table, 8)
        done = archive(table)
        assert done is None
        plan = table._upkeep.service.preview_archive(ArchiveRules(keep_min=3, keep_max=4))
        assert not plan.instants and "could still be published again" in plan.kept_for


def test_the_fence_is_replaced_before_anything_is_archived(url: str) -> None:
    asked: list[str] = []
    with Table(url, options=OPTIONS) as table:
        more(table, 8)
        published(table)
        spy(table, asked.append)
        done = archive(table)
        fence, _ = run(read_group_fence(), open_store(url), Clock())
    assert done is not None and fence.archived == max(done.instants)
    moved = [number for number, each in enumerate(asked) if each.startswith("put")
             and ("/history/" in each or ".commits_.archive" in each)]  # fmt: skip
    assert asked.index(f"put {FENCE_KEY}") < min(moved)
    assert all(each.instant > fence.archived for each in fence.window)


# --- writers that were paused ---------------------------------------------------------------------


def paused_at_its_offer(
    one: Table, meanwhile: Callable[[], object], loses_to: Callable[[], object]
) -> None:
    """`one` loses the fence, offers its commit, and stands still before it looks for the decision.
    """
    left = [loses_to, meanwhile]

    def before(request: str) -> None:
        if request == f"put {FENCE_KEY}" and len(left) == 2:
            left.pop(0)()
        elif len(left) == 1 and request.endswith(FENCE_KEY) and offers(one.url):
            left.pop()()

    spy(one, before)


def offers(url: str) -> list[Path]:
    return [each for end in OFFERS for each in timeline(url).glob(f"*{end}")]


def test_a_paused_owner_finds_its_commit_in_the_archive_and_it_is_there_once(url: str) -> None:
    with Table(url) as one, Table(url, options=OPTIONS) as other:
        one.append(rows("a", v=0))
        model = {"a": 0, "first": 0, "mine": 1}

        def meanwhile() -> None:
            model.update(more(other, 8))
            assert archive(other) is not None

        paused_at_its_offer(one, meanwhile, lambda: other.append(rows("first", v=0)))
        done = one.append(rows("mine", v=1))
        assert done.instant in archived(url)
    assert not list(timeline(url).glob(f"{done.instant}*"))
    assert values(url) == judged(url) == model


def test_a_paused_owner_whose_offer_was_refused_and_archived_hears_no(url: str) -> None:
    with Table(url) as one, Table(url, options=OPTIONS) as other:
        one.upsert(rows("a", v=0))
        model = {"a": 9}

        def meanwhile() -> None:
            model.update(more(other, 8))
            other.clean()
            assert archive(other) is not None

        paused_at_its_offer(one, meanwhile, lambda: other.upsert(rows("a", v=9)))
        with pytest.raises((CommitConflict, TableError)):
            one.upsert(rows("a", v=1))
    assert values(url) == judged(url) == model


def test_an_upsert_that_may_lack_an_archived_commit_is_refused(url: str) -> None:
    """Its base has left the window, and the commit that it lacks has left the timeline."""
    with Table(url) as one, Table(url, options=OPTIONS) as other:
        one.upsert(rows("a", v=0))
        model = {"a": 9}

        def meanwhile() -> None:
            other.upsert(rows("a", v=9))
            model.update(more(other, 8))

        before_fence(one, meanwhile)
        with pytest.raises(CommitConflict):
            one.upsert(rows("a", v=1))
    assert values(url) == judged(url) == model


def test_what_arrives_late_in_the_name_of_an_archived_commit_is_removed_and_its_rows_stay(
    url: str
) -> None:
    with Table(url, options=OPTIONS) as table:
        model = more(table, 8)
        published(table)
        requested = min(timeline(url).glob("*.commit.requested"))
        first = requested.with_name(requested.name.replace(".commit.requested", ".inflight"))
        done = min(timeline(url).glob("*.commit"))
        late = {first: done.read_bytes(), requested: requested.read_bytes()}
        assert archive(table) is not None and not requested.exists()
        for each, body in late.items():
            each.write_bytes(body)
        before = run(read_group_fence(), open_store(url), Clock())[0].last
        known = TableCache(*run(load_config(), table.store, Clock()))
        way = roll_back(first.name[:17], EpochGuard(0), known)
        assert isinstance(run(way, table.store, Clock()), RollbackRefused)
        assert run(read_group_fence(), open_store(url), Clock())[0].last == before
    assert not first.exists() and not requested.exists()
    assert values(url) == judged(url) == model


def test_what_a_paused_publisher_sends_too_late_leaves_with_the_next_archiver(url: str) -> None:
    with Table(url) as one, Table(url, options=OPTIONS) as other:
        one.append(rows("a", v=0))
        published(one)
        model, left = {"a": 0, "mine": 1}, [1]

        def before(request: str) -> None:
            if request.startswith("put") and request.endswith(".commit") and left:
                left.pop()
                model.update(more(other, 8))
                assert archive(other) is not None

        spy(one, before)
        done = one.append(rows("mine", v=1))
        published(one)
        assert done.instant in archived(url)
        assert list(timeline(url).glob(f"{done.instant}*.commit")), "it was under way"
        more(other, 2, v=5)
        model |= {f"m5.{each}": 5 for each in range(2)}
        archive(other)
    assert not list(timeline(url).glob(f"{done.instant}*"))
    assert values(url) == judged(url) == model


def test_refused_offers_leave_the_timeline_with_the_commits_around_them(url: str) -> None:
    with Table(url) as one, Table(url, options=OPTIONS) as other:
        one.upsert(rows("a", v=0))
        before_fence(one, lambda: other.upsert(rows("a", v=1)))
        with pytest.raises(CommitConflict):
            one.upsert(rows("a", v=2))
        model = {"a": 1} | more(other, 8)
        assert all(list(timeline(url).glob(f"*.{each}")) for each in ("offer", "rewrite"))
        other.clean()
        archive(other)
        assert not [*timeline(url).glob("*.offer"), *timeline(url).glob("*.rewrite")]
    assert values(url) == judged(url) == model


def test_a_publisher_that_has_seen_the_fence_publishes_nothing_that_was_archived(url: str) -> None:
    store, client = open_store(url), GroupClient(archived=T2)
    fence = decide(GroupFence("a", completion=T1), [Offer(T2, 0), Offer(T3, 0)], attempt="b")
    view = GroupView(fence, "", {}, frozenset())
    assert run(publish_one(client, view, fence.window[0], {}), store, Clock()) is False
    with pytest.raises(TableError, match="is missing"):
        run(publish_one(client, view, fence.window[1], {}), store, Clock())


def test_a_commit_that_left_the_timeline_before_the_listing_is_not_taken_for_unpublished(
    tmp_path: Path
) -> None:
    """The fence beside the listing names it still. It no longer names others that have left."""
    body = b'{"partitionToWriteStats": {}}'
    offers = [Offer(each, 0, sha256=digest(body), body=packed(body)) for each in (T1, T3)]
    fence = decide(GroupFence("a", completion=NO_INSTANT), offers, attempt="b")
    after = close_for(fence, T1, {1, 2}, "c")
    left = fence.window[1]
    assert after is not None and after.window == (left,)
    store = open_store(f"file://{tmp_path}/orders")
    for key in (V9.requested(T3), V9.inflight(T3), V9.completed(T3, "commit", left.completion)):
        store.put(key, body, IfAbsent())
    store.put(FENCE_KEY, format_group_fence(fence), IfAbsent())

    class ThenArchived:
        def __getattr__(self, name: str) -> Any:
            return self.get_fence if name == "get" else getattr(store, name)

        def get_fence(self, key: str, *args: Any, **how: Any) -> Any:
            found = store.get(key, *args, **how)
            if key == FENCE_KEY and isinstance(found, Found):
                store.put(FENCE_KEY, format_group_fence(after), IfVersion(found.version))
            return found

    now = run(load_with_tail(V9, ""), ThenArchived(), Clock())  # type: ignore[arg-type]
    assert list(now.completed) == [T3] and not now.tail


def test_a_base_is_not_raised_over_commits_that_may_be_archived(url: str) -> None:
    store, view = open_store(url), GroupView(GroupFence("a", archived=T2), "", {}, frozenset())
    write = GroupWrite(T3, "mine", 0, frozenset(), horizon=T1)
    assert run(missed_conflict(GroupClient(), view, write), store, Clock())
    write.horizon = T2  # its snapshot has every commit up to there
    assert not run(missed_conflict(GroupClient(), view, write), store, Clock())


def test_a_writer_that_may_have_missed_a_commit_gets_a_conflict(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It heard that it was not decided in time, which `retries` does not repeat."""
    def missed(*_: Any) -> Procedure[bool]:
        yield from ()
        return True

    with Table(url) as one, Table(url) as other:
        one.upsert(rows("a", v=0))
        with monkeypatch.context() as planted:
            def meanwhile() -> None:
                other.append(rows("b", v=0))
                planted.setattr(group_offer, "may_judge", lambda *_: False)
                planted.setattr(group_offer, "missed_conflict", missed)

            before_fence(one, meanwhile)
            with pytest.raises(CommitConflict, match="begin again"):
                one.upsert(rows("a", v=1))
        one.upsert(rows("a", v=2))
    assert values(url) == judged(url) == {"a": 2, "b": 0}


def test_archiving_that_finds_instants_pending_says_that_it_is_blocked(url: str) -> None:
    with Table(url) as table:
        table.append(rows("a", v=0))
        published(table)
        requested = timeline(url) / f"{T1}.commit.requested"
        requested.touch()
        with pytest.raises(TableBlocked, match="not over yet; nothing was archived"):
            run(archive_group.decide_nothing_until(
                GroupClient(names=names_at(url)), T1), table.store, table.clock)  # fmt: skip


# --- the rule, pure -------------------------------------------------------------------------------


def test_nothing_up_to_the_archived_instant_is_decided() -> None:
    fence = GroupFence("a", archived=T2, newest=T2)
    assert not may_judge(fence, Offer(T2, 0, blind=True))
    assert may_judge(fence, Offer(T3, 0, blind=True))
    assert decide(fence, [Offer(T1, 0, blind=True, reserved=True)], attempt="b").window == ()


def test_a_decision_leaves_for_the_archive_only_once_its_outcome_is_proven() -> None:
    fence = decide(GroupFence("a"), [Offer(T1, 0)], attempt="b")
    fence = refuse(decide(fence, [Offer(T2, 1)], attempt="c"), T3, "d", why="late")
    assert close_for(fence, T1, {2, 3}, "e") is None
    after = close_for(fence, T1, {1}, "e")
    assert after is not None and after.archived == T1 and after.first == 2 and after.published == 1
    assert [each.instant for each in after.window] == [T2, T3]
    assert without_oldest(fence, T2, {1, 2, 3}).first == 3
    assert close_for(fence, T3, {1, 2}, "e") is None, "its tombstone is not proven"
    lower = close_for(after, T1, {1, 2, 3}, "f")
    assert lower is not None and lower.archived == T1
