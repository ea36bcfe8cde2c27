"""Merge on read: what an upsert writes, and one overlap under two kinds of concurrency control."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

import lockkit.table as table
from lockkit.events import shortened
from lockkit.lab.course.grid import grid
from lockkit.lab.course.staged_upserts import (
    NON_BLOCKING,
    OPTIMISTIC,
    PENDING,
    READ,
    GroupFile,
    Order,
    StagedUpserts,
    orders_of,
)
from lockkit.lab.verify.planting import planted
from lockkit.lab.verify.scenarios.mor import by_instant
from lockkit.lab.widgets.charts import HUES
from lockkit.lab.widgets.ui import Shown, Status, button, column, row, row_layout
from lockkit.table.format.log_blocks import KINDS, avro_rows, blocks
from lockkit.table.format.property_keys import MERGE_ON_READ

ROWS, KIB = 20_000, 1024
COST_GUESSES = AS_MANY, TENTH, HUNDREDTH = "about as many", "about a tenth", "less than a hundredth"
ONE_EACH, ONE_AND_TWO, BOTH_EACH = (
    "one under each of them", "one under optimistic control, both under non-blocking",
    "both under each of them",
)  # fmt: skip
OVERLAP_GUESSES = (ONE_EACH, ONE_AND_TWO, BOTH_EACH)
REFUSED, SEEN, LOST = "W1 is refused", "a reader sees it", "it is lost: no reader sees it"
LATE_GUESSES = (REFUSED, SEEN, LOST)
WRITERS = ("W1", "W2")


# --- what an upsert writes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UpsertCost:
    """One changed row of many: bytes of data files that were written, by kind of table."""

    written: dict[str, int]
    rows: int

    @property
    def times(self) -> float:
        most, least = self.written.values()
        return most / least

    def __str__(self) -> str:
        return HUNDREDTH if self.times > 100 else TENTH if self.times > 3 else AS_MANY

    def __repr__(self) -> str:
        lines = [f"{kind}: {size / KIB:,.1f} KiB written" for kind, size in self.written.items()]
        return "\n".join([f"1 of {self.rows:,} rows changed.", *lines])


def change_one(rows: int = ROWS) -> UpsertCost:
    """Change one row of a copy-on-write table and of a merge-on-read table, each one file group."""
    written = {}
    for kind in ("COPY_ON_WRITE", MERGE_ON_READ):
        url = f"memory://course-merging-{kind}"
        with table.Table.create(
            url, record_key="id", precombine="at", buckets=1, table_type=kind
        ) as orders:
            many = [(f"order-{n:06}", 1, n * 7919 % 100_000) for n in range(rows)]
            if orders.read().num_rows == 0:
                orders.upsert(orders_of(many))
            before = _data_bytes(orders)
            orders.upsert(orders_of([("order-000007", 1 + len(before), 5)]))
            after = _data_bytes(orders)
            written[kind] = sum(size for key, size in after.items() if key not in before)
    return UpsertCost(written, rows)


def _data_bytes(orders: table.Table) -> dict[str, int]:
    listed = (each for each in orders.store.list("") if not each.key.startswith(".hoodie"))
    return {each.key: each.size for each in listed if ".parquet" in each.key or ".log." in each.key}


# --- inside a log file ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogContent:
    """The blocks of a log file."""

    path: str
    blocks: tuple[tuple[str, str, str], ...]
    """Of each block its kind, the instant that it belongs to, and its rows."""

    def __repr__(self) -> str:
        return shortened("\n".join([self.path, *("  ".join(each) for each in self.blocks)]))

    def _repr_html_(self) -> str:
        return f"<code>{escape(shortened(self.path))}</code>" + grid(
            "merging", ("block", "instant", "rows"), self.blocks
        )


def open_log() -> LogContent:
    """W1 upserts two orders; the log file that it wrote, read block by block."""
    stage = StagedUpserts()
    stage.write("W1", [("order-1", 5, 10), ("order-9", 5, 90)])
    (path,) = (each.path for each in stage.files if each.owner == "W1")
    body = stage.body(path)
    return LogContent(path, tuple(
        (f"{KINDS[each.kind]}, {len(each.content)} bytes", each.instant,
         _said((row["id"], row["at"], row["amount"]) for row in avro_rows(each)))
        for each in blocks(path, body)
    ))  # fmt: skip


def _said(rows: Any) -> str:
    return ", ".join(f"{id} = {amount} (at {at})" for id, at, amount in rows)


# --- a compaction beside a slow writer ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LateLog:
    """A log file that was committed after a compaction of its file group."""

    committed: bool
    rows: tuple[Order, ...]
    files: tuple[GroupFile, ...]

    def __str__(self) -> str:
        if not self.committed:
            return REFUSED
        return SEEN if ("order-1", 5, 10) in self.rows else LOST

    def __repr__(self) -> str:
        lines = [f"{shortened(each.path)[-40:]}  {each.owner}  {_said(each.rows)}  {each.standing}"
                 for each in self.files]  # fmt: skip
        return "\n".join([*lines, f"W1's row: {self}. A reader sees {_said(self.rows)}"])

    def _repr_html_(self) -> str:
        seen = escape(f"{_said(self.rows)}. W1's row: {self}")
        return f"{_drawn(self.files)}<div><b>A reader sees</b> {seen}</div>"


def compact_beside(*, completion: bool) -> LateLog:
    """W1 writes its log file; a compaction merges W2's and commits; then W1 commits.

    With `completion` a reader places a log file by when it was completed, otherwise by its instant.
    """
    with nullcontext() if completion else planted(
        {"lockkit.table.read.log_slice:slice_after": by_instant}
    ):
        stage = StagedUpserts(NON_BLOCKING)
        stage.write("W1", [("order-1", 5, 10)])
        stage.write("W2", [("order-2", 3, 20)])
        stage.commit("W2")
        stage.compact()
        return LateLog(committed=stage.commit("W1"), rows=stage.rows, files=tuple(stage.files))


# --- side by side ---------------------------------------------------------------------------------

STYLE = """<style>
.lockkit-files{max-width:30em;margin:4px 0}
.lockkit-files div{border:1px solid var(--jp-border-color1,#999);border-left:6px solid #777;
padding:3px 8px;margin:0 0 3px;font-size:12px;line-height:1.45;overflow-wrap:anywhere}
.lockkit-files .log{margin-left:18px}.lockkit-files .gone{opacity:.6}
.lockkit-overlap td{line-height:1.45;font-size:12px;vertical-align:top;overflow-wrap:anywhere}
.lockkit-overlap td:first-child{white-space:nowrap}
.lockkit-files .pending{border-style:dashed;border-left-style:solid}
</style>"""
STYLE += "".join(
    f"<style>.lockkit-files .{writer}{{border-left-color:{hue}}}</style>"
    for writer, hue in zip(WRITERS, HUES, strict=False)
)


def _drawn(files: Any) -> str:
    def drawn(each: GroupFile) -> str:
        kind = "log file" if each.is_log else "base file"
        state = {READ: "", PENDING: "pending"}.get(each.standing, "gone")
        mark = "" if each.standing == READ else f" ({escape(each.standing)})"
        owner = "the set-up" if each.owner == "W0" else each.owner
        box = f"{kind[:4].strip()} {escape(each.owner)} {state}"
        rows = escape(_said(each.rows))
        return f"<div class='{box}'><b>{kind}</b> of {escape(owner)}{mark}<br>{rows}</div>"

    return f"{STYLE}<div class='lockkit-files'>{''.join(map(drawn, files))}</div>"


@dataclass(slots=True)
class _WriterTurn:
    """What the next upsert of each writer contains: W1's amounts end in 0, W2's in 5."""

    at: int = 1
    amounts: dict[str, int] = field(default_factory=lambda: {"W1": 0, "W2": 5})

    def next(self, name: str) -> list[Order]:
        self.at += 1
        self.amounts[name] += 10
        return [("order-1", self.at, self.amounts[name])]


class Overlap(Shown):
    """Optimistic and non-blocking control side by side, with the same steps in both.

    Press the buttons, or call `write`, `commit`, `compact` and `start`.
    """

    def __init__(self) -> None:
        self._status = Status()
        self._panes = [widgets.HTML(layout=widgets.Layout(width="24em", max_width="98%"))
                       for _ in range(2)]  # fmt: skip
        self._buttons = {
            (what, name): button(f"{name} {what}s", partial(press, name))
            for name in WRITERS for what, press in (("write", self.write), ("commit", self.commit))
        }  # fmt: skip
        bar = row(*self._buttons.values(), button("Compact", self.compact),
                  button("Start again", self.start, icon="refresh"))  # fmt: skip
        panes = widgets.HBox(self._panes, layout=row_layout("flex-start"))
        self.view = column("overlap", bar, self._status, panes)
        self.start()

    def start(self) -> None:
        self.stages = [StagedUpserts(OPTIMISTIC), StagedUpserts(NON_BLOCKING)]
        self._turn = _WriterTurn()
        self._show("Two orders, in one base file. Both writers change order-1.")

    def write(self, name: str) -> None:
        """Begin the writer's next upsert of order-1 in both tables, and write its log file."""
        rows = self._turn.next(name)
        for stage in self.stages:
            stage.write(name, rows)
        self._show(f"{name} wrote a log file: {_said(rows)}.")

    def commit(self, name: str) -> None:
        done = [stage.commit(name) for stage in self.stages]
        said = [f"{'commits' if each else 'is refused'} under {stage.mistake} control"
                for each, stage in zip(done, self.stages, strict=True)]  # fmt: skip
        self._show(f"{name} {' and '.join(said)}.")

    def compact(self) -> None:
        done = [stage.compact() for stage in self.stages]
        what = "merged the log files into a new base file" if any(done) else "found no log files"
        self._show(f"The compaction {what}.")

    def overlap(self) -> Overlap:
        """What the buttons do: both write, W2 commits, then W1."""
        self.start()
        for name in WRITERS:
            self.write(name)
        for name in reversed(WRITERS):
            self.commit(name)
        return self

    @property
    def verdicts(self) -> list[str]:
        return [stage.verdict.kind for stage in self.stages]

    def __str__(self) -> str:
        """How many of the commits stand, as a guess says it; "" if there were not two."""
        counts = self.stages[0].commits, self.stages[1].commits
        found = {(1, 1): ONE_EACH, (1, 2): ONE_AND_TWO, (2, 2): BOTH_EACH}
        return found.get(counts, "")

    def __repr__(self) -> str:
        return "\n".join(
            f"{stage.mistake}: W1 {stage.ended.get('W1', '-')}; W2 {stage.ended.get('W2', '-')}; "
            f"a reader sees {_said(stage.rows)}" for stage in self.stages
        )  # fmt: skip

    def _show(self, said: str) -> None:
        for pane, stage in zip(self._panes, self.stages, strict=True):
            ends = ((name, stage.ended.get(name, "")) for name in WRITERS)
            ended = grid("merging", (), ends)
            pane.value = (f"<h4>{escape(stage.mistake.capitalize())} control</h4>"
                          f"{_drawn(stage.files)}<div><b>A reader sees</b> "
                          f"{escape(_said(stage.rows))}</div>{ended}")  # fmt: skip
        begun = self.stages[0].begun
        for (what, name), each in self._buttons.items():
            each.disabled = (name in begun) is (what == "write")
        self._status.say(said)
