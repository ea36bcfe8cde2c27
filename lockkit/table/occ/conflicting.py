"""The two sides of a conflict check: a transaction that is about to commit, and the others.

Each has what it wrote, replaced or will replace. Also the error for two that conflict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lockkit.table.errors import CommitConflict
from lockkit.table.format.layout import NOWHERE, CommitFiles, FileGroup, Overwritten

Kind = Literal[
    "ingestion", "overwrite", "clustering", "compaction", "log compaction", "rollback"
]  # fmt: skip
"""The kind of an instant; an overwrite and a clustering replace file groups."""

Groups = frozenset[FileGroup]
_NONE: Groups = frozenset()


@dataclass(frozen=True, slots=True)
class OwnChanges:
    """What a transaction wants to publish, and what it has read."""

    instant: str
    base: frozenset[str]
    """Completed instants that its snapshot covers."""
    writes: Groups
    """File groups that get a new slice."""
    replaced: Groups = _NONE
    """File groups that it replaces: clustering, insert_overwrite."""
    operation: str = "UPSERT"
    pending: frozenset[str] = frozenset()
    """Instants that were pending when it began."""
    horizon: str = ""
    """Completed instants up to this one are covered too, unless they were pending."""
    overwrites: Overwritten = NOWHERE
    """Where it removes every row: rows that it has not seen must not have been added there."""
    merged: bool = False
    """Whether the table is merge-on-read, where a compaction hides no file that is completed later.
    """
    sliced: bool = False
    """Whether its log files are named after their slice (version 6): a compaction hides those that
    are not named after it, which is pending when their writer begins."""

    def covers(self, instant: str) -> bool:
        """Whether its snapshot holds that instant, if that instant is completed."""
        return instant in self.base or (instant <= self.horizon and instant not in self.pending)


@dataclass(frozen=True, slots=True)
class Winner:
    """A commit, or a rollback, that completed since the transaction began."""

    instant: str
    action: str = "commit"
    writes: Groups = _NONE
    """File groups that got a new slice."""
    replaced: Groups = _NONE
    operation: str = ""
    """Hudi's name, if known: it distinguishes a compaction from other commits."""
    takes_back: frozenset[str] = frozenset()
    """Of a rollback: the instants that will never be visible."""
    overwrites: Overwritten = NOWHERE
    """Where it removed every row."""
    completion: str = ""
    """Table version 9: its completion time, if known."""

    @classmethod
    def of(cls, files: CommitFiles, action: str = "commit") -> Winner:
        written = frozenset(stat.group for stat in files.stats)
        return cls(
            files.instant, action, written, files.replaced, files.operation,
            overwrites=files.overwrites, completion=files.completion,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pending:
    """A plan, or a writer's inflight instant, that has not completed yet.

    `action` of a clustering is `clustering`, also where its files are called `replacecommit`
    (table version 6); its plan shows which it is.
    """

    instant: str
    action: str
    inputs: Groups | None = _NONE
    """File groups that it will replace or rewrite; None: not written down yet."""
    takes_back: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Conflict:
    """One reason not to commit: which instant, on which file group, why, and what to do."""

    instant: str
    group: FileGroup | None
    """None if no single file group is the cause."""
    cause: str
    cure: str
    action: str = "commit"

    def refusal(self, mine: str, kind: type[CommitConflict] = CommitConflict) -> CommitConflict:
        """The error for the commit of instant `mine`."""
        partition, file_id = self.group or ("", "")
        return kind(
            mine, instant=self.instant, action=self.action, partition=partition,
            file_group=file_id, cause=self.cause, cure=self.cure,
        )  # fmt: skip


def kind_of(action: str, operation: str = "") -> Kind:
    """The kind of an instant: a completed compaction, for example, is called `T.commit`."""
    if action == "rollback" or action == "restore":
        return "rollback"
    if operation == "COMPACT" or action == "compaction":
        return "compaction"
    if operation == "LOG_COMPACT" or action == "logcompaction":
        return "log compaction"
    if operation == "CLUSTER" or action == "clustering":
        return "clustering"
    return "overwrite" if action == "replacecommit" else "ingestion"
