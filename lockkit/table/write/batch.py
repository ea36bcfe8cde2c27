"""A batch of a stream: committed once, however often its sender repeats it.

`.hoodie/.streams/<query id>` names the query's latest batch and the instant for its commit. It is
replaced before a file of that instant is written. A run that repeats the batch checks that instant,
and rolls it back if it is not committed, whether its writer is dead or only slow. So the cost does
not grow with the table. The commit also records the batch in its extraMetadata; only that proves
that the batch is done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from lockkit.protocol.outcome import Found, Missing, Version, over
from lockkit.runtime import Note, Procedure, Unique
from lockkit.runtime.proven import listing, read, settle_write
from lockkit.table.errors import DamagedFile, RefusedOption, TableBlocked, TableChanged, TableError
from lockkit.table.format.layout import CommitFiles, parse_commit
from lockkit.table.format.properties import FENCED, PROPERTIES_KEY, TableConfig, load_config
from lockkit.table.format.timeline import COMMITS, HOODIE, load_timeline, parse_timeline
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.covered import has_archived, read_commit
from lockkit.table.occ.liveness import HeartbeatRead, end, forget, read_heartbeat
from lockkit.table.occ.rollback import RollbackRefused, RolledBack, roll_back
from lockkit.table.occ.transaction import TableCache

STREAMS = HOODIE + ".streams/"
STREAM = "lockkit.stream"
"""In the commit's extraMetadata: query id and batch id."""
_QUERY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
BODY_BYTES_MAX = 4_000

Hold = Callable[
    [Callable[[StateChange], Procedure[RolledBack | RollbackRefused]]],
    Procedure[RolledBack | RollbackRefused],
]
"""Carries out a rollback while the table's lock is held."""


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """A query's latest batch, and the instant for its commit."""

    batch: int
    instant: str
    checkpoint: str = ""
    """Spark's id of the query, which a new checkpoint changes; empty if unknown."""
    attempt: str = ""
    """In the instant's requested file, which shows whether the instant is still the claim's."""


class BatchState(Enum):
    """What is known of a batch before it is written."""

    NEW = "to be written"
    NEW_CHECKPOINT = "to be written, although a batch of this or a later number was"
    PASSED_OVER = "the query has a later batch"
    COMMITTED = "committed"


AttemptState = Literal["committed", "pending", "gone"]


@dataclass(slots=True)
class StreamBatch:
    """Batch `batch` of the query `query`."""

    query: str
    batch: int
    checkpoint: str = ""
    """Spark's own id of the query, if the query has another name; empty: unknown."""
    before: BatchClaim | None = None
    """The query's latest batch, as `state` found it."""
    _version: Version | None = None

    def __post_init__(self) -> None:
        if not _QUERY.fullmatch(self.query):
            raise RefusedOption(
                "query", "is not an id of a query", "use letters, digits and dashes",
                value=self.query[:60],
            )  # fmt: skip

    @property
    def extra(self) -> dict[str, str]:
        return {STREAM: f"{self.query} {self.batch}"}

    def state(self, hold: Hold, base: str) -> Procedure[BatchState]:
        """Whether the batch is committed. If not, only this run can commit it from now on.

        Only the batch's own commit proves it, by its extraMetadata. A batch of a new checkpoint is
        another batch, whatever its number. `base` as for `roll_back`. Raises `TableError` if
        another writer of this batch is alive and cannot be stopped.
        """
        self.before, self._version = before, _ = yield from read_claim(self.query)
        if before is None:
            return BatchState.NEW
        if self.checkpoint and before.checkpoint and before.checkpoint != self.checkpoint:
            return BatchState.NEW_CHECKPOINT
        if before.batch > self.batch:
            return BatchState.PASSED_OVER
        if before.batch < self.batch:
            return BatchState.NEW
        own = yield from own_attempt(before, self.extra[STREAM])
        if own == "pending":
            text = f"batch {self.batch} was begun as {before.instant}; taking it back"
            yield Note("note", {"text": text})
            own = yield from self._take_back(before, hold, base)
        return BatchState.COMMITTED if own == "committed" else BatchState.NEW

    def claim(self, instant: str, attempt: str = "") -> Procedure[None]:
        """Record that `instant` writes this batch; `TableError` if another run claimed it first."""
        mine = BatchClaim(self.batch, instant, self.checkpoint, attempt)
        self._version = yield from write_claim(self.query, mine, self._version)

    def _take_back(self, claim: BatchClaim, hold: Hold, base: str) -> Procedure[AttemptState]:
        instant = claim.instant
        known, heartbeat = yield from _survey(instant)
        # A repeated batch shows that its query's earlier run is over. With a fence that run may be
        # alive; with only a lock it must have stopped.
        ended = yield from end(heartbeat)
        if not ended and known.config.mode != FENCED:
            raise TableBlocked(
                instant,
                f"is being written by another run that is alive: batch {self.batch} of query "
                f"{self.query}", "stop one of the two",
            )  # fmt: skip
        outcome = yield from hold(lambda held: roll_back(
            instant, held.guard, known, believe=held.believe, base=base
        ))  # fmt: skip
        yield from forget(instant)
        if not isinstance(outcome, RollbackRefused):
            return "gone"
        return (yield from own_attempt(claim, self.extra[STREAM]))


# --- its claim ----------------------------------------------------------------------------------


def read_claim(query: str) -> Procedure[tuple[BatchClaim | None, Version | None]]:
    match (yield from read(STREAMS + query)):
        case Found(body, version):
            return _parse(query, body), version
        case _missing:
            return None, None


def write_claim(query: str, claim: BatchClaim, seen: Version | None) -> Procedure[Version]:
    """Replace what was seen; `TableError` if another run did so first."""
    key = STREAMS + query
    said: dict[str, Any] = {"batch": claim.batch, "instant": claim.instant}
    if claim.checkpoint:
        said["checkpoint"] = claim.checkpoint
    if claim.attempt:
        said["taken"] = claim.attempt
    body = json.dumps({**said, "attempt": (yield Unique())}).encode()
    settled = yield from settle_write(key, body, over(seen))
    if not isinstance(settled, Version):
        raise TableChanged(
            key, f"was changed by another run of this query while batch {claim.batch} was begun",
            "stop one of the two",
        )  # fmt: skip
    return settled


def _parse(query: str, body: bytes) -> BatchClaim:
    try:
        fields = json.loads(body[:BODY_BYTES_MAX])
        checkpoint, attempt = fields.get("checkpoint", ""), fields.get("taken", "")
        if type(fields["batch"]) is int and re.fullmatch(r"\d{17}", fields["instant"]):
            more = str(checkpoint)[:100], str(attempt)[:100]
            return BatchClaim(fields["batch"], fields["instant"], *more)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise DamagedFile(
        f"{STREAMS}{query}",
        "is not what lockkit writes; it does not show whether the query's last batch is committed",
        f"look for {STREAM} in the latest commits, then delete it",
    )


def own_attempt(claim: BatchClaim, marker: str) -> Procedure[AttemptState]:
    """What became of this batch's own attempt at its instant: a listing of its own few files.

    If another commit has or will have the instant, that says nothing about this batch.
    """
    instant = claim.instant
    if isinstance((yield from read(PROPERTIES_KEY)), Missing):
        return "gone"
    config, _ = yield from load_config()
    own = yield from listing(config.names.folder + instant)
    now = parse_timeline(own, config.names)
    if now.completed.get(instant) in COMMITS:
        commit = yield from read_commit(config.names, instant, now)
        return "committed" if commit.extra.get(STREAM) == marker else "gone"
    if instant not in now.pending:
        archived = yield from _archived(config, instant)
        return "committed" if archived and archived.extra.get(STREAM) == marker else "gone"
    key = config.names.inflight(instant, now.pending[instant])
    match (yield from read(key)):
        case Found(body, _):
            try:
                begun = parse_commit(instant, key, body)
            except TableError:
                return "gone"  # not of lockkit's making
            return "pending" if begun.extra.get(STREAM) == marker else "gone"
        case _missing:  # it has come no further than its requested file
            begun_as = yield from read(config.names.requested(instant, now.pending[instant]))
            holds = isinstance(begun_as, Found) and claim.attempt.encode() in begun_as.body
            return "pending" if holds else "gone"


def _archived(config: TableConfig, instant: str) -> Procedure[CommitFiles | None]:
    if not (yield from has_archived(config.archive_prefix)):
        return None
    from lockkit.table.format.archived import load_archived_commits  # rarely needed

    archived = yield from load_archived_commits(config)
    return next((each for each in archived if each.instant == instant), None)


def _survey(instant: str) -> Procedure[tuple[TableCache, HeartbeatRead]]:
    config, version = yield from load_config()
    now = yield from load_timeline(config.names)
    return TableCache(config, version, newest=max(now.commits, default="")), (
        yield from read_heartbeat(instant)
    )
