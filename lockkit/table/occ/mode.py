"""What an operator switches in a table's properties: its mode, and an instant that is ahead.

A writer that began in fenced mode checks only the fence when it commits. So the mode is switched
through the fence: it is closed before the properties say `hudi`, and opened before they say
`fenced`. Then no paused writer commits after the switch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lockkit.runtime import Procedure, Unique, WallMs
from lockkit.table.errors import RefusedOption, TableBlocked, Unanswered, UnsupportedTable
from lockkit.table.format.properties import (
    ACCEPTED,
    FENCED,
    GROUP,
    HUDI,
    MODE,
    SERIAL,
    SWITCHES,
    TableConfig,
    from_properties,
    load_config,
)
from lockkit.table.format.property_keys import FENCE_FORMAT, GROUPED, no_metadata
from lockkit.table.format.refusals import refuse_commit, refuse_sliced
from lockkit.table.format.timeline import Timeline, instant_ms, is_ahead, load_timeline
from lockkit.table.occ.commit import ROUNDS_MAX, Guard, trust
from lockkit.table.occ.covered import has_archived, pending_commits
from lockkit.table.occ.decide import commits_under_way, is_in_use, lost_fence, replace_fence, settle
from lockkit.table.occ.fence import (
    CLOSED,
    FORMAT,
    NO_INSTANT,
    Decided,
    Fence,
    FenceRead,
    follow,
    opened,
    read_fence,
)
from lockkit.table.occ.rewriting import block_metadata, rewrite_properties


def switch_mode(mode: str, guard: Guard, *, believe: Callable[[], None] = trust) -> Procedure[bool]:
    """Put the table into this mode, while holding its lock; False if it is already in it.

    To `hudi`: the fence's last decision is made visible, then the fence is closed. A paused fenced
    writer finds the fence changed and is refused. To `fenced`: refused while a commit is in
    progress that could still be published without the fence; then the fence is opened. To `group`:
    the fenced table gets a fence of group commit (`group.mode`); it goes back by either of the
    others. A second call finishes or reverts an interrupted switch. Raises `TableError`.
    """
    if mode not in (FENCED, GROUP, HUDI):
        raise RefusedOption(
            "mode", f"is not known: a table's mode is {FENCED}, {GROUP} or {HUDI}", value=mode[:40]
        )
    # Only switches need them.
    from lockkit.table.occ.group.mode import from_group, has_group_fence, to_group

    config, _ = yield from load_config()
    yield from refuse_switch(config, mode)
    if config.mode == FENCED and (yield from has_group_fence()):
        if mode == GROUP:
            yield from set_fence(replace(config, commit=GROUP), guard, believe, closed=False)
            return (yield from _say_commit(GROUP, believe))
        yield from from_group(config, guard, believe)
    if config.commit == GROUP and (yield from read_fence()).fence is None:
        now = yield from load_timeline(config.names)
        begun = pending_commits(now)  # a small one may be decided without an inflight file
        if begun or (mode != HUDI and is_in_use(now)):
            raise lost_fence(begun, GROUP)
    changed = mode != GROUP and (yield from _say_commit(SERIAL, believe))
    config = replace(config, commit=SERIAL)
    yield from set_fence(config, guard, believe, closed=mode == HUDI)
    if mode == HUDI and config.version > 6:
        yield from block_metadata()
    changed |= yield from _say_in_properties(HUDI if mode == HUDI else FENCED, believe)
    if mode != GROUP:
        return changed
    yield from to_group(config, believe)
    yield from _say_commit(GROUP, believe)
    return True


def refuse_switch(config: TableConfig, mode: str) -> Procedure[None]:
    """Raise `TableError` if such a table is never in this mode. Reads only."""
    if mode == HUDI and is_fenced_for_ever(config):
        raise UnsupportedTable(
            config.name,
            f"is merge-on-read with lockkit's buckets, and is written only in the mode {FENCED}: "
            "Hudi's writers would put log files between ours that no fence orders; nothing was "
            "changed",
        )
    if mode != HUDI:
        refuse_sliced(config, f"the mode {mode}")
    if mode == GROUP:
        refuse_commit(GROUP, FENCED, config.table_type)
    if config.mode == HUDI and mode != HUDI and (yield from has_archived(config.archive_prefix)):
        raise UnsupportedTable(
            config.archive_prefix,
            f"has archived commits: in the mode {FENCED} a file counts only if a commit of the "
            "timeline names it", f"leave the table in the mode {HUDI}, or copy it to a new one",
        )  # fmt: skip


def is_fenced_for_ever(config: TableConfig) -> bool:
    """Whether Hudi's writers may never write it."""
    return config.merged and not config.hashed


def _say_commit(commit: str, believe: Callable[[], None]) -> Procedure[bool]:
    def switched(config: TableConfig) -> dict[str, str]:
        if config.commit == commit:
            return {}
        said = GROUPED[0] if commit == GROUP else str(FORMAT)
        return {FENCE_FORMAT: said, SWITCHES: str(config.switches + 1)}

    return (yield from say_in_properties(switched, believe))


def set_fence(
    config: TableConfig, guard: Guard, believe: Callable[[], None], *, closed: bool
) -> Procedure[None]:
    """Close the fence after its last decision is visible, or open it, while holding the lock."""
    if config.commit == GROUP:
        from lockkit.table.occ.group.client import GroupClient
        from lockkit.table.occ.group.mode import set_closed

        return (yield from set_closed(GroupClient(names=config.names), believe, closed=closed))
    for _ in range(ROUNDS_MAX):
        seen = yield from read_fence()
        now = yield from load_timeline(config.names)
        if not closed and config.mode == HUDI:
            _refuse_under_way(now)
        if seen.fence is not None and (seen.fence.head.kind == CLOSED) == closed:
            return
        entry = yield from (_closing if closed else _opening)(config, seen, now, guard)
        believe()
        if (yield from replace_fence(config.names, seen, entry)):
            return
    raise Unanswered(
        f"{'closing' if closed else 'opening'} the fence",
        f"lost the race for it {ROUNDS_MAX} times", "try again", doubt=False,
    )  # fmt: skip


def _closing(config: TableConfig, seen: FenceRead, now: Timeline, guard: Guard) -> Procedure[Fence]:
    under_way = commits_under_way(now)
    if seen.fence is None and config.mode == FENCED and under_way:
        raise lost_fence(under_way)
    yield from settle(config.names, seen, frozenset(now.commits), [])
    return follow(
        seen.fence, Decided(CLOSED, NO_INSTANT), epoch=guard.epoch, attempt=(yield Unique()),
        sha256="", whole=False,
    )  # fmt: skip


def _refuse_under_way(now: Timeline) -> None:
    """Raise if a commit could still be published without the fence."""
    if under_way := commits_under_way(now):
        raise TableBlocked(
            ", ".join(sorted(under_way)[:5]),
            "is in progress in hudi mode, and could be published without the fence",
            "let its writer finish, or roll it back with lockkit table rollback, then switch the "
            "mode",
        )


def _opening(config: TableConfig, seen: FenceRead, now: Timeline, guard: Guard) -> Procedure[Fence]:
    """It remembers no decision: commits made in `hudi` mode are not in its window."""
    before = seen.fence
    if before is None and config.mode == FENCED and is_in_use(now):
        raise lost_fence(commits_under_way(now))
    times = [*now.completion.values(), *filter(None, [before.completion if before else None])]
    epoch = max(guard.epoch, before.epoch if before else 0)
    return opened(epoch, (yield Unique()), completion=max(times, default=None))


def _say_in_properties(mode: str, believe: Callable[[], None]) -> Procedure[bool]:
    def switched(config: TableConfig) -> dict[str, str]:
        if config.mode == mode:
            return {}
        more = no_metadata(str(config.names.layout)) if mode == HUDI else {}
        return {MODE: mode, SWITCHES: str(config.switches + 1), **more}

    return (yield from say_in_properties(switched, believe))


def say_in_properties(
    news: Callable[[TableConfig], dict[str, str]], believe: Callable[[], None]
) -> Procedure[bool]:
    """`rewrite_properties` by the table's config."""
    return (yield from rewrite_properties(lambda keys: news(from_properties(keys)), believe))


# --- an instant that is ahead ---------------------------------------------------------------------
# A new instant is later than every completed one. So a commit or a rollback days ahead, by a
# wrong clock, would move every later instant ahead too. Writers refuse to follow it until an
# operator checks it. The commit itself stays. Once its instant is accepted, new instants follow it
# until the clocks have caught up. (An instant that is only pending blocks no writer, and its
# rollback is not placed ahead of it.)


@dataclass(frozen=True, slots=True)
class FutureInstant:
    """The newest instant of a table that is too far ahead to be followed."""

    instant: str
    action: str
    hours: int


def newest_ahead() -> Procedure[FutureInstant | None]:
    """The newest such instant; None if writers may continue. Reads only."""
    config, _ = yield from load_config()
    now, wall_ms = (yield from load_timeline(config.names)), (yield WallMs())
    if not is_ahead(now.latest, wall_ms, config.accepted):
        return None
    hours = (instant_ms(now.latest) - wall_ms) // 3_600_000
    return FutureInstant(now.latest, now.completed.get(now.latest, "rollback"), hours)


def accept(instant: str, *, believe: Callable[[], None] = trust) -> Procedure[bool]:
    """Let new instants follow this one, the newest; False if they already do.

    Call it under the table's lock. Raises `TableError` if another instant is the newest.
    """
    found = yield from newest_ahead()
    if found is None:
        return False
    if found.instant != instant:
        raise RefusedOption(
            instant[:40],
            f"is not the newest instant that is ahead: that is {found.instant}; nothing was "
            "changed",
        )

    def accepted(config: TableConfig) -> dict[str, str]:
        return {} if config.accepted == instant else {ACCEPTED: instant}

    return (yield from say_in_properties(accepted, believe))
