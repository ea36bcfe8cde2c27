"""The worlds of the first exercises: three clients that call the reader's function, and the rules.

The task in full is in the notebook. A broken rule raises `Violated` as soon as it can be seen.
One file because the worlds share their form, and none is longer than a page.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from lockkit.lab.course.trial import CALLS, CLIENTS, Exercise, parsed
from lockkit.lab.verify.sim.fault_profile import FaultKind
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion
from lockkit.runtime import Delete, Procedure, Sleep
from lockkit.runtime.proven import put_once, read, settle_write

TRIES_MAX = 50
"""Of calls for one entry: a call may return False only if another one was published meanwhile."""


class Acquire(Exercise):
    """`acquire(key, mine)`: True if the object at `key` is `mine`, False if it is another's."""

    KEY = "lock.json"
    SHARES = (0.1, 0.9)
    """A client that gives up after some tries meets so many losses in a row."""

    def prepare(self) -> None:
        self.answers = dict[str, bool]()

    def client(self, node: Node) -> Procedure[None]:
        holds = yield from self.trial.call(node, bool, self.KEY, f"lock of {node.name}".encode())
        others = [name for name, each in self.answers.items() if each]
        if holds and others:
            raise Violated("one holder", f"{node.name} and {others[0]} count on the lock at once")
        if not holds and self.KEY not in self.trial.world.memory_store.objects:
            why = f"acquire() of {node.name} returned False, but no client has the lock"
            raise Violated("False: another client has the lock", why)
        self.answers[node.name] = holds

    def end(self) -> None:
        there = self.trial.world.memory_store.objects.get(self.KEY)
        if there is None:
            raise Violated("one client holds it", "all calls ended, but no client has the lock")
        owner = there.body.decode().rpartition(" ")[2]
        if not self.answers.get(owner):
            raise Violated("the holder learns that it holds the lock",
                           f"the store has the lock of {owner}, but its call returned False: no "
                           "client will release it")  # fmt: skip


class Publish(Exercise):
    """`publish(key, seen, body, entry)`: replace version `seen` with `body`."""

    KEY = "commits.txt"

    def prepare(self) -> None:
        self.done = list[str]()
        self.trial.put(self.KEY, b"table\n")

    def client(self, node: Node) -> Procedure[None]:
        for number in range(1, CALLS + 1):
            entry, done, tries = f"{node.name}-{number}", False, 0
            while not done:
                if (tries := tries + 1) > TRIES_MAX:
                    raise Violated("an entry is published", f"{TRIES_MAX} calls for {entry} failed")
                seen = yield from read(self.KEY)
                assert isinstance(seen, Found)
                body = seen.body + entry.encode() + b"\n"
                done = yield from self.trial.call(node, bool, self.KEY, seen.version, body, entry)
                if not done:
                    yield Sleep(self.trial.world.dice.random())
            self.done.append(entry)
            self.check()

    def on_write(self, _decided: DecidedRequest, _after: StoredObject | None) -> None:
        self.check()

    def check(self) -> None:
        count = Counter(self.trial.world.memory_store.objects[self.KEY].body.decode().split())
        for entry, times in count.items():
            if times > 1:
                raise Violated(
                    "False means never",
                    f"{entry} is there twice: the call returned False, and it was written again",
                )
        for entry in self.done:
            if not count[entry]:
                raise Violated(
                    "no acknowledged entry is lost", f"{entry} was published, but is gone"
                )

    def end(self) -> None:
        self.check()


class Conflicts(Exercise):
    """`conflicts(mine, later)`: whether my write must be refused."""

    KEY = "table.json"
    GROUPS, BEFORE = ("A", "B", "C", "D", "E", "F"), 8
    """W3 read the table so many commits ago, for its first write."""

    def prepare(self) -> None:
        before = [sorted(self.drawn()) for _ in range(self.BEFORE)]
        rows = {group: sum(group in each for each in before) for group in self.GROUPS}
        self.trial.put(self.KEY, json.dumps({"commits": before, "rows": rows}).encode())

    def drawn(self) -> frozenset[str]:
        dice = self.trial.world.dice
        return frozenset(dice.sample(self.GROUPS, dice.choice((1, 2))))

    def client(self, node: Node) -> Procedure[None]:
        old = node.name == CLIENTS[-1]
        for _ in range(CALLS):
            mine = self.drawn()
            while True:
                seen, _ = yield from parsed(self.KEY)
                base, rows = len(seen["commits"]), seen["rows"]
                if old:
                    base, rows, old = 0, dict.fromkeys(self.GROUPS, 0), False
                yield Sleep(self.trial.world.dice.random())
                now, version = yield from parsed(self.KEY)
                later = [frozenset(each) for each in now["commits"][base:]]
                if self.refused(node, mine, later):
                    continue
                for group in mine:
                    now["rows"][group] = rows[group] + 1
                now["commits"].append(sorted(mine))
                body = json.dumps(now).encode()
                settled = yield from settle_write(self.KEY, body, IfVersion(version))
                if isinstance(settled, str):
                    self.check(node, now)
                    break

    def refused(self, node: Node, mine: frozenset[str], later: list[frozenset[str]]) -> bool:
        refused: bool = self.trial.decide(node, bool, mine, list(later))
        said = f"conflicts({braced(mine)}, [{', '.join(map(braced, later))}]) returns {refused}"
        self.trial.note(node, said)
        if refused and not any(mine & each for each in later):
            raise Violated("no write is refused without a reason", said)
        return refused

    def check(self, node: Node, now: dict[str, Any]) -> None:
        for group, value in now["rows"].items():
            commits = sum(group in each for each in now["commits"])
            if value != commits:
                raise Violated(
                    "no lost update", f"{commits} commits each added 1 to {group}, which is "
                    f"{value}: {node.name} wrote from an old snapshot",
                )  # fmt: skip


def braced(of: frozenset[str]) -> str:
    return "{" + ",".join(sorted(of)) + "}"


class Campaign(Exercise):
    """`campaign(folder, owner, attempt)`: the number of the epoch that I lead, or None."""

    FOLDER = "epochs/"

    def prepare(self) -> None:
        self.creator: dict[int, str] = {}
        self.calling: dict[str, str] = {}
        self.answers: dict[str, int | None] = {}

    def on_write(self, decided: DecidedRequest, _after: StoredObject | None) -> None:
        key = getattr(decided.request, "key", "")
        number = key.removeprefix(self.FOLDER)
        if len(number) != 6 or not number.isdigit():
            raise Violated("an epoch has six digits", f"{decided.client} wrote {key!r}")
        if int(number) > max(self.creator, default=0) + 1:
            raise Violated("the next epoch is one higher", f"{decided.client} created {key!r}")
        if int(number) in self.creator:
            raise Violated(
                "an epoch is created once", f"{decided.client} replaced epoch {int(number)}"
            )
        self.creator[int(number)] = self.calling[decided.client]

    def client(self, node: Node) -> Procedure[None]:
        owner = "driver" if node.name in CLIENTS[:2] else "other"
        for number in range(1, CALLS + 1):
            attempt = self.calling[node.name] = f"{node.name}-{number}"
            before = len(self.creator)
            epoch = yield from self.trial.call(node, int, self.FOLDER, owner, attempt)
            self.answers[attempt] = epoch
            if epoch is not None and self.creator.get(epoch) != attempt:
                raise Violated("one leader of an epoch",
                               f"{attempt} acts as the leader of epoch {epoch}, which "
                               f"{self.creator.get(epoch, 'no call')} created")  # fmt: skip
            quiet = len(self.creator) == before and set(self.trial.world.faults) <= {"stall"}
            if epoch is None and quiet:
                raise Violated("an undisturbed call leads", f"{attempt} created no epoch")
            yield Sleep(self.trial.world.dice.random())

    def end(self) -> None:
        for epoch, attempt in sorted(self.creator.items()):
            if self.answers[attempt] != epoch:
                raise Violated(
                    "the leader learns that it leads",
                    f"{attempt} created epoch {epoch}, but its call returned "
                    f"{self.answers[attempt]}: the others wait for a leader that does not lead",
                )


class Append(Exercise):
    """`append(folder, record)`: add `record` to a log, and return the number of its slot."""

    FOLDER = "log/"

    def prepare(self) -> None:
        self.done = dict[str, int]()

    def client(self, node: Node) -> Procedure[None]:
        for number in range(1, CALLS + 1):
            record = f"{node.name}-{number}"
            slot = yield from self.trial.call(node, int, self.FOLDER, record.encode())
            if slot is None or self.log().get(self.key(slot)) != record:
                raise Violated(
                    "an acknowledged record is in the log",
                    f"append() returned slot {slot} for {record}, which is not there",
                )
            self.done[record] = slot

    def key(self, slot: int) -> str:
        return f"{self.FOLDER}{slot:06}"

    def log(self) -> dict[str, str]:
        objects = self.trial.world.memory_store.objects
        return {key: each.body.decode() for key, each in sorted(objects.items())}

    def on_write(self, decided: DecidedRequest, _after: StoredObject | None) -> None:
        log = self.log()
        for record, times in Counter(log.values()).items():
            if times > 1:
                raise Violated("a record is in the log once", f"{record} is in {times} slots")
        gone = [each for each, slot in self.done.items() if log.get(self.key(slot)) != each]
        if gone:
            raise Violated("acknowledged records stay", f"{decided.client} wrote over {gone[0]}")
        for slot, key in enumerate(log, 1):
            if key != self.key(slot):
                raise Violated(
                    "no gap", f"{decided.client} wrote {key}, and {self.key(slot)} is empty"
                )


class Order(Exercise):
    """`order(keys)`: the order in which to take the locks of `keys`, as a list."""

    KEYS = ("a", "b", "c", "d")
    KINDS = (FaultKind.STALL,)
    FAIR = True

    def prepare(self) -> None:
        self.holder: dict[str, str] = {}
        self.waits: dict[str, str] = {}

    def client(self, node: Node) -> Procedure[None]:
        dice = self.trial.world.dice
        for _ in range(CALLS):
            keys = [dice.choice(self.KEYS) for _ in range(dice.choice((2, 3)))]
            ordered = self.trial.decide(node, list, list(keys))
            self.trial.note(node, f"order({keys}) returns {ordered}")
            if set(ordered) != set(keys):
                raise Violated("all locks are taken", f"order({keys}) returned {ordered}")
            taken: dict[str, str] = {}
            for key in ordered:
                taken[key] = yield from self.take(node, key)
            yield Sleep(dice.random())
            for key, version in taken.items():
                del self.holder[key]
                while not isinstance((yield Delete(key, IfVersion(version))), Applied):
                    yield Sleep(0.5)

    def take(self, node: Node, key: str) -> Procedure[str]:
        body = node.name.encode()
        while not isinstance(answer := (yield from put_once(key, body, IfAbsent())), Applied):
            self.waits[node.name] = key
            self.check(node.name)
            yield Sleep(0.5)
        self.waits.pop(node.name, None)
        self.holder[key] = node.name
        return answer.version

    def check(self, name: str) -> None:
        """Raise `Violated` if the clients wait for each other in a circle."""
        chain = [name]
        while (key := self.waits.get(chain[-1])) and (holder := self.holder.get(key)):
            chain.append(holder)
            if holder == name:
                waits = ", which waits for ".join(chain[1:])
                raise Violated("a client can go on", f"deadlock: {name} waits for {waits}")
            if len(chain) > len(CLIENTS):
                return
