"""The lock object, its earlier versions, and what goes wrong without a condition."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from html import escape
from typing import Any

from lockkit.clock import Clock, utc
from lockkit.errors import LockBusy, clipped, masked
from lockkit.events import Event
from lockkit.lab.course.grid import grid
from lockkit.lab.course.lock_testbed import LockTestbed, said
from lockkit.lab.verify import wrong_rules as wrong
from lockkit.lab.verify.planting import planted
from lockkit.lab.verify.wrong_rules import Release
from lockkit.lab.widgets.models import short
from lockkit.lock.handle import LOCK_KEY
from lockkit.protocol.outcome import Applied, Found, IfAbsent, Missing
from lockkit.protocol.record import Record, encode
from lockkit.stores import open_store
from lockkit.table.inspect.versions import Generation, generations

ONE_WON, BOTH_WON = "one receives 200, the other 412", "both receive 200"
GUESSES = (ONE_WON, BOTH_WON)
RISEN, REPEATED = "W2's epoch is higher than W1's", "W2 has W1's epoch"
EPOCH_GUESSES = (RISEN, REPEATED)
TTL_S = 30.0
GENERATIONS_MAX = 50
BY_HAND = "by hand/1"


# --- read by the store's API ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """The object as one GET returned it."""

    body: str
    version: str
    """The ETag; Google's generation."""
    modified: str

    def __repr__(self) -> str:
        return f"{self.version}, last modified {self.modified}\n{self.body}"


def look(testbed: LockTestbed) -> LockFile:
    """GET the lock object."""
    with closing(open_store(testbed.url, endpoint=testbed.proxy.url, client="look")) as store:
        found = store.get(LOCK_KEY)
    assert isinstance(found, Found), found
    body = json.dumps(json.loads(found.body), indent=2)
    modified = utc(found.modified_ms) if found.modified_ms is not None else "at an unknown time"
    return LockFile(body=body, version=found.version, modified=modified)


@dataclass(frozen=True, slots=True)
class ObjectHistory:
    """Every version of the lock object that the bucket kept, oldest first."""

    states: tuple[Generation, ...]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Number, ETag, owner, epoch, expired, attempt."""
        return [(str(n), *_reported(each)) for n, each in enumerate(self.states, 1)]

    def __repr__(self) -> str:
        return "\n".join("  ".join(row) for row in self.rows)

    def _repr_html_(self) -> str:
        head = ("", "ETag", "written by", "epoch", "expired", "attempt")
        return grid("kept", head, self.rows)


def kept(testbed: LockTestbed) -> ObjectHistory:
    """What the bucket kept since `ground.keep_versions()`."""
    with closing(open_store(testbed.url, endpoint=testbed.proxy.url, client="look")) as store:
        return ObjectHistory(tuple(reversed(generations(store, newest=GENERATIONS_MAX))))


def _reported(each: Generation) -> tuple[str, ...]:
    match each.record:
        case Record() as record:
            who = masked(record.holder).rpartition("/")[2] or record.owner
            attempt = record.attempt if len(record.attempt) < 20 else f"…{record.attempt[-6:]}"
            row = clipped(who, 20), str(record.epoch), "yes" if record.expired else "no", attempt
        case None:
            row = "deleted", "", "", ""
        case garbled:
            row = garbled.why, "", "", ""
    return (short(each.number.version), *row)


def version_of(provider: str) -> str:
    """The version that this provider assigns to a newly created lock object."""
    record = Record("W1", Clock().wall_ms() + round(TTL_S * 1000), epoch=1, attempt="W1/1")
    with (
        LockTestbed(provider) as testbed,
        closing(open_store(testbed.url, endpoint=testbed.proxy.url, client="W1")) as store,
    ):
        created = store.put(LOCK_KEY, encode(record), IfAbsent())
    assert isinstance(created, Applied), created
    return created.version


# --- without a condition --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompetingClaims:
    """Two writers found no object, and each wrote its record."""

    statuses: tuple[int, ...]
    events: tuple[Event, ...]
    verdict: Any

    def __str__(self) -> str:
        return BOTH_WON if self.statuses == (200, 200) else ONE_WON

    def __repr__(self) -> str:
        return f"{self}. {said(self.verdict)}"

    def _repr_html_(self) -> str:
        reported = "".join(
            f"<div><b>W{n}</b> receives {each}</div>" for n, each in enumerate(self.statuses, 1)
        )
        return f"{reported}<div>{escape(said(self.verdict))}</div>"


def claim_at_once(*, conditional: bool) -> CompetingClaims:
    """W1 and W2 write by S3's API, with `If-None-Match: *` or without; 200 means belief."""
    clock = Clock()
    with LockTestbed("s3") as testbed:
        condition = {"If_None_Match": "*"} if conditional else {}
        for name in ("W1", "W2"):
            with closing(open_store(testbed.url, endpoint=testbed.proxy.url, client=name)) as store:
                assert isinstance(store.get(LOCK_KEY), Missing), "no writer has written yet"
        statuses = []
        for request, name in enumerate(("W1", "W2"), 1):
            until_ms = clock.wall_ms() + round(TTL_S * 1000)
            record = Record(name, until_ms, epoch=1, attempt=f"{name}/1", holder=name)
            common = {"request": request, "op": "acquire"}
            testbed.record(name, "ask", key=LOCK_KEY, attempt=record.attempt, **common)
            status = testbed.put(name, LOCK_KEY, encode(record), **condition)
            version = look(testbed).version if status == 200 else ""
            outcome = "Applied" if status == 200 else "PreconditionFailed"
            testbed.record(name, "answer", outcome=outcome, version=version, why="", **common)
            if status == 200:
                testbed.record(name, "held", epoch=1, until_ms=until_ms, version=version)
            statuses.append(status)
        events = tuple(testbed.events)
        return CompetingClaims(statuses=tuple(statuses), events=events, verdict=testbed.verdict)


# --- hand-over ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockHandoff:
    """W1 acquired and released the lock, then W2."""

    epochs: tuple[int, ...]
    """Of the grants, in order."""
    kept: ObjectHistory
    verdict: Any
    refused: str = ""
    """Why a client did not get the lock."""

    def __str__(self) -> str:
        return RISEN if self.epochs == tuple(sorted(set(self.epochs))) else REPEATED

    def __repr__(self) -> str:
        epochs = ", then ".join(map(str, self.epochs))
        return f"{self.refused or f'granted: epoch {epochs}'}. {said(self.verdict)}"

    def _repr_html_(self) -> str:
        return f"{self.kept._repr_html_()}<div>{escape(repr(self))}</div>"


def hand_on(release: str) -> LockHandoff:
    """`release` is what a release leaves: a tombstone, or nothing (conditional delete)."""
    way = Release(release)
    with planted(wrong.plants({"release": way})):
        return _granted(("W1", "W2"))


def resume(**left: Any) -> LockHandoff:
    """Write the lock object by hand, with these fields; then let W1 take the lock."""
    body = json.dumps({"attempt": BY_HAND} | left).encode()
    return _granted(("W1",), body)


def _granted(names: tuple[str, ...], body: bytes = b"") -> LockHandoff:
    with LockTestbed("s3") as testbed:
        testbed.keep_versions()
        if body:
            testbed.put("hand", LOCK_KEY, body)
        epochs, refused = list[int](), ""
        try:
            for name in names:
                with testbed.lock(name, ttl_s=TTL_S, acquire_timeout=0) as lock:
                    epochs.append(lock.fence.epoch)
        except LockBusy as busy:
            refused = str(busy)
        return LockHandoff(tuple(epochs), kept(testbed), testbed.verdict, refused)
