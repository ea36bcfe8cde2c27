"""File groups written directly to the store by the tasks that have the rows, with or without Spark.

Each task reads its group's base file, merges, and writes the next file itself; it returns only
statistics. Nothing here publishes.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, cast
from weakref import WeakKeyDictionary

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.format.base_file import (
    BaseFile,
    BaseFileWriter,
    Slice,
    Target,
    columns_of,
    disk_errors_named,
    draft_file,
    plain,
    record_keys,
)
from lockkit.table.format.base_file_reading import rows_to_copy
from lockkit.table.format.data_files import open_data_file, put_data_file
from lockkit.table.format.layout import NO_COMMIT, FileGroup, TaskId, WriteStat, in_partition
from lockkit.table.format.row_partitions import by_partition
from lockkit.table.occ.conflict import ConflictStrategy
from lockkit.table.occ.conflicting import OwnChanges
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.markers import Io, early_conflict, mark, overtaken
from lockkit.table.read.buckets import free_file_id, is_bucketed
from lockkit.table.write.merge import deletions, merge, refuse_strangers, upserts

if TYPE_CHECKING:
    import pyarrow as pa

    from lockkit.runtime.progress import WorkDone
    from lockkit.table.write.log import LogDraft

    Draft: TypeAlias = "BaseFileWriter | LogDraft"
PREFETCHED_MAX = 16
"""How many base files a small write fetches before they are needed."""
UNSENT_BYTES_MAX = 32 << 20
"""How many bytes of new files a small write keeps in memory until it sends them all at once."""
FILE_BYTES_MAX = 120 * 1024 * 1024
"""The size at which an insert begins the next file: Hudi's `hoodie.parquet.max.file.size`."""


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """A file group to write: its partition, its id, and the slice to merge into, if it has one."""

    group: FileGroup
    base: Slice | None = None
    logs: bool = False
    """Whether a new file group begins with a log file, as in Hudi with a bucket index."""
    gone: pa.Table | None = None
    """Rows that move to another partition, whose keys are to be deleted from this group."""
    inserts: bool = False
    """Whether new keys go into its base file, where alone Hudi's writers look for them."""


@dataclass(frozen=True, slots=True)
class EarlyCheck:
    """How a task checks, before it writes a file group, for an earlier writer of the same group."""

    covered: CheckedHorizon
    """The commits that this transaction covers; they cannot conflict with it."""
    rules: HeartbeatRules
    strategy: ConflictStrategy
    commits: bool = False
    """Whether commits completed since then count as well: one more listing for each check."""


class FileBuffer:
    """Base files that are fetched before they are needed, and new files that are not yet sent.

    So a small write waits for its files while it waits for its instant and its inflight file.
    Closing it ends the fetches. A fetched file can be opened once; after that it is read from the
    store. A large write (not `early`) fetches nothing early: its base files are large together, and
    would all lie in temporary files at once.
    """

    def __init__(self, store: Store, clock: Clock, *, early: bool) -> None:
        self.unsent: list[BaseFile] = []
        self._store, self._clock, self._early = store, clock, early
        self._pool = ThreadPoolExecutor(PREFETCHED_MAX)
        self._fetches: dict[str, Future[BinaryIO]] = {}
        self._left: list[Slice] = []
        self._room, self._turn = UNSENT_BYTES_MAX, threading.Lock()
        self.at_hand = False
        """Whether all that `prefetch` was to fetch is here without a request."""
        self.light = False
        """Whether all its files will have room."""
        self.marks_later = False
        """Whether markers are written with the inflight file (`FromShown`)."""

    def begin(self, *, marks_later: bool) -> None:
        """The files are made, perhaps once more."""
        self.unsent.clear()
        self._room, self.marks_later = UNSENT_BYTES_MAX, marks_later

    def prefetch(self, slices: Iterable[Slice], own: OwnFiles | None = None) -> None:
        """Begin to fetch the first base files of these, unless they are among its `own`."""
        if not self._early:
            return
        self._left = [each for each in slices if each.path not in self._fetches]
        self.at_hand = len(self._left) <= PREFETCHED_MAX
        self._fetch_next(own)

    def _fetch_next(self, own: OwnFiles | None = None) -> None:
        files, self._left = self._left[:PREFETCHED_MAX], self._left[PREFETCHED_MAX:]
        for each in files:
            if (body := own.get(each) if own else None) is not None:
                job = Future[BinaryIO]()
                job.set_result(BytesIO(body))
            else:
                self.at_hand = False
                job = self._pool.submit(open_data_file, self._store, each.path, self._clock)
            self._fetches[each.path] = job

    def take(self, path: str, *, keep: bool = False) -> BinaryIO | None:
        """The file, for the caller to close unless it is to `keep`; None if it is not here.

        If the first of those that are left is to be looked at, they take the place of the others.
        """
        if keep and self._left and self._left[0].path == path:
            self._drop()
            self._fetch_next()
        found = self._fetches.get(path) if keep else self._fetches.pop(path, None)
        if found is None:
            return None
        file = found.result()
        file.seek(0)
        return file

    def defer(self, out: BinaryIO, stat: WriteStat) -> bool:
        """Put this file into `unsent`; False if there is no room."""
        with self._turn:
            if stat.size_bytes > self._room and not self.marks_later:
                return False
            self._room -= stat.size_bytes
        out.seek(0)
        self.unsent.append(BaseFile(stat.path, out.read(), stat))
        return True

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._drop()

    def _drop(self) -> None:
        for path in list(self._fetches):
            job = self._fetches.pop(path, None)
            if job is not None and not job.cancelled() and job.exception() is None:
                job.result().close()


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Where a task puts its files, and for which instant.

    With `early` it marks each file first. `buffer` has prefetched files, and takes new ones.
    """

    store: Store
    target: Target
    task: TaskId
    clock: Clock
    early: EarlyCheck | None = None
    buffer: FileBuffer | None = None
    alive: Callable[[], None] | None = None
    """Raises once other writers may take this one for dead: a file that comes after the rollback
    may count as committed once older commits are archived."""
    emit: Emit = silent

    def progress(self, did: str, total: int, what: str = "file groups") -> WorkDone:
        from lockkit.runtime.progress import WorkDone  # a small write does without

        return WorkDone(did, total, what, self.target.instant, self.emit, self.clock)

    def open(self, path: str) -> BinaryIO:
        """A base file, for the caller to close."""
        fetched = self.buffer.take(path) if self.buffer else None
        return fetched or open_data_file(self.store, path, self.clock)

    @contextmanager
    def peek(self, path: str) -> Iterator[BinaryIO]:
        """A base file that may be opened once more."""
        kept = self.buffer.take(path, keep=True) if self.buffer else None
        if kept is not None:
            yield kept
        else:
            with open_data_file(self.store, path, self.clock) as file:
                yield file

    def begin(self, draft: Draft) -> None:
        """Before any row is read or written for it. Raises `EarlyConflict`."""
        if self.early is None and not self.target.config.sliced:
            return
        if self.buffer is not None and self.buffer.marks_later:
            return
        io: Io = "CREATE" if draft.previous == NO_COMMIT else "MERGE"
        io = "APPEND" if draft.name.startswith(".") else io
        path = in_partition(draft.partition, draft.name)
        run(mark(self.target.instant, path, io), self.store, self.clock)
        self._look(draft)

    def _look(self, draft: Draft) -> None:
        """The writer that marked first sees another writer's marker only at its next check."""
        free = draft.previous == NO_COMMIT and not is_bucketed(draft.file_id)
        if self.early is None or free:  # no other writer has a free group
            return
        covered, strategy = self.early.covered, self.early.strategy
        group = frozenset({(draft.partition, draft.file_id)})
        mine = OwnChanges(
            self.target.instant, covered.later, group, horizon=covered.horizon,
            merged=self.target.config.merged,
        )  # fmt: skip
        early = early_conflict(mine, rules=self.early.rules, strategy=strategy)
        run(early, self.store, self.clock)
        if self.early.commits:
            names = self.target.config.names
            run(overtaken(names, mine, strategy=strategy), self.store, self.clock)

    def put(self, draft: Draft, stat: WriteStat) -> WriteStat:
        """Put the finished file into the store. Raises `EarlyConflict`, and what `alive` raises."""
        self._look(draft)
        if self.buffer and self.buffer.defer(draft.out, stat):
            return stat
        if self.alive is not None:
            self.alive()
        put_data_file(self.store, stat.path, draft.out, stat.size_bytes, self.clock)
        return stat


# --- writing ------------------------------------------------------------------------------------


def write_group(
    work: WriteTask, group_target: TargetGroup, rows: pa.Table, *, delete: bool = False
) -> WriteStat | None:
    """Merge `rows` into one file group and put its next file; None if nothing would change.

    With `delete`, take their keys out of it, whatever partition the rows name. Only `rows` are in
    memory. Raises `TableError`.
    """
    target, (partition, file_id) = work.target, group_target.group
    rows = plain(rows)
    if delete and group_target.base is None:
        return None
    if rows.num_rows and not delete:
        refuse_strangers(target, partition, rows)
    changes = deletions(target, rows) if delete else upserts(target, rows)
    if group_target.gone is not None:
        gone = record_keys(target.config, plain(group_target.gone)).combine_chunks()
        changes = replace(changes, gone=gone)
    with draft_file() as out:
        draft = BaseFileWriter(
            target, partition, file_id, columns_of(target, rows.schema), out, work.task
        )
        if group_target.base is None:
            work.begin(draft)
            stat = merge(draft, (), changes)
        else:
            draft.previous = group_target.base.instant
            work.begin(draft)
            with closing(work.open(group_target.base.path)) as old:
                kept = rows_to_copy(target.config, group_target.base.path, old)
                stat = merge(draft, kept, changes)
        if stat is None:
            draft.close(inserts=0)  # otherwise its destructor writes to a closed file
            return None
        return work.put(draft, stat)


def write_rows(
    work: WriteTask, tables: Iterable[pa.Table], *, file_bytes_max: int = FILE_BYTES_MAX
) -> Iterator[WriteStat]:
    """Write all rows as new file groups, one after the other; one batch of rows is in memory.

    The rows of a partition should be contiguous: otherwise it gets more files than it needs.
    """
    draft: BaseFileWriter | None = None
    for rows in tables:
        for partition, part in by_partition(work.target.config, plain(rows)):
            full = draft is not None and draft.size_bytes >= file_bytes_max
            if draft is not None and (full or draft.partition != partition):
                yield _finish(work, draft)
                draft = None
            if draft is None:
                file_id = free_file_id(work.clock)
                out = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - `_finish` closes it
                columns = columns_of(work.target, part.schema)
                draft = BaseFileWriter(work.target, partition, file_id, columns, out, work.task)
                work.begin(draft)
            draft.add(part)
    if draft is not None:
        yield _finish(work, draft)


def _finish(work: WriteTask, draft: BaseFileWriter) -> WriteStat:
    with disk_errors_named(), draft.out:
        return work.put(draft, draft.close(inserts=draft.added))


KEPT_BYTES_MAX = 8 << 20


@dataclass(slots=True)
class OwnFiles:
    """The base files that a store's handle wrote last: its next upsert need not fetch them.

    The latest of each file group, as far as there is room. A data file never changes.
    """

    _kept: dict[FileGroup, tuple[str, bytes]] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def get(self, at: Slice) -> bytes | None:
        """The base file of this very slice."""
        path, body = self._kept.get((at.partition, at.file_id), ("", None))
        return body if path == at.path else None

    def keep(self, files: Iterable[BaseFile]) -> None:
        """Those of a commit; each takes the place of its group's file before."""
        with self._turn:
            for each in files:
                self._kept.pop(each.stat.group, None)
                self._kept[each.stat.group] = each.stat.path, each.body
            while sum(len(body) for _, body in self._kept.values()) > KEPT_BYTES_MAX:
                del self._kept[next(iter(self._kept))]


_OF_STORE: WeakKeyDictionary[Store, OwnFiles] = WeakKeyDictionary()


def own_files(store: Store) -> OwnFiles:
    """Those that were written to this store; they are dropped with it."""
    return _OF_STORE.setdefault(store, OwnFiles())
