------------------------------- MODULE LeaseLock -------------------------------
(* The lease protocol of lockkit/protocol/lease.py, in the model of lockkit/lab/verify/explore.

   The model has a few clients, one lock object in a store with conditional writes, faults and
   clocks. Sending a request, deciding it in the store and answering it are three steps. A delay or
   a stall is therefore only another order of steps. All times are relative to the present, and a
   time is cut off where a greater age makes no difference, so the number of states is finite.

   The constants have the names of the fields of lockkit.protocol.policy.Policy, of the rules that
   lockkit.lab.verify.wrong_rules replaces, and of the fields of
   lockkit.lab.verify.explore.parts.Bounds. The invariants have the names of
   lockkit.lab.verify.explore.parts.Invariant. One tick is a second and a lease lasts two ticks, so
   each margin rounds to zero and has no constant.                                               *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    NONE,                               \* nothing: a model value
    expiry, drift_ms, drift_for_holder, slack_ms, count_from_send,            \* the rules
    recognise, confirm, claim_412, claim_unknown, renew_412, renew_unknown, release, fence,
    acquires, tries, renewals, commits, faults, kinds, offsets, spread, ttl,  \* the bounds
    gives_up, watch

VARIABLES
    clients,    \* of each client: its knowledge, its open requests, what it may still do
    store,      \* the lock object, and the resource that the lock protects
    late,       \* writes without an answer that may still be applied; equal copies count once
    able,       \* the faults that are still allowed
    broken      \* the invariants that the last step violated

vars == <<clients, store, late, able, broken>>

Clients == DOMAIN acquires
UNSAID == 99                            \* the store gave no time with this answer

Max(a, b) == IF a > b THEN a ELSE b
Least(S) == CHOOSE a \in S : \A b \in S : a <= b
Range(q) == {q[i] : i \in DOMAIN q}

-----------------------------------------------------------------------------
(* The values of lockkit.protocol.state. A version of the object is the attempt that wrote it.            *)

Idle == [phase |-> "idle", seen |-> NONE, out |-> NONE, unsettled |-> <<>>, grant |-> NONE,
         version |-> NONE, until |-> NONE, floor |-> 0]

Live(record) == record # NONE /\ ~record.expired
Believes(c) == LET u == clients[c].state.until IN u # NONE /\ u > 0

(* A step returns the state after it, the request to send, and the losses to report.             *)
Quiet(s) == [state |-> s, req |-> NONE, told |-> {}]
Looks(s) == [state |-> s, req |-> [kind |-> "look"], told |-> {}]
Telling(after, what) == [after EXCEPT !.told = @ \cup what]

PhaseOf == [CLAIM |-> "claiming", CONFIRM |-> "confirming", RENEW |-> "renewing",
            RELEASE |-> "releasing"]

(* A new write has a new attempt id, so two writes never have equal bytes.                       *)
Sends(me, s, aim, record, over) ==
    LET r == [record EXCEPT !.attempt = me.name]
        w == [aim |-> aim, record |-> r, over |-> over, sent |-> 0]
    IN [state |-> [s EXCEPT !.phase = PhaseOf[aim], !.out = w],
        req |-> [kind |-> "send", record |-> r, over |-> over], told |-> {}]

(* The same bytes under the same condition: at most one copy can land.                           *)
Resends(s) ==
    [state |-> [s EXCEPT !.phase = PhaseOf[s.out.aim]],
     req |-> [kind |-> "send", record |-> s.out.record, over |-> s.out.over], told |-> {}]

-----------------------------------------------------------------------------
(* Expiry: three policies.                                                                       *)

Free(me, seen) ==
    \/ ~Live(seen.record)
    \/ IF expiry = "STORE" /\ seen.modified # UNSAID
       THEN seen.modified + ttl + slack_ms <= 0
       ELSE IF expiry = "OBSERVED"
            THEN seen.since + ttl <= 0
            ELSE seen.record.validUntil + drift_ms <= me.wall

BeliefEnds(write) ==
    (IF count_from_send THEN write.sent ELSE 0) + ttl + (IF drift_for_holder THEN drift_ms ELSE 0)

-----------------------------------------------------------------------------
(* The protocol: lockkit.protocol.lease, function by function.                                            *)

NextEpoch(s) ==
    LET seen == IF s.seen # NONE /\ s.seen.record # NONE THEN s.seen.record.epoch ELSE 0
    IN 1 + IF release = "TOMBSTONE" THEN Max(seen, s.floor) ELSE seen

Decide(me, s, looked) ==
    IF ~looked /\ (s.seen = NONE \/ s.unsettled # <<>>)
    THEN Looks([s EXCEPT !.phase = "looking"])
    ELSE IF Free(me, s.seen)
    THEN Sends(me, s, "CLAIM",
               [owner |-> me.owner, validUntil |-> me.wall + ttl, expired |-> FALSE,
                epoch |-> NextEpoch(s), attempt |-> NONE],
               s.seen.version)
    ELSE IF ~looked
    THEN Looks([s EXCEPT !.phase = "looking"])
    ELSE Telling(Quiet([s EXCEPT !.phase = "waiting"]),
                 IF s.seen.record.owner = me.owner THEN {"waits"} ELSE {})

Remember(s, sight) ==
    LET known == s.seen # NONE /\ s.seen.version = sight.version
        since == IF known THEN s.seen.since ELSE 0
        epoch == IF sight.record # NONE THEN sight.record.epoch ELSE 0
    IN [s EXCEPT !.seen = [version |-> sight.version, record |-> sight.record,
                           modified |-> sight.modified, since |-> since],
                 !.floor = Max(@, epoch)]

(* What became of a write, by what a read found: ours, not ours, or still out.                   *)
Fate(w, sight) ==
    LET r == sight.record
        mine == \/ r # NONE /\ r.attempt = w.record.attempt
                \/ r # NONE /\ recognise = "OWNER" /\ r.owner = w.record.owner
    IN IF mine THEN "ours" ELSE IF sight.version = w.over THEN "still out" ELSE "not ours"

Landed(s, sight) ==
    LET ours == {i \in DOMAIN s.unsettled : Fate(s.unsettled[i], sight) = "ours"}
    IN IF ours = {} THEN NONE ELSE s.unsettled[CHOOSE i \in ours : \A j \in ours : j <= i]

(* The one that landed stays, too, until a write of ours has replaced it.                        *)
LayGhosts(s, sight) ==
    LET stays(w) == Fate(w, sight) # "not ours"
    IN [s EXCEPT !.unsettled = SelectSeq(@, stays)]

ToGhost(s) == IF s.out = NONE THEN s
              ELSE [s EXCEPT !.out = NONE, !.unsettled = Append(@, s.out)]

Hold(s, w, version) ==
    Quiet([s EXCEPT !.phase = "held", !.out = NONE, !.grant = w.record, !.version = version,
                    !.until = BeliefEnds(w)])

Released(s) ==
    Quiet([s EXCEPT !.phase = "idle", !.out = NONE, !.grant = NONE, !.version = NONE,
                    !.until = NONE])

Lose(s) ==
    Telling(Quiet([s EXCEPT !.phase = "lost", !.out = NONE, !.version = NONE, !.until = NONE]),
            IF s.until # NONE THEN {"lost"} ELSE {})

(* Marked expired, never deleted: epochs go on, and a late create cannot land.                   *)
Tombstone(me, s, record, over) ==
    Sends(me, s, "RELEASE", [record EXCEPT !.expired = TRUE], over)

Remove(s, record, over) ==
    [state |-> [s EXCEPT !.phase = "releasing",
                         !.out = [aim |-> "RELEASE", record |-> record, over |-> over, sent |-> 0]],
     req |-> [kind |-> "remove", record |-> record, over |-> over], told |-> {}]

(* A write of ours was found in the object. Reading is not holding: CAS over it.                 *)
Confirmed(me, s, w) ==
    IF w.record.expired THEN Decide(me, s, TRUE)
    ELSE IF ~confirm THEN Hold(s, w, s.seen.version)
    ELSE Sends(me, s, "CONFIRM", [w.record EXCEPT !.validUntil = me.wall + ttl], s.seen.version)

Adopt(me, s, ghost) ==
    Confirmed(me, s, [ghost EXCEPT !.record.epoch = NextEpoch(s)])

(* A renewal whose belief has ended: nothing may revive it.                                      *)
TooLate(s, w) == w.aim # "RELEASE" /\ s.grant # NONE /\ s.until = NONE

ConfirmOrLose(me, s, w) ==
    IF TooLate(s, w) THEN Quiet([s EXCEPT !.phase = "lost"]) ELSE Confirmed(me, s, w)

NotOurs(me, s0, w, sight) ==
    LET ghost == Landed(s0, sight)
        s == LayGhosts([s0 EXCEPT !.out = NONE], sight)
    IN IF w.aim = "RELEASE"
       THEN IF ghost # NONE THEN Tombstone(me, s, ghost.record, sight.version) ELSE Released(s)
       ELSE IF s.grant # NONE
       THEN IF ghost # NONE
            THEN ConfirmOrLose(me, [s EXCEPT !.version = sight.version], ghost)
            ELSE Lose(s)
       ELSE IF ghost # NONE
       THEN Adopt(me, s, ghost)
       ELSE Telling(Decide(me, s, TRUE), {"beaten"})

Settle(me, s, sight) ==
    LET w == s.out IN
    CASE Fate(w, sight) = "ours" ->
            IF w.aim = "RELEASE" THEN Released(s)
            ELSE ConfirmOrLose(me, [ToGhost(s) EXCEPT !.version = IF s.grant # NONE
                                                                  THEN sight.version ELSE NONE], w)
      [] Fate(w, sight) = "still out" ->
            IF w.aim = "CLAIM" /\ BeliefEnds(w) <= 0
            THEN Decide(me, ToGhost(s), TRUE)   \* too old to be worth winning: claim afresh
            ELSE IF TooLate(s, w)
            THEN Quiet([ToGhost(s) EXCEPT !.phase = "lost"])
            ELSE Resends(s)
      [] OTHER -> NotOurs(me, s, w, sight)

(* Which of our writes, if any, is in the object? Release exactly that one.                      *)
ReleaseWhatIsOurs(me, s, sight) ==
    LET mine == {w.record.attempt : w \in Range(s.unsettled)}
                \cup IF s.grant # NONE THEN {s.grant.attempt} ELSE {}
    IN IF sight.record = NONE \/ sight.record.attempt \notin mine
       THEN Released([s EXCEPT !.unsettled = <<>>])
       ELSE IF release = "DELETE"
       THEN Remove(s, sight.record, NONE)
       ELSE Tombstone(me, s, sight.record, sight.version)

OnSight(me, s0, sight) ==
    LET s == Remember(s0, sight) IN
    CASE s.phase \in {"looking", "waiting"} ->
            LET ghost == Landed(s, sight) IN
            IF ghost # NONE THEN Adopt(me, LayGhosts(s, sight), ghost)
            ELSE Decide(me, LayGhosts(s, sight), TRUE)
      [] s.phase = "settling" -> Settle(me, s, sight)
      [] s.phase = "releasing" -> ReleaseWhatIsOurs(me, s, sight)
      [] OTHER -> Quiet(s)

Applied(me, s0, w, version) ==
    LET s == [s0 EXCEPT
                !.seen = [version |-> version, record |-> w.record, modified |-> UNSAID,
                          since |-> w.sent],
                !.floor = Max(@, w.record.epoch),
                !.unsettled = IF w.aim = "RELEASE" /\ release # "TOMBSTONE" THEN @ ELSE <<>>,
                !.out = NONE]
    IN CASE w.aim = "RELEASE" ->
                Released(IF release = "TOMBSTONE" THEN s ELSE [s EXCEPT !.seen = NONE])
         [] w.aim \in {"CLAIM", "CONFIRM"} /\ s.grant = NONE ->
                IF BeliefEnds(w) <= 0   \* won, but the answer took a whole lease
                THEN Sends(me, [s EXCEPT !.unsettled = <<w>>], "CONFIRM",
                           [w.record EXCEPT !.validUntil = me.wall + ttl], version)
                ELSE Hold(s, w, version)
         [] OTHER ->
                IF s.until = NONE       \* it landed after belief had ended: never revived
                THEN Quiet([s EXCEPT !.phase = "lost", !.version = version, !.grant = w.record])
                ELSE Hold(s, w, version)

Throttled(s, w) ==
    CASE w.aim = "CLAIM" -> Quiet([ToGhost(s) EXCEPT !.phase = "waiting"])
      [] w.aim = "RENEW" ->
            Quiet([ToGhost(s) EXCEPT !.phase = IF s.until # NONE THEN "held" ELSE "lost"])
      [] OTHER ->
            Quiet(IF TooLate(s, w) THEN [ToGhost(s) EXCEPT !.phase = "lost"] ELSE s)

RuleFor(w, answer) ==
    CASE w.aim = "CLAIM" -> IF answer = "refused" THEN claim_412 ELSE claim_unknown
      [] w.aim = "RENEW" -> IF answer = "refused" THEN renew_412 ELSE renew_unknown
      [] OTHER -> "READ_BACK"

OnAnswer(me, s, answer) ==
    LET w == s.out
        rule == RuleFor(w, answer)
        without == [s EXCEPT !.out = NONE]
    IN CASE answer = "applied" -> Applied(me, s, w, w.record.attempt)
         [] answer = "throttled" -> Throttled(s, w)
         [] rule = "READ_BACK" -> Looks([s EXCEPT !.phase = "settling"])
         [] rule = "OURS" -> Hold(s, w, w.record.attempt)
         [] s.grant # NONE -> Lose(without)
         [] OTHER -> Telling(Looks([without EXCEPT !.phase = "looking", !.seen = NONE]), {"beaten"})

OnTick(me, s) ==
    CASE s.phase = "waiting" ->
            IF s.seen # NONE /\ Free(me, s.seen) THEN Decide(me, s, TRUE)
            ELSE Looks([s EXCEPT !.phase = "looking"])
      [] s.phase \in {"looking", "settling"} -> Looks(s)
      [] s.phase \in {"confirming", "releasing"} -> IF s.out = NONE THEN Looks(s) ELSE Resends(s)
      [] OTHER -> Quiet(s)

OnBeat(me, s) ==
    CASE s.phase = "settling" -> Looks(s)
      [] s.phase = "held" ->
            Sends(me, s, "RENEW", [s.grant EXCEPT !.validUntil = me.wall + ttl], s.version)
      [] OTHER -> Quiet(s)

(* Nothing more is sent. A claim that is out may yet land: then it is a ghost that expires.      *)
OnGiveUp(s0) ==
    LET s == [ToGhost(s0) EXCEPT !.phase = "idle", !.until = NONE]
        kept == [aim |-> "CLAIM", record |-> s.grant, over |-> s.version, sent |-> 0]
    IN IF s.grant = NONE THEN Quiet(s) ELSE Released([s EXCEPT !.unsettled = Append(@, kept)])

(* Belief ends first; only then is the object released.                                          *)
OnQuit(me, s0) ==
    LET s == [s0 EXCEPT !.until = NONE] IN
    CASE s.grant = NONE -> OnGiveUp(s)
      [] s.version = NONE /\ s.out = NONE -> Released(s)
      [] s.out # NONE -> Looks([ToGhost(s) EXCEPT !.phase = "releasing"])
      [] release = "DELETE" -> Looks([s EXCEPT !.phase = "releasing"])
      [] release = "DELETE_IF_MATCH" -> Remove(s, s.grant, s.version)
      [] OTHER -> Tombstone(me, s, s.grant, s.version)

Step(me, s0, event) ==
    LET ended == s0.until # NONE /\ s0.until <= 0
        s == IF ended
             THEN [s0 EXCEPT !.until = NONE, !.phase = IF @ = "held" THEN "lost" ELSE @]
             ELSE s0
        after == CASE event.kind = "want" -> Decide(me, s, FALSE)
                   [] event.kind = "saw" -> OnSight(me, s, event.sight)
                   [] event.kind = "blind" -> Quiet(s)
                   [] event.kind = "answered" -> OnAnswer(me, s, event.answer)
                   [] event.kind = "tick" -> OnTick(me, s)
                   [] event.kind = "beat" -> OnBeat(me, s)
                   [] event.kind = "quit" -> OnQuit(me, s)
                   [] event.kind = "give up" -> OnGiveUp(s)
    IN Telling(after, IF ended THEN {"lost"} ELSE {})

-----------------------------------------------------------------------------
(* What a state may forget: lockkit.lab.verify.explore.ageing.                                              *)

OldestModified == -(ttl + slack_ms + spread)
OldestSend == -(ttl + IF drift_for_holder THEN drift_ms ELSE 0)

FixRecord(r) ==     \* validUntil matters only to the wall policy
    IF expiry # "WALL" \/ r.expired THEN [r EXCEPT !.validUntil = 0]
    ELSE [r EXCEPT !.validUntil = Max(@, Least(Range(offsets)) - drift_ms)]

FixWrite(w) == [w EXCEPT !.record = FixRecord(@),
                         !.sent = IF w.aim = "RELEASE" THEN 0 ELSE Max(@, OldestSend)]

FixGhost(w) == [FixWrite(w) EXCEPT !.sent = IF confirm THEN 0 ELSE @]

FixSight(sight) ==
    [sight EXCEPT !.record = IF @ = NONE THEN NONE ELSE FixRecord(@),
                  !.modified = IF @ = UNSAID THEN @ ELSE Max(@, OldestModified)]

LooksBack(s) ==     \* whether the protocol will look at what was seen before it reads once more
    CASE s.phase \in {"idle", "waiting"} -> TRUE
      [] s.phase = "lost" -> s.version = NONE
      [] s.phase = "claiming" -> "THROTTLE" \in kinds /\ faults > 0
      [] s.phase \in {"looking", "settling", "releasing"} -> expiry = "OBSERVED"
      [] OTHER -> FALSE

FixSeen(s) ==
    IF s.seen = NONE \/ ~LooksBack(s) THEN NONE
    ELSE IF Live(s.seen.record)
    THEN [FixSight(s.seen) EXCEPT !.since = IF expiry = "OBSERVED" THEN Max(@, -ttl) ELSE 0]
    ELSE [FixSight(s.seen) EXCEPT !.since = 0, !.modified = UNSAID]

FixState(s) ==
    [s EXCEPT !.seen = FixSeen(s),
              !.out = IF @ = NONE THEN NONE ELSE FixWrite(@),
              !.unsettled = [i \in DOMAIN @ |-> FixGhost(@[i])],
              !.grant = IF @ = NONE THEN NONE ELSE [@ EXCEPT !.validUntil = 0],
              !.until = IF @ = NONE THEN NONE ELSE Max(0, @)]

FixOut(out) ==
    IF out = NONE THEN NONE
    ELSE IF out.kind = "look" THEN [out EXCEPT !.sight = FixSight(@)]
    ELSE [out EXCEPT !.record = FixRecord(@)]

Newcomer(c, life) ==
    [state |-> Idle, out |-> NONE, acquires |-> acquires[c], tries |-> tries[c],
     renewals |-> renewals[c], commits |-> commits[c], life |-> life, draft |-> NONE, serial |-> 0]

Fix(a) ==
    IF a.state.phase = "idle" /\ a.acquires = 0 /\ a.draft = NONE
    THEN [a EXCEPT !.state = Idle, !.out = NONE, !.tries = 0, !.renewals = 0, !.commits = 0,
                   !.serial = 0]                         \* it acts no more
    ELSE LET s == FixState(a.state)
             over == s.until = NONE \/ s.until = 0
         IN [a EXCEPT !.state = s, !.out = FixOut(@),
                      !.draft = IF @ # NONE /\ ~@.sent /\ over THEN NONE ELSE @]

AgedRecord(r) == [r EXCEPT !.validUntil = @ - 1]
AgedWrite(w) == [w EXCEPT !.sent = @ - 1, !.record = AgedRecord(@)]
AgedSight(sight) == [sight EXCEPT !.record = IF @ = NONE THEN NONE ELSE AgedRecord(@)]

AgedState(s) ==
    [s EXCEPT !.seen = IF @ = NONE THEN NONE
                       ELSE [AgedSight(@) EXCEPT !.since = @ - 1,
                                                 !.modified = IF @ = UNSAID THEN @ ELSE @ - 1],
              !.out = IF @ = NONE THEN NONE ELSE AgedWrite(@),
              !.unsettled = [i \in DOMAIN @ |-> AgedWrite(@[i])],
              !.until = IF @ = NONE THEN NONE ELSE @ - 1]

Aged(a) ==
    Fix([a EXCEPT !.state = AgedState(@),
                  !.out = IF @ = NONE THEN NONE
                          ELSE IF @.kind = "look" THEN [@ EXCEPT !.sight = AgedSight(@)]
                          ELSE [@ EXCEPT !.record = AgedRecord(@)]])

AgedStore(o) ==
    IF o.record = NONE THEN o
    ELSE [o EXCEPT !.record = FixRecord(AgedRecord(@)),
                   !.modified = IF expiry = "STORE" /\ Live(o.record)
                                THEN Max(@ - 1, OldestModified) ELSE 0]

-----------------------------------------------------------------------------
(* Names of attempts, given again once nobody refers to them any more: lockkit.lab.verify.explore.names.    *)

NamesOfWrite(w) == IF w = NONE THEN {} ELSE {w.record.attempt, w.over}

NamesOf(a) ==
    LET s == a.state IN
    (IF s.seen = NONE THEN {} ELSE {s.seen.version})
    \cup NamesOfWrite(s.out) \cup UNION {NamesOfWrite(w) : w \in Range(s.unsettled)}
    \cup (IF s.grant = NONE THEN {} ELSE {s.grant.attempt}) \cup {s.version}
    \cup (IF a.out = NONE THEN {} ELSE IF a.out.kind = "look" THEN {a.out.sight.version}
          ELSE NamesOfWrite(a.out))

Used(c) ==
    LET names == UNION {NamesOf(clients[d]) : d \in Clients} \cup {store.version}
                 \cup UNION {NamesOfWrite(w) : w \in late}
    IN {n[3] : n \in {m \in names \ {NONE} : m[1] = c}}

Me(c) == [owner |-> <<c, clients[c].life>>, wall |-> offsets[c],
          name |-> <<c, clients[c].life, Least((1..16) \ Used(c))>>]

-----------------------------------------------------------------------------
(* The store.                                                                                    *)

Glance ==
    [version |-> store.version, record |-> store.record,
     modified |-> IF expiry # "STORE" \/ ~Live(store.record) THEN UNSAID
                  ELSE Max(store.modified - spread, OldestModified)]

Grants(w) ==
    /\ ~w.record.expired
    /\ \/ ~Live(store.record)
       \/ store.record.owner # w.record.owner
       \/ store.record.epoch # w.record.epoch

Accepts(w) == w.over = store.version \/ (w.kind = "remove" /\ w.over = NONE)

After(w) ==
    IF ~Accepts(w) THEN store
    ELSE IF w.kind = "remove" THEN [store EXCEPT !.record = NONE, !.version = NONE, !.modified = 0]
    ELSE [store EXCEPT !.record = w.record, !.version = w.record.attempt, !.modified = 0,
                       !.top = Max(@, w.record.epoch),
                       !.serial = IF Grants(w) /\ Range(commits) # {0} THEN @ + 1 ELSE @]

Wrong(w) ==
    IF Accepts(w) /\ w.kind = "send" /\ Grants(w) /\ w.record.epoch <= store.top
    THEN {"EPOCHS_RISE"} ELSE {}

(* Of late writes only those are kept that may still land.                                       *)
Bury(writes, o, cs) ==
    LET out == {cs[c].out : c \in Clients} \ {NONE}
        flying == writes \cup {w \in out : w.kind # "look" /\ w.answer = NONE}
        coming == {o.version}
                  \cup {IF w.kind = "remove" THEN NONE ELSE w.record.attempt : w \in flying}
    IN {w \in writes : w.kind = "remove" \/ w.over \in coming}

-----------------------------------------------------------------------------
(* The moves.                                                                                    *)

Becomes(c, a, o, more, cost, wrong) ==
    LET cs == [clients EXCEPT ![c] = a] IN
    /\ clients' = cs
    /\ store' = o
    /\ late' = IF more = {} /\ o = store THEN late ELSE Bury(late \cup more, o, cs)
    /\ able' = able - cost
    /\ broken' = wrong \cap watch

(* Told of a loss, or to wait, while its own live write is the lock object.                      *)
SelfInflicted(c, told) ==
    LET mine == Live(store.record) /\ store.record.owner = <<c, clients[c].life>>
    IN IF mine /\ ({"beaten", "waits"} \cap told # {} \/ ("lost" \in told /\ Believes(c)))
       THEN {"NO_SELF_LOSS"} ELSE {}

(* One step of the protocol; a new request goes out with it.                                     *)
Hears(c, a, event, more, cost) ==
    LET s == a.state
        after == Step(Me(c), s, event)
        req == after.req
        out == IF req = NONE THEN NONE
               ELSE IF req.kind = "look" THEN [kind |-> "look", sight |-> Glance]
               ELSE [kind |-> req.kind, record |-> req.record, over |-> req.over, answer |-> NONE]
        new == after.state.out
        claims == /\ new # NONE
                  /\ new.aim \in {"CLAIM", "CONFIRM"}
                  /\ s.out = NONE \/ s.out.record.attempt # new.record.attempt
        left == IF claims THEN a.tries - 1 ELSE a.tries
    IN /\ left >= 0                     \* beyond the bounds it stalls here for ever
       /\ Becomes(c, Fix([a EXCEPT !.state = after.state, !.out = out, !.tries = left]), store,
                  more, cost, SelfInflicted(c, after.told))

Told(c, answer, more, cost) ==
    Hears(c, [clients[c] EXCEPT !.out = NONE], [kind |-> "answered", answer |-> answer], more, cost)

May(kind) == able > 0 /\ kind \in kinds

Wishes(c) ==
    LET a == clients[c]
        phase == a.state.phase
        asks(kind) == Hears(c, a, [kind |-> kind], {}, 0)
    IN /\ a.out = NONE
       /\ \/ /\ phase = "idle" /\ a.acquires > 0
             /\ Hears(c, [a EXCEPT !.acquires = @ - 1], [kind |-> "want"], {}, 0)
          \/ /\ phase = "held" /\ a.renewals > 0
             /\ Hears(c, [a EXCEPT !.renewals = @ - 1], [kind |-> "beat"], {}, 0)
          \/ /\ \/ phase \in {"held", "lost"}
                \/ phase \notin {"idle", "releasing"} /\ a.state.grant # NONE
             /\ asks("quit")
          \/ phase \notin {"idle", "held", "lost"} /\ asks("tick")
          \/ /\ phase \notin {"idle", "held", "lost"}
             /\ gives_up /\ (a.state.grant = NONE \/ phase = "releasing")
             /\ asks("give up")

Reads(c) ==
    LET a == clients[c] IN
    /\ a.out # NONE /\ a.out.kind = "look"
    /\ \/ Hears(c, a, [kind |-> "saw", sight |-> a.out.sight], {}, 0)
       \/ May("BLIND") /\ Hears(c, a, [kind |-> "blind"], {}, 1)

Writes(c) ==
    LET a == clients[c]
        w == a.out
        answered == [a EXCEPT !.out = [@ EXCEPT !.answer = IF Accepts(w) THEN "applied" ELSE "refused"],
                              !.serial = IF Accepts(w) /\ ~w.record.expired THEN After(w).serial ELSE @]
    IN /\ w # NONE /\ w.kind # "look"
       /\ \/ /\ w.answer = NONE
             /\ \/ Becomes(c, answered, After(w), {}, 0, Wrong(w))
                \/ May("LATE") /\ Told(c, "unknown", {w}, 1)
                \/ May("RETRY") /\ Becomes(c, a, store, {w}, 1, {})
                \/ May("THROTTLE") /\ Told(c, "throttled", {}, 1)
          \/ /\ w.answer # NONE
             /\ \/ Told(c, w.answer, {}, 0)
                \/ May("LOST") /\ Told(c, "unknown", {}, 1)
                \/ May("RETRY") /\ Becomes(c, [a EXCEPT !.out = [@ EXCEPT !.answer = NONE]],
                                           store, {}, 1, {})

(* Its process dies, and starts again as somebody else; what it had sent may yet land.           *)
Crashes(c) ==
    LET a == clients[c]
        flies == a.out # NONE /\ a.out.kind # "look" /\ a.out.answer = NONE
    IN /\ May("CRASH")
       /\ a # Newcomer(c, a.life)
       /\ a.draft # NONE => ~a.draft.sent
       /\ Becomes(c, Newcomer(c, a.life + 1), store, IF flies THEN {a.out} ELSE {}, 1, {})

(* A commit: read what is there, look at the lease, send; it lands whenever it lands.            *)
Commits(c) ==
    LET a == clients[c]
        d == a.draft
        accepted == CASE fence = "CAS" -> d.base = store.commits
                      [] fence = "TOKEN" -> d.epoch >= store.token
                      [] OTHER -> TRUE
        stale == accepted /\ d.serial < store.last_serial /\ "NO_STALE_WRITE" \in watch
        lost == accepted /\ d.base # store.commits
        wrong == IF stale THEN {"NO_STALE_WRITE"} ELSE IF lost THEN {"NO_LOST_UPDATE"} ELSE {}
        landed == IF ~accepted THEN store
                  ELSE [store EXCEPT !.commits = @ + 1, !.token = Max(@, d.epoch),
                                     !.last_serial = Max(@, d.serial)]
    IN \/ /\ d = NONE /\ Believes(c) /\ a.commits > 0
          /\ Becomes(c, [a EXCEPT !.commits = @ - 1,
                                  !.draft = [base |-> store.commits, epoch |-> a.state.grant.epoch,
                                             serial |-> a.serial, sent |-> FALSE]],
                     store, {}, 0, {})
       \/ /\ d # NONE /\ ~d.sent /\ Believes(c)
          /\ Becomes(c, [a EXCEPT !.draft = [@ EXCEPT !.sent = TRUE]], store, {}, 0, {})
       \/ /\ d # NONE /\ d.sent
          /\ Becomes(c, [a EXCEPT !.draft = NONE], landed, {}, 0, wrong)

Lands(w) ==
    /\ Accepts(w)
    /\ store' = After(w)
    /\ late' = Bury(late \ {w}, After(w), clients)
    /\ broken' = Wrong(w) \cap watch
    /\ UNCHANGED <<clients, able>>

TimePasses ==
    /\ clients' = [c \in Clients |-> Aged(clients[c])]
    /\ store' = AgedStore(store)
    /\ late' = {[w EXCEPT !.record = FixRecord(AgedRecord(@))] : w \in late}
    /\ broken' = {}
    /\ UNCHANGED able

Init ==
    /\ clients = [c \in Clients |-> Newcomer(c, 0)]
    /\ store = [record |-> NONE, version |-> NONE, modified |-> 0, top |-> 0, serial |-> 0,
                commits |-> 0, token |-> 0, last_serial |-> 0]
    /\ late = {}
    /\ able = faults
    /\ broken = {}

Next ==
    \/ \E c \in Clients : Wishes(c) \/ Reads(c) \/ Writes(c) \/ Commits(c) \/ Crashes(c)
    \/ \E w \in late : Lands(w)
    \/ TimePasses

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold.                                                                               *)

ONE_BELIEVER ==
    "ONE_BELIEVER" \in watch => \A c, d \in Clients : c # d => ~(Believes(c) /\ Believes(d))
EPOCHS_RISE == "EPOCHS_RISE" \notin broken
NO_SELF_LOSS == "NO_SELF_LOSS" \notin broken
NO_STALE_WRITE == "NO_STALE_WRITE" \notin broken
NO_LOST_UPDATE == "NO_LOST_UPDATE" \notin broken

(* A configuration can name a sequence, but not write one.                                       *)
T00 == <<0, 0>>
T01 == <<0, 1>>
T03 == <<0, 3>>
T10 == <<1, 0>>
T11 == <<1, 1>>
T20 == <<2, 0>>
T21 == <<2, 1>>
T22 == <<2, 2>>
T31 == <<3, 1>>
T40 == <<4, 0>>
T000 == <<0, 0, 0>>
T110 == <<1, 1, 0>>
T111 == <<1, 1, 1>>
================================================================================
