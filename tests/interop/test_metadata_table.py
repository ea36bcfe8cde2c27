"""Hudi's metadata table, in which lockkit's commits are not, stays off beside Hudi's own writers.

The table's properties say so, and Hudi refuses a writer that does not read them. Where that was
not so yet, and a writer of Hudi's with its defaults has made it again, it is off before a commit of
ours appears. At each moment a reader of Hudi's, with its defaults too, shows what was acknowledged.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hudi_world import Hudi, Refused, s3a
from ours import SCHEMA, SPARK_SCHEMA, arrow, order
from test_hudi import PROVIDER

from lockkit import Clock
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.protocol.outcome import Applied, Found, over
from lockkit.runtime import run
from lockkit.table import Table, avro_schema
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.property_keys import (
    BLOCK_KEY,
    METADATA,
    format_properties,
    no_metadata,
    parse_properties,
)
from lockkit.table.occ.rewriting import MetadataSwitchedOff
from lockkit.table.services.adopt import adopt

pytestmark = [
    pytest.mark.interop, pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::lockkit.table.read.listed.LocalInstants"),
]  # fmt: skip
DEFAULTS = {
    "hoodie.table.name": "orders", "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "at",
    "hoodie.datasource.write.partitionpath.field": "region",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": PROVIDER,
    "hoodie.clean.automatic": "false",  # ten commits of ours may pass while a look reads
}  # fmt: skip
"""What a table and several writers need; all else that concerns it is Hudi's own default."""
LOCK = {"ttl_s": 60.0, "renew_interval_s": 5.0, "acquire_timeout": 300.0}
QUIET = {"hoodie.clean.automatic": "false"}
NUMBERS = itertools.count()
ROUNDS = 3
PAUSE_S = 1.0  # Hudi asks for the lock once a second


@dataclass
class Beside:
    """A table that Hudi made with its metadata table, and that lockkit has adopted."""

    url: str
    endpoint: str
    hudi: Hudi
    reader: Hudi
    version: int
    begun: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    """By key the newest `at` that a write has begun with, and that was acknowledged."""

    def __post_init__(self) -> None:
        self.by_hudi(0, "h0", "h1")
        with self.opened() as table:
            run(adopt(), table.store, table.clock)

    def opened(self, **how: Any) -> Table:
        return Table(self.url, endpoint=self.endpoint, lock=LOCK, options=QUIET, **how)

    def properties(self, table: Table) -> Found:
        while not isinstance(found := table.store.get(PROPERTIES_KEY), Found):
            Clock().sleep(0.1)  # Hudi deletes the file, and writes it again
        return found

    def is_on(self) -> bool:
        with self.opened() as table:
            return bool(parse_properties(self.properties(table).body).get(METADATA[0]))

    def forget(self) -> None:
        """As if an earlier lockkit, or none, had adopted the table."""
        with self.opened() as table:
            found = self.properties(table)
            keys = dict(parse_properties(found.body))
            new = format_properties({k: v for k, v in keys.items() if k not in no_metadata("2")})
            assert isinstance(table.store.put(PROPERTIES_KEY, new, over(found.version)), Applied)
            if isinstance(table.store.get(BLOCK_KEY), Found):
                assert isinstance(table.store.delete(BLOCK_KEY), Applied)

    def by_hudi(self, at: int, *keys: str, **more: str) -> None:
        options = DEFAULTS | {"hoodie.write.table.version": str(self.version)} | more
        self.wrote(lambda rows: self.hudi.write(
            self.url, rows, schema=SPARK_SCHEMA, options=options), "US", at, *keys)  # fmt: skip

    def by_client(self, at: int, *keys: str, **more: str) -> None:
        """As Hudi Streamer and Flink write: their config is not filled from the properties."""
        options = DEFAULTS | {"hoodie.write.table.version": str(self.version)} | more
        self.wrote(lambda rows: self.hudi(
            "client", path=s3a(self.url), rows=rows, avro=avro_schema(SCHEMA, "orders"),
            options=options), "US", at, *keys)  # fmt: skip

    def wrote(self, write: Callable[[Any], Any], region: str, at: int, *keys: str) -> None:
        self.begun |= dict.fromkeys(keys, at)
        write([order(key, region=region, amount=at, at=at) for key in keys])
        self.done |= dict.fromkeys(keys, at)

    def look(self) -> dict[str, int]:
        """Hudi's reader shows each key once, all that was acknowledged, and nothing unheard of."""
        least = dict(self.done)
        rows = self.reader.read(self.url)
        shown = {row["id"]: row["at"] for row in rows}
        assert len(rows) == len(shown) and shown.keys() <= self.begun.keys()
        assert all(least[key] <= shown.get(key, -1) for key in least), (least, shown)
        assert all(at <= self.begun[key] for key, at in shown.items())
        return shown


@pytest.fixture
def table(
    request: pytest.FixtureRequest, hudi: Hudi, second: Hudi, server: Emulator
) -> Iterator[Beside]:
    yield Beside(f"s3://metadata-{next(NUMBERS)}/orders", server.s3, hudi, second, request.param)


@pytest.mark.parametrize(
    ("table", "kind"), [(9, "append"), (9, "upsert"), (9, "cluster"), (6, "upsert")],
    indirect=["table"],
)
def test_it_is_off_before_a_commit_appears_though_hudi_has_just_made_it(
    table: Beside, kind: str
) -> None:
    moment, found = "ask" if kind == "append" else "note", dict[str, Any]()

    def look(event: str, **fields: Any) -> None:
        if event == moment and not found:
            found["begun"] = True
            table.by_hudi(7, "h7")
        if event == "checked":
            found["checked"] = table.is_on(), table.look()

    with table.opened() as first:
        for at in range(2):
            table.wrote(lambda rows: first.append(arrow(rows)), "EU", at, f"e{at}", f"f{at}")
    table.forget()
    table.by_hudi(3, "h3")
    assert table.is_on()
    frame = f"frame_{next(NUMBERS)}"
    table.reader("sql", text=f"CREATE TEMP VIEW {frame} USING hudi OPTIONS "
                             f"(path '{s3a(table.url)}')")  # fmt: skip
    before = table.look()
    with table.opened(emit=look) as ours, pytest.warns(MetadataSwitchedOff):
        if kind == "cluster":
            assert ours.cluster() is not None
        else:
            write = getattr(ours, kind)
            table.wrote(lambda rows: write(arrow(rows)), "EU", 9, "e0" if kind == "upsert" else "n")
    assert found["checked"] == (False, before | {"h7": 7})
    assert table.look()
    late = {row["id"]: row["at"] for row in table.reader("sql", text=f"SELECT * FROM {frame}")}
    assert late == before, "a query that was planned before"
    table.by_hudi(10, "h10")
    assert not table.is_on() and table.look() == table.done


@pytest.mark.parametrize("table", [9, 6], indirect=True)
def test_it_stays_off_while_both_write_and_no_look_of_hudis_lacks_a_row(table: Beside) -> None:
    """One that Hudi makes while we commit would lack our commits."""
    over, looks = threading.Event(), 0

    def hudi_writes() -> None:
        for at in range(1, ROUNDS + 1):
            table.by_hudi(at, f"h{at}", "h0")

    def we_write() -> None:
        at = 0
        with table.opened() as ours:
            while not over.wait(PAUSE_S):
                at += 1
                table.wrote(lambda rows: ours.append(arrow(rows)), "EU", at, f"e{at}", f"f{at}")
                table.wrote(lambda rows: ours.upsert(arrow(rows)), "EU", at, "e1", f"e{at}")
                ours.cluster()

    table.look()  # Spark's first one takes long
    with ThreadPoolExecutor(2) as pool:
        theirs, mine = pool.submit(hudi_writes), pool.submit(we_write)
        try:
            while not theirs.done() and not mine.done():
                table.look()
                looks += 1
        finally:
            over.set()
        theirs.result()
        mine.result()
    assert looks > 1 and not table.is_on() and table.look() == table.done
    with pytest.raises(Refused, match="Config conflict"):
        table.by_hudi(99, "h99", **{"hoodie.metadata.enable": "true"})


@pytest.mark.parametrize("table", [9, 6], indirect=True)
def test_a_writer_that_is_given_no_properties_is_refused_unless_its_option_says_to_make_none(
    table: Beside,
) -> None:
    """Hudi Streamer and Flink. The services of Hudi's SQL obey the properties, as its writes do."""
    with table.opened() as ours:
        table.wrote(lambda rows: ours.append(arrow(rows)), "EU", 1, "e1", "f1")
    table.by_client(2, "c2", **{"hoodie.metadata.enable": "false"})
    name = f"orders_{next(NUMBERS)}"
    table.hudi("sql", text=f"CREATE TABLE {name} USING hudi LOCATION '{s3a(table.url)}'")
    for service in ("run_clean", "run_clustering"):
        table.hudi("sql", text=f"CALL {service}(table => '{name}')")
    assert not table.is_on() and table.look() == table.done
    if table.version == 6:  # there it is made under the lock
        table.by_client(3, "c3")
        assert table.is_on() and table.look() == table.done
        with table.opened() as ours, pytest.warns(MetadataSwitchedOff):
            table.wrote(lambda rows: ours.append(arrow(rows)), "EU", 4, "e3")
    else:
        with pytest.raises(Refused, match=r"(?s)orders/.hoodie/metadata.*Found pending restore"):
            table.by_client(3, "c3")
    assert not table.is_on() and table.look() == table.done
    with table.opened() as ours:
        table.wrote(lambda rows: ours.append(arrow(rows)), "EU", 4, "e4")
    table.by_client(5, "c5", **{"hoodie.metadata.enable": "false"})
    assert not table.is_on() and table.look() == table.done


@pytest.mark.parametrize("table", [9], indirect=True)
@pytest.mark.parametrize("moment", ["block", "late"])
def test_one_that_hudi_makes_outside_the_lock_hides_no_commit_of_ours(
    table: Beside, slow: Hudi, proxy: Proxy, moment: str
) -> None:
    """A table that no lockkit has blocked. Hudi makes it under the lock and, if that was switched
    off, once more without the lock when it commits: from files that were listed before ours were
    published. Our block comes before that, or after Hudi has looked for it.
    """
    said, hudi = list[str](), table.hudi

    def by_client() -> None:
        try:
            table.by_client(2, "c2")
        except Refused as refused:
            said.append(str(refused))

    def begun() -> int:
        timeline = BLOCK_KEY.rpartition("/")[0] + "/"
        return sum(each.key.endswith(".inflight") for each in ours.store.list(timeline))

    def waits_for(arrived: Callable[[], bool]) -> None:
        while not arrived() and writer.is_alive():
            Clock().sleep(0.1)
        assert writer.is_alive(), said

    table.forget()
    table.look()
    writer = threading.Thread(target=by_client)
    with table.opened() as ours, pytest.warns(MetadataSwitchedOff):
        table.hudi = slow
        proxy.inject(Fault("delay", operation="put", key="*.inflight", delay_s=30, next=1))
        writer.start()
        waits_for(table.is_on)
        Clock().sleep(PAUSE_S)
        table.wrote(lambda rows: ours.append(arrow(rows)), "EU", 1, "e1")
        if moment == "late":
            table.forget()
            before = begun()
            proxy.inject(Fault("delay", operation="put", key="*.hfile", delay_s=30, next=1))
            waits_for(lambda: begun() > before)
            table.wrote(lambda rows: ours.append(arrow(rows)), "EU", 2, "f2")
        while writer.is_alive():
            table.look()
        writer.join()
        table.hudi = hudi
        assert len(said) == 1 and "Bootstrap on files partition failed" in said[0]
        assert table.look() == table.done
        table.wrote(lambda rows: ours.append(arrow(rows)), "EU", 3, "e3")
    assert not table.is_on() and table.look() == table.done
