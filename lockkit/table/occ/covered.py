"""Covered: which commits a snapshot is made of, in a size that does not grow with the table's age.

The horizon is an instant at or below which every commit is covered and nothing can ever be newly
completed, nor taken back. Where lockkit alone writes (`fenced` mode) it is found in one listing:
the newest completed commit that no pending one precedes. For let H be that, and T < H. What can
still complete T?

- T's requested file was there in the listing: then T was pending, and H would be below it; or T
  was completed, and is covered. A completed instant stays: `T.commit` beats every rollback plan.
- It was not there, and is created later: its writer lists *after* creating it, sees H completed,
  and takes a new instant (`begin`). This holds for every action that ends in a commit.
- It was there earlier and was rolled back: the rollback's entry in the fence is what the commit
  would have to replace unseen, so the store refuses it (docs/protocol.md, rule F4).
- It is created by a write that was under way for long: its writer either proved it, and then
  listed, or gave up; and no other writer may begin an instant that exists.

In `hudi` mode instants come from other clocks under a lock that may lapse: there is no horizon, and
each commit is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.format.layout import CommitFiles, parse_commit
from lockkit.table.format.timeline import Timeline, TimelineNames, instant_ms, instant_of

HARMLESS = frozenset({"clean", "rollback", "savepoint"})
"""Pending actions that never end as a commit, and so hold back no horizon and no pull."""
_DIGITS = 17


@dataclass(frozen=True, slots=True)
class CheckedHorizon:
    """Every commit at or below `horizon`, `settled` in number, and the `later` ones by name."""

    horizon: str = ""
    settled: int = 0
    later: frozenset[str] = frozenset()
    completion: str = ""
    """The greatest completion time of the settled ones; empty in layout 1."""

    def __contains__(self, instant: object) -> bool:
        return isinstance(instant, str) and (instant <= self.horizon or instant in self.later)

    @property
    def newest(self) -> str:
        """The greatest instant that is covered; empty where nothing is."""
        return max(self.later, default=self.horizon)

    @property
    def count(self) -> int:
        return self.settled + len(self.later)

    @property
    def listed_after(self) -> str:
        """Where a listing begins that shows whether the horizon itself is still there."""
        return instant_of(instant_ms(self.horizon) - 1) if self.horizon else ""

    def stands_in(self, now: Timeline, after: str) -> bool:
        """Whether a listing of what is later than `after` still shows what is covered.

        It does not where the table was restored to an earlier state or made anew in one place.
        Where the listing is whole, the settled ones are counted too.
        """
        commits = set(now.commits)
        if not self.later <= commits or (self.horizon and self.horizon not in commits):
            return False
        return bool(after) or sum(each <= self.horizon for each in commits) == self.settled


def settle(before: CheckedHorizon, now: Timeline, wanted: Iterable[str]) -> CheckedHorizon:
    """`before` and the `wanted` commits of a listing; the horizon is raised as far as it may."""
    wanted = set(wanted)
    # A shorter instant would sort by its text elsewhere than by its time.
    barrier = min(
        (each for each in (*now.commits, *pending_commits(now))
         if each > before.horizon and (each not in wanted or len(each) != _DIGITS)),
        default="~",
    )  # fmt: skip
    rising = {each for each in wanted if before.horizon < each < barrier}
    horizon = max(rising, default=before.horizon)
    return CheckedHorizon(
        horizon,
        before.settled + len(rising),
        frozenset(each for each in wanted if each > horizon),
        max(before.completion, *(now.completion.get(each, "") for each in rising), ""),
    )


def pending_commits(now: Timeline) -> list[str]:
    """Pending instants that may yet end as a commit, oldest first."""
    return [each for each, action in now.pending.items() if action not in HARMLESS]


def first_pending(now: Timeline, after: str = "") -> str:
    """The first of them that is later than `after`; "~", which sorts behind all, if there is none.
    """
    return min((each for each in pending_commits(now) if each > after), default="~")


def read_commit(names: TimelineNames, instant: str, now: Timeline) -> Procedure[CommitFiles]:
    """What a commit did that `now` shows as completed."""
    key = names.completed(instant, now.completed[instant], now.completion.get(instant))
    match (yield from read(key)):
        case Found(body, _):
            return parse_commit(instant, key, body)
        case _missing:
            raise TableError(
                f"{key} was listed and is gone: it was rolled back or archived; begin again"
            )
