"""Which table services a writer runs, when, and by which rules. Names and defaults are Hudi's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from lockkit.table.errors import RefusedOption
from lockkit.table.format.option_values import flag, one_of, text, whole
from lockkit.table.occ.concurrency import SINGLE
from lockkit.table.occ.conflict import SIMPLE, STRATEGY_KEY, ConflictStrategy, strategy_of
from lockkit.table.occ.heartbeat_rules import (
    HeartbeatRules,
    Policy,
    failed_writes_policy,
    heartbeat_rules,
)

if TYPE_CHECKING:
    from lockkit.table.services.archive_rules import ArchiveRules

SERVICES_KEY = "hoodie.table.services.enabled"
ARCHIVE_KEYS = ("hoodie.archive.automatic", "hoodie.keep.min.commits", "hoodie.keep.max.commits")
CLEAN_KEY = "hoodie.clean.automatic"
CLEAN_ASYNC_KEYS = ("hoodie.clean.async.enabled", "hoodie.clean.async")
CLEAN_EVERY_KEYS = ("hoodie.clean.trigger.max.commits", "hoodie.clean.max.commits")
CLUSTER_KEY, CLUSTER_ASYNC_KEY = "hoodie.clustering.inline", "hoodie.clustering.async.enabled"
CLUSTER_EVERY_KEYS = ("hoodie.clustering.inline.max.commits", "hoodie.clustering.async.max.commits")
"""Several names of one setting; the first one that is given counts."""
COMPACT_KEY = "hoodie.compact.inline"
COMPACT_ASYNC_KEY = "hoodie.datasource.compaction.async.enable"
COMPACT_KEYS = (COMPACT_KEY, COMPACT_ASYNC_KEY)
COMPACT_EVERY_KEY = "hoodie.compact.inline.max.delta.commits"
CleanPolicy = Literal["KEEP_LATEST_COMMITS", "KEEP_LATEST_BY_HOURS", "KEEP_LATEST_FILE_VERSIONS"]
CLEAN_POLICIES: tuple[CleanPolicy, ...] = get_args(CleanPolicy)
CLEAN_POLICY_KEYS = ("hoodie.clean.policy", "hoodie.cleaner.policy")
COMMITS_KEYS = ("hoodie.clean.commits.retained", "hoodie.cleaner.commits.retained")
HOURS_KEYS = ("hoodie.clean.hours.retained", "hoodie.cleaner.hours.retained")
VERSIONS_KEYS = ("hoodie.clean.fileversions.retained", "hoodie.cleaner.fileversions.retained")
RETENTION_KEYS = (*CLEAN_POLICY_KEYS, *COMMITS_KEYS, *HOURS_KEYS, *VERSIONS_KEYS)
RETAINED_MAX = 1_000_000
Layout = Literal["free", "bucketed"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
LAYOUT_KEY = "lockkit.clustering.layout"
_PLAN = "hoodie.clustering.plan.strategy."
SMALL_KEY, TARGET_KEY = _PLAN + "small.file.limit", _PLAN + "target.file.max.bytes"
BYTES_KEY, GROUPS_KEY = _PLAN + "max.bytes.per.group", _PLAN + "max.num.groups"
PARTITION_KEY = _PLAN + "partition.selected"
_MB = 1024 * 1024


# --- what is cleaned ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRules:
    """What stays; the defaults are Hudi's."""

    policy: CleanPolicy = "KEEP_LATEST_COMMITS"
    commits: int = 10
    """KEEP_LATEST_COMMITS: readers as of any of this many newest commits find their files."""
    hours: int = 24
    """KEEP_LATEST_BY_HOURS: the same for every commit of this many last hours."""
    versions: int = 3
    """KEEP_LATEST_FILE_VERSIONS: slices kept of each file group; none of a replaced one."""

    @property
    def by_commits(self) -> bool:
        """Whether this clean may also skip everything that an earlier clean has handled."""
        return self.policy != "KEEP_LATEST_FILE_VERSIONS"

    @property
    def listed(self) -> int:
        """How many commits a clean needs in the timeline, if it counts them."""
        return self.commits if self.policy == "KEEP_LATEST_COMMITS" else 0


def clean_rules(options: Mapping[str, Any]) -> CleanRules:
    """From Hudi's options; `TableError` names a value that is not accepted."""
    default = CleanRules()
    return CleanRules(
        policy=one_of(options, *CLEAN_POLICY_KEYS, of=CLEAN_POLICIES, default=default.policy),
        commits=_retained(options, COMMITS_KEYS, default.commits),
        hours=_retained(options, HOURS_KEYS, default.hours),
        versions=_retained(options, VERSIONS_KEYS, default.versions),
    )


def _retained(options: Mapping[str, Any], keys: tuple[str, ...], default: int) -> int:
    return whole(options, *keys, default=default, most=RETAINED_MAX)


# --- what is clustered ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRules:
    """What is rewritten, and into what; the defaults are Hudi's."""

    layout: Layout = "free"
    """`free`: larger groups, whose keys an upsert has to look up. `bucketed`: one group per bucket,
    which an upsert finds by the key's hash."""
    small_file_bytes: int = 300 * _MB
    """Only smaller base files are rewritten; `bucketed` takes free groups of any size."""
    target_file_bytes: int = 1024 * _MB
    group_bytes_max: int = 2048 * _MB
    """The most that is rewritten together."""
    groups_max: int = 30
    partitions: frozenset[str] = frozenset()
    """The paths of partitions; none: all."""


def cluster_rules(options: Mapping[str, Any]) -> ClusterRules:
    """From Hudi's option names; `TableError` names an invalid one."""
    default = ClusterRules()
    return ClusterRules(
        layout=one_of(options, LAYOUT_KEY, of=LAYOUTS, default=default.layout),
        small_file_bytes=whole(options, SMALL_KEY, default=default.small_file_bytes),
        target_file_bytes=whole(options, TARGET_KEY, default=default.target_file_bytes),
        group_bytes_max=whole(options, BYTES_KEY, default=default.group_bytes_max),
        groups_max=whole(options, GROUPS_KEY, default=default.groups_max),
        partitions=frozenset(filter(None, text(options, PARTITION_KEY).split(","))),
    )


# --- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRules:
    """Hudi's defaults: a writer cleans after its commits; clustering and compaction are opt-in."""

    on: bool = True
    """Whether this writer runs any service."""
    explicit: bool = False
    """Whether the options name a service. If so, the writer checks after every commit, as Hudi
    does; otherwise only if there can be something to do."""
    clean: CleanRules = field(default_factory=CleanRules)
    clean_on: bool = True
    clean_every: int = 1
    """Commits from one clean to the next."""
    cluster: ClusterRules = field(default_factory=ClusterRules)
    cluster_on: bool = False
    cluster_every: int = 4
    compact_on: bool = False
    compact_every: int = 5
    """Commits that added log files, from one compaction to the next."""
    archive: ArchiveRules | None = None
    """None: this writer archives nothing. (Hudi's archives by default.)"""
    beside: bool = False
    """Whether the services run in a thread beside the writer: all of them, or none."""
    failed: Policy = "LAZY"
    heartbeat: HeartbeatRules = field(default_factory=HeartbeatRules)
    strategy: ConflictStrategy = SIMPLE
    """`prefer_writer` (the writers must use it too): a plan stops no writer and yields to every
    living writer. `simple`: a writer that begins while a plan is pending is refused, as in Hudi."""

    @property
    def any_on(self) -> bool:
        return self.clean_on or self.cluster_on or self.compact_on or self.archive is not None


def service_rules(options: Mapping[str, Any], mode: str) -> ServiceRules:
    """From Hudi's options, for a writer of that concurrency `mode`.

    Raises `TableError`, which names the option whose value is not accepted.
    """
    on = flag(options, SERVICES_KEY, default=True)
    cluster, cluster_beside = flag(options, CLUSTER_KEY), flag(options, CLUSTER_ASYNC_KEY)
    if cluster and cluster_beside:
        raise RefusedOption(CLUSTER_KEY, f"and {CLUSTER_ASYNC_KEY} are both true", "choose one")
    compact_beside = flag(options, COMPACT_ASYNC_KEY)
    compact_on = on and (compact_beside or flag(options, COMPACT_KEY))
    clean_on = on and flag(options, CLEAN_KEY, default=True)
    clean_beside = clean_on and flag(options, *CLEAN_ASYNC_KEYS)
    cluster_on = on and (cluster or cluster_beside)
    clean, archive = clean_rules(options), None
    if on and any(key in options for key in ARCHIVE_KEYS):
        from lockkit.table.services.archive_rules import archive_rules  # rarely on

        archive = archive_rules(options, clean.listed)
    named = (CLEAN_KEY, *CLEAN_ASYNC_KEYS, *CLEAN_EVERY_KEYS, *RETENTION_KEYS)
    strategy = str(options.get(STRATEGY_KEY, SIMPLE.name))
    return ServiceRules(
        on=on,
        explicit=cluster_on or compact_on or archive is not None
        or (clean_on and any(key in options for key in named)),
        clean=clean,
        clean_on=clean_on,
        clean_every=whole(options, *CLEAN_EVERY_KEYS, default=1),
        cluster=cluster_rules(options),
        cluster_on=cluster_on,
        cluster_every=whole(options, *CLUSTER_EVERY_KEYS, default=4),
        compact_on=compact_on,
        archive=archive,
        compact_every=whole(options, COMPACT_EVERY_KEY, default=5),
        beside=clean_beside or (on and (cluster_beside or compact_beside)),
        failed=failed_writes_policy(options, writers=1 if mode == SINGLE else 2),
        heartbeat=heartbeat_rules(options),
        strategy=strategy_of(strategy),
    )
