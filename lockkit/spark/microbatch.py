"""A micro-batch of a streaming query: committed once, however often Spark sends it.

Spark repeats a batch whose end it did not hear of. `.hoodie/.streams/<query id>` tells which batch
the query came to and under which instant, and is replaced before a file of that instant is written:
whoever repeats the batch looks at that one instant, and takes it back if it is not committed,
whether its writer is dead or only slow. So nothing is searched for, at any age of the table. The
commit says it too, in its extraMetadata.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from lockkit.clock import Clock
from lockkit.drive import Emit, Procedure, Put, Sleep, Unique, run, silent
from lockkit.outcome import (
    Applied,
    Found,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
    over,
)
from lockkit.stores import Store
from lockkit.table.ask import TRIES_MAX, TableError, Unanswered, listing, pause_s, read
from lockkit.table.locks import AnyLock
from lockkit.table.plans import hadoop_base
from lockkit.table.properties import FENCED, PROPERTIES_KEY, load_config
from lockkit.table.pulse import Pulse, end, forget, look
from lockkit.table.rollback import Spared, roll_back
from lockkit.table.timeline import HOODIE, load_timeline, parse_timeline
from lockkit.table.transaction import Known
from lockkit.table.turns import guard_of

STREAMS = HOODIE + ".streams/"
STREAM = "lockkit.stream"
"""In the commit's extraMetadata: query id and batch id."""
_QUERY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
BODY_BYTES_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Claim:
    """What the object of a query says: its latest batch, and the instant that was to commit it."""

    batch: int
    instant: str


@dataclass(slots=True)
class MicroBatch:
    """Batch `batch` of the query `query`, on its way into the table at `url`."""

    store: Store
    url: str
    query: str
    batch: int
    clock: Clock = field(default_factory=Clock)
    emit: Emit = silent
    _version: Version | None = None

    def __post_init__(self) -> None:
        if not _QUERY.fullmatch(self.query):
            raise TableError(f"{self.query[:60]!r} is no id of a query: letters, digits, dashes")

    @property
    def extra(self) -> dict[str, str]:
        return {STREAM: f"{self.query} {self.batch}"}

    def is_over(self, lock: AnyLock) -> bool:
        """Whether the batch is committed. If not, nobody but who asks can commit it any more.

        Raises `TableError` where another writer of this very batch lives and cannot be stopped.
        """
        before, self._version = run(read_claim(self.query), self.store, self.clock)
        if before is None or before.batch < self.batch:
            return False
        if before.batch > self.batch:
            return True
        pending, completed = run(_state_of(before.instant), self.store, self.clock)
        if not pending:
            return bool(completed)
        self.emit("note", text=f"batch {self.batch} was begun as {before.instant}; taking it back")
        return self._take_back(before.instant, lock)

    def claim(self, instant: str) -> None:
        """This batch is written as `instant`; `TableError` where another run claimed meanwhile."""
        said = write_claim(self.query, Claim(self.batch, instant), self._version)
        self._version = run(said, self.store, self.clock)

    def _take_back(self, instant: str, lock: AnyLock) -> bool:
        known, pulse = run(_survey(instant), self.store, self.clock)
        # A repeated batch is proof enough that its query's earlier run is over. Where the fence
        # decides it may even live; where only the lock does, it must have stopped.
        ended = run(end(pulse), self.store, self.clock)
        if not ended and known.config.mode != FENCED:
            raise TableError(
                f"batch {self.batch} of query {self.query} is being written as {instant}, by "
                "another run that lives; stop one of the two"
            )
        with lock:
            ways = roll_back(
                instant, guard_of(lock), known, believe=lock.check, base=hadoop_base(self.url)
            )
            outcome = run(ways, self.store, self.clock, self.emit)
        run(forget(instant), self.store, self.clock)
        return isinstance(outcome, Spared)


# --- procedures ---------------------------------------------------------------------------------


def read_claim(query: str) -> Procedure[tuple[Claim | None, Version | None]]:
    match (yield from read(STREAMS + query)):
        case Found(body, version):
            return _parse(query, body), version
        case _missing:
            return None, None


def write_claim(query: str, claim: Claim, seen: Version | None) -> Procedure[Version]:
    """Replace what was seen; `TableError` if somebody else did."""
    key, said = STREAMS + query, {"batch": claim.batch, "instant": claim.instant}
    body = json.dumps({**said, "attempt": (yield Unique())}).encode()
    for tries in range(TRIES_MAX):
        match (yield Put(key, body, over(seen))):
            case Applied(version):
                return version
            case Throttled(after_s):
                yield Sleep(pause_s(tries, after_s))
                continue
            case PreconditionFailed() | Unknown():
                pass
            case other:
                raise AssertionError(f"not an answer to a write: {other!r}")
        match (yield from read(key)):
            case Found(standing, version) if standing == body:
                return version
            case Found(_, version) if version == seen:
                pass
            case Missing() if seen is None:
                pass
            case _:
                raise TableError(
                    f"{key} was changed by another run of this query while batch {claim.batch} "
                    "was begun; stop one of the two"
                )
        yield Sleep(pause_s(tries))
    raise Unanswered(
        f"{key} could not be written in {TRIES_MAX} tries; see that the store answers, then start "
        "the query again",
        doubt=True,
    )


def _parse(query: str, body: bytes) -> Claim:
    try:
        fields = json.loads(body[:BODY_BYTES_MAX])
        if type(fields["batch"]) is int and re.fullmatch(r"\d{17}", fields["instant"]):
            return Claim(fields["batch"], fields["instant"])
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise TableError(
        f"{STREAMS}{query} says nothing sensible; whether its last batch is committed cannot be "
        f"told from it: look for {STREAM} in the latest commits, then delete it"
    )


def _state_of(instant: str) -> Procedure[tuple[bool, bool]]:
    """Whether it is pending, and whether it is completed: a listing of its own few files."""
    if isinstance((yield from read(PROPERTIES_KEY)), Missing):
        return False, False
    config, _ = yield from load_config()
    own = yield from listing(config.names.folder + instant)
    now = parse_timeline(own, config.names)
    return instant in now.pending, instant in now.completed


def _survey(instant: str) -> Procedure[tuple[Known, Pulse]]:
    config, version = yield from load_config()
    now = yield from load_timeline(config.names)
    return Known(config, version, newest=max(now.commits, default="")), (yield from look(instant))
