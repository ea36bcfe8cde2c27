"""When a table's services run, and by which rules; in Hudi's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockkit.errors import TableError
from lockkit.runtime import Procedure, all_of
from lockkit.table.format.timeline import Names, Timeline
from lockkit.table.occ.concurrency import SINGLE
from lockkit.table.occ.conflict import SIMPLE, STRATEGY_KEY, Strategy, strategy_of
from lockkit.table.occ.covered import read_commit
from lockkit.table.occ.liveness import HeartbeatRules, Policy, failed_writes_policy, heartbeat_rules
from lockkit.table.services.cluster import ClusterRules, cluster_rules
from lockkit.table.services.retention import RETENTION_KEYS, CleanRules, clean_rules

SERVICES_KEY = "hoodie.table.services.enabled"
CLEAN_KEY = "hoodie.clean.automatic"
CLEAN_ASYNC_KEYS = ("hoodie.clean.async.enabled", "hoodie.clean.async")
CLEAN_EVERY_KEYS = ("hoodie.clean.trigger.max.commits", "hoodie.clean.max.commits")
CLUSTER_KEY, CLUSTER_ASYNC_KEY = "hoodie.clustering.inline", "hoodie.clustering.async.enabled"
CLUSTER_EVERY_KEYS = ("hoodie.clustering.inline.max.commits", "hoodie.clustering.async.max.commits")
"""Of two names the first that is given counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRules:
    """Hudi's defaults: a writer cleans inline after its commits, and clusters only if asked to."""

    on: bool = True
    """Whether this writer runs any service."""
    asked: bool = False
    """Whether the options name a service: then the writer looks after every commit, as Hudi does.
    Otherwise it looks only where there can be something to do."""
    clean: CleanRules = field(default_factory=CleanRules)
    clean_on: bool = True
    clean_every: int = 1
    """Commits from one clean to the next."""
    cluster: ClusterRules = field(default_factory=ClusterRules)
    cluster_on: bool = False
    cluster_every: int = 4
    beside: bool = False
    """In a thread beside the writer; all of them, if one is to be."""
    failed: Policy = "LAZY"
    heartbeat: HeartbeatRules = field(default_factory=HeartbeatRules)
    strategy: Strategy = SIMPLE
    """`prefer_writer`, if the writers say so too: a plan stops nobody, and gives way to whoever
    lives. `simple`: who begins under a plan is refused, as by Hudi."""


def service_rules(options: Mapping[str, Any], mode: str) -> ServiceRules:
    """From Hudi's option names, for turns of that `mode`; `TableError` names one that cannot be."""
    on = _flag(options, SERVICES_KEY, default="true")
    cluster, cluster_beside = _flag(options, CLUSTER_KEY), _flag(options, CLUSTER_ASYNC_KEY)
    if cluster and cluster_beside:
        raise TableError(f"{CLUSTER_KEY} and {CLUSTER_ASYNC_KEY} are both true; choose one")
    clean_on = on and _flag(options, CLEAN_KEY, default="true")
    clean_beside = clean_on and _flag(options, *CLEAN_ASYNC_KEYS)
    cluster_on = on and (cluster or cluster_beside)
    named = (CLEAN_KEY, *CLEAN_ASYNC_KEYS, *CLEAN_EVERY_KEYS, *RETENTION_KEYS)
    strategy = str(options.get(STRATEGY_KEY, SIMPLE.name))
    return ServiceRules(
        on=on,
        asked=cluster_on or (clean_on and any(key in options for key in named)),
        clean=clean_rules(options),
        clean_on=clean_on,
        clean_every=_whole(options, CLEAN_EVERY_KEYS, 1),
        cluster=cluster_rules(options),
        cluster_on=cluster_on,
        cluster_every=_whole(options, CLUSTER_EVERY_KEYS, 4),
        beside=clean_beside or (on and cluster_beside),
        failed=failed_writes_policy(options, writers=1 if mode == SINGLE else 2),
        heartbeat=heartbeat_rules(options),
        strategy=strategy_of(strategy),
    )


def _flag(options: Mapping[str, Any], *keys: str, default: str = "false") -> bool:
    said = next((str(options[key]).lower() for key in keys if key in options), default)
    if said not in ("true", "false"):
        raise TableError(f"{keys[0]}={said[:40]!r} must be true or false")
    return said == "true"


def _whole(options: Mapping[str, Any], keys: tuple[str, ...], default: int) -> int:
    said = next((str(options[key]) for key in keys if key in options), str(default))
    if not said.isascii() or not said.isdecimal() or not 0 < int(said[:9]) < 10**6:
        raise TableError(f"{keys[0]}={said[:40]!r} must be a whole number of at least 1")
    return int(said)


# --- what is due ----------------------------------------------------------------------------------


def clean_due(now: Timeline, rules: ServiceRules, looked_at: str) -> bool:
    """`looked_at` is the newest commit of an earlier look that found nothing."""
    cleans = (each for each, action in now.completed.items() if action == "clean")
    last = max(looked_at, *cleans, "")
    return rules.clean_on and sum(each > last for each in now.commits) >= rules.clean_every


def clean_may_find(commits: int, rules: ServiceRules) -> bool:
    """Whether a table with so many commits can have files that its retention does not keep."""
    return rules.asked or (rules.clean_on and commits > rules.clean.commits)


@dataclass(slots=True)
class AppendsDue:
    """When a writer that only adds files looks for old ones, unless its options name a service.

    Hudi plans a clean after every commit, which costs more requests than an append. An append
    makes no file obsolete, so only other writers' commits can have left something to clean: the
    writer looks when the table's commits pass a multiple of the retained ones, until it has looked
    once when all of the others' commits were outside the retention.
    """

    commits: int
    """How many the table has, as far as this writer knows."""
    others: int
    """How many it had when another writer's commit was last seen."""
    looked: int = 0
    """How many it had at the last look."""

    def next(self, others: int, rules: ServiceRules) -> bool:
        """Count one more commit of this writer and `others` of other writers; True: look now."""
        before, retained = self.commits, rules.clean.commits
        self.commits += others + 1
        if others:
            self.others = self.commits
        if rules.asked:
            return True
        passed = before // retained < self.commits // retained
        if not (self.others and passed and clean_may_find(self.commits, rules)):
            return False
        if self.looked > self.others + retained:
            return False
        self.looked = self.commits
        return True


def cluster_due(names: Names, now: Timeline, rules: ServiceRules) -> Procedure[bool]:
    """Whether the latest commits are so many without a clustering among them."""
    latest = now.commits[-rules.cluster_every :]
    if not rules.cluster_on or len(latest) < rules.cluster_every:
        return False
    replacing = [each for each in latest if now.completed[each] == "replacecommit"]
    commits = yield from all_of(read_commit(names, each, now) for each in replacing)
    return not any(each.operation == "CLUSTER" for each in commits)
