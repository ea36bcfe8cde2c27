"""The conformance of a store: how its conditional writes behave, against its documentation.

Three kinds of store give a lock no exclusion: one that refuses conditions (501), one that ignores
them (200), and one that honours them but checks and writes in two steps. The first two show in a
dozen sequential requests; the last only in races, and then only by chance: races can prove a
store unsafe, never safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, StoreError
from lockkit.lab.probe.nodes import across
from lockkit.lab.probe.parts import joined, resumable, summary
from lockkit.lab.probe.race import joined_race, races
from lockkit.lab.probe.report import Check, CheckOutcome, Report, Suitability, report
from lockkit.lab.probe.serial import SERIAL, conditions, delete, put
from lockkit.protocol.outcome import Applied, IfAbsent, Unknown
from lockkit.runtime import Procedure, run
from lockkit.sinks import Emit, silent
from lockkit.stores import Store

__all__ = ["Check", "CheckOutcome", "Report", "Suitability", "probe", "quick_probe"]

SCRATCH = ".lockkit_probe"
ROUNDS_MAX = 100_000
RACERS_MIN, RACERS_MAX = 2, 256
"""One writer is no race."""


def quick_probe(store: Store) -> Report:
    """Whether `store` obeys conditions: six requests (more only if it throttles).

    Says nothing about atomicity, so the verdict is never `FULL`. Raises `StoreError`, as `probe`
    does, if even a read fails: no bucket, no credentials, no such host, no answer. That is no
    verdict on the store.

    :param store: the store to test.
    """
    clock = Clock()
    place = f"{SCRATCH}/{clock.unique()}"
    _probe_access(store, f"{place}/nothing")
    checks = _guarded("create", conditions(f"{place}/quick"), store, clock)
    return report(store.url, checks, getattr(store, "refusals", {}))


def probe(
    store: Store,
    *,
    rounds: int = 50,
    racers: int = 16,
    also: Sequence[Store] = (),
    clock: Clock | None = None,
    emit: Emit = silent,
) -> Report:
    """Check everything that a lock depends on, with scratch keys that are deleted afterwards.

    `also` are other ways to the same place (the other nodes of a cluster): the racers are spread
    over them, because some are atomic only per node (RustFS #1659). Raises `ValueError` for
    numbers of `rounds` or `racers` that would test nothing, or too much.

    :param store: the store to test.
    :param rounds: of each race.
    :param racers: clients in each race.
    :param also: other ways to the same place.
    :param clock: the source of time; tests replace it.
    :param emit: called with each event.
    """
    _refuse_outside("rounds", rounds, 1, ROUNDS_MAX, "races of each kind")
    least = max(RACERS_MIN, 1 + len(also))  # each address is tried
    _refuse_outside("racers", racers, least, RACERS_MAX, "writers in each race")
    clock = clock or Clock()
    place = f"{SCRATCH}/{clock.unique()}"
    for way in (store, *also):  # a node that is down would lose each race, and seem safe
        _probe_access(way, f"{place}/nothing")
    checks: list[Check] = []
    try:
        emit("note", text=f"probing {store.url}: one request after another")
        checks += _guarded("create", conditions(f"{place}/conditions"), store, clock)
        if not _fatal(checks):
            for name, procedure in SERIAL.items():
                checks += _guarded(name, procedure(f"{place}/{name}"), store, clock)
            checks.append(_listing(store, place, clock))
            emit("note", text=f"racing {racers} clients, {rounds} rounds of each kind")
            checks += races(store, place, rounds, racers, also, clock)
            if also:
                checks.append(across((store, *also), place, rounds, clock))
            checks += _multipart(store, place, rounds, racers, also, clock)
    except NoAnswer as error:
        checks.append(Check("create-race", CheckOutcome.UNDECIDED, str(error)))
    except StoreError as error:
        checks.append(Check("create-race", CheckOutcome.FAILED, str(error), {"refused": True}))
    finally:
        checks.append(_cleaned(store, place, clock))
    return report(store.url, checks, getattr(store, "refusals", {}))


def _refuse_outside(name: str, value: int, least: int, most: int, what: str) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is the number of {what}, from {least} to {most}; not {value}")


def _probe_access(store: Store, key: str) -> None:
    match store.get(key):
        case Unknown(why):
            raise NoAnswer(
                f"{store.url} could not be reached: {why}; check the endpoint, or try again"
            )


def _guarded(
    name: str, procedure: Procedure[list[Check]], store: Store, clock: Clock
) -> list[Check]:
    """Run the procedure's checks; a refusal of all requests is a finding too."""
    try:
        return run(procedure, store, clock)
    except NoAnswer as error:
        return [Check(name, CheckOutcome.UNDECIDED, str(error))]
    except StoreError as error:
        if name == "delete":
            because = f"a conditional delete is refused (no lock here relies on it): {error}"
            return [Check(name, CheckOutcome.NOTED, because)]
        return [Check(name, CheckOutcome.FAILED, str(error), {"refused": True})]


def _multipart(
    store: Store, place: str, rounds: int, racers: int, also: Sequence[Store], clock: Clock
) -> list[Check]:
    """Objects that are joined from parts. A third of the rounds: each takes three requests."""
    client = joined(store)
    if client is None:
        return []
    with closing(client):
        found = summary(_guarded("create", conditions(f"{place}/multipart"), client, clock))
    checks = [found]
    if found.finding is CheckOutcome.PASSED:
        checks.append(joined_race(store, place, max(1, rounds // 3), racers, also))
    if store.capabilities.name == "gcs":
        checks.append(resumable(store, f"{place}/resumable"))
    return checks


def _listing(store: Store, place: str, clock: Clock) -> Check:
    """A listing must show objects written before it, and must not show deleted ones."""
    keys = [f"{place}/listing/{number}" for number in range(3)]
    for key in keys:
        run(put(key, b"x", IfAbsent()), store, clock)
    run(delete(keys[1]), store, clock)
    try:
        seen = [entry.key for entry in store.list(f"{place}/listing/")]
    except StoreError as error:
        return Check("list", CheckOutcome.UNDECIDED, str(error))
    if seen == [keys[0], keys[2]]:
        return Check("list", CheckOutcome.PASSED, "a listing shows each write and delete before it")
    because = "a listing lags behind the writes and deletes before it"
    return Check("list", CheckOutcome.FAILED, because, {"expected": 2, "seen": len(seen)})


def _cleaned(store: Store, place: str, clock: Clock) -> Check:
    """Delete every scratch object, and report those that remain."""
    left: list[str] = []
    try:
        for entry in store.list(f"{place}/"):
            answer = run(delete(entry.key), store, clock)
            if not isinstance(answer, Applied):
                left.append(entry.key)
        left += [entry.key for entry in store.list(f"{place}/") if entry.key not in left]
    except StoreError as error:
        because = f"could not clean up under {place}/, delete it by hand: {error}"
        return Check("clean-up", CheckOutcome.NOTED, because)
    if left:
        because = f"{len(left)} scratch objects could not be deleted; delete {place}/ by hand"
        return Check("clean-up", CheckOutcome.NOTED, because, {"left": left[:10]})
    try:
        kept = len(store.versions(f"{place}/conditions"))
    except StoreError:
        kept = 0
    if kept:
        because = (
            f"all deleted; the bucket keeps their old versions under {place}/ by its own rules"
        )
        return Check("clean-up", CheckOutcome.NOTED, because)
    return Check("clean-up", CheckOutcome.PASSED, "nothing was left behind")


def _fatal(checks: Sequence[Check]) -> bool:
    return any(check.finding in (CheckOutcome.FAILED, CheckOutcome.UNDECIDED) for check in checks)
