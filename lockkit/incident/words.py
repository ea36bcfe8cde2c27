"""What was found at a table, in words: for a terminal, and for a page."""

from __future__ import annotations

import shlex

from lockkit.clock import clock_time
from lockkit.history import KINDS, Event, narrate, plain
from lockkit.incident.audit import Validation
from lockkit.incident.diagnosis import Diagnosis
from lockkit.incident.standing import Holder, Standing
from lockkit.lockfile import Record
from lockkit.table.condition import Unfinished

FINDINGS_MAX = 8


def lock_facts(holder: Holder, since_ms: float | None = None) -> list[tuple[str, str]]:
    """What each is called, and what it is; the state first. `since_ms`: when it was granted."""
    record = holder.sight.record
    if not isinstance(record, Record) or holder.state == "released":
        return [("state", f"{holder.state}: {holder.why}")]
    epoch = f"epoch {record.epoch}" if record.epoch else "no epoch (written by Hudi)"
    who = f"{plain(record.owner, limit=60)} ({plain(record.holder, limit=100) or 'no description'})"
    written = f"written {clock_time(holder.sight.modified_ms)} (the store's clock)"
    since = written if since_ms is None else f"granted {clock_time(since_ms)}, {written}"
    left = holder.left
    clocks = (
        ("this machine's clock", left.ours_ms), ("the store's clock", left.store_ms),
        ("watching it for a whole lease", left.observed_ms),
    )  # fmt: skip
    ends = (f"{_seconds(ms)} by {whose}" for whose, ms in clocks if ms is not None)
    renews = {True: "yes", False: "no: it missed several renewals", None: "not seen"}[holder.renews]
    return [
        ("state", f"{holder.state}: {who}, {epoch}"),
        ("since", since),
        ("until", f"{clock_time(record.valid_until_ms)} (the holder's clock)"),
        ("left", ", ".join(ends)),
        ("renewed", f"{renews} (watched for {holder.watched_ms / 1000:.1f} s)"),
        ("break", f"{'yes' if holder.breakable else 'no'}: {holder.why}"),
        ("version", plain(holder.sight.version)),
    ]


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms > 0 else f"over for {-ms / 1000:.1f} s"


def table_facts(standing: Standing) -> list[tuple[str, str]]:
    """The table beside its lock; of one that cannot be read, why."""
    table = standing.table
    if table is None:
        return [("table", f"no table to be read: {plain(standing.trouble)}")]
    found = table.condition
    done = f"{len(found.timeline.completed)} completed instants, {len(found.pending)} pending"
    facts = [("timeline", done)]
    if found.fence:
        head = found.fence.head
        facts.append(("fence", f"{head.kind} {head.instant}, epoch {found.fence.epoch}"))
    for each in found.pending:
        state = "inflight" if each.inflight else "requested"
        facts.append(("pending", f"{each.instant} {each.action}, {state}: {sign_of_life(each)}"))
    for what, instants in (
        ("dead heartbeats", table.dead_heartbeats), ("leftover markers", table.left_markers)
    ):  # fmt: skip
        if instants:
            facts.append((what, plain(", ".join(instants))))
    return facts


def sign_of_life(each: Unfinished) -> str:
    ago = f"{each.age_ms / 1000:.0f} s ago"
    if each.action in ("rollback", "clean"):
        return f"begun {ago}; the next run of a service finishes it"
    if each.pulse.ended:
        return "gave up, or was ended: roll it back"
    if each.pulse.version is None and each.action == "clustering" and each.lives:
        return f"planned {ago}, for its maker to carry out"
    if each.pulse.version is None:
        return f"no heartbeat, begun {ago}: {'wait' if each.lives else 'dead'}"
    who = f" ({plain(each.pulse.holder, limit=60)})" if each.pulse.holder else ""
    return f"{'lives' if each.lives else 'dead'}{who}, last beat {ago}"


def is_left(each: Unfinished) -> bool:
    return not each.lives and each.action not in ("rollback", "clean")


def audit_facts(said: Validation) -> list[str]:
    """What Hudi's own `locks audit validate` would say, and its first findings."""
    files = f"{said.files} file{'' if said.files == 1 else 's'}"
    head = f"Hudi's audit log: {said.outcome}, {files}, {said.skipped} lines skipped"
    return [head, *(plain(each) for each in said.findings[:FINDINGS_MAX])]


def proof(each: Event) -> str:
    """An event of the evidence in one line."""
    fields = " ".join(
        f"{name}={plain(each.get(name), limit=60)}"
        for name in KINDS[each.kind] if each.get(name) not in ("", None)
    )  # fmt: skip
    return f"{clock_time(each.at_ms)}  {plain(each.who, limit=20)}  {each.kind}  {fields}"


def sentence(each: Event) -> str:
    """The same for those who read it at night: what happened, without the fields."""
    at, who, get = clock_time(each.at_ms)[11:], plain(each.who, limit=40), each.get
    name = plain(str(get("key", "")).rpartition("/")[2], limit=40)
    match each.kind:
        case "request":
            client = plain(get("client") or "somebody", limit=40)
            until = get("valid_until_ms")
            state = "released" if get("expired") else f"until {clock_time(until)[11:]}"
            lease = f"; epoch {plain(get('epoch'))}, {state}" if type(until) is int else ""
            done = "applied" if get("applied") else plain(get("answer")).replace("_", " ")
            told = f"{plain(get('method')).upper()} of {name}: {plain(get('status'))}, {done}"
            return f"{at}  the store: {client}'s {told}{lease}"
        case "ask":
            return f"{at}  {who} asks: {plain(get('op'))} {name}"
        case "answer":
            return f"{at}  {who} is told of its {plain(get('op'))}: {plain(get('outcome'))}"
        case _:
            lines = narrate([each])
            return f"{at}  {lines[0].partition('  ')[2]}" if lines else proof(each)


def command_of(found: Diagnosis, url: str) -> str:
    """The card's command for this table, quoted for a shell."""
    return found.card.command.format(url=shlex.quote(url))
