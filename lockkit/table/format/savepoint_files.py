"""Savepoints and restores as Hudi's Avro files: the files kept, and the instants removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockkit.table.format.avro import encode
from lockkit.table.format.avro_decoding import decode
from lockkit.table.format.commit_records import (
    STRING,
    TEXT,
    VERSION,
    listed,
    mapped,
    optional,
    record,
    top,
)
from lockkit.table.format.layout import in_partition
from lockkit.table.format.plans import making_sense
from lockkit.table.format.records import INSTANT, ROLLBACK

SAVEPOINT = top(
    "HoodieSavepointMetadata",
    savepointedBy=STRING, savepointedAt="long", comments=STRING,
    partitionMetadata=mapped(record(
        "HoodieSavepointPartitionMetadata",
        partitionPath=STRING, savepointDataFile=listed(STRING),
    )),
    version=VERSION,
)  # fmt: skip
RESTORE_PLAN = top(
    "HoodieRestorePlan",
    instantsToRollback=listed(INSTANT),
    version=VERSION,
    savepointToRestoreTimestamp=TEXT,
)
_OF_RESTORE = {key: value for key, value in ROLLBACK.items() if key != "namespace"}
RESTORE = top(
    "HoodieRestoreMetadata",
    startRestoreTime=STRING, timeTakenInMillis="long", instantsToRollback=listed(STRING),
    hoodieRestoreMetadata=mapped(listed(optional(_OF_RESTORE))), version=VERSION,
    restoreInstantInfo=listed("HoodieInstantInfo"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The instants that a restore removes, newest first: (instant, action) of each."""

    savepoint: str
    instants: tuple[tuple[str, str], ...]


def format_savepoint(paths: Iterable[str], *, user: str, comment: str, at_ms: int) -> bytes:
    """The body of `T.savepoint`: the files that readers of the commit T need."""
    names: dict[str, list[str]] = {}
    for path in sorted(paths):
        partition, _, name = path.rpartition("/")
        names.setdefault(partition, []).append(name)
    return encode(SAVEPOINT, {
        "savepointedBy": user, "savepointedAt": at_ms, "comments": comment,
        "partitionMetadata": {
            each: {"partitionPath": each, "savepointDataFile": of} for each, of in names.items()
        },
        "version": 1,
    })  # fmt: skip


def parse_savepoint(key: str, body: bytes) -> frozenset[str]:
    """The paths of the files that the savepoint keeps."""
    with making_sense(key):
        partitions = decode(body, "HoodieSavepointMetadata")["partitionMetadata"]
        return frozenset(
            in_partition(partition, name)
            for partition, of in partitions.items() for name in of["savepointDataFile"]
        )  # fmt: skip


def format_restore_plan(plan: RestorePlan) -> bytes:
    """The body of `T.restore.requested`."""
    return encode(RESTORE_PLAN, {
        "instantsToRollback": [_info(each, action) for each, action in plan.instants],
        "version": 2,
        "savepointToRestoreTimestamp": plan.savepoint,
    })  # fmt: skip


def parse_restore_plan(key: str, body: bytes) -> RestorePlan:
    with making_sense(key):
        fields = decode(body, "HoodieRestorePlan")
        instants = [(each["commitTime"], each["action"]) for each in fields["instantsToRollback"]]
        return RestorePlan(fields.get("savepointToRestoreTimestamp") or "", tuple(instants))


def format_restore(
    plan: RestorePlan, instant: str, deleted: Mapping[str, Iterable[str]], *, took_ms: int
) -> bytes:
    """The body of the completed restore; `deleted` are the paths of each instant's files."""
    infos = [_info(each, action) for each, action in plan.instants]
    took = {"startRollbackTime": instant, "timeTakenInMillis": max(0, took_ms), "version": 1}
    return encode(RESTORE, {
        "startRestoreTime": instant,
        "timeTakenInMillis": max(0, took_ms),
        "instantsToRollback": [each for each, _ in plan.instants],
        "hoodieRestoreMetadata": {
            info["commitTime"]: [{
                **took, "totalFilesDeleted": len(list(deleted.get(info["commitTime"], ()))),
                "commitsRollback": [info["commitTime"]], "instantsRollback": [info],
                "partitionMetadata": _of_partitions(deleted.get(info["commitTime"], ())),
            }] for info in infos
        },
        "version": 1,
        "restoreInstantInfo": infos,
    })  # fmt: skip


def _info(instant: str, action: str) -> dict[str, str]:
    return {"commitTime": instant, "action": action}


def _of_partitions(paths: Iterable[str]) -> dict[str, dict[str, object]]:
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        found.setdefault(path.rpartition("/")[0], []).append(path)
    return {
        each: {"partitionPath": each, "successDeleteFiles": of, "failedDeleteFiles": [],
               "rollbackLogFiles": {}, "logFilesFromFailedCommit": {}}
        for each, of in found.items()
    }  # fmt: skip
