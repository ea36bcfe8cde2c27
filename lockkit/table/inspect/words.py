"""Text for a table's lock and its pending instants, for a terminal or a page."""

from __future__ import annotations

from lockkit.events import clock_time, plain
from lockkit.protocol.record import Record
from lockkit.providers.process_state import ProcessState
from lockkit.table.format.properties import GROUP
from lockkit.table.inspect.standing import LockHolder, LockInspection
from lockkit.table.occ.condition import PendingInstant

NO_LOCK = (
    "the table's commits take no lock (group commit), so a holder of it delays none of them; "
    "archiving, savepoints, restores and switches of the mode take it"
)


def lock_facts(holder: LockHolder, since: str = "") -> list[tuple[str, str]]:
    """(name, value) of each fact, the state first. `since`: when the lock was granted."""
    record = holder.observation.record
    if not isinstance(record, Record) or holder.state == "released":
        return [("state", f"{holder.state}: {holder.why}")]
    epoch = f"epoch {record.epoch}" if record.epoch else "no epoch (written by Hudi)"
    who = f"{plain(record.owner, limit=60)} ({plain(record.holder, limit=120) or 'no description'})"
    written = f"{clock_time(holder.observation.modified_ms)} (the store's clock)"
    left = holder.left
    clocks = (
        ("this machine's clock", left.ours_ms), ("the store's clock", left.store_ms),
        ("watching it for a whole lease", left.observed_ms),
    )  # fmt: skip
    ends = (f"{_seconds(ms)} by {whose}" for whose, ms in clocks if ms is not None)
    renews = {True: "yes", False: "no: it missed several renewals", None: "not seen"}[holder.renews]
    return [
        ("state", f"{holder.state}: {who}, {epoch}"),
        *process_fact(holder.process_state),
        *([("since", f"{since} (the store's clock)")] if since else []),
        ("written", f"{written}: its grant, or its last renewal"),
        ("until", f"{clock_time(record.valid_until_ms)} (the holder's clock)"),
        ("left", ", ".join(ends)),
        ("renewed", f"{renews} (watched for {holder.watched_ms / 1000:.1f} s)"),
        ("break", f"{'yes' if holder.breakable else 'no'}: {holder.why}"),
        ("version", plain(holder.observation.version)),
    ]


def process_fact(state: ProcessState) -> list[tuple[str, str]]:
    """What this machine shows of the holder's process; nothing of another host's."""
    return [("process", state.value)] if state.value else []


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms > 0 else f"over for {-ms / 1000:.1f} s"


def table_facts(standing: LockInspection) -> list[tuple[str, str]]:
    """(name, value) of each fact of the table, or why it cannot be read."""
    table = standing.table
    if table is None:
        said = plain(standing.read_error) if standing.no_table else "it cannot be read"
        return [("table", f"no table to be read: {said}")]
    found = table.condition
    done = f"{len(found.timeline.completed)} completed instants, {len(found.pending)} pending"
    facts = [("timeline", done)]
    if found.config.commit == GROUP:
        facts.append(("lock", NO_LOCK))
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


def sign_of_life(each: PendingInstant) -> str:
    ago = f"{each.age_ms / 1000:.0f} s ago"
    if each.damaged:
        return f"its plan is damaged, begun {ago}"
    if each.action in ("rollback", "clean"):
        return f"begun {ago}; the next run of a service finishes it"
    if each.heartbeat.ended:
        return "its writer gave up, or was ended: roll it back"
    if each.silent and not each.inflight:
        return f"planned {ago}; the process that planned it carries it out"
    if each.silent:
        return f"begun {ago} by a process without a heartbeat (Hudi's have none)"
    if each.heartbeat.version is None:
        return f"no heartbeat, begun {ago}: {'wait' if each.lives else 'dead'}"
    who = f" ({plain(each.heartbeat.holder, limit=120)})" if each.heartbeat.holder else ""
    return f"{'lives' if each.lives else 'dead'}{who}, last beat {ago}"


def is_left(each: PendingInstant) -> bool:
    """Whether a rollback of all that is dead takes it."""
    return not each.lives and each.action not in ("rollback", "clean")


def lock_lines(holder: LockHolder, since: str = "") -> list[str]:
    """One line for each fact, with its name; the state first, without a name."""
    (_, state), *facts = lock_facts(holder, since)
    return [state, *(f"{name:8} {value}" for name, value in facts)]
