"""`lockkit lock`: look at a table's lock, follow it, run a command under it, or break it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lockkit.cli import acquire, breaking, service_lock
from lockkit.cli.terminal import (
    FOUND,
    OK,
    add_store,
    clock_time,
    command,
    count,
    option,
    say,
    say_json,
    seconds,
    store_options,
    table,
    warn,
)
from lockkit.clock import Clock
from lockkit.errors import StoreError
from lockkit.events import plain
from lockkit.protocol.outcome import Found
from lockkit.protocol.record import Garbled

if TYPE_CHECKING:
    from lockkit.protocol.record import Record
    from lockkit.protocol.state import Observation
    from lockkit.stores import Store
    from lockkit.table.inspect.standing import LockHolder
    from lockkit.table.inspect.versions import Generation

NEWEST = 10
SHOW = """\
Shows who holds the table's lock, since when, until when and by which clock. If the bucket keeps
versions, it also shows the newest versions of the lock object. For a service's lock (zookeeper://,
dynamodb://, hive://, azure-lease://, filesystem://) it shows what the service reports. It only
reads. Exit 0: the lock is free, or its holder is in time; 1: the object is not a lock record, or
its holder missed its renewals (its lease is over, or its process has ended or is stopped); 2: a
service's lock is held, and one look does not show whether its holder is alive."""

SHOW_EXAMPLE = """\
lockkit lock show s3://bucket/table
lockkit lock show az://container/table --json"""

WATCH = """\
Prints a line for each change of the table's lock, until Ctrl-C. It only reads. Its reads are
conditional (304 if nothing changed), and no more frequent than the provider's limits allow."""

WATCH_EXAMPLE = "lockkit lock watch gs://bucket/table --json | tee lock.jsonl"


def add(commands: Any) -> None:
    about = "Shows a lock, follows its changes, runs a command under it, or breaks it."
    lock = command(commands, "lock", about=about, example=SHOW_EXAMPLE)
    verbs = lock.add_subparsers(title="commands", metavar="COMMAND", required=True)

    parser = command(
        verbs, "show", help="show the holder, and since when it holds the lock", about=SHOW,
        example=SHOW_EXAMPLE,
    )  # fmt: skip
    _add_common(parser)
    option(
        parser, "--newest", "N",
        f"how many versions of a table's lock to show (default {NEWEST})", kind=count,
    )  # fmt: skip
    parser.set_defaults(run=show, name="lock show")

    parser = command(
        verbs, "watch", help="print every change, as it happens", about=WATCH, example=WATCH_EXAMPLE
    )
    _add_common(parser)
    option(
        parser, "--interval-s", "S",
        "seconds between reads (default: the shortest that the provider allows)", kind=seconds,
    )  # fmt: skip
    parser.set_defaults(run=watch, name="lock watch")
    acquire.add(verbs)
    breaking.add(verbs)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL",
        help="URL of the table (s3://, gs://, az://, abfss://, file:///), or of a service's lock "
        "(see lockkit lock acquire --help)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="JSON, for programs")
    add_store(parser)
    parser.set_defaults(extra="s3,gcs,azure")


# --- show ----------------------------------------------------------------------------------------


def show(args: argparse.Namespace) -> int:
    if service_lock.is_service(args.url):
        return service_lock.show(args)
    from lockkit.cli.generations import opened, read_lock
    from lockkit.lock.handle import LOCK_KEY
    from lockkit.table.inspect.versions import generations, granted_ms, granted_words

    with opened(args.url, store_options(args)) as store:
        observation = read_lock(store)
        assert observation is not None  # only a conditional read can find the object unchanged
        grouped = _grouped(store)
        try:
            newest = NEWEST if args.newest is None else args.newest
            kept, untold = list(generations(store, newest=newest)), ""
        except StoreError as error:  # perhaps because these credentials may not list versions
            kept, untold = [], plain(error, limit=300)
    holder = _judged(observation)
    takeable_in_ms, takeable_by = _takeable(holder)
    if args.json:
        say_json(
            {"url": args.url, "key": LOCK_KEY, "state": holder.state, **_fields(observation.record)}
            | {"renews": holder.renews, "process_state": holder.process_state.value}
            | {"version": observation.version, "modified_ms": observation.modified_ms}
            | {"date_ms": observation.date_ms}
            | {"granted_ms": granted_ms(kept) if granted_words(kept) else None}
            | {"takeable_in_ms": takeable_in_ms, "takeable_by": takeable_by}
            | {"generations": [
                {"version": each.number.version, "modified_ms": each.number.modified_ms,
                 "deleted": each.number.deleted, **_fields(each.record)} for each in kept]}
            | ({"generations_error": untold} if untold else {})
            | ({"commit": "group"} if grouped else {})
        )  # fmt: skip
    else:
        say(
            f"{plain(args.url)} {LOCK_KEY}",
            *(f"  {line}" for line in _sentences(holder, kept)),
        )
        if grouped:
            from lockkit.table.inspect.words import NO_LOCK

            say(f"  {NO_LOCK}")
        rows = [_row(each.number.version, each.number.modified_ms, each.record) for each in kept]
        if len(rows) > 1:
            say("", *table(("version", "written", "epoch", "state", "by"), rows))
        if untold:
            say("", f"its earlier versions cannot be shown: {untold}")
    return FOUND if isinstance(observation.record, Garbled) or holder.missed else OK


def _grouped(store: Store) -> bool:
    """Whether the table has group commit; False if there is none, or it cannot be read."""
    from lockkit.errors import TableError
    from lockkit.table.format import property_keys as keys
    from lockkit.table.format.properties import PROPERTIES_KEY

    with suppress(StoreError, TableError):  # perhaps these credentials may read the lock alone
        found = store.get(PROPERTIES_KEY, limit=keys.PROPERTIES_BYTES_MAX)
        if isinstance(found, Found):
            return keys.parse_properties(found.body).get(keys.FENCE_FORMAT) in keys.GROUPED
    return False


def _judged(observation: Observation) -> LockHolder:
    """What this one look shows of the holder."""
    from lockkit.protocol.policy import Policy
    from lockkit.table.inspect.standing import judge

    wall_ms = Clock().wall_ms()
    return judge(observation, observation, watched_ms=0, wall_ms=wall_ms, policy=Policy())


def _takeable(holder: LockHolder) -> tuple[int | None, str]:
    """In how many ms any writer may take it, and by whose clock; None: never without a repair."""
    if holder.state in ("absent", "released", "garbled"):
        return None if holder.state == "garbled" else 0, ""
    left_ms, whose = holder.left.decides
    return max(0, left_ms), whose


def _sentences(holder: LockHolder, kept: Sequence[Generation] = ()) -> list[str]:
    """The content of the object, in words. `kept` shows when its holder got it."""
    from lockkit.table.inspect.versions import granted_words

    observation = holder.observation
    match observation.record:
        case None:
            return ["free: this table was never locked"]
        case Garbled(why):
            return [
                f"not a lock record: {plain(why)}; written {clock_time(observation.modified_ms)}",
                "no lockkit client will take it; find out what wrote it, then: lockkit lock break",
            ]
        case record:
            pass
    epoch = f"epoch {record.epoch}" if record.epoch else "no epoch (written by Hudi)"
    lines = [f"{holder.state}: {_by(record)}, {epoch}"]
    since, written = granted_words(kept), clock_time(observation.modified_ms)
    if holder.state == "released":
        lines.append(f"since    {written} (the store's clock)")
    elif since:
        lines.append(f"since    {since} (the store's clock)")
        if since.split(" or ")[0] != clock_time(kept[0].number.modified_ms):
            lines.append(f"renewed  {written} (the store's clock)")
    else:
        lines.append(f"written  {written} (the store's clock): its grant, or its last renewal")
    if holder.state != "released":
        from lockkit.table.inspect.words import process_fact

        facts = process_fact(holder.process_state)
        lines += [f"{name:8} {value}" for name, value in facts]
        if holder.renews is False:
            lines.append("renews   no: it missed several renewals")
        lines.append(f"until    {clock_time(record.valid_until_ms)} (the holder's clock)")
        left_ms, whose = _takeable(holder)
        left_s = (left_ms or 0) / 1000
        takeable = f"in {left_s:.1f} s, unless it is renewed" if left_s else "now"
        lines.append(f"takeable {takeable} ({whose})")
    return [*lines, f"version  {plain(observation.version)}"]


def _by(record: Record) -> str:
    return (
        f"{plain(record.owner, limit=60)} ({plain(record.holder, limit=120) or 'no description'})"
    )


def _row(version: str, modified_ms: int, record: Record | Garbled | None) -> tuple[object, ...]:
    match record:
        case None:
            return version, clock_time(modified_ms), 0, "deleted", ""
        case Garbled(why):
            return version, clock_time(modified_ms), 0, "no record", why
        case _:
            state = "released" if record.expired else "held"
            return version, clock_time(modified_ms), record.epoch, state, _by(record)


def _fields(record: Record | Garbled | None) -> dict[str, Any]:
    match record:
        case None:
            return {}
        case Garbled(why):
            return {"garbled": why}
        case _:
            return {
                "owner": record.owner, "holder": record.holder, "epoch": record.epoch,
                "expired": record.expired, "valid_until_ms": record.valid_until_ms,
                "ttl_ms": record.ttl_ms, "attempt": record.attempt,
            }  # fmt: skip


# --- watch ---------------------------------------------------------------------------------------


def watch(args: argparse.Namespace) -> int:
    if service_lock.is_service(args.url):
        return service_lock.watch(args)
    from lockkit.cli.generations import NoAnswerYet, opened, read_lock

    clock, silent = Clock(), False
    with opened(args.url, store_options(args)) as store:
        interval_s = max(args.interval_s or 0.0, store.capabilities.poll_min_s, 0.1)
        unless = None
        first = True
        while True:
            try:
                observation, silent = read_lock(store, unless), False
            except NoAnswerYet as error:
                if not silent:
                    warn(str(error))
                observation, silent = None, True
            # A missing object has no version to compare: report it only once.
            if observation is not None and (first or observation.version != unless):
                holder = _judged(observation)
                if args.json:
                    say_json(
                        {"at_ms": clock.wall_ms(), "state": holder.state}
                        | _fields(observation.record)
                        | {"version": observation.version, "modified_ms": observation.modified_ms}
                    )
                else:
                    say(f"{clock_time(clock.wall_ms())}  {_sentences(holder)[0]}")
                unless, first = observation.version, False
            clock.sleep(interval_s)
