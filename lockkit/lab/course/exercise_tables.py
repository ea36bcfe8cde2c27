"""Exercises about a table: roll back a silent writer, delete old files, place new keys."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any

from lockkit.lab.course.trial import CALLS, CLIENTS, Exercise, for_sure, parsed, settle
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.protocol.outcome import IfAbsent, IfVersion
from lockkit.runtime import Procedure, Sleep
from lockkit.runtime.proven import delete

SERVICE = CLIENTS[-1]
ROUNDS_MAX = 40
COMMITTED, ROLLED_BACK = "committed", "rolled back"


class SilentWriter(Exercise):
    """`roll_back(fence, instant, files)`: undo the instant of a writer that has been silent."""

    FENCE = "fence.json"

    def prepare(self) -> None:
        self.open: dict[str, list[str]] = {}
        """The files of each instant that is not decided."""
        self.files: dict[str, list[str]] = {}
        self.deleted: set[str] = set()
        """A late copy of a writer's request may bring a file back, and no reader needs it then."""
        self.trial.put(self.FENCE, json.dumps({COMMITTED: [], ROLLED_BACK: []}).encode())
        self.decided: dict[str, list[str]] = {COMMITTED: [], ROLLED_BACK: []}

    def client(self, node: Node) -> Procedure[None]:
        return self.service(node) if node.name == SERVICE else self.writer(node)

    def writer(self, node: Node) -> Procedure[None]:
        for number in range(1, CALLS + 1):
            instant = f"{node.name}-{number}"
            files = self.files[instant] = [f"files/{instant}-{each}" for each in ("a", "b")]
            for each in files:
                yield from settle(each, instant.encode(), IfAbsent())
            self.open[instant] = files
            yield Sleep(3 * self.trial.world.dice.random())
            yield from self.commit(instant)
            self.open.pop(instant, None)

    def commit(self, instant: str) -> Procedure[None]:
        while True:
            decided, version = yield from parsed(self.FENCE)
            if instant in decided[COMMITTED] or instant in decided[ROLLED_BACK]:
                return
            decided[COMMITTED].append(instant)
            yield from settle(self.FENCE, json.dumps(decided).encode(), IfVersion(version))

    def service(self, node: Node) -> Procedure[None]:
        for _ in range(ROUNDS_MAX):
            yield Sleep(self.trial.world.dice.random())
            if not self.open:
                continue
            instant = self.trial.world.dice.choice(sorted(self.open))
            files = self.open.pop(instant)
            done = yield from self.trial.call(node, bool, self.FENCE, instant, list(files))
            there = [each for each in files if each not in self.deleted]
            if done and instant not in self.decided[ROLLED_BACK]:
                raise Violated(
                    "a rollback is decided first",
                    f"roll_back() returned True, but {instant} may still commit",
                )
            if done and there:
                raise Violated("a rollback deletes the files",
                               f"roll_back() returned True, but {there[0]} is there")  # fmt: skip
            if not done and instant not in self.decided[COMMITTED]:
                raise Violated(
                    "False means committed", f"roll_back() returned False, but {instant} is open"
                )

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        key = getattr(decided.request, "key", "")
        if key == self.FENCE:
            self.replaced(decided.client, after)
        elif after is None:
            self.deleted.add(key)
        objects = self.trial.world.memory_store.objects
        for instant in self.decided[COMMITTED]:
            for each in self.files[instant]:
                if each not in objects:
                    raise Violated(
                        "a commit has its files", f"{instant} is committed, but {each} is gone"
                    )

    def replaced(self, client: str, after: StoredObject | None) -> None:
        try:
            new = json.loads(after.body) if after else {}
            lists = {each: list(new[each]) for each in (COMMITTED, ROLLED_BACK)}
        except (ValueError, TypeError, KeyError):
            raise Violated("others can read the fence", f"{client} wrote other JSON") from None
        for name, instants in self.decided.items():
            if gone := [each for each in instants if each not in lists[name]]:
                raise Violated("no decision is lost", f"{client} dropped {gone[0]} from {name!r}")
        if both := sorted(set(lists[COMMITTED]) & set(lists[ROLLED_BACK])):
            raise Violated("one decision", f"{both[0]} is committed and rolled back")
        self.decided = lists


class Retention(Exercise):
    """`clean(commits, retained)`: the set of files that may be deleted."""

    KEY = "table.json"

    def prepare(self) -> None:
        self.retained = self.trial.world.dice.choice((1, 2, 3, 5))
        self.trial.put(self.KEY, b"[]")

    def client(self, node: Node) -> Procedure[None]:
        return self.service(node) if node.name == SERVICE else self.writer(node)

    def writer(self, node: Node) -> Procedure[None]:
        dice = self.trial.world.dice
        for number in range(1, CALLS + 1):
            new = f"{node.name}-{number}"
            yield from settle(new, b"rows", IfAbsent())
            while True:
                commits, version = yield from parsed(self.KEY)
                if any(new in added for added, _ in commits):
                    break  # it was committed before, and another commit is there by now
                live = sorted(self.snapshot(commits))
                old = dice.sample(live, min(len(live), dice.choice((0, 1, 1, 2))))
                body = json.dumps([*commits, [[new], sorted(old)]]).encode()
                settled = yield from settle(self.KEY, body, IfVersion(version))
                if isinstance(settled, str):
                    break
            yield Sleep(dice.random())

    def service(self, node: Node) -> Procedure[None]:
        for _ in range(2 * CALLS):
            yield Sleep(self.trial.world.dice.random())
            commits, _ = yield from parsed(self.KEY)
            pairs = [(set(added), set(replaced)) for added, replaced in commits]
            chosen = self.trial.decide(node, set, pairs, self.retained)
            said = f"clean({len(commits)} commits, {self.retained}) returns {sorted(chosen)}"
            self.trial.note(node, said)
            self.check(commits, chosen)
            for each in sorted(chosen):
                yield from for_sure(partial(delete, each))

    def check(self, commits: list[Any], chosen: set[str]) -> None:
        oldest = max(0, len(commits) - self.retained)
        for number in range(oldest, len(commits)):
            if harmed := sorted(chosen & self.snapshot(commits[: number + 1])):
                raise Violated(
                    "a retained commit can be read",
                    f"{harmed[0]} would be deleted, but a reader of commit {number + 1} of "
                    f"{len(commits)} reads it (retained: {self.retained})",
                )
        needed = {file for n in range(oldest, len(commits))
                  for file in self.snapshot(commits[: n + 1])}  # fmt: skip
        added = {file for each in commits for file in each[0]}
        if commits and (kept := sorted(added - needed - chosen)):
            raise Violated(
                "a file that no reader needs is deleted",
                f"{kept[0]} is kept, but none of the newest {self.retained} commits reads it",
            )

    @staticmethod
    def snapshot(commits: list[Any]) -> set[str]:
        """The files that a reader of the last of these commits reads."""
        live: set[str] = set()
        for added, replaced in commits:
            live = (live | set(added)) - set(replaced)
        return live


class Placement(Exercise):
    """`bucket(key, sizes)`: the number of the file group that the order `key` belongs to."""

    KEY, GROUPS, KEYS = "table.json", 4, 60
    SHARE_MAX = 2 / 3

    def prepare(self) -> None:
        empty: list[list[str]] = [[] for _ in range(self.GROUPS)]
        self.trial.put(self.KEY, json.dumps({"commits": [], "groups": empty}).encode())

    def client(self, node: Node) -> Procedure[None]:
        dice = self.trial.world.dice
        for number in range(1, CALLS + 1):
            mine = sorted({f"order-{int(dice.random() * self.KEYS)}" for _ in range(4)})
            commit = f"{node.name}-{number}"
            while not (yield from self.upsert(node, commit, mine)):
                yield Sleep(dice.random())
            yield Sleep(dice.random())

    def upsert(self, node: Node, commit: str, keys: list[str]) -> Procedure[bool]:
        """Place the keys by the current snapshot, and commit unless another writer conflicts."""
        seen, _ = yield from parsed(self.KEY)
        sizes = [len(each) for each in seen["groups"]]
        placed = {key: self.place(node, key, sizes) for key in keys}
        yield Sleep(self.trial.world.dice.random())
        table, version = yield from parsed(self.KEY)
        if any(name == commit for name, _ in table["commits"]):
            return True
        later = {group for _, groups in table["commits"][len(seen["commits"]):] for group in groups}
        if later & set(placed.values()):
            return False
        for key, group in placed.items():
            table["groups"][group] = sorted({*table["groups"][group], key})
        table["commits"].append([commit, sorted(set(placed.values()))])
        settled = yield from settle(self.KEY, json.dumps(table).encode(), IfVersion(version))
        if isinstance(settled, str):
            self.check(table["groups"])
        return isinstance(settled, str)

    def place(self, node: Node, key: str, sizes: list[int]) -> int:
        group: int = self.trial.decide(node, int, key, list(sizes))
        self.trial.note(node, f"bucket({key!r}, {sizes}) returns {group}")
        if not 0 <= group < self.GROUPS:
            raise Violated("the group exists", f"bucket({key!r}, {sizes}) returned {group}")
        return group

    def check(self, groups: list[list[str]]) -> None:
        count = Counter(key for each in groups for key in each)
        for key, times in count.items():
            if times > 1:
                where = " and ".join(str(n) for n, each in enumerate(groups) if key in each)
                said = f"a reader finds {key} {times} times: in file groups {where}"
                raise Violated("a key is in one file group", said)
        largest = max(len(each) for each in groups)
        if len(count) > 4 * self.GROUPS and largest > self.SHARE_MAX * len(count):
            raise Violated("the groups fill evenly", f"{largest} of {len(count)} are in one group")
