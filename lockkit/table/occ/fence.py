"""The fence: the object whose replacement is the moment of commit.

`.hoodie/.locks/fence.json` names the last decision and what each of the latest decisions wrote, so
a conflict check needs no listing. A commit replaces exactly the fence that it read before it
checked for conflicts. If anything was decided in between, the store refuses it. docs/protocol.md
section 4 has the rules, each with the counterexample that it excludes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from lockkit.protocol.outcome import Found, Missing, NotModified, Version
from lockkit.protocol.record import is_believed
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.errors import BrokenFence, NewerFence, TableBlocked
from lockkit.table.format.kept import kept
from lockkit.table.format.layout import NOWHERE, FileGroup, Overwritten
from lockkit.table.format.timeline import HOODIE, instant_ms

FENCE_KEY = HOODIE + ".locks/fence.json"
FENCE_BYTES_MAX = 1_000_000
FORMAT, GROUP_FORMAT = 2, 4
"""A file of another format may mean something that must not be read as a commit."""
GROUP_FORMATS = (3, GROUP_FORMAT)
"""With format 3, each commit has an inflight file: lockkits that expect it refuse format 4."""
WINDOW_MAX = 32
"""Number of decisions in a fence; a check that reaches further back lists the timeline."""
GROUPS_MAX = 100
"""Number of file groups named per decision; for a wider commit the check reads its own file."""
WINDOW_GROUPS_MAX = 400
_INSTANT = re.compile(r"2(?:[0-9]{16}|[0-9]{13})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT, ROLLBACK, CLOSED = "commit", "rollback", "closed"
NO_INSTANT = "20000101000000000"
"""The instant of a decision that concerns no commit: no writer ever takes it."""
REPLACES = "replacecommit"
"""The action of every overwrite; in table version 6 also that of a clustering."""
ACTIONS = ("commit", REPLACES, "clustering", "deltacommit", "compaction")
WHOLE_TABLE = "whole table"


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision: an instant was committed, or was rolled back and will never be.

    `closed` concerns no instant: the table left the fenced mode, so this fence decides nothing more
    until the table is back in that mode (`mode.py`).
    """

    kind: str
    instant: str
    action: str = "commit"
    """The action in its inflight file's name: one of `ACTIONS`."""
    completion: str | None = None
    """Table version 9: the time in the completed file's name (of a rollback: in its own)."""
    writes: frozenset[FileGroup] | None = frozenset()
    """File groups that got a new slice; None: too many to be named here."""
    replaced: frozenset[FileGroup] | None = frozenset()
    overwrites: Overwritten | None = field(default=NOWHERE, compare=False)
    """Where it removed every row; None: not recorded here, its own file says it.

    Not compared: an older lockkit that carries the entry on leaves it out of the same decision.
    """


@dataclass(frozen=True, slots=True)
class Fence:
    """The latest decisions, oldest first; this fence made the last of them."""

    epoch: int
    attempt: str
    sha256: str
    """Of the inflight file that `T.commit` must equal; empty for a rollback."""
    window: tuple[Decided, ...]
    whole: bool
    """Whether the window holds every decision that this table ever had."""
    completion: str | None = None
    """The greatest completion time so far (version 9): the next one is greater."""

    @property
    def head(self) -> Decided:
        return self.window[-1]

    def decision_on(self, instant: str) -> Decided | None:
        """The latest decision about an instant, if the window still holds it."""
        return next((each for each in reversed(self.window) if each.instant == instant), None)

    def since(self, base: frozenset[str], horizon: str = "") -> tuple[Decided, ...] | None:
        """The decisions after everything that `base` covers; None if the window is too short.

        `base` comes from one listing, and the previous decision is completed before a new one is
        made. So everything up to a covered decision is covered. Instants up to `horizon` count as
        covered (`Transaction.horizon`).
        """
        for place in range(len(self.window) - 1, -1, -1):
            each = self.window[place]
            if each.kind == COMMIT and (each.instant in base or each.instant <= horizon):
                return self.window[place + 1 :]
        return self.window if self.whole and not base and not horizon else None


@dataclass(frozen=True, slots=True)
class FenceRead:
    """The fence as read; both None if there is none (`decide.lost_fence`)."""

    fence: Fence | None
    version: Version | None

    @property
    def attempt(self) -> str | None:
        return self.fence.attempt if self.fence else None


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def opened(
    epoch: int, attempt: str, *, whole: bool = False, completion: str | None = None
) -> Fence:
    """A fence without decisions; `whole` if nothing was decided without a fence either."""
    return Fence(epoch, attempt, "", (Decided(ROLLBACK, NO_INSTANT),), whole, completion)


def follow(
    before: Fence | None, decided: Decided, *, epoch: int, attempt: str, sha256: str, whole: bool
) -> Fence:
    """The fence with one more decision; `whole` is used if there was no fence before."""
    if decided.writes is None or _named(decided) > GROUPS_MAX:
        decided = replace(decided, writes=None, replaced=None, overwrites=None)
    window = [*(before.window if before else ()), decided]
    named = [_named(each) for each in window]
    first = max(0, len(window) - WINDOW_MAX)
    while sum(named[first:]) > WINDOW_GROUPS_MAX:
        first += 1
    times = [t for t in (before.completion if before else None, decided.completion) if t]
    epoch = max(epoch, before.epoch if before else 0)
    if not is_believed(epoch):
        raise TableBlocked(
            "the lock's epoch",
            f"is {epoch}, which leaves no room for further grants; nothing was decided",
            "give the lock a new epoch: lockkit lock break URL shows how",
        )
    return Fence(
        epoch=epoch,
        attempt=attempt,
        sha256=sha256,
        window=tuple(window[first:]),
        whole=(before.whole if before else whole) and first == 0,
        completion=max(times, default=None),
    )


def _named(decided: Decided) -> int:
    partitions = decided.overwrites.partitions if decided.overwrites else ()
    return len(decided.writes or ()) + len(decided.replaced or ()) + len(partitions)


# --- the object ---------------------------------------------------------------------------------


def format_fence(fence: Fence) -> bytes:
    """`instant` and `attempt` come first, where a server's request record finds them."""
    return json.dumps(
        {
            "format": FORMAT,
            "epoch": fence.epoch,
            "instant": fence.head.instant,
            "attempt": fence.attempt,
            "sha256": fence.sha256,
            "completion": fence.completion,
            "whole": fence.whole,
            "window": [_to_json(each) for each in fence.window],
        },
        separators=(",", ":"),
    ).encode()


def _to_json(each: Decided) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kind": each.kind,
        "instant": each.instant,
        "action": each.action,
        "completion": each.completion,
        "writes": None if each.writes is None else sorted(map(list, each.writes)),
        "replaced": None if each.replaced is None else sorted(map(list, each.replaced)),
    }
    if each.action == REPLACES and each.overwrites is not None:
        whole = each.overwrites.whole_table
        fields["overwrites"] = WHOLE_TABLE if whole else sorted(each.overwrites.partitions)
    return fields


def parse_fence(body: bytes) -> Fence:
    """The fence, or a `TableError`: nothing may be committed under an unreadable fence."""
    fence = parse_whatever_epoch(body)
    if not is_believed(fence.epoch):
        raise _broken(f"its epoch, {fence.epoch}, leaves no room for further grants")
    return fence


@kept(8, 64_000)
def parse_whatever_epoch(body: bytes) -> Fence:
    """The same for a repair: accepts an epoch beyond any count of grants."""
    if len(body) > FENCE_BYTES_MAX:
        raise _broken(f"{len(body)} bytes")
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise _broken("not JSON") from None
    if not isinstance(fields, dict):
        raise _broken("not a JSON object")
    refuse_newer(fields)
    if fields.get("format") != FORMAT:
        raise _broken(f"format {str(fields.get('format'))[:20]!r}, known: {FORMAT}")
    epoch, attempt, sha256, whole = (
        fields.get(name) for name in ("epoch", "attempt", "sha256", "whole")
    )
    if type(epoch) is not int or epoch < 0:
        raise _broken("epoch must be a whole number")
    if not isinstance(attempt, str) or not attempt:
        raise _broken("attempt is missing")
    if type(whole) is not bool:
        raise _broken("whole must be true or false")
    window = fields.get("window")
    if not isinstance(window, list) or not window:
        raise _broken("window must list the latest decisions")
    decided = tuple(_from_json(each) for each in window)
    committed = decided[-1].kind == COMMIT
    if not isinstance(sha256, str) or not (_SHA256.fullmatch(sha256) if committed else not sha256):
        raise _broken("sha256 must be 64 hex digits")
    if fields.get("instant") != decided[-1].instant:
        raise _broken("instant must be the last decision's")
    return Fence(epoch, attempt, sha256, decided, whole, _instant_or_none(fields, "completion"))


def _broken(why: str) -> BrokenFence:
    error = BrokenFence(
        FENCE_KEY, f"is not a fence ({why}); nothing was committed",
        "do not delete it: a commit that it decided may not be visible yet. See what can be "
        "restored: lockkit table repair-fence URL",
    )  # fmt: skip
    error.broken = why
    return error


def refuse_newer(fields: Mapping[str, Any]) -> None:
    """Raise `NewerFence` if the format is newer than this lockkit's."""
    written = fields.get("format")
    if written in GROUP_FORMATS:
        raise NewerFence(
            FENCE_KEY, "is of group commit, which this handle or command does not follow; nothing "
            "was committed", "open the table again: its mode may have been switched; if that says "
            "the same, an earlier lockkit began to switch it: `lockkit table mode URL group`",
        )  # fmt: skip
    if type(written) is int and written > FORMAT:
        raise NewerFence(
            FENCE_KEY,
            f"has format {written}, and this lockkit knows {FORMAT}: a newer lockkit wrote it; "
            "nothing was committed", "upgrade lockkit here, and leave the fence as it is",
        )  # fmt: skip


def is_grouped(body: bytes) -> bool:
    """Whether it is a fence of group commit."""
    try:
        return json.loads(body)["format"] in GROUP_FORMATS
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


def _from_json(fields: Any) -> Decided:
    if not isinstance(fields, dict) or fields.get("kind") not in (COMMIT, ROLLBACK, CLOSED):
        raise _broken("a decision must be a commit, a rollback, or that the fence is closed")
    instant, action = fields.get("instant"), fields.get("action")
    if not is_instant(instant):
        raise _broken("instant must be 17 digits")
    if action not in ACTIONS:
        raise _broken(f"action must be one of {', '.join(ACTIONS)}")
    writes, replaced = (_groups(fields.get(name)) for name in ("writes", "replaced"))
    completion = _instant_or_none(fields, "completion")
    overwrites = _overwritten(fields, action)
    return Decided(fields["kind"], instant, action, completion, writes, replaced, overwrites)


def _overwritten(fields: Mapping[str, Any], action: str) -> Overwritten | None:
    """A replacecommit without this field was decided, or carried on, by an older lockkit."""
    match fields.get("overwrites"):
        case None:
            return None if action == REPLACES else NOWHERE
        case str(said) if said == WHOLE_TABLE:
            return Overwritten(whole_table=True)
        case list(partitions) if all(isinstance(each, str) for each in partitions):
            return Overwritten(frozenset(partitions))
        case _:
            raise _broken(f"overwrites must list partitions, or say {WHOLE_TABLE!r}")


def _groups(listed: Any) -> frozenset[FileGroup] | None:
    if listed is None:
        return None
    if not isinstance(listed, list):
        raise _broken("file groups must be a list")
    found = set()
    for each in listed:
        match each:
            case [str(partition), str(file_id)]:
                found.add((partition, file_id))
            case _:
                raise _broken("a file group is a partition and a file id")
    return frozenset(found)


def _instant_or_none(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or is_instant(value):
        return value
    raise _broken(f"{name} must be 17 digits")


def is_instant(value: object) -> TypeGuard[str]:
    """Digits that form a date, and that the timeline's listing shows (`KeyNaming.prefix`)."""
    if not isinstance(value, str) or not _INSTANT.fullmatch(value):
        return False
    try:
        instant_ms(value)
    except ValueError:
        return False
    return True


def read_fence() -> Procedure[FenceRead]:
    return seen_of((yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)))


def seen_of(found: Found | Missing | NotModified) -> FenceRead:
    """What a read found, as a fence."""
    match found:
        case Found(body, version):
            return FenceRead(parse_fence(body), version)
        case _missing:
            return FenceRead(None, None)
