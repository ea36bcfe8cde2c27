"""An account in one object: concurrent payments and a late payment, with and without a fence."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from html import escape
from typing import Any

from lockkit.events import Event
from lockkit.lab.course.grid import grid
from lockkit.lab.course.lock_testbed import LockTestbed
from lockkit.protocol.outcome import Found
from lockkit.stores import open_store

BALANCE = "balance.json"
TTL_S = 30.0
ONE, TWO = 10, 20
SUM = "30: both payments are there"
ONLY_TWO = "20: W1's payment is gone"
ONLY_ONE = "10: W2's payment is gone"
GUESSES = (SUM, ONLY_TWO, ONLY_ONE)
REFUSED = "20, and W1's payment was refused"
LATE_GUESSES = (SUM, REFUSED, ONLY_ONE)
GIVE_UP, WRITE_AGAIN, BEGIN_AGAIN = "give up", "write it again", "begin again"


@dataclass(frozen=True, slots=True)
class AccountRead:
    amount: int
    version: str


class Account:
    """A balance beside the lock; each payment reads, changes and rewrites it."""

    def __init__(self, testbed: LockTestbed) -> None:
        self.testbed = testbed
        self.write("W0", 0)

    def read(self, name: str) -> AccountRead:
        with closing(open_store(self.testbed.url, **self._as(name))) as store:
            found = store.get(BALANCE)
        assert isinstance(found, Found), found
        return AccountRead(json.loads(found.body)["amount"], found.version)

    def write(self, name: str, amount: int, over: str = "") -> int:
        """Write the whole object over version `over`, or unconditionally; return the status."""
        condition = {"If_Match": over} if over else {}
        body = json.dumps({"amount": amount, "by": name}).encode()
        return self.testbed.put(name, BALANCE, body, **condition)

    def pay(self, name: str, amount: int) -> int:
        """Read, add and write; return the balance that `name` wrote."""
        balance = self.read(name).amount + amount
        self.write(name, balance)
        return balance

    def _as(self, name: str) -> dict[str, Any]:
        return {"endpoint": self.testbed.proxy.url, "client": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOutcome:
    """Two payments into an empty account, and the final balance."""

    balance: int
    writes: tuple[Event, ...]
    """The writes of the balance, in the store's order."""
    events: tuple[Event, ...]
    verdict: Any
    """The checker's verdict on the lock."""

    def __str__(self) -> str:
        refused = any(each["status"] == 412 for each in self.writes)
        return {ONE: ONLY_ONE, TWO: REFUSED if refused else ONLY_TWO}.get(self.balance, SUM)

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """One line per write: the client, its condition and the answer."""
        return [
            (each["client"], "if it is as I read it" if each["condition"] else "no condition",
             f"{each['status']}, {'written' if each['applied'] else 'refused'}")
            for each in self.writes
        ]  # fmt: skip

    def __repr__(self) -> str:
        writes = "; ".join(", ".join(row) for row in self.rows)
        return f"The balance is {self}. Writes: {writes}."

    def _repr_html_(self) -> str:
        writes = grid("paid", ("writer", "its write", "the store"), self.rows)
        return f"<div>The balance is <b>{escape(str(self))}</b>.</div>{writes}"


def at_once() -> PaymentOutcome:
    """No lock: W1 and W2 have both read the balance before either writes it."""
    with LockTestbed("s3") as testbed:
        account = Account(testbed)
        one, two = (account.read(name).amount for name in ("W1", "W2"))
        account.write("W1", one + ONE)
        account.write("W2", two + TWO)
        return _paid(account)


def in_turn() -> PaymentOutcome:
    """Each client pays while it holds the lock."""
    with LockTestbed("s3") as testbed:
        account = Account(testbed)
        for name, amount in (("W1", ONE), ("W2", TWO)):
            with testbed.lock(name, ttl_s=TTL_S):
                account.pay(name, amount)
        return _paid(account)


def late(*, guarded: bool, then: str = GIVE_UP) -> PaymentOutcome:
    """W1's write is delayed. W1 gives up and releases the lock; then the write arrives.

    `guarded`: the write names the version to replace. `then` is what W1 does if it is refused.
    """
    if then not in (GIVE_UP, WRITE_AGAIN, BEGIN_AGAIN):
        choices = f"{GIVE_UP!r}, {WRITE_AGAIN!r} and {BEGIN_AGAIN!r}"
        raise ValueError(f"no choice {then!r}; there are {choices}")
    with LockTestbed("s3") as testbed:
        account, lock = Account(testbed), testbed.lock("W1", ttl_s=TTL_S)
        with lock:
            seen = account.read("W1")  # and its write leaves, and no answer
        with testbed.lock("W2", ttl_s=TTL_S):
            account.pay("W2", TWO)
        status = account.write("W1", seen.amount + ONE, seen.version if guarded else "")
        if status != 200 and then != GIVE_UP:
            with lock:
                amount = seen.amount if then == WRITE_AGAIN else account.read("W1").amount
                account.write("W1", amount + ONE)
        return _paid(account)


def _paid(account: Account) -> PaymentOutcome:
    events = tuple(account.testbed.events)
    writes = [each for each in events if each.kind == "request" and each["method"] == "put"
              and each["key"].endswith(BALANCE) and each["client"] != "W0"]  # fmt: skip
    return PaymentOutcome(
        balance=account.read("W0").amount, writes=tuple(writes), events=events,
        verdict=account.testbed.verdict,
    )  # fmt: skip
