"""Instants that arrive late, or that a wrong clock took: nothing is lost, nobody is blocked."""

from __future__ import annotations

import warnings
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from table_world import CLOCK, new_table, rows

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import TableError, Unanswered
from lockkit.lock.oddities import ClockSkew
from lockkit.protocol.outcome import Applied, IfAbsent, Unknown
from lockkit.runtime import Procedure, run
from lockkit.stores import Store
from lockkit.table import (
    Table,
    TableConfig,
    begin,
    load_increment,
    read_table,
)
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import TimelineNames, instant_ms, load_timeline
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.rollback import withdraw
from lockkit.table.occ.transaction import TableCache, TakenInstant, survey, take
from lockkit.table.services.upkeep import WHOLE_EVERY_MS

NUMBERS = count()
DAYS_MS = 3 * 24 * 3_600_000
VERSIONS = pytest.mark.parametrize("version", [6, 9])


def table(version: int, url: str = "") -> tuple[Store, TableConfig, str]:
    config = TableConfig(
        name="orders", record_key="id", partition_by="region", precombine="at", version=version
    )
    url = url or f"memory://out-of-order-{next(NUMBERS)}/t"
    return new_table(url, config), config, url


def known_of(store: Store) -> TableCache:
    return TableCache(*run(load_config(), store, CLOCK))


def pending(store: Store, names: TimelineNames) -> list[str]:
    return list(run(load_timeline(names), store, CLOCK).pending)


def keys(store: Store) -> list[str]:
    return sorted(read_table(store)["id"].to_pylist())


def pass_by(instant: str) -> None:
    """Until the clock has passed it: two instants that are asked for at one time are one."""
    while CLOCK.wall_ms() <= instant_ms(instant):
        pass


class Jumping(Clock):
    """Real time, and a jump on all of its clocks."""

    def boot_ms(self) -> int:
        return super().boot_ms() + self.offset_ms


class Late:
    """A store in which creations of requested files are under way until `land`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._under_way: dict[str, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, body: bytes, condition: Any) -> Any:
        if not key.endswith(".requested"):
            return self._store.put(key, body, condition)
        self._under_way[key] = body
        return Unknown("under way")

    def land(self) -> None:
        for key, body in self._under_way.items():
            assert isinstance(self._store.put(key, body, IfAbsent()), Applied)


@VERSIONS
def test_a_request_that_lands_below_the_horizon_of_others_is_of_no_use_and_is_rolled_back(
    version: int,
) -> None:
    """Other writers list what is later than their horizon, and do not see it.

    In version 6 a reader of increments waited for it for ever.
    """
    store, config, url = table(version)
    clock, late, tried = Jumping(), Late(store), list[TakenInstant]()

    def keep(taken: TakenInstant) -> Procedure[bool]:
        yield from ()
        tried.append(taken)
        return True

    with Table(url, clock=clock) as warm:
        pass_by(warm.append(rows([0])).instant)
        with pytest.raises(Unanswered):
            run(take(known_of(store), trying=keep), late, CLOCK)
        pass_by(tried[-1].instant)
        middle = warm.append(rows([1]))
        warm.append(rows([2]))
        late.land()
        slow = tried[-1]
        assert slow.instant < middle.instant and pending(store, config.names) == [slow.instant]
        assert run(survey(slow), store, CLOCK)[0] is None, "its writer could not use it"
        newest = warm.append(rows([3]))
        assert keys(store) == ["k0", "k1", "k2", "k3"]
        held = run(load_increment(), store, CLOCK).held_back
        assert (held and held.instant) == (slow.instant if version == 6 else None)
        since = run(load_increment(middle.completion or middle.instant), store, CLOCK)
        assert since.held_back is None, "it cannot complete any more"
        assert since.end == (newest.completion or newest.instant)
        clock.offset_ms = warm.store._clock.offset_ms = WHOLE_EVERY_MS + 1  # type: ignore[attr-defined]
        last = warm.append(rows([4]))
        assert pending(store, config.names) == []
    whole = run(load_increment(), store, CLOCK)
    assert (whole.end, whole.held_back) == (last.completion or last.instant, None)
    assert keys(store) == ["k0", "k1", "k2", "k3", "k4"]


# --- a clock that is days ahead ------------------------------------------------------------------


def append(url: str, number: int, ahead_ms: int = 0) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClockSkew)
        with Table(url, clock=Clock(ahead_ms)) as writer:
            return writer.append(rows([number])).instant


@VERSIONS
def test_after_a_commit_days_ahead_writes_continue_once_its_instant_is_accepted(
    tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store, config, url = table(version, f"file://{tmp_path}/t")
    append(url, 0)
    wrong = append(url, 1, ahead_ms=DAYS_MS)
    with pytest.raises(TableError, match=f"{wrong} .* 7[12] hours ahead.*accept-instant") as raised:
        append(url, 2)
    assert pending(store, config.names) == []
    line = str(raised.value).partition("the instant: lockkit ")[2].replace("URL", url).split()
    assert main(line) == 0
    assert f"commit {wrong}" in capsys.readouterr().out
    with pytest.raises(TableError, match="hours ahead"):
        append(url, 2)
    assert main([*line[:-1], wrong[:-3] + "999", "--yes"]) == 3
    with Table(url) as warm:
        with pytest.raises(TableError, match="hours ahead"):
            warm.append(rows([2]))
        assert main([*line, "--yes"]) == 0
        assert warm.append(rows([2])).instant > wrong
    for number in (3, 4):
        append(url, number)
    assert keys(store) == ["k0", "k1", "k2", "k3", "k4"]
    assert main([*line, "--yes"]) == 0
    assert capsys.readouterr().out.endswith("nothing to accept\n")
    further = append(url, 5, ahead_ms=3 * DAYS_MS)
    with pytest.raises(TableError, match=f"{further} .* 21[56] hours ahead"):
        append(url, 6)


@VERSIONS
def test_a_rollback_with_an_instant_days_ahead_can_be_accepted(
    tmp_path: Path, version: int
) -> None:
    """Its writer was refused, and took its own instant back by its own clock."""
    store, _config, url = table(version, f"file://{tmp_path}/t")
    append(url, 0)
    ahead = Clock(DAYS_MS)
    run(withdraw(run(begin(), store, ahead).taken, EpochGuard(0)), store, ahead)
    with pytest.raises(TableError, match="accept-instant URL") as raised:
        append(url, 1)
    line = str(raised.value).partition("the instant: lockkit ")[2].replace("URL", url).split()
    assert main([*line, "--yes"]) == 0
    append(url, 1)
    assert keys(store) == ["k0", "k1"]


@VERSIONS
def test_a_dead_writer_with_an_instant_days_ahead_is_rolled_back_and_blocks_no_writer(
    version: int,
) -> None:
    store, config, url = table(version)
    wrong = run(begin(), store, Clock(DAYS_MS)).instant
    clock = Jumping()
    with Table(url, clock=clock) as writer:
        writer.append(rows([0]))
        assert pending(store, config.names) == [wrong], "it may live"
        clock.offset_ms = writer.store._clock.offset_ms = 600_000  # type: ignore[attr-defined]
        writer.append(rows([1]))
        assert pending(store, config.names) == []
        newest = run(load_timeline(config.names), store, CLOCK).latest
        assert instant_ms(newest) < CLOCK.wall_ms() + 3_600_000, "nothing is left ahead"
        writer.append(rows([2]))
    assert keys(store) == ["k0", "k1", "k2"]
