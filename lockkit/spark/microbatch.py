"""A micro-batch of a streaming query: committed once, however often Spark sends it.

Spark repeats a batch when it does not know that the batch ended. `.hoodie/.streams/<query id>`
names the query's latest batch and the instant that was to commit it, and is replaced before a file
of that instant is written. A run that repeats the batch checks that one instant, and rolls it back
if it is not committed, whether its writer is dead or only slow. So the cost does not grow with the
table. The commit records the batch too, in its extraMetadata; only that proves that it is done.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.protocol.outcome import (
    Found,
    Missing,
    Version,
    over,
)
from lockkit.runtime import Procedure, Unique, run
from lockkit.runtime.proven import listing, read, settle_write
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.format.layout import hadoop_base, parse_commit
from lockkit.table.format.properties import FENCED, PROPERTIES_KEY, load_config
from lockkit.table.format.timeline import COMMITS, HOODIE, load_timeline, parse_timeline
from lockkit.table.occ.concurrency import guard_of
from lockkit.table.occ.covered import read_commit
from lockkit.table.occ.liveness import HeartbeatRead, end, forget, look
from lockkit.table.occ.rollback import RollbackRefused, roll_back
from lockkit.table.occ.transaction import TableCache

if TYPE_CHECKING:
    from lockkit.lock.contract import LockHandle

STREAMS = HOODIE + ".streams/"
STREAM = "lockkit.stream"
"""In the commit's extraMetadata: query id and batch id."""
_QUERY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SPARKS_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
BODY_BYTES_MAX = 4_000


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """A query's latest batch, and the instant that was to commit it."""

    batch: int
    instant: str
    checkpoint: str = ""
    """Spark's id of the query, which a new checkpoint changes; empty where it was not known."""


@dataclass(slots=True)
class MicroBatch:
    """Batch `batch` of the query `query`, on its way into the table at `url`."""

    store: Store
    url: str
    query: str
    batch: int
    clock: Clock = field(default_factory=Clock)
    emit: Emit = silent
    checkpoint: str = ""
    """Spark's own id of the query, where the query has another name; empty: not known."""
    _version: Version | None = None

    def __post_init__(self) -> None:
        if not _QUERY.fullmatch(self.query):
            raise TableError(f"{self.query[:60]!r} is no id of a query: letters, digits, dashes")

    @property
    def extra(self) -> dict[str, str]:
        return {STREAM: f"{self.query} {self.batch}"}

    def is_over(self, lock: LockHandle) -> bool:
        """Whether the batch is committed. If not, only this run can commit it from now on.

        Only the batch's own commit proves it, by its extraMetadata. A batch of a new checkpoint is
        another batch, whatever its number. Raises `TableError` where another writer of this batch
        is alive and cannot be stopped.
        """
        before, self._version = run(read_claim(self.query), self.store, self.clock)
        if before is None:
            return False
        if self.checkpoint and before.checkpoint and before.checkpoint != self.checkpoint:
            self._warn(
                f"query {self.query} has a new checkpoint, and the table has its batches up to "
                f"{before.batch} from an earlier one. Batch {self.batch} is written: it is not one "
                "of those, though it may bring rows that they brought. Give a query with a new "
                "checkpoint another name"
            )
            return False
        if before.batch > self.batch:
            self._warn_of_passing_over(before)
            return True
        if before.batch < self.batch:
            return False
        own = run(_own(before.instant, self.extra[STREAM]), self.store, self.clock)
        if own != "pending":
            return own == "committed"
        self.emit("note", text=f"batch {self.batch} was begun as {before.instant}; taking it back")
        return self._take_back(before.instant, lock)

    def _warn_of_passing_over(self, before: BatchClaim) -> None:
        """Not where Spark's id is known: it is the same, so only an old run can come so late."""
        if not self.checkpoint and not _SPARKS_ID.fullmatch(self.query):
            self._warn(
                f"batch {self.batch} of query {self.query} is passed over: the table has its batch "
                f"{before.batch} already. Spark sends no batch again after a later one. So either "
                "another run of this query is behind: stop it; or the query has a new checkpoint, "
                "and rows are being left out: give it another name and start it anew"
            )

    def _warn(self, text: str) -> None:
        self.emit("note", text=text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def claim(self, instant: str) -> None:
        """This batch is written as `instant`; `TableError` where another run claimed meanwhile."""
        mine = BatchClaim(self.batch, instant, self.checkpoint)
        said = write_claim(self.query, mine, self._version)
        self._version = run(said, self.store, self.clock)

    def _take_back(self, instant: str, lock: LockHandle) -> bool:
        known, pulse = run(_survey(instant), self.store, self.clock)
        # A repeated batch shows that its query's earlier run is over. Where the fence decides, that
        # run may even be alive; where only the lock does, it must have stopped.
        ended = run(end(pulse), self.store, self.clock)
        if not ended and known.config.mode != FENCED:
            raise TableError(
                f"batch {self.batch} of query {self.query} is being written as {instant}, by "
                "another run that is alive; stop one of the two"
            )
        with lock:
            ways = roll_back(
                instant, guard_of(lock), known, believe=lock.assert_held, base=hadoop_base(self.url)
            )
            outcome = run(ways, self.store, self.clock, self.emit)
        run(forget(instant), self.store, self.clock)
        if not isinstance(outcome, RollbackRefused):
            return False
        own = run(_own(instant, self.extra[STREAM]), self.store, self.clock)
        return own == "committed"


# --- procedures ---------------------------------------------------------------------------------


def read_claim(query: str) -> Procedure[tuple[BatchClaim | None, Version | None]]:
    match (yield from read(STREAMS + query)):
        case Found(body, version):
            return _parse(query, body), version
        case _missing:
            return None, None


def write_claim(query: str, claim: BatchClaim, seen: Version | None) -> Procedure[Version]:
    """Replace what was seen; `TableError` if somebody else did."""
    key = STREAMS + query
    said: dict[str, Any] = {"batch": claim.batch, "instant": claim.instant}
    if claim.checkpoint:
        said["checkpoint"] = claim.checkpoint
    body = json.dumps({**said, "attempt": (yield Unique())}).encode()
    settled = yield from settle_write(key, body, over(seen))
    if not isinstance(settled, Version):
        raise TableError(
            f"{key} was changed by another run of this query while batch {claim.batch} was begun; "
            "stop one of the two"
        )
    return settled


def _parse(query: str, body: bytes) -> BatchClaim:
    try:
        fields = json.loads(body[:BODY_BYTES_MAX])
        checkpoint = fields.get("checkpoint", "")
        if type(fields["batch"]) is int and re.fullmatch(r"\d{17}", fields["instant"]):
            return BatchClaim(fields["batch"], fields["instant"], str(checkpoint)[:100])
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise TableError(
        f"{STREAMS}{query} says nothing sensible; whether its last batch is committed cannot be "
        f"told from it: look for {STREAM} in the latest commits, then delete it"
    )


def _own(instant: str, marker: str) -> Procedure[Literal["committed", "pending", "gone"]]:
    """What became of this batch's own attempt at `instant`: a listing of its own few files.

    An instant that another commit has, or is about to have, says nothing about this batch.
    """
    if isinstance((yield from read(PROPERTIES_KEY)), Missing):
        return "gone"
    config, _ = yield from load_config()
    own = yield from listing(config.names.folder + instant)
    now = parse_timeline(own, config.names)
    if now.completed.get(instant) in COMMITS:
        commit = yield from read_commit(config.names, instant, now)
        return "committed" if commit.extra.get(STREAM) == marker else "gone"
    if instant not in now.pending:
        return "gone"
    key = config.names.inflight(instant, now.pending[instant])
    match (yield from read(key)):
        case Found(body, _):
            try:
                begun = parse_commit(instant, key, body)
            except TableError:
                return "gone"  # not of lockkit's making
            return "pending" if begun.extra.get(STREAM) == marker else "gone"
        case _missing:
            return "pending"  # it has come no further than its requested file


def _survey(instant: str) -> Procedure[tuple[TableCache, HeartbeatRead]]:
    config, version = yield from load_config()
    now = yield from load_timeline(config.names)
    return TableCache(config, version, newest=max(now.commits, default="")), (
        yield from look(instant)
    )
