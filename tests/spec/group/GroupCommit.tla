----------------------------- MODULE GroupCommit -----------------------------
(* Group commit of lockkit: the decision of lockkit/table/occ/group/decision.py and the reach rule of
   lockkit/table/occ/group, with writers, a combiner, a table service and readers.

   Each request is one step. So a delay or a crash is another order of steps: a dead client takes no
   further step. If the answer to a replacement of the fence is lost, the replacement is put into
   `late`. It may land at any later step, or never.

   The model has no object for the fence. `log` has every decision ever made, and the fence's window
   is log[first..Len(log)]. Each replacement adds a decision, so Len(log) is also the fence's version.
   A client that has read the fence knows it as a pair of numbers.

   `mistake` names one rule that is switched off; "" is none. The model leaves out slots, schemas,
   requests of a publisher that arrive after archiving, back-pressure, and liveness.              *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    version,      \* of the table: 6 or 9
    instants,     \* their number
    writes,       \* for each writer its file group, and 0 for an append into a new one
    ahead,        \* whether appends reserve their instant without a listing after it
    among,        \* whether writers act as among others: see `OffersBeside` and `ListsAtKnown`
    window_max,   \* decisions that the fence keeps
    faults,       \* replacements of the fence that are not answered
    elsewhere,    \* decisions about other instants, which are over at once
    combiner, service, reader, pulls,   \* whether there is one
    archiver, mode,   \* whether there is one; whether the table's mode is switched, and back
    mistake

VARIABLES
    log,          \* all decisions: instant, kind, and the number of the first one of its round
    first,        \* the first decision in the fence's window
    objects,      \* for each instant, what the store has of it
    clients,      \* what each knows, and what it does next
    late,         \* unanswered replacements of the fence
    able,         \* faults left
    others,       \* decisions about other instants that may still be made
    acked, denied, passed, broken

vars == <<log, first, objects, clients, late, able, others, acked, denied, passed, broken>>

Instants == 1..instants
Writers == DOMAIN writes
COMBINER == 11
SERVICE == 12
READER == 13
ARCHIVER == 14
Clients == Writers \cup (IF combiner THEN {COMBINER} ELSE {}) \cup (IF service THEN {SERVICE} ELSE {})
           \cup (IF reader THEN {READER} ELSE {}) \cup (IF archiver THEN {ARCHIVER} ELSE {})
NOTHING == -1                            \* no fence read, or nothing offered
TOMB == -2                               \* an offer that the fence has decided against
COMMIT == "commit"
ELSEWHERE == "elsewhere"                 \* about an instant that does not matter here
ARCHIVED == "archived"                   \* nothing up to `group` is decided any more
SWITCHED == "switched"                   \* the same, after the mode was switched and back
MARKS == {ELSEWHERE, ARCHIVED, SWITCHED}

Right(rule) == mistake # rule
Max(a, b) == IF a > b THEN a ELSE b
Greatest(S) == IF S = {} THEN 0 ELSE CHOOSE a \in S : \A b \in S : b <= a
Least(S) == CHOOSE a \in S : \A b \in S : a <= b

-----------------------------------------------------------------------------
(* The decision: lockkit.table.occ.group.decision, function by function. A fence is a record with `first`
   and `window`; an offer has `t`, `base`, `group` (0: blind) and `reserved`.                    *)

Commits(window) == {window[i].t : i \in {j \in DOMAIN window : window[j].kind = COMMIT}}

Reaches(from, known) == from <= known + 1

IsLate(newest, offer, timely) ==
    Right("late") /\ ~(newest < offer.t \/ offer.reserved \/ offer.t \in timely)

Conflicts(from, window, offer) ==
    /\ Right("no conflict") /\ offer.group # 0
    /\ \E i \in DOMAIN window : /\ window[i].kind = COMMIT /\ window[i].group = offer.group
                                /\ from + i - 1 > offer.base

MayJudge(from, offer) == offer.group = 0 \/ ~Right("unreached") \/ Reaches(from, offer.base)

Judge(from, window, newest, offer, timely, round) ==
    LET why == IF IsLate(newest, offer, timely) THEN "late"
               ELSE IF Conflicts(from, window, offer) THEN "conflict" ELSE COMMIT
    IN [t |-> offer.t, kind |-> why, group |-> offer.group, round |-> round]

(* The decisions that follow those of the window, in the order of the offers' instants.          *)
RECURSIVE Decided(_, _, _, _, _, _)
Decided(from, window, newest, offers, timely, round) ==
    IF offers = {} THEN <<>>
    ELSE LET next == CHOOSE o \in offers : \A p \in offers : o.t <= p.t
             rest == offers \ {next}
             before == IF Right("batch") THEN window
                       ELSE SelectSeq(window, LAMBDA each : each.round # round)
             entry == Judge(from, before, newest, next, timely, round)
             newer == IF entry.kind = COMMIT THEN Max(newest, next.t) ELSE newest
         IN IF ~MayJudge(from, next) THEN Decided(from, window, newest, rest, timely, round)
            ELSE <<entry>> \o Decided(from, Append(window, entry), newer, rest, timely, round)

-----------------------------------------------------------------------------
(* What a client knows.                                                                          *)

Window(fence) == SubSeq(log, fence.first, fence.last)
Fence == [first |-> first, last |-> Len(log)]
NewestOf(last) == Greatest(Commits(SubSeq(log, 1, last)))
GroupOf(t) == writes[objects[t].inflight]

(* Up to which instant a fence decides nothing: `archived` and `since` of the code's fence.       *)
UpTo(kind, last) == Greatest({log[i].group : i \in {j \in 1..last : log[j].kind = kind}})
Over(last) == Max(UpTo(ARCHIVED, last), IF Right("since") THEN UpTo(SWITCHED, last) ELSE 0)
MayDecide(last, t) == t > Over(last) \/ ~Right("decides archived")

Listed == {t \in Instants : ~objects[t].gone}
Listing == [done |-> {t \in Listed : objects[t].done},
            pending |-> {t \in Listed : (objects[t].requested # 0 \/ objects[t].inflight # 0)
                                        /\ ~objects[t].done},
            started |-> {t \in Listed : objects[t].inflight # 0},
            offers |-> [t \in Instants |-> IF t \in Listed THEN objects[t].offer ELSE NOTHING]]
NO_LISTING == [done |-> {}, pending |-> {}, started |-> {}, offers |-> <<>>]

(* A client that looks reads the fence and the listing in parallel, so in either order. If the
   window no longer continues what the client knew, it lists again.                              *)
HasGap(before, fence) == ~Reaches(fence.first, before.last)
Reach(c) == Right(IF c = READER THEN "reader's reach" ELSE IF c = COMBINER THEN "reach"
                  ELSE "owner's reach")

Looks(a, goal) == [a EXCEPT !.pc = "look", !.goal = goal, !.before = a.known,
                            !.fence = [first |-> 0, last |-> NOTHING], !.list = NO_LISTING,
                            !.listed_now = FALSE]
Ready(a) == IF a.fence.last # NOTHING /\ a.listed_now
            THEN [a EXCEPT !.pc = a.goal, !.known = a.fence] ELSE a

ReadsFence(c) ==
    LET a == clients[c]
        again == Reach(c) /\ HasGap(a.before, Fence)
    IN /\ a.pc = "look" /\ a.fence.last = NOTHING
       /\ clients' = [clients EXCEPT ![c] = Ready([a EXCEPT !.fence = Fence,
                          !.listed_now = IF again THEN FALSE ELSE @,
                          !.list = IF again THEN NO_LISTING ELSE @])]
       /\ UNCHANGED <<log, first, objects, late, able, others, acked, denied, passed, broken>>

Lists(c) ==
    LET a == clients[c] IN
    /\ a.pc = "look" /\ ~a.listed_now
    /\ clients' = [clients EXCEPT ![c] = Ready([a EXCEPT !.list = Listing, !.listed_now = TRUE])]
    /\ UNCHANGED <<log, first, objects, late, able, others, acked, denied, passed, broken>>

(* Of both windows: what the listing is too old to show is in one of them.                       *)
Known(a, t) ==
    LET of(fence) == {Window(fence)[i].kind : i \in {j \in 1..(fence.last - fence.first + 1) :
                                                     Window(fence)[j].t = t}}
    IN of(a.fence) \cup (IF Right("forgets") THEN of(a.before) ELSE {})

(* "" is: not decided at this fence.                                                             *)
Outcome(a, t) ==
    IF Known(a, t) # {} THEN CHOOSE k \in Known(a, t) : TRUE
    ELSE IF t \in a.list.done THEN COMMIT
    ELSE IF a.list.offers[t] = TOMB THEN "refused"
    ELSE IF t > Over(a.fence.last) \/ ~Right("decides archived") THEN ""
    ELSE IF objects[t].done /\ (~objects[t].gone \/ Right("no archive")) THEN COMMIT
    ELSE "refused"                       \* neither the timeline has it, nor the archive

Committed(a) == a.list.done \cup Commits(Window(a.fence)) \cup Commits(Window(a.before))

IsOpen(a, t) == /\ t \in a.list.started /\ Known(a, t) = {}
                /\ Right("ignores completed") => t \notin a.list.done

OpenOffers(a) ==
    LET tombs == IF Right("tombstone is an offer") THEN {} ELSE {TOMB}
        open == {t \in Instants : /\ IsOpen(a, t)
                                  /\ a.list.offers[t] >= 0 \/ a.list.offers[t] \in tombs}
    IN {[t |-> t, base |-> IF a.list.offers[t] = TOMB THEN a.fence.last ELSE a.list.offers[t],
         group |-> GroupOf(t), reserved |-> TRUE] : t \in {u \in open : objects[u].inflight # 0}}

Timely(a) == {t \in a.list.pending : t > Greatest(a.list.done)}

-----------------------------------------------------------------------------
(* Replacing the fence. A decision leaves the window once its outcome file is there; a client need
   not know that, so it removes any number of those.                                             *)

IsProven(entry) ==
    IF entry.kind \in MARKS THEN TRUE
    ELSE IF entry.kind = COMMIT THEN objects[entry.t].done \/ ~Right("evicts commits")
    ELSE objects[entry.t].offer = TOMB \/ ~Right("evicts refusals")

MayLeave(from, last) == {k \in 0..Max(0, last - from + 1 - window_max) :
                         \A i \in from..(from + k - 1) : i <= Len(log) /\ IsProven(log[i])}

(* `yes` and `no` are the client after either answer. Without one it knows as much as after `no`. *)
Replaces(c, fence, entries, leave, yes, no) ==
    LET request == [last |-> fence.last, entries |-> entries, first |-> fence.first + leave]
        applied == fence.last = Len(log)
    IN /\ entries # <<>>
       /\ \/ /\ applied
             /\ log' = log \o entries /\ first' = request.first
             /\ clients' = [clients EXCEPT ![c] = yes]
             /\ UNCHANGED <<late, able>>
          \/ /\ ~applied
             /\ clients' = [clients EXCEPT ![c] = no]
             /\ UNCHANGED <<log, first, late, able>>
          \/ /\ applied /\ able > 0
             /\ able' = able - 1 /\ late' = late \cup {request}
             /\ clients' = [clients EXCEPT ![c] = no]
             /\ UNCHANGED <<log, first>>
       /\ UNCHANGED <<others, objects, acked, denied, passed, broken>>

Lands(request) ==
    /\ request.last = Len(log)
    /\ log' = log \o request.entries /\ first' = request.first
    /\ late' = {each \in late : each.last > request.last}
    /\ UNCHANGED <<objects, clients, able, others, acked, denied, passed, broken>>

(* Another client decides about an instant that does not matter here, and has its outcome proven. *)
DecidesElsewhere ==
    /\ others > 0 /\ others' = others - 1
    /\ log' = Append(log, [t |-> 0 - Len(log), kind |-> ELSEWHERE, group |-> 0, round |-> Len(log) + 1])
    /\ \E leave \in MayLeave(first, Len(log) + 1) : first' = first + leave
    /\ UNCHANGED <<objects, clients, late, able, acked, denied, passed, broken>>

NewFence(fence, entries, leave) ==
    [first |-> fence.first + leave, last |-> fence.last + Len(entries)]

(* Decide these offers over this fence, and go on from one of two states.                        *)
DecidesOnce(c, fence, offers, timely, yes, no) ==
    LET round == fence.last + 1
        open == {each \in offers : MayDecide(fence.last, each.t)}
        entries == Decided(fence.first, Window(fence), NewestOf(fence.last), open, timely, round)
    IN \E leave \in MayLeave(fence.first, fence.last + Len(entries)) :
          Replaces(c, fence, entries, leave,
                   [yes EXCEPT !.known = NewFence(fence, entries, leave)], no)

-----------------------------------------------------------------------------
(* A writer. It writes once.                                                                     *)

Moves(c, after) == clients' = [clients EXCEPT ![c] = after]
Rest == UNCHANGED <<log, first, late, able, others, passed, broken>>
Answered(c, kind) ==
    LET t == clients[c].t IN
    IF kind = COMMIT THEN acked' = acked \cup {t} /\ UNCHANGED denied
    ELSE denied' = denied \cup {t} /\ UNCHANGED acked
Quiet == UNCHANGED <<acked, denied>>
Ended(a) == [a EXCEPT !.pc = "end", !.list = NO_LISTING, !.listed_now = FALSE]

Own(c) == LET a == clients[c] IN
    [t |-> a.t, base |-> a.base, group |-> writes[c], reserved |-> a.listed]
Blind(c) == writes[c] = 0
Unlisted == ~Right("unlisted")

Reserves(c) ==
    LET a == clients[c] IN
    \/ /\ a.pc = "idle" /\ Unlisted
       /\ Moves(c, Looks(a, "pick")) /\ Rest /\ Quiet /\ UNCHANGED objects
    \/ /\ a.pc = IF Unlisted THEN "pick" ELSE "idle"
       /\ \E t \in Instants :
          /\ Right("below") => t > NewestOf(a.known.last)
          /\ objects[t].requested = 0 \/ ~Right("unreserved")
          /\ objects' = [objects EXCEPT ![t].requested = IF @ = 0 THEN c ELSE @]
          /\ LET taken == [a EXCEPT !.t = t, !.base = a.known.last,
                                    !.horizon = UpTo(ARCHIVED, a.known.last)] IN
             Moves(c, IF ahead /\ Blind(c) THEN [taken EXCEPT !.listed = FALSE, !.pc = "send"]
                      ELSE IF Unlisted THEN [taken EXCEPT !.seen = Committed(a), !.pc = "send"]
                      ELSE Looks(taken, "reserved"))
       /\ Rest /\ Quiet

(* An update may do so, too: its snapshot is then all that a fence decided which it knows, from a
   decision of its own at any earlier time.                                                      *)
ReservesAhead(c) ==
    LET a == clients[c] IN
    /\ a.pc = "idle" /\ ahead /\ ~Blind(c)
    /\ \E known \in {a.known, Fence} : \E t \in Instants :
          /\ t > NewestOf(known.last) /\ objects[t].requested = 0
          /\ objects' = [objects EXCEPT ![t].requested = c]
          /\ Moves(c, [a EXCEPT !.t = t, !.known = known, !.listed = FALSE, !.pc = "send",
                                !.base = known.last,
                                !.seen = IF Right("lacks the window")
                                         THEN Commits(SubSeq(log, 1, known.last)) ELSE {},
                                !.horizon = UpTo(ARCHIVED, known.last)])
    /\ Rest /\ Quiet

Archived(last) == {t \in 1..UpTo(ARCHIVED, last) : objects[t].done}

(* The snapshot is made after the reservation. The instant must be undecided and not passed.     *)
HasReserved(c) ==
    LET a == clients[c]
        over == Right("ended reservation") /\ Outcome(a, a.t) # ""
        is_passed == /\ Right("passed") /\ Right("below")
                     /\ Max(Greatest(Committed(a)), NewestOf(a.fence.last)) >= a.t
    IN /\ a.pc = "reserved"
       /\ IF over \/ is_passed
          THEN /\ Moves(c, Ended(a))
               /\ objects' = [objects EXCEPT ![a.t].requested = IF @ = c THEN 0 ELSE @]
          ELSE /\ Moves(c, [a EXCEPT !.pc = "send", !.base = a.fence.last,
                                     !.seen = Committed(a) \cup Archived(a.fence.last),
                                     !.horizon = UpTo(ARCHIVED, a.fence.last)])
               /\ UNCHANGED objects
       /\ Rest /\ Quiet

(* The data and the inflight file, in parallel. The other's inflight file ends this write.       *)
Sends(c) ==
    LET a == clients[c]
        taken == objects[a.t].inflight \notin {0, c}
        first_data == Right("data first")
    IN /\ a.pc = "send"
       /\ objects' = [objects EXCEPT ![a.t].inflight = IF taken THEN @ ELSE c,
                                     ![a.t].data = IF first_data THEN @ \cup {c} ELSE @]
       /\ Moves(c, IF taken THEN Ended(a)
                   ELSE [a EXCEPT !.pc = IF first_data THEN "try" ELSE "put offer"])
       /\ Rest /\ Quiet

SendsLast(c) ==                          \* the mistake: data after the offer
    LET a == clients[c] IN
    /\ a.pc = "send last"
    /\ objects' = [objects EXCEPT ![a.t].data = @ \cup {c}]
    /\ Moves(c, Looks(a, "turn")) /\ Rest /\ Quiet

(* An update whose fence was read beside its reservation lists while it sends its files: it decides
   by both, or offers on what that fence had.                                                    *)
ListsBeside(c) ==
    LET a == clients[c]
        b == [a EXCEPT !.list = Listing, !.fence = a.known, !.before = a.known, !.listed = TRUE]
    IN /\ a.pc = "try" /\ ~a.listed /\ ~Blind(c)
       /\ IF Right("listed beside") /\ Greatest(b.list.done) > a.t
          THEN Moves(c, Looks(a, "withdraw"))
          ELSE \E next \in {"together", "put offer"} : Moves(c, [b EXCEPT !.pc = next])
       /\ Rest /\ Quiet /\ UNCHANGED objects

(* An append of a writer that was idle is offered in parallel with its replacement of the fence: the
   offer lands before that is carried out or after. Both name one instant.                       *)
OffersBeside(c) ==
    LET a == clients[c]
        sent == a.pc \in {"try", "together"} \/ (a.pc \in {"won", "end"} /\ a.t \in Commits(log))
    IN /\ among /\ Blind(c) /\ sent /\ (a.listed \/ ~Right("offered unlisted"))
       /\ objects[a.t].offer = NOTHING
       /\ objects' = [objects EXCEPT ![a.t].offer = a.base]
       /\ UNCHANGED clients /\ Rest /\ Quiet

(* A client that has just read the fence lists alone: the first of several rewrites once the others
   have offered, and the owner of an offer that read the fence while it waited. What left the window
   before has its outcome in this listing.                                                       *)
ReadsAtKnown(c) ==
    LET a == clients[c]
        b == [a EXCEPT !.pc = "at known", !.goal = a.pc, !.list = NO_LISTING] IN
    /\ among /\ ~Blind(c) /\ a.pc \in {"together", "turn"}
    /\ Moves(c, IF a.pc = "together" THEN b
                ELSE IF Right("lists, then reads") THEN [b EXCEPT !.known = Fence]
                ELSE [b EXCEPT !.list = Listing])
    /\ Rest /\ Quiet /\ UNCHANGED objects

ListsAtKnown(c) ==
    LET a == clients[c]
        known == IF a.list = NO_LISTING THEN a.known ELSE Fence
        list == IF a.list = NO_LISTING THEN Listing ELSE a.list
    IN /\ a.pc = "at known"
       /\ Moves(c, [a EXCEPT !.pc = a.goal, !.list = list, !.known = known, !.fence = known,
                             !.before = known])
       /\ Rest /\ Quiet /\ UNCHANGED objects

(* After a replacement of the fence without success.                                             *)
Lost(c, a) ==
    IF ~Right("412 refuses") THEN [a EXCEPT !.pc = "deny"]
    ELSE IF ~a.listed THEN Looks(a, "list first")
    ELSE IF Blind(c) THEN [a EXCEPT !.pc = "put offer"]
    ELSE Looks(a, "see")

(* Over the fence that it knows, alone; with what a listing shows as offered; or it offers at
   once, where others commit too.                                                                *)
Tries(c) ==
    LET a == clients[c]
        in_order == a.listed \/ NewestOf(a.known.last) < a.t \/ ~Right("late")
        alone == /\ in_order /\ Reaches(a.known.first, a.base)
                 /\ \A i \in a.known.first..a.known.last : log[i].t # a.t
    IN /\ a.pc = "try"
       /\ \/ /\ alone
             /\ DecidesOnce(c, a.known, {Own(c)}, {}, [a EXCEPT !.pc = "won"], Lost(c, a))
          \/ /\ a.listed
             /\ \/ Moves(c, Looks(a, "together"))
                \/ Moves(c, IF Blind(c) THEN [a EXCEPT !.pc = "put offer"] ELSE Looks(a, "see"))
             /\ Rest /\ Quiet /\ UNCHANGED objects
          \/ /\ ~a.listed /\ a.known # Fence    \* another thread of its process has read the fence
             /\ Moves(c, [a EXCEPT !.known = Fence]) /\ Rest /\ Quiet /\ UNCHANGED objects

(* In version 9 the base is raised to the last decision that the owner's snapshot has.           *)
Raised(a) ==
    LET seen == {i \in a.fence.first..a.fence.last : log[i].kind = COMMIT /\ log[i].t \in a.seen}
    IN [a EXCEPT !.base = IF version = 9 THEN Max(@, Greatest(seen)) ELSE @]

Together(c) ==
    LET a == Raised(clients[c])
        own == [Own(c) EXCEPT !.base = a.base]
    IN /\ a.pc = "together"
       /\ IF Outcome(a, a.t) # ""
          THEN Moves(c, Ended(a)) /\ Answered(c, Outcome(a, a.t)) /\ Rest /\ UNCHANGED objects
          ELSE IF MayJudge(a.fence.first, own)
          THEN DecidesOnce(c, a.fence, OpenOffers(a) \cup {own}, Timely(a),
                           [a EXCEPT !.pc = "won"], Lost(c, a))
          ELSE Moves(c, Lost(c, a)) /\ Rest /\ Quiet /\ UNCHANGED objects

Wins(c) ==                               \* its own replacement decided on its instant
    LET a == clients[c]
        kind == CHOOSE k \in {log[i].kind : i \in {j \in DOMAIN log : log[j].t = a.t}} : TRUE
    IN /\ a.pc = "won"
       /\ Moves(c, Ended(a)) /\ Answered(c, kind) /\ Rest /\ UNCHANGED objects

Denies(c) ==                             \* mistakes end here: "not committed" without a decision
    LET a == clients[c] IN
    /\ a.pc = "deny"
    /\ Moves(c, Ended(a)) /\ Answered(c, "refused") /\ Rest /\ UNCHANGED objects

(* What was reserved without a listing is offered only if no later instant is completed.         *)
ListsFirst(c) ==
    LET a == clients[c] IN
    /\ a.pc = "list first"
    /\ IF Outcome(a, a.t) # "" THEN Moves(c, Ended(a)) /\ Answered(c, Outcome(a, a.t))
       ELSE /\ Quiet
            /\ Moves(c, IF Right("listed") /\ Greatest(a.list.done) >= a.t
                        THEN [a EXCEPT !.pc = "withdraw"]
                        ELSE [a EXCEPT !.pc = "put offer", !.listed = TRUE])
    /\ Rest /\ UNCHANGED objects

Sees(c) ==
    LET a == Raised(clients[c])
        none == Outcome(a, a.t) = ""
    IN /\ a.pc = "see"
       /\ Moves(c, [a EXCEPT !.pc = IF ~Right("outcome first") /\ none THEN "deny" ELSE "put offer"])
       /\ Rest /\ Quiet /\ UNCHANGED objects

Offers(c) ==
    LET a == clients[c] IN
    /\ a.pc = "put offer"
    /\ objects' = [objects EXCEPT ![a.t].offer = IF @ = NOTHING THEN a.base ELSE @]
    /\ IF Right("acknowledges offers")
       THEN Quiet /\ Moves(c, IF Right("data first") THEN Looks(a, "turn")
                              ELSE [a EXCEPT !.pc = "send last"])
       ELSE Moves(c, Ended(a)) /\ Answered(c, COMMIT)
    /\ Rest

MissedConflict(c) ==
    LET a == clients[c]
        unseen == {t \in Committed(a) \ (a.seen \cup {a.t}) : objects[t].inflight # 0
                                                             /\ ~objects[t].gone}
        hidden == Right("raises over archived") /\ UpTo(ARCHIVED, a.fence.last) > a.horizon
    IN Right("re-base") /\ ~Blind(c) /\ (hidden \/ \E t \in unseen : GroupOf(t) = writes[c])

Turns(c) ==
    LET a == clients[c] IN
    /\ a.pc = "turn"
    /\ IF Outcome(a, a.t) # ""
       THEN Moves(c, Ended(a)) /\ Answered(c, Outcome(a, a.t)) /\ Rest /\ UNCHANGED objects
       ELSE \/ /\ ~MayJudge(a.fence.first, Own(c))
               /\ IF MissedConflict(c)
                  THEN Moves(c, [a EXCEPT !.pc = "withdraw"]) /\ UNCHANGED objects
                  ELSE /\ Moves(c, [a EXCEPT !.base = a.fence.last])
                       /\ objects' = [objects EXCEPT ![a.t].offer = IF @ = TOMB THEN @
                                                                    ELSE a.fence.last]
               /\ Rest /\ Quiet
            \/ /\ MayJudge(a.fence.first, Own(c))
               /\ DecidesOnce(c, a.fence, OpenOffers(a) \cup {Own(c)}, Timely(a),
                              [a EXCEPT !.pc = "won"], Looks(a, "turn"))
            \/ /\ Moves(c, [a EXCEPT !.pc = IF Right("stops waiting") THEN "withdraw" ELSE "deny"])
               /\ Rest /\ Quiet /\ UNCHANGED objects

Refusal(c, a, kind) == <<[t |-> a.t, kind |-> kind, group |-> 0, round |-> a.fence.last + 1]>>

Withdraws(c) ==
    LET a == clients[c] IN
    /\ a.pc = "withdraw"
    /\ IF Outcome(a, a.t) # ""
       THEN Moves(c, Ended(a)) /\ Answered(c, Outcome(a, a.t)) /\ Rest /\ UNCHANGED objects
       ELSE Replaces(c, a.fence, Refusal(c, a, "withdrawn"), 0,
                     [a EXCEPT !.pc = "won", !.known = NewFence(a.fence, <<0>>, 0)],
                     Looks(a, "withdraw"))

-----------------------------------------------------------------------------
(* A combiner decides what is offered, again and again. A service rolls instants back, also those
   of living writers: fence, listing, decision, tombstone, deletion.                             *)

Combines ==
    LET a == clients[COMBINER]
        idle == [a EXCEPT !.pc = "idle", !.list = NO_LISTING, !.listed_now = FALSE,
                          !.fence = [first |-> 0, last |-> NOTHING], !.before = @]
    IN \/ /\ a.pc = "idle"
          /\ Moves(COMBINER, Looks(a, "combine")) /\ Rest /\ Quiet /\ UNCHANGED objects
       \/ /\ a.pc = "combine"
          /\ IF OpenOffers(a) = {} THEN Moves(COMBINER, idle) /\ Rest /\ Quiet /\ UNCHANGED objects
             ELSE DecidesOnce(COMBINER, a.fence, OpenOffers(a), Timely(a), idle, idle)

(* The order of the steps after `pc`, by mistake.                                                *)
NextStep(pc) ==
    CASE mistake = "tombstone first" ->
            (CASE pc = "fence" -> "list" [] pc = "list" -> "bury" [] pc = "bury" -> "delete"
               [] pc = "delete" -> "decide" [] OTHER -> "end")
      [] mistake = "no entry" ->
            (CASE pc = "fence" -> "list" [] pc = "list" -> "bury" [] pc = "bury" -> "delete"
               [] OTHER -> "end")
      [] mistake = "lists first" ->
            (CASE pc = "list" -> "fence" [] pc = "fence" -> "decide" [] pc = "decide" -> "bury"
               [] pc = "bury" -> "delete" [] OTHER -> "end")
      [] OTHER ->
            (CASE pc = "fence" -> "list" [] pc = "list" -> "decide" [] pc = "decide" -> "bury"
               [] pc = "bury" -> "delete" [] OTHER -> "end")

RollsBack ==
    LET a == clients[SERVICE]
        t == a.t
        next == [a EXCEPT !.pc = NextStep(a.pc)]
        still == UNCHANGED objects /\ Rest /\ Quiet
    IN \/ /\ a.pc = "idle" /\ \E u \in Listing.pending :
              Moves(SERVICE, [a EXCEPT !.t = u,
                                       !.pc = IF mistake = "lists first" THEN "list" ELSE "fence"])
          /\ still
       \/ a.pc = "fence" /\ Moves(SERVICE, [next EXCEPT !.fence = Fence]) /\ still
       \/ /\ a.pc = "list" /\ still
          /\ Moves(SERVICE, IF t \in Listing.pending /\ (mistake = "lists first" \/ Outcome([a EXCEPT
                                  !.list = Listing], t) # COMMIT)
                            THEN [next EXCEPT !.list = Listing] ELSE Ended(a))
       \/ /\ a.pc = "decide"
          /\ IF Outcome(a, t) = COMMIT THEN Moves(SERVICE, Ended(a)) /\ still
             ELSE IF Outcome(a, t) # "" THEN Moves(SERVICE, next) /\ still
             ELSE Replaces(SERVICE, a.fence, Refusal(SERVICE, a, "rollback"), 0, next,
                           IF Right("unproven") THEN Ended(a) ELSE next)
       \/ /\ a.pc = "bury"
          /\ objects' = [objects EXCEPT ![t].offer = TOMB] /\ Moves(SERVICE, next) /\ Rest /\ Quiet
       \/ /\ a.pc = "delete"
          /\ objects' = [objects EXCEPT ![t].data = {}, ![t].inflight = 0, ![t].requested = 0]
          /\ Moves(SERVICE, next) /\ Rest /\ Quiet

-----------------------------------------------------------------------------
(* An archiver lists, then closes the fence up to a published instant, if nothing up to there is
   pending and each decision about it is proven and leaves the window. Then it moves the instants
   to the archive, one by one. `gone` is an instant that the timeline no longer has.             *)

Archives ==
    LET a == clients[ARCHIVER]
        still == UNCHANGED objects /\ Rest /\ Quiet
        idle == [a EXCEPT !.pc = "idle", !.list = NO_LISTING, !.listed_now = FALSE]
        mark(until) == [t |-> 0 - a.fence.last, kind |-> ARCHIVED, group |-> until,
                        round |-> a.fence.last + 1]
        named(until) == {i \in a.fence.first..a.fence.last :
                         log[i].t <= until /\ log[i].kind \notin MARKS}
    IN \/ /\ a.pc = "idle" /\ a.t = 0 /\ Moves(ARCHIVER, Looks(a, "close")) /\ still
       \/ /\ a.pc = "close"
          /\ \/ Moves(ARCHIVER, idle) /\ still
             \/ \E until \in a.list.done :
                   LET leave == Greatest(named(until)) IN
                   /\ \A t \in a.list.pending : t > until
                   /\ \A i \in a.fence.first..leave : IsProven(log[i])
                   /\ Replaces(ARCHIVER, a.fence, <<mark(until)>>, Max(0, leave - a.fence.first + 1),
                               [idle EXCEPT !.pc = "move", !.t = until], idle)
       \/ /\ a.pc = "move"
          /\ \E t \in 1..a.t : /\ ~objects[t].gone
                                /\ objects' = [objects EXCEPT ![t].gone = TRUE]
          /\ UNCHANGED clients /\ Rest /\ Quiet

(* The fence is closed, and all it decided is published. In the other mode a writer may commit, and
   pending instants may be rolled back. Then a fence of this mode goes on, with an empty window.  *)
Switches ==
    LET begun == {t \in Instants : objects[t].requested # 0 \/ objects[t].inflight # 0}
        mark(at, until) == [t |-> 0 - at, kind |-> SWITCHED, group |-> until, round |-> at + 1]
        rolled == [t \in Instants |-> [objects[t] EXCEPT !.requested = 0, !.inflight = 0,
                                                        !.data = {}, !.offer = NOTHING]]
    IN /\ mode /\ \A i \in DOMAIN log : log[i].kind # SWITCHED
       /\ \A i \in first..Len(log) : IsProven(log[i])
       /\ \E back \in SUBSET Listing.pending :
             LET left == [t \in Instants |-> IF t \in back THEN rolled[t] ELSE objects[t]] IN
             \/ /\ log' = Append(log, mark(Len(log), Greatest(begun)))
                /\ objects' = left /\ UNCHANGED <<clients, acked>>
             \/ \E c \in Writers : \E t \in Instants :
                   /\ clients[c].pc = "idle" /\ t > Greatest(begun)
                   /\ log' = log \o <<[t |-> t, kind |-> COMMIT, group |-> writes[c],
                                       round |-> Len(log) + 1], mark(Len(log) + 1, t)>>
                   /\ objects' = [left EXCEPT ![t] = [@ EXCEPT !.requested = c, !.inflight = c,
                                                              !.data = {c}, !.done = TRUE]]
                   /\ clients' = [clients EXCEPT ![c] = Ended([@ EXCEPT !.t = t,
                                                                        !.seen = Commits(log)])]
                   /\ acked' = acked \cup {t}
       /\ first' = Len(log') + 1
       /\ UNCHANGED <<late, able, others, denied, passed, broken>>

-----------------------------------------------------------------------------
(* Publishing, by any client that reads the fence: a round after every earlier round; in version 9
   one decision after the other.                                                                 *)

IsPublished(i) == log[i].kind = COMMIT => objects[log[i].t].done
Before(i, j) == IF version = 9 /\ Right("published together") THEN i < j
                ELSE log[i].round < log[j].round

Publishes ==
    \E i \in first..Len(log) :
       LET t == log[i].t
           behind == IF version = 9 THEN i < passed ELSE t <= passed
       IN /\ log[i].kind = COMMIT /\ ~objects[t].done /\ objects[t].inflight # 0
          /\ Right("any order") => \A j \in first..Len(log) : Before(j, i) => IsPublished(j)
          /\ objects' = [objects EXCEPT ![t].done = TRUE]
          /\ broken' = broken \cup (IF behind THEN {"BEHIND_NOBODY"} ELSE {})
          /\ UNCHANGED <<log, first, clients, late, able, others, acked, denied, passed>>

Buries ==
    \E i \in first..Len(log) :
       /\ log[i].kind \notin {COMMIT} \cup MARKS /\ objects[log[i].t].offer # TOMB
       /\ objects' = [objects EXCEPT ![log[i].t].offer = TOMB]
       /\ UNCHANGED <<log, first, clients, late, able, others, acked, denied, passed, broken>>

(* A reader of increments: in version 6 up to the first pending instant, by the listing alone; in
   version 9 up to the last completion time, here the number of the decision.                    *)
Pulls ==
    LET tail == IF Right("tail") THEN {} ELSE Commits(Window(Fence))
        done == Listing.done \cup tail
        pending == Listing.pending \ tail
        six == Greatest({t \in done : \A p \in pending : t < p})
        nine == Greatest({i \in DOMAIN log : log[i].kind = COMMIT /\ log[i].t \in done})
        to == IF version = 9 THEN nine ELSE six
    IN /\ pulls /\ to > passed
       /\ passed' = to
       /\ UNCHANGED <<log, first, objects, clients, late, able, others, acked, denied, broken>>

ReadsSnapshot ==
    LET a == clients[READER]
        seen == IF Right("no tail") THEN Committed(a) ELSE a.list.done
        all == Commits(SubSeq(log, 1, a.fence.last)) \ Archived(a.fence.last)
    IN \/ /\ a.pc = "idle" /\ Moves(READER, Looks(a, "read")) /\ Rest /\ Quiet /\ UNCHANGED objects
       \/ /\ a.pc = "read"
          /\ broken' = broken \cup (IF all \ seen # {} \/ seen \ Commits(log) # {}
                                    THEN {"WHOLE"} ELSE {})
          /\ Moves(READER, [a EXCEPT !.pc = "idle", !.list = NO_LISTING, !.listed_now = FALSE])
          /\ UNCHANGED <<log, first, objects, late, able, others, acked, denied, passed>>

-----------------------------------------------------------------------------
Newcomer == [pc |-> "idle", goal |-> "", t |-> 0, known |-> [first |-> 1, last |-> 0],
             before |-> [first |-> 1, last |-> 0], fence |-> [first |-> 0, last |-> NOTHING],
             list |-> NO_LISTING, listed_now |-> FALSE, base |-> 0, seen |-> {}, horizon |-> 0,
             listed |-> TRUE]

Init ==
    /\ log = <<>> /\ first = 1 /\ late = {} /\ able = faults /\ others = elsewhere
    /\ objects = [t \in Instants |-> [requested |-> 0, data |-> {}, inflight |-> 0,
                                      offer |-> NOTHING, done |-> FALSE, gone |-> FALSE]]
    /\ clients = [c \in Clients |-> Newcomer]
    /\ acked = {} /\ denied = {} /\ passed = 0 /\ broken = {}

Writes(c) == \/ Reserves(c) \/ ReservesAhead(c) \/ HasReserved(c) \/ Sends(c) \/ SendsLast(c) \/ Tries(c)
             \/ ListsBeside(c) \/ OffersBeside(c) \/ ReadsAtKnown(c) \/ ListsAtKnown(c) \/ Together(c) \/ Wins(c) \/ Denies(c) \/ ListsFirst(c) \/ Sees(c) \/ Offers(c)
             \/ Turns(c) \/ Withdraws(c)

Next ==
    \/ \E c \in Clients : ReadsFence(c) \/ Lists(c)
    \/ \E c \in Writers : Writes(c)
    \/ combiner /\ Combines
    \/ service /\ RollsBack
    \/ reader /\ ReadsSnapshot
    \/ archiver /\ Archives
    \/ Switches
    \/ \E request \in late : Lands(request)
    \/ Publishes \/ Buries \/ Pulls \/ DecidesElsewhere

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold.                                                                               *)

(* An instant is decided at most once.                                                           *)
ONCE == \A i, j \in DOMAIN log : i # j => log[i].t # log[j].t

(* What was acknowledged is a commit, and every commit has its files.                            *)
KEPT == /\ acked \subseteq Commits(log)
        /\ \A t \in Commits(log) : objects[t].inflight # 0 /\ objects[t].inflight \in objects[t].data

NO_MEANS_NO == denied \cap Commits(log) = {}

(* Of two commits to one file group, the later had seen the earlier, and sorts after it.         *)
NO_LOST_UPDATE ==
    \A i, j \in DOMAIN log :
       LET a == log[i]
           b == log[j]
       IN (i < j /\ a.kind = COMMIT /\ b.kind = COMMIT /\ a.group # 0 /\ a.group = b.group)
          => a.t < b.t /\ a.t \in clients[objects[b.t].inflight].seen

(* A published instant is a commit, and has no other writer's data.                              *)
VISIBLE == \A t \in Instants : objects[t].done =>
               t \in Commits(log) /\ objects[t].data \subseteq {objects[t].inflight}

PREFIX == \A i, j \in DOMAIN log :
              LET ordered == IF version = 9 THEN i < j ELSE log[i].round < log[j].round
              IN ordered /\ log[j].kind = COMMIT /\ objects[log[j].t].done => IsPublished(i)

BEHIND_NOBODY == "BEHIND_NOBODY" \notin broken
WHOLE == "WHOLE" \notin broken

(* A configuration can name a sequence, but not write one.                                       *)
T1 == <<1>>
T0 == <<0>>
T11 == <<1, 1>>
T01 == <<0, 1>>
T00 == <<0, 0>>
T12 == <<1, 2>>
T111 == <<1, 1, 1>>
================================================================================
