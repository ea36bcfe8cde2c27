"""The known patterns of problems with a lock, each with a card: what to do, and what not to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Pattern(StrEnum):
    """The known patterns; a cause comes before its consequence."""

    NO_CAS = "store without real compare-and-set"
    HAND_DELETED = "hand-deleted lock file"
    HAND_EDITED = "lock file edited by hand"
    CLOCK_SKEW = "clock skew"
    FALSE_412 = "renewal met a false 412"
    GHOST = "ghost after a lost acquire"
    THROTTLED = "throttled release"
    DANGLING = "dangling lock after a failed release"
    TWO_BELIEVERS = "two holders"
    STALE = "stale writer committed"
    GARBLED = "garbled lock"
    HOLDER_DIED = "holder died"
    HOLDER_SILENT = "holder stopped renewing"
    UNPUBLISHED = "decided but not published"
    HELD_BACK = "dead instant holds readers back"
    UNREADABLE = "table cannot be read"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


PRESENT = frozenset({
    Pattern.GARBLED, Pattern.HAND_EDITED, Pattern.HOLDER_DIED, Pattern.HOLDER_SILENT,
    Pattern.UNPUBLISHED, Pattern.HELD_BACK, Pattern.UNREADABLE, Pattern.HEALTHY,
})  # fmt: skip
"""Those that one look at a bucket shows; all others are in a history."""
UNJUDGED = frozenset({Pattern.UNREADABLE, Pattern.UNKNOWN})
"""Those that name no harm: `lockkit incident` exits with 2."""


SIMULATED = {
    Pattern.NO_CAS: "lease/ignores conditions:1",
    Pattern.CLOCK_SKEW: "lease/skew:38",
    Pattern.FALSE_412: "lease/claim_unknown ours:5",
    Pattern.GHOST: "lease/claim_unknown lost:5",
    Pattern.THROTTLED: "lease:57",
    Pattern.DANGLING: "lease:54",
    Pattern.TWO_BELIEVERS: "lease/claim_412 ours:1",
    Pattern.HAND_DELETED: "table:2",
    Pattern.STALE: "table/fence off:3",
    Pattern.HOLDER_DIED: "lease:100@41",
    Pattern.HOLDER_SILENT: "lease:2@21",
    Pattern.HELD_BACK: "table:5@990",  # where somebody has deleted the lock file as well
    Pattern.HEALTHY: "lease:3",
}
"""A simulated run that shows the pattern, as a moment (`lockkit simulate --moment`)."""
BY_HAND = "no simulated client writes into the lock object by hand"
NOT_SIMULATED = {
    Pattern.HAND_EDITED: BY_HAND,
    Pattern.GARBLED: BY_HAND,
    Pattern.UNPUBLISHED: "the next simulated writer publishes what a dead one had decided, before "
    "this pattern is named",
    Pattern.UNREADABLE: "no simulated client damages a file of the table, or is denied access",
    Pattern.UNKNOWN: "the history matches none of the known patterns",
}
"""Why no simulated run shows the others."""


@dataclass(frozen=True, slots=True)
class RunbookCard:
    """A page of the runbook. `command` is for a table at `{url}`."""

    do: str
    dont: str
    command: str


_SEE = "lockkit lock show {url}"
_BREAK = "lockkit lock break {url}"

CARDS = {
    Pattern.NO_CAS: RunbookCard(
        "Stop all writers but one. Then probe the store, and use another lock service until the "
        "store enforces write conditions.",
        "Do not break the lock or retry: on this store no lock and no takeover is safe.",
        "lockkit probe {url}",
    ),
    Pattern.HAND_DELETED: RunbookCard(
        "Stop the writer that held the lock, or wait for its lease to end. Then compare the "
        "timeline with what both writers committed.",
        "Do not delete the lock file again: epochs may start again at 1, and a living holder does "
        "not notice.",
        "lockkit table show {url}",
    ),
    Pattern.HAND_EDITED: RunbookCard(
        "Stop the writer that held the lease: it does not know of the change. Then take the lock "
        "once, which gives it a new epoch, and compare the timeline with what was written since.",
        "Do not edit the lock file again: no writer notices, and two of them may act on a lease.",
        "lockkit lock acquire {url} -- true",
    ),
    Pattern.CLOCK_SKEW: RunbookCard(
        "Set the clocks (NTP) of the machines named above; then check what both of them committed "
        "while they overlapped.",
        "Do not lengthen the lease: the overlap is as long as the clock skew, with any lease.",
        "chronyc tracking; lockkit table show {url}",
    ),
    Pattern.FALSE_412: RunbookCard(
        "There is nothing to repair: the holder had the lock. Wait until the lease ends, or break "
        "it. Switch the SDK's retries off for the lock (or recognise your own write), and run the "
        "job again.",
        "Do not look for another writer: there was none.",
        _BREAK,
    ),
    Pattern.GHOST: RunbookCard(
        "Wait until the lease ends, or break it: its owner does not know that it has the lock. "
        "Switch off the SDK's retries for the lock, or recognise your own write.",
        "Do not delete the lock file. Do not restart the owner: it would not find its lock.",
        _BREAK,
    ),
    Pattern.THROTTLED: RunbookCard(
        "Wait until the lease ends, or break it: the holder's work is done. Retry a throttled "
        "release, and let fewer writers poll the object (GCS: one write a second).",
        "Do not add retries without a pause: refused writes count too.",
        _BREAK,
    ),
    Pattern.DANGLING: RunbookCard(
        "Wait until the lease ends, or break it: the holder's work is done. Retry the release "
        "after a 5xx and after a lost connection.",
        "Do not delete the lock file: a late release or renewal could end another holder's lock.",
        _BREAK,
    ),
    Pattern.TWO_BELIEVERS: RunbookCard(
        "Stop both writers. Then check what each of them committed since the overlap began.",
        "Do not break the lock while either of them runs.",
        "lockkit table show {url}",
    ),
    Pattern.STALE: RunbookCard(
        "Stop the late writer. It committed without having seen the commits before it: compare the "
        "file groups of both, restore the lost one and write it again through the fence.",
        "Do not clean the table before that: a clean would delete the file slices that you need.",
        "lockkit table show {url}",
    ),
    Pattern.GARBLED: RunbookCard(
        "Find the program that wrote the object, and stop it. Then break the lock: this writes a "
        "release with an epoch above every known one.",
        "Do not delete the lock file: epochs may start again at 1.",
        _BREAK,
    ),
    Pattern.HOLDER_DIED: RunbookCard(
        "Break the lock now, or let the next writer take it. Then see what the dead writer left "
        "unfinished.",
        "Do not delete the lock by hand: you may end a later grant, or make epochs start again.",
        _BREAK,
    ),
    Pattern.HOLDER_SILENT: RunbookCard(
        "Stop the holder's process, or wait until its lease ends, if leases end there: then any "
        "writer takes the lock. Break the lock only if you know that the process has ended.",
        "Do not break the lock of a process that is only paused: it writes again when it wakes.",
        "lockkit lock watch {url}",
    ),
    Pattern.UNPUBLISHED: RunbookCard(
        "Let any writer commit, or run the command below: either publishes the decided commit.",
        "Do not delete the fence, the inflight file or an offer: the commit would be lost.",
        "lockkit table rollback {url}",
    ),
    Pattern.HELD_BACK: RunbookCard(
        "Roll the dead writer's instant back.",
        "Do not delete its files by hand: if the writer is only slow, it may still commit them.",
        "lockkit table rollback {url}",
    ),
    Pattern.UNREADABLE: RunbookCard(
        "Do what the error above says: restore the file, grant the right, or wait for the store. "
        "Then look again: only the lock was judged.",
        "Do not delete the file that the error names, or make a new one: the fence may have "
        "committed what nothing else shows.",
        "lockkit table show {url}",
    ),
    Pattern.HEALTHY: RunbookCard(
        "Nothing.",
        "Do not break the lock of a holder that is in time.",
        _SEE,
    ),
    Pattern.UNKNOWN: RunbookCard(
        "Record what happens next, also with the store's own log of requests if it has one, and "
        "look again.",
        "Do not break a lock that you do not understand: the holder may be working.",
        _SEE,
    ),
}
