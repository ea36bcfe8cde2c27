"""The lease, told as transcripts: a script line, and what the protocol made of it.

`tests/transcripts/*.txt` are read here, played through `lease.step` against one object, and
compared line by line. After a change that is meant: `LOCKKIT_REWRITE=1 pytest tests/test_lease.py`,
then read the difference before committing it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lockkit.protocol.expiry import free, frees_ms
from lockkit.protocol.lease import step
from lockkit.protocol.outcome import (
    Applied,
    Ours,
    PreconditionFailed,
    StillOut,
    Throttled,
    Unknown,
    WriteAnswer,
    resolve,
)
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.record import Garbled, Record
from lockkit.protocol.state import (
    AcquireRequested,
    Action,
    ClaimLost,
    DeleteRecord,
    Event,
    GiveUp,
    Granted,
    HeldByOther,
    Identity,
    LastObservation,
    LeaseLost,
    Now,
    Observation,
    Pause,
    ReadAnswered,
    ReadFailed,
    ReadRecord,
    Released,
    ReleaseRequested,
    RenewDue,
    Renewed,
    State,
    Tick,
    WriteAnswered,
    WriteRecord,
    believes,
)

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
TTL_MS = 10_000
WALL_AHEAD_MS = 1_736_000_000_000


# --- a stage for transcripts --------------------------------------------------------------------


@dataclass
class Player:
    """One client of a transcript: its state, its request that is out, and the store's answer."""

    identity: Identity
    state: State = field(default_factory=State)
    out: ReadRecord | WriteRecord | DeleteRecord | None = None
    answer: Event | None = None
    requests: int = 0


@dataclass
class Stage:
    """Plays script lines; `said` grows with what happens."""

    policy: Policy = field(default_factory=Policy)
    now_ms: int = 0
    observation: Observation = field(default_factory=lambda: Observation(None, None))
    writes: int = 0
    players: dict[str, Player] = field(default_factory=dict)
    late: dict[str, WriteRecord] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def play(self, line: str) -> list[str]:
        self.said = []
        words = line.split()
        match words:
            case [time] if time.startswith("+"):
                self.now_ms += round(float(time[1:-1]) * 1000)
            case ["rules", setting]:
                name, _, value = setting.partition("=")
                self.policy = replace(self.policy, **{name: Expiry(value)})
            case ["object", *rest]:
                self._put_by_others(rest)
            case ["ok", name]:
                self._decide(name)
                self._hear(name)
            case ["store", name]:
                self._decide(name)
            case ["again", name]:
                self._decide(name)
            case ["late", name]:
                self._apply(name, self.late.pop(name))
            case ["state", name]:
                self._show(name)
            case [name, *rest]:
                self._act(name, rest)
        return self.said

    def _act(self, name: str, words: list[str]) -> None:
        now = self._now()
        match words:
            case ["wants"]:
                self._step(name, AcquireRequested(now))
            case ["wants", "above", floor]:
                self._step(name, AcquireRequested(now, int(floor)))
            case ["beat"]:
                self._step(name, RenewDue(now))
            case ["beats", "above", floor]:
                self._step(name, RenewDue(now, int(floor)))
            case ["quits"]:
                self._step(name, ReleaseRequested(now))
            case ["ticks"]:
                self._step(name, Tick(now))
            case ["gives", "up"]:
                self._step(name, GiveUp(now))
            case ["hears"]:
                self._hear(name)
            case ["hears", "nothing"]:
                self._silence(name)
            case ["is", "throttled"]:
                self._step(name, WriteAnswered(now, Throttled(1.0)))
            case _:
                raise ValueError(f"no such line in a transcript: {name} {' '.join(words)}")

    # --- the store ---

    def _decide(self, name: str) -> None:
        player = self._player(name)
        match player.out:
            case ReadRecord(unless):
                if unless is not None and unless == self.observation.version:
                    self.said.append("the store: 304")
                    player.answer = ReadAnswered(self._now(), None, self._date_ms())
                else:
                    self.said.append(f"the store: {self._body()}")
                    player.answer = ReadAnswered(
                        self._now(), replace(self.observation, date_ms=self._date_ms())
                    )
            case WriteRecord() as send:
                player.answer = WriteAnswered(self._now(), self._apply(name, send))
            case _:
                raise ValueError(f"{name} has nothing out")

    def _apply(self, name: str, send: WriteRecord) -> WriteAnswer:
        if send.over != self.observation.version:
            self.said.append(f"the store refuses {send.record.attempt}: 412")
            return PreconditionFailed()
        self.writes += 1
        version = f"v{self.writes}"
        self.observation = Observation(version, send.record, modified_ms=self._date_ms())
        self.said.append(f"the store applies {send.record.attempt} as {version}")
        return Applied(version)

    def _put_by_others(self, words: list[str]) -> None:
        self.writes += 1
        until_ms = WALL_AHEAD_MS + self.now_ms + TTL_MS
        record: Record | Garbled
        match words:
            case ["hudi", owner]:
                record = Record(owner, until_ms)
            case ["garbled"]:
                record = Garbled("it is not JSON (truncated, or written by something else)")
            case _:
                raise ValueError(f"no such object in a transcript: {words}")
        self.observation = Observation(f"v{self.writes}", record, modified_ms=self._date_ms())
        self.said.append(f"the object is {self._body()}")

    def _body(self) -> str:
        match self.observation.record:
            case None:
                return "nothing there"
            case Garbled(why):
                return f"{self.observation.version}, no lock record: {why}"
            case Record(owner=owner, epoch=epoch, expired=expired):
                state = "released" if expired else "held"
                return f"{self.observation.version}, {state} by {owner}, epoch {epoch}"

    # --- a client ---

    def _step(self, name: str, event: Event) -> None:
        player = self._player(name)
        player.out = player.answer = None
        player.state, actions = step(player.identity, player.state, event, self.policy)
        for each in actions:
            self.said.append(f"{name} {self._words(player, each)}")
            if isinstance(each, ReadRecord | WriteRecord | DeleteRecord):
                player.out, player.requests = each, player.requests + 1

    def _hear(self, name: str) -> None:
        answer = self._player(name).answer
        assert answer is not None, f"the store has not answered {name}"
        self._step(name, replace(answer, now=self._now()))

    def _silence(self, name: str) -> None:
        player = self._player(name)
        if isinstance(player.out, WriteRecord) and player.answer is None:
            self.late[name] = player.out
        looked = isinstance(player.out, ReadRecord)
        now = self._now()
        self._step(
            name, ReadFailed(now, "timeout") if looked else WriteAnswered(now, Unknown("timeout"))
        )

    def _words(self, player: Player, action: Action) -> str:
        until = (player.state.until_ms or 0) / 1000
        match action:
            case ReadRecord(unless):
                return "looks" if unless is None else f"looks, unless it is still {unless}"
            case WriteRecord(record, over):
                purpose = player.state.out.purpose.value if player.state.out else "?"
                what = f"{purpose} {record.attempt}, epoch {record.epoch}"
                return f"sends {what}, over {over or 'nothing'}"
            case Granted(epoch):
                return f"holds epoch {epoch} until {until:g} s"
            case Renewed(epoch):
                return f"renewed epoch {epoch} until {until:g} s"
            case LeaseLost(epoch, why):
                return f"has lost epoch {epoch}: {why}"
            case HeldByOther(record, frees):
                who = record.owner if isinstance(record, Record) else "a garbled object"
                when = "never by itself" if frees is None else f"free at {frees / 1000:g} s"
                return f"waits for {who}, {when}"
            case ClaimLost(attempt):
                return f"was beaten: {attempt} did not win"
            case Released(epoch, proven):
                return f"released epoch {epoch}{'' if proven else ', unproven'}"
            case Pause(seconds):
                return "pauses" if seconds is None else f"pauses {seconds:g} s"
            case DeleteRecord():
                return "deletes the object"

    def _show(self, name: str) -> None:
        player = self._player(name)
        believing = "believes" if believes(player.state, self._now()) else "does not believe"
        phase, requests = player.state.phase.value, player.requests
        self.said.append(f"{name} is {phase}, {believing}, {requests} requests so far")

    def _player(self, name: str) -> Player:
        return self.players.setdefault(name, Player(Identity(name, TTL_MS)))

    def _now(self) -> Now:
        return Now(self.now_ms, WALL_AHEAD_MS + self.now_ms)

    def _date_ms(self) -> int:
        return (WALL_AHEAD_MS + self.now_ms) // 1000 * 1000


def played(text: str) -> Iterator[str]:
    """The transcript with its results made anew: comments and script lines stay as they are."""
    stage = Stage()
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        yield line
        if line and not line.startswith("#"):
            yield from (f"    {said}" for said in stage.play(line))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_lease_does_what_its_transcript_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    now = "\n".join(played(text)) + "\n"
    if os.environ.get("LOCKKIT_REWRITE"):
        path.write_text(now, encoding="utf-8")
    assert now == text


def test_there_are_transcripts_and_each_begins_with_what_it_shows() -> None:
    assert len(TRANSCRIPTS) >= 12
    for path in TRANSCRIPTS:
        assert re.match(r"# \w.*\.\n", path.read_text(encoding="utf-8")), path.name


# --- expiry: three policies behind one function -------------------------------------------------

HELD = Record("another", WALL_AHEAD_MS + TTL_MS, epoch=3, attempt="another/1", ttl_ms=TTL_MS)
ENDS_MS = WALL_AHEAD_MS + TTL_MS
BY_HUDI = Record("hudi", ENDS_MS)


@pytest.mark.parametrize(
    ("expiry", "record", "dates", "frees_s"),
    [
        # the store's clock: 4 s of a 10 s lease had passed when the answer came, plus 2 s of slack
        (Expiry.STORE, HELD, (0, 4_000), 8.0),
        # no Date, or a record without ttlMs: the wall clock, plus Hudi's 500 ms
        (Expiry.STORE, HELD, (0, None), 10.5),
        (Expiry.STORE, HELD, (None, 4_000), 10.5),
        (Expiry.STORE, BY_HUDI, (0, None), 10.5),
        # it names only its end, which must have passed by the store's clock as well
        (Expiry.STORE, BY_HUDI, (0, WALL_AHEAD_MS - 600_000), 610.5),
        (Expiry.STORE, BY_HUDI, (0, WALL_AHEAD_MS + 600_000), 10.5),
        (Expiry.OBSERVED, BY_HUDI, (0, WALL_AHEAD_MS - 600_000), 610.5),
        # over when it was written: its clock is behind, so three renewals must be missing
        (Expiry.STORE, BY_HUDI, (ENDS_MS, ENDS_MS + 4_000), 86.0),
        (Expiry.STORE, BY_HUDI, (ENDS_MS - 1, ENDS_MS + 4_000), 10.5),
        (Expiry.WALL, BY_HUDI, (ENDS_MS, ENDS_MS + 4_000), 10.5),
        (Expiry.WALL, BY_HUDI, (0, WALL_AHEAD_MS - 600_000), 10.5),
        (Expiry.WALL, HELD, (0, 4_000), 10.5),
        # a whole lease on my own clock since I first saw this version
        (Expiry.OBSERVED, HELD, (0, 4_000), 10.0),
        (Expiry.OBSERVED, BY_HUDI, (0, None), 10.5),
        # a tombstone, or nothing there: now
        (Expiry.STORE, replace(HELD, expired=True), (0, 4_000), 0.0),
        (Expiry.STORE, None, (None, 4_000), 0.0),
        # what is not a lock record never frees by itself, whatever the clocks say
        (Expiry.STORE, Garbled("it is empty"), (0, 4_000), None),
        (Expiry.WALL, Garbled("it is empty"), (0, 4_000), None),
    ],
)
def test_a_lease_frees_by_the_clock_that_its_policy_trusts(
    expiry: Expiry,
    record: Record | Garbled | None,
    dates: tuple[int | None, int | None],
    frees_s: float | None,
) -> None:
    policy, now = Policy(expiry=expiry), Now(0, WALL_AHEAD_MS)
    seen = LastObservation(Observation("v1", record, *dates), since_ms=0, read_ms=0)
    at_ms = frees_ms(seen, now, policy)
    assert at_ms == (None if frees_s is None else frees_s * 1000)
    if at_ms:
        last = Now(round(at_ms) - 1, WALL_AHEAD_MS + round(at_ms) - 1)
        assert not free(seen, last, policy)
        assert free(seen, Now(round(at_ms), WALL_AHEAD_MS + round(at_ms)), policy)


def test_a_304_without_a_date_continues_from_the_last_date_and_not_from_the_wall_clock() -> None:
    policy, identity = Policy(), Identity("W1", TTL_MS)
    far_future = replace(HELD, valid_until_ms=WALL_AHEAD_MS + 3_600_000)  # its clock is an hour off
    state, _ = step(identity, State(), AcquireRequested(Now(0, WALL_AHEAD_MS)), policy)
    observation = Observation("v1", far_future, modified_ms=0, date_ms=4_000)
    state, _ = step(identity, state, ReadAnswered(Now(0, WALL_AHEAD_MS), observation), policy)
    state, _ = step(identity, state, Tick(Now(5_000, WALL_AHEAD_MS + 5_000)), policy)
    _, (busy,) = step(
        identity, state, ReadAnswered(Now(5_000, WALL_AHEAD_MS + 5_000), None, None), policy
    )
    assert isinstance(busy, HeldByOther)
    assert busy.frees_ms == 8_000


# --- reading back -------------------------------------------------------------------------------


def test_a_write_is_recognised_by_its_attempt_only() -> None:
    assert resolve("v2", "W1/2", attempt="W1/2", wrote_over="v1") == Ours("v2")
    assert resolve("v1", "W1/1", attempt="W1/2", wrote_over="v1") == StillOut()
    assert resolve(None, None, attempt="W1/1", wrote_over=None) == StillOut()
    # another attempt of the same owner is somebody else's write: it proves nothing about this one
    assert not isinstance(resolve("v3", "W1/3", attempt="W1/2", wrote_over="v1"), Ours)


def test_two_writes_never_have_the_same_attempt() -> None:
    stage, attempts = Stage(), []
    for _ in range(5):
        for line in ("W1 wants", "W1 quits"):
            stage.play(line)
            while stage.players["W1"].out is not None:
                out = stage.players["W1"].out
                if isinstance(out, WriteRecord):
                    attempts.append(out.record.attempt)
                stage.play("ok W1")
    assert len(attempts) == len(set(attempts)) == 10
