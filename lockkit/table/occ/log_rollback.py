"""Takes the log files of an instant back where they are named after their slice (version 6).

None is deleted: a compaction plan of Hudi's names every log file of a slice, also one of a commit
that is pending, and cannot be carried out without it. Instead the slice gets one more log file,
with a command. Readers take log files by their versions, and drop the blocks of the instant that
the command names, also of a file that arrives later with an earlier version. Hudi rolls back in
the same way. A log file that began its file group is in no plan, and is deleted, as by Hudi. So is
each log file of a slice that a restore takes away: nothing is pending then, and readers would take
the slice for the newest one once older commits are archived.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from lockkit.runtime import Procedure
from lockkit.runtime.progress import WorkDone
from lockkit.runtime.proven import create, delete, listing
from lockkit.table.format.layout import LOG_FILE, command_token, in_partition
from lockkit.table.format.log_blocks import COMMAND, COMMAND_KIND, INSTANT, TARGET
from lockkit.table.format.log_writing import log_block, log_name_in

Slices = dict[tuple[str, str, str], int]
"""The greatest version that an instant has of each (partition, file id, instant of the slice)."""


def take_back(
    target: str, paths: Iterable[str], gone: Container[str] = (), progress: WorkDone | None = None
) -> Procedure[list[str]]:
    """Delete the base files of `target` among `paths`, and take its log files back; what is
    deleted. `gone` are the instants of slices that go, too.
    """
    deleted, slices = parts(target, paths, gone)
    progress = progress or WorkDone("took back", len(deleted) + len(slices), "files", target)
    yield from progress.all_of(delete(path) for path in deleted)
    yield from progress.all_of(_command(target, of, version) for of, version in slices.items())
    return deleted


def parts(
    target: str, paths: Iterable[str], gone: Container[str] = ()
) -> tuple[list[str], Slices]:
    """The paths to delete, and the slices that get a command."""
    deleted: list[str] = []
    slices: Slices = {}
    for path in paths:
        partition, _, name = path.rpartition("/")
        log = LOG_FILE.fullmatch(name)
        if log is None or log[2] == target or log[2] in gone:
            deleted.append(path)
        else:
            of = partition, log[1], log[2]
            slices[of] = max(slices.get(of, 0), int(log[3]))
    return deleted, slices


def _command(target: str, of: tuple[str, str, str], version: int) -> Procedure[None]:
    partition, file_id, base = of
    header = {INSTANT: target, TARGET: target, COMMAND_KIND: "0"}
    body, token = log_block(COMMAND, header, b""), command_token(target)
    entries = yield from listing(in_partition(partition, f".{file_id}_{base}.log."))
    names = [each.key.rpartition("/")[2] for each in entries]
    found = [log for each in names if (log := LOG_FILE.fullmatch(each))]
    if not any(log[4] == token and int(log[3]) > version for log in found):
        last = max((int(log[3]) for log in found), default=0)
        name = log_name_in(file_id, (base, 1 + max(version, last)), token)
        yield from create(in_partition(partition, name), body)
