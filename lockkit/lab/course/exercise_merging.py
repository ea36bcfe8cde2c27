"""The exercise about merge on read: which files of a file group a reader reads."""

from __future__ import annotations

import json
from numbers import Integral
from typing import Any

from lockkit.lab.course.trial import CALLS, CLIENTS, Exercise, parsed, settle
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.protocol.outcome import IfAbsent, IfVersion
from lockkit.runtime import Procedure, Sleep

COMPACTION = CLIENTS[-1]


class SliceOfFiles(Exercise):
    """`file_slice(bases, logs)`: the base file that a reader reads, and the log files above it."""

    KEY = "timeline.json"

    def prepare(self) -> None:
        self.trial.put(self.KEY, json.dumps({"time": 0, "bases": [], "logs": []}).encode())

    def client(self, node: Node) -> Procedure[None]:
        """A writer of log files, or the compaction; each reads before and after its commit."""
        dice, kind = self.trial.world.dice, "bases" if node.name == COMPACTION else "logs"
        for _ in range(CALLS):
            yield Sleep(dice.random())
            instant, before = yield from self.moved(kind, None)
            merged = self.merged(before, instant) if kind == "bases" else [instant]
            yield Sleep(3 * dice.random())
            yield from settle(f"{kind}/{instant}", json.dumps(merged).encode(), IfAbsent())
            yield from self.look(node)
            yield from self.moved(kind, instant)
            yield from self.look(node)

    def moved(self, kind: str, instant: int | None) -> Procedure[tuple[int, dict[str, Any]]]:
        """Take the next instant; or commit `instant`: the time of the table goes on by one."""
        while True:
            now, version = yield from parsed(self.KEY)
            now["time"] += 1
            if instant is None:
                now[kind].append([now["time"], None])
            elif any(each == instant and done is not None for each, done in now[kind]):
                return instant, now  # it was committed before
            else:
                now[kind] = [[each, now["time"] if each == instant else done]
                             for each, done in now[kind]]  # fmt: skip
            settled = yield from settle(self.KEY, json.dumps(now).encode(), IfVersion(version))
            if isinstance(settled, str):
                return instant or now["time"], now

    @staticmethod
    def merged(now: dict[str, Any], instant: int) -> list[int]:
        return sorted(each for each, done in now["logs"] if done is not None and done < instant)

    def look(self, node: Node) -> Procedure[None]:
        """Read by the function: each committed log file must count once."""
        (now, _), dice = (yield from parsed(self.KEY)), self.trial.world.dice
        bases, logs = (
            [(each, done) for each, done in dice.sample(now[kind], len(now[kind]))]
            for kind in ("bases", "logs")
        )
        chosen = self.trial.decide(node, tuple, list(bases), list(logs))
        call = f"file_slice({bases}, {logs}) returns {chosen}"
        self.trial.note(node, call)
        if len(chosen) != 2 or not isinstance(chosen[1], list):
            raise Violated("the result is of the right type", f"{call}, not a pair with a list")
        base, above = chosen
        if not all(isinstance(each, Integral) for each in [0 if base is None else base, *above]):
            raise Violated("the result is of the right type", f"{call}, not of whole numbers")
        if base is not None and dict(bases).get(base) is None:
            said = f"{call}: base file {base} is not committed"
            raise Violated("only committed files are read", said)
        newest = max((each for each, done in bases if done is not None), default=None)
        inside = yield from self.inside(base)
        merged = inside if base == newest else (yield from self.inside(newest))
        self.check(call, logs, inside, merged, above)

    @staticmethod
    def inside(base: int | None) -> Procedure[list[int]]:
        """The log files that were merged into a base file."""
        return [] if base is None else (yield from parsed(f"bases/{base}"))[0]

    @staticmethod
    def check(
        call: str, logs: list[tuple[int, int | None]], inside: list[int], merged: list[int],
        above: list[int],
    ) -> None:  # fmt: skip
        committed = {each for each, done in logs if done is not None}
        if unseen := sorted(set(above) - committed, key=str):
            said = f"{call}: log file {unseen[0]} is not committed"
            raise Violated("only committed files are read", said)
        if lost := sorted(committed - {*inside, *above}):
            raise Violated("no lost update", f"{call}: the rows of log file {lost[0]} are missing")
        if twice := sorted({*merged} & {*above}):
            raise Violated(
                "a merged log file is not read again",
                f"{call}: log file {twice[0]} is in a base file; a clean may have deleted it",
            )
        if above != sorted(set(above)):
            raise Violated("each log file once, by its instant", call)
