"""Planted mistakes of archiving: functions of it that are replaced by what is plausible.

Each names the test of `test_archiving` that finds it. The simulator's are in `test_sim_archive`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from lockkit.lab.verify import planting
from lockkit.lab.verify.planting import answering
from lockkit.protocol.outcome import Found, Version, over
from lockkit.runtime import Procedure
from lockkit.runtime.proven import create, delete, read, settle_write
from lockkit.table.occ import late, rollback
from lockkit.table.read import table_files
from lockkit.table.services import archive as archiving
from lockkit.table.services import archive_history

COMPLETED = ("clean", "rollback")


@dataclass(frozen=True, slots=True)
class Mistake:
    """What stands in the place of a function, and the test that must fail."""

    says: str
    room: Any
    name: str
    wrong: Callable[..., Any]
    found_by: str
    given: dict[str, Any] = field(default_factory=dict)


nothing, never, nobody = answering(None), answering(False), answering(set())
add, leave, barriers = archiving.add_history, archiving.leave, archiving.barriers
leaves_old_files, history_rows = archiving.leaves_old_files, archive_history.history_rows


def deletes_first(config: Any, leaving: Any, believe: Any) -> Procedure[list[str]]:
    for each in leaving:
        yield from delete(config.names.completed(each.instant, each.action, each.completed))
    return (yield from add(config, leaving, believe))


def one_left_out(config: Any, leaving: Any, believe: Any) -> Procedure[list[str]]:
    yield from add(config, leaving[:-1], believe)
    return [each.instant for each in leaving]


def without_asking(config: Any, leaving: Any, _believe: Any) -> Procedure[list[str]]:
    return (yield from add(config, leaving, lambda: None))


def newest_first(names: Any, leavers: Any, instants: list[str]) -> Procedure[None]:
    yield from leave(names, leavers, instants[::-1])


def completed_first(names: Any, leavers: Any, instants: list[str]) -> Procedure[None]:
    for each in instants:
        yield from delete(late.completed_file(names, leavers.every, each))
    yield from leave(names, leavers, instants)


def all_but(word: str) -> Callable[..., Any]:
    return lambda now, decided="": [each for each in barriers(now, decided) if word not in each[1]]


def the_newest_too(now: Any, commits: list[str]) -> dict[str, str]:
    last = max(commits, default="")
    return {each: action for each, action in now.completed.items()
            if each in commits or (action in COMPLETED and each < last)}  # fmt: skip


def over_whatever_is_there(key: str, body: bytes) -> Procedure[Any]:
    if "manifest_" not in key:
        return (yield from create(key, body))
    made: Any = None
    while not isinstance(made, Version):
        found = yield from read(key)
        version = found.version if isinstance(found, Found) else None
        made = yield from settle_write(key, body, over(version))
    return made


def whatever_the_archive_has(target: str, _known: Any, _paths: Any) -> Procedure[Any]:
    return (yield from rollback.written_by(target))


def as_they_are(found: Any) -> Procedure[Any]:
    yield from ()
    return found


DAMAGED = "test_nothing_is_archived_onto_a_damaged_archive"
READ_ONCE = "test_archived_instants_are_read_by_every_reader_once"
SAVED = "test_files_that_a_savepoint_kept_keep_the_commit_that_replaced_them"
MISTAKES = (
    Mistake("files leave the timeline before the manifest names them", archiving, "add_history",
            deletes_first, DAMAGED, {"damage": "cut"}),
    Mistake("Hudi's readers are not pointed to the new manifest", archive_history, "say_version",
            nothing, DAMAGED, {"damage": "without_manifest"}),
    Mistake("a damaged archive is added to", archive_history, "_refuse_damaged",
            lambda *_: None, DAMAGED, {"damage": "cut"}),
    Mistake("an instant leaves that the archive does not have", archiving, "add_history",
            one_left_out, READ_ONCE, {"version": 9, "mode": "fenced"}),
    Mistake("the archive has no content of a commit", archive_history, "history_rows",
            lambda leaving: [{**row, "metadata": b""} for row in history_rows(leaving)],
            READ_ONCE, {"version": 9, "mode": "fenced"}),
    Mistake("the archive has the instant as the completion time", archive_history, "history_rows",
            lambda leaving: [{**row, "completionTime": row["instantTime"]}
                             for row in history_rows(leaving)],
            READ_ONCE, {"version": 9, "mode": "fenced"}),
    Mistake("an archiver does not look at its lease", archiving, "add_history", without_asking,
            "test_an_archiver_without_a_lease_writes_and_deletes_nothing", {"version": 9}),
    Mistake("a manifest is written over another archiver's", archive_history, "create",
            over_whatever_is_there,
            "test_of_two_archivers_one_writes_the_archive_and_the_other_deletes_nothing",
            {"version": 9}),
    Mistake("the newest instant leaves first", archiving, "leave", newest_first,
            "test_an_archiver_that_dies_between_two_deletions_leaves_no_hole_in_the_timeline",
            {"version": 9}),
    Mistake("completed files leave before the requested ones", archiving, "leave",
            completed_first,
            "test_an_archiver_may_die_at_each_write_and_every_instant_is_shown_once",
            {"version": 9, "lost": 0}),
    Mistake("what an earlier archiver left is not looked for", late, "_latest",
            nobody, "test_a_completed_file_resent_after_archiving_is_removed_again",
            {"version": 9}),
    Mistake("a pending writer keeps nothing back", archiving, "barriers", all_but("pending"),
            "test_the_last_commit_before_a_pending_writer_is_not_archived"),
    Mistake("a savepoint keeps nothing back", archiving, "barriers", all_but("savepoint"),
            "test_savepoints_and_the_fences_last_decision_are_not_archived"),
    Mistake("the fence's last decision leaves", archiving, "barriers", all_but("decision"),
            "test_savepoints_and_the_fences_last_decision_are_not_archived"),
    Mistake("commits whose old files no clean has deleted leave", archiving, "leaves_old_files",
            lambda *_: False, "test_files_that_no_clean_has_deleted_keep_their_commits"),
    Mistake("commits whose old log files no clean has deleted leave", archiving,
            "leaves_old_files", lambda commit, _merged: leaves_old_files(commit, False),
            "test_log_files_that_no_clean_has_deleted_keep_their_commits"),
    Mistake("files that a savepoint kept are not looked for", archiving, "_still_there", never,
            SAVED, {"mode": "fenced"}),
    Mistake("the newest clean leaves", archiving, "with_services", the_newest_too,
            "test_the_newest_clean_stays_and_older_ones_are_archived_with_the_commits"),
    Mistake("files of the archive that were merged stay", archive_history, "_delete_merged",
            nothing, "test_files_of_the_archive_are_merged_and_old_ones_deleted"),
    Mistake("a late writer's rollback deletes the archived commit's files", rollback,
            "_files_to_delete", whatever_the_archive_has,
            "test_the_rollback_of_a_late_writer_deletes_no_file_of_an_archived_commit",
            {"version": 9, "mode": "fenced"}),
    Mistake("a request in an archived name hides the commit", table_files, "_without_late",
            as_they_are, "test_a_late_request_in_an_archived_name_hides_no_row_and_shows_none",
            {"version": 9}),
)  # fmt: skip


def planted(mistake: Mistake) -> AbstractContextManager[None]:
    """In the function's module, and where the tests imported it to."""
    right, homes = getattr(mistake.room, mistake.name), [mistake.room.__name__]
    if getattr(sys.modules["test_archiving"], mistake.name, None) is right:
        homes.append("test_archiving")
    return planting.planted({f"{home}:{mistake.name}": mistake.wrong for home in homes},
                            threads="all")  # fmt: skip
