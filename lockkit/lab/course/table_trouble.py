"""A table with a problem, on an embedded server: two dead writers whose clocks disagreed."""

from __future__ import annotations

import json
import urllib.request
from contextlib import closing
from dataclasses import dataclass

from lockkit.clock import Clock
from lockkit.events import Event
from lockkit.lab.incident.audit import AUDIT
from lockkit.lab.server import Emulator
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Applied, IfAbsent, Version, over
from lockkit.protocol.record import Record, encode
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table import TableConfig, begin, commit, create_table, prepare
from lockkit.table.occ.heartbeat import HeartbeatState, start
from lockkit.table.occ.markers import mark

URL = "s3://lake/orders"
LEASE_MS = 300_000
"""Hudi's default."""
FAST_MS = 360_000
"""How far W2's clock is ahead."""
TABLE_AGO_MS, DEAD_AGO_MS, W1_AGO_MS, W2_AGO_MS, RENEWED_AGO_MS = (
    1_500_000, 1_200_000, 65_000, 50_000, 20_000
)  # fmt: skip
W1 = ("7f3c0b1e-host-4", "host-4/2211/spark-orders", 41)
W2 = ("c2a9e4d0-host-9", "host-9/1873/backfill", 42)
CONFIG = TableConfig(name="orders", record_key="id")
SCHEMA = '{"type":"record","name":"orders","fields":[{"name":"id","type":"string"}]}'
VERSIONED = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class NoLock:
    """For a commit without concurrent writers, which needs no lock."""

    epoch: int = 0


class TroubledTable:
    """A bucket that keeps versions, and what happened in the last half hour; `close` ends it.

    W1 held the lock. W2, whose clock is six minutes ahead, concluded from `validUntil` that
    the lease had expired. It took the lock, renewed it once, and died. A third writer died twenty
    minutes ago in mid-commit. A completed commit left a marker.
    """

    url = URL

    def __init__(self) -> None:
        self._clock = Clock(offset_ms=-TABLE_AGO_MS)
        self._server = Emulator(profile="aws", clock=self._clock).__enter__()
        self.endpoint = self._server.s3
        self._keep_versions()
        with closing(open_store(URL, endpoint=self.endpoint, client="writers")) as store:
            self._table(store)
            self._lock(store)
        self._clock.offset_ms = 0

    def requests(self, since: int = 0) -> list[Event]:
        """The server's record, from entry `since` on."""
        return self._server.requests(since)

    def close(self) -> None:
        self._server.__exit__(None, None, None)

    def _keep_versions(self) -> None:
        place = f"{self.endpoint}/lake?versioning"
        _DIRECT.open(urllib.request.Request(place, VERSIONED, method="PUT"), timeout=10).close()

    def _table(self, store: Store) -> None:
        run(create_table(CONFIG), store, self._clock)
        for _ in range(2):
            prepared = run(prepare(run(begin(), store, self._clock), (), schema=SCHEMA), store,
                           self._clock)  # fmt: skip
            done = run(commit(prepared, NoLock()), store, self._clock)
        run(mark(done.instant, "f-18_0-0-0.parquet", "CREATE"), store, self._clock)
        self._clock.offset_ms = -DEAD_AGO_MS
        dead = run(begin(), store, self._clock)
        run(
            start(HeartbeatState(dead.instant, 120_000, "host-7/902/spark-orders")),
            store,
            self._clock,
        )
        run(mark(dead.instant, "f-19_0-0-0.parquet", "CREATE"), store, self._clock)

    def _lock(self, store: Store) -> None:
        self._clock.offset_ms = -W1_AGO_MS
        version = self._holds(store, None, W1, fast_ms=0)
        self._audit(store, "START", "RENEW")
        self._clock.offset_ms = -W2_AGO_MS
        version = self._holds(store, version, W2, fast_ms=FAST_MS)
        self._clock.offset_ms = -RENEWED_AGO_MS
        self._holds(store, version, W2, fast_ms=FAST_MS)

    def _holds(
        self, store: Store, before: Version | None, who: tuple[str, str, int], *, fast_ms: int
    ) -> Version:
        owner, holder, epoch = who
        until_ms = self._clock.wall_ms() + fast_ms + LEASE_MS
        attempt = self._clock.unique()
        record = Record(owner, until_ms, False, epoch, attempt, LEASE_MS, holder)
        put = store.put(LOCK_KEY, encode(record), over(before))
        assert isinstance(put, Applied)
        return put.version

    def _audit(self, store: Store, *states: str) -> None:
        """W1's audit file, as Hudi's provider writes it: by W1's clock, and here without an END."""
        began_ms, owner = self._clock.wall_ms(), W1[0]
        lines = "".join(
            json.dumps({
                "ownerId": owner, "transactionStartTime": began_ms,
                "timestamp": began_ms + n * 10_000, "state": state, "lockHeld": True,
                "lockExpiration": began_ms + n * 10_000 + LEASE_MS,
            }) + "\n" for n, state in enumerate(states)
        )  # fmt: skip
        store.put(f"{AUDIT}{began_ms}_{owner}.jsonl", lines.encode(), IfAbsent())
