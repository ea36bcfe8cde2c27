"""Liveness: which writers of a table are alive (`failed`: which pending instants are abandoned).

The writer of an instant rewrites `.hoodie/.heartbeat/<instant>` at an interval (`heartbeat`).
Before an instant is rolled back, its heartbeat is ended: exactly the version that was seen to have
expired is replaced. If that fails, the writer is alive. (Hudi unconditionally overwrites an empty
file. Such heartbeats are understood, but ending one is not final, because equal bytes have equal
versions.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, assert_never

from lockkit.errors import StoreError
from lockkit.protocol.outcome import Applied, Found, Missing, NotModified, Version, over
from lockkit.protocol.policy import Expiry
from lockkit.runtime import Delete, Note, Procedure, Unique, WallMs
from lockkit.runtime.proven import TRIES_MAX, pause_after, read, settle_write
from lockkit.table.format.timeline import HOODIE, instant_ms
from lockkit.table.occ.heartbeat_rules import TTL_MS_MAX, HeartbeatRules

HEARTBEATS = HOODIE + ".heartbeat/"
BODY_BYTES_MAX = 2_000


@dataclass(frozen=True, slots=True)
class HeartbeatRead:
    """A heartbeat as one read showed it."""

    instant: str
    version: Version | None
    """None: there is no such object."""
    attempt: str | None = None
    ttl_ms: int | None = None
    """The lifetime that its writer declared; None if the body has none (Hudi's is empty)."""
    ended: bool = False
    modified_ms: int | None = None
    date_ms: int | None = None
    holder: str = ""
    """The writer's description of itself; for humans."""


def heartbeat_key(instant: str) -> str:
    return HEARTBEATS + instant


def heartbeat_of(instant: str, answer: Found | Missing) -> HeartbeatRead:
    """Parse an object. A body that is not ours is a sign of life without a declared lifetime."""
    if isinstance(answer, Missing):
        return HeartbeatRead(instant, None)
    try:
        body: Any = json.loads(answer.body) if len(answer.body) <= BODY_BYTES_MAX else {}
    except (ValueError, RecursionError):
        body = {}
    fields = body if isinstance(body, dict) else {}
    attempt, ttl_ms, holder = (fields.get(name) for name in ("attempt", "ttlMs", "holder"))
    return HeartbeatRead(
        instant,
        answer.version,
        attempt if isinstance(attempt, str) else None,
        ttl_ms if type(ttl_ms) is int and 0 < ttl_ms <= TTL_MS_MAX else None,
        fields.get("ended") is True,
        answer.modified_ms,
        answer.date_ms,
        holder if isinstance(holder, str) else "",
    )


def expired(heartbeat: HeartbeatRead, wall_ms: int, rules: HeartbeatRules) -> bool:
    """Whether its writer has certainly stopped, if it follows the rules.

    Without a heartbeat the time counts from when the instant was taken, because its writer may be
    about to start one. The instant's own time, by its writer's clock, counts only if that is
    unknown.
    """
    if heartbeat.ended:
        return True
    ttl_ms = heartbeat.ttl_ms or rules.ttl_ms
    if heartbeat.modified_ms is None:
        taken_ms = instant_ms(heartbeat.instant)
        return heartbeat.version is None and wall_ms - taken_ms > ttl_ms + rules.drift_ms
    if rules.expiry is Expiry.STORE and heartbeat.date_ms is not None:
        return heartbeat.date_ms - heartbeat.modified_ms > ttl_ms + rules.slack_ms
    return wall_ms - heartbeat.modified_ms > ttl_ms + rules.drift_ms


def read_heartbeat(instant: str, requested: str = "") -> Procedure[HeartbeatRead]:
    """Without a heartbeat, its times are those of `requested`, the instant's first file."""
    match (yield from read(heartbeat_key(instant), limit=BODY_BYTES_MAX)):
        case Missing() if requested:
            pass
        case Found() | Missing() as answer:
            return heartbeat_of(instant, answer)
        case NotModified():
            raise AssertionError("an unconditional read was answered 304")
        case never:
            assert_never(never)
    match (yield from read(requested)):
        case Found(_, _, modified_ms, date_ms):
            return HeartbeatRead(instant, None, modified_ms=modified_ms, date_ms=date_ms)
        case _:
            return HeartbeatRead(instant, None)


def lives(instant: str, rules: HeartbeatRules, requested: str = "") -> Procedure[bool]:
    heartbeat = yield from read_heartbeat(instant, requested)
    return not expired(heartbeat, (yield WallMs()), rules)


def end(heartbeat: HeartbeatRead) -> Procedure[bool]:
    """End the observed heartbeat before its instant is rolled back. False: its writer is alive.

    Replaces exactly that version by a tombstone, so that every later beat is refused, even a late
    start. If there was none, the tombstone is created. `forget` it after the rollback.
    """
    key = heartbeat_key(heartbeat.instant)
    body = {"instant": heartbeat.instant, "attempt": (yield Unique()), "ended": True}
    settled = yield from settle_write(
        key, json.dumps(body).encode(), over(heartbeat.version), limit=BODY_BYTES_MAX
    )
    if isinstance(settled, Version):
        yield Note("note", {"text": f"ended the heartbeat of {heartbeat.instant}"})
        return True
    return isinstance(settled, Missing) or heartbeat_of(heartbeat.instant, settled).ended


def forget(instant: str) -> Procedure[None]:
    """Delete the heartbeat of an instant that is committed or rolled back."""
    yield from discard(heartbeat_key(instant))


def discard(key: str) -> Procedure[None]:
    """Delete a file that is no longer needed; if it stays, that is not an error."""
    for tries in range(TRIES_MAX):
        try:
            answer = yield Delete(key)
            if isinstance(answer, Applied):
                return
            yield pause_after(answer, tries)
        except StoreError:
            return
