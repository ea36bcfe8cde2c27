"""Early conflict detection on S3, by Hudi and by Spark through lockkit: the later writer stops.

On S3 with either kind of Hudi's markers. It never compares a commit that is over: a commit does.
"""

from __future__ import annotations

from typing import Any

import pytest
from hudi_world import Hudi, Refused, s3a
from ours import SPARK_SCHEMA, order
from test_hudi import OPTIONS
from test_overlapping import AtFiles

from lockkit import Clock, open_store
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.spark import write
from lockkit.table import Committed
from lockkit.table.errors import CommitConflict, EarlyConflict

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
EARLY = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}
HELD_S = 40.0
MARKERS = {"DIRECT": "false", "TIMELINE_SERVER_BASED": "true"}
"""By the kind, whether Hudi's driver has a timeline server."""


@pytest.mark.parametrize("markers", MARKERS)
def test_of_hudi_and_lockkit_the_one_that_began_later_stops_early(
    hudi: Hudi, slow: Hudi, proxy: Proxy, server: Emulator, spark: Any, markers: str
) -> None:
    url = f"s3://early-{markers.lower().replace('_', '-')}/orders"
    options = OPTIONS | EARLY | {
        "hoodie.write.markers.type": markers, "hoodie.embed.timeline.server": MARKERS[markers],
    }  # fmt: skip
    store = open_store(url, endpoint=server.s3)

    def by_hudi(amount: int) -> dict[str, Any]:
        rows = [order("k0", amount=amount, at=amount)]
        return {"path": s3a(url), "rows": rows, "schema": SPARK_SCHEMA, "options": options}

    def by_us(amount: int, emit: Any = lambda *_, **__: None) -> Committed | None:
        frame = spark.createDataFrame([order("k0", amount=amount, at=amount)], SPARK_SCHEMA)
        return write(frame, url, endpoint=server.s3, options=EARLY, emit=emit)

    def shown() -> list[int]:
        return [row["amount"] for row in hudi.read(url)]

    hudi("write", **by_hudi(1))
    proxy.inject(Fault("delay", operation="put", key="*.parquet", delay_s=HELD_S, next=1))
    slow.send("write", **by_hudi(2))
    while not any("MARKERS" in each.key or ".marker." in each.key
                  for each in store.list(".hoodie/.temp/")):  # fmt: skip
        Clock().sleep(0.1)
    with pytest.raises(EarlyConflict, match="began earlier and is writing"):
        by_us(3)
    assert slow.answer()["seconds"] > HELD_S / 2, "Hudi had written when we began"
    assert shown() == [2]
    assert by_us(4) is not None and shown() == [4]

    said: list[str] = []

    def beside() -> None:
        try:
            hudi("write", **by_hudi(6))
        except Refused as refused:
            said.append(str(refused))

    if markers == "DIRECT":
        assert by_us(5, AtFiles(beside)) is not None
        assert "EarlyConflict" in said[0] and shown() == [5]
    else:  # Hudi's detection by its timeline server reads such markers alone, and ours are direct
        with pytest.raises(CommitConflict):
            by_us(5, AtFiles(beside))
        assert said == [] and shown() == [6]
