"""A candidate: one node's part in an election by epochs (Morling, 2024).

`lock_0000000007.json` is epoch 7. If the highest epoch was resigned or has expired, a candidate
creates the next one with create-if-absent, and the store decides the race. The epoch is the fencing
token of every write of its leader (`guarded`). The highest epoch is never collected, because its
number could then be granted twice.

Each epoch has its own object, so the store never refuses a write of one epoch because of another.
This needs three rules. A renewal can succeed although a later epoch leads, so it counts only if its
answer arrives before the lease has expired. An epoch may be renewed after a candidate has read it,
so its expiry is judged as of when the read was sent. An older epoch may have been collected, so a
delayed create of it can succeed; a create counts only if a listing then shows no higher epoch.

One file because it is one class: a node from its campaign to its resignation, and its rules.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import assert_never

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, clipped
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
from lockkit.runtime import List, Procedure, Sleep
from lockkit.runtime.proven import TRIES_MAX, listing, pause_s, put_once, read
from lockkit.sinks import Emit, silent

LOOKS_MAX = 5
"""How many times the highest epoch may be collected between our listing and our read."""


@dataclass(slots=True)
class Term:
    """An epoch of ours, from its creation until it is proven to be over."""

    epoch: int
    version: Version
    until_ms: int | None
    """When the lease expires, in ms of our boot clock. None: it has expired."""
    attempts: set[str]
    """The attempts of all our writes to its object."""
    since_ms: int | None = None
    """When the first renewal with an unknown outcome was sent."""


@dataclass(slots=True)
class Candidate:
    """One node of an election, as procedures: look and lead (`confirm`), renew, resign.

    The lease is measured on `clock`. Not thread-safe.
    """

    identity: Identity
    clock: Clock
    policy: Policy = field(default_factory=Policy)
    emit: Emit = silent
    known: int = 0
    """The highest epoch that this node has seen."""
    observed: LastObservation | None = None
    """The highest epoch's object at the last look."""
    over_ms: int | None = None
    """When that epoch expires unless it is renewed, in ms of our boot clock; None: it does not."""
    term: Term | None = None
    claims: set[str] = field(default_factory=set)
    """The attempts of creates of the next epoch with an unknown outcome."""
    _looked_ms: int = 0
    """When the last look began. A create that it did not show was applied after that."""
    _writes: int = 0

    # --- belief ----------------------------------------------------------------------------------

    def leads(self) -> Term | None:
        """The term in which this node leads now; None if it does not lead. Sends no request."""
        term = self.term
        if term is None or term.until_ms is None:
            return None
        if self.clock.boot_ms() >= term.until_ms:
            self._lose(term, "no renewal was proven in time")
            return None
        return term

    def lead(self, epoch: int, version: Version, attempt: str, since_ms: int) -> None:
        """Begin a term. The lease counts from `since_ms`, the earliest time of the create."""
        self.claims.clear()
        self.known = epoch
        until_ms = self._belief_ends_ms(since_ms)
        if until_ms > self.clock.boot_ms():
            self.term = Term(epoch, version, until_ms, {attempt})
            self.emit("held", epoch=epoch, until_ms=self._on_wall(until_ms), version=version)
        else:
            self.term = Term(epoch, version, None, {attempt})
            self.emit("note", text=f"epoch {epoch} was created too late, and is resigned")

    def _belief_ends_ms(self, since_ms: int) -> int:
        return counted_from_ms(since_ms, self.clock.boot_ms()) + self._belief_ms

    @property
    def _belief_ms(self) -> int:
        return self.identity.ttl_ms - min(self.policy.margin_ms, self.identity.ttl_ms // 10)

    @property
    def proven_ms(self) -> float:
        """When the last proven write was about to be sent, in ms of our boot clock."""
        term = self.term
        return 0 if term is None or term.until_ms is None else term.until_ms - self._belief_ms

    def emit_danger(self) -> None:
        """Renewal is overdue."""
        term = self.term
        if term is not None and term.until_ms is not None:
            self.emit("danger", epoch=term.epoch, until_ms=self._on_wall(term.until_ms))

    def lose(self, why: str) -> None:
        """Stop leading, for a reason from outside the protocol."""
        if self.term is not None:
            self._lose(self.term, why)

    def _lose(self, term: Term, why: str) -> None:
        if term.until_ms is not None:
            term.until_ms = None
            self.emit("lost", epoch=term.epoch, why=why)

    def _on_wall(self, boot_ms: float) -> float:
        return self.clock.wall_ms() + (boot_ms - self.clock.boot_ms())

    # --- looking, and leading if there is no leader -----------------------------------------------

    def confirm(self) -> Procedure[bool]:
        """Whether this node leads. If the highest epoch has expired, it creates the next one.

        False: another node leads (`observed`), or the outcome is unknown. Raises `Unanswered`,
        `ElectionError`.
        """
        if self.leads():
            return True
        for tries in range(TRIES_MAX):
            if self.term is not None and not (yield from self.resign()):
                return False  # we never wait for our own epoch to expire
            after_s = yield from self._round()
            if self.leads():
                return True
            if not self.claims and self.term is None:
                return False
            yield Sleep(pause_s(tries, after_s))
        return False

    def _round(self) -> Procedure[float | None]:
        """One look, and at most one create. Returns the store's retry delay in seconds, if any."""
        began, before = self.clock.now(), self.known
        observation = yield from self.observe()
        record, answered_at = observation.record, self.clock.now()
        if isinstance(record, Record) and is_claimed(record, self.identity, self.claims):
            assert observation.version is not None
            self.lead(self.known, observation.version, record.attempt, self._looked_ms)
            return None
        self._looked_ms = began.boot_ms
        if self.known > before:
            self.claims.clear()  # another node won it
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
        owner = clipped(record.owner, 256) if isinstance(record, Record) else "garbled"
        until_ms = None if self.over_ms is None else self._on_wall(self.over_ms)
        self.emit("waiting", owner=owner, epoch=self.known, until_ms=until_ms)
        return None

    def observe(self) -> Procedure[Observation]:
        """Store the highest epoch in `known`; return its object."""
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
                    gone = True  # collected since the listing, so a higher epoch exists by now
        raise ElectionError(
            epoch_key(self.known),
            "is gone, and no higher epoch exists: somebody deleted the highest epoch, which "
            "must stay",
            'restore it with the body {"expired": true}, or its number is granted twice',
        )

    def _create(self, epoch: int, began_ms: int) -> Procedure[float | None]:
        if epoch > EPOCH_MAX:
            raise ElectionError(epoch_key(EPOCH_MAX), "is the last epoch")
        record = self._record(epoch)
        self.claims.add(record.attempt)
        # Sent once (not `settle_write`): the next look reads the outcome.
        match (yield from put_once(epoch_key(epoch), encode(record), IfAbsent())):
            case Applied(version):
                if (yield from is_over(epoch)):
                    self.claims.clear()  # it had been led and collected before
                    self.emit("note", text=f"epoch {epoch} was over before it was created")
                else:
                    self.lead(epoch, version, record.attempt, began_ms)
                return None
            case Throttled(after_s):
                return after_s  # this copy was refused; a hidden earlier copy may have been applied
            case PreconditionFailed():
                refused(self, epoch, record.attempt, began_ms)
            case Unknown():
                unanswered(self, epoch, record.attempt, began_ms)
            case never:
                assert_never(never)
        return None

    def _record(self, epoch: int, *, expired: bool = False) -> Record:
        """The body of one write, with a new attempt."""
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
        """Renew once and look for a later epoch. False: not proven, and the lease is unchanged.

        Raises `NotLeader` if another node leads or the lease has expired.
        """
        term = self._leading()
        sent_ms = self.clock.boot_ms()
        record = self._record(term.epoch)
        term.attempts.add(record.attempt)
        # Sent once (not `settle_write`): the lease is still valid, and the next renewal settles it.
        key, body, condition = epoch_key(term.epoch), encode(record), IfVersion(term.version)
        answer = yield from put_once(key, body, condition)
        version: Version | None = None
        match answer:
            case Applied(version):
                term.since_ms = None
            case Throttled():
                term.since_ms = sent_ms if term.since_ms is None else term.since_ms
                return False
            case PreconditionFailed() | Unknown():
                version = yield from renewed(self, term, answer, sent_ms)
            case never:
                assert_never(never)
        self._extend(term, version, sent_ms)
        yield from self._look_above(term)
        self._leading()
        return version is not None

    def _leading(self) -> Term:
        term = self.leads()
        if term is None:
            raise NotLeader(
                self.identity.holder or self.identity.owner, "does not lead", "campaign again"
            )
        return term

    def read_back(self, term: Term) -> Procedure[Version | None]:
        """The version of our renewal that was applied; None: none was, so far."""
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
        """Never extends an expired lease: another node may have seen it expire and may lead."""
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
        """A later epoch ends the lease, even if clocks drift more than the rules allow."""
        try:
            higher = epochs_in((yield List(PREFIX, epoch_key(term.epoch))))
        except NoAnswer:
            return  # the next renewal looks again
        if higher:
            self._lose(term, f"epoch {max(higher)} leads")

    def resign(self) -> Procedure[bool]:
        """End the term at once. False: not proven; the epoch then ends when it expires."""
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
            # Sent once (not `settle_write`): it may follow a renewal whose outcome is unknown.
            key, body, condition = epoch_key(term.epoch), encode(record), IfVersion(term.version)
            match (yield from put_once(key, body, condition)):
                case Applied():
                    return self._resigned(term)
                case Throttled(after_s):
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed() | Unknown():
                    pass
                case never:
                    assert_never(never)
            found = yield from read(epoch_key(term.epoch), limit=RECORD_BYTES_MAX)
            left = observation_of(found).record if isinstance(found, Found) else None
            if not isinstance(left, Record) or left.attempt not in term.attempts or left.expired:
                return self._resigned(term)  # it was applied, or the object is no longer ours
            assert isinstance(found, Found)
            term.version = found.version  # an earlier renewal was applied without an answer
            yield Sleep(pause_s(tries))
        return False

    def _resigned(self, term: Term) -> bool:
        self.term = None
        self.emit("released", epoch=term.epoch, proven=True)
        return True


# --- its rules ------------------------------------------------------------------------------------


def counted_from_ms(sent_ms: int, _now_ms: int) -> int:
    """Validity counts from before the request was sent: the store may apply it right then."""
    return sent_ms


def judged_at(sent: Now, _answered: Now) -> Now:
    """An epoch is judged as of when the read was sent: it may have been renewed since."""
    return sent


def is_claimed(record: Record, _identity: Identity, claims: Set[str]) -> bool:
    """Compares the attempt, which is unique: two candidates may have the same name."""
    return record.attempt in claims


def is_over(epoch: int) -> Procedure[bool]:
    """Whether a listing shows a higher epoch. A create counts only if it does not."""
    return bool(epochs_in((yield from listing(PREFIX, after=epoch_key(epoch)))))


def refused(_candidate: Candidate, _epoch: int, _attempt: str, _began_ms: int) -> None:
    """A 412 may answer a retry of our own create: the next look settles it."""


def unanswered(_candidate: Candidate, _epoch: int, _attempt: str, _began_ms: int) -> None:
    """The next look settles it."""


def renewed(
    candidate: Candidate, term: Term, _answer: WriteAnswer, sent_ms: int
) -> Procedure[Version | None]:
    """Read the outcome back. The lease then counts from the first renewal that was not proven."""
    term.since_ms = sent_ms if term.since_ms is None else term.since_ms
    return (yield from candidate.read_back(term))


def may_extend(candidate: Candidate) -> bool:
    """An answer that arrives after the lease expired extends nothing."""
    return candidate.leads() is not None


def to_resign(_candidate: Candidate, term: Term) -> Procedure[tuple[int, Version]]:
    """A resignation overwrites exactly our own version."""
    yield from ()
    return term.epoch, term.version
