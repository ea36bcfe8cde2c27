"""A writer by Hudi's rules whose clock is slower than Hudi allows: it takes an instant that a batch
of a streaming query had taken and given up.

Rule I10 of docs/protocol.md keeps every clock within Hudi's bound from such an instant. Beyond the
bound Hudi loses its own rows: readers of increments may have passed them, and a process of Hudi's
that saw the batch's writer dead rolls them back. So the judge ignores this writer's key, and
nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lockkit.lab.verify.sim.task import WaitUntil
from lockkit.lab.verify.table.host import EXPECTED
from lockkit.lab.verify.table.hudi_writer import SKEW_MS, HudiFailed, HudiWriter
from lockkit.lab.verify.table.ledger import MISTIMED, MISTIMED_KEY, TrackedAttempt
from lockkit.lab.verify.table.reader import TableRow
from lockkit.lab.verify.table.rows import base_file
from lockkit.lab.verify.table.stream import QUERY
from lockkit.runtime import Procedure, Sleep
from lockkit.table.format.base_file import BaseFile, Slice
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import instant_ms
from lockkit.table.read.buckets import free_file_id
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.write.batch import STREAMS

SLOW_MS_MIN, SLOW_MS_MAX = 5_000, 60_000
"""How far its clock is behind."""
WRITES_MAX = 12


@dataclass(slots=True)
class SlowHudiWriter(HudiWriter):
    """Waits until a batch has given up its instant; then its clock shows just that instant."""

    wanted: str = ""
    taken: set[str] = field(default_factory=lambda: {""})
    """Instants that it has taken by its slow clock."""

    def live(self) -> Procedure[None]:
        self.config, _ = yield from load_config()
        pause: Any = WaitUntil(lambda: self._is_wanted() or not self.run.busy())
        for _ in range(WRITES_MAX):
            yield pause
            if not self.wanted:
                return
            yield from self._write()
            self.wanted = ""

    def _is_wanted(self) -> bool:
        """Whether the query's last batch gave up its instant, and so long ago that a clock which
        shows that instant is too slow.
        """
        objects, wall_ms = self.run.world.memory_store.objects, self.node.clock.wall_ms()
        claim = objects.get(STREAMS + QUERY)
        instant = "" if claim is None else str(json.loads(claim.body)["instant"])
        if instant in self.taken or self.names.requested(instant) in objects:
            return False
        if SLOW_MS_MIN <= wall_ms - instant_ms(instant) <= SLOW_MS_MAX:
            self.wanted = instant
        return bool(self.wanted)

    def _write(self) -> Procedure[None]:
        token = f"{self.node.name}.{self.node.life}/{len(self.taken)}"
        mine = TrackedAttempt(token, token, MISTIMED)
        self.run.ledger.begins(self.node.name)
        partition = self.run.world.dice.choice(self.run.partitions)
        try:
            yield from self._upsert(mine, partition, (MISTIMED_KEY,))
            self.run.ledger.acknowledged(mine)
            self.run.world.reached.add("slow clock")
        except (HudiFailed, *EXPECTED) as error:
            self.run.ledger.refused(mine, f"Hudi's {type(error).__name__}")

    def _files(
        self, mine: TrackedAttempt, instant: str, _snapshot: Snapshot, partition: str,
        _found: list[tuple[Slice, list[TableRow]]], keys: Sequence[str],
    ) -> list[BaseFile]:  # fmt: skip
        """An insert, in a file group of its own, so that it conflicts with none."""
        group = partition, free_file_id(self.node.clock)
        return [base_file(instant, group, [TableRow(partition, key, (mine.token,), instant)
                                           for key in keys])]  # fmt: skip

    def _new_instant(self) -> Procedure[str]:
        """The first by the slow clock; it is right again when the commit completes."""
        if self.wanted in self.taken:
            return (yield from HudiWriter._new_instant(self))
        self.taken.add(self.wanted)
        self.run.world.taken_again.add(self.wanted)
        yield Sleep(SKEW_MS / 1000)
        return self.wanted
