"""The judge of the scenario `mor` for tables of version 6, by the format's rule alone.

A log file's name has the instant of its slice, and a version. Instants share the log files of a
slice: each block names its own. A slice stands once its instant is completed, or is that of a
pending compaction, whose slice goes on with the one before. Of the newest slice a reader takes the
base file, if there is one, then the log files by instant, version and token. Blocks of completed
instants count, unless a later command takes their instant back. So Hudi 1.2 and hudi-rs read. Once
commits are archived, an instant that is older than the timeline's first one counts as completed,
unless it is pending. Nothing of lockkit's readers is used here.

In the simulator the content of a data block is a JSON list of `[key, token or null, value]`.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Violated
from lockkit.lab.verify.table import reader
from lockkit.lab.verify.table.ledger import NEEDED, ROWS, Table, TrackedAttempt, compare
from lockkit.lab.verify.table.merged_judge import (
    LogWrite,
    MergedAttempt,
    MergedLedger,
    Rows,
    applied,
)
from lockkit.lab.verify.table.reader import Completed, ReaderView, TableRow, Unreadable

_LOG = re.compile(r"(?:(.+)/)?\.([^_/]+)_(\d{17})\.log\.(\d+)_(\d+-\d+-\d+)")
_PLAN = re.compile(r"\.hoodie/(\d{17})\.compaction\.requested")
_ARCHIVE = re.compile(r"\.hoodie/archived/\.commits_\.archive\.\d+_1-0-1")
_MAGIC, _COMMAND = b"#HUDI#", 0
_INSTANT, _TARGET, _SCHEMA = 0, 1, 2
ORDERED = "the log files of a slice have an order: no two with rows have one version"
TAKEN_BACK = "nothing of a rolled-back instant counts once older commits are archived"
CARRIED_OUT = "a compaction plan of version 6 can be carried out"
Group = tuple[str, str]


class SlicedLog(NamedTuple):
    """The fields in a log file's name, in the order in which readers take the files of a group."""

    partition: str
    file_id: str
    of: str
    """The instant of its slice."""
    version: int
    token: str
    key: str

    @property
    def group(self) -> Group:
        return self.partition, self.file_id


class LoggedBlock(NamedTuple):
    """One block: its instant, the rows, and the instant that it takes back."""

    instant: str
    target: str
    rows: list[tuple[str, str | None, int]]


def log_name(key: str) -> SlicedLog | None:
    match = None if key.startswith(".hoodie/") else _LOG.fullmatch(key)
    if match is None:
        return None
    return SlicedLog(match[1] or "", match[2], match[3], int(match[4]), match[5], key)


@lru_cache(maxsize=8192)
def blocks_of(body: bytes) -> tuple[LoggedBlock, ...]:
    return tuple(
        LoggedBlock(header[_INSTANT], header.get(_TARGET, ""),
                    [] if kind == _COMMAND else [tuple(each) for each in json.loads(content)])
        for kind, header, content in _blocks(body)
    )  # fmt: skip


def _blocks(body: bytes) -> Iterator[tuple[int, dict[int, str], bytes]]:
    """The kind, the header and the content of each block."""
    at = 0
    while at < len(body):
        if body[at : at + 6] != _MAGIC:
            raise Unreadable(f"no block begins at byte {at}")
        (size, version, kind, count) = struct.unpack_from(">qiii", body, at + 6)
        end, header, here = at + 14 + size, dict[int, str](), at + 26
        for _ in range(count):
            key, length = struct.unpack_from(">ii", body, here)
            header[key] = body[here + 8 : here + 8 + length].decode()
            here += 8 + length
        (length,) = struct.unpack_from(">q", body, here)
        if version != 1 or end > len(body):
            raise Unreadable(f"a block of version {version} ends at {end} of {len(body)}")
        yield kind, header, body[here + 8 : here + 8 + length]
        at = end


@lru_cache(maxsize=512)
def _archived_in(body: bytes) -> frozenset[str]:
    """The instants in one log of the archive: blocks of Avro records, each after its length."""
    import fastavro

    found = set[str]()
    for _, header, content in _blocks(body):
        schema, at = fastavro.parse_schema(json.loads(header[_SCHEMA])), 8
        for _ in range(*struct.unpack_from(">i", content, 4)):
            (length,) = struct.unpack_from(">i", content, at)
            row = fastavro.schemaless_reader(
                io.BytesIO(content[at + 4 : at + 4 + length]), schema, None
            )
            assert isinstance(row, dict)
            found.add(str(row["commitTime"]))
            at += 4 + length
    return frozenset(found)


def archived_of(objects: Mapping[str, bytes]) -> set[str]:
    """The instants that the archive has."""
    logs = [body for key, body in objects.items() if _ARCHIVE.fullmatch(key) and body]
    return {instant for body in logs for instant in _archived_in(body)}


def sliced_view(
    objects: Mapping[str, bytes], ordered: bool, *, archived: bool = False
) -> ReaderView:
    """The table's content now, or once its older commits are `archived`; raises `Unreadable`."""
    commits = [each for key in objects if (each := reader.completed_name(key)) is not None]
    pending = reader.pending(objects)
    bases, logs = dict[Group, list[reader.DataFile]](), dict[Group, list[SlicedLog]]()
    instants, plans = {each.instant for each in commits}, set[str]()
    for key in objects:
        if (plan := _PLAN.fullmatch(key)) is not None and plan[1] in pending:
            plans.add(plan[1])
        elif (base := reader.data_name(key)) is not None:
            bases.setdefault((base.partition, base.file_id), []).append(base)
        elif (log := log_name(key)) is not None:
            logs.setdefault(log.group, []).append(log)
    first = "~" if archived else min(instants, default="")
    if archived or archived_of(objects):
        found = {each.instant for some in bases.values() for each in some}
        for here in (log for some in logs.values() for log in some):
            found |= {here.of, *(block.instant for block in blocks_of(objects[here.key]))}
        instants |= {each for each in found - pending if each < first}
    needed, rows, starts = set[str](), list[TableRow](), dict[Group, str]()
    for group in {*bases, *logs}:
        standing, behind = _slice(bases.get(group, []), logs.get(group, []), instants, plans)
        starts[group] = standing.instant if standing else ""
        held: Rows = {}
        if standing is not None:
            needed.add(standing.key)
            for key, token, value, _ in json.loads(objects[standing.key]):
                held[key] = token, value
        writes = _visible(behind, objects, instants)
        needed |= {each.key for each, _ in writes}
        changes = [LogWrite(f"{n:09}", "", *row) for n, (_, row) in enumerate(writes)]
        rows += [TableRow(group[0], key, (token,), "")
                 for key, (token, _) in applied(held, changes, ordered).items()]  # fmt: skip
    _refuse_missing(objects, commits, starts)
    return ReaderView(tuple(commits), frozenset(needed), tuple(rows))


def _slice(
    bases: Iterable[reader.DataFile], logs: Iterable[SlicedLog], instants: Collection[str],
    plans: Collection[str],
) -> tuple[reader.DataFile | None, list[SlicedLog]]:  # fmt: skip
    """The base file of the newest slice that stands, and its log files."""
    standing = max((each for each in bases if each.instant in instants), default=None,
                   key=lambda each: each.instant)  # fmt: skip
    slices = {each.of for each in logs if each.of in instants}
    start = max([*slices, standing.instant if standing else ""])
    behind = [each for each in logs if each.of == start or (each.of > start and each.of in plans)]
    if standing is not None and standing.instant != start:
        standing = None  # this newer slice has no base file
    return standing, sorted(behind)


def _visible(
    logs: Iterable[SlicedLog], objects: Mapping[str, bytes], instants: Collection[str]
) -> list[tuple[SlicedLog, tuple[str, str | None, int]]]:
    found: list[tuple[SlicedLog, LoggedBlock]] = []
    for each in logs:
        for block in blocks_of(objects[each.key]):
            if block.target:
                found = [one for one in found if one[1].instant != block.target]
            elif block.instant in instants:
                found.append((each, block))
    versions = dict[tuple[str, int], SlicedLog]()
    for each, _block in found:
        if versions.setdefault((each.of, each.version), each) != each:
            raise Violated(ORDERED, f"{each.key} and {versions[each.of, each.version].key}")
    return [(each, row) for each, block in found for row in block.rows]


def _refuse_missing(
    objects: Mapping[str, bytes], commits: Iterable[Completed], starts: Mapping[Group, str]
) -> None:
    """Raise if a file that a commit names, and that no later base file contains, is not there."""
    for each in commits:
        for path, group in reader.written_by(objects[each.key]):
            log = log_name(path)
            at = log.of if log else each.instant
            if path not in objects and not starts.get(group, "") > at:
                raise Unreadable(f"{each.key} names {path}, which is not there")


@dataclass(slots=True)
class SlicedLedger(MergedLedger):
    """What a table of version 6 must hold, and what it does hold.

    A commit is a turn. A compaction has the turns before its plan.
    """

    planned: dict[str, str] = field(default_factory=dict)
    """By instant of a compaction: the turn of its plan."""

    @property
    def turn(self) -> str:
        return f"{len(self.commits):09}"

    def after(self, attempt: TrackedAttempt, commit: Completed, body: bytes) -> Table:
        if attempt.kind == "compact":
            turn = self.planned[commit.instant]
            self._compacted(turn, reader.groups_of(body))
        elif isinstance(attempt, MergedAttempt):
            self._logged(attempt, self.turn, self.turn)
        return self._shown(attempt, commit)

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        key = getattr(write.request, "key", "")
        plan, log = _PLAN.fullmatch(key), log_name(key)
        if plan is not None and after is not None and not write.before:
            self.planned[plan[1]] = f"{self.turn}~"  # between this turn and the next one
        MergedLedger.on_write(self, write, after)
        if log is None:
            return
        if after is None and key in self.files:
            raise Violated(NEEDED, key)
        if after is not None:
            done = {each.instant for each in self.commits}
            if any(each.instant in done or each.target for each in blocks_of(after.body)):
                self._compare(f"{key} was written, with a command or in a completed instant")

    def view(self) -> ReaderView:
        return self._seen(archived=False)

    def archived(self) -> set[str]:
        return archived_of(self.objects())

    def nothing_revives(self) -> None:
        """Raise if a reader would find other rows once the older commits are archived."""
        compare(self.tables[-1], self._seen(archived=True).rows, TAKEN_BACK)

    def _seen(self, *, archived: bool) -> ReaderView:
        try:
            return sliced_view(self.objects(), self.ordered, archived=archived)
        except Unreadable as error:
            raise Violated(TAKEN_BACK if archived else ROWS, str(error)) from None
