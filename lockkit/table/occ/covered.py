"""Covered: which commits a snapshot consists of, in a size that does not grow with the table's age.

The horizon is an instant at or below which every commit is covered, no instant can newly complete,
and none is taken back. If only lockkit writes (`fenced` mode), one listing finds it: it is the
newest completed commit that no pending one precedes. Let H be that commit, and T < H. Can T still
complete?

- T's requested file was in the listing. Then T was pending, and H would be below it; or T was
  completed, and is covered. A completed instant stays: `T.commit` beats every rollback plan.
- T is created after the listing. Its writer lists *after* creating it, sees H completed, and takes
  a new instant (`begin`). This holds for every action that ends in a commit.
- T was created earlier and rolled back. The commit would have to replace the rollback's entry in
  the fence without having seen it, so the store refuses it (docs/protocol.md, rule F4).
- T is created by a write that was in flight for long. Its writer either proved it and then listed,
  or gave up; and no other writer may begin an instant that exists.

In `hudi` mode instants come from other clocks under a lock that may expire. There is no horizon,
and each commit is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing, read
from lockkit.table.errors import TableChanged
from lockkit.table.format.layout import CommitFiles, parse_commit
from lockkit.table.format.timeline import Timeline, TimelineNames, instant_ms, instant_of
from lockkit.table.occ.conflicting import Pending

if TYPE_CHECKING:
    from lockkit.table.format.plans import RollbackPlan
HARMLESS = frozenset({"clean", "rollback", "savepoint"})
"""Pending actions that never end as a commit; they delay neither a horizon nor a read."""
NO_ARCHIVE = ("/", ".parquet")
"""Keys of a folder that Hadoop made, and of what an archiver left that died before its manifest.
An empty log is no archive, either: a restore took its number."""


@dataclass(frozen=True, slots=True)
class CheckedHorizon:
    """Every commit at or below `horizon` (`settled` of them), and the `later` ones by name."""

    horizon: str = ""
    settled: int = 0
    later: frozenset[str] = frozenset()
    completion: str = ""
    """The greatest completion time of the settled commits; empty in layout 1."""
    firm: bool = False
    """In `hudi` mode, which has no horizon: whether no instant older than all of them was pending.
    """

    def __contains__(self, instant: object) -> bool:
        return isinstance(instant, str) and (instant <= self.horizon or instant in self.later)

    @property
    def newest(self) -> str:
        """The greatest covered instant; empty if nothing is covered."""
        return max(self.later, default=self.horizon)

    @property
    def count(self) -> int:
        return self.settled + len(self.later)

    @property
    def may_miss_archived(self) -> bool:
        """Whether a commit can have been completed and archived without ever being listed.

        The oldest instants are archived first: then a listing shows all that is covered.
        """
        return bool(self.count) and not (self.horizon or self.firm)

    @property
    def listed_after(self) -> str:
        """Where a listing must begin to show whether the horizon itself still exists."""
        return instant_of(instant_ms(self.horizon) - 1) if self.horizon else ""

    def stands_in(self, now: Timeline, after: str) -> bool:
        """Whether a listing of everything later than `after` still shows what is covered.

        It does not if the table was restored to an earlier state or created again in its place. If
        the listing is complete, the settled commits are counted too.
        """
        commits = set(now.commits)
        if not self.later <= commits or (self.horizon and self.horizon not in commits):
            return False
        return bool(after) or sum(each <= self.horizon for each in commits) == self.settled


def settle(before: CheckedHorizon, now: Timeline, wanted: Iterable[str]) -> CheckedHorizon:
    """`before` plus the `wanted` commits of a listing, with the horizon as high as possible."""
    wanted = set(wanted)
    # A shorter instant would sort differently as text than by its time.
    barrier = min(
        (each for each in (*now.commits, *pending_commits(now)) if each > before.horizon
         and (each not in wanted or each in now.tail or len(each) != 17)),
        default="~",
    )  # fmt: skip
    rising = {each for each in wanted if before.horizon < each < barrier}
    horizon = max(rising, default=before.horizon)
    return CheckedHorizon(
        horizon, before.settled + len(rising), frozenset(e for e in wanted if e > horizon),
        max(before.completion, *(now.completion.get(each, "") for each in rising), ""),
    )


def pending_commits(now: Timeline) -> list[str]:
    """Pending instants that may still end as a commit, oldest first."""
    return [each for each, action in now.pending.items() if action not in HARMLESS]


def first_active(commits: list[str], now: Timeline) -> str:
    """Older commits are archived. A savepoint keeps its commit behind when others leave."""
    return min(set(commits) - now.savepoints, default=min(commits, default=""))


def has_archived(prefix: str) -> Procedure[bool]:
    entries = yield from listing(prefix)
    return any(each.size and not each.key.endswith(NO_ARCHIVE) for each in entries)


def read_commit(names: TimelineNames, instant: str, now: Timeline) -> Procedure[CommitFiles]:
    """What a commit did that `now` shows as completed."""
    key = names.completed(instant, now.completed[instant], now.completion.get(instant))
    if instant in now.bodies:
        return parse_commit(instant, key, now.bodies[instant])
    match (yield from read(key)):
        case Found(body, _):
            return parse_commit(instant, key, body)
        case _missing:
            why = "was listed and is gone: it was rolled back or archived"
            raise TableChanged(key, why, "begin again")


REPLACING = frozenset({"replacecommit", "clustering"})


def load_pending(
    names: TimelineNames, now: Timeline, *, since: Timeline | None = None,
    compactions: bool = False,
) -> Procedure[tuple[Pending, ...]]:  # fmt: skip
    """The plans among a timeline's pending instants; also rollbacks completed after `since`.

    Of `compactions` the plan matters only if log files are named after their slice.

    A plan that is gone was completed or rolled back meanwhile: the fence has changed with it.
    """
    reads = [
        *(_pending(names, instant, action) for instant, action in now.pending.items()
          if action in REPLACING or (compactions and action == "compaction")),
        *(_pending(names, instant, "rollback") for instant, done in now.rollbacks.items()
          if not done or (since is not None and not since.rollbacks.get(instant))),
    ]  # fmt: skip
    found = yield from all_of(reads)
    return tuple(each for each in found if each is not None)


def _pending(names: TimelineNames, instant: str, action: str) -> Procedure[Pending | None]:
    if action == "rollback":
        plan = yield from load_rollback_plan(names, instant)
        return Pending(instant, action, takes_back=frozenset({plan.target})) if plan else None
    key = names.requested(instant, action)
    match (yield from read(key)):
        case Found(body, _) if action == "compaction":
            from lockkit.table.format.compaction_plan import parse_compaction_plan  # as below

            return Pending(instant, action, parse_compaction_plan(key, body).inputs)
        case Found(body, _):
            from lockkit.table.format.plans import parse_replace_plan  # few commits need it

            planned = parse_replace_plan(key, body)
            # An insert_overwrite needs no plan: what it replaces shows when it completes.
            kind = "clustering" if planned.clusters else "replacecommit"
            return Pending(instant, kind, planned.inputs)
        case _missing:
            return None


def load_rollback_plan(names: TimelineNames, instant: str) -> Procedure[RollbackPlan | None]:
    """What a rollback removes; None if its plan is gone: it was completed and cleaned up."""
    key = names.requested(instant, "rollback")
    match (yield from read(key)):
        case Found(body, _):
            from lockkit.table.format.plans import parse_rollback_plan  # as above

            return parse_rollback_plan(key, body)
        case _missing:
            return None
