"""A candidate: one node's part in an election by epochs (Morling, 2024).

`lock_0000000007.json` is epoch 7. Whoever finds the highest epoch resigned, or past its validity,
creates the next one if absent; the store decides the race. The epoch is the fencing token of all
that its leader writes (`guarded`), and the highest one is never collected: a number that could be
given twice would be no token.

Three things are otherwise than with one lock object, for a write of one epoch is never refused
because of another. A renewal lands also when a later epoch leads: it counts only if its answer
comes before the belief that it extends has ended. Whoever finds an epoch over creates the next,
although it may have been renewed since that was read: so its end is judged by the time at which the
read was sent. And what was below the highest may have been collected, so that a late create of it
lands: a create counts only once a listing has shown nothing higher.

One file because it is one class: a node from its campaign to its resignation, and its rules.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from lockkit.clock import Clock
from lockkit.errors import NoAnswer
from lockkit.lock.storage import observation_of
from lockkit.protocol.expiry import frees_ms
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import RECORD_BYTES_MAX, Record, encode
from lockkit.protocol.state import Identity, LastObservation, Now, Observation
from lockkit.recipes.election.epochs import EPOCH_MAX, PREFIX, RESIGNED, epoch_key, epochs_in
from lockkit.recipes.errors import ElectionError, NotLeader
from lockkit.runtime import List, Procedure, Put, Sleep
from lockkit.runtime.proven import TRIES_MAX, listing, pause_s, read
from lockkit.sinks import Emit, silent

LOOKS_MAX = 5
"""How often the highest epoch may be collected between our listing it and our reading it."""


@dataclass(slots=True)
class Term:
    """An epoch of ours, from its creation until it is proven to be over."""

    epoch: int
    version: Version
    until_ms: int | None
    """Belief ends then, on my boot clock. None: it has ended."""
    attempts: set[str]
    """Of all writes to its object."""
    since_ms: int | None = None
    """When the first renewal was sent whose fate is not known."""


@dataclass(slots=True)
class Candidate:
    """One node's part, as procedures: look and lead (`confirm`), renew, resign.

    Belief is measured on `clock`. Not for two threads at once.
    """

    identity: Identity
    clock: Clock
    policy: Policy = field(default_factory=Policy)
    emit: Emit = silent
    known: int = 0
    """The highest epoch that this node ever saw; the next is above it."""
    observed: LastObservation | None = None
    """The highest epoch's object at the last look."""
    over_ms: int | None = None
    """When that epoch is over unless it is renewed, on my boot clock; None: never by itself."""
    term: Term | None = None
    claims: set[str] = field(default_factory=set)
    """Creates of the next epoch whose fate is not known."""
    _looked_ms: int = 0
    """When the last look began: a create that it did not show has landed after that."""
    _writes: int = 0

    # --- belief ----------------------------------------------------------------------------------

    def leads(self) -> Term | None:
        """The term in which this node may act as the leader at this moment. No request."""
        term = self.term
        if term is None or term.until_ms is None:
            return None
        if self.clock.boot_ms() >= term.until_ms:
            self._lose(term, "no renewal was proven in time")
            return None
        return term

    def lead(self, epoch: int, version: Version, attempt: str, since_ms: int) -> None:
        """From when the create could have landed at the earliest."""
        self.claims.clear()
        self.known = epoch
        until_ms = self._belief_ends_ms(since_ms)
        if until_ms > self.clock.boot_ms():
            self.term = Term(epoch, version, until_ms, {attempt})
            self.emit("held", epoch=epoch, until_ms=self._on_wall(until_ms), version=version)
        else:
            self.term = Term(epoch, version, None, {attempt})
            self.emit("note", text=f"epoch {epoch} was created too late to be led: it is resigned")

    def _belief_ends_ms(self, since_ms: int) -> int:
        return counted_from_ms(since_ms, self.clock.boot_ms()) + self._belief_ms

    @property
    def _belief_ms(self) -> int:
        return self.identity.ttl_ms - min(self.policy.margin_ms, self.identity.ttl_ms // 10)

    @property
    def proven_ms(self) -> float:
        """When the write that the belief rests on was about to be sent, on my boot clock."""
        term = self.term
        return 0 if term is None or term.until_ms is None else term.until_ms - self._belief_ms

    def emit_danger(self) -> None:
        """Renewal is overdue."""
        term = self.term
        if term is not None and term.until_ms is not None:
            self.emit("danger", epoch=term.epoch, until_ms=self._on_wall(term.until_ms))

    def lose(self, why: str) -> None:
        """Stop believing, for a reason that the protocol does not know."""
        if self.term is not None:
            self._lose(self.term, why)

    def _lose(self, term: Term, why: str) -> None:
        if term.until_ms is not None:
            term.until_ms = None
            self.emit("lost", epoch=term.epoch, why=why)

    def _on_wall(self, boot_ms: float) -> float:
        return self.clock.wall_ms() + (boot_ms - self.clock.boot_ms())

    # --- looking, and leading where nobody does --------------------------------------------------

    def confirm(self) -> Procedure[bool]:
        """Whether this node leads: it creates the next epoch where the highest one is over.

        False: another leads (`seen`), or the store did not say. Raises `Unanswered`,
        `ElectionError`.
        """
        if self.leads():
            return True
        for tries in range(TRIES_MAX):
            if self.term is not None and not (yield from self.resign()):
                return False  # an epoch of our own is never waited for
            after_s = yield from self._round()
            if self.leads():
                return True
            if not self.claims and self.term is None:
                return False
            yield Sleep(pause_s(tries, after_s))
        return False

    def _round(self) -> Procedure[float | None]:
        """One look, and one create at most; for how long the store asked to be left alone."""
        began, before = self.clock.now(), self.known
        observation = yield from self.observe()
        record, answered_at = observation.record, self.clock.now()
        if isinstance(record, Record) and is_claimed(record, self.identity, self.claims):
            assert observation.version is not None
            self.lead(self.known, observation.version, record.attempt, self._looked_ms)
            return None
        self._looked_ms = began.boot_ms
        if self.known > before:
            self.claims.clear()  # decided for somebody else
            self.observed = None
        same = (
            self.observed is not None and self.observed.observation.version == observation.version
        )
        since_ms = self.observed.since_ms if same and self.observed else answered_at.boot_ms
        now = judged_at(began, answered_at)
        self.observed = LastObservation(observation, since_ms, now.boot_ms)
        self.over_ms = frees_ms(self.observed, now, self.policy)
        if self.over_ms is not None and now.boot_ms >= self.over_ms:
            return (yield from self._create(self.known + 1, began.boot_ms))
        owner = record.owner[:256] if isinstance(record, Record) else "garbled"
        until_ms = None if self.over_ms is None else self._on_wall(self.over_ms)
        self.emit("waiting", owner=owner, epoch=self.known, until_ms=until_ms)
        return None

    def observe(self) -> Procedure[Observation]:
        """The highest epoch, into `known`, and its object."""
        gone = False
        for _ in range(LOOKS_MAX):
            after = epoch_key(self.known) if self.known else ""
            higher = epochs_in((yield from listing(PREFIX, after=after)))
            if not higher and not self.known:
                return Observation(None, None)
            if not higher and gone:
                break
            epoch = self.known = max([self.known, *higher])
            match (yield from read(epoch_key(epoch), limit=RECORD_BYTES_MAX)):
                case Found(body) as found:
                    observation = observation_of(found)
                    resigned = Record("", 0, expired=True, epoch=epoch)
                    return (
                        replace(observation, record=resigned)
                        if RESIGNED.fullmatch(body)
                        else observation
                    )
                case _:
                    gone = True  # collected since it was listed: then there is a higher one by now
        raise ElectionError(
            f"{epoch_key(self.known)} is gone, and no epoch is above it: somebody deleted the "
            'highest epoch, which stays for ever. Put it back with the body {"expired": true}; '
            "deleted for good, its number would be given twice"
        )

    def _create(self, epoch: int, began_ms: int) -> Procedure[float | None]:
        if epoch > EPOCH_MAX:
            raise ElectionError(f"{epoch_key(EPOCH_MAX)} is the last epoch that has a name")
        record = self._record(epoch)
        self.claims.add(record.attempt)
        # Sent once (not `settle_write`): `look`, which comes next, finds what became of it.
        match (yield Put(epoch_key(epoch), encode(record), IfAbsent())):
            case Applied(version):
                if (yield from is_over(epoch)):
                    self.claims.clear()  # it had been decided, and collected
                    self.emit("note", text=f"epoch {epoch} was over before it was created")
                else:
                    self.lead(epoch, version, record.attempt, began_ms)
                return None
            case Throttled(after_s):
                return after_s  # said of this copy: one that went before, hidden, may have landed
            case PreconditionFailed():
                refused(self, epoch, record.attempt, began_ms)
            case Unknown():
                unanswered(self, epoch, record.attempt, began_ms)
            case other:
                raise AssertionError(f"not an answer to a write: {other!r}")
        return None

    def _record(self, epoch: int, *, expired: bool = False) -> Record:
        """The body of one more write, with an attempt of its own."""
        self._writes += 1
        until_ms = self.clock.wall_ms() + self.identity.ttl_ms
        attempt = f"{self.identity.handle or self.identity.owner}/{self._writes}"
        return Record(
            self.identity.owner,
            until_ms,
            expired,
            epoch,
            attempt,
            self.identity.ttl_ms,
            self.identity.holder,
        )

    # --- while it leads --------------------------------------------------------------------------

    def renew(self) -> Procedure[bool]:
        """One renewal, and a look for a later epoch; False: not proven, belief runs on as it was.

        Raises `NotLeader` once another leads, or the belief has ended.
        """
        term = self._leading()
        sent_ms = self.clock.boot_ms()
        record = self._record(term.epoch)
        term.attempts.add(record.attempt)
        # Sent once (not `settle_write`): belief runs on meanwhile, and the next renewal settles it.
        answer = yield Put(epoch_key(term.epoch), encode(record), IfVersion(term.version))
        version: Version | None = None
        match answer:
            case Applied(version):
                term.since_ms = None
            case Throttled():
                term.since_ms = sent_ms if term.since_ms is None else term.since_ms
                return False
            case PreconditionFailed() | Unknown():
                version = yield from renewed(self, term, answer, sent_ms)
            case other:
                raise AssertionError(f"not an answer to a write: {other!r}")
        self._extend(term, version, sent_ms)
        yield from self._look_above(term)
        self._leading()
        return version is not None

    def _leading(self) -> Term:
        term = self.leads()
        if term is None:
            raise NotLeader(
                f"{self.identity.holder or self.identity.owner} does not lead: campaign again"
            )
        return term

    def read_back(self, term: Term) -> Procedure[Version | None]:
        """The version of a renewal of ours that landed; None: none has, so far."""
        found = yield from read(epoch_key(term.epoch), limit=RECORD_BYTES_MAX)
        if not isinstance(found, Found):
            self._lose(term, f"{epoch_key(term.epoch)} is gone: a later epoch leads")
        elif found.version != term.version:
            record = observation_of(found).record
            if isinstance(record, Record) and record.attempt in term.attempts:
                return found.version
            self._lose(term, f"somebody else's write is in {epoch_key(term.epoch)}")
        return None

    def _extend(self, term: Term, version: Version | None, sent_ms: int) -> None:
        """Nothing revives a belief that has ended: who saw the validity end may lead by now."""
        if version is None:
            return
        since_ms = sent_ms if term.since_ms is None else term.since_ms
        term.version, term.since_ms = version, None
        if may_extend(self):
            term.until_ms = self._belief_ends_ms(since_ms)
            if self.leads() is not None:
                until_ms = self._on_wall(term.until_ms)
                self.emit("renewed", epoch=term.epoch, until_ms=until_ms, version=version)

    def _look_above(self, term: Term) -> Procedure[None]:
        """Clocks that are worse than the rules allow for: a later epoch goes before any belief."""
        try:
            higher = epochs_in((yield List(PREFIX, epoch_key(term.epoch))))
        except NoAnswer:
            return  # the next renewal looks again
        if higher:
            self._lose(term, f"epoch {max(higher)} leads")

    def resign(self) -> Procedure[bool]:
        """Leave it to others at once; belief ends first. False: unproven, its validity ends it."""
        term = self.term
        if term is None:
            return True
        if term.until_ms is not None:
            term.until_ms = None
            self.emit("released", epoch=term.epoch, proven=False)
        for tries in range(TRIES_MAX):
            term.epoch, term.version = yield from to_resign(self, term)
            record = self._record(term.epoch, expired=True)
            term.attempts.add(record.attempt)
            put = Put(epoch_key(term.epoch), encode(record), IfVersion(term.version))
            match (yield put):
                case Applied():
                    return self._resigned(term)
                case Throttled(after_s):
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed() | Unknown():
                    pass
                case other:
                    raise AssertionError(f"not an answer to a write: {other!r}")
            found = yield from read(epoch_key(term.epoch), limit=RECORD_BYTES_MAX)
            left = observation_of(found).record if isinstance(found, Found) else None
            if not isinstance(left, Record) or left.attempt not in term.attempts or left.expired:
                return self._resigned(term)  # it is done, or nothing of ours is there any more
            assert isinstance(found, Found)
            term.version = found.version  # a renewal that nobody answered has landed before
            yield Sleep(pause_s(tries))
        return False

    def _resigned(self, term: Term) -> bool:
        self.term = None
        self.emit("released", epoch=term.epoch, proven=True)
        return True


# --- its rules ------------------------------------------------------------------------------------


def counted_from_ms(sent_ms: int, _now_ms: int) -> int:
    """Validity counts from before the request left: the store may have applied it then."""
    return sent_ms


def judged_at(sent: Now, _answered: Now) -> Now:
    """An epoch is over if it was so when the read was sent: it may have been renewed since."""
    return sent


def is_claimed(record: Record, _identity: Identity, claims: Set[str]) -> bool:
    """By the attempt, which is unique: two candidates may have one name."""
    return record.attempt in claims


def is_over(epoch: int) -> Procedure[bool]:
    """A create is believed once a listing shows nothing higher."""
    return bool(epochs_in((yield from listing(PREFIX, after=epoch_key(epoch)))))


def refused(_candidate: Candidate, _epoch: int, _attempt: str, _began_ms: int) -> None:
    """A 412 may be a retry of our own success: the next look tells."""


def unanswered(_candidate: Candidate, _epoch: int, _attempt: str, _began_ms: int) -> None:
    """The next look tells."""


def renewed(
    candidate: Candidate, term: Term, _answer: WriteAnswer, sent_ms: int
) -> Procedure[Version | None]:
    """What became of a renewal is read back, and counts from the first that was not proven."""
    term.since_ms = sent_ms if term.since_ms is None else term.since_ms
    return (yield from candidate.read_back(term))


def may_extend(candidate: Candidate) -> bool:
    """A renewal whose answer comes after the belief had ended extends nothing."""
    return candidate.leads() is not None


def to_resign(_candidate: Candidate, term: Term) -> Procedure[tuple[int, Version]]:
    """Resigning overwrites the very version that is ours."""
    yield from ()
    return term.epoch, term.version
