"""`lockkit incident`: what stands at a table, which known pattern it is, and what to do."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.commands.terminal import (
    FOUND,
    OK,
    UNKNOWN,
    USAGE,
    Trouble,
    add_store,
    clock_time,
    command,
    say,
    say_json,
    store_options,
)
from lockkit.history import KINDS, Event, plain

if TYPE_CHECKING:
    from lockkit.incident.audit import Audit, Validation
    from lockkit.incident.diagnosis import Diagnosis
    from lockkit.incident.patterns import Card
    from lockkit.incident.standing import Holder, Standing
    from lockkit.stores import Store

ABOUT = """\
For a table in trouble: who owns its lock, until when by whose clock, whether it is renewed and may
be broken; what is pending, dead or left beside it; and which known pattern the lock object's
generations and Hudi's audit log show, with the evidence and a card: what to do, and what not. Reads
only. Takes recorded histories and Hudi's audit files too. Exit 0: nothing to be seen, 1: a pattern
is named or something was left, 2: a history that shows no known pattern."""

EXAMPLE = """\
lockkit incident s3://bucket/table
lockkit incident datasets/incidents/hudi-14373-renewal-retried.jsonl --json"""

NEWEST = 200
EVIDENCE_MAX = 8


def add(commands: Any) -> None:
    parser = command(
        commands, "incident", help="what is wrong here, and what to do", about=ABOUT,
        example=EXAMPLE,
    )  # fmt: skip
    parser.add_argument(
        "source", nargs="+", metavar="URL|FILE", help="a table; or histories, Hudi's audit files"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument(
        "--watch-s", type=float, default=3.0, metavar="S", help="between two looks (default 3)"
    )
    add_store(parser)
    parser.set_defaults(run=run, name="incident", extra="s3,gcs,azure")


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.watch_s <= 3600:
        raise Trouble("--watch-s must be a number of seconds from 0 to 3600", code=USAGE)
    if "://" in args.source[0]:
        if len(args.source) > 1:
            raise Trouble("one URL at a time", code=USAGE)
        return _of_table(args)
    return _of_files(args)


# --- a table -------------------------------------------------------------------------------------


def _of_table(args: argparse.Namespace) -> int:
    from lockkit.commands.generations import opened
    from lockkit.drive import run as carry_out
    from lockkit.incident.audit import load_audits, validate
    from lockkit.incident.diagnosis import diagnose
    from lockkit.incident.standing import stand

    with opened(args.source[0], store_options(args)) as store:
        standing = carry_out(stand(watch_s=args.watch_s), store, Clock())
        history, kept, trouble = _generations(store)
        audits = carry_out(load_audits(), store, Clock())
    events = [*history, *(each for audit in audits for each in audit.events)]
    found = diagnose(sorted(events, key=lambda each: each.at_ms))
    said = validate(audits) if audits else None
    if args.json:
        say_json(_as_json(standing, kept, said, found, args.source[0]))
    else:
        say(f"{plain(args.source[0])}", *(f"  {line}" for line in lock_lines(standing.holder)))
        say(*_table_lines(standing), f"  {kept} generations of the lock object are kept{trouble}")
        say(*_audit_lines(said))
        say(*_diagnosis_lines(found, args.source[0]))
    return FOUND if found.evidence or _is_left(standing) else OK


def _generations(store: Store) -> tuple[list[Event], int, str]:
    """As events; a reader may not be allowed to list versions."""
    from lockkit.incident.versions import as_events, generations
    from lockkit.lock import LOCK_KEY
    from lockkit.stores import StoreError

    try:
        kept = generations(store, newest=NEWEST)
    except StoreError as error:
        return [], 0, f" ({plain(error, limit=200)})"
    return as_events(LOCK_KEY, kept), len(kept), ""


def _is_left(standing: Standing) -> bool:
    from lockkit.commands.pending import is_left

    table = standing.table
    if standing.holder.state in ("overdue", "garbled"):
        return True
    return table is not None and bool(
        table.dead_heartbeats or table.left_markers or any(map(is_left, table.condition.pending))
    )


def lock_lines(holder: Holder) -> list[str]:
    from lockkit.record import Record

    record = holder.sight.record
    if not isinstance(record, Record) or holder.state == "released":
        return [f"{holder.state}: {holder.why}"]
    epoch = f"epoch {record.epoch}" if record.epoch else "no epoch (written by Hudi)"
    who = f"{plain(record.owner, limit=60)} ({plain(record.holder, limit=100) or 'no description'})"
    left = holder.left
    clocks = (
        ("this machine's clock", left.ours_ms), ("the store's clock", left.store_ms),
        ("watching it for a whole lease", left.observed_ms),
    )  # fmt: skip
    ends = (f"{_seconds(ms)} by {whose}" for whose, ms in clocks if ms is not None)
    renews = {True: "yes", False: "no: it missed several renewals", None: "not seen"}[holder.renews]
    return [
        f"{holder.state}: {who}, {epoch}",
        f"since    {clock_time(holder.sight.modified_ms)} (the store's clock)",
        f"until    {clock_time(record.valid_until_ms)} (the holder's clock)",
        f"left     {', '.join(ends)}",
        f"renewed  {renews} (watched for {holder.watched_ms / 1000:.1f} s)",
        f"break    {'yes' if holder.breakable else 'no'}: {holder.why}",
        f"version  {plain(holder.sight.version)}",
    ]


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms > 0 else f"over for {-ms / 1000:.1f} s"


def _table_lines(standing: Standing) -> list[str]:
    from lockkit.commands.pending import pending_lines

    table = standing.table
    if table is None:
        return [f"  no table to be read: {plain(standing.trouble)}"]
    found = table.condition
    lines = [f"  {len(found.timeline.completed)} completed instants, {len(found.pending)} pending"]
    if found.fence:
        head = found.fence.head
        lines.append(f"  fence: {head.kind} {head.instant}, epoch {found.fence.epoch}")
    if found.pending:
        lines += [f"  {line}" for line in pending_lines(found.pending)]
    for what, instants in (
        ("dead heartbeats", table.dead_heartbeats), ("leftover markers", table.left_markers)
    ):  # fmt: skip
        if instants:
            lines.append(f"  {what}: {plain(', '.join(instants))}")
    return lines


def _audit_lines(said: Validation | None) -> list[str]:
    if said is None:
        return []
    head = f"  Hudi's audit log: {said.outcome}, {said.files} files, {said.skipped} lines skipped"
    return [head, *(f"    {plain(each)}" for each in said.findings[:EVIDENCE_MAX])]


def _as_json(
    standing: Standing, kept: int, said: Validation | None, found: Diagnosis, url: str
) -> dict[str, Any]:
    from lockkit.commands.pending import is_left
    from lockkit.record import Record

    holder, table = standing.holder, standing.table
    record = holder.sight.record
    held = isinstance(record, Record)
    return {
        "url": url, "state": holder.state,
        "owner": record.owner if isinstance(record, Record) else None,
        "epoch": record.epoch if isinstance(record, Record) else None,
        "valid_until_ms": record.valid_until_ms if isinstance(record, Record) else None,
        "version": holder.sight.version, "since_ms": holder.sight.modified_ms,
        "left_ms": {"ours": holder.left.ours_ms, "store": holder.left.store_ms,
                    "observed": holder.left.observed_ms} if held else None,
        "renews": holder.renews, "breakable": holder.breakable, "why": holder.why,
        "generations": kept, "trouble": standing.trouble,
        "table": None if table is None else {
            "completed": len(table.condition.timeline.completed),
            "fence_epoch": table.condition.fence.epoch if table.condition.fence else None,
            "pending": [{"instant": each.instant, "action": each.action, "left": is_left(each)}
                        for each in table.condition.pending],
            "dead_heartbeats": list(table.dead_heartbeats),
            "left_markers": list(table.left_markers)},
        "audit": None if said is None else {"outcome": said.outcome, "findings": said.findings,
                                            "files": said.files, "skipped": said.skipped},
        **_found_json(found, url),
    }  # fmt: skip


# --- files ---------------------------------------------------------------------------------------


def _of_files(args: argparse.Namespace) -> int:
    from lockkit.commands.check import events as recorded
    from lockkit.incident.audit import validate
    from lockkit.incident.diagnosis import diagnose

    events: list[Event] = []
    audits: list[Audit] = []
    for name in args.source:
        audit = _audit_of(name)
        if audit is not None:
            audits.append(audit)
            events += audit.events
        else:
            events += recorded(name)
    if len(args.source) > 1:
        events.sort(key=lambda each: each.at_ms)
    found = diagnose(events)
    said = validate(audits) if audits else None
    if args.json:
        audit_json = None if said is None else {"outcome": said.outcome, "findings": said.findings}
        say_json({"audit": audit_json} | _found_json(found, "URL"))
    else:
        say(*_audit_lines(said), *_diagnosis_lines(found, "URL"))
    return FOUND if found.evidence else UNKNOWN


def _audit_of(name: str) -> Audit | None:
    """A file as Hudi's audit log; None if its first line is not of one."""
    from lockkit.incident.audit import FILE_BYTES_MAX, is_audit, parse_audit

    try:
        with Path(name).open("rb") as file:
            body = file.read(FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return None  # whoever reads it as a history says what is wrong with it
    return parse_audit(body) if is_audit(body.partition("\n")[0]) else None


# --- the diagnosis -------------------------------------------------------------------------------


def _card(found: Diagnosis, url: str) -> tuple[Card, str]:
    return found.card, found.card.command.format(url=shlex.quote(url))


def _found_json(found: Diagnosis, url: str) -> dict[str, Any]:
    card, line = _card(found, url)
    return {"diagnosis": found.to_json(), "do": card.do, "dont": card.dont, "command": line}


def _diagnosis_lines(found: Diagnosis, url: str) -> Sequence[str]:
    card, line = _card(found, url)
    lines = ["", f"{found.pattern}: {plain(found.because, limit=1000)}"]
    for each in found.evidence[:EVIDENCE_MAX]:
        fields = " ".join(
            f"{name}={plain(each.get(name), limit=60)}"
            for name in KINDS[each.kind] if each.get(name) not in ("", None)
        )  # fmt: skip
        who = plain(each.who, limit=20)
        lines.append(f"  {clock_time(each.at_ms)}  {who}  {each.kind}  {fields}")
    lines += [f"also: {each.pattern}: {plain(each.because, limit=300)}" for each in found.also]
    return [*lines, "", f"do       {card.do}", f"don't    {card.dont}", f"run      {plain(line)}"]
