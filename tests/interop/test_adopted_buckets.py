"""A table that Hudi made with its bucket index is adopted: then both put a key where both look."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi, Refused
from ours import SPARK_SCHEMA, arrow, in_order, order

from lockkit.cli.main import main
from lockkit.errors import TableError
from lockkit.table import Table, read_table
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.property_keys import METADATA, format_properties, parse_properties

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
MINE = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "at",
    "hoodie.datasource.write.partitionpath.field": "region",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.embed.timeline.server": "false",
    "hoodie.compact.inline": "false",
}
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
KEYS = [f"key {n}" for n in range(24)]


@pytest.mark.parametrize(
    ("version", "kind"),
    [(each, kind) for kind in ("COPY_ON_WRITE", "MERGE_ON_READ") for each in (6, 8, 9)],
)
def test_upserts_of_both_leave_one_row_for_each_key(
    hudi: Hudi, tmp_path: Path, version: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, url = str(tmp_path / "orders"), f"file://{tmp_path}/orders"
    as_made = MINE | BUCKETS | {
        "hoodie.write.table.version": str(version), "hoodie.write.auto.upgrade": "false",
        "hoodie.datasource.write.table.type": kind,
    }  # fmt: skip

    def by_hudi(keys: list[str], at: int, options: dict[str, str]) -> None:
        made = [order(key, amount=at, at=at) for key in keys]
        hudi.write(path, made, schema=SPARK_SCHEMA, mode="append", options=options)

    def adopt(*more: str) -> tuple[int, Any]:
        code = main(["table", "adopt", url, "--json", *more])
        return code, json.loads(capsys.readouterr().out)

    by_hudi(KEYS[:16], 1, as_made)
    assert hudi.read(path)
    with Table(url) as table, pytest.raises(Exception, match="lockkit table adopt URL"):
        table.upsert(arrow([order("key 1", at=9)]))
    for wrong in ("2", "4", "6"):
        code, said = adopt("--buckets", wrong)
        assert code == 1 and "fit 3 buckets" in " ".join(each["blocked"] for each in said["fixes"])
    code, said = adopt("--buckets", "3")
    assert code == 0, said
    theirs = as_made | said["writer_options"]
    with Table(url) as table:

        def all_show() -> dict[str, int]:
            ours = in_order(read_table(table.store, meta=True).to_pylist())
            assert in_order(hudi.read(path)) == ours == in_order(read_by_hudi_rs(path).to_pylist())
            assert set(Counter(row["id"] for row in ours).values()) == {1}
            return {row["id"]: row["at"] for row in ours}

        table.upsert(arrow([order(key, amount=2, at=2) for key in KEYS[8:20]]))
        expected = dict.fromkeys(KEYS[:8], 1) | dict.fromkeys(KEYS[8:20], 2)
        assert all_show() == expected
        by_hudi(KEYS[12:24], 3, theirs)
        expected |= dict.fromkeys(KEYS[12:24], 3)
        assert all_show() == expected
        table.append(arrow([order(key, at=4) for key in ("key 0", "key 23", "of ours")]))
        by_hudi(["key 2", "of ours", "of Hudi's"], 5, theirs)
        table.upsert(arrow([order("of Hudi's", at=6)]))
        expected |= {"key 0": 4, "key 23": 4, "key 2": 5, "of ours": 5, "of Hudi's": 6}
        assert all_show() == expected
        table.delete(arrow([order("key 3", at=7), order("of Hudi's", at=7)]))
        del expected["key 3"], expected["of Hudi's"]
        assert all_show() == expected
        # Hudi takes the index from the table's properties, too.
        by_hudi(["key 4", "key 23"], 8, {k: v for k, v in theirs.items() if k not in BUCKETS})
        assert all_show() == expected | {"key 4": 8, "key 23": 8}
        buckets = [(partition, file_id[:8]) for partition, file_id in table.refresh().groups]
        assert len(buckets) == len(set(buckets)) == 3
        if kind == "COPY_ON_WRITE":
            table.overwrite(arrow([order("key 1", at=9), order("key 9", at=9)]))
            assert all_show() == {"key 1": 9, "key 9": 9}
            by_hudi(KEYS[:6], 10, theirs)
            expected = dict.fromkeys(KEYS[:6], 10) | {"key 9": 9}
            assert all_show() == expected
            replacing = {"hoodie.datasource.write.operation": "insert_overwrite"}
            by_hudi(["key 7"], 11, theirs | replacing)
            table.upsert(arrow([order("key 7", at=12), order("key 8", at=12)]))
            table.upsert(arrow([order(key, at=13) for key in KEYS[9:15]]))
            assert all_show() == {"key 7": 12, "key 8": 12} | dict.fromkeys(KEYS[9:15], 13)
        if kind == "MERGE_ON_READ":
            assert table.compact() is not None
            assert all_show() == expected | {"key 4": 8, "key 23": 8}


def test_buckets_of_consistent_hashing_and_of_other_fields_are_not_adopted(
    hudi: Hudi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, more, why in (
        ("consistent", {"hoodie.index.bucket.engine": "CONSISTENT_HASHING"}, "consistent hashing"),
        ("others", {"hoodie.datasource.write.recordkey.field": "id,amount",
                    "hoodie.bucket.index.hash.field": "id"}, "hash other fields"),
    ):  # fmt: skip
        path, url = str(tmp_path / name), f"file://{tmp_path}/{name}"
        options = MINE | BUCKETS | {"hoodie.datasource.write.table.type": "MERGE_ON_READ"} | more
        hudi.write(path, [order(key, at=1) for key in KEYS], schema=SPARK_SCHEMA,
                   mode="append", options=options)  # fmt: skip
        before = (tmp_path / name / PROPERTIES_KEY).read_bytes()
        assert main(["table", "adopt", url, "--buckets", "3"]) == 1
        assert why in capsys.readouterr().out
        assert (tmp_path / name / PROPERTIES_KEY).read_bytes() == before
        assert main(["table", "adopt", url]) == 1
        for key, value in (("hoodie.table.timeline.timezone", "UTC"), *((k, "") for k in METADATA)):
            say(tmp_path / name, key, value)  # as if nothing else were in the way
        with Table(url) as table, pytest.raises(TableError, match=r"consistent hashing|--buckets"):
            table.upsert(arrow([order("key 1", at=9)]))
    copied = MINE | BUCKETS | {"hoodie.index.bucket.engine": "CONSISTENT_HASHING"}
    # So a copy-on-write table has no such buckets.
    with pytest.raises(Refused, match=r"(?i)consistent"):
        hudi.write(str(tmp_path / "cow"), [order("key 1")], schema=SPARK_SCHEMA,
                   mode="append", options=copied)  # fmt: skip


def say(folder: Path, key: str, value: str) -> None:
    path = folder / PROPERTIES_KEY
    path.write_bytes(format_properties({**parse_properties(path.read_bytes()), key: value}))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
