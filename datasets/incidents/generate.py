"""Records the incidents beside it: lockkit's own client against the embedded server, over boto3.

Each plays what a published failure reports: the fault of its report on the way, and the client with
the rule switched off that the reported one did not have. Histories only; `answers.json` is by hand.
    python datasets/incidents/generate.py [NAME ...]
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockkit.clock import Clock
from lockkit.events import Event, event, write
from lockkit.lab.faults import Fault, FaultPlan, Faulty
from lockkit.lab.server import Emulator
from lockkit.lab.verify.mutants import LEASE_MUTANTS
from lockkit.lock.polling import PollingPace
from lockkit.lock.storage import LOCK_KEY, LeaseClient
from lockkit.protocol.outcome import IfAbsent
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.state import (
    AcquireRequested,
    GiveUp,
    Granted,
    Identity,
    ReleaseRequested,
    RenewDue,
    Tick,
)
from lockkit.runtime import perform
from lockkit.stores import Store, open_store

HERE = Path(__file__).parent
TTL_MS = 3_000
TAKES_MAX = 200
HUDI = Policy(expiry=Expiry.WALL)
LOCK: dict[str, Any] = {"operation": "put", "key": "table_lock.json"}


@dataclass
class Stage:
    """A table's lock, its clients, and what they tell."""

    server: Emulator
    url: str
    clock: Clock = field(default_factory=Clock)
    told: list[Event] = field(default_factory=list)

    def store(self, name: str, *faults: Fault, attempts: int = 1) -> Store:
        faulty = Faulty(FaultPlan(faults), on_fault=self.told.append) if faults else None
        return open_store(
            self.url, endpoint=self.server.s3, client=name, attempts=attempts, faults=faulty,
            region_name="us-east-1",
        )  # fmt: skip

    def client(
        self, name: str, *faults: Fault, policy: Policy = HUDI, attempts: int = 1, ahead_ms: int = 0
    ) -> LeaseClient:
        clock = Clock(offset_ms=ahead_ms)
        owner = self.clock.unique()

        def tell(kind: str, **data: Any) -> None:
            if data.get("until_ms"):
                data["until_ms"] -= ahead_ms  # histories are told on one clock
            self.say(name, kind, **data)

        return LeaseClient(
            where=self.url, store=self.store(name, *faults, attempts=attempts),
            me=Identity(owner, TTL_MS, name, owner), policy=policy, clock=clock,
            pace=PollingPace(), tell=tell,
        )  # fmt: skip

    def say(self, who: str, kind: str, **data: Any) -> None:
        self.told.append(event(self.clock.stamp_ms(), who, kind, **data))

    def wait(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def history(self) -> list[Event]:
        return sorted([*self.server.requests(), *self.told], key=lambda each: each.at_ms)


def take(client: LeaseClient) -> None:
    """Acquire, however long it takes."""
    client.begin()
    told = client.feed(AcquireRequested(client.clock.now()))
    for _ in range(TAKES_MAX):
        if any(isinstance(each, Granted) for each in told):
            return
        client.clock.sleep(0.1)
        told = client.feed(Tick(client.clock.now()))
    raise AssertionError("never granted")


def renew(client: LeaseClient) -> None:
    client.feed(RenewDue(client.clock.now()), patient=True)


def let_go(client: LeaseClient) -> None:
    """One try, as Hudi: what is not answered is given up."""
    client.feed(ReleaseRequested(client.clock.now()))
    if client.state.grant is not None or client.state.out is not None:
        client.feed(GiveUp(client.clock.now()))


def renewal_retried(stage: Stage) -> None:
    one = stage.client("W1", Fault("reset", nth=2, **LOCK), attempts=3)
    take(one)
    stage.wait(0.5)
    with LEASE_MUTANTS["renew_412 lost"].planted():
        renew(one)
    take(stage.client("W2"))


def release_refused(code: int) -> Callable[[Stage], None]:
    def play(stage: Stage) -> None:
        refused = Fault("status", code=code, when="before", nth=2, next="every", **LOCK)
        one = stage.client("W1", refused)
        take(one)
        stage.wait(0.3)
        let_go(one)
        take(stage.client("W2"))

    return play


def claim_retried(stage: Stage) -> None:
    one = stage.client("W1", Fault("reset", **LOCK), attempts=3)
    with LEASE_MUTANTS["claim_412 lost"].planted():
        one.feed(AcquireRequested(one.clock.now()))
        for _ in range(5):
            stage.wait(0.2)
            one.feed(Tick(one.clock.now()))


def claim_unanswered(stage: Stage) -> None:
    one = stage.client("W1", Fault("reset", **LOCK))
    with LEASE_MUTANTS["claim_unknown lost"].planted():
        one.feed(AcquireRequested(one.clock.now()))
        one.feed(GiveUp(one.clock.now()))
    take(stage.client("W2"))


def conditions_ignored(stage: Stage) -> None:
    """Both look, both find nothing, both create."""
    clients = [stage.client(name) for name in ("W1", "W2")]
    going = [each.steps(AcquireRequested(each.clock.now())) for each in clients]
    asked = [each.send(None) for each in going]
    while going:
        for place in reversed(range(len(going))):
            client = clients[place]
            answer = perform(asked[place], client.store, client.clock, client.emit)
            try:
                asked[place] = going[place].send(answer)
            except StopIteration:
                del going[place], asked[place], clients[place]


def deleted_by_hand(stage: Stage) -> None:
    one = stage.client("W1")
    take(one)
    stage.wait(0.3)
    stage.store("operator").delete(LOCK_KEY)
    take(stage.client("W2"))
    renew(one)


def clock_ahead(stage: Stage) -> None:
    one = stage.client("W1")
    take(one)
    stage.wait(0.3)
    renew(one)
    take(stage.client("W2", ahead_ms=3_000))


def buffer_on_both_sides(stage: Stage) -> None:
    with LEASE_MUTANTS["drift_for_holder"].planted():
        take(stage.client("W1"))
        take(stage.client("W2", ahead_ms=450))


def late_commit(stage: Stage) -> None:
    """W1 stalls between its check and its commit; nothing fences it."""
    one, two = stage.client("W1"), stage.client("W2")
    groups = [["part=US", "f-03"]]
    for who, instant in (("W1", "20260101000000001"), ("W2", "20260101000000002")):
        stage.say(who, "began", instant=instant)
    take(one)
    stage.say("W1", "checked", instant="20260101000000001", epoch=1, covered=[], writes=groups)
    stage.say("W1", "stalled", pid=1, why="a long pause for garbage")
    take(two)
    stage.say("W2", "checked", instant="20260101000000002", epoch=2, covered=[], writes=groups)
    commit(stage, two, "20260101000000002", 2)
    let_go(two)
    stage.say("W1", "resumed", pid=1)
    commit(stage, one, "20260101000000001", 1)


def commit(stage: Stage, client: LeaseClient, instant: str, epoch: int) -> None:
    client.store.put(f".hoodie/{instant}.commit", b"{}", IfAbsent())
    stage.say(client.me.holder, "published", instant=instant, epoch=epoch)


def holder_killed(stage: Stage) -> None:
    """Nobody's mistake: its lease ends, and the next one goes on."""
    take(stage.client("W1"))
    stage.say("W1", "killed", pid=1)
    take(two := stage.client("W2"))
    let_go(two)


def read_back(stage: Stage) -> None:
    """The lost answers of 14373, met by every rule: nothing happens."""
    one = stage.client("W1", Fault("reset", nth=1, next=2, **LOCK), policy=Policy(), attempts=3)
    take(one)
    renew(one)
    renew(one)
    let_go(one)
    take(two := stage.client("W2"))
    let_go(two)


INCIDENTS: dict[str, Callable[[Stage], None]] = {
    "hudi-14373-renewal-retried": renewal_retried,
    "hudi-18438-release-429": release_refused(429),
    "hudi-20027-release-500": release_refused(500),
    "opentofu-4405-lock-against-itself": claim_retried,
    "hudi-14286-claim-unanswered": claim_unanswered,
    "incus-3651-conditions-ignored": conditions_ignored,
    "hudi-11347-deleted-by-hand": deleted_by_hand,
    "hudi-19574-clock-ahead": clock_ahead,
    "hudi-rfc91-buffer-on-both-sides": buffer_on_both_sides,
    "hudi-17871-late-commit": late_commit,
    "hudi-9015-holder-killed": holder_killed,
    "slatedb-1164-read-back": read_back,
}


def record(name: str) -> None:
    profile = "spaces" if INCIDENTS[name] is conditions_ignored else "aws"
    with Emulator(profile=profile) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stage = Stage(server, "s3://lake/orders")
        INCIDENTS[name](stage)
        with (HERE / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            write(stage.history(), file)


if __name__ == "__main__":
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "anybody")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "anything")
    for each in sys.argv[1:] or INCIDENTS:
        record(each)
