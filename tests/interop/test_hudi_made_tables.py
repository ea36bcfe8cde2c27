"""The page of Hudi-made tables: what lockkit reads and writes of each, by Hudi and hudi-rs judged.

`LOCKKIT_REWRITE=1 make interop INTEROP_ARGS="-k as_the_page_says"` writes the page anew.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi
from test_hudi_tables import DATA, NAMES, RENAMED, answers, ours, plain, shown

from lockkit import open_store
from lockkit.cli.main import main
from lockkit.table import Table
from lockkit.table.format.property_keys import METADATA, parse_properties
from lockkit.table.read.reader import read_increment

pytestmark = [
    pytest.mark.interop, pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::lockkit.table.read.listed.LocalInstants"),
]  # fmt: skip
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "hudi_tables.md"
COLUMNS = (
    "id", "kind", "region", "day", "ts", "v", "cast(price as string) price",
    "cast(at as string) at", "tags", "who", "m", "_hoodie_commit_time", "_hoodie_record_key",
)  # fmt: skip
HEAD = """\
# Tables that Hudi made

This page shows, for tables that Apache Hudi 1.2.0 made, what lockkit and hudi-rs 0.5.0 read, and
what happens when lockkit writes to them. Hudi's defaults give a table the metadata table and
instants in local time (New York's).

- **snapshot**, **as of**, **increment**: whether lockkit reads the same rows as Hudi, with their
  meta columns.
- **hudi-rs**: whether hudi-rs reads the same snapshot as lockkit.
- **upsert**: the table is adopted (`lockkit table adopt`), then lockkit changes two rows and adds
  one.
- **then Hudi**, **then hudi-rs**: whether they read the rows that lockkit reads after that.

Hudi 0.15.0 makes tables of version 6. It was run by tests/interop/test_older_hudi.py: it makes a
table with its defaults, the table is adopted, and Hudi 0.15.0 and lockkit write in turn.

| made by Hudi 0.15.0 | what both do in turn | then Hudi 0.15.0, hudi-rs |
| --- | --- | --- |
| copy-on-write | upsert, delete; Hudi archives | same, at each step |
| merge-on-read | the same, also behind a plan of Hudi's; each compacts | same, at each step |
| merge-on-read, bucket index | the same | same, at each step |

Three rules of Hudi 0.15.0 differ. A copy-on-write table does not say its payload class: by default
Hudi 0.15.0 lets the later write win, and lockkit the greater precombine value. In a merge-on-read
table whose payload class lets the later write win, Hudi 0.15.0 takes the greater of two rows in log
files, and lockkit the later one. Give later writes greater values, then there is no difference.
With the bucket index and one record key field, Hudi 0.15.0 puts all keys that contain a colon into
one bucket; Hudi 1.x and lockkit do not. So let only one of them write such keys. (This follows from
Hudi's classes; no table was run.)

<!-- Made by tests/interop/test_hudi_made_tables.py from what it ran; the test compares. -->
"""


def same(mine: Sequence[Any], theirs: Sequence[Any]) -> str:
    if mine == theirs:
        return "same"
    if all(row in theirs for row in mine):
        return "without rows that Hudi shows"
    return "more rows" if all(row in mine for row in theirs) else "differs"


def several(found: Sequence[str | None]) -> str:
    """Of several reads; None: Hudi refused."""
    said = sorted({each for each in found if each is not None and each != "same"}) or ["same"]
    refused = sum(each is None for each in found)
    return ", ".join(said) + (f" ({refused} of {len(found)} is refused by Hudi)" if refused else "")


def rust(path: Path) -> list[dict[str, Any]] | str:
    try:
        return plain(read_by_hudi_rs(path).to_pylist())
    except Exception as error:  # noqa: BLE001 - what it says is the outcome
        return type(error).__name__


def read(made: Path, name: str) -> list[str]:
    """The outcomes of reading a table as Hudi made it."""
    said = answers(made, name)
    as_of = [None if rows is None else same(ours(made, name, as_of=at), plain(rows))
             for at, rows in said["as_of"].items()]  # fmt: skip
    increments = []
    for each in said["changes"]:
        store = open_store(f"file://{made / name}")
        rows, _ = read_increment(store, each["begin"], each["end"], meta=True)
        increments.append(same(shown(rows), plain(each["rows"])))
    mine = ours(made, name)
    return [same(mine, plain(said["snapshot"])), several(as_of), several(increments),
            "same" if rust(made / name) == mine else "differs"]  # fmt: skip


def written(hudi: Hudi, folder: Path, name: str, reasons: list[str]) -> list[str]:
    """The outcomes of a write to a copy of the table."""
    shutil.copytree(folder / name, folder / "written" / name)
    url, out = f"file://{folder}/written/{name}", io.StringIO()
    number = ["--buckets", "3"] if "buckets" in name else []
    with contextlib.redirect_stdout(out):
        code = main(["table", "adopt", url, "--json", *number])
    if code:
        found = json.loads(out.getvalue())["obstacles"]
        for reason in found:
            if reason not in reasons:
                reasons.append(reason)
        return [f"refused {', '.join(f'[{reasons.index(each) + 1}]' for each in found)}", "", ""]
    with Table(url) as table:
        rows = table.read()
        some = [{**row, "v": 77, "ts": 99} for row in rows.slice(0, 2).to_pylist()]
        new = pa.Table.from_pylist([*some, {**some[0], "id": "new"}], rows.schema)
        how = table.upsert if table.refresh().config.record_key else table.append
        assert how(new) is not None
        count = rows.num_rows + (1 if how == table.upsert else 3)
    mine = ours(folder / "written", name)
    assert len(mine) == count
    assert sum(row["v"] == 77 for row in mine) == 3
    theirs = plain(hudi("read", path=f"{folder}/written/{name}", select=list(COLUMNS)))
    wrote = "done" if how == table.upsert else "done (an append: it has no keys)"
    return [wrote, same(mine, theirs),
            "same" if rust(folder / "written" / name) == mine else "differs"]  # fmt: skip


def about(folder: Path) -> list[str]:
    """What kind of table it is, by its properties and its files."""
    keys = parse_properties((folder / ".hoodie" / "hoodie.properties").read_bytes())
    archive = [*folder.glob(".hoodie/timeline/history/*.parquet"),
               *folder.glob(".hoodie/*/.commits_.archive.*")]  # fmt: skip
    merged = keys["hoodie.table.type"] == "MERGE_ON_READ"
    logs = [each for each in folder.rglob(".*.log.*") if not each.name.endswith(".crc")]
    plans = [each for each in folder.rglob("*.requested")
             if "compaction" in each.name or "clustering" in each.name]  # fmt: skip
    done = {each.name[:17] for each in folder.glob(".hoodie/**/2*")
            if not each.name.endswith((".requested", ".inflight"))}  # fmt: skip
    more = []
    if "buckets" in folder.name:
        more.append("bucket index")
    if keys.get("hoodie.record.merge.mode") == "COMMIT_TIME_ORDERING":
        more.append("ordered by commits")
    if merged and not logs:
        more.append("no log files")
    if (folder / ".hoodie/.schema").is_dir():
        more.append("columns renamed, dropped, added")
    if any(each.name[:17] not in done for each in plans):
        more.append("a pending plan")
    if any("logcompaction" in each.name for each in folder.rglob("*.requested")):
        more.append("log compaction")
    elif merged and any(each.name[:17] in done for each in plans):
        more.append("compacted")
    return [
        f"`{folder.name}`", keys["hoodie.table.version"], "MOR" if merged else "COW",
        keys.get("hoodie.table.recordkey.fields", "") or "none",
        keys.get("hoodie.table.partition.fields", "") or "none",
        "yes" if archive else "no",
        "yes" if any(map(keys.get, METADATA)) else "no",
        keys.get("hoodie.table.timeline.timezone", "LOCAL").upper(), ", ".join(more),
    ]  # fmt: skip


def page(lines: Sequence[Sequence[str]], reasons: Sequence[str]) -> str:
    names = ("table", "version", "type", "record key", "partitioned by", "archived",
             "metadata table", "time zone", "also", "snapshot", "as of", "increment", "hudi-rs",
             "upsert", "then Hudi", "then hudi-rs")  # fmt: skip
    rows = [names, ["---"] * len(names), *lines]
    table = "\n".join(f"| {' | '.join(each)} |" for each in rows)
    why = "\n".join(f"- [{n}] {each}" for n, each in enumerate(reasons, 1))
    return f"{HEAD}\n{table}\n" + (f"\nWhy a table is not written:\n\n{why}\n" if why else "")


def test_every_table_that_hudi_made_is_read_and_written_as_the_page_says(
    hudi: Hudi, tmp_path: Path
) -> None:
    # Python before 3.11.4 does not know it.
    safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(DATA / "tables.tar.xz") as tar:
        tar.extractall(tmp_path, **safely)
    reasons: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = [[*about(tmp_path / name), *read(tmp_path, name),
                  *written(hudi, tmp_path, name, reasons)]
                 for name in sorted((*NAMES, *RENAMED))]  # fmt: skip
    for line in lines:
        assert "differs" not in line[9:12] and line[14] in ("same", ""), line
    made = page(lines, reasons)
    if os.environ.get("LOCKKIT_REWRITE"):
        PAGE.write_text(made, encoding="utf-8")
        return
    assert PAGE.read_text(encoding="utf-8") == made, "LOCKKIT_REWRITE=1 makes it again"
