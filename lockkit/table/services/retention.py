"""The retention: which commits keep the files that they show, and what of the others is garbage.

Pure. The rules and their names are Hudi's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lockkit.errors import TableError
from lockkit.table.format.timeline import Timeline, instant_ms
from lockkit.table.occ.covered import pending_commits

Policy = Literal["KEEP_LATEST_COMMITS", "KEEP_LATEST_BY_HOURS", "KEEP_LATEST_FILE_VERSIONS"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
POLICY_KEYS = ("hoodie.clean.policy", "hoodie.cleaner.policy")
COMMITS_KEYS = ("hoodie.clean.commits.retained", "hoodie.cleaner.commits.retained")
HOURS_KEYS = ("hoodie.clean.hours.retained", "hoodie.cleaner.hours.retained")
VERSIONS_KEYS = ("hoodie.clean.fileversions.retained", "hoodie.cleaner.fileversions.retained")
"""Of two names of one setting the newer stands first, and wins."""
RETENTION_KEYS = (*POLICY_KEYS, *COMMITS_KEYS, *HOURS_KEYS, *VERSIONS_KEYS)
RETAINED_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRules:
    """What stays; the defaults are Hudi's."""

    policy: Policy = "KEEP_LATEST_COMMITS"
    commits: int = 10
    """KEEP_LATEST_COMMITS: a reader as of any of the newest so many commits finds its files."""
    hours: int = 24
    """KEEP_LATEST_BY_HOURS: the same of every commit of the last so many hours."""
    versions: int = 3
    """KEEP_LATEST_FILE_VERSIONS: slices of each file group; nothing of a replaced one."""

    @property
    def by_commits(self) -> bool:
        """Whether what an earlier clean retained from is behind this one too."""
        return self.policy != "KEEP_LATEST_FILE_VERSIONS"


def clean_rules(options: Mapping[str, Any]) -> CleanRules:
    """From Hudi's option names; `TableError` names one that cannot be."""
    default = CleanRules()
    said = str(_first(options, POLICY_KEYS, default.policy)).upper()
    for policy in POLICIES:
        if said == policy:
            return CleanRules(
                policy=policy,
                commits=_count(options, COMMITS_KEYS, default.commits),
                hours=_count(options, HOURS_KEYS, default.hours),
                versions=_count(options, VERSIONS_KEYS, default.versions),
            )
    raise TableError(f"{POLICY_KEYS[0]}={said[:60]!r} is not known here: {' or '.join(POLICIES)}")


def _first(options: Mapping[str, Any], keys: Iterable[str], default: Any) -> Any:
    return next((options[key] for key in keys if key in options), default)


def _count(options: Mapping[str, Any], keys: tuple[str, ...], default: int) -> int:
    said = str(_first(options, keys, default))
    if not said.isascii() or not said.isdecimal() or not 0 < int(said[:9]) <= RETAINED_MAX:
        raise TableError(f"{keys[0]}={said[:40]!r} must be a number from 1 to {RETAINED_MAX}")
    return int(said)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The slices of one file group that a clean knows of, by instant, oldest first."""

    instants: tuple[str, ...]
    gone: str | None = None
    """The instant that replaced the group."""


def retained_from(now: Timeline, rules: CleanRules, wall_ms: int) -> str | None:
    """The oldest commit that keeps its files; None: all do; "~": none needs more than the newest.

    Never later than a pending commit, whose writer reads the slices before it.
    """
    commits = sorted(now.commits, key=instant_ms)
    oldest = "~"
    if rules.policy == "KEEP_LATEST_COMMITS":
        if len(commits) <= rules.commits:
            return None
        oldest = commits[-rules.commits]
    elif rules.policy == "KEEP_LATEST_BY_HOURS":
        if not commits:
            return None
        since_ms = wall_ms - rules.hours * 3_600_000
        oldest = next((each for each in commits if instant_ms(each) >= since_ms), commits[-1])
    if pending := pending_commits(now):
        barrier = min(pending, key=instant_ms)
        if at_ms(oldest) > instant_ms(barrier):
            before = [each for each in commits if instant_ms(each) < instant_ms(barrier)]
            if not before:
                return None
            oldest = before[-1]
    if not now.completion or oldest == "~":
        return oldest
    # Readers of increments go by completion times (layout 2), and an older commit may have a later
    # one: what completed when this one did, or after it, is inside the retention too.
    since = min(now.completion[each] for each in commits if at_ms(each) >= at_ms(oldest))
    return min((each for each in commits if now.completion[each] >= since), key=instant_ms)


def garbage(
    lineage: Lineage, retain_from: str, *, versions: int = 1, saved: Collection[str] = ()
) -> frozenset[str]:
    """The instants of the slices that go; `saved` are commits that keep all that they show."""
    gone = lineage.gone is not None and at_ms(lineage.gone) < at_ms(retain_from)
    before = [each for each in lineage.instants if at_ms(each) < at_ms(retain_from)]
    newest = 0 if gone else versions
    doomed = set(before if gone else before[:-1]) & set(
        lineage.instants[: len(lineage.instants) - newest]
    )
    for point in saved:
        if lineage.gone is None or at_ms(point) < at_ms(lineage.gone):
            doomed -= set([each for each in lineage.instants if at_ms(each) <= at_ms(point)][-1:])
    return frozenset(doomed)


def at_ms(instant: str) -> float:
    return float("inf") if instant == "~" else instant_ms(instant)
