"""The repair of a fence that is missing or cannot be read.

A broken fence may have decided one commit that no reader sees yet. It is one at most, because each
decision is made only after the one before it is visible. A repair has to find that commit. It never
deletes anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lockkit.protocol.outcome import Found, Version, over
from lockkit.protocol.record import is_believed
from lockkit.runtime import Procedure, Unique, WallMs
from lockkit.runtime.proven import read, settle_write
from lockkit.table.errors import (
    BrokenFence,
    RefusedOption,
    TableBlocked,
    TableChanged,
    UnsupportedTable,
)
from lockkit.table.format.layout import NO_COMMIT, parse_commit
from lockkit.table.format.properties import FENCED, GROUP, load_config
from lockkit.table.format.timeline import (
    Timeline,
    TimelineNames,
    instant_ms,
    instant_of,
    load_timeline,
)
from lockkit.table.occ.commit import Guard, trust
from lockkit.table.occ.decide import commits_under_way, settle
from lockkit.table.occ.fence import (
    COMMIT,
    FENCE_BYTES_MAX,
    FENCE_KEY,
    FORMAT,
    NO_INSTANT,
    ROLLBACK,
    Decided,
    Fence,
    FenceRead,
    digest,
    format_fence,
    parse_fence,
    parse_whatever_epoch,
)
from lockkit.table.occ.group.copied import fitted
from lockkit.table.occ.group.decision import GroupFence
from lockkit.table.occ.group.fence import format_group_fence
from lockkit.table.occ.group.mode import columns
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import expired, read_heartbeat
from lockkit.table.read.log_slice import instants_of
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.snapshot import Snapshot

NOTHING = "none"
"""The operator's statement that the fence decided no commit that is not yet visible."""
VERSIONS_MAX = 20
"""Old versions of the fence that are read; damage that was overwritten more often is rare."""
STORE_SLACK_MS = 2_000
"""Times of two objects of one store are compared only if they differ by more (`Rules`)."""
_HEADER = re.compile(
    rb'\{"format":%d,"epoch":([0-9]{1,19}),"instant":"([0-9]{14,17})","attempt":"[^"]*",'
    rb'"sha256":"([0-9a-f]{64}|)"(?:,"completion":(?:"([0-9]{17})"|null)[,}])?' % FORMAT
)


class CannotTell(TableBlocked):
    """No remaining object shows which commit the fence decided last."""


@dataclass(frozen=True, slots=True)
class FenceHeader:
    """The last decision, from the first fields of a damaged fence."""

    epoch: int
    instant: str
    sha256: str
    """Digest of the commit's inflight file; empty if the last decision was no commit."""
    completion: str | None


@dataclass(frozen=True, slots=True)
class RepairCandidate:
    """A pending commit whose inflight file is final: the fence may have decided it."""

    instant: str
    action: str
    body: bytes
    modified_ms: int | None


@dataclass(frozen=True, slots=True)
class FenceRepair:
    """What a repair writes, and over which version. Creating it changes nothing."""

    names: TimelineNames
    broken: str
    """What is wrong with the fence."""
    version: Version | None
    """Only this version is replaced; None: the fence is missing."""
    fence: Fence | GroupFence
    source: str
    """The source of the new fence."""
    publishes: str | None
    """The commit that the fence had decided, and that becomes visible."""


# --- the plan -----------------------------------------------------------------------------------


def plan_repair(
    kept: Sequence[bytes], *, said: str | None = None, rules: HeartbeatRules = HeartbeatRules()
) -> Procedure[FenceRepair | None]:
    """What to write in place of a broken fence; None if the fence is sound. Reads only.

    `kept` are old versions of the fence, newest first, where the bucket keeps them. `said` is what
    the operator knows: the instant that was decided, or `NOTHING`. Raises `CannotTell`.

    Why it is safe. Nothing is decided while the fence is broken, because every writer refuses it.
    So the newest readable version is the last decision, and is put back with its window. Without
    one, the commit that was decided last is among the pending ones (`commits_under_way`), and each
    is ruled out only by evidence:

    - the damaged fence still begins with its last decision, which names one commit by the digest
      of its inflight file, or names one that is visible already;
    - its inflight file was written after the fence was damaged;
    - a file group that it rewrites has changed since it was read. Its own conflict check would
      have refused it before the change, and nothing was decided after a commit that is not visible.

    If one is left, only the operator can know. A commit that was not decided stays as it is: its
    writer meets the new fence and checks for conflicts again. The new fence has only the last
    decision, so the next conflict checks list the timeline.

    With group commit nothing but the fence shows which offers were decided and not yet published.
    So a broken one is refused (`BrokenFence`), and only an earlier version of it may be put back.
    Commits that it names and whose files are missing are dropped from it. An older version of it,
    as in a copy, gets the columns of the newest commit.
    """
    config, _ = yield from load_config()
    names = config.names
    if config.commit == GROUP:
        found = yield from fitted(config, columns)
        return FenceRepair(names, *found, None) if found else None
    if config.mode != FENCED:
        raise UnsupportedTable("the table", f"is in mode {config.mode}: it has no fence to repair")
    answer = yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)
    there = answer if isinstance(answer, Found) else None
    broken = "it is gone" if there is None else _what_is_wrong(there.body)
    if broken is None:
        return None
    version = there.version if there else None
    now = yield from load_timeline(names)
    restored = _newest([there.body, *kept] if there else kept)
    if restored is not None and not _is_behind(restored, now):
        head = restored.head
        waits = head.kind == COMMIT and head.instant not in now.completed
        _refuse_other(said, head.instant if waits else None)
        return FenceRepair(
            names, broken, version, restored, "its newest readable version",
            head.instant if waits else None,
        )  # fmt: skip
    candidates = yield from _candidates(names, now)
    header = _header(there.body) if there else None
    reported, last = _by_header(header, candidates, now)
    if not reported:
        left = yield from _not_ruled_out(candidates, there.modified_ms if there else None)
        last = yield from _choose(names, left, said, rules)
    else:
        _refuse_other(said, last.instant if last else None)
    if reported and last and header and names.layout == 2 and header.completion is None:
        # Its writer, if alive, publishes it under the completion time that is lost here.
        last = yield from _choose(names, [last], last.instant, rules)
    before = [each for each in (header, restored) if each is not None]
    completion = yield from _completion(names, now, header, restored, last)
    return FenceRepair(
        names, broken, version,
        _rebuilt(last, completion, max((each.epoch for each in before), default=0)),
        "the timeline and what is left of it", last.instant if last else None,
    )  # fmt: skip


def _refuse_other(said: str | None, last: str | None) -> None:
    """Raise if the operator contradicts what is left of the fence."""
    if said is not None and said != (last or NOTHING):
        raise RefusedOption(
            "--decided",
            f"contradicts what is left of the fence: it decided {last or 'nothing that waits'}",
            "leave --decided out", value=said[:40],
        )  # fmt: skip


def _what_is_wrong(body: bytes) -> str | None:
    """None if it is a fence; `NewerFence` if it is one of a newer lockkit."""
    try:
        parse_fence(body)
    except BrokenFence as error:
        return error.broken
    return None


def _newest(kept: Sequence[bytes]) -> Fence | None:
    """The newest version that can be read; `NewerFence` if a newer lockkit wrote one since."""
    for body in kept:
        try:
            fence = parse_whatever_epoch(body)
        except BrokenFence:
            continue
        return fence if is_believed(fence.epoch) else replace(fence, epoch=0)
    return None


def _is_behind(fence: Fence, now: Timeline) -> bool:
    """Whether commits are visible that it does not know: then it is not the last decision."""
    times = [now.completion[each] for each in now.commits if each in now.completion]
    if times:
        return max(times) > (fence.completion or "")
    known = {each.instant for each in fence.window if each.kind == COMMIT}
    return bool(known) and any(each > min(known) and each not in known for each in now.commits)


def _candidates(names: TimelineNames, now: Timeline) -> Procedure[list[RepairCandidate]]:
    found = []
    for instant in sorted(commits_under_way(now)):
        action = now.pending[instant]
        match (yield from read(names.inflight(instant, action))):
            case Found(body, _, modified_ms):
                found.append(RepairCandidate(instant, action, body, modified_ms))
            case _missing:
                pass  # rolled back meanwhile
    return found


def _header(body: bytes) -> FenceHeader | None:
    found = _HEADER.match(body)
    if found is None:
        return None
    epoch, instant, sha256 = int(found[1]), found[2].decode(), found[3].decode()
    completion = found[4].decode() if found[4] else None
    return FenceHeader(epoch if is_believed(epoch) else 0, instant, sha256, completion)


def _by_header(
    header: FenceHeader | None, candidates: Sequence[RepairCandidate], now: Timeline
) -> tuple[bool, RepairCandidate | None]:
    """Whether the first fields of the damaged fence show what was decided last, and what."""
    if header is None:
        return False, None
    for each in candidates:
        if header.sha256 and digest(each.body) == header.sha256:
            return True, each
    # The header of an older fence that was damaged and put back would be outdated.
    times = [now.completion[each] for each in now.commits if each in now.completion]
    newest = max(times) if times else max(now.commits, default="")
    at = (header.completion or "") if times else header.instant
    if header.sha256:
        return header.instant in now.completed and at >= newest, None
    return bool(times) and at >= newest, None


def _not_ruled_out(
    candidates: Sequence[RepairCandidate], modified_ms: int | None
) -> Procedure[list[RepairCandidate]]:
    left = [
        each for each in candidates
        if modified_ms is None or each.modified_ms is None
        or each.modified_ms <= modified_ms + STORE_SLACK_MS
    ]  # fmt: skip
    if not left:
        return []
    snapshot = yield from load_snapshot()
    return [each for each in left if not _is_overtaken(each, snapshot)]


def _is_overtaken(each: RepairCandidate, snapshot: Snapshot) -> bool:
    """Whether a file group that it rewrites has changed since it was read."""
    if snapshot.config.merged:  # a compaction refuses no writer, and few writers a compaction
        return False
    for stat in parse_commit(each.instant, each.instant, each.body).stats:
        there = snapshot.groups.get(stat.group)
        if (max(instants_of(there)) if there else NO_COMMIT) != stat.previous:
            return True
    return False


def _choose(
    names: TimelineNames, left: Sequence[RepairCandidate], said: str | None, rules: HeartbeatRules
) -> Procedure[RepairCandidate | None]:
    """Apply the operator's statement, for commits whose writers are dead."""
    listed = ", ".join(each.instant for each in left)
    if not left:
        if said not in (None, NOTHING):
            raise RefusedOption(
                "--decided", "is not a pending commit that may have been decided",
                value=str(said)[:40],
            )  # fmt: skip
        return None
    wall_ms = yield WallMs()
    for each in left:
        heartbeat = yield from read_heartbeat(
            each.instant, names.requested(each.instant, each.action)
        )
        if not expired(heartbeat, wall_ms, rules):
            raise CannotTell(
                FENCE_KEY, f"may have decided {each.instant}, whose writer may be alive",
                "stop it, wait until its heartbeat has expired, then repair the fence",
            )  # fmt: skip
    if said is None:
        raise CannotTell(
            FENCE_KEY,
            f"may have decided one of {listed}, and nothing that is left shows which, or whether "
            "it did. Nothing was changed",
            "read the logs of the writers: the one whose last event is `fenced`, or that "
            "ended with CommitUnknown, was decided. Then repeat with --decided INSTANT; or with "
            f"--decided {NOTHING} if no writer got that far",
        )
    if said == NOTHING:
        return None
    chosen = next((each for each in left if each.instant == said), None)
    if chosen is None:
        raise RefusedOption(
            "--decided", f"cannot have been decided last; it may be one of {listed}",
            value=said[:40],
        )  # fmt: skip
    return chosen


# --- the new fence --------------------------------------------------------------------------------


def _completion(
    names: TimelineNames, now: Timeline, header: FenceHeader | None, restored: Fence | None,
    last: RepairCandidate | None,
) -> Procedure[str | None]:  # fmt: skip
    """Version 9: the greatest completion time so far, that of the last decision if there is one."""
    if names.layout == 1:
        return None
    if last is not None and header is not None and header.sha256 == digest(last.body):
        if header.completion is not None:
            return header.completion
    reported = [header.completion if header else None, restored.completion if restored else None]
    latest = max(
        [*filter(None, reported), *now.completion.values(), *now.pending], default=NO_INSTANT
    )
    return instant_of(max((yield WallMs()), instant_ms(latest) + 1))


def _rebuilt(last: RepairCandidate | None, completion: str | None, epoch: int) -> Fence:
    """A fence that remembers only the last decision: conflict checks list the timeline."""
    window: tuple[Decided, ...] = (Decided(ROLLBACK, NO_INSTANT),)
    sha256 = ""
    if last is not None:
        window += (Decided(COMMIT, last.instant, last.action, completion, None, None, None),)
        sha256 = digest(last.body)
    return Fence(epoch, "(a new id)", sha256, window, False, completion)


def carry_out(
    repair: FenceRepair, guard: Guard, *, believe: Callable[[], None] = trust
) -> Procedure[tuple[str, ...]]:
    """Replace exactly the inspected version, under the lock; return the commits made visible.

    One guarded write is the whole repair. A crash before it changes nothing. After it the fence is
    sound and names the decided commit, so any writer makes that commit visible.
    """
    fence, attempt = repair.fence, (yield Unique())
    if isinstance(fence, GroupFence):
        body = format_group_fence(replace(fence, attempt=attempt))
    else:
        fence = replace(fence, epoch=max(fence.epoch, guard.epoch), attempt=attempt)
        body = format_fence(fence)
    believe()
    version = over(repair.version)
    settled = yield from settle_write(FENCE_KEY, body, version, limit=FENCE_BYTES_MAX)
    if not isinstance(settled, Version):
        raise TableChanged(
            FENCE_KEY, "has changed since it was examined; nothing was changed", "look again"
        )
    forward: list[str] = []
    if isinstance(fence, GroupFence):
        return ()
    yield from settle(repair.names, FenceRead(fence, None), frozenset(), forward)
    return tuple(forward)
