"""A handle of a table with group commit: closed, forked, interrupted; what it reserves ahead."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from test_group_table import (
    HOW,
    before_fence,
    in_child,
    judged,
    names_at,
    published,
    rows,
    spy,
    values,
)

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError
from lockkit.protocol.outcome import Found, Missing, NotModified, PreconditionFailed, Unknown
from lockkit.runtime import run
from lockkit.runtime.proven import delete, listing
from lockkit.stores import open_store
from lockkit.table import CommitConflict, CommitUnknown, Table
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.timeline import V6, instant_ms, instant_of, load_timeline
from lockkit.table.occ.conflict import SIMPLE
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group import ahead as group_ahead
from lockkit.table.occ.group import commit as group_commit
from lockkit.table.occ.group import process as group_process
from lockkit.table.occ.group import publish as group_publish
from lockkit.table.occ.group.client import FAST_RUN_MAX, GroupClient
from lockkit.table.occ.group.commit import prove_data
from lockkit.table.occ.group.decision import GroupFence
from lockkit.table.occ.group.fence import OFFERS, format_group_fence, read_group_fence
from lockkit.table.occ.group.mode import emptied
from lockkit.table.occ.group.publish import publish_in_group
from lockkit.table.occ.group.settings import EVERY_MS
from lockkit.table.write.groups import FileBuffer
from lockkit.table.writer import TableWrite


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW).close()
    return made


def last(url: str) -> int:
    return int(run(read_group_fence(), open_store(url), Clock())[0].last)


WRITES = ("append", "upsert", "delete", "overwrite")


@pytest.mark.parametrize("write", WRITES)
def test_a_closed_handle_refuses_to_write(url: str, write: str) -> None:
    table = Table(url)
    table.append(rows("a"))
    table.close()
    table.close()
    before = last(url)
    with pytest.raises(RuntimeError, match="closed; open the table again"):
        getattr(table, write)(rows("b"))
    assert last(url) == before and values(url) == judged(url) == {"a": 0}


def test_a_forked_child_refuses_its_parents_handle_and_the_parent_goes_on(url: str) -> None:
    """Both would use the instant that the parent has reserved ahead."""
    with Table(url) as table:
        table.append(rows("a"))
        table.append(rows("b"))

        def work() -> None:
            with pytest.raises(RuntimeError, match="before fork; open the table again"):
                table.append(rows("child"))
            with Table(url) as own:
                own.append(rows("own"))

        _, status = os.waitpid(in_child(work), 0)
        assert status == 0
        table.append(rows("c"))
    assert values(url) == judged(url) == dict.fromkeys(["a", "b", "own", "c"], 0)


def test_an_upsert_whose_files_take_longer_than_the_commits_of_others_is_committed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ids = TableWrite._written, iter(map(str, range(99)))
    with Table(url) as table, Table(url) as other:

        def slow(write: TableWrite, *how: Any) -> Any:
            if write.store is table.store:
                for _ in range(2):
                    other.append(rows(next(ids)))
                    published(other)
            return made(write, *how)

        for v in range(3):
            table.upsert(rows("a", v=v))
            other.append(rows(next(ids)))
        monkeypatch.setattr(TableWrite, "_written", slow)
        for v in range(3, 6):
            client = table._upkeep.context.together[0]
            client.contended = 9
            table.upsert(rows("a", v=v))
            assert client.overtaken > 0, "it began again once, and lists first for a while"
    assert values(url)["a"] == judged(url)["a"] == 5


# --- Ctrl-C ---------------------------------------------------------------------------------------


def interrupted(table: Table, at: str, number: int = 1) -> KeyboardInterrupt:
    """Ctrl-C right before the `number`-th request of this kind, whichever thread sends it."""
    left = [number]

    def before(request: str) -> None:
        if request.startswith("put") and request.endswith(at):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGINT)

    spy(table, before)
    with pytest.raises(KeyboardInterrupt) as caught:
        table.append(rows("mine"))
    return caught.value


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def test_an_interrupt_before_an_offer_says_that_nothing_was_committed(url: str) -> None:
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
        said = notes(interrupted(table, ".parquet"))
        assert "was not committed; what it had written was taken back" in said
        assert "it is unknown" not in said
    assert values(url) == judged(url) == {"a": 0}


@pytest.mark.parametrize("number", [1, 2, 4, 6])
def test_an_overwrite_that_is_interrupted_gives_its_instant_back_so_that_nobody_waits_for_it(
    url: str, number: int
) -> None:
    """Other writers give way to a pending overwrite for five seconds."""
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
        asked = list[str]()

        def before(request: str) -> None:
            asked.append(request)
            if len(asked) == number:
                raise KeyboardInterrupt

        spy(table, before)
        with pytest.raises(KeyboardInterrupt):
            table.overwrite(rows("b"))
    now = run(load_timeline(names_at(url)), open_store(url), Clock())
    assert any("replacecommit.requested" in each for each in asked) and not now.pending
    assert values(url) == {"a": 0}


def test_an_interrupt_after_an_offer_says_that_it_is_not_known_and_what_came_of_it(
    url: str
) -> None:
    """The offer stands: the withdrawal after the interrupt finds out what the fence says of it."""
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        published(one)
        before_fence(one, lambda: other.append(rows("b")))
        said = notes(interrupted(one, FENCE_KEY, 2))
        outcome = "was committed before the interrupt" in said, "was not committed" in said
        assert "it is unknown whether" in said and ".append" in said
        assert "(interrupted once it was offered" in said
        assert outcome in ((True, False), (False, True)), said
    expected = {"a": 0, "b": 0} | ({"mine": 0} if outcome[0] else {})
    assert values(url) == judged(url) == expected


def test_an_interrupt_while_a_decided_upsert_ends_its_threads_says_that_it_is_committed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted_once(buffer: FileBuffer) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with Table(url) as table:
        table.upsert(rows("a"))
        monkeypatch.setattr(FileBuffer, "close", interrupted_once)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            table.upsert(rows("a", v=1))
    assert "was committed before this" in notes(interrupt.value)
    assert values(url) == judged(url) == {"a": 1}


@pytest.mark.parametrize("write", ["append", "upsert"])
def test_a_second_interrupt_while_a_commit_is_taken_back_leaves_it_unknown_and_says_so(
    url: str, write: str
) -> None:
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
        asked = list[str]()

        def before(request: str) -> None:
            if asked or request == f"put {FENCE_KEY}":
                asked.append(request)
            if len(asked) in (1, 2):
                raise KeyboardInterrupt

        spy(table, before)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            getattr(table, write)(rows("a", v=1))
        assert len(asked) >= 2
    assert "it is unknown whether" in notes(interrupt.value) and FENCE_KEY in notes(interrupt.value)


def test_an_upsert_whose_decision_has_no_answer_keeps_its_files_until_nothing_can_decide_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request arrives when the upsert has begun again."""
    monkeypatch.setattr(group_process, "BUSY_MS", 600_000)
    with Table(url) as table:
        for each in range(3):
            table.upsert(rows("a", v=each))
            published(table)
        store, late, landed = table.store, list[Any](), list[Any]()

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def put(self, key: str, *given: Any, **how: Any) -> Any:
                if key == FENCE_KEY and not late:
                    late.append(lambda: store.put(key, *given, **how))
                    return Unknown("no answer")
                if key.endswith(".parquet") and late and not landed:
                    landed.append(late[0]())
                return store.put(key, *given, **how)

        table.store = table._upkeep.context.store = Slow()  # type: ignore[assignment]
        with suppress(CommitConflict):
            table.upsert(rows("a", v=3))
            assert isinstance(landed[0], PreconditionFailed)
        assert late
    with Table(url) as table:
        table.upsert(rows("b"))
    assert values(url) == judged(url)


def test_a_commit_that_was_decided_is_not_denied_because_its_decision_cannot_be_read(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has left the window, and a second call finds it in the timeline."""
    made, right = list[Any](), group_publish._write_of

    def write_of(client: Any, prepared: Any) -> Any:
        made.append(prepared)
        return right(client, prepared)

    monkeypatch.setattr(group_publish, "_write_of", write_of)
    with Table(url) as table:
        mine = table.append(rows("a"))
        published(table)
        fence, _ = run(read_group_fence(), table.store, Clock())
        (Path(url.removeprefix("file://")) / FENCE_KEY).write_bytes(
            format_group_fence(emptied(fence))
        )
        lists = list[str]()

        def denied(request: str) -> None:
            lists.extend([request] if request.startswith("list") else [])
            if len(lists) == 2:
                raise StoreError("denied")

        context = table._upkeep.context
        (client,) = context.together
        client.known, client.wins = None, FAST_RUN_MAX
        assert publish_in_group(context, made[0], SIMPLE).instant == mine.instant
        spy(table, denied)
        client.known, client.wins = None, FAST_RUN_MAX
        with pytest.raises(CommitUnknown, match="denied"):
            publish_in_group(context, made[0], SIMPLE)


def test_an_offer_that_nobody_can_decide_is_reported_as_unknown_with_where_to_look(
    url: str
) -> None:
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        published(one)
        before_fence(one, lambda: other.append(rows("b")))
        lost: list[Any] = []

        def before(request: str) -> None:
            if request.endswith(".append"):
                lost.append(request)
            elif lost and request.endswith(FENCE_KEY):
                raise TableError("the store is gone")

        spy(one, before)
        with pytest.raises(CommitUnknown) as caught:
            one.append(rows("mine"))
        assert caught.value.prepared is not None
        instant = caught.value.prepared.instant
        assert FENCE_KEY in str(caught.value) and f"{instant}_*.commit" in str(caught.value)
        assert any(instant in each for each in lost)
        other.append(rows("c"))  # decides it: an offer cannot be taken back by going away
    assert values(url) == judged(url) == dict.fromkeys(["a", "b", "c", "mine"], 0)


# --- what is reserved ahead -----------------------------------------------------------------------


def ahead(table: Table) -> list[Any]:
    return table._upkeep.context.together[0].ahead


def busy(url: str, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A writer with an instant that is reserved for its next append."""
    monkeypatch.setattr(group_ahead, "AHEAD_MS", 600_000)
    table = Table(url)
    for each in "ab":
        table.append(rows(each))
    published_but_reserved(table)
    assert ahead(table)
    return table


def published_but_reserved(table: Table) -> None:
    folder = Path(table.url.removeprefix("file://")) / ".hoodie/timeline"
    for _ in range(2_000):
        if len(list(folder.glob("*.commit"))) >= 2:
            return
        Clock().sleep(0.01)
    raise AssertionError("it was not published")


def test_an_instant_that_was_reserved_long_ago_is_not_used(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may take it for a dead writer's, and roll it back."""
    with busy(url, monkeypatch) as table:
        taken, sent_ms = ahead(table)[0]
        ahead(table)[0] = taken, sent_ms - 700_000
        done = table.append(rows("c"))
        assert done.instant != taken.instant
    assert not (Path(url.removeprefix("file://")) / taken.requested).exists()
    assert values(url) == judged(url) == dict.fromkeys("abc", 0)


class GivenBack(list[Any]):
    """Empty by now; a moment ago it was not."""

    def __bool__(self) -> bool:
        return True


def test_an_instant_that_is_given_back_just_as_it_is_to_be_used_is_not_used(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with busy(url, monkeypatch) as table:
        client = table._upkeep.context.together[0]
        reserved, client.ahead = client.ahead, GivenBack()
        assert table.append(rows("c")).instant != reserved[0][0].instant
    assert values(url) == judged(url) == dict.fromkeys("abc", 0)


def test_an_instant_that_is_not_later_than_a_commit_it_knows_is_not_used(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of increments has passed it."""
    with busy(url, monkeypatch) as table:
        taken, _ = ahead(table)[0]
        assert table._known is not None
        table._known = replace(table._known, newest=taken.instant)
        done = table.append(rows("c"))
        assert done.instant > taken.instant
    assert values(url) == judged(url) == dict.fromkeys("abc", 0)


def test_a_writer_that_met_another_one_lists_before_it_uses_what_it_has_reserved(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may have offered a commit; only a listing shows it."""
    with busy(url, monkeypatch) as table:
        asked: list[str] = []
        spy(table, asked.append)
        table.append(rows("c"))
        assert not [each for each in asked if each.startswith("list .hoodie/timeline/2")]
        asked.clear()
        table._upkeep.context.together[0].contended = 3
        table.append(rows("d"))
        assert [each for each in asked if each.startswith("list .hoodie/timeline/2")]
        assert not [each for each in asked if each.endswith(".append")], "it decides at once"
    assert values(url) == judged(url) == dict.fromkeys("abcd", 0)


@pytest.mark.parametrize("contended", [0, 3])
def test_an_upsert_begins_on_no_listing_that_began_after_a_commit_of_its_snapshot(
    url: str, monkeypatch: pytest.MonkeyPatch, contended: int
) -> None:
    """Such a listing does not show that commit, so the snapshot would lack it."""
    monkeypatch.setattr(group_commit, "gathers", lambda *_: False)  # nobody else is about to begin
    with busy(url, monkeypatch) as table:
        client, asked = table._upkeep.context.together[0], list[str]()
        spy(table, asked.append)
        for late in (False, True):
            if late:
                published_but_reserved(table)
            client.contended, client.wins = contended, 0
            client.listed_after = "9" * 17 if late else client.listed_after
            asked.clear()
            table.upsert(rows("a", v=1 + late))
            lists = [each for each in asked if each.startswith("list .hoodie/timeline/2")]
            assert len(lists) == late + (contended > 0)
    assert values(url) == judged(url) == {"a": 2, "b": 0}


def test_a_fence_that_is_missing_begins_no_upsert(url: str) -> None:
    """A snapshot of what it decided may lack what the fence before it did."""
    with Table(url) as table:
        table.append(rows("a"))
        client = table._upkeep.context.together[0]
        assert group_ahead._learned(client, NotModified()) is client.known is not None
        assert group_ahead._learned(client, Missing()) is None


def test_a_fence_before_which_decisions_are_unknown_begins_no_upsert() -> None:
    client, known = GroupClient(names=V6), GroupFence("a", "t", round=1)
    client.knows(known, "v1")
    for first, learns in ((2, False), (1, True)):
        fence = replace(known, round=2, first=first)
        found = group_ahead._learned(client, Found(format_group_fence(fence), "v2"))
        assert (found is not None) == (client.version == "v2") == learns


@pytest.mark.parametrize("write", ["append", "upsert"])
def test_a_writer_that_sees_another_commit_under_way_is_one_among_others(
    url: str, write: str
) -> None:
    with Table(url) as table:
        first = table.append(rows("a"))
        client = table._upkeep.context.together[0]
        pending = instant_of(instant_ms(first.instant) + 1)
        requested = names_at(url).requested(pending, "commit")
        run(prove_data({requested: b"another's"}), table.store, Clock())
        client.timeline = None
        client.ahead.clear()
        assert not client.contended
        getattr(table, write)(rows("b"))
        assert client.contended


@pytest.mark.parametrize(("idle", "others"), [(True, 1), (False, 1), (True, 0)])
def test_an_append_of_a_writer_that_was_idle_is_offered_beside_its_replacement_of_the_fence(
    url: str, idle: bool, others: int
) -> None:
    """It costs a request: so only if another commit is under way, and the writer is in no loop."""
    with Table(url) as table:
        first = table.append(rows("a"))
        client = table._upkeep.context.together[0]
        pending = names_at(url).requested(instant_of(instant_ms(first.instant) + 1), "commit")
        run(prove_data({pending: b"another's"} if others else {}), table.store, Clock())
        client.timeline, client.contended = None, 2
        client.acked_ms = -(10**9) if idle else 10**12
        client.ahead.clear()
        requests: list[str] = []
        spy(table, requests.append)
        table.append(rows("b"))
        offered = [each for each in requests if each.endswith(OFFERS)]
        assert bool(offered) == (idle and bool(others))
        assert f"put {FENCE_KEY}" in requests
        published(table)
    assert judged(url) == {"a": 0, "b": 0}


def test_an_append_among_others_reads_no_commit_to_compare_its_columns(url: str) -> None:
    """The fence names the table's columns, and decides no append with others."""
    with Table(url) as table, Table(url) as another:
        table.append(rows("a"))
        another.append(rows("b"))
        client = table._upkeep.context.together[0]
        client.timeline, client.contended = None, 3
        client.ahead.clear()
        published(another)
        asked: list[str] = []
        spy(table, asked.append)
        table.append(rows("c"))
        assert [each for each in asked if each.startswith("list .hoodie/timeline/2")]
        assert not [each for each in asked if each.startswith("get") and ".commit" in each]
    assert values(url) == judged(url) == dict.fromkeys("abc", 0)


def test_a_writer_whose_own_last_commit_is_not_published_yet_is_not_among_others(url: str) -> None:
    with Table(url) as table:
        mine = [table.append(rows(each)) for each in "ab"][-1]
        published_but_reserved(table)
        client = table._upkeep.context.together[0]
        for each in run(listing(names_at(url).folder + mine.instant), table.store, Clock()):
            if each.key.endswith(".commit"):
                run(delete(each.key), table.store, Clock())
        client.proven.clear()
        client.timeline = None
        client.ahead.clear()
        table.append(rows("c"))
        assert not client.contended


def test_a_conflict_is_reported_though_its_tombstone_cannot_be_written(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        one.upsert(rows("a"))
        published(one)
        met = list[str]()

        def before(request: str) -> None:
            if request == f"put {FENCE_KEY}" and not met:
                met.append(other.upsert(rows("a", v=1)).instant)
                published(other)
            if met and request.startswith("put") and request.endswith(".offer"):
                met.append(request)
                raise StoreError("denied")

        spy(one, before)
        with pytest.raises(CommitConflict, match="wrote a file group that this commit writes too"):
            one.upsert(rows("a", v=2))
        assert len(met) > 1
    assert values(url) == judged(url) == {"a": 1}


@pytest.mark.parametrize("later_ms", [EVERY_MS, -60_000], ids=["later", "clock put back"])
def test_a_busy_handle_reads_the_properties_again_after_a_while_and_refuses_what_has_changed(
    url: str, later_ms: int
) -> None:
    properties = Path(url.removeprefix("file://")) / PROPERTIES_KEY
    asked = list[str]()
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
        body = properties.read_bytes()
        assert b"urlencode=true" in body
        properties.write_bytes(body.replace(b"urlencode=true", b"urlencode=false"))
        (client,) = table._upkeep.context.together
        client.checked_ms -= later_ms
        spy(table, asked.append)
        with pytest.raises(TableError, match="the table changed under this commit"):
            table.append(rows("b"))
        table.append(rows("c"))
        asked.clear()
        table.append(rows("d"))
        assert not [each for each in asked if each.endswith(PROPERTIES_KEY)]
    assert values(url) == judged(url) == dict.fromkeys("acd", 0)


def test_an_upsert_without_a_listing_knows_how_many_requests_were_sent_before_it_began(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is carried over none of them: they may have had their effect before."""
    monkeypatch.setattr(group_process, "BUSY_MS", 600_000)
    with Table(url) as table:
        for v in range(3):
            table.upsert(rows("a", v=v))
            published(table)
        (client,) = table._upkeep.context.together
        before = client.process.sent
        table.upsert(rows("a", v=9))
        assert client.writing.only and client.writing.began == before > 0


class Standing(Clock):
    """A clock whose date stands still."""

    def wall_ms(self) -> int:
        return 1_800_000_000_000


@pytest.mark.parametrize("clock", [Clock(), Standing()], ids=["runs", "stands"])
@pytest.mark.parametrize("version", [9, 6])
def test_a_handle_alone_commits_after_writes_that_change_nothing(
    tmp_path: Path, version: int, clock: Clock
) -> None:
    """The instant that such a write gives up is not taken again, though the clock may still show
    it; and the fence that decides against it is no other writer's."""
    made = f"file://{tmp_path}/t"
    Table.create(made, **HOW, precombine="v", version=version).close()
    with Table(made, clock=clock) as table:
        dice, v, is_there = Random(2), 10, False
        for _ in range(40):
            match dice.choice(("upsert", "delete", "append", "late", "nobody")):
                case "upsert":
                    table.upsert(rows("a", v=(v := v + 1)))
                    is_there = True
                case "delete":
                    assert (table.delete(rows("a", v=v)) is not None) is is_there
                    is_there = False
                case "append":
                    table.append(rows("b"))
                case "late" if is_there:
                    assert table.upsert(rows("a", v=1)) is None
                case _:
                    assert table.delete(rows("z")) is None
            assert ("a" in table.read(columns=["id"])["id"].to_pylist()) is is_there
