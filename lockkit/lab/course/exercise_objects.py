"""Exercises about one object: release a lock, claim one, add to a balance, test a store."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from lockkit.lab.course.trial import CALLS, CLIENTS, Exercise, settle, taken
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.protocol.outcome import Found, IfAbsent, IfVersion, Throttled
from lockkit.runtime import Procedure, Put, Sleep


class HandOver(Exercise):
    """`release(key, version, record)`: end the grant whose lock object is `record`."""

    KEY, PATIENCE_MS = "lock.json", 20_000
    FAIR = True

    def prepare(self) -> None:
        self.highest = 0
        self.holder = dict[str, Any]()
        """The record of the newest grant; empty once it was released."""

    def client(self, node: Node) -> Procedure[None]:
        for _ in range(CALLS):
            version, record, _ = yield from taken(
                self.trial.world.time, self.KEY, partial(self.claim, node.name), 0.5
            )
            yield Sleep(self.trial.world.dice.random())
            yield from self.trial.call(node, int, self.KEY, version, dict(record))
            if self.holder == record:
                raise Violated(
                    "a release ends the grant",
                    f"release() of {node.name} returned, but epoch {record['epoch']} is not over",
                )

    def claim(self, name: str, found: Found | None, watched_ms: float) -> dict[str, Any] | None:
        """Once the lock is free, or its holder has been silent for too long."""
        before = self.record_in(found.body) if found else {}
        if not before.get("free", not before) and watched_ms <= self.PATIENCE_MS:
            return None
        return {"owner": name, "epoch": before.get("epoch", 0) + 1, "free": False}

    def record_in(self, body: bytes) -> dict[str, Any]:
        try:
            record = json.loads(body)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("epoch"), int):
            raise Violated("others can read the object", f"{body!r} is not a record with an epoch")
        return record

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        record = self.record_in(after.body) if after else {}
        owner, before = record.get("owner"), self.holder
        if record and not record.get("free") and owner == decided.client:
            if record["epoch"] <= self.highest and record != before:
                raise Violated(
                    "epochs never repeat",
                    f"{owner} was granted epoch {record['epoch']}, which another grant has had",
                )
            self.highest, self.holder = max(self.highest, record["epoch"]), record
            return
        if before and before["owner"] != decided.client:
            raise Violated(
                "a client releases only its own grant",
                f"a release of {decided.client} ended epoch {before['epoch']} of {before['owner']}",
            )
        self.holder = {}


class HotLock(Exercise):
    """`claim(key, mine)`: wait until the lock at `key` is free, and replace it with `mine`."""

    KEY = "lock.json"
    STORES = ("gcs", "r2")
    FAIR = True

    def prepare(self) -> None:
        self.mine = dict[str, bytes]()
        self.trial.put(self.KEY, self.body("nobody", free=True))
        self.trial.world.memory_store.judges[self.KEY] = self.admits

    @staticmethod
    def body(owner: str, *, free: bool) -> bytes:
        return json.dumps({"owner": owner, "free": free}).encode()

    def client(self, node: Node) -> Procedure[None]:
        objects = self.trial.world.memory_store.objects
        for number in range(1, CALLS + 1):
            mine = self.mine[node.name] = self.body(f"{node.name}-{number}", free=False)
            yield from self.trial.call(node, int, self.KEY, mine)
            if objects[self.KEY].body != mine:
                raise Violated(
                    "a claim that returned holds the lock",
                    f"claim() of {node.name} returned, but the lock is {self.shown()}",
                )
            yield Sleep(self.trial.world.dice.random())
            released = self.body(f"{node.name}-{number}", free=True)
            yield from settle(self.KEY, released, IfVersion(objects[self.KEY].version))

    def admits(self, request: Put, before: StoredObject | None) -> bool:
        """Whether the write's condition holds. `Violated` for a write that does harm."""
        assert before is not None
        holds = isinstance(request.condition, IfVersion)
        holds = holds and request.condition.version == before.version  # type: ignore[union-attr]
        there = json.loads(before.body)
        claimer = next((who for who, body in self.mine.items() if body == request.body), "")
        if not claimer or there["free"] or before.body == request.body:
            return holds
        if holds:
            raise Violated("one holder", f"{claimer} took over the lock, which was {self.shown()}")
        if self.writes(claimer, request) > self.free_looks(claimer):
            raise Violated(
                "a client that waits does not write",
                f"{claimer} wrote again, and did not first read a free lock: it is {self.shown()}",
            )
        return False

    def shown(self) -> str:
        there = json.loads(self.trial.world.memory_store.objects[self.KEY].body)
        return f"{'free, last held by' if there['free'] else 'held by'} {there['owner']}"

    def writes(self, client: str, now: Put) -> int:
        """How often a client tried to claim; a copy of a request counts once."""
        sent = [each.request for each in self.decided(client) if isinstance(each.request, Put)]
        return len({id(each) for each in [*sent, now] if b'"free": false' in each.body})

    def free_looks(self, client: str) -> int:
        found = [each.answer for each in self.decided(client) if isinstance(each.answer, Found)]
        return sum(json.loads(each.body)["free"] for each in found)

    def decided(self, client: str) -> list[DecidedRequest]:
        """What the store has decided of a client's requests, but for what it throttled."""
        truth = self.trial.world.memory_store.truth
        return [e for e in truth if e.client == client and not isinstance(e.answer, Throttled)]


class Balance(Exercise):
    """`pay(key, amount, receipt)`: add `amount` to the balance of the account, exactly once."""

    KEY = "account.json"
    EARLIER = 7
    """Payments of each client that the account has before: no memory of a few is enough."""

    def prepare(self) -> None:
        self.balance = 111 * self.EARLIER
        self.calling: dict[str, tuple[int, int]] = {}
        """Of each client: the amount of its newest call, and how often it was added."""
        receipts = [f"{who}-{n}" for n in range(1, self.EARLIER + 1) for who in CLIENTS]
        receipts += [f"N{who}-{n}" for n in range(self.EARLIER + 1, 11) for who in CLIENTS]
        account = {"balance": self.balance, "receipts": receipts}
        self.trial.put(self.KEY, json.dumps(account).encode())

    def client(self, node: Node) -> Procedure[None]:
        amount = 10 ** CLIENTS.index(node.name)
        before = self.trial.world.dice.randint(1, self.EARLIER + CALLS)
        for number in (*range(self.EARLIER + 1, self.EARLIER + CALLS + 1), 0):
            self.calling[node.name] = amount, int(not number)
            receipt = f"{node.name}-{number or before}"
            if not number:
                self.trial.clients.pop(node.name)  # it restarts
            yield from self.trial.call(node, int, self.KEY, amount, receipt)
            if not self.calling[node.name][1]:
                raise Violated(
                    "a payment that returned is in the balance",
                    f"pay() of {node.name} returned, but its payment of {amount} was not added",
                )
            yield Sleep(self.trial.world.dice.random())

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        try:
            balance = json.loads(after.body)["balance"] if after else None
        except (ValueError, TypeError, KeyError):
            balance = None
        if not isinstance(balance, int):
            raise Violated("others can read the account", f"{decided.client} wrote no balance")
        amount, times = self.calling[decided.client]
        if balance - self.balance not in (0, amount):
            raise Violated(
                "no payment is lost",
                f"{decided.client} paid {amount}, but changed {self.balance} to {balance}",
            )
        times += balance != self.balance
        self.balance, self.calling[decided.client] = balance, (amount, times)
        if times > 1:
            raise Violated("a payment is made once", f"{decided.client} paid {amount} twice")


class Promise(Exercise):
    """`honours(key)`: whether the store honours both conditions of a write."""

    IGNORED: tuple[tuple[type, ...], ...] = ((), (IfAbsent,), (IfVersion,), (IfAbsent, IfVersion))
    FAIR = True

    def client(self, node: Node) -> Procedure[None]:
        for number in range(1, CALLS + 1):
            ignored = self.trial.world.dice.choice(self.IGNORED)
            key = f"probe/{node.name}-{number}"
            self.trial.world.memory_store.judges[key] = partial(self.admits, ignored)
            names = " and ".join(each.__name__ for each in ignored)
            self.trial.note(node, f"this store ignores {names or 'no condition'}")
            said = yield from self.trial.call(node, bool, key)
            if said and ignored:
                raise Violated("an unsafe store is detected",
                               f"honours() returned True; this store ignores {names}")  # fmt: skip
            if not said and not ignored:
                raise Violated(
                    "a safe store passes",
                    "honours() returned False for a store that honours both conditions",
                )

    @staticmethod
    def admits(ignored: tuple[type, ...], request: Put, before: StoredObject | None) -> bool:
        """Whether the store applies the write: its condition is ignored, or it holds."""
        if isinstance(request.condition, ignored):
            return True
        match request.condition:
            case IfVersion(version):
                return before is not None and before.version == version
            case _:
                return before is None
