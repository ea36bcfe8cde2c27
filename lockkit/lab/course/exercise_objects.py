"""Exercises about one object: to release a lock, to add to a balance, to test a store's promise."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from lockkit.lab.course.trial import CALLS, CLIENTS, Trial, settle
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.protocol.outcome import Found, IfAbsent, IfVersion
from lockkit.runtime import Procedure, Put, Sleep
from lockkit.runtime.proven import read


class HandOver:
    """`release(key, version, record)`: end the grant whose lock object is `record`.

    The object has this `version`. Return once the grant is over, by this release or because another
    client took the lock over. The next client grants itself the epoch after the one that it reads,
    or epoch 1 if there is no object.
    """

    KEY, PATIENCE_MS = "lock.json", 20_000
    FAIR = True

    def __init__(self, trial: Trial) -> None:
        self.trial, self.highest = trial, 0
        self.holder = dict[str, Any]()
        """The record of the newest grant; empty once it was released."""
        trial.world.memory_store.on_write = self.on_write
        for name in CLIENTS:
            node = trial.world.node(name)
            trial.world.spawn(node, self.client(node))

    def client(self, node: Node) -> Procedure[None]:
        for _ in range(CALLS):
            version, record = yield from self.take(node)
            yield Sleep(self.trial.world.dice.random())
            yield from self.trial.call(node, int, self.KEY, version, dict(record))
            if self.holder == record:
                raise Violated(
                    "a release ends the grant",
                    f"release() of {node.name} returned, and epoch {record['epoch']} still holds",
                )

    def take(self, node: Node) -> Procedure[tuple[str, dict[str, Any]]]:
        """Wait until the lock is free, or until its holder has been silent for too long."""
        time, seen, since_ms = self.trial.world.time, None, 0.0
        while True:
            found = yield from read(self.KEY)
            version = found.version if isinstance(found, Found) else None
            if version != seen:
                seen, since_ms = version, time.now_ms
            before = self.record_in(found.body) if isinstance(found, Found) else {}
            free = before.get("free", not before)
            if free or time.now_ms - since_ms > self.PATIENCE_MS:
                record = {"owner": node.name, "epoch": before.get("epoch", 0) + 1, "free": False}
                settled = yield from settle(
                    self.KEY, json.dumps(record).encode(),
                    IfVersion(version) if version else IfAbsent(),
                )  # fmt: skip
                if isinstance(settled, str):
                    return settled, record
            yield Sleep(0.5)

    def record_in(self, body: bytes) -> dict[str, Any]:
        try:
            record = json.loads(body)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("epoch"), int):
            raise Violated("others can read the object", f"{body!r} is no record with an epoch")
        return record

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        record = self.record_in(after.body) if after else {}
        owner, before = record.get("owner"), self.holder
        if record and not record.get("free") and owner == decided.client:
            if record["epoch"] <= self.highest and record != before:
                raise Violated(
                    "epochs never repeat",
                    f"{owner} was granted epoch {record['epoch']}, which another grant had",
                )
            self.highest, self.holder = max(self.highest, record["epoch"]), record
            return
        if before and before["owner"] != decided.client:
            raise Violated(
                "a client releases its own grant only",
                f"a release of {decided.client} ended epoch {before['epoch']} of {before['owner']}",
            )
        self.holder = {}

    def end(self) -> None:
        """Nothing to do: each grant was judged when it was made."""


class Balance:
    """`pay(key, amount, receipt)`: add `amount` to the balance of the account, exactly once.

    The account is JSON with `balance` and `receipts`, a list that may be used as one likes.
    `receipt` is an id that no other call has.
    """

    KEY = "account.json"

    def __init__(self, trial: Trial) -> None:
        self.trial, self.balance, self.owed = trial, 0, 0
        self.calling: dict[str, tuple[int, int]] = {}
        """Of each client: the amount of its newest call, and how often it was added."""
        trial.put(self.KEY, json.dumps({"balance": 0, "receipts": []}).encode())
        trial.world.memory_store.on_write = self.on_write
        for name in CLIENTS:
            node = trial.world.node(name)
            trial.world.spawn(node, self.client(node))

    def client(self, node: Node) -> Procedure[None]:
        for number in range(1, CALLS + 1):
            amount = 10 ** CLIENTS.index(node.name)
            self.calling[node.name] = amount, 0
            self.owed += amount
            yield from self.trial.call(node, int, self.KEY, amount, f"{node.name}-{number}")
            if not self.calling[node.name][1]:
                raise Violated(
                    "a payment that returned is in the balance",
                    f"pay() of {node.name} returned, and its {amount} were never added",
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
                "no other payment is lost",
                f"{decided.client} paid {amount}: {self.balance} became {balance}",
            )
        times += balance != self.balance
        self.balance, self.calling[decided.client] = balance, (amount, times)
        if times > 1:
            raise Violated("a payment is made once", f"{decided.client} paid {amount} twice")

    def end(self) -> None:
        """Nothing to do: each payment was judged when it returned."""


class Promise:
    """`honours(key)`: whether the store honours both conditions of a write, for a key of its own.

    The conditions are `IfAbsent()` and `IfVersion(version)`. Each client tests a store that honours
    both, ignores one of them, or ignores both.
    """

    IGNORED: tuple[tuple[type, ...], ...] = ((), (IfAbsent,), (IfVersion,), (IfAbsent, IfVersion))
    FAIR = True

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        for name in CLIENTS:
            node = trial.world.node(name)
            trial.world.spawn(node, self.client(node))

    def client(self, node: Node) -> Procedure[None]:
        for number in range(1, CALLS + 1):
            ignored = self.trial.world.dice.choice(self.IGNORED)
            key = f"probe/{node.name}-{number}"
            self.trial.world.memory_store.judges[key] = partial(self.admits, ignored)
            names = " and ".join(each.__name__ for each in ignored)
            self.trial.note(node, f"this store ignores {names or 'no condition'}")
            said = yield from self.trial.call(node, bool, key)
            if said and ignored:
                raise Violated(
                    "an unsafe store is found out",
                    f"honours() said True of a store that ignores {names}",
                )
            if not said and not ignored:
                raise Violated(
                    "a sound store is not accused",
                    "honours() said False of a store that honours both conditions",
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

    def end(self) -> None:
        """Nothing to do: each answer was judged when it was given."""
