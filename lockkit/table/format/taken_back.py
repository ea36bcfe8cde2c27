"""What restores took back: an empty commit keeps the name, so that nobody publishes it again.

In the mode `fenced` a process may sleep between the decision about a commit and the creation of its
completed file, while others publish the commit and a restore takes it back. So the restore does not
delete the completed file. It replaces it by a commit without files, and what the process then
creates is refused. Hudi's readers see a commit that wrote nothing. To lockkit the instants that
such a restore names are not on the timeline (`restored`): a handle that knew one must begin again.

A data file that the store applies after the restore (a copy of a request that was long under way)
is seen by Hudi's readers, as after every completed commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.protocol.outcome import Found, Version, over
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read, settle_write
from lockkit.table.errors import TableChanged, TableError
from lockkit.table.format.layout import format_commit, parse_commit

BY = "lockkit.taken_back_by"


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A restore took the commit back, and its name has left the timeline since."""

    by: str


def keep_name(key: str, action: str, *, by: str, schema: str, version: int) -> Procedure[None]:
    """Replace the completed commit at `key` by one without files, made by the restore `by`."""
    body = format_commit((), operation="UNKNOWN", schema=schema, attempt=by, action=action,
                         extra={BY: by}, version=version)  # fmt: skip
    found = yield from read(key, limit=None)
    if not isinstance(found, Found) or taken_back_by(key, found.body):
        return  # done by another process, and perhaps archived since
    if not isinstance((yield from settle_write(key, body, over(found.version))), Version):
        raise TableChanged(key, "was changed by another process during a restore", "run it again")


def taken_back_by(key: str, body: bytes) -> str:
    """The restore that left this completed file; "" if it is a commit's own."""
    try:
        return parse_commit("", key, body).extra.get(BY, "")
    except TableError:
        return ""


def refuse_taken_back(instant: str, key: str, standing: object) -> None:
    """Raise if a restore took the commit back: by what was found at `key`, or `TakenBack`."""
    match standing:
        case TakenBack(by):
            pass
        case Found(body):
            by = taken_back_by(key, body)
        case _:
            by = ""
    if by:
        raise TableChanged(
            instant, f"was committed, and the restore {by} has taken it back: none of its rows is "
            "in the table", "begin again",
        )  # fmt: skip
