"""`lockkit incident`: a table's state, the known pattern, and what to do."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockkit.cli.service_lock import holder_fields, holder_lines, is_service
from lockkit.cli.service_lock import opened as opened_service
from lockkit.cli.shipped import located
from lockkit.cli.terminal import (
    FOUND,
    OK,
    UNKNOWN,
    USAGE,
    CommandError,
    add_store,
    command,
    option,
    say,
    say_json,
    store_options,
    warn,
)
from lockkit.cli.terminal import flags_of as store_flags_of
from lockkit.clock import Clock
from lockkit.events import plain
from lockkit.lab.incident.diagnosis import diagnose
from lockkit.lab.incident.patterns import SIMULATED, UNJUDGED
from lockkit.lab.incident.words import audit_facts, command_of, proof
from lockkit.lab.widgets.links import link
from lockkit.protocol.record import Record
from lockkit.runtime import run as run_procedure
from lockkit.runtime.proven import read
from lockkit.stores.within import within
from lockkit.table.inspect.words import is_left, lock_lines, table_facts

if TYPE_CHECKING:
    from lockkit.lab.incident.audit import Validation
    from lockkit.lab.incident.diagnosis import Diagnosis
    from lockkit.lab.incident.dropped import Evidence
    from lockkit.lab.incident.examine import Examination
    from lockkit.lab.incident.service import ServiceExamination
    from lockkit.stores import Store
    from lockkit.table.inspect.standing import LockInspection

ABOUT = """\
Examines a table in trouble, and only reads. It shows who holds the lock, until when and by which
clock, whether the lease is renewed and whether the lock may be broken. It lists pending instants,
dead writers and leftover files. It compares the versions of the lock object and Hudi's audit log
with known patterns, and prints the pattern with its evidence, what to do, and what not to do. It
reads files too, alone or after a URL: recorded histories, Hudi's audit files, listings of a
bucket's versions (S3, GCS, Azure), debug logs of boto3, google-cloud-storage and
azure-storage-blob, and the stores' own logs (CloudTrail and server access logs of S3, audit logs
of Google Cloud, resource logs of Azure). They may be compressed by gzip.
The lock of a service
(zookeeper://, dynamodb://, hive://, azure-lease://, filesystem://) or of a Terraform state
(.../NAME.tfstate) is read twice. The result names its holder and the holder's process, and says
whether the holder is alive.
Exit 0: healthy; 1: a known pattern (a holder that missed its renewals is one), or something that a
writer left behind; 2: unknown. Files show no known pattern, the table cannot be judged, or a
service's lock was not watched for long enough."""

EXAMPLE = """\
lockkit incident s3://bucket/table
lockkit incident datasets/incidents/hudi-14373-renewal-retried.jsonl --json
lockkit incident s3://bucket/table boto3-debug.log .hoodie/.locks/audit/*.jsonl"""

EVIDENCE_MAX = 8


def add(commands: Any) -> None:
    parser = command(commands, "incident", about=ABOUT, example=EXAMPLE)
    parser.add_argument(
        "source", nargs="+", metavar="URL|FILE",
        help="URL of a table or of a service's lock, then histories, audit files, listings or logs",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    option(parser, "--watch-s", "S", "how long to watch the lock", 3.0)
    add_store(parser)
    parser.set_defaults(run=run, name="incident", extra="s3,gcs,azure")


def run(args: argparse.Namespace) -> int:
    from lockkit.lab.incident.dropped import NotUnderstood

    if not 0 <= args.watch_s <= 3600:
        raise CommandError("--watch-s must be a number of seconds from 0 to 3600", code=USAGE)
    if any("://" in each for each in args.source[1:]):
        raise CommandError("give one URL, as the first argument", code=USAGE)
    try:
        if is_service(args.source[0]):
            return _of_service(args)
        return _of_table(args) if "://" in args.source[0] else _of_files(args)
    except NotUnderstood as error:
        raise CommandError(str(error)) from None


# --- the lock of a service ------------------------------------------------------------------------


def _of_service(args: argparse.Namespace) -> int:
    from lockkit.lab.incident.service import examine_service, to_json

    url, *files = args.source
    if files:
        raise CommandError("a service's lock has no history: leave out the files", code=USAGE)
    with opened_service(args, url) as lock, within(args.watch_s + args.timeout_s):
        found = examine_service(lock, watch_s=args.watch_s)
    if args.json:
        line = {"command": command_of(found.diagnosis, url, store_flags_of(args))}
        say_json({"url": url} | to_json(found, holder_fields(found.holder)) | line)
    else:
        say(plain(url), *(f"  {line}" for line in holder_lines(found.holder)))
        say(*_diagnosis_lines(found.diagnosis, url))
    return _code(found)


def _code(found: Examination | ServiceExamination) -> int:
    if found.troubled:
        return FOUND
    return UNKNOWN if found.diagnosis.pattern in UNJUDGED else OK


# --- a table -------------------------------------------------------------------------------------


def _of_table(args: argparse.Namespace) -> int:
    from lockkit.cli.generations import opened
    from lockkit.lab.incident.examine import examine

    url, *names = args.source
    files = _contents(names)
    with opened(url, store_options(args)) as store:
        _wait_for_an_answer(store, args.timeout_s)
        found = examine(store, watch_s=args.watch_s, files=files)
    if args.json:
        say_json(_as_json(found, url, store_flags_of(args)))
    else:
        untold = f" ({found.untold})" if found.untold else ""
        lines = lock_lines(found.standing.holder, found.since)
        say(f"{plain(url)}", *(f"  {line}" for line in lines))
        say(*_table_lines(found.standing))
        say(f"  {len(found.kept)} generations of the lock object are kept{untold}")
        say(*_audit_lines(found.validation), *_taken_lines(found.evidence))
        say(*_diagnosis_lines(found.diagnosis, url))
    return _code(found)


def _wait_for_an_answer(store: Store, timeout_s: float) -> None:
    """Says at once that the store is silent, and ends soon if it stays so. Raises `Unanswered`."""
    from lockkit.cli.generations import NoAnswerYet, read_lock
    from lockkit.lock.handle import LOCK_KEY

    try:
        read_lock(store)
    except NoAnswerYet as error:
        warn(f"{error}; lockkit incident tries again now")
        with within(timeout_s):
            run_procedure(read(LOCK_KEY), store, Clock())


def _table_lines(standing: LockInspection) -> list[str]:
    lines = []
    for name, fact in table_facts(standing):
        lines.append(f"  {fact}" if name in ("table", "timeline") else f"  {name}: {fact}")
    return lines


def _audit_lines(said: Validation | None) -> list[str]:
    if said is None:
        return []
    head, *findings = audit_facts(said)
    return [f"  {head}", *(f"    {each}" for each in findings)]


def _taken_lines(evidence: Evidence) -> list[str]:
    return [f"  {each.name}: {each.kind}, {each.said}" for each in evidence.taken]


def _as_json(found: Examination, url: str, flags: str) -> dict[str, Any]:
    holder, table = found.standing.holder, found.standing.table
    record = holder.observation.record
    held = isinstance(record, Record)
    return {
        "url": url, "state": holder.state,
        "owner": record.owner if isinstance(record, Record) else None,
        "epoch": record.epoch if isinstance(record, Record) else None,
        "valid_until_ms": record.valid_until_ms if isinstance(record, Record) else None,
        "version": holder.observation.version, "since_ms": found.since_ms,
        "written_ms": holder.observation.modified_ms,
        "left_ms": {"ours": holder.left.ours_ms, "store": holder.left.store_ms,
                    "observed": holder.left.observed_ms} if held else None,
        "renews": holder.renews, "breakable": holder.breakable, "why": holder.why,
        "generations": len(found.kept), "unread": found.untold,
        "trouble": found.standing.read_error, "table": None if table is None else {
            "completed": len(table.condition.timeline.completed),
            "fence_epoch": table.condition.fence.epoch if table.condition.fence else None,
            "pending": [{"instant": each.instant, "action": each.action, "left": is_left(each)}
                        for each in table.condition.pending],
            "dead_heartbeats": list(table.dead_heartbeats),
            "left_markers": list(table.left_markers)},
        "audit": _audit_json(found.validation), **_taken_json(found.evidence),
        **_found_json(found.diagnosis, url, flags),
    }  # fmt: skip


# --- files ---------------------------------------------------------------------------------------


def _of_files(args: argparse.Namespace) -> int:
    from lockkit.lab.incident.dropped import take_in

    evidence = take_in(_contents(args.source))
    found = diagnose(evidence.events)
    if args.json:
        said = {"audit": _audit_json(evidence.validation), **_taken_json(evidence)}
        say_json(said | _found_json(found, "URL"))
    else:
        say(*_taken_lines(evidence), *_audit_lines(evidence.validation))
        say(*_diagnosis_lines(found, "URL"))
    return FOUND if found.evidence else UNKNOWN


def _contents(names: Sequence[str]) -> list[tuple[str, bytes]]:
    """Each file's bytes, up to one more than is allowed."""
    from lockkit.lab.incident.dropped import FILE_BYTES_MAX

    files = []
    for name in names:
        try:
            with located(name).open("rb") as file:
                files.append((name, file.read(FILE_BYTES_MAX + 1)))
        except OSError as error:
            raise CommandError(f"cannot read {plain(name)}: {error.strerror}") from None
    return files


def _audit_json(said: Validation | None) -> dict[str, Any] | None:
    return None if said is None else {
        "outcome": said.outcome, "findings": said.findings, "files": said.files,
        "skipped": said.skipped,
    }  # fmt: skip


def _taken_json(evidence: Evidence) -> dict[str, Any]:
    rows = [{"name": each.name, "kind": each.kind, "said": each.said} for each in evidence.taken]
    return {"files": rows}


# --- the diagnosis -------------------------------------------------------------------------------


def _found_json(found: Diagnosis, url: str, flags: str = "") -> dict[str, Any]:
    card, line = found.card, command_of(found, url, flags)
    said = {"diagnosis": found.to_json(), "do": card.do, "dont": card.dont, "command": line}
    moment = SIMULATED.get(found.pattern)
    return said | ({"moment": moment, "link": link(moment)} if moment else {})


def _diagnosis_lines(found: Diagnosis, url: str) -> Sequence[str]:
    card = found.card
    lines = ["", f"{found.pattern}: {plain(found.because, limit=1000)}"]
    lines += [f"  {proof(each)}" for each in found.evidence[:EVIDENCE_MAX]]
    lines += [f"also: {each.pattern}: {plain(each.because, limit=1000)}" for each in found.also]
    line = plain(command_of(found, url))
    lines += ["", f"do       {card.do}", f"don't    {card.dont}", f"run      {line}"]
    if moment := SIMULATED.get(found.pattern):
        lines.append(f"like it  lockkit simulate --moment {shlex.quote(moment)}")
        lines.append(f"         {link(moment)}")
    return lines
