"""Apache Hudi on Spark and lockkit on one table: in turn, and at the same time."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from environment import HUDI
from exclusion import commits, tenancies
from hudi_world import Hudi, Refused
from ours import SPARK_SCHEMA, Writer, in_order, order

from lockkit.errors import LockLost
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import Kind, check
from lockkit.table import TableConfig
from lockkit.table.errors import CommitConflict
from lockkit.table.format.properties import HUDI as HUDI_MODE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

VERSIONS = (6, 9)
BUCKETS = itertools.count()
PROVIDER = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
OPTIONS = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "at",
    "hoodie.datasource.write.partitionpath.field": "region",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.partitionpath.urlencode": "true",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.metadata.enable": "false",
    "hoodie.embed.timeline.server": "false",
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.clean.automatic": "false",
    # By default Hudi moves all but 20 instants elsewhere once there are 30: not read here.
    "hoodie.archive.automatic": "false",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": PROVIDER,
    "hoodie.write.lock.storage.validity.timeout.secs": "15",
    "hoodie.write.lock.storage.renew.interval.secs": "1",
}  # fmt: skip
OPERATION = "hoodie.datasource.write.operation"


@dataclass(frozen=True)
class Shared:
    """One table on the embedded server, as both sides see it."""

    url: str
    endpoint: str
    us: Writer
    hudi: Hudi
    version: int

    def options(self, **options: str) -> dict[str, str]:
        return OPTIONS | {"hoodie.write.table.version": str(self.version)} | options

    def hudi_writes(self, *rows: Mapping[str, Any], mode: str = "append", **more: Any) -> None:
        self.hudi.write(
            self.url, rows, schema=SPARK_SCHEMA, mode=mode, options=self.options() | more
        )

    def we_insert(self, *rows: Mapping[str, Any]) -> str:
        return self.us.publish(self.us.insert(rows))

    def we_upsert(self, *rows: Mapping[str, Any]) -> str:
        return self.us.publish(self.us.upsert(rows))

    def both_show(self, *wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Both readers show exactly these rows, and of each the same meta columns."""
        ours, theirs = self.us.shown(), in_order(self.hudi.read(self.url))
        assert plain(ours) == in_order(wanted)
        assert theirs == ours
        return ours


def plain(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("_hoodie_")} for row in rows]


@pytest.fixture
def shared(hudi: Hudi, server: Emulator) -> Callable[..., Shared]:
    def make(version: int) -> Shared:
        bucket = f"interop-{next(BUCKETS)}"
        url = f"s3://{bucket}/orders"
        return Shared(url, server.s3, Writer(url, server.s3), hudi, version)

    return make


def made_by_us(table: Shared) -> Shared:
    """A table that lockkit made and has written to twice: k0 is new since the first commit."""
    table.us.create(
        TableConfig(
            name="orders", record_key="id", partition_by="region", precombine="at",
            version=table.version, mode=HUDI_MODE,
        )
    )  # fmt: skip
    table.we_insert(*FIRST)
    table.we_upsert(K0)
    return table


def made_by_hudi(table: Shared) -> Shared:
    """A table that Hudi made, with the same rows."""
    table.hudi_writes(*FIRST, mode="overwrite")
    table.hudi_writes(K0)
    return table


MAKERS = [made_by_us, made_by_hudi]


@pytest.fixture(params=VERSIONS)
def ours(request: pytest.FixtureRequest, shared: Callable[..., Shared]) -> Shared:
    return made_by_us(shared(request.param))


@pytest.fixture(
    params=itertools.product(MAKERS, VERSIONS), ids=lambda each: f"v{each[1]} {each[0].__name__}"
)
def either(request: pytest.FixtureRequest, shared: Callable[..., Shared]) -> Shared:
    make, version = request.param
    table: Shared = make(shared(version))
    return table


FIRST = [order("k0"), order("k1"), order("k2", region="US"), order("k3", region="US")]
K0 = order("k0", amount=9, at=9)
ROWS = [K0, *FIRST[1:]]
ODD = "A/B c:d=é%2F#?*'\"{}[]^~|\\"


def test_what_runs_here_is_apache_hudi_and_not_a_reader_of_ours(hudi: Hudi) -> None:
    said = hudi("version")
    assert f"hudi-spark3.5-bundle_2.12-{HUDI}.jar" in said["jar"]
    with pytest.raises(Refused, match=r"NotFound|not found|No such"):
        hudi.read("s3://nowhere/at-all")


# --- it reads what we write -----------------------------------------------------------------------


def test_hudi_reads_our_table_row_by_row_now_and_as_of_and_incrementally(ours: Shared) -> None:
    rows = ours.both_show(*ROWS)
    first, second = sorted({row["_hoodie_commit_time"] for row in rows})
    then = ours.hudi.read(ours.url, **{"as.of.instant": first})
    assert plain(in_order(then)) == FIRST
    since = ours.hudi.read(ours.url, **incremental(ours.us.completion(first)))
    assert plain(since) == [K0] and since[0]["_hoodie_commit_time"] == second


def incremental(begin: str) -> dict[str, str]:
    return {
        "hoodie.datasource.query.type": "incremental",
        "hoodie.datasource.read.begin.instanttime": begin,
    }


def test_hudi_does_not_see_what_we_have_not_committed(ours: Shared) -> None:
    left = ours.us.insert([order("left")])
    ours.us.upsert([order("k1", amount=5, at=5)])
    ours.both_show(*ROWS)
    ours.us.publish(left)
    ours.both_show(*ROWS, order("left"))


# --- in turn --------------------------------------------------------------------------------------


def test_in_turn_each_builds_on_what_the_other_wrote(either: Shared) -> None:
    table = either
    rows = {row["id"]: row for row in ROWS}

    def now(*changed: Mapping[str, Any]) -> None:
        rows.update({row["id"]: dict(row) for row in changed})
        table.both_show(*rows.values())

    now()
    one = [order("k1", amount=11, at=11), order("h0"), order("h1", region=ODD)]
    table.hudi_writes(*one)
    now(*one)
    two = [order("k1", amount=12, at=12), order("h1", region=ODD, amount=12, at=12)]
    table.we_upsert(*two)
    now(*two)
    late = order("k1", amount=99, at=1)  # older than what we wrote: Hudi must keep ours
    three = [order("k2", region="US", amount=13, at=13)]
    table.hudi_writes(late, *three)
    now(*three)
    four = [order("l0"), order("l1", region="US"), order("l2", region=ODD)]
    four.append(order("l3", region=".."))
    table.we_insert(*four)
    now(*four)
    table.hudi_writes(order("l0"), order("k0"), **{OPERATION: "delete"})
    del rows["l0"], rows["k0"]
    now()


def test_hudis_table_services_on_what_we_wrote_leave_us_the_same_rows(either: Shared) -> None:
    table = either
    kept = [row for row in ROWS if row["region"] == "EU"]
    new = order("u0", region="US")
    table.hudi_writes(new, **{OPERATION: "insert_overwrite"})
    table.both_show(*kept, new)
    table.we_upsert(order("u0", region="US", amount=1, at=1))
    more = order("u1", region="US")
    clustering = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}
    table.hudi_writes(more, **clustering)
    rows = [*kept, order("u0", region="US", amount=1, at=1), more]
    table.both_show(*rows)
    table.we_insert(order("u2", region="US"))
    files = {entry.key for entry in table.us.store.list("region=")}
    table.hudi_writes(order("u3"), **CLEANING, **{"hoodie.clean.commits.retained": "1"})
    assert files - {entry.key for entry in table.us.store.list("region=")}, "nothing was cleaned"
    table.both_show(*rows, order("u2", region="US"), order("u3"))


CLEANING = {"hoodie.clean.automatic": "true"}


def test_hudi_rolls_back_our_dead_writer_and_spares_one_with_a_heartbeat(
    ours: Shared,
) -> None:
    dead = ours.us.insert([order("dead")], beat=False)
    alive = ours.us.insert([order("alive")])
    ours.hudi_writes(order("h0"), **CLEANING)
    with pytest.raises(LockLost, match="rolled it back"):
        ours.us.publish(dead)
    ours.us.publish(alive)
    ours.both_show(*ROWS, order("h0"), order("alive"))


def test_of_overlapping_upserts_of_hudi_and_lockkit_the_second_is_refused(
    ours: Shared,
) -> None:
    mine = ours.us.upsert([order("k1", amount=1, at=100)])
    ours.hudi_writes(order("k1", amount=2, at=50))
    with pytest.raises(CommitConflict):
        ours.us.publish(mine)
    ours.both_show(K0, order("k1", amount=2, at=50), *FIRST[2:])


# --- at the same time -----------------------------------------------------------------------------


def test_at_the_same_time_one_lock_excludes_and_no_row_is_lost(
    ours: Shared, server: Emulator, hudi: Hudi
) -> None:
    ours.we_insert(order("shared"))
    began = len(server.requests())
    batches = [
        [order(f"hudi-{n}", amount=n, at=n), order("shared", amount=-n, at=2_000 + n)]
        for n in range(6)
    ]
    hudi.send("writes", path=ours.url.replace("s3:", "s3a:"), schema=SPARK_SCHEMA,
              batches=batches, options=ours.options(**CLEANING))  # fmt: skip
    writers = [start_writer(ours, f"w{n}") for n in range(2)]
    refusals = hudi.answer()
    done = [finished(writer) for writer in writers]
    assert all("HoodieWriteConflict" in each for each in refusals if each), refusals
    theirs = [{"rows": rows, "error": error} for rows, error in zip(batches, refusals, strict=True)]
    acknowledged = [each["rows"] for each in itertools.chain(theirs, *done) if not each["error"]]
    rows: dict[str, dict[str, Any]] = {row["id"]: row for row in ROWS}
    for row in sorted(itertools.chain(*acknowledged), key=lambda row: row["at"]):
        rows[row["id"]] = row
    ours.both_show(*rows.values())

    record = server.requests()[began:]
    held = tenancies(record)
    sides = [each.side for each in held]
    assert {"hudi", "lockkit"} <= set(sides) and len(list(itertools.groupby(sides))) > 4, sides
    completed = commits(record)
    assert [who for _, who in completed].count("hudi") == refusals.count("")
    for at_ms, who in completed:
        assert who in [each.side for each in held if each.from_ms <= at_ms <= each.until_ms]
    assert check(record).kind is not Kind.INVALID


def start_writer(table: Shared, client: str) -> subprocess.Popen[str]:
    said = {"url": table.url, "endpoint": table.endpoint, "client": client}
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("ours.py")), json.dumps(said)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(writer: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, _ = writer.communicate(timeout=60)
    assert writer.returncode == 0
    return list(json.loads(out))
