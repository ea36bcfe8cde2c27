"""The lease protocol: one pure function from (state, event) to (state, actions).

No clock, no socket, no randomness. `Lock` runs it against a real store, the explorer against an
adversary, a notebook one step at a time. A client has at most one request out; whoever runs the
protocol carries it out and hands the answer back as the next event. Read `step` first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from lockkit.lockfile import Garbled, Record
from lockkit.outcome import (
    Applied,
    NotOurs,
    Ours,
    PreconditionFailed,
    Resolution,
    StillOut,
    Throttled,
    Unknown,
    Version,
    WriteAnswer,
    resolve,
)
from lockkit.rules import Ambiguous, Expiry, Recognise, Release, Rules
from lockkit.state import (
    Action,
    Aim,
    Answered,
    Beat,
    Beaten,
    Blind,
    Busy,
    Event,
    GiveUp,
    Granted,
    Look,
    Lost,
    Me,
    Now,
    Pause,
    Phase,
    Quit,
    Released,
    Remove,
    Renewed,
    Saw,
    Seen,
    Send,
    Sight,
    State,
    Step,
    Tick,
    Want,
    Write,
)

# --- expiry: three policies behind one function --------------------------------------------------


def frees_ms(seen: Seen, now: Now, rules: Rules) -> int | None:
    """When the lease that was seen may be taken, on my boot clock; None: never by itself.

    `store` compares two times of the store's own clock. Its Date is carried forward on my boot
    clock from when the answer came, which is a lower bound of the store's time now.
    """
    record = seen.sight.record
    if record is None or (isinstance(record, Record) and record.expired):
        return now.boot_ms
    if isinstance(record, Garbled):
        return None
    modified, date = seen.sight.modified_ms, seen.sight.date_ms
    if rules.expiry is Expiry.STORE and record.ttl_ms and modified is not None and date is not None:
        return seen.read_ms + (modified + record.ttl_ms + rules.slack_ms - date)
    if rules.expiry is Expiry.OBSERVED and record.ttl_ms:
        return seen.since_ms + record.ttl_ms
    return now.boot_ms + (record.valid_until_ms + rules.drift_ms - now.wall_ms)


def free(seen: Seen, now: Now, rules: Rules) -> bool:
    at = frees_ms(seen, now, rules)
    return at is not None and now.boot_ms >= at


def belief_ends_ms(me: Me, write: Write, answered: Now, rules: Rules) -> int:
    """When to stop believing a grant that this write won."""
    start = write.sent if rules.count_from_send else answered
    if rules.drift_for_holder:
        return start.boot_ms + me.ttl_ms + rules.drift_ms
    return start.boot_ms + me.ttl_ms - min(rules.margin_ms, me.ttl_ms // 10)


# --- the protocol --------------------------------------------------------------------------------


def step(me: Me, state: State, event: Event, rules: Rules) -> Step:
    """What a client does when `event` happens. Pure; every transition of the protocol is below."""
    state, ended = notice_end(state, event.now)
    match event:
        case Want(now, floor):
            state = replace(state, floor=max(state.floor, floor))
            after = _decide(me, state, now, rules, looked=False)
        case Saw(now, sight, date_ms):
            after = _on_sight(me, _remember(state, sight, date_ms, now), now, rules)
        case Blind():
            after = state, (Pause(),)
        case Answered(now, answer):
            after = _on_answer(me, state, answer, now, rules)
        case Tick(now):
            after = _on_tick(me, state, now, rules)
        case Beat(now, floor):
            after = _on_beat(me, state, now, floor)
        case Quit(now):
            after = _on_quit(me, state, now, rules)
        case GiveUp():
            after = _give_up(state)
        case _:
            assert_never(event)
    state, actions = after
    return state, ended + actions


def notice_end(state: State, now: Now) -> Step:
    """Belief ends by the clock, whatever else is going on; a late answer does not revive it.

    Part of every step. By itself it may also run while a request is out.
    """
    if state.until_ms is None or now.boot_ms < state.until_ms:
        return state, ()
    assert state.grant is not None
    phase = Phase.LOST if state.phase is Phase.HELD else state.phase
    why = "the lease ran out before a renewal was proven"
    return replace(state, phase=phase, until_ms=None), (Lost(state.grant.epoch, why),)


def _decide(me: Me, state: State, now: Now, rules: Rules, *, looked: bool) -> Step:
    """We want the lock: claim it if it is free, else wait; look first where we know too little."""
    assert state.grant is None, "wanted while held: the runner refuses a double acquire"
    if not looked and (state.seen is None or state.unsettled):
        return replace(state, phase=Phase.LOOKING), (Look(),)
    assert state.seen is not None
    seen = state.seen
    if free(seen, now, rules):
        record = Record(
            owner=me.owner,
            valid_until_ms=now.wall_ms + me.ttl_ms,
            epoch=_next_epoch(state, rules),
            ttl_ms=me.ttl_ms,
            holder=me.holder,
        )
        return _send(me, state, Aim.CLAIM, record, seen.sight.version, now)
    if not looked:
        return replace(state, phase=Phase.LOOKING), (Look(seen.sight.version),)
    record_seen = seen.sight.record
    assert record_seen is not None
    return replace(state, phase=Phase.WAITING), (Busy(record_seen, frees_ms(seen, now, rules)),)


def _next_epoch(state: State, rules: Rules) -> int:
    record = state.seen.sight.record if state.seen else None
    seen_epoch = record.epoch if isinstance(record, Record) else 0
    if rules.release is not Release.TOMBSTONE:
        return seen_epoch + 1  # what a lock that deletes its object can know
    return max(seen_epoch, state.floor) + 1


_PHASE_OF = {
    Aim.CLAIM: Phase.CLAIMING,
    Aim.CONFIRM: Phase.CONFIRMING,
    Aim.RENEW: Phase.RENEWING,
    Aim.RELEASE: Phase.RELEASING,
}


def _send(me: Me, state: State, aim: Aim, record: Record, over: Version | None, now: Now) -> Step:
    """A new write, with an attempt of its own: two writes never have equal bytes."""
    record = replace(record, attempt=f"{me.handle or me.owner}/{state.writes + 1}")
    write = Write(aim, record, over, now)
    state = replace(state, phase=_PHASE_OF[aim], out=write, writes=state.writes + 1)
    return state, (Send(record, over),)


def _resend(state: State) -> Step:
    """The same bytes under the same condition: at most one copy can land."""
    assert state.out is not None
    phase = _PHASE_OF[state.out.aim]
    return replace(state, phase=phase), (Send(state.out.record, state.out.over),)


def _remember(state: State, sight: Sight | None, date_ms: int | None, now: Now) -> State:
    """Take in what a read found; a 304 proves the old version, at the store's new time."""
    if sight is None:
        assert state.seen is not None, "a 304 needs a version that we named"
        if not _tells_more(state.seen, date_ms, now):
            return state
        sight = replace(state.seen.sight, date_ms=date_ms)
    known = state.seen is not None and state.seen.sight.version == sight.version
    since = state.seen.since_ms if known and state.seen else now.boot_ms
    epoch = sight.record.epoch if isinstance(sight.record, Record) else 0
    return replace(state, seen=Seen(sight, since, now.boot_ms), floor=max(state.floor, epoch))


def _tells_more(seen: Seen, date_ms: int | None, now: Now) -> bool:
    """Whether this Date puts the store's clock further on than the one that we go on from.

    Dates are floored: of two about one version, the one that shows more time passed is nearer.
    """
    if date_ms is None or seen.sight.date_ms is None:
        return date_ms is not None
    return date_ms - now.boot_ms > seen.sight.date_ms - seen.read_ms


def _fate(write: Write, sight: Sight, rules: Rules) -> Resolution:
    record = sight.record if isinstance(sight.record, Record) else None
    attempt = record.attempt if record else None
    if rules.recognise is Recognise.OWNER and record and record.owner == write.record.owner:
        attempt = write.record.attempt
    return resolve(sight.version, attempt, attempt=write.record.attempt, wrote_over=write.over)


def _on_sight(me: Me, state: State, now: Now, rules: Rules) -> Step:
    """What a read found, for each reason to read."""
    assert state.seen is not None
    sight = state.seen.sight
    match state.phase:
        case Phase.LOOKING | Phase.WAITING:
            state, ghost = _lay_ghosts(state, sight, rules)
            if ghost is not None:
                return _adopt(me, state, ghost, now, rules)
            return _decide(me, state, now, rules, looked=True)
        case Phase.SETTLING:
            return _settle(me, state, sight, now, rules)
        case Phase.RELEASING:
            return _release_what_is_ours(me, state, sight, now, rules)
        case _:
            return state, ()  # a read that nobody waits for any more


def _lay_ghosts(state: State, sight: Sight, rules: Rules) -> tuple[State, Write | None]:
    """Settle old writes against a read: keep those that may yet land, and the one that did.

    That one is returned, too. It stays among them until a write of ours has replaced it: who gives
    up before that must know it for its own next time, and neither wait for it nor leave it there.
    """
    landed: Write | None = None
    waiting: list[Write] = []
    for write in state.unsettled:
        match _fate(write, sight, rules):
            case Ours():
                landed = write
                waiting.append(write)
            case StillOut():
                waiting.append(write)
            case NotOurs():
                pass
    return replace(state, unsettled=tuple(waiting)), landed


def _adopt(me: Me, state: State, ghost: Write, now: Now, rules: Rules) -> Step:
    """A ghost of our own is taken over, not waited out: a grant with an epoch of its own."""
    record = replace(ghost.record, epoch=_next_epoch(state, rules))
    return _confirm(me, state, replace(ghost, record=record), now, rules)


def _confirm(me: Me, state: State, write: Write, now: Now, rules: Rules) -> Step:
    """A write of ours was found in the object. Reading is not holding (TOCTOU): CAS over it."""
    assert state.seen is not None
    record = write.record
    if record.expired:  # our own tombstone, long after we gave up on it: the lock is free
        return _decide(me, state, now, rules, looked=True)
    if not rules.confirm:
        return _hold(me, replace(state, out=None), write, state.seen.sight.version, now, rules)
    record = replace(record, valid_until_ms=now.wall_ms + me.ttl_ms, holder=me.holder)
    return _send(me, state, Aim.CONFIRM, record, state.seen.sight.version, now)


def _settle(me: Me, state: State, sight: Sight, now: Now, rules: Rules) -> Step:
    """The write that is out met a 412 or no answer: what became of it?"""
    write = state.out
    assert write is not None
    match _fate(write, sight, rules):
        case Ours():
            if write.aim is Aim.RELEASE:
                return _released(state, proven=True)
            state = replace(_to_ghost(state), version=sight.version if state.grant else None)
            return _confirm_or_lose(me, state, write, now, rules)
        case StillOut():
            if write.aim is Aim.CLAIM and now.boot_ms >= belief_ends_ms(me, write, now, rules):
                state = _to_ghost(state)  # too old to be worth winning: claim afresh
                return _decide(me, state, now, rules, looked=True)
            if _too_late(state, write):
                return replace(_to_ghost(state), phase=Phase.LOST), ()
            return _resend(state)
        case NotOurs():
            return _not_ours(me, state, write, sight, now, rules)
        case other:
            assert_never(other)


def _confirm_or_lose(me: Me, state: State, write: Write, now: Now, rules: Rules) -> Step:
    """Our write is in the object. Confirm it, unless the belief that it was to extend has ended."""
    if _too_late(state, write):
        return replace(state, phase=Phase.LOST), ()
    return _confirm(me, state, write, now, rules)


def _too_late(state: State, write: Write) -> bool:
    """A renewal whose belief has ended: nothing may revive it."""
    return write.aim is not Aim.RELEASE and state.grant is not None and state.until_ms is None


def _not_ours(me: Me, state: State, write: Write, sight: Sight, now: Now, rules: Rules) -> Step:
    """Another write stands where ours should: a claim lost the race, a holder lost the lock."""
    state, ghost = _lay_ghosts(replace(state, out=None), sight, rules)
    if write.aim is Aim.RELEASE:
        if ghost is not None:  # a renewal that we had given up on landed first: it is still ours
            return _tombstone(me, state, ghost.record, sight.version, now)
        return _released(state, proven=True)
    if state.grant is not None:
        if ghost is not None:  # an earlier renewal, taken for not done, had landed all the same
            return _confirm_or_lose(me, replace(state, version=sight.version), ghost, now, rules)
        return _lose(state, _usurper(sight))
    if ghost is not None:
        return _adopt(me, state, ghost, now, rules)
    after, actions = _decide(me, state, now, rules, looked=True)
    return after, (Beaten(write.record.attempt), *actions)


def _usurper(sight: Sight) -> str:
    """What stands where our lease should, for whoever lost it."""
    match sight.record:
        case None:
            return "the lock object was deleted"
        case Garbled(why):
            return f"the lock object was overwritten with something else: {why}"
        case Record():
            return "somebody else's write is in the lock object"


def _on_answer(me: Me, state: State, answer: WriteAnswer, now: Now, rules: Rules) -> Step:
    write = state.out
    assert write is not None, "an answer needs a write that is out"
    match answer:
        case Applied(version):
            return _applied(me, replace(state, out=None), write, version, now, rules)
        case Throttled(after_s):
            return _throttled(state, write, after_s)
        case PreconditionFailed():
            rule = _rule_for(write.aim, rules.claim_412, rules.renew_412)
        case Unknown():
            rule = _rule_for(write.aim, rules.claim_unknown, rules.renew_unknown)
        case _:
            assert_never(answer)
    match rule:
        case Ambiguous.READ_BACK:
            return replace(state, phase=Phase.SETTLING), (Look(),)
        case Ambiguous.OURS:
            state = replace(state, out=None)
            return _hold(me, state, write, write.record.attempt, now, rules)
        case Ambiguous.LOST:
            state = replace(state, out=None)
            if state.grant is not None:
                return _lose(state, "a renewal was refused")
            after = replace(state, phase=Phase.LOOKING, seen=None)
            return after, (Beaten(write.record.attempt), Look())
        case _:
            assert_never(rule)


def _rule_for(aim: Aim, claim: Ambiguous, renew: Ambiguous) -> Ambiguous:
    match aim:
        case Aim.CLAIM:
            return claim
        case Aim.RENEW:
            return renew
        case Aim.CONFIRM | Aim.RELEASE:
            return Ambiguous.READ_BACK
        case _:
            assert_never(aim)


def _applied(me: Me, state: State, write: Write, version: Version, now: Now, rules: Rules) -> Step:
    seen = Seen(Sight(version, write.record), write.sent.boot_ms, now.boot_ms)
    state = replace(state, seen=seen, floor=max(state.floor, write.record.epoch))
    if not (write.aim is Aim.RELEASE and rules.release is not Release.TOMBSTONE):
        state = replace(state, unsettled=())  # what they were to be written over is gone for good
    match write.aim:
        case Aim.RELEASE:
            if rules.release is not Release.TOMBSTONE:
                state = replace(state, seen=None)
            return _released(state, proven=True)
        case Aim.CLAIM | Aim.CONFIRM if state.grant is None:
            if now.boot_ms >= belief_ends_ms(me, write, now, rules):
                # Won, but the answer took a whole lease: make it good before believing it.
                state = replace(state, unsettled=(write,))
                record = replace(write.record, valid_until_ms=now.wall_ms + me.ttl_ms)
                return _send(me, state, Aim.CONFIRM, record, version, now)
            return _hold(me, state, write, version, now, rules)
        case Aim.CLAIM | Aim.CONFIRM | Aim.RENEW:
            if state.until_ms is None:  # it landed after belief had ended: never revived
                return replace(state, phase=Phase.LOST, version=version, grant=write.record), ()
            return _hold(me, state, write, version, now, rules)
        case _:
            assert_never(write.aim)


def _hold(
    me: Me, state: State, write: Write, version: Version | None, now: Now, rules: Rules
) -> Step:
    """Believe, until this write's lease ends less the margin."""
    told: Action = Renewed(write.record.epoch) if state.grant else Granted(write.record.epoch)
    state = replace(
        state,
        phase=Phase.HELD,
        out=None,
        grant=write.record,
        version=version,
        until_ms=belief_ends_ms(me, write, now, rules),
    )
    return state, (told,)


def _throttled(state: State, write: Write, after_s: float | None) -> Step:
    """This copy was not done. A claim waits its turn, a renewal keeps the lease, a release insists.

    Another copy may have been: ours, sent before an answer was lost, or one of a retry on the way.
    """
    match write.aim:
        case Aim.CLAIM:
            return replace(_to_ghost(state), phase=Phase.WAITING), (Pause(after_s),)
        case Aim.RENEW:
            phase = Phase.HELD if state.until_ms is not None else Phase.LOST
            return replace(_to_ghost(state), phase=phase), (Pause(after_s),)
        case Aim.CONFIRM | Aim.RELEASE:
            if _too_late(state, write):
                state = replace(_to_ghost(state), phase=Phase.LOST)
            return state, (Pause(after_s),)
        case _:
            assert_never(write.aim)


def _on_tick(me: Me, state: State, now: Now, rules: Rules) -> Step:
    match state.phase:
        case Phase.WAITING:
            # A ghost of ours over the same version does no harm: one of the two lands, and we look.
            if state.seen is not None and free(state.seen, now, rules):
                return _decide(me, state, now, rules, looked=True)
            unless = state.seen.sight.version if state.seen else None
            return replace(state, phase=Phase.LOOKING), (Look(unless),)
        case Phase.LOOKING | Phase.SETTLING:
            return state, (Look(),)
        case Phase.CONFIRMING | Phase.RELEASING:
            if state.out is None:
                return state, (Look(),)
            return _resend(state)
        case Phase.IDLE | Phase.CLAIMING | Phase.HELD | Phase.RENEWING | Phase.LOST:
            return state, ()
        case _:
            assert_never(state.phase)


def _on_beat(me: Me, state: State, now: Now, floor: int) -> Step:
    """Renew by CAS on our own version. What is unsettled is settled before it.

    A grant whose epoch is not above `floor` gets one that is. Nobody can have taken the lock in
    between: the write replaces exactly our own version. The grant has the new epoch only once the
    write is proven.
    """
    state = replace(state, floor=max(state.floor, floor))
    if state.phase is Phase.SETTLING:
        return state, (Look(),)
    if state.phase is not Phase.HELD:
        return state, ()
    assert state.grant is not None
    epoch = state.grant.epoch if state.grant.epoch > floor else state.floor + 1
    record = replace(state.grant, valid_until_ms=now.wall_ms + me.ttl_ms, epoch=epoch)
    return _send(me, state, Aim.RENEW, record, state.version, now)


def _on_quit(me: Me, state: State, now: Now, rules: Rules) -> Step:
    """Belief ends first; only then is the object released."""
    state = replace(state, until_ms=None)
    if state.grant is None:
        return _give_up(state)
    if state.version is None and state.out is None:  # taken over: there is nothing to release
        return _released(state, proven=True)
    if state.out is not None:  # a renewal whose fate is not known: which version is ours?
        return replace(_to_ghost(state), phase=Phase.RELEASING), (Look(),)
    if rules.release is Release.DELETE:
        return replace(state, phase=Phase.RELEASING), (Look(),)
    if rules.release is Release.DELETE_IF_MATCH:
        return _remove(state, state.grant, state.version, now)
    return _tombstone(me, state, state.grant, state.version, now)


def _release_what_is_ours(me: Me, state: State, sight: Sight, now: Now, rules: Rules) -> Step:
    """Which of our writes, if any, is in the object? Release exactly that one."""
    record = sight.record if isinstance(sight.record, Record) else None
    mine = {write.record.attempt for write in state.unsettled}
    if state.grant is not None:
        mine.add(state.grant.attempt)
    if record is None or record.attempt not in mine:
        return _released(replace(state, unsettled=()), proven=True)
    if rules.release is Release.DELETE:
        return _remove(state, record, None, now)
    return _tombstone(me, state, record, sight.version, now)


def _tombstone(me: Me, state: State, record: Record, over: Version | None, now: Now) -> Step:
    """Marked expired, never deleted: epochs go on, and a late create cannot land (V8, V9).

    It keeps the highest epoch that we know of: a renewal that raised the epoch may have landed
    after our belief had ended, and then the grant still has the lower one.
    """
    epoch = max(record.epoch, state.floor)
    return _send(me, state, Aim.RELEASE, replace(record, expired=True, epoch=epoch), over, now)


def _remove(state: State, record: Record, over: Version | None, now: Now) -> Step:
    write = Write(Aim.RELEASE, record, over, now)
    return replace(state, phase=Phase.RELEASING, out=write), (Remove(over),)


def _released(state: State, *, proven: bool) -> Step:
    epoch = state.grant.epoch if state.grant else 0
    after = replace(state, phase=Phase.IDLE, out=None, grant=None, version=None, until_ms=None)
    return after, (Released(epoch, proven),)


def _lose(state: State, why: str) -> Step:
    assert state.grant is not None
    told = (Lost(state.grant.epoch, why),) if state.until_ms is not None else ()
    after = replace(state, phase=Phase.LOST, out=None, version=None, until_ms=None)
    return after, told


def _to_ghost(state: State) -> State:
    if state.out is None:
        return state
    return replace(state, out=None, unsettled=(*state.unsettled, state.out))


def _give_up(state: State) -> Step:
    """Nothing more is sent. A claim that is out may yet land: then it is a ghost that expires."""
    grant, version = state.grant, state.version
    state = replace(_to_ghost(state), phase=Phase.IDLE, until_ms=None)
    if grant is None:
        return state, ()
    kept = Write(
        Aim.CLAIM, grant, version, Now(0, 0)
    )  # so that the next attempt knows its own lease
    return _released(replace(state, unsettled=(*state.unsettled, kept)), proven=False)
