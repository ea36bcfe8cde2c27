"""The plans and results of table services (rollback, clean, clustering) as Avro.

`T.<action>.requested` is the plan, and `T.rollback` or `T.clean` the result; they are the same in
table versions 6 and 9. Paths are relative to the table here; in Hudi's files they begin with the
table's address (`base`). A plan on a table that Hudi writes too must have the address: Hudi
finishes the plan of a dead process, and its writes fail while it cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lockkit.table.errors import DamagedFile
from lockkit.table.format import records
from lockkit.table.format.avro import encode
from lockkit.table.format.avro_decoding import decode
from lockkit.table.format.layout import LOG_FILE, NO_BASE, FileGroup, in_partition
from lockkit.table.format.partition import is_inside

Files = tuple[tuple[str, str], ...]
"""(partition, path) of each file; the path contains the partition."""

POLICY = "KEEP_LATEST_COMMITS"
SAVEPOINTED = "savepointed_timestamps"
SERVICES = frozenset({"replacecommit", "clustering", "compaction"})
"""Actions whose plan others respect; in version 6 a clustering is named as an overwrite."""
OURS = "lockkit.service"
"""A plan's parameter: lockkit made this plan, so any lockkit process may roll it back."""
_TAKEN_AWAY = {f"{each}.requested" for each in (*SERVICES, "clean", "rollback")}
# What a service of Hudi runs a clustering plan with that names no class of its own.
PLAN_STRATEGY = "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """The rollback `instant` of the pending `target`, with the files to delete."""

    instant: str
    target: str
    target_action: str
    files: Files
    """In version 6 log files, too, which get a command instead (`blocks`)."""
    base: str = NO_BASE

    def blocks(self, path: str) -> tuple[str, ...]:
        """A log file's id and slice, if the target did not begin that slice: the file stays."""
        log = LOG_FILE.fullmatch(path.rpartition("/")[2])
        return (log[1], log[2]) if log and log[2] != self.target else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """Files to delete: no reader of an instant from `retain_from` on can see them."""

    instant: str
    retain_from: str
    """The oldest instant whose slices stay; "" if the plan has none."""
    last_completed: str
    """The newest commit that the plan takes into account."""
    policy: str = POLICY
    files: Files = ()
    base: str = NO_BASE
    saved: frozenset[str] = frozenset()
    """The savepoints whose files it spares: once one is deleted, a clean looks there again."""


@dataclass(frozen=True, slots=True)
class ClusteringInput:
    """A slice that a clustering reads, and replaces the file group of."""

    partition: str
    file_id: str
    path: str


@dataclass(frozen=True, slots=True)
class ClusteringGroup:
    """Slices of one partition that become `outputs` new file groups."""

    slices: tuple[ClusteringInput, ...]
    outputs: int = 1


@dataclass(frozen=True, slots=True)
class ReplacePlan:
    """The file groups to replace; none for an overwrite, which names them when it completes."""

    groups: tuple[ClusteringGroup, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    base: str = NO_BASE

    @property
    def clusters(self) -> bool:
        return bool(self.groups)

    @property
    def inputs(self) -> frozenset[FileGroup] | None:
        """File groups that it replaces; None: not known before it completes."""
        if not self.groups:
            return None
        return frozenset((s.partition, s.file_id) for each in self.groups for s in each.slices)


# --- rollback -----------------------------------------------------------------------------------


def format_rollback_plan(plan: RollbackPlan) -> bytes:
    """The body of `T.rollback.requested`; only the file's name has T."""
    requests = []
    for of, path in plan.files:
        (file_id, base), key = plan.blocks(path) or ("", ""), _absolute(plan.base, path)
        requests.append({
            "partitionPath": of, "fileId": file_id, "latestBaseInstant": base,
            "filesToBeDeleted": [] if base else [key],
            "logBlocksToBeDeleted": {key: 1} if base else {}})  # fmt: skip
    return encode(records.ROLLBACK_PLAN, {
        "instantToRollback": {"commitTime": plan.target, "action": plan.target_action},
        "RollbackRequests": requests,
        "version": 1,
    })  # fmt: skip


def parse_rollback_plan(key: str, body: bytes) -> RollbackPlan:
    """Parse a `T.rollback.requested`; a `TableError` names the file if it makes no sense."""
    with making_sense(key):
        fields = decode(body, "HoodieRollbackPlan")
        target = fields["instantToRollback"]
        files = [
            (request["partitionPath"], path)
            for request in fields["RollbackRequests"] or ()
            for path in request["filesToBeDeleted"]
        ]
        base, inside = _relative(files)
        _, blocks = _relative(  # Hudi's have a path or a name
            (of["partitionPath"], in_partition(of["partitionPath"], path.rpartition("/")[2]))
            for of in fields["RollbackRequests"] or () for path in of["logBlocksToBeDeleted"] or ())
        return RollbackPlan(
            _instant_in(key), _instant(target["commitTime"]), word(target["action"]),
            (*inside, *blocks), base,
        )  # fmt: skip


def format_rollback(plan: RollbackPlan, *, took_ms: int) -> bytes:
    """The body of the completed rollback: every file of the plan was deleted, or got a command."""
    logs = [each for each in plan.files if plan.blocks(each[1])]
    deleted = [each for each in plan.files if each not in logs]
    gone, kept = (_by_partition(files, plan.base) for files in (deleted, logs))
    of_partition = {
        of: {"partitionPath": of, "successDeleteFiles": gone.get(of, ()), "failedDeleteFiles": [],
             "rollbackLogFiles": {}, "logFilesFromFailedCommit": dict.fromkeys(kept[of], 1)}
        for of, _ in plan.files
    }  # fmt: skip
    return encode(records.ROLLBACK, {
        "startRollbackTime": plan.instant,
        "timeTakenInMillis": max(0, took_ms),
        "totalFilesDeleted": len(deleted),
        "commitsRollback": [plan.target],
        "partitionMetadata": of_partition,
        "version": 1,
        "instantsRollback": [{"commitTime": plan.target, "action": plan.target_action}],
    })  # fmt: skip


# --- clean --------------------------------------------------------------------------------------


def format_clean_plan(plan: CleanPlan) -> bytes:
    """The body of `T.clean.requested`."""
    files = {
        partition: [{"filePath": path, "isBootstrapBaseFile": False} for path in paths]
        for partition, paths in _by_partition(plan.files, plan.base).items()
    }
    earliest = {"timestamp": plan.retain_from, "action": "commit", "state": "COMPLETED"}
    return encode(records.CLEAN_PLAN, {
        "earliestInstantToRetain": earliest if plan.retain_from else None,
        "lastCompletedCommitTimestamp": plan.last_completed,
        "policy": plan.policy,
        "filesToBeDeletedPerPartition": {},
        "version": 2,
        "filePathsToBeDeletedPerPartition": files,
        "partitionsToBeDeleted": [],
        "extraMetadata": _saying(plan.saved),
    })  # fmt: skip


def parse_clean_plan(key: str, body: bytes) -> CleanPlan:
    """Parse a `T.clean.requested`; a `TableError` names the file if it makes no sense."""
    with making_sense(key):
        fields = decode(body, "HoodieCleanerPlan")
        if fields.get("filesToBeDeletedPerPartition") or fields.get("partitionsToBeDeleted"):
            raise ValueError("it deletes whole partitions, or is of Hudi before 0.6")
        earliest = fields["earliestInstantToRetain"]
        last = fields.get("lastCompletedCommitTimestamp") or ""
        planned = sorted((fields["filePathsToBeDeletedPerPartition"] or {}).items())
        base, inside = _relative(
            (partition, each["filePath"]) for partition, listed in planned for each in listed
        )
        return CleanPlan(
            instant=_instant_in(key),
            retain_from=_instant(earliest["timestamp"]) if earliest else "",
            last_completed=_instant(last) if last else "",
            policy=word(fields["policy"]),
            files=inside,
            base=base,
            saved=_said(fields),
        )


def _saying(saved: frozenset[str]) -> dict[str, str]:
    return {SAVEPOINTED: ",".join(sorted(saved))} if saved else {}


def _said(fields: Mapping[str, Any]) -> frozenset[str]:
    said = (fields.get("extraMetadata") or {}).get(SAVEPOINTED) or ""
    return frozenset(_instant(each) for each in said.split(",") if each)


def format_clean(plan: CleanPlan, *, took_ms: int) -> bytes:
    """The body of the completed clean, all of whose files were deleted."""
    of_partition = {}
    for partition, paths in _by_partition(plan.files, NO_BASE).items():
        names = {path: path.rpartition("/")[2] for path in paths}
        of_partition[partition] = {
            "partitionPath": partition,
            "policy": plan.policy,
            "deletePathPatterns": list(names.values()),
            "successDeleteFiles": list(names.values()),
            "failedDeleteFiles": [],
            "isPartitionDeleted": False,
        }
    return encode(records.CLEAN, {
        "startCleanTime": plan.instant,
        "timeTakenInMillis": max(0, took_ms),
        "totalFilesDeleted": len(plan.files),
        "earliestCommitToRetain": plan.retain_from,
        "lastCompletedCommitTimestamp": plan.last_completed,
        "partitionMetadata": of_partition,
        "version": 2,
        "bootstrapPartitionMetadata": {},
        "extraMetadata": _saying(plan.saved),
    })  # fmt: skip


def parse_clean(key: str, body: bytes) -> CleanPlan:
    """Parse a completed clean: its plan, with the files whose deletion is proven."""
    with making_sense(key):
        fields = decode(body, "HoodieCleanMetadata")
        retain_from = fields["earliestCommitToRetain"]
        cleaned = sorted(fields["partitionMetadata"].items())
        return CleanPlan(
            instant=_instant_in(key),
            retain_from=_instant(retain_from) if retain_from else "",
            last_completed=fields.get("lastCompletedCommitTimestamp") or "",
            policy=word(cleaned[0][1]["policy"]) if cleaned else POLICY,
            files=_relative(
                (partition, in_partition(partition, name))
                for partition, of_partition in cleaned
                for name in of_partition["successDeleteFiles"]
            )[1],
            saved=_said(fields),
        )


# --- replace ------------------------------------------------------------------------------------


def format_cluster_plan(plan: ReplacePlan) -> bytes:
    """The body of a clustering's `T.replacecommit.requested` (version 9: `T.clustering.requested`).

    An overwrite's is empty: its completed file names what it replaces.
    """
    assert plan.clusters, plan
    groups = [
        {
            "slices": [
                {"dataFilePath": _absolute(plan.base, each.path), "deltaFilePaths": [],
                 "fileId": each.file_id, "partitionPath": each.partition, "bootstrapFilePath": "",
                 "version": 1}
                for each in group.slices
            ],
            "metrics": {},
            "numOutputFileGroups": group.outputs,
            "version": 1,
        }
        for group in plan.groups
    ]  # fmt: skip
    return encode(records.REPLACE_PLAN, {
        "operationType": "CLUSTER",
        "clusteringPlan": {
            "inputGroups": groups,
            "strategy": {"strategyClassName": PLAN_STRATEGY, "version": 1,
                         "strategyParams": dict(sorted(plan.params.items()))},
            "extraMetadata": {},
            "version": 1,
            "preserveHoodieMetadata": True,
        },
        "extraMetadata": {},
        "version": 1,
    })  # fmt: skip


def format_overwrite_plan() -> bytes:
    """The body of an overwrite's requested file, without a plan, as Hudi writes it."""
    return encode(records.REPLACE_PLAN, {
        "operationType": None, "clusteringPlan": None, "extraMetadata": {}, "version": 1,
    })  # fmt: skip


def parse_replace_plan(key: str, body: bytes) -> ReplacePlan:
    """The file groups that it will replace; an overwrite's file does not name them."""
    if not body:
        return ReplacePlan()
    with making_sense(key):
        fields = decode(body, "HoodieRequestedReplaceMetadata")
        planned = fields["clusteringPlan"]
        if not planned:
            return ReplacePlan()
        found = [_group(each) for each in planned["inputGroups"] or ()]
        if not any(group.slices for _, group in found):
            raise ValueError("a clustering of nothing")
        params = (planned["strategy"] or {}).get("strategyParams") or {}
        return ReplacePlan(tuple(group for _, group in found), params, found[0][0])


def _group(fields: Mapping[str, Any]) -> tuple[str, ClusteringGroup]:
    slices = fields["slices"] or ()
    if any(each.get("deltaFilePaths") or each.get("bootstrapFilePath") for each in slices):
        raise ValueError("its inputs have log files, or are bootstrapped")
    base, inside = _relative((each["partitionPath"], each["dataFilePath"]) for each in slices)
    inputs = tuple(
        ClusteringInput(partition, word(each["fileId"]), path)
        for each, (partition, path) in zip(slices, inside, strict=True)
    )
    return base, ClusteringGroup(inputs, int(fields.get("numOutputFileGroups") or 1))


# --- what they share ------------------------------------------------------------------------------


@contextmanager
def making_sense(key: str, only: str = "") -> Iterator[None]:
    """Turn parse errors into a `TableError` that names the file; `only` limits its advice."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        instant, _, kind = key.rpartition("/")[2].partition(".")
        away = f", or {only}take it away: lockkit table rollback URL --instant {instant}"
        raise DamagedFile(
            key,
            f"is not a plan that can be carried out or respected ({type(error).__name__} "
            f"{str(error)[:160]})", "restore it" + (away if kind in _TAKEN_AWAY else ""),
        ) from None  # fmt: skip


def _absolute(base: str, path: str) -> str:
    return f"{base.rstrip('/')}/{path}" if base else path


def _relative(files: Iterable[tuple[Any, Any]]) -> tuple[str, Files]:
    """The table's address, and the paths in it: a plan must not name files elsewhere."""
    inside, bases = [], set()
    for partition, path in files:
        if not isinstance(partition, str) or not isinstance(path, str):
            raise TypeError("partition and path must be strings")
        own = in_partition(partition, path.rpartition("/")[2])
        if not is_inside(own) or not f"/{path}".endswith(f"/{own}"):
            raise ValueError(f"the path {path[:60]!r} is not in partition {partition[:60]!r}")
        inside.append((partition, own))
        bases.add(path[: -len(own)].rstrip("/"))
    if len(bases) > 1:
        raise ValueError(f"its files lie in {len(bases)} tables")
    return (bases.pop() if bases else NO_BASE), tuple(inside)


def _by_partition(files: Iterable[tuple[str, str]], base: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for partition, path in sorted(files):
        found[partition].append(_absolute(base, path))
    return found


def _instant_in(key: str) -> str:
    return _instant(key.rpartition("/")[2].partition(".")[0].partition("_")[0])


def _instant(value: Any) -> str:
    digits = isinstance(value, str) and value.isascii() and value.isdecimal()
    if not digits or len(value) not in (14, 17):
        raise ValueError(f"{str(value)[:40]!r} is not an instant")
    return str(value)


def word(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise ValueError(f"{str(value)[:40]!r} stands where a name should")
    return value
