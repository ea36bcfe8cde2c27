"""Group commit when its table is deleted or made again under a writer, or an instant is late."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_group_table import HOW, before_fence, in_child, judged, published, rows, spy, values

from lockkit.cli.main import main
from lockkit.table import CommitUnknown, NoTable, Table
from lockkit.table.errors import TableChanged
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group import ahead as group_ahead
from lockkit.table.occ.group import outcomes as group_outcomes


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW).close()
    return made


def folder(url: str) -> Path:
    return Path(url.removeprefix("file://"))


def deleted(url: str) -> None:
    """In one step: other requests of the writer are under way."""
    gone = folder(url).with_name("gone")
    folder(url).rename(gone)
    shutil.rmtree(gone)


def made_again(url: str, **how: Any) -> None:
    deleted(url)
    Table.create(url, **HOW | how).close()


def left(url: str) -> list[str]:
    return [str(each.relative_to(folder(url))) for each in folder(url).rglob("*")
            if each.is_file() and each.name != ".hoodie_partition_metadata"]  # fmt: skip


def test_an_append_whose_reserved_instant_is_late_takes_another_one_by_itself(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_ahead, "AHEAD_MS", 600_000)
    refused: list[str] = []
    done = threading.Semaphore(0)

    def tell(kind: str, **fields: Any) -> None:
        if kind == "refused":
            refused.append(fields["error"])
        elif kind == "published":
            done.release()

    with Table(url, emit=tell) as one, Table(url) as other:
        for each in "ab":
            one.append(rows(each))
            assert done.acquire(timeout=30)
        assert one._upkeep.context.together[0].ahead

        def meanwhile() -> None:
            other.append(rows("c"))
            published(other)

        before_fence(one, meanwhile)
        one.append(rows("d"))
    assert refused == ["LateInstant"]
    assert values(url) == judged(url) == dict.fromkeys("abcd", 0)
    timeline = folder(url) / ".hoodie/timeline"
    assert len(list(timeline.glob("*.commit.requested"))) == 4, "the late one is deleted"


@pytest.mark.parametrize("write", ["append", "upsert"])
@pytest.mark.parametrize("commits", [1, 2])
def test_a_table_that_is_deleted_under_a_commit_is_no_table(
    url: str, write: str, commits: int
) -> None:
    with Table(url) as table:
        for each in "ab"[:commits]:
            table.append(rows(each))
        published(table)
        before_fence(table, lambda: deleted(url))
        with pytest.raises(NoTable, match="deleted under this write"):
            getattr(table, write)(rows("c"))
    assert left(url) == []


def test_an_offer_stays_while_its_fence_is_missing(url: str) -> None:
    """Another client may have decided it by its name: then nothing else has what it says."""
    fence, timeline = folder(url) / FENCE_KEY, folder(url) / ".hoodie/timeline"
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        before_fence(one, lambda: other.append(rows("b")))
        store, kept = one.store, list[bytes]()

        class Missed:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def get(self, key: str, *given: Any, **how: Any) -> Any:
                if key == FENCE_KEY and not kept and list(timeline.glob("*.append")):
                    kept.append(fence.read_bytes())
                    fence.unlink()
                return store.get(key, *given, **how)

        one.store = one._upkeep.context.store = Missed()  # type: ignore[assignment]
        with pytest.raises(CommitUnknown):
            one.append(rows("c"))
        assert len(list(timeline.glob("*.append"))) == 1
        fence.write_bytes(kept[0])
    assert values(url).items() >= {"a": 0, "b": 0}.items()


def test_no_fence_is_made_where_a_small_commit_may_be_decided(url: str) -> None:
    def work() -> None:
        table, held = Table(url), threading.Event()

        def before(request: str) -> None:
            if request.endswith(".commit"):
                held.wait()

        spy(table, before)
        table.append(rows("a"))
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(in_child(work), 0)
    (folder(url) / FENCE_KEY).unlink()
    for mode in ("group", "fenced"):
        assert main(["table", "mode", url, mode, "--yes"]) == 3
    assert not (folder(url) / FENCE_KEY).exists()


def test_without_an_answer_to_the_decision_a_deleted_table_leaves_it_unknown(url: str) -> None:
    from lockkit.protocol.outcome import Unknown

    with Table(url) as table:
        table.append(rows("a"))
        published(table)
        store = table.store

        class Silent:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def put(self, key: str, *given: Any, **how: Any) -> Any:
                if key == FENCE_KEY:
                    deleted(url)
                    return Unknown("no answer")
                return store.put(key, *given, **how)

        table.store = table._upkeep.context.store = Silent()  # type: ignore[assignment]
        with pytest.raises(CommitUnknown):
            table.append(rows("b"))


@pytest.mark.parametrize("write", ["append", "upsert"])
@pytest.mark.parametrize("commits", [0, 1, 2])
@pytest.mark.parametrize("version", [9, 6])
def test_a_writer_commits_nothing_to_a_table_that_was_made_in_the_place_of_its_own(
    url: str, write: str, commits: int, version: int
) -> None:
    with Table(url) as table:
        for each in "ab"[:commits]:
            table.append(rows(each))
        published(table)
        if not commits:
            table.refresh()
        before_fence(table, lambda: made_again(url, version=version))
        with pytest.raises(TableChanged, match="another table's"):
            getattr(table, write)(rows("c"))
        table.append(rows("d"))
    assert values(url) == judged(url) == {"d": 0}


def publish_late(url: str, meanwhile: Callable[[], object]) -> tuple[list[str], str]:
    """A commit whose publisher pauses; `meanwhile` runs before it goes on."""
    notes: list[str] = []
    go_on = threading.Event()

    def tell(kind: str, **fields: Any) -> None:
        if fields.get("table_gone"):
            notes.append(fields["text"])

    with Table(url, emit=tell) as table:
        table.append(rows("a"))
        published(table)

        def paused(request: str) -> None:
            if threading.current_thread().name.startswith("lockkit-publish"):
                go_on.wait(30)

        client = table._upkeep.context.together[0]
        spy(table, paused)
        client.trip_ms = 5
        done = table.append(rows("b"))
        client.knew_ms -= 60_000
        meanwhile()
        go_on.set()
    return notes, done.instant


@pytest.mark.parametrize("how", [{}, {"mode": "hudi", "commit": "serial"}], ids=["", "unfenced"])
def test_what_was_decided_before_its_table_was_deleted_is_not_published_into_the_next_one(
    url: str, how: dict[str, Any]
) -> None:
    notes, instant = publish_late(url, lambda: made_again(url, **how))
    assert len(notes) == 1 and instant in notes[0]
    assert values(url) == {}
    assert not [each for each in left(url) if instant in each]


def test_what_is_published_into_a_table_that_was_made_a_moment_ago_is_deleted_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_outcomes, "SURE_MS", 600_000)
    notes, instant = publish_late(url, lambda: made_again(url))
    assert len(notes) == 1 and instant in notes[0]
    assert not [each for each in left(url) if instant in each]
    with Table(url) as table:
        table.append(rows("c"))
    assert values(url) == judged(url) == {"c": 0}


def test_in_a_table_made_anew_no_decision_counts_as_published_because_one_of_the_old_table_was(
    url: str,
) -> None:
    """The handle goes on while its publisher's request for the old table is under way."""
    arrived, go_on = threading.Event(), threading.Event()
    with Table(url) as table:
        store = table.store
        for each in "ab":
            table.append(rows(each))
            published(table)

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def put(self, key: str, *given: Any, **how: Any) -> Any:
                if key.endswith(".commit") and not arrived.is_set():
                    arrived.set()
                    go_on.wait(30)
                return store.put(key, *given, **how)

        table.store = table._upkeep.context.store = Slow()  # type: ignore[assignment]
        table.append(rows("c"))
        assert arrived.wait(30)
        made_again(url)
        with pytest.raises(TableChanged, match="another table's"):
            table.append(rows("x"))
        table.append(rows("d"))
        go_on.set()
        for each in "efgh":
            published(table)
            table.append(rows(each))
    assert values(url) == judged(url) == dict.fromkeys("defgh", 0)


def test_a_publisher_says_that_the_table_is_gone(url: str) -> None:
    notes, _ = publish_late(url, lambda: deleted(url))
    assert len(notes) == 1 and not left(url)


def commits(url: str) -> int:
    return len(list((folder(url) / ".hoodie").rglob("*.commit")))


def test_a_fence_that_is_missing_before_its_commit_is_published_costs_no_commit(url: str) -> None:
    fence, aside = folder(url) / FENCE_KEY, folder(url) / "aside"
    notes, _ = publish_late(url, lambda: fence.rename(aside))
    aside.rename(fence)
    assert not notes and commits(url) == 2
    assert values(url) == judged(url) == {"a": 0, "b": 0}


def test_a_fence_that_is_missing_after_its_commits_were_published_costs_none_of_them(
    url: str,
) -> None:
    """The error of a missing fence says to put it back. The publisher looks in the meantime."""
    fence, aside = folder(url) / FENCE_KEY, folder(url) / "aside"

    def vanish(request: str) -> None:
        if request == f"get {FENCE_KEY}" and commits(url) == 3 and fence.exists():
            fence.rename(aside)

    with Table(url) as table:
        table.append(rows("a"))
        published(table)
        table.append(rows("b"))
        published(table)
        spy(table, vanish)
        table.append(rows("c"))
        published(table)
    assert aside.exists(), "the publisher looked while the fence was there"
    aside.rename(fence)
    assert commits(url) == 3
    assert values(url) == judged(url) == {"a": 0, "b": 0, "c": 0}
